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
    # As split_words() gives them: those of the heading three times, and those of the content; a heading
    # that is the content, once.
    words: list[str] = field(default_factory=list)

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

    def pass_(self, memory: Memory, similarity: float | None) -> bool:
        if self.memory_types is not None and memory.memory_type not in self.memory_types:
            return False
        # Both as real: the caller's parameter is one, so that equality can pass at all.
        if self.min_similarity is not None and (
            similarity is None or float4(similarity) < float4(self.min_similarity)
        ):
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


@dataclass(frozen=True)
class Query:
    """What is asked: a vector, the words of a text (one element an occurrence), or both."""

    vector: Vector | None = None
    words: Sequence[str] | None = None


@dataclass(frozen=True)
class Ranked:
    """A memory's place: None for what it has none of."""

    memory: Memory
    score: float | None = None
    distance: float | None = None
    vector_rank: int | None = None
    text_rank: int | None = None

    @property
    def told(self) -> dict[str, Any]:
        names = ("score", "distance", "vector_rank", "text_rank")
        return {name: getattr(self, name) for name in names} | {"tokens": self.memory.content_tokens}


def bm25(memory: Memory, query: Sequence[str], live: Sequence[Memory]) -> float:
    """BM25 with k1 1.2, b 0.75 and a usual length of 1,000 words; 0 without a word of the query."""
    score = 0.0
    for word in sorted(set(query)):
        frequency = memory.words.count(word)
        if frequency:
            holding = sum(word in other.words for other in live)
            rarity = min(query.count(word), 3) * math.log((len(live) + 1) / (holding + 0.5))
            length = len(memory.words)
            score += rarity * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / 1000))
    return rounded(score)


def rarity(memory: Memory, query: Sequence[str], live: Sequence[Memory]) -> float:
    """What the words of the query that a memory holds are worth, however often it holds them."""
    return rounded(
        sum(
            min(query.count(word), 3)
            * math.log((len(live) + 1) / (sum(word in other.words for other in live) + 0.5))
            for word in sorted(set(query))
            if word in memory.words
        )
    )


def rounded(value: float) -> float:
    return math.floor(value * 1e9 + 0.5) / 1e9


