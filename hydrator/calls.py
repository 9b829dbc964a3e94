"""Each SQL call as a value: its text, its parameters, and the parser of its rows.

Nothing here touches a database; a store executes a call and hands the rows to ``parse``. The
casts are there because a driver picks its types from the values: a large Python integer would not
find an ``integer`` parameter by itself, nor an empty list an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from hydrator.errors import InvalidMemory, InvalidNamespaces
from hydrator.models import (
    DroppedMemory,
    IndexEntry,
    Installation,
    Memory,
    NearDuplicate,
    QuarantinedMemory,
    RankedMemory,
    RelevantMemory,
    SearchHit,
    SessionHydration,
)
from hydrator.vectors import Embedding

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One statement for psycopg, and what makes its rows the result.

    ``read_only`` says that it writes nothing: it may run on a hot standby, and once more after its
    connection was lost.
    """

    sql: str
    parameters: Mapping[str, Any]
    parse: Callable[[Rows], T]
    read_only: bool = False


# The casts of the parameters that need one; the others are sent as they are.
_CASTS = {
    "namespaces": "text[]",
    "memory_types": "text[]",
    "source_types": "text[]",
    "memory_ids": "uuid[]",
    "token_budget": "integer",
    "index_budget": "integer",
    "top_k": "integer",
    "limit": "integer",
    "token_count": "integer",
    "older_than": "interval",
    "recency_half_life": "interval",
    "neighbours": "integer",
}


# Columns of JSON; _session_hydration() reads them.
_JSON = {"index", "relevant", "dropped"}

# The functions that write; all others may run on a hot standby.
_WRITES = {"remember", "forget", "purge", "quarantine", "release"}


def _call(
    function: str, columns: Iterable[str], parameters: Mapping[str, Any], parse: Callable[[Rows], T]
) -> Call[T]:
    arguments = ", ".join(
        f"p_{name} => %({name})s" + (f"::{_CASTS[name]}" if name in _CASTS else "") for name in parameters
    )
    sql = f"select {', '.join(columns)} from hydrator.{function}({arguments})"
    return Call(sql, parameters, parse, read_only=function not in _WRITES)


def _table(function: str, row: type[T], parameters: Mapping[str, Any]) -> Call[tuple[T, ...]]:
    """Give the call whose columns are the fields of ``row``."""
    names = [field.name for field in fields(row)]  # type: ignore[arg-type]
    return _call(function, names, parameters, lambda rows: tuple(row(*values) for values in rows))


def _value(function: str, parameters: Mapping[str, Any], parse: Callable[[Any], T]) -> Call[T]:
    return _call(function, ["*"], parameters, lambda rows: parse(rows[0][0]))


def _vector(embedding: Sequence[float] | None) -> Embedding | None:
    return None if embedding is None else Embedding(embedding)


def _text(query: str | None) -> str | None:
    """Give a query as the database can take it: it is read for its words, and none has these characters."""
    return None if query is None else query.replace("\0", " ").encode("utf-8", "replace").decode()


def _namespaces(namespaces: Iterable[str] | None) -> list[str] | None:
    if isinstance(namespaces, str):
        raise InvalidNamespaces(
            f"namespaces is the single string {namespaces!r}", hint=f"Pass a list: [{namespaces!r}]"
        )
    return None if namespaces is None else list(namespaces)


def _filters(
    memory_types: Iterable[str] | None,
    min_similarity: float | None,
    metadata: Mapping[str, Any] | None,
    embedding_model: str | None,
    min_confidence: float | None,
    source_types: Iterable[str] | None,
) -> dict[str, Any]:
    return {
        "memory_types": None if memory_types is None else list(memory_types),
        "min_similarity": min_similarity,
        "metadata": None if metadata is None else Jsonb(dict(metadata)),
        "embedding_model": embedding_model,
        "min_confidence": min_confidence,
        "source_types": None if source_types is None else list(source_types),
    }


def _reranking(
    neighbours: int | None,
    recency_half_life: timedelta | None,
    confidence_weight: float | None,
    duplicate_distance: float | None,
) -> dict[str, Any]:
    return {
        "neighbours": neighbours,
        "recency_half_life": recency_half_life,
        "confidence_weight": confidence_weight,
        "duplicate_distance": duplicate_distance,
    }


def compact_index(
    namespaces: Iterable[str], *, token_budget: int | None = None
) -> Call[tuple[IndexEntry, ...]]:
    """Tier 1: one entry a live memory, best confidence first; with a budget, the leading run that fits."""
    return _table(
        "compact_index", IndexEntry, {"namespaces": _namespaces(namespaces), "token_budget": token_budget}
    )


