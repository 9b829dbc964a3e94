"""What the SQL calls answer, in plain Python, written from DESIGN alone.

It is short and slow on purpose: lists, sorts and loops, with no thought for cost, so that a reader
can hold each line against one sentence of the design. Nothing here was taken from the SQL.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Vector = tuple[float, ...]


def float4(value: float) -> float:
    """The value as a Postgres ``real`` holds it."""
    return struct.unpack("f", struct.pack("f", value))[0]


@dataclass
class Memory:
    """One row. ``confidence`` is given as a ``real`` would hold it; ``now`` is passed to each call."""

    namespace: str
    memory_id: uuid.UUID
    heading: str
    content: str
    created_at: datetime
    updated_at: datetime
    memory_type: str = "semantic"
    confidence: float = 1.0
    source_type: str = "agent"
    supersedes: uuid.UUID | None = None
    expires_at: datetime | None = None
    deleted_at: datetime | None = None
    pinned: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    embedding: Vector | None = None
    embedding_model: str | None = None
    token_count: int | None = None

    @property
    def key(self) -> tuple[uuid.UUID, str]:
        """What ends every tie: memory_id, then namespace."""
        return (self.memory_id, self.namespace)

    @property
    def index_tokens(self) -> int:
        return estimate_tokens(self.heading)

    @property
    def content_tokens(self) -> int:
        if self.token_count is not None:
            return self.token_count
        return estimate_tokens(self.heading + "\n" + self.content)


def estimate_tokens(text: str) -> int:
    """Characters over four, rounded up."""
    return math.ceil(len(text) / 4)


def is_live(memory: Memory, now: datetime) -> bool:
    return memory.deleted_at is None and (memory.expires_at is None or memory.expires_at > now)


def live_in(store: Iterable[Memory], namespaces: Sequence[str], now: datetime) -> list[Memory]:
    """The authorised live memories: a namespace matches exactly, and a duplicate counts once."""
    return [memory for memory in store if memory.namespace in namespaces and is_live(memory, now)]


# Distances, as pgvector computes them: sums in float4, the rest in double. The sums here are in
# double, which is the same number as long as every sum is exact in float4 – the tests see to that by
# drawing only small multiples of a half.


def cosine_distance(a: Vector, b: Vector) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    norms = sum(x * x for x in a) * sum(y * y for y in b)
    return 1.0 - max(-1.0, min(1.0, dot / math.sqrt(norms)))


def inner_product_distance(a: Vector, b: Vector) -> float:
    return -sum(x * y for x, y in zip(a, b, strict=True))


def l2_distance(a: Vector, b: Vector) -> float:
    return math.sqrt(sum((x - y) * (x - y) for x, y in zip(a, b, strict=True)))


@dataclass(frozen=True)
class Metric:
    """An installation's distance, and the similarity that belongs to it."""

    name: str

    def distance(self, a: Vector, b: Vector) -> float:
        return {
            "cosine": cosine_distance,
            "inner_product": inner_product_distance,
            "l2": l2_distance,
        }[self.name](a, b)

    def similarity(self, distance: float) -> float:
        if self.name == "cosine":
            return 1 - distance
        if self.name == "inner_product":
            return -distance
        return 1 / (1 + distance)


@dataclass(frozen=True)
class Filters:
    """What narrows the ranking. None means: no such filter."""

    memory_types: Sequence[str] | None = None
    min_similarity: float | None = None
    metadata: Any = None

    def pass_(self, memory: Memory, similarity: float) -> bool:
        if self.memory_types is not None and memory.memory_type not in self.memory_types:
            return False
        # Both as real: the caller's parameter is one, so that equality can pass at all.
        if self.min_similarity is not None and float4(similarity) < float4(self.min_similarity):
            return False
        return self.metadata is None or contains(memory.metadata, self.metadata)


def contains(left: Any, right: Any) -> bool:
    """jsonb's ``left @> right``; the tests ask for objects only, so no rule for a bare scalar."""
    if isinstance(right, dict):
        return isinstance(left, dict) and all(
            name in left and contains(left[name], value) for name, value in right.items()
        )
    if isinstance(right, list):
        return isinstance(left, list) and all(any(contains(has, wanted) for has in left) for wanted in right)
    # In Python True == 1; in jsonb it is not.
    return isinstance(left, bool) == isinstance(right, bool) and left == right


class ModelMismatch(Exception):
    """Vectors of two models would have been compared."""


def check_models(live: Iterable[Memory], embedding_model: str | None) -> None:
    """The query's model, where it says which, and every live vector's, where it does, are one."""
    models = {memory.embedding_model for memory in live if memory.embedding is not None}
    if len((models | {embedding_model}) - {None}) > 1:
        raise ModelMismatch


def rank(
    candidates: Iterable[Memory], metric: Metric, query: Vector, filters: Filters, limit: int
) -> list[tuple[Memory, float]]:
    """The nearest ``limit`` that have an embedding and pass the filters, with their distances."""
    ranked = []
    for memory in candidates:
        if memory.embedding is None:
            continue
        distance = metric.distance(memory.embedding, query)
        if filters.pass_(memory, metric.similarity(distance)):
            ranked.append((memory, distance))
    ranked.sort(key=lambda pair: (pair[1], pair[0].key))
    return ranked[:limit]


def by_confidence(memories: Iterable[Memory]) -> list[Memory]:
    return sorted(memories, key=lambda memory: (-memory.confidence, memory.key))


def leading_run(memories: Sequence[Memory], token_budget: int | None) -> list[Memory]:
    """The longest leading run whose summed index_tokens fit; the whole with no budget."""
    run: list[Memory] = []
    used = 0
    for memory in memories:
        used += memory.index_tokens
        if token_budget is not None and used > token_budget:
            break
        run.append(memory)
    return run


