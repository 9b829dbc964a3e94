"""A turn's memory: retrieval and conversation composed into the blocks that a prompt takes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from uuid import UUID

from hydrator import block
from hydrator.contribution import (
    ActivationEvent,
    ComposedMemorySource,
    MemoryContribution,
    MemoryRequest,
    check_contribution_id,
)
from hydrator.models import IndexEntry, RelevantMemory
from hydrator.policy import HydrationMode, HydrationPolicy
from hydrator.retrieval import AsyncRetrievalCoordinator, Failure, Retrieval, RetrievalCoordinator
from hydrator.window import WorkingContext, WorkingSource

# The reason of what the ceiling of the block left out; the budget's reasons are in the retrieval.
BLOCK_CEILING = "block_ceiling"

# All that an index entry and a memory tell; but not what is the query's. (asdict would copy every value
# first.)
_OF_THE_QUERY = ("score", "distance", "vector_rank", "text_rank")
_entry_told = attrgetter(*(field.name for field in fields(IndexEntry)))
_memory_told = attrgetter(
    *(field.name for field in fields(RelevantMemory) if field.name not in _OF_THE_QUERY)
)


@dataclass(frozen=True, slots=True)
class CoordinatedHydration:
    """A turn's memory, ready for the prompt.

    ``block`` holds the conversation window, then the memories; ``index`` is the compact index, a block
    with a revision of its own. ``contribution`` and ``request`` are None where nothing is declared.
    ``dropped`` has the id and the reason of each retrieved memory that the block's ceiling left out.
    """

    query: str
    retrieval: Retrieval
    working: WorkingContext
    block: str
    revision: str
    contribution: MemoryContribution | None
    request: MemoryRequest | None
    dropped: tuple[tuple[UUID, str], ...]
    index: ComposedMemorySource | None = None
    hydrated: tuple[RelevantMemory, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether any half of this turn's memory answered from something broken; ``failures`` name it."""
        return bool(self.failures)

    def events(self) -> tuple[ActivationEvent, ...]:
        """Give an event for each memory in the block."""
        return tuple(
            ActivationEvent(memory.memory_id, memory.heading, memory.score, memory.namespace)
            for memory in self.hydrated
        )


class _Coordinating:
    """What the plain and the async coordinator share: the wiring and the composition."""

    def __init__(
        self,
        *,
        namespaces: tuple[str, ...],
        working: WorkingSource | None,
        policy: HydrationPolicy | None,
        contribution_id: str,
        order: int,
    ) -> None:
        self.policy = policy or HydrationPolicy()
        self.contribution_id = check_contribution_id(contribution_id)
        self.order = order
        self._working = working
        self._nothing = ComposedMemorySource.of("", [], "turn", "memory")
        self._namespaces = namespaces
        # Most turns have the index of the turn before; rendering it would be half of their cost.
        self._last_index: tuple[tuple[tuple[IndexEntry, ...], int], ComposedMemorySource | None]
        self._last_index = ((), 0), None

    def _just_in_time(self, query: str) -> CoordinatedHydration:
        return CoordinatedHydration(
            query,
            Retrieval(query, self._namespaces),
            WorkingContext(),
            self._nothing.block,
            self._nothing.revision,
            contribution=None,
            request=None,
            dropped=(),
        )

    def _compose(self, query: str, retrieval: Retrieval, *, declare: bool) -> CoordinatedHydration:
        failures = list(retrieval.failures)
        working = self._window(failures)
        turns = [block.render_turn(turn.role, turn.text) for turn in working.turns]
        now = datetime.now(UTC)
        contents = [self.policy.compressed(memory.content) for memory in retrieval.relevant]
        memories = [
            block.render_memory(memory, content, now, show_source=self.policy.show_source)
            for memory, content in zip(retrieval.relevant, contents, strict=True)
        ]
        text, turns_kept, kept = block.fit_context(turns, memories, self.policy.fits)
        hydrated = retrieval.relevant[:kept]
        # Not the ages either, which are the day's.
        told = [turns[len(turns) - turns_kept :], list(map(_memory_told, hydrated)), contents[:kept]]
        source = ComposedMemorySource.of(text, told, "turn", "memory")
        index = self._index(retrieval)
        declared = declare and bool(text or index)
        return CoordinatedHydration(
            query,
            retrieval,
            WorkingContext(working.turns[len(turns) - turns_kept :]),
            text,
            source.revision,
            contribution=(
                MemoryContribution(self.contribution_id, self.order, index, source) if declared else None
            ),
            request=MemoryRequest(self.contribution_id, query, retrieval.namespaces) if declared else None,
            dropped=tuple((memory.memory_id, BLOCK_CEILING) for memory in retrieval.relevant[kept:]),
            index=index,
            hydrated=hydrated,
            failures=tuple(failures),
        )

    def _window(self, failures: list[Failure]) -> WorkingContext:
        if self._working is None:
            return WorkingContext()
        try:
            return self._working.context()
        except Exception as error:
            failures.append(Failure("working", f"{type(error).__name__}: {error}"))
            return WorkingContext()

    def _index(self, retrieval: Retrieval) -> ComposedMemorySource | None:
        if not retrieval.index_total:
            return None
        shown = (retrieval.index, retrieval.index_total)
        last_shown, last = self._last_index
        if last is not None and shown == last_shown:
            return last
        text = block.render_index(*shown)
        told = [list(map(_entry_told, retrieval.index)), retrieval.index_total]
        source = ComposedMemorySource.of(text, told, "session", "memory")
        self._last_index = shown, source
        return source