def fetch_top_k_relevant(
    query_embedding: Sequence[float] | None,
    namespaces: Iterable[str],
    *,
    top_k: int = 5,
    memory_types: Iterable[str] | None = None,
    min_similarity: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    embedding_model: str | None = None,
    query_text: str | None = None,
    min_confidence: float | None = None,
    source_types: Iterable[str] | None = None,
    neighbours: int | None = None,
    recency_half_life: timedelta | None = None,
    confidence_weight: float | None = None,
    duplicate_distance: float | None = None,
) -> Call[tuple[RankedMemory, ...]]:
    """Tier 2 alone: the most relevant live memories in full, best first.

    By the query's vector, its text, or both together; one of the two may be None.
    """
    return _table(
        "fetch_top_k_relevant",
        RankedMemory,
        {
            "query_embedding": _vector(query_embedding),
            "namespaces": _namespaces(namespaces),
            "top_k": top_k,
            **_filters(memory_types, min_similarity, metadata, embedding_model, min_confidence, source_types),
            "query_text": _text(query_text),
            **_reranking(neighbours, recency_half_life, confidence_weight, duplicate_distance),
        },
    )


def search_memories(
    query_embedding: Sequence[float] | None,
    namespaces: Iterable[str],
    *,
    limit: int = 20,
    memory_types: Iterable[str] | None = None,
    min_similarity: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    embedding_model: str | None = None,
    query_text: str | None = None,
    min_confidence: float | None = None,
    source_types: Iterable[str] | None = None,
    neighbours: int | None = None,
    recency_half_life: timedelta | None = None,
    confidence_weight: float | None = None,
    duplicate_distance: float | None = None,
) -> Call[tuple[SearchHit, ...]]:
    """Progressive disclosure, first step: the most relevant live memories as summaries of one line.

    By the query's vector, its text, or both together; one of the two may be None.
    """
    return _table(
        "search_memories",
        SearchHit,
        {
            "query_embedding": _vector(query_embedding),
            "namespaces": _namespaces(namespaces),
            "limit": limit,
            **_filters(memory_types, min_similarity, metadata, embedding_model, min_confidence, source_types),
            "query_text": _text(query_text),
            **_reranking(neighbours, recency_half_life, confidence_weight, duplicate_distance),
        },
    )


def fetch_memories(namespaces: Iterable[str], memory_ids: Iterable[UUID | str]) -> Call[tuple[Memory, ...]]:
    """Progressive disclosure, second step: full live memories by id, in the order asked for."""
    return _table(
        "fetch_memories",
        Memory,
        {"namespaces": _namespaces(namespaces), "memory_ids": [str(memory_id) for memory_id in memory_ids]},
    )


def hydrate_session(
    query_embedding: Sequence[float] | None,
    namespaces: Iterable[str],
    *,
    top_k: int = 5,
    token_budget: int = 6000,
    index_budget: int | None = None,
    packing: str = "stop",
    memory_types: Iterable[str] | None = None,
    min_similarity: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    embedding_model: str | None = None,
    query_text: str | None = None,
    min_confidence: float | None = None,
    source_types: Iterable[str] | None = None,
    neighbours: int | None = None,
    recency_half_life: timedelta | None = None,
    confidence_weight: float | None = None,
    duplicate_distance: float | None = None,
) -> Call[SessionHydration]:
    """A session's context in one snapshot: the compact index, then what fits of the most relevant.

    Ranked by the query's vector, its text, or both together; one of the two may be None.
    """
    return _call(
        "hydrate_session",
        [f"{field.name}::text" if field.name in _JSON else field.name for field in fields(SessionHydration)],
        {
            "query_embedding": _vector(query_embedding),
            "namespaces": _namespaces(namespaces),
            "top_k": top_k,
            "token_budget": token_budget,
            "index_budget": index_budget,
            "packing": packing,
            **_filters(memory_types, min_similarity, metadata, embedding_model, min_confidence, source_types),
            "query_text": _text(query_text),
            **_reranking(neighbours, recency_half_life, confidence_weight, duplicate_distance),
        },
        _session_hydration,
    )


# Its JSON comes as text and is read into our types at once: an index may have thousands of lines.
_INDEX = msgspec.json.Decoder(tuple[IndexEntry, ...])
# In metadata, a number of more digits than a float holds is rounded, not refused.
_RELEVANT = msgspec.json.Decoder(tuple[RelevantMemory, ...], float_hook=float)
_DROPPED = msgspec.json.Decoder(tuple[DroppedMemory, ...])