def fields(memory: Memory, *names: str) -> dict[str, Any]:
    return {name: getattr(memory, name) for name in names}


def index_entry(memory: Memory) -> dict[str, Any]:
    return fields(memory, "memory_id", "heading", "memory_type", "confidence")


# The calls.


def compact_index(
    store: Iterable[Memory], now: datetime, namespaces: Sequence[str], token_budget: int | None = None
) -> list[dict[str, Any]]:
    ordered = by_confidence(live_in(store, namespaces, now))
    return [index_entry(memory) for memory in leading_run(ordered, token_budget)]


def fetch_top_k_relevant(
    store: Iterable[Memory],
    now: datetime,
    metric: Metric,
    query: Vector,
    namespaces: Sequence[str],
    top_k: int = 5,
    filters: Filters = Filters(),
    embedding_model: str | None = None,
) -> list[dict[str, Any]]:
    live = live_in(store, namespaces, now)
    check_models(live, embedding_model)
    return [
        {
            **fields(memory, "memory_id", "namespace", "memory_type", "heading", "content", "confidence"),
            **fields(memory, "source_type", "supersedes", "expires_at", "deleted_at"),
            "distance": distance,
            "tokens": memory.content_tokens,
        }
        for memory, distance in rank(live, metric, query, filters, top_k)
    ]


def snippet(content: str) -> str:
    folded = " ".join(content.split())
    return folded if len(folded) <= 120 else folded[:119].rstrip() + "…"


def search_memories(
    store: Iterable[Memory],
    now: datetime,
    metric: Metric,
    query: Vector,
    namespaces: Sequence[str],
    limit: int = 20,
    filters: Filters = Filters(),
    embedding_model: str | None = None,
) -> list[dict[str, Any]]:
    live = live_in(store, namespaces, now)
    check_models(live, embedding_model)
    return [
        {
            **index_entry(memory),
            "snippet": snippet(memory.content),
            "distance": distance,
            "tokens": memory.content_tokens,
        }
        for memory, distance in rank(live, metric, query, filters, limit)
    ]


def fetch_memories(
    store: Iterable[Memory], now: datetime, namespaces: Sequence[str], memory_ids: Sequence[uuid.UUID]
) -> list[dict[str, Any]]:
    """In the order asked for, an id asked for twice at its first place; never with a vector."""
    live = sorted(live_in(store, namespaces, now), key=lambda memory: memory.namespace)
    return [
        {
            **fields(memory, "memory_id", "namespace", "memory_type", "heading", "content", "confidence"),
            **fields(memory, "source_type", "supersedes", "expires_at", "created_at", "updated_at"),
            **fields(memory, "pinned", "metadata", "embedding_model"),
            "tokens": memory.content_tokens,
        }
        for memory_id in dict.fromkeys(memory_ids)
        for memory in live
        if memory.memory_id == memory_id
    ]


def hydrate_session(
    store: Iterable[Memory],
    now: datetime,
    metric: Metric,
    query: Vector,
    namespaces: Sequence[str],
    top_k: int = 5,
    token_budget: int = 6000,
    index_budget: int | None = None,
    packing: str = "stop",
    filters: Filters = Filters(),
    embedding_model: str | None = None,
) -> dict[str, Any]:
    live = live_in(store, namespaces, now)
    check_models(live, embedding_model)
    index = leading_run(by_confidence(live), index_budget)
    index_tokens = sum(memory.index_tokens for memory in index)
    left = token_budget - index_tokens

    accepted: list[tuple[Memory, float | None]] = []
    dropped: list[tuple[Memory, float | None, str]] = []
    used = 0

    # Pinned memories first. An index over budget accepts nothing, not even what costs nothing.
    for memory in by_confidence(memory for memory in live if memory.pinned):
        distance = None if memory.embedding is None else metric.distance(memory.embedding, query)
        if left >= 0 and used + memory.content_tokens <= left // 2:
            used += memory.content_tokens
            accepted.append((memory, distance))
        else:
            dropped.append((memory, distance, "pinned_share"))

    # Then the ranked ones, among which the pinned take no place.
    cut_off = False
    for memory, distance in rank(
        (memory for memory in live if not memory.pinned), metric, query, filters, top_k
    ):
        if cut_off:
            dropped.append((memory, distance, "after_cutoff"))
        elif used + memory.content_tokens <= left:
            used += memory.content_tokens
            accepted.append((memory, distance))
        else:
            dropped.append((memory, distance, "over_budget"))
            cut_off = packing == "stop"

    return {
        "index": [index_entry(memory) for memory in index],
        "relevant": [
            {
                **fields(memory, "memory_id", "namespace", "memory_type", "heading", "content", "confidence"),
                **fields(memory, "source_type", "supersedes", "expires_at", "created_at", "metadata"),
                "pinned": memory.pinned,
                "distance": distance,
                "tokens": memory.content_tokens,
            }
            for memory, distance in accepted
        ],
        "dropped": [
            {
                **fields(memory, "memory_id", "heading"),
                "distance": distance,
                "tokens": memory.content_tokens,
                "reason": reason,
            }
            for memory, distance, reason in dropped
        ],
        "index_tokens": index_tokens,
        "relevant_tokens": used,
        "tokens_used": index_tokens + used,
        "token_budget": token_budget,
        "truncated": bool(dropped),
        "over_budget": left < 0,
        "index_shown": len(index),
        "index_total": len(live),
        "ranked_by": "exact",
    }