class HydrationCoordinator(_Coordinating):
    """Composes a turn's memory and declares it to the compiler of the prompt.

    Parameters
    ----------
    retrieval
        What retrieves.
    working
        The conversation window, or none.
    policy
        Eager or just-in-time, bounds, compressor.
    contribution_id, order
        The name and the rank under which the blocks are declared.

    Raises
    ------
    ValueError
        The contribution id is not one of memory's.
    """

    def __init__(
        self,
        *,
        retrieval: RetrievalCoordinator,
        working: WorkingSource | None = None,
        policy: HydrationPolicy | None = None,
        contribution_id: str = "memory.recall",
        order: int = 0,
    ) -> None:
        super().__init__(
            namespaces=retrieval.namespaces,
            working=working,
            policy=policy,
            contribution_id=contribution_id,
            order=order,
        )
        self._retrieval = retrieval

    def hydrate(self, query: str) -> CoordinatedHydration:
        """Compose and declare the turn's blocks (EAGER), or nothing at all (JIT)."""
        if self.policy.mode is HydrationMode.JIT:
            return self._just_in_time(query)
        return self._compose(query, self._retrieval.retrieve(query, self.policy), declare=True)

    def hydrate_on_demand(self, query: str) -> CoordinatedHydration:
        """Compose the same blocks now, for a tool, and declare nothing."""
        return self._compose(query, self._retrieval.retrieve(query, self.policy), declare=False)


class AsyncHydrationCoordinator(_Coordinating):
    """Composes a turn's memory, awaitably; see :class:`HydrationCoordinator`."""

    def __init__(
        self,
        *,
        retrieval: AsyncRetrievalCoordinator,
        working: WorkingSource | None = None,
        policy: HydrationPolicy | None = None,
        contribution_id: str = "memory.recall",
        order: int = 0,
    ) -> None:
        super().__init__(
            namespaces=retrieval.namespaces,
            working=working,
            policy=policy,
            contribution_id=contribution_id,
            order=order,
        )
        self._retrieval = retrieval

    async def hydrate(self, query: str) -> CoordinatedHydration:
        """Compose and declare the turn's blocks (EAGER), or nothing at all (JIT)."""
        if self.policy.mode is HydrationMode.JIT:
            return self._just_in_time(query)
        return self._compose(query, await self._retrieval.retrieve(query, self.policy), declare=True)

    async def hydrate_on_demand(self, query: str) -> CoordinatedHydration:
        """Compose the same blocks now, for a tool, and declare nothing."""
        return self._compose(query, await self._retrieval.retrieve(query, self.policy), declare=False)