def _session_hydration(rows: Rows) -> SessionHydration:
    index, relevant, dropped, *rest = rows[0]
    return SessionHydration(_INDEX.decode(index), _RELEVANT.decode(relevant), _DROPPED.decode(dropped), *rest)


def remember(
    namespace: str,
    heading: str,
    content: str | None = None,
    *,
    embedding: Sequence[float] | None = None,
    memory_type: str = "semantic",
    confidence: float = 1.0,
    source_type: str = "agent",
    supersedes: UUID | str | None = None,
    expires_at: datetime | None = None,
    pinned: bool = False,
    metadata: Mapping[str, Any] | None = None,
    embedding_model: str | None = None,
    token_count: int | None = None,
) -> Call[UUID]:
    """Write a memory, and retire the one it supersedes; the new memory's id.

    Where a live memory, or one in quarantine, has the same heading and content, nothing is written and
    the id is that one's.

    ``expires_at`` carries a time zone: a naive time would mean whatever zone the server's session
    happens to have, and is refused (InvalidMemory).
    """
    if expires_at is not None and expires_at.tzinfo is None:
        raise InvalidMemory(
            f"expires_at is {expires_at.isoformat()}, without a time zone",
            hint="Give it one, such as tzinfo=timezone.utc",
        )
    return _value(
        "remember",
        {
            "namespace": namespace,
            "heading": heading,
            "content": content,
            "embedding": _vector(embedding),
            "memory_type": memory_type,
            "confidence": confidence,
            "source_type": source_type,
            "supersedes": None if supersedes is None else str(supersedes),
            "expires_at": expires_at,
            "pinned": pinned,
            "metadata": Jsonb({} if metadata is None else dict(metadata)),
            "embedding_model": embedding_model,
            "token_count": token_count,
        },
        lambda value: value,
    )


def forget(namespace: str, memory_id: UUID | str) -> Call[bool]:
    """Soft-delete a memory; whether it was live."""
    return _value("forget", {"namespace": namespace, "memory_id": str(memory_id)}, bool)


def quarantine(namespace: str, memory_id: UUID | str, *, reason: str = "no reason given") -> Call[bool]:
    """Take a memory out of every call without losing it; whether it was live."""
    parameters = {"namespace": namespace, "memory_id": str(memory_id), "reason": reason}
    return _value("quarantine", parameters, bool)


def release(namespace: str, memory_id: UUID | str) -> Call[bool]:
    """Bring a memory back from quarantine; whether it was there."""
    return _value("release", {"namespace": namespace, "memory_id": str(memory_id)}, bool)


def list_quarantined(namespaces: Iterable[str]) -> Call[tuple[QuarantinedMemory, ...]]:
    """The memories in quarantine, latest first, with the reason."""
    return _table("list_quarantined", QuarantinedMemory, {"namespaces": _namespaces(namespaces)})


def near_duplicates(
    namespaces: Iterable[str], *, distance: float = 0.05, limit: int = 20
) -> Call[tuple[NearDuplicate, ...]]:
    """Pairs of live memories of a namespace whose vectors are near one another, nearest first."""
    parameters = {"namespaces": _namespaces(namespaces), "distance": distance, "limit": limit}
    return _table("near_duplicates", NearDuplicate, parameters)


def act_for(namespaces: Iterable[str]) -> Call[None]:
    """Narrow row security to these namespaces until the transaction ends."""
    return _value("act_for", {"namespaces": _namespaces(namespaces)}, lambda value: None)


def purge(older_than: timedelta) -> Call[int]:
    """Remove for good what has been dead for longer; the number of rows."""
    return _value("purge", {"older_than": older_than}, int)


def estimate_tokens(text: str) -> Call[int]:
    """What a text costs by the token rule: characters over four, rounded up."""
    return _value("estimate_tokens", {"text": text}, int)


def schema_version() -> Call[str]:
    """The revision of the schema."""
    return _value("schema_version", {}, str)


def installation() -> Call[Installation]:
    """What was settled at install."""
    names = [field.name for field in fields(Installation)]
    return _call("installation", names, {}, lambda rows: Installation(*rows[0]))


def count_live(namespaces: Iterable[str]) -> Call[int]:
    """How many live memories the namespaces hold."""
    return _value("count_live", {"namespaces": _namespaces(namespaces)}, int)


def live_tokens(namespaces: Iterable[str]) -> Call[int]:
    """What every live memory of the namespaces would cost in full, in tokens."""
    return Call(
        "select coalesce(sum(content_tokens), 0) from hydrator.live_memories"
        " where namespace = any (%(namespaces)s::text[])",
        {"namespaces": _namespaces(namespaces)},
        lambda rows: int(rows[0][0]),
        read_only=True,
    )
