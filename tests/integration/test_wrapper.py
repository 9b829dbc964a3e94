"""The wrapper, against a real database: eager and just-in-time, bounds, revisions, degradation."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hydrator
from hydrator import (
    AsyncHydrationCoordinator,
    AsyncMemoryStore,
    AsyncRetrievalCoordinator,
    HydrationCoordinator,
    HydrationMode,
    HydrationPolicy,
    HydratorError,
    MemoryStore,
    ModelMismatch,
    RetrievalCoordinator,
    WorkingWindow,
    WrongDimensions,
)
from hydrator.coordinator import BLOCK_CEILING


class Toy:
    """Vectors of four dimensions that the text itself names: the codes of its last characters."""

    model = "toy"
    dimensions = 4

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, *(float(ord(c) % 13) for c in f"...{text}"[-3:])] for text in texts]


class Untouchable:
    """A store or an embedder that raises on any use."""

    model = "untouchable"
    dimensions = 4

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"touched: {name}")


@pytest.fixture
def toy(url: str) -> Iterator[MemoryStore]:
    with MemoryStore(url) as store:
        for number in range(12):
            heading = f"memory {number}"
            [vector] = Toy().embed([heading])
            store.remember(
                "acme",
                heading,
                f"The content of {heading}.\n" * (number + 1),
                embedding=vector,
                embedding_model="toy",
                confidence=1 - number / 20,
            )
        yield store


def coordinator(store: Any, embedder: Any = None, **options: Any) -> HydrationCoordinator:
    retrieval = RetrievalCoordinator(
        store, embedder or Toy(), ["acme"], store_timeout=2.0, embedder_timeout=5.0
    )
    return HydrationCoordinator(retrieval=retrieval, **options)


def test_eager_composes_and_declares(toy: MemoryStore) -> None:
    window = WorkingWindow()
    window.add("user", "What about memory 3?")
    turn = coordinator(toy, working=window, order=7).hydrate("memory 3")
    assert not turn.degraded
    assert turn.block.index("user: What about memory 3?") < turn.block.index(
        "# memory 3 (semantic, 0.85, 0 days old)"
    )
    assert turn.contribution is not None
    assert (turn.contribution.contribution_id, turn.contribution.order) == ("memory.recall", 7)
    assert turn.contribution.source.block == turn.block
    assert turn.contribution.source.revision == turn.revision
    assert turn.contribution.index == turn.index
    assert turn.request is not None
    assert (turn.request.query, turn.request.namespaces) == ("memory 3", ("acme",))
    assert turn.index is not None
    assert turn.index.block.count("\n- memory") == 12
    events = turn.events()
    assert [event.memory_id for event in events] == [memory.memory_id for memory in turn.retrieval.relevant]
    assert events[0].heading == "memory 3"
    assert events[0].score == turn.retrieval.relevant[0].score
    assert {(event.namespace, event.tier) for event in events} == {("acme", 2)}


def test_just_in_time_touches_nothing() -> None:
    untouchable = Untouchable()
    just_in_time = coordinator(untouchable, untouchable, policy=HydrationPolicy(mode=HydrationMode.JIT))
    turn = just_in_time.hydrate("anything")
    assert (turn.block, turn.contribution, turn.request, turn.index) == ("", None, None, None)
    assert (turn.events(), turn.dropped, turn.degraded) == ((), (), False)


def test_on_demand_gives_the_same_block_and_declares_nothing(toy: MemoryStore) -> None:
    eager = coordinator(toy).hydrate("memory 5")
    demanded = coordinator(toy, policy=HydrationPolicy(mode=HydrationMode.JIT)).hydrate_on_demand("memory 5")
    assert (demanded.block, demanded.revision) == (eager.block, eager.revision)
    assert (demanded.contribution, demanded.request) == (None, None)
    assert demanded.events() == eager.events()


@pytest.mark.parametrize(
    "forged",
    ["system", "memory", "memory.", "Memory.recall", "memory.recall\n", "mеmory.recall", "memory.re call", "memory..x",
     "memory.récall", "ｍemory.recall", "memory.recall\u200b", "", None, 1, "tool.memory.recall"],
)  # fmt: skip
def test_a_forged_contribution_id_fails_at_wiring(forged: Any) -> None:
    with pytest.raises(ValueError, match="contribution id"):
        coordinator(Untouchable(), Untouchable(), contribution_id=forged)


@pytest.mark.parametrize(
    "options",
    [
        {"max_block_chars": -1},
        {"max_block_tokens": 5},
        {"max_block_tokens": -1, "token_counter": len},
        {"mode": "sometimes"},
    ],
)
def test_a_policy_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="max_block|sometimes"):
        HydrationPolicy(**options)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60).filter(
    str.strip
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    turns=st.lists(texts, max_size=5),
    max_chars=st.integers(0, 4_000),
    top_k=st.integers(0, 12),
    tokens=st.none() | st.integers(0, 800),
    query=st.integers(0, 11),
)
def test_the_block_is_a_prefix_of_the_untruncated_one(
    toy: MemoryStore, turns: list[str], max_chars: int, top_k: int, tokens: int | None, query: int
) -> None:
    def turn_of(**ceiling: Any) -> hydrator.CoordinatedHydration:
        window = WorkingWindow()
        for text in turns:
            window.add("user", text)
        policy = HydrationPolicy(top_k=top_k, token_budget=100_000, **ceiling)
        return coordinator(toy, working=window, policy=policy).hydrate(f"memory {query}")

    def count(text: str) -> int:
        return len(text) // 3

    counted = {} if tokens is None else {"max_block_tokens": tokens, "token_counter": count}
    whole = turn_of(max_block_chars=10**6)
    cut = turn_of(max_block_chars=max_chars, **counted)
    assert len(cut.block) <= max_chars
    assert tokens is None or count(cut.block) <= tokens
    kept = len(cut.hydrated)
    assert cut.hydrated == whole.hydrated[:kept]
    rest = whole.retrieval.relevant[kept:]
    assert cut.dropped == tuple((memory.memory_id, BLOCK_CEILING) for memory in rest)
    if cut.working.turns == whole.working.turns:
        body = cut.block.split("\n")[:-1]
        assert whole.block.split("\n")[: len(body)] == body
    else:
        # The window bounds itself from its oldest turn, and recall never takes its place.
        assert kept == 0
        assert cut.working.turns == whole.working.turns[len(whole.working.turns) - len(cut.working.turns) :]
    for memory in whole.retrieval.relevant:
        shown = f"# {memory.heading} (" in cut.block
        assert shown == (memory in cut.hydrated)
        if shown:
            assert cut.block.count(f"The content of {memory.heading}.") == memory.content.count("\n")


def test_compression_is_a_memory_at_a_time_and_before_the_ceiling(toy: MemoryStore) -> None:
    seen: list[str] = []

    def first_line(text: str) -> str:
        seen.append(text)
        return text.split("\n")[0]

    long = coordinator(toy, policy=HydrationPolicy(max_block_chars=900, top_k=12, token_budget=99_999))
    short = coordinator(
        toy, policy=HydrationPolicy(max_block_chars=900, top_k=12, token_budget=99_999, compressor=first_line)
    )
    assert len(short.hydrate("memory 1").hydrated) > len(long.hydrate("memory 1").hydrated)
    assert sorted(seen) == sorted(memory.content for memory in long.hydrate("memory 1").retrieval.relevant)


def test_same_bytes_in_another_process(toy: MemoryStore, url: str) -> None:
    turn = coordinator(toy).hydrate("memory 2")
    program = (
        "import sys; from tests.integration.test_wrapper import coordinator, MemoryStore\n"
        "turn = coordinator(MemoryStore(sys.argv[1])).hydrate('memory 2')\n"
        "print(turn.revision, turn.index.revision); print(turn.block)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    first, _, rest = done.stdout.partition("\n")
    assert turn.index is not None
    assert first == f"{turn.revision} {turn.index.revision}"
    assert rest == turn.block + "\n"


@pytest.mark.parametrize(
    "change",
    [
        "update hydrator.memories set content = content || '!' where heading = 'memory 2'",
        "update hydrator.memories set metadata = '{\"a\": 1}' where heading = 'memory 2'",
        "update hydrator.memories set deleted_at = now() where heading = 'memory 2'",
        "update hydrator.memories set expires_at = now() - interval '1 second' where heading = 'memory 2'",
        "update hydrator.memories set confidence = 0.111 where heading = 'memory 2'",
    ],
)
def test_any_change_gives_another_revision(toy: MemoryStore, db: psycopg.Connection, change: str) -> None:
    before = coordinator(toy).hydrate("memory 2")
    db.execute(change)
    assert coordinator(toy).hydrate("memory 2").revision != before.revision


def test_a_change_within_a_second_gives_other_revisions_each_time(
    toy: MemoryStore, db: psycopg.Connection
) -> None:
    revisions = set()
    for number in range(5):
        db.execute(
            "update hydrator.memories set heading = %s where content like '%%memory 2.%%'", [f"h{number}"]
        )
        turn = coordinator(toy).hydrate("memory 2")
        assert turn.index is not None
        revisions |= {turn.revision, turn.index.revision}
    assert len(revisions) == 10


def test_index_revision_follows_the_index_alone(toy: MemoryStore, db: psycopg.Connection) -> None:
    first = coordinator(toy).hydrate("memory 2")
    assert coordinator(toy).hydrate("memory 9").index == first.index
    db.execute("update hydrator.memories set content = 'Other.' where heading = 'memory 2'")
    assert coordinator(toy).hydrate("memory 2").index == first.index


class Broken(Toy):
    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        raise ConnectionError("nobody there")


class Slow(Toy):
    """Late once, then quick."""

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls += 1
        if self.calls == 1:
            time.sleep(3)
        return super().embed(texts)


def test_a_broken_embedder_leaves_the_index_and_the_text(toy: MemoryStore) -> None:
    turn = coordinator(toy, Broken()).hydrate("memory 2")
    assert turn.degraded
    [failure] = turn.failures
    assert failure.half == "embedder"
    assert "nobody there" in failure.reason
    assert turn.index is not None
    assert turn.index.block.count("\n- memory") == 12
    assert turn.retrieval.ranked_by == "text"
    assert turn.events()[0].heading == "memory 2"
    assert "# memory 2 (" in turn.block
    assert turn.contribution is not None
    assert coordinator(toy, Broken()).hydrate("zebra").events() == ()


def test_a_slow_embedder_is_skipped_for_a_while_and_tried_again(toy: MemoryStore) -> None:
    slow = Slow()
    retrieval = RetrievalCoordinator(toy, slow, ["acme"], embedder_timeout=0.5, breaker_seconds=0.5)
    turns = HydrationCoordinator(retrieval=retrieval)
    assert "within 0.5 seconds" in turns.hydrate("memory 2").failures[0].reason
    assert "skipped" in turns.hydrate("memory 2").failures[0].reason
    assert slow.calls == 1
    time.sleep(0.6)
    assert not turns.hydrate("memory 2").degraded
    assert slow.calls == 2


def test_a_store_that_is_down_leaves_the_window() -> None:
    window = WorkingWindow()
    window.add("user", "Still here.")
    with MemoryStore("postgresql://127.0.0.1:1/none") as store:
        turn = coordinator(store, working=window).hydrate("memory 2")
    assert [failure.half for failure in turn.failures] == ["store"]
    assert "user: Still here." in turn.block
    assert turn.index is None
    assert turn.events() == ()


def test_a_broken_window_leaves_the_memories(toy: MemoryStore) -> None:
    class BrokenWindow:
        def context(self) -> hydrator.WorkingContext:
            raise OSError("no window")

    turn = coordinator(toy, working=BrokenWindow()).hydrate("memory 2")
    assert [(failure.half, failure.reason) for failure in turn.failures] == [
        ("working", "OSError: no window")
    ]
    assert "# memory 2 (" in turn.block


def test_programming_errors_are_raised(toy: MemoryStore) -> None:
    class Wide(Toy):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return [[1.0] * 5 for _ in texts]

    class Other(Toy):
        model = "other"

    with pytest.raises(WrongDimensions, match="5 dimensions.* 4"):
        coordinator(toy, Wide()).hydrate("x")
    with pytest.raises(ModelMismatch, match='"toy".*"other"'):
        coordinator(toy, Other()).hydrate("x")
    with pytest.raises(hydrator.UnknownPacking):
        coordinator(toy, policy=HydrationPolicy(packing="squeeze")).hydrate("x")
    with pytest.raises(ValueError, match="single string"):
        RetrievalCoordinator(toy, Toy(), "acme")


def test_a_connection_that_was_cut_is_opened_again(
    toy: MemoryStore, db: psycopg.Connection, url: str
) -> None:
    turns = coordinator(toy)
    assert not turns.hydrate("memory 2").degraded
    db.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    assert not turns.hydrate("memory 2").degraded


def test_a_call_that_hangs_degrades_within_the_timeout(toy: MemoryStore, db: psycopg.Connection) -> None:
    turns = coordinator(toy)
    assert not turns.hydrate("memory 2").degraded
    with db.transaction():
        # What makes the call wait: nothing may read the table.
        db.execute("lock table hydrator.memories in access exclusive mode")
        began = time.monotonic()
        turn = turns.hydrate("memory 2")
        assert time.monotonic() - began < 10
    assert [failure.half for failure in turn.failures] == ["store"]
    assert "within 2 seconds" in turn.failures[0].reason
    assert not turns.hydrate("memory 2").degraded


def test_twenty_threads_share_a_coordinator(toy: MemoryStore) -> None:
    turns = coordinator(toy)
    expected = turns.hydrate("memory 2").block
    blocks: list[str] = []
    threads = [
        threading.Thread(target=lambda: blocks.extend(turns.hydrate("memory 2").block for _ in range(5)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blocks == [expected] * 100


def test_the_async_wrapper_gives_the_same(toy: MemoryStore, url: str) -> None:
    class Awaited(Toy):
        async def embed(self, texts: Sequence[str]) -> list[list[float]]:  # type: ignore[override]
            return super().embed(texts)

    async def run() -> None:
        window = WorkingWindow()
        window.add("user", "Hello.")
        async with AsyncMemoryStore(url) as store:
            for embedder in (Toy(), Awaited()):
                retrieval = AsyncRetrievalCoordinator(store, embedder, ["acme"])
                turns = AsyncHydrationCoordinator(retrieval=retrieval, working=window)
                turn = await turns.hydrate("memory 4")
                assert turn == await turns.hydrate("memory 4")
                expected = coordinator(toy, working=window).hydrate("memory 4")
                assert (turn.block, turn.revision, turn.events()) == (
                    expected.block,
                    expected.revision,
                    expected.events(),
                )
                assert (await turns.hydrate_on_demand("memory 4")).contribution is None
            lazy = AsyncHydrationCoordinator(
                retrieval=retrieval, policy=HydrationPolicy(mode=HydrationMode.JIT)
            )
            assert (await lazy.hydrate("memory 4")).block == ""
            slow = AsyncRetrievalCoordinator(store, Slow(), ["acme"], embedder_timeout=0.5)
            failed = await AsyncHydrationCoordinator(retrieval=slow).hydrate("memory 4")
            assert [failure.half for failure in failed.failures] == ["embedder"]
            assert failed.index == expected.index
        async with AsyncMemoryStore("postgresql://127.0.0.1:1/none") as down:
            retrieval = AsyncRetrievalCoordinator(down, Toy(), ["acme"])
            failed = await AsyncHydrationCoordinator(retrieval=retrieval, working=window).hydrate("x")
            assert [failure.half for failure in failed.failures] == ["store"]
            assert "user: Hello." in failed.block

    asyncio.run(run())


def test_an_async_call_that_hangs_degrades_within_the_timeout(
    toy: MemoryStore, db: psycopg.Connection, url: str
) -> None:
    async def run() -> None:
        async with AsyncMemoryStore(url) as store:
            retrieval = AsyncRetrievalCoordinator(store, Toy(), ["acme"], store_timeout=0.5)
            turns = AsyncHydrationCoordinator(retrieval=retrieval)
            assert not (await turns.hydrate("memory 2")).degraded
            with db.transaction():
                db.execute("lock table hydrator.memories in access exclusive mode")
                began = time.monotonic()
                turn = await turns.hydrate("memory 2")
                assert time.monotonic() - began < 5
            assert [failure.half for failure in turn.failures] == ["store"]
            assert not (await turns.hydrate("memory 2")).degraded

    asyncio.run(run())


@pytest.mark.parametrize(
    ("plain", "awaited"),
    [
        (hydrator.MemoryStore, hydrator.AsyncMemoryStore),
        (hydrator.RetrievalCoordinator, hydrator.AsyncRetrievalCoordinator),
        (hydrator.HydrationCoordinator, hydrator.AsyncHydrationCoordinator),
    ],
)
def test_the_two_surfaces_are_one(plain: type, awaited: type) -> None:
    def surface(cls: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(member).parameters.values()
            ]
            for name, member in inspect.getmembers(cls, inspect.isroutine)
            if not name.startswith("_") or name == "__init__"
        }

    assert surface(plain) == surface(awaited)
    waits = {"execute", "close", "hydrate", "hydrate_on_demand", "retrieve", "run"}
    for name, member in inspect.getmembers(awaited, inspect.isfunction):
        if name in waits or (not name.startswith("_") and hasattr(hydrator.calls, name)):
            assert inspect.iscoroutinefunction(member), name


def test_every_public_name_is_documented() -> None:
    for name in hydrator.__all__:
        assert inspect.getdoc(getattr(hydrator, name)), name


def test_every_code_has_its_error_and_every_error_its_code() -> None:
    from hydrator.errors import _BY_SQLSTATE

    assert sorted(_BY_SQLSTATE) == ["42501", *(f"MH{number:03}" for number in range(1, 13))]
    assert all(issubclass(cls, HydratorError) for cls in _BY_SQLSTATE.values())
