"""What the server gives up, refuses or has outdated: typed, and made again only where that is safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from targets import (
    Kind,
    all_others,
    done,
    entered,
    over_async_url,
    over_url,
    run,
    wait_for,
)

import hydrator
from hydrator import (
    CallTimeout,
    InstallationError,
    MemoryStore,
    ReadOnlyStore,
    SchemaChanged,
    StoreFull,
    StoreUnavailable,
    TransactionConflict,
)

WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)


def with_setting(url: str, **settings: str) -> str:
    return make_conninfo(url, options=" ".join(f"-c {name}={value}" for name, value in settings.items()))


class Blocking:
    """Another session's open transaction, and a thread that calls into it."""

    def __init__(self, url: str, db: psycopg.Connection) -> None:
        self._db = db
        self.connection = psycopg.connect(with_setting(url, deadlock_timeout="60s"))
        self.results: list[Any] = []

    def waits(self, call: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.results.append(call())
            except Exception as error:
                self.results.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert wait_for(lambda: self._db.execute(WAITING).fetchone() == (1,))

    def result(self) -> Any:
        self._thread.join(20)
        [result] = self.results
        return result


@pytest.fixture
def blocking(url: str, db: psycopg.Connection) -> Any:
    blocking = Blocking(url, db)
    yield blocking
    blocking.connection.close()


def remembered(db: psycopg.Connection, heading: str = "Old") -> str:
    [memory_id] = db.execute("select hydrator.remember('acme', %s)", [heading]).fetchone() or [None]
    return str(memory_id)


def test_a_serialization_failure_is_made_again(url: str, db: psycopg.Connection, blocking: Blocking) -> None:
    old = remembered(db)
    blocking.connection.execute("update hydrator.memories set confidence = 0.5")
    with MemoryStore(with_setting(url, default_transaction_isolation="serializable")) as store:
        blocking.waits(lambda: store.forget("acme", old))
        blocking.connection.commit()
        assert blocking.result() is True
    assert db.execute("select count(*) from hydrator.live_memories").fetchone() == (0,)


def test_a_deadlock_is_made_again(url: str, db: psycopg.Connection, blocking: Blocking) -> None:
    old = remembered(db)
    blocking.connection.execute("select from hydrator.memories for update")
    with MemoryStore(with_setting(url, deadlock_timeout="50ms")) as store:
        blocking.waits(lambda: store.remember("acme", "New", supersedes=old))
        # Each waits for the other now, and the store's is the one that finds out.
        blocking.connection.execute("lock table hydrator.memories in exclusive mode")
        blocking.connection.commit()
        new = blocking.result()
    assert db.execute("select memory_id from hydrator.live_memories").fetchall() == [(new,)]


# Raises what the heading says at every insert, and counts the tries, which no rollback takes back.
ALWAYS = """
create sequence tries;
create function refuse() returns trigger language plpgsql as $$
begin
  perform nextval('public.tries');
  raise exception 'not now' using errcode = new.heading;
end $$;
create trigger refuse before insert on hydrator.memories for each row execute function refuse()
"""
REFUSED = [
    ("40001", TransactionConflict, 5),
    ("57014", CallTimeout, 1),
    ("53100", StoreFull, 1),
    ("53200", StoreUnavailable, 1),
    ("58030", StoreUnavailable, 1),
    ("42P01", SchemaChanged, 5),
]


@pytest.fixture
def refusing(db: psycopg.Connection) -> Iterator[Callable[[], int]]:
    """The number of tries that were refused since it was asked before."""

    def tries() -> int:
        [count] = db.execute("select last_value - (not is_called)::integer from tries").fetchone() or [0]
        db.execute("alter sequence tries restart")
        return int(count)

    db.execute(ALWAYS)
    yield tries
    db.execute("drop function refuse cascade; drop sequence tries")


@all_others
def test_tries_are_bounded(url: str, refusing: Callable[[], int], db: psycopg.Connection, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            for sqlstate, error, made in REFUSED:
                with pytest.raises(error) as raised:
                    await done(target.store.remember("acme", sqlstate))
                assert (type(raised.value), refusing()) == (error, made)
                with pytest.raises(error):
                    async with entered(target.store.transaction()) as inside:
                        await done(inside.remember("acme", sqlstate))
                assert refusing() == 1

    run(scenario())
    assert db.execute("select count(*) from hydrator.memories").fetchone() == (0,)


def test_what_is_retryable() -> None:
    def leaves(cls: type[hydrator.HydratorError]) -> set[type[hydrator.HydratorError]]:
        return {cls}.union(*map(leaves, cls.__subclasses__()))

    retryable = {cls for cls in leaves(hydrator.HydratorError) if cls.retryable}
    assert retryable == {
        StoreUnavailable,
        hydrator.ConnectionLost,
        TransactionConflict,
        SchemaChanged,
        CallTimeout,
    }


@all_others
def test_timeouts(url: str, db: psycopg.Connection, kind: Kind) -> None:
    old = remembered(db)

    async def scenario() -> None:
        for setting in ("statement_timeout", "lock_timeout"):
            if "engine" in kind.__name__:
                db.execute(f"alter role current_user in database {db.info.dbname} set {setting} = '50ms'")
                address = url
            else:
                address = with_setting(url, **{setting: "50ms"})
            async with kind(address) as target:
                with db.transaction():
                    db.execute("lock table hydrator.memories in access exclusive mode")
                    for call in (
                        lambda: target.store.compact_index(["acme"]),
                        lambda: target.store.remember("acme", "New", supersedes=old),
                    ):
                        with pytest.raises(CallTimeout) as raised:
                            await done(call())
                        assert raised.value.retryable
                assert len(await done(target.store.compact_index(["acme"]))) == 1
            db.execute(f"alter role current_user in database {db.info.dbname} reset all")

    run(scenario())
    assert db.execute("select count(*) from hydrator.memories").fetchone() == (1,)


@all_others
def test_a_server_that_takes_no_writes(url: str, db: psycopg.Connection, kind: Kind) -> None:
    old = remembered(db)
    own_connection = kind in (over_url, over_async_url)

    async def scenario() -> None:
        async with kind(url) as target:
            store = target.store
            assert len(await done(store.compact_index(["acme"]))) == 1
            for call in (
                lambda: store.forget("acme", old),
                lambda: store.purge(timedelta(0)),
                lambda: store.remember("acme", "New", supersedes=old),
            ):
                with pytest.raises(ReadOnlyStore) as raised:
                    await done(call())
                assert not raised.value.retryable
            if own_connection:
                # After a failover the primary may be found behind the same address.
                db.execute(f"alter database {db.info.dbname} reset default_transaction_read_only")
                await done(store.remember("acme", "New", supersedes=old))

    db.execute(f"alter database {db.info.dbname} set default_transaction_read_only = on")
    try:
        run(scenario())
    finally:
        db.execute(f"alter database {db.info.dbname} reset default_transaction_read_only")
    assert db.execute("select heading from hydrator.live_memories").fetchall() == [
        ("New" if own_connection else "Old",)
    ]


# What makes every plan of the call out of date: its result has another type.
ALTER = """
begin;
alter function hydrator.count_live(text[]) rename to count_live_before;
create function hydrator.count_live(p_namespaces text[]) returns integer language sql stable
begin atomic select hydrator.count_live_before(p_namespaces); end;
commit
"""
ALTER_BACK = """
begin;
drop function if exists hydrator.count_live(text[]);
alter function hydrator.count_live_before(text[]) rename to count_live;
commit
"""


@pytest.fixture
def alter(db: psycopg.Connection) -> Iterator[Callable[[], Any]]:
    yield lambda: db.execute(ALTER)
    db.execute(ALTER_BACK)


@all_others
def test_an_alter_under_live_connections_is_not_noticed(
    url: str, alter: Callable[[], Any], kind: Kind
) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            store = target.store
            async with entered(store.transaction()) as inside:
                # Two connections of a pool.
                for own in (store, inside):
                    for _ in range(8):
                        assert await done(own.count_live(["acme"])) == 0
            alter()
            async with entered(store.transaction()):
                assert await done(store.count_live(["acme"])) == 0
            for _ in range(8):
                assert await done(store.count_live(["acme"])) == 0

    run(scenario())


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_alter_under_the_callers_connection(url: str, alter: Callable[[], Any], autocommit: bool) -> None:
    with psycopg.connect(url, autocommit=autocommit) as own:
        store = MemoryStore(own)
        for _ in range(8):
            store.count_live(["acme"])
        own.commit()
        alter()
        if not autocommit:
            # In a transaction of the caller's, what came before it would be lost.
            with pytest.raises(SchemaChanged) as raised:
                store.count_live(["acme"])
            assert raised.value.retryable
            own.rollback()
        assert store.count_live(["acme"]) == 0


def test_what_is_not_installed_is_said_at_once(empty_url: str) -> None:
    with MemoryStore(empty_url) as store, pytest.raises(InstallationError) as raised:
        store.schema_version()
    assert not raised.value.retryable
