"""Memory hydration for LLM agents, inside Postgres.

>>> from hydrator import MemoryStore, WordLlamaEmbedder
"""

from hydrator.embedding import Embedder, WordLlamaEmbedder
from hydrator.errors import (
    AlreadySuperseded,
    CallError,
    EmbeddedServerError,
    EmbedderError,
    HydratorError,
    InstallationError,
    InvalidCount,
    InvalidEmbedding,
    InvalidHeading,
    InvalidMemory,
    InvalidNamespaces,
    InvalidValue,
    ModelMismatch,
    StoreUnavailable,
    UnknownMemory,
    UnknownPacking,
    WrongDimensions,
)
from hydrator.models import (
    DroppedMemory,
    IndexEntry,
    Installation,
    Memory,
    RankedMemory,
    RelevantMemory,
    SearchHit,
    SessionHydration,
)
from hydrator.store import MemoryStore

__all__ = [
    "AlreadySuperseded",
    "CallError",
    "DroppedMemory",
    "EmbeddedServerError",
    "Embedder",
    "EmbedderError",
    "HydratorError",
    "IndexEntry",
    "Installation",
    "InstallationError",
    "InvalidCount",
    "InvalidEmbedding",
    "InvalidHeading",
    "InvalidMemory",
    "InvalidNamespaces",
    "InvalidValue",
    "Memory",
    "MemoryStore",
    "ModelMismatch",
    "RankedMemory",
    "RelevantMemory",
    "SearchHit",
    "SessionHydration",
    "StoreUnavailable",
    "UnknownMemory",
    "UnknownPacking",
    "WordLlamaEmbedder",
    "WrongDimensions",
]
