"""Connections that are cut: by a proxy that swallows what one side says, before or at the commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from servers import Proxy
from targets import Kind, all_others, done, entered, over_async_url, over_connection, over_url, run, wait_for

from hydrator import (
    AsyncMemoryStore,
    ConnectionLost,
    MemoryStore,
    OutcomeUnknown,
    RetrievalCoordinator,
    StoreUnavailable,
    calls,
)
from hydrator.calls import Call

WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)


def soon(condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Act in a thread of its own as soon as something is so."""

    def wait() -> None:
        if wait_for(condition):
            act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def headings(db: psycopg.Connection) -> list[str]:
    return [row[0] for row in db.execute("select heading from hydrator.memories order by heading")]


@all_others
def test_what_was_cut_between_calls_is_not_noticed(db: psycopg.Connection, proxy: Proxy, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(proxy.url) as target:
            for number in range(3):
                await done(target.store.remember("acme", f"Memory {number}"))
                proxy.cut()
            async with entered(target.store.transaction()) as inside:
                await done(inside.remember("acme", "Memory 3"))
            proxy.cut()
            assert len(await done(target.store.compact_index(["acme"]))) == 4

    run(scenario())


@all_others
def test_a_read_that_is_cut_is_made_again(db: psycopg.Connection, proxy: Proxy, kind: Kind) -> None:
    db.execute("select hydrator.remember('acme', 'Here')")

    async def scenario() -> None:
        async with kind(proxy.url) as target:
            assert await done(target.store.count_live(["acme"])) == 1
            proxy.mute = True
            cutting = soon(proxy.swallowed.is_set, proxy.cut)
            assert [entry.heading for entry in await done(target.store.compact_index(["acme"]))] == ["Here"]
            cutting.join()

    run(scenario())


@all_others
def test_a_read_is_not_made_again_for_ever(proxy: Proxy, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(proxy.url) as target:
            await done(target.store.schema_version())
            kill_me: Call[Any] = Call(
                "select pg_terminate_backend(pg_backend_pid()), pg_sleep(9)", {}, list, read_only=True
            )
            with pytest.raises(StoreUnavailable) as raised:
                await done(target.store.execute(kill_me))
            assert type(raised.value) is ConnectionLost
            assert raised.value.retryable
            assert await done(target.store.schema_version())

    run(scenario())


@all_others
@pytest.mark.parametrize("direction", ["deaf", "mute"])
def test_a_write_that_is_cut_is_not_made_again(
    db: psycopg.Connection, proxy: Proxy, kind: Kind, direction: str
) -> None:
    async def scenario() -> None:
        async with kind(proxy.url) as target:
            await done(target.store.schema_version())
            setattr(proxy, direction, True)

            def is_due() -> bool:
                return proxy.swallowed.is_set() and headings(db) == kept

            # What is not a transaction of its own begins one, and goes no further without an answer.
            single = kind in (over_url, over_async_url)
            kept = ["Acknowledged by nobody"] if direction == "mute" and single else []
            cutting = soon(is_due, proxy.cut)
            with pytest.raises(OutcomeUnknown, match="written again") as raised:
                await done(target.store.remember("acme", "Acknowledged by nobody"))
            cutting.join()
            assert not raised.value.retryable
            assert headings(db) == kept
            await done(target.store.remember("acme", "Then"))
            assert headings(db) == [*kept, "Then"]

    run(scenario())


@all_others
def test_a_commit_whose_answer_is_lost(db: psycopg.Connection, proxy: Proxy, kind: Kind) -> None:
    async def write(store: Any) -> None:
        async with entered(store.transaction()) as inside:
            await done(inside.remember("acme", "First"))
            await done(inside.remember("acme", "Second"))
            proxy.mute = True
            soon(lambda: headings(db) == ["First", "Second"], proxy.cut)

    async def scenario() -> None:
        async with kind(proxy.url) as target:
            with pytest.raises(OutcomeUnknown) as raised:
                await write(target.store)
            assert not raised.value.retryable
            assert headings(db) == ["First", "Second"]

    run(scenario())


@all_others
def test_a_transaction_that_is_cut_before_its_commit_wrote_nothing(
    db: psycopg.Connection, proxy: Proxy, kind: Kind
) -> None:
    async def write(store: Any) -> None:
        async with entered(store.transaction()) as inside:
            await done(inside.remember("acme", "First"))
            proxy.cut()
            await done(inside.remember("acme", "Second"))

    async def scenario() -> None:
        async with kind(proxy.url) as target:
            with pytest.raises(ConnectionLost) as raised:
                await write(target.store)
            assert raised.value.retryable
            assert headings(db) == []
            with pytest.raises(ConnectionLost):
                await write(target.store)

    run(scenario())


def test_in_the_callers_transaction_nothing_is_made_again(db: psycopg.Connection, proxy: Proxy) -> None:
    async def scenario() -> None:
        async with over_connection(proxy.url) as target:
            target.store.remember("acme", "Taken back")
            proxy.cut()
            with pytest.raises(ConnectionLost):
                target.store.compact_index(["acme"])
            with pytest.raises(StoreUnavailable) as raised:
                target.store.compact_index(["acme"])
            assert raised.value.retryable

    run(scenario())
    assert headings(db) == []


def test_threads_that_share_a_connection_lose_no_read(db: psycopg.Connection, proxy: Proxy) -> None:
    db.execute("select hydrator.remember('acme', 'Here')")
    seen: list[int] = []
    errors: list[BaseException] = []

    def read(store: MemoryStore) -> None:
        try:
            for _ in range(50):
                seen.append(store.count_live(["acme"]))
        except BaseException as error:
            errors.append(error)

    with MemoryStore(proxy.url) as store:
        threads = [threading.Thread(target=read, args=[store]) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert wait_for(lambda: len(seen) > 50)
        proxy.cut()
        for thread in threads:
            thread.join()
    assert (errors, seen) == ([], [1] * 300)


def test_a_late_read_that_was_given_up_is_not_made_again(db: psycopg.Connection, url: str) -> None:
    class Toy:
        model = "toy"
        dimensions = 4

        def embed(self, texts: Any) -> list[list[float]]:
            return [[1.0, 0.0, 0.0, 0.0] for _ in texts]

    with MemoryStore(url) as store:
        retrieval = RetrievalCoordinator(store, Toy(), ["acme"], store_timeout=0.3)
        with db.transaction():
            db.execute("lock table hydrator.memories in access exclusive mode")
            assert retrieval.retrieve("x").degraded
            # Whoever was hung up on would wait at the same lock again.
            assert not wait_for_more(db)
        assert not retrieval.retrieve("x").degraded


def wait_for_more(db: psycopg.Connection) -> bool:
    """Tell whether more than the one that was given up come to wait for the lock."""
    for _ in range(20):
        db.execute("select pg_sleep(0.01)")
        if db.execute(WAITING).fetchone() > (1,):
            return True
    return False


def test_calls_say_whether_they_write() -> None:
    assert [call.read_only for call in (calls.count_live([]), calls.live_tokens([]))] == [True, True]
    assert not any(
        call.read_only
        for call in (calls.remember("n", "h"), calls.forget("n", "x"), Call("select 1", {}, list))
    )
    assert MemoryStore.__init__.__kwdefaults__ == AsyncMemoryStore.__init__.__kwdefaults__
