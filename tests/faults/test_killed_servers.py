"""Servers that are killed with SIGKILL in the midst of a call, and started again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import kill_and_restart
import psycopg
import pytest
from servers import kill, own_server
from targets import Kind, done, over_async_engine, over_url, run, wait_for
from test_importing_at_once import Toy, files

from hydrator import MemoryStore, OutcomeUnknown, StoreUnavailable
from hydrator.embedded import EmbeddedServer
from hydrator.importing import import_memories

WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)


@pytest.fixture
def url(victim: EmbeddedServer) -> str:
    url = victim.start(migrate=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate hydrator.memories")
    return url


def killing(server: EmbeddedServer, url: str, lock: str) -> threading.Thread:
    """Hold a lock, and kill the server as soon as somebody waits for it."""
    blocking = psycopg.connect(url)
    blocking.execute(f"lock table hydrator.memories in {lock} mode")
    watching = psycopg.connect(url, autocommit=True)

    def act() -> None:
        assert wait_for(lambda: watching.execute(WAITING).fetchone() == (1,))
        kill(server)
        blocking.close()
        watching.close()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


# Others would wait for their pools to give up.
@pytest.mark.parametrize("kind", [over_url, over_async_engine], ids=lambda kind: kind.__name__)
def test_killed_in_mid_call(victim: EmbeddedServer, url: str, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            store = target.store
            kept = [await done(store.remember("acme", f"Memory {number}")) for number in range(3)]

            thread = killing(victim, url, "access exclusive")
            with pytest.raises(StoreUnavailable) as raised:
                await done(store.compact_index(["acme"]))
            thread.join()
            assert raised.value.retryable
            victim.start(migrate=False)

            async def ids() -> set[Any]:
                return {entry.memory_id for entry in await done(store.compact_index(["acme"]))}

            assert await ids() == set(kept)
            thread = killing(victim, url, "share")
            with pytest.raises(OutcomeUnknown):
                await done(store.remember("acme", "Killed", supersedes=kept[0]))
            thread.join()
            victim.start(migrate=False)
            # Nothing acknowledged is lost, and nothing is half-written.
            assert await ids() == set(kept)
            assert await done(store.count_live(["acme"])) == 3
            new = await done(store.remember("acme", "Then", supersedes=kept[0]))
            assert await ids() == {new, *kept[1:]}

    run(scenario())


def test_killed_while_importing(victim: EmbeddedServer, url: str, tmp_path: Path) -> None:
    source = files(tmp_path, 80)
    done: list[int] = []

    def progress(count: int, total: int) -> None:
        done.append(count)
        if count == 50:
            kill(victim)

    with MemoryStore(url) as store:
        with pytest.raises(StoreUnavailable):
            import_memories(store, Toy(), source, "n", progress=progress)
        assert done == [0, 50]
        victim.start(migrate=False)
        assert store.count_live(["n"]) == 50
        summary = import_memories(store, Toy(), source, "n")
        assert (summary.imported, summary.unchanged, summary.superseded, summary.skipped) == (30, 50, 0, 0)
        headings = [entry.heading for entry in store.compact_index(["n"])]
        assert len(headings) == len(set(headings)) == store.count_live(["n"]) == 80


def test_a_few_rounds_of_killing_under_load() -> None:
    with own_server({"fsync": "on"}) as server:
        kept = kill_and_restart.rounds(server, 2, seed=1, said=lambda line: None)
    assert kept["rounds"] == 2
    assert kept["acknowledged writes"] > 10
    assert kept["whole reads"] > 5