def standardised(values: Sequence[float]) -> list[float]:
    """The values with mean 0 and standard deviation 1; all 0 where they are one."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    least = 1e-9 * max(map(abs, values))  # less is rounding
    return [(value - mean) / deviation if deviation > least else 0.0 for value in values]


def places(values: Sequence[float | None]) -> list[int | None]:
    """The place of each value, the highest first; equal values share one."""
    known = [value for value in values if value is not None]
    return [None if value is None else 1 + sum(other > value for other in known) for value in values]


def rank(
    live: Sequence[Memory],
    metric: Metric,
    query: Query,
    filters: Filters,
    limit: int,
    skip_pinned: bool = False,
) -> list[Ranked]:
    """The most relevant that pass the filters, by the vector, the text or both."""
    passing = []
    for memory in live:
        distance = None
        if memory.embedding is not None and query.vector is not None:
            distance = metric.distance(memory.embedding, query.vector)
        similarity = None if distance is None else metric.similarity(distance)
        if filters.pass_(memory, similarity) and not (skip_pinned and memory.pinned):
            passing.append((memory, distance))

    nearest = sorted(
        (pair for pair in passing if pair[1] is not None), key=lambda pair: (pair[1], pair[0].key)
    )
    if query.words is None:
        return [
            Ranked(memory, metric.similarity(distance), distance, place)
            for place, (memory, distance) in enumerate(nearest[:limit], 1)
        ]

    words = query.words
    matching = [pair for pair in passing if set(words) & set(pair[0].words)]
    matching.sort(key=lambda pair: (-rarity(pair[0], words, live), pair[0].key))
    sides = (max(limit, 30), max(limit, 30 if query.vector is not None else 200))
    candidates = {pair[0].key: pair for pair in nearest[: sides[0]] + matching[: sides[1]]}.values()
    if not candidates:
        return []
    texts = [bm25(memory, words, live) for memory, _ in candidates]
    similarities = [None if distance is None else metric.similarity(distance) for _, distance in candidates]
    least = min((value for value in similarities if value is not None), default=0.0)
    both = zip(
        standardised(texts),
        standardised([least if value is None else value for value in similarities]),
        strict=True,
    )
    scores = texts if query.vector is None else [rounded(1.5 * one + other) for one, other in both]
    vector_ranks = places([None if distance is None else -distance for _, distance in candidates])
    text_ranks = places([text or None for text in texts])
    ranked = [
        Ranked(memory, score, distance, vector_rank, text_rank)
        for (memory, distance), score, vector_rank, text_rank in zip(
            candidates, scores, vector_ranks, text_ranks, strict=True
        )
    ]
    ranked.sort(key=lambda entry: (-entry.score, entry.memory.key))
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
    query: Query,
    namespaces: Sequence[str],
    top_k: int = 5,
    filters: Filters = Filters(),
    embedding_model: str | None = None,
) -> list[dict[str, Any]]:
    live = live_in(store, namespaces, now)
    if query.vector is not None:
        check_models(live, embedding_model)
    return [
        {
            **fields(memory, "memory_id", "namespace", "memory_type", "heading", "content", "confidence"),
            **fields(memory, "source_type", "supersedes", "expires_at", "deleted_at"),
            **entry.told,
        }
        for entry in rank(live, metric, query, filters, top_k)
        for memory in [entry.memory]
    ]


def snippet(content: str) -> str:
    folded = " ".join(content.split())
    return folded if len(folded) <= 120 else folded[:119].rstrip() + "…"


def search_memories(
    store: Iterable[Memory],
    now: datetime,
    metric: Metric,
    query: Query,
    namespaces: Sequence[str],
    limit: int = 20,
    filters: Filters = Filters(),
    embedding_model: str | None = None,
) -> list[dict[str, Any]]:
    live = live_in(store, namespaces, now)
    if query.vector is not None:
        check_models(live, embedding_model)
    return [
        {
            **index_entry(memory),
            "snippet": snippet(memory.content),
            **entry.told,
        }
        for entry in rank(live, metric, query, filters, limit)
        for memory in [entry.memory]
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
    query: Query,
    namespaces: Sequence[str],
    top_k: int = 5,
    token_budget: int = 6000,
    index_budget: int | None = None,
    packing: str = "stop",
    filters: Filters = Filters(),
    embedding_model: str | None = None,
) -> dict[str, Any]:
    live = live_in(store, namespaces, now)
    if query.vector is not None:
        check_models(live, embedding_model)
    index = leading_run(by_confidence(live), index_budget)
    index_tokens = sum(memory.index_tokens for memory in index)
    left = token_budget - index_tokens

    accepted: list[Ranked] = []
    dropped: list[tuple[Ranked, str]] = []
    used = 0

    # Pinned memories first. An index over budget accepts nothing, not even what costs nothing.
    for memory in by_confidence(memory for memory in live if memory.pinned):
        distance = None
        if memory.embedding is not None and query.vector is not None:
            distance = metric.distance(memory.embedding, query.vector)
        entry = Ranked(memory, distance=distance)
        if left >= 0 and used + memory.content_tokens <= left // 2:
            used += memory.content_tokens
            accepted.append(entry)
        else:
            dropped.append((entry, "pinned_share"))

    # Then the ranked ones, among which the pinned take no place.
    cut_off = False
    for entry in rank(live, metric, query, filters, top_k, skip_pinned=True):
        if cut_off:
            dropped.append((entry, "after_cutoff"))
        elif used + entry.memory.content_tokens <= left:
            used += entry.memory.content_tokens
            accepted.append(entry)
        else:
            dropped.append((entry, "over_budget"))
            cut_off = packing == "stop"

    return {
        "index": [index_entry(memory) for memory in index],
        "relevant": [
            {
                **fields(memory, "memory_id", "namespace", "memory_type", "heading", "content", "confidence"),
                **fields(memory, "source_type", "supersedes", "expires_at", "created_at", "metadata"),
                "pinned": memory.pinned,
                **entry.told,
            }
            for entry in accepted
            for memory in [entry.memory]
        ],
        "dropped": [
            {
                **fields(entry.memory, "memory_id", "heading"),
                **entry.told,
                "reason": reason,
                "duplicate_of": None,
            }
            for entry, reason in dropped
        ],
        "index_tokens": index_tokens,
        "relevant_tokens": used,
        "tokens_used": index_tokens + used,
        "token_budget": token_budget,
        "truncated": bool(dropped),
        "over_budget": left < 0,
        "index_shown": len(index),
        "index_total": len(live),
        "ranked_by": "exact" if query.words is None else "text" if query.vector is None else "exact+text",
    }
