"""One retrieval: embed the query, make the one SQL call, and say what was broken.

The logic is a generator that yields what it needs done (an :class:`Embed`, a call) and is sent the
results; a plain and an async coordinator do what it asks for, within their deadlines.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hydrator import calls
from hydrator.calls import Call
from hydrator.deadlines import Breaker, in_thread, within, within_async
from hydrator.embedding import AsyncEmbedder, Embedder
from hydrator.errors import EmbeddedServerError, EmbedderError, HydratorError, StoreUnavailable
from hydrator.models import DroppedMemory, IndexEntry, RelevantMemory
from hydrator.policy import HydrationPolicy
from hydrator.store import AsyncMemoryStore, MemoryStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """A half of memory that did not answer: ``store``, ``embedder`` or ``working``, and why."""

    half: str
    reason: str


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What a query retrieved. ``ranked_by`` is None where nothing was ranked."""

    query: str
    namespaces: tuple[str, ...]
    index: tuple[IndexEntry, ...] = ()
    index_total: int = 0
    relevant: tuple[RelevantMemory, ...] = ()
    dropped: tuple[DroppedMemory, ...] = ()
    ranked_by: str | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether a half of it answered from a broken store or embedder."""
        return bool(self.failures)


@dataclass(frozen=True, slots=True)
class Embed:
    """A step: embed this text, and send back its vector."""

    text: str


Step = Embed | Call[Any]
Flow = Generator[Step, Any, T]


def _only(vectors: Sequence[Sequence[float]]) -> Sequence[float]:
    """Give the one vector of one text, or raise ValueError: one that compares with nothing is a failure."""
    [vector] = vectors
    if not any(vector) or not all(map(math.isfinite, vector)):
        raise ValueError("its vector is zero or not finite")
    return vector


class _Retrieving:
    """What the plain and the async coordinator share: the logic, and nothing that waits."""

    def __init__(
        self,
        model: str,
        namespaces: Iterable[str],
        *,
        store_timeout: float,
        embedder_timeout: float,
        breaker_seconds: float,
    ) -> None:
        if isinstance(namespaces, str):
            raise ValueError(f"namespaces is the single string {namespaces!r}; pass [{namespaces!r}]")
        self.namespaces = tuple(namespaces)
        self.model = model
        self._store_timeout = store_timeout
        self._embedder_timeout = embedder_timeout
        self._breaker = Breaker(breaker_seconds)

    def _retrieving(self, query: str, policy: HydrationPolicy) -> Flow[Retrieval]:
        failures: list[Failure] = []
        try:
            vector = yield Embed(query)
        except EmbedderError as error:
            failures.append(Failure("embedder", str(error)))
            vector = None
        try:
            # Without a vector, the text alone ranks.
            session = yield calls.hydrate_session(
                vector,
                self.namespaces,
                top_k=policy.top_k,
                token_budget=policy.token_budget,
                index_budget=policy.index_budget,
                packing=policy.packing,
                min_confidence=policy.min_confidence,
                source_types=policy.source_types,
                neighbours=policy.neighbours,
                recency_half_life=policy.recency_half_life,
                confidence_weight=policy.confidence_weight,
                duplicate_distance=policy.duplicate_distance,
                embedding_model=self.model,
                query_text=query,
            )
        except (StoreUnavailable, EmbeddedServerError) as error:
            failures.append(Failure("store", str(error)))
            return Retrieval(query, self.namespaces, failures=tuple(failures))
        return Retrieval(
            query,
            self.namespaces,
            session.index,
            session.index_total,
            session.relevant,
            session.dropped,
            session.ranked_by,
            tuple(failures),
        )

    def _check_breaker(self) -> None:
        if seconds := self._breaker.remaining:
            raise EmbedderError(
                f"the embedder {self.model!r} was late; it is skipped for {seconds:.0f} s more"
            )

    def _embedder_failed(self, error: Exception) -> EmbedderError:
        """Give the error that an embedder's failure is, and skip it for a while where it was late."""
        if isinstance(error, TimeoutError):
            self._breaker.trip()
        if isinstance(error, EmbedderError):
            return error
        return EmbedderError(f"the embedder {self.model!r} failed: {type(error).__name__}: {error}")


