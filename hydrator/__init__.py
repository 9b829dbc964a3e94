"""Memory hydration for LLM agents, inside Postgres.

>>> from hydrator import MemoryStore, WordLlamaEmbedder
"""

from hydrator.contribution import (
    ActivationEvent,
    ComposedMemorySource,
    MemoryContribution,
    MemoryRequest,
)
from hydrator.coordinator import AsyncHydrationCoordinator, CoordinatedHydration, HydrationCoordinator
from hydrator.embedders import OpenAIEmbedder, SentenceTransformerEmbedder
from hydrator.embedding import AsyncEmbedder, Embedder, WordLlamaEmbedder
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
from hydrator.policy import HydrationMode, HydrationPolicy
from hydrator.retrieval import AsyncRetrievalCoordinator, Failure, Retrieval, RetrievalCoordinator
from hydrator.store import AsyncMemoryStore, MemoryStore
from hydrator.tools import anthropic_tools, openai_tools, run_tool_call, run_tool_call_async
from hydrator.window import Turn, WorkingContext, WorkingWindow

__all__ = [
    "ActivationEvent",
    "AlreadySuperseded",
    "AsyncEmbedder",
    "AsyncHydrationCoordinator",
    "AsyncMemoryStore",
    "AsyncRetrievalCoordinator",
    "CallError",
    "ComposedMemorySource",
    "CoordinatedHydration",
    "DroppedMemory",
    "EmbeddedServerError",
    "Embedder",
    "EmbedderError",
    "Failure",
    "HydrationCoordinator",
    "HydrationMode",
    "HydrationPolicy",
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
    "MemoryContribution",
    "MemoryRequest",
    "MemoryStore",
    "ModelMismatch",
    "OpenAIEmbedder",
    "RankedMemory",
    "RelevantMemory",
    "Retrieval",
    "RetrievalCoordinator",
    "SearchHit",
    "SentenceTransformerEmbedder",
    "SessionHydration",
    "StoreUnavailable",
    "Turn",
    "UnknownMemory",
    "UnknownPacking",
    "WordLlamaEmbedder",
    "WorkingContext",
    "WorkingWindow",
    "WrongDimensions",
    "anthropic_tools",
    "openai_tools",
    "run_tool_call",
    "run_tool_call_async",
]
