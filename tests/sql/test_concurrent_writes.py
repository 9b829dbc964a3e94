"""Two connections that write at once, and readers beside a writer.

No test sleeps and hopes: each goes on when the server says that the second connection waits for
the first one's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

SUPERSEDE = "select hydrator.remember('acme', %s, p_embedding => '[1,0,0,0]', p_supersedes => %s)"
FORGET = "select hydrator.forget('acme', %s)"


class Race:
    """Two connections to one database; ``first`` holds a transaction open, ``second`` runs into it."""

    def __init__(
        self,
        db: psycopg.Connection,
        first: psycopg.Connection,
        second: psycopg.Connection,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.db = db
        self.first = first
        self.second = second
        self.pool = pool

    def let_second_wait(self, statement: str, parameters: tuple[object, ...]) -> Future[object]:
        """Run a statement on the second connection; returns when it waits for the first one."""

        def run() -> object:
            return self.second.execute(statement, parameters).fetchone()[0]

        running = self.pool.submit(run)
        deadline = time.monotonic() + 30
        blocked = "select %s = any (pg_blocking_pids(%s))"
        pids = (self.first.info.backend_pid, self.second.info.backend_pid)
        while self.db.execute(blocked, pids).fetchone() == (False,):
            assert not running.done(), "the second statement did not wait for the first"
            assert time.monotonic() < deadline, "the second statement neither waited nor ended"
            time.sleep(0.005)
        return running


@pytest.fixture
def race(db: psycopg.Connection, url: str) -> Iterator[Race]:
    # Left in this order, so that a failed test ends the first transaction before it waits for the second.
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(url, autocommit=True) as second,
        psycopg.connect(url) as first,
    ):
        yield Race(db, first, second, pool)


@pytest.fixture
def old(db: psycopg.Connection) -> UUID:
    return db.execute("select hydrator.remember('acme', 'old', p_embedding => '[1,0,0,0]')").fetchone()[0]


def live(db: psycopg.Connection) -> list[str]:
    return [row[0] for row in db.execute("select heading from hydrator.compact_index('{acme}') order by 1")]


def sqlstate_of(attempt: Future[object]) -> str | None:
    with pytest.raises(psycopg.Error) as refused:
        attempt.result(timeout=30)
    return refused.value.sqlstate


def test_of_two_concurrent_supersedes_exactly_one_wins(race: Race, old: UUID) -> None:
    race.first.execute(SUPERSEDE, ("winner", old))
    attempt = race.let_second_wait(SUPERSEDE, ("loser", old))
    race.first.commit()
    assert sqlstate_of(attempt) == "MH007"
    assert live(race.db) == ["winner"]
    assert race.db.execute("select count(*) from hydrator.memories").fetchone() == (2,)


def test_when_the_first_rolls_back_the_second_wins(race: Race, old: UUID) -> None:
    race.first.execute(SUPERSEDE, ("withdrawn", old))
    attempt = race.let_second_wait(SUPERSEDE, ("winner", old))
    race.first.rollback()
    attempt.result(timeout=30)
    assert live(race.db) == ["winner"]


def test_under_repeatable_read_the_loser_is_told_to_try_again(race: Race, old: UUID) -> None:
    race.second.execute("set default_transaction_isolation = 'repeatable read'")
    race.first.execute(SUPERSEDE, ("winner", old))
    attempt = race.let_second_wait(SUPERSEDE, ("loser", old))
    race.first.commit()
    assert sqlstate_of(attempt) == "40001"
    assert live(race.db) == ["winner"]


def test_many_at_once_leave_one_winner(db: psycopg.Connection, url: str, old: UUID) -> None:
    together = threading.Barrier(6)

    def supersede(place: int) -> str | None:
        with psycopg.connect(url, autocommit=True) as connection:
            together.wait(timeout=30)
            try:
                connection.execute(SUPERSEDE, (f"new {place}", old))
            except psycopg.Error as error:
                return error.sqlstate
            return "won"

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(supersede, range(6))) == ["MH007"] * 5 + ["won"]
    assert len(live(db)) == 1


def test_forget_after_a_supersede_finds_nothing_to_forget(race: Race, old: UUID) -> None:
    race.first.execute(SUPERSEDE, ("new", old))
    attempt = race.let_second_wait(FORGET, (old,))
    race.first.commit()
    assert attempt.result(timeout=30) is False
    assert live(race.db) == ["new"]


def test_forget_after_a_supersede_that_rolled_back_forgets(race: Race, old: UUID) -> None:
    race.first.execute(SUPERSEDE, ("withdrawn", old))
    attempt = race.let_second_wait(FORGET, (old,))
    race.first.rollback()
    assert attempt.result(timeout=30) is True
    assert live(race.db) == []


def test_supersede_after_a_forget_goes_through(race: Race, old: UUID) -> None:
    race.first.execute(FORGET, (old,))
    attempt = race.let_second_wait(SUPERSEDE, ("new", old))
    race.first.commit()
    attempt.result(timeout=30)
    assert live(race.db) == ["new"]


def test_of_two_concurrent_forgets_one_is_true(race: Race, old: UUID) -> None:
    assert race.first.execute(FORGET, (old,)).fetchone() == (True,)
    attempt = race.let_second_wait(FORGET, (old,))
    race.first.commit()
    assert attempt.result(timeout=30) is False


def test_supersede_after_a_purge_finds_nothing_to_supersede(race: Race, old: UUID) -> None:
    race.db.execute("update hydrator.memories set deleted_at = now() - interval '1 day'")
    race.first.execute("select hydrator.purge('1 hour')")
    attempt = race.let_second_wait(SUPERSEDE, ("new", old))
    race.first.commit()
    assert sqlstate_of(attempt) == "MH006"
    assert live(race.db) == []


def test_undeleting_what_is_being_superseded_is_refused(race: Race, old: UUID) -> None:
    race.db.execute(FORGET, (old,))
    # The retired memory is dead already; the lock alone makes the second wait.
    race.first.execute(SUPERSEDE, ("new", old))
    undelete = "update hydrator.memories set deleted_at = null where memory_id = %s returning 1"
    attempt = race.let_second_wait(undelete, (old,))
    race.first.commit()
    assert sqlstate_of(attempt) == "MH007"
    assert live(race.db) == ["new"]


def test_index_and_relevant_see_one_snapshot_beside_a_writer(db: psycopg.Connection, url: str) -> None:
    """Every statement sees ten live memories, whichever of their successors that were."""
    first_ids = [
        db.execute(
            "select hydrator.remember('acme', %s, p_embedding => '[1,0,0,0]')", (f"first {n}",)
        ).fetchone()[0]
        for n in range(10)
    ]
    stop = threading.Event()

    def write() -> int:
        ids, version = list(first_ids), 0
        with psycopg.connect(url, autocommit=True) as writer:
            while not stop.is_set():
                version += 1
                place = version % len(ids)
                ids[place] = writer.execute(SUPERSEDE, (f"version {version}", ids[place])).fetchone()[0]
        return version

    hydrate = "select index, relevant from hydrator.hydrate_session('[1,0,0,0]', '{acme}', 50)"
    hydrate_beside_index = """
        select
          (select json_agg(e) from hydrator.compact_index('{acme}') e),
          (select relevant from hydrator.hydrate_session('[1,0,0,0]', '{acme}', 50))
    """
    states: set[frozenset[str]] = set()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            deadline = time.monotonic() + 60
            while len(states) < 200:
                assert not written.done(), "the writer failed"
                assert time.monotonic() < deadline, "the writer was not at work beside the reader"
                for statement in (hydrate, hydrate_beside_index):
                    index, relevant = db.execute(statement).fetchone()
                    indexed = {entry["memory_id"] for entry in index}
                    assert {memory["memory_id"] for memory in relevant} == indexed
                    assert len(index) == len(relevant) == 10
                    states.add(frozenset(indexed))
        finally:
            stop.set()
        written.result(timeout=30)