class RetrievalCoordinator(_Retrieving):
    """Retrieves memories for a query; a broken store or embedder degrades the result, and is named.

    Parameters
    ----------
    store, embedder
        Where the memories are, and what made their vectors.
    namespaces
        What the caller is authorised to read.
    store_timeout, embedder_timeout
        How long each may take, in seconds. A connection or a pool that was given to the store stays
        busy with a late call.
    breaker_seconds
        For how long an embedder that was late is skipped.
    """

    def __init__(
        self,
        store: MemoryStore,
        embedder: Embedder,
        namespaces: Iterable[str],
        *,
        store_timeout: float = 10.0,
        embedder_timeout: float = 5.0,
        breaker_seconds: float = 30.0,
    ) -> None:
        super().__init__(
            embedder.model,
            namespaces,
            store_timeout=store_timeout,
            embedder_timeout=embedder_timeout,
            breaker_seconds=breaker_seconds,
        )
        self._store = store
        self._embedder = embedder

    def retrieve(self, query: str, policy: HydrationPolicy | None = None) -> Retrieval:
        """Retrieve for a query; raises for programming errors only (a call that SQL refuses)."""
        return self.run(self._retrieving(query, policy or HydrationPolicy()))

    def run(self, flow: Flow[T]) -> T:
        """Do what a flow asks for, step by step, and give its result."""
        try:
            step = next(flow)
            while True:
                try:
                    result = self._perform(step)
                except HydratorError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as ended:
            value: T = ended.value
            return value

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Embed):
            self._check_breaker()
            try:
                return _only(within(self._embedder_timeout, lambda: self._embedder.embed([step.text])))
            except Exception as error:
                raise self._embedder_failed(error) from error
        try:
            return within(self._store_timeout, lambda: self._store.execute(step))
        except TimeoutError as error:
            self._store.interrupt()
            raise StoreUnavailable(f"the store gave {error}") from error


class AsyncRetrievalCoordinator(_Retrieving):
    """Retrieves memories for a query, awaitably; see :class:`RetrievalCoordinator`.

    An embedder whose ``embed`` is not a coroutine function runs in a thread.
    """

    def __init__(
        self,
        store: AsyncMemoryStore,
        embedder: Embedder | AsyncEmbedder,
        namespaces: Iterable[str],
        *,
        store_timeout: float = 10.0,
        embedder_timeout: float = 5.0,
        breaker_seconds: float = 30.0,
    ) -> None:
        super().__init__(
            embedder.model,
            namespaces,
            store_timeout=store_timeout,
            embedder_timeout=embedder_timeout,
            breaker_seconds=breaker_seconds,
        )
        self._store = store
        self._embedder = embedder

    async def retrieve(self, query: str, policy: HydrationPolicy | None = None) -> Retrieval:
        """Retrieve for a query; raises for programming errors only (a call that SQL refuses)."""
        return await self.run(self._retrieving(query, policy or HydrationPolicy()))

    async def run(self, flow: Flow[T]) -> T:
        """Do what a flow asks for, step by step, and give its result."""
        try:
            step = next(flow)
            while True:
                try:
                    result = await self._perform(step)
                except HydratorError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as ended:
            value: T = ended.value
            return value

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Embed):
            self._check_breaker()
            try:
                return _only(await within_async(self._embedder_timeout, self._embed(step.text)))
            except Exception as error:
                raise self._embedder_failed(error) from error
        try:
            return await within_async(self._store_timeout, self._store.execute(step))
        except TimeoutError as error:
            self._store.interrupt()
            raise StoreUnavailable(f"the store gave {error}") from error

    async def _embed(self, text: str) -> list[list[float]]:
        embed: Any = self._embedder.embed
        if inspect.iscoroutinefunction(embed):
            vectors: list[list[float]] = await embed([text])
            return vectors
        return await in_thread(lambda: embed([text]))
