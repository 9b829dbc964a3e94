"""What the calls return: frozen values, one for each row that the SQL gives.

Tokens are whole numbers of the token rule (:sql:`hydrator.estimate_tokens`), distances
pgvector's for the installed metric, times timezone-aware. ``score`` is what ranked a memory, higher
for the better: the similarity, BM25, or the sum of both brought to one scale; ``vector_rank`` and
``text_rank`` are its places on either side, None where that side does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Installation:
    """What is settled when the schema is installed, as ``hydrator.installation()`` tells it.

    Parameters
    ----------
    dimensions
        The length of every embedding, 1 to 16,000.
    vector_type
        ``vector`` (4 bytes a dimension) or ``halfvec`` (2 bytes a dimension).
    distance
        ``cosine``, ``inner_product`` or ``l2``.
    extension_schema
        Where pgvector's types and operators live.
    text_search_config
        The text search configuration that reads memories and queries: ``english``, ``simple`` or any
        other; one outside ``pg_catalog`` with its schema.
    """

    dimensions: int = 256
    vector_type: str = "vector"
    distance: str = "cosine"
    extension_schema: str = "public"
    text_search_config: str = "english"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the compact index."""

    memory_id: UUID
    heading: str
    memory_type: str
    confidence: float


@dataclass(frozen=True, slots=True)
class RankedMemory:
    """A full memory as ``fetch_top_k_relevant`` ranks it; ``distance`` is None without a vector."""

    memory_id: UUID
    namespace: str
    memory_type: str
    heading: str
    content: str
    confidence: float
    source_type: str
    supersedes: UUID | None
    expires_at: datetime | None
    deleted_at: datetime | None
    score: float | None
    distance: float | None
    vector_rank: int | None
    text_rank: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A memory as a summary of one line: its content's first 120 characters."""

    memory_id: UUID
    heading: str
    memory_type: str
    confidence: float
    snippet: str
    score: float | None
    distance: float | None
    vector_rank: int | None
    text_rank: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A full live memory, without its vector."""

    memory_id: UUID
    namespace: str
    memory_type: str
    heading: str
    content: str
    confidence: float
    source_type: str
    supersedes: UUID | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    pinned: bool
    metadata: Mapping[str, Any]
    embedding_model: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class QuarantinedMemory:
    """A memory that was taken out of every call, and why."""

    memory_id: UUID
    namespace: str
    heading: str
    source_type: str
    confidence: float
    quarantined_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """Two live memories of a namespace whose vectors are near one another."""

    namespace: str
    memory_id: UUID
    heading: str
    other_memory_id: UUID
    other_heading: str
    distance: float


@dataclass(frozen=True, slots=True)
class RelevantMemory:
    """A memory that a hydration accepted in full; ``score`` is None for a pinned one, which is not ranked."""

    memory_id: UUID
    namespace: str
    memory_type: str
    heading: str
    content: str
    confidence: float
    source_type: str
    supersedes: UUID | None
    expires_at: datetime | None
    created_at: datetime
    metadata: Mapping[str, Any]
    pinned: bool
    score: float | None
    distance: float | None
    vector_rank: int | None
    text_rank: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class DroppedMemory:
    """A candidate that a hydration did not accept.

    ``reason`` is ``over_budget`` (it would have exceeded the budget), ``after_cutoff`` (packing
    stopped before it), ``pinned_share`` (pinned memories may use half of what the index left) or
    ``duplicate_of`` (it is near to a better ranked one, whose id ``duplicate_of`` is).
    """

    memory_id: UUID
    heading: str
    score: float | None
    distance: float | None
    vector_rank: int | None
    text_rank: int | None
    tokens: int
    reason: str
    duplicate_of: UUID | None = None


@dataclass(frozen=True, slots=True)
class SessionHydration:
    """A session's context, as the one row of ``hydrate_session``."""

    index: tuple[IndexEntry, ...]
    relevant: tuple[RelevantMemory, ...]
    dropped: tuple[DroppedMemory, ...]
    index_tokens: int
    relevant_tokens: int
    tokens_used: int
    token_budget: int
    truncated: bool
    over_budget: bool
    index_shown: int
    index_total: int
    ranked_by: str
