"""Stores over each kind of target, sync and async: the same values, errors and transactions.

Each scenario is written once, as a coroutine; :func:`done` and :func:`entered` take what a plain store
gives as they take what an async one gives.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine
from targets import (
    PATIENCE,
    POOLED,
    Kind,
    all_others,
    async_engine,
    database,
    done,
    each_connection,
    entered,
    every_kind,
    run,
    sqlalchemy_url,
    wait_for,
)

import hydrator
from hydrator import (
    AsyncHydrationCoordinator,
    AsyncMemoryStore,
    AsyncRetrievalCoordinator,
    HydrationCoordinator,
    HydratorError,
    MemoryStore,
    RetrievalCoordinator,
    StoreUnavailable,
    calls,
    migrations,
)
from hydrator.calls import Call
from hydrator.embedded import EmbeddedServer
from hydrator.models import DroppedMemory, IndexEntry, RelevantMemory

BACKEND: Call[int] = Call("select pg_backend_pid()", {}, lambda rows: rows[0][0])
PREPARED: Call[int] = Call("select count(*) from pg_prepared_statements", {}, lambda rows: rows[0][0])


class Toy:
    """One vector for every text."""

    model = "toy"
    dimensions = 4

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0, 0.0, 0.0] for _ in texts]


@pytest.fixture(scope="module")
def direct_url(postgresql_proc: Any) -> Iterator[str]:
    with database(postgresql_proc, "hydrator_sources") as url:
        yield url


@pytest.fixture(scope="module")
def url(direct_url: str, called: Callable[[str], str]) -> str:
    return called(direct_url)


@pytest.fixture
def db(direct_url: str) -> Iterator[psycopg.Connection]:
    """Somebody else's connection to that database, in which there are no memories yet."""
    with psycopg.connect(direct_url, autocommit=True) as connection:
        connection.execute("delete from hydrator.memories")
        yield connection


def headings(db: psycopg.Connection) -> set[str]:
    """What the namespace holds for everybody else to see."""
    return {heading for (heading,) in db.execute("select heading from hydrator.live_memories")}


# The same values ----------------------------------------------------------------------------------

EXPIRES = datetime(2040, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)
METADATA = {"team": "ops", "nested": {"numbers": [1, 2.5, None]}, "text": "naïve “quotes” 漢字 100%"}


def fill(url: str) -> list[UUID]:
    with MemoryStore(url) as store:
        old = store.remember("acme", "Old", "Retired.", embedding=[1, 0, 0, 0], embedding_model="toy")
        return [
            store.remember(
                "acme",
                "New",
                "It replaces the old one: 100% of %(it)s.",
                embedding=[1, 0.5, 0, 0],
                embedding_model="toy",
                confidence=0.7,
                supersedes=old,
                expires_at=EXPIRES,
                metadata=METADATA,
            ),
            store.remember("acme", "Pinned", "Stands.", pinned=True, memory_type="lesson"),
            store.remember("acme", "Far", "x" * 400, embedding=[0, 0, 1, 0], embedding_model="toy"),
            store.remember("acme", "Too long", embedding=[1, 0, 0, 1], token_count=9_999),
        ]


# What each call is called with to read, and what must be of which type in the answer.
READS: dict[str, Callable[[Any, list[UUID]], Any]] = {
    "compact_index": lambda store, ids: store.compact_index(["acme"], token_budget=5),
    "fetch_top_k_relevant": lambda store, ids: store.fetch_top_k_relevant(
        [1, 0, 0, 0], ["acme"], top_k=3, memory_types=["semantic"], min_similarity=0.1
    ),
    "hydrate_session": lambda store, ids: store.hydrate_session(
        [1, 0, 0, 0], ["acme", "other"], top_k=3, token_budget=500, packing="skip"
    ),
    "search_memories": lambda store, ids: store.search_memories(
        [1, 0, 0, 0], ["acme"], limit=2, metadata={"team": "ops"}
    ),
    "fetch_memories": lambda store, ids: store.fetch_memories(["acme"], ids),
    "count_live": lambda store, ids: store.count_live(["acme", "other"]),
    "list_quarantined": lambda store, ids: store.list_quarantined(["acme"]),
    "near_duplicates": lambda store, ids: store.near_duplicates(["acme"], distance=2, limit=3),
    "act_for": lambda store, ids: store.act_for(["acme"]),
    "estimate_tokens": lambda store, ids: store.estimate_tokens("five %s"),
    "schema_version": lambda store, ids: store.schema_version(),
    "installation": lambda store, ids: store.installation(),
}
WRITES = {"remember", "forget", "purge", "quarantine", "release"}


def test_no_call_is_missed_here() -> None:
    methods = {name for name in vars(MemoryStore) if not name.startswith("_") and hasattr(calls, name)}
    assert methods == READS.keys() | WRITES


def test_the_json_of_a_session_has_the_fields_of_our_types(direct_url: str, db: psycopg.Connection) -> None:
    fill(direct_url)
    call = "select index, relevant, dropped from hydrator.hydrate_session('[1,0,0,0]', '{acme}', 3)"
    columns = db.execute(call).fetchone() or ()
    for entries, row in zip(columns, (IndexEntry, RelevantMemory, DroppedMemory), strict=True):
        assert entries
        assert {tuple(entry) for entry in entries} == {tuple(field.name for field in fields(row))}


@every_kind
def test_each_call_gives_the_same(url: str, db: psycopg.Connection, kind: Kind) -> None:
    ids = fill(url)
    with MemoryStore(url) as store:
        expected = {name: read(store, ids) for name, read in READS.items()}

    async def scenario() -> None:
        async with kind(url) as target:
            given = {name: await done(read(target.store, ids)) for name, read in READS.items()}
            assert given == expected

            [new, pinned, *_] = given["fetch_memories"]
            assert isinstance(new.memory_id, UUID)
            assert new.expires_at == EXPIRES
            assert new.created_at.utcoffset() is not None
            assert new.metadata == METADATA
            assert pinned.expires_at is None
            [standing, nearest, *_] = given["hydrate_session"].relevant
            assert (standing.heading, standing.distance) == ("Pinned", None)
            assert (nearest.memory_id, nearest.supersedes) == (new.memory_id, new.supersedes)
            assert (nearest.expires_at, nearest.created_at) == (new.expires_at, new.created_at)
            assert nearest.metadata == METADATA
            assert [memory.heading for memory in given["hydrate_session"].dropped] == ["Too long"]

            store = target.store
            memory_id = await done(store.remember("acme", "Written here", metadata=METADATA))
            assert isinstance(memory_id, UUID)
            assert await done(store.quarantine("acme", memory_id, reason="a test")) is True
            [held] = await done(store.list_quarantined(["acme"]))
            assert (held.memory_id, held.reason, held.quarantined_at.utcoffset() is None) == (
                memory_id,
                "a test",
                False,
            )
            assert await done(store.release("acme", memory_id)) is True
            assert await done(store.forget("acme", memory_id)) is True
            assert await done(store.forget("acme", str(memory_id))) is False
            assert await done(store.purge(timedelta(days=1))) == 0
            if target.commit:
                assert "Written here" not in {row[0] for row in db.execute("table hydrator.memories")}
                await done(target.commit())

    run(scenario())
    assert db.execute("select count(*) from hydrator.memories where heading = 'Written here'").fetchone() == (
        1,
    )


# Within the bounds that guard_memory() sets, as near to them as it goes.
FIRST, LAST = "0001-01-02 00:00Z", "9999-12-31 00:00Z"
DEEP, DIGITS = 98, 309
EXTREMES = f"""{{
  "deep": {"[" * DEEP}1{"]" * DEEP}, "large": -{"9" * (DIGITS - 1)}, "long": 1.{"3" * 5_000}, "small": 0.{"0" * 5_000}1
}}"""


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Africa/Monrovia"])
def test_what_the_guard_lets_in_every_store_can_read(
    direct_url: str, db: psycopg.Connection, zone: str
) -> None:
    """Of a memory that a client cannot read, it would lose the whole session."""
    db.execute(
        "insert into hydrator.memories (namespace, heading, content, embedding, metadata, created_at, expires_at)"
        " values ('acme', 'h', 'c', '[1,0,0,0]', %s, %s, %s)",
        [EXTREMES, FIRST, LAST],
    )
    with MemoryStore(make_conninfo(direct_url, options=f"-c timezone={zone}")) as store:
        [hydrated] = store.hydrate_session([1, 0, 0, 0], ["acme"]).relevant
        [ranked] = store.fetch_top_k_relevant([1, 0, 0, 0], ["acme"])
        [fetched] = store.fetch_memories(["acme"], [ranked.memory_id])
    assert hydrated.metadata == fetched.metadata == json.loads(EXTREMES)
    assert hydrated.created_at == fetched.created_at == datetime(1, 1, 2, tzinfo=UTC)
    assert (
        hydrated.expires_at == ranked.expires_at == fetched.expires_at == datetime(9999, 12, 31, tzinfo=UTC)
    )


# Of each number, what single precision keeps of it must arrive.
ELEMENTS = [1 / 3, -1e-7 / 3, 123_456.789, 1e-12]
STORED = "select embedding::real[] from hydrator.memories where heading = %s"


def test_an_embedding_arrives_to_the_last_digit(direct_url: str, db: psycopg.Connection) -> None:
    hidden = make_conninfo(direct_url, options="-c search_path=pg_catalog")
    # It puts the values into the statement, as text.
    cursors = {"cursor_factory": psycopg.ClientCursor}
    engine = sqlalchemy.create_engine(sqlalchemy_url(direct_url), connect_args=cursors)
    with psycopg.connect(direct_url, autocommit=True, **cursors) as connection:  # type: ignore[arg-type]
        for name, target in {"url": hidden, "connection": connection, "engine": engine}.items():
            with MemoryStore(target) as store:
                store.remember("acme", name, embedding=ELEMENTS)
                [nearest] = store.search_memories(ELEMENTS, ["acme"], limit=1)
            [stored] = db.execute(STORED, [name]).fetchone() or [[]]
            assert array("f", stored) == array("f", ELEMENTS)
            assert nearest.distance == pytest.approx(0)
    engine.dispose()


def test_an_embedding_may_be_any_sequence_of_numbers(url: str) -> None:
    numpy = pytest.importorskip("numpy")
    with MemoryStore(url) as store:
        for embedding in (
            ELEMENTS,
            tuple(ELEMENTS),
            array("d", ELEMENTS),
            [Decimal(element) for element in ELEMENTS],
            numpy.array(ELEMENTS),
            numpy.array(ELEMENTS, dtype="float32"),
            numpy.repeat(ELEMENTS, 2)[::2],
            list(numpy.array(ELEMENTS)),
        ):
            heading = f"As {type(embedding).__name__} of {type(embedding[0]).__name__}"
            store.remember("forms", heading, embedding=embedding)
            hit = store.search_memories(ELEMENTS, ["forms"], limit=20)
            assert {found.heading: found.distance for found in hit}[heading] == pytest.approx(0)


@pytest.mark.parametrize(
    ("embedding", "error", "words"),
    [
        ([1.0] * 5, hydrator.WrongDimensions, "has 5 dimensions"),
        ([1.0] * 16_000, hydrator.WrongDimensions, "has 16000 dimensions"),
        ([1.0] * 16_001, hydrator.InvalidEmbedding, "has 16001 dimensions"),
        ([1.0] * 70_000, hydrator.InvalidEmbedding, "has 70000 dimensions"),
        ([], hydrator.InvalidValue, "at least 1 dimension"),
        ([1.0, 0, 0, float("nan")], hydrator.InvalidValue, "NaN"),
        ([1.0, 0, 0, 1e300], hydrator.InvalidValue, "infinite"),
        ([1.0, 0, 0, "x"], hydrator.InvalidEmbedding, "sequence of numbers"),
        ([1.0, 0, 0, 10**400], hydrator.InvalidEmbedding, "sequence of numbers"),
        ([[1.0, 0, 0, 0]], hydrator.InvalidEmbedding, "sequence of numbers"),
        (7, hydrator.InvalidEmbedding, "sequence of numbers"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_embedding_that_cannot_be_one(url: str, embedding: Any, error: type, words: str) -> None:
    with MemoryStore(url) as store, pytest.raises(error, match=words):
        store.search_memories(embedding, ["acme"])


def test_forms_of_an_address(url: str) -> None:
    parts = conninfo_to_dict(url)
    password = f":{parts['password']}" if parts.get("password") else ""
    place = f"{parts['user']}{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    for address in (
        f"postgresql://{place}",
        f"postgres://{place}",
        f"postgresql+psycopg://{place}",
        make_conninfo(**parts),
    ):
        with MemoryStore(address) as store:
            assert store.installation().dimensions == 4


def factories_of_the_callers(url: str) -> Iterator[MemoryStore]:
    with psycopg.connect(url, row_factory=dict_row) as own:
        yield MemoryStore(own)
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as own:
        yield MemoryStore(own)
    with ConnectionPool(url, min_size=1, open=True, kwargs={"row_factory": dict_row}) as pool:
        yield MemoryStore(pool)


def test_the_callers_factories_are_for_the_callers_statements(url: str, db: psycopg.Connection) -> None:
    fill(url)
    with MemoryStore(url) as store:
        expected = store.compact_index(["acme"])
    assert [given.compact_index(["acme"]) for given in factories_of_the_callers(url)] == [expected] * 3

    async def scenario() -> None:
        own = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
        async with own:
            assert await AsyncMemoryStore(own).compact_index(["acme"]) == expected

    run(scenario())


# Transactions -------------------------------------------------------------------------------------


@each_connection
def test_the_callers_transaction_is_the_callers(url: str, db: psycopg.Connection, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            await done(target.store.remember("acme", "Taken back"))
            async with entered(target.store.transaction()) as inside:
                await done(inside.remember("acme", "Taken back with it"))
            await done(target.store.close())
            assert headings(db) == set()
            await done(target.rollback())
            assert headings(db) == set()

            await done(target.store.remember("acme", "Kept"))
            assert headings(db) == set()
            await done(target.commit())
            assert headings(db) == {"Kept"}

    run(scenario())
    assert headings(db) == {"Kept"}


async def lose(store: Any, heading: str) -> None:
    """Write, in a transaction and in one within it, and then fail."""
    async with entered(store.transaction()) as outer:
        await done(outer.remember("acme", heading))
        async with entered(outer.transaction()) as inner:
            await done(inner.remember("acme", f"{heading}, inner"))
        raise KeyError(heading)


@every_kind
def test_a_transaction_is_kept_whole_or_not_at_all(url: str, db: psycopg.Connection, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            async with entered(target.store.transaction()) as outer:
                await done(outer.remember("acme", "Outer"))
                with pytest.raises(KeyError):
                    await lose(outer, "Lost")
                async with entered(outer.transaction()) as inner:
                    await done(inner.remember("acme", "Inner"))
                assert headings(db) == set()
            assert headings(db) == {"Outer", "Inner"}
            with pytest.raises(KeyError):
                await lose(target.store, "Lost too")
            assert headings(db) == {"Outer", "Inner"}

    run(scenario())
    assert headings(db) == {"Outer", "Inner"}


@all_others
def test_what_runs_beside_a_transaction_is_no_part_of_it(
    url: str, db: psycopg.Connection, kind: Kind
) -> None:
    async def scenario() -> None:
        async with kind(url) as target, entered(target.store.transaction()) as inside:
            await done(inside.remember("acme", "Inside"))
            # As another thread or task does that shares the store.
            await done(target.store.remember("acme", "Beside"))
            assert headings(db) == {"Beside"}

    run(scenario())


def test_sqlalchemys_autocommit_has_transactions_too(url: str, db: psycopg.Connection) -> None:
    async def scenario(target: Any) -> None:
        store = (MemoryStore if isinstance(target, sqlalchemy.Engine) else AsyncMemoryStore)(target)
        with pytest.raises(KeyError):
            await lose(store, "Lost")
        await done(store.remember("acme", f"Kept by {type(target).__name__}"))
        await done(target.dispose())

    autocommit = {"isolation_level": "AUTOCOMMIT"}
    run(scenario(sqlalchemy.create_engine(sqlalchemy_url(url), **autocommit)))
    assert headings(db) == {"Kept by Engine"}
    run(scenario(async_engine(url, **autocommit)))
    assert headings(db) == {"Kept by Engine", "Kept by AsyncEngine"}


# Errors -------------------------------------------------------------------------------------------

REFUSED: list[tuple[type[HydratorError], Callable[[Any], Any]]] = [
    (hydrator.WrongDimensions, lambda store: store.hydrate_session([1, 0], ["acme"])),
    (hydrator.InvalidEmbedding, lambda store: store.search_memories([0, 0, 0, 0], ["acme"])),
    (hydrator.InvalidCount, lambda store: store.search_memories([1, 0, 0, 0], ["acme"], limit=-1)),
    (hydrator.UnknownPacking, lambda store: store.hydrate_session([1, 0, 0, 0], [], packing="squeeze")),
    (hydrator.InvalidNamespaces, lambda store: store.compact_index(None)),
    (hydrator.UnknownMemory, lambda store: store.remember("acme", "x", supersedes=UUID(int=0))),
    (hydrator.InvalidHeading, lambda store: store.remember("acme", "two\nlines")),
    (hydrator.ModelMismatch, lambda store: store.search_memories(
        [1, 0, 0, 0], ["acme"], embedding_model="other")),
    (hydrator.InvalidMemory, lambda store: store.remember("acme", "x", confidence=2)),
    (hydrator.InvalidValue, lambda store: store.remember("acme", "NUL \0")),
    (hydrator.InvalidValue, lambda store: store.remember("acme", "lone surrogate \ud800")),
    (hydrator.InvalidValue, lambda store: store.search_memories([1, 0, 0, 0], ["acme"], limit=10**30)),
]  # fmt: skip


async def refused(store: Any, call: Callable[[Any], Any]) -> None:
    async with entered(store.transaction()) as inside:
        await done(inside.remember("acme", "Lost"))
        await done(call(inside))


@every_kind
def test_each_error_is_the_same_and_a_savepoint_rescues(url: str, db: psycopg.Connection, kind: Kind) -> None:
    fill(url)

    async def scenario() -> None:
        async with kind(url) as target:
            await done(target.store.remember("acme", "Before"))
            for error, call in REFUSED:
                with pytest.raises(error) as raised:
                    await refused(target.store, call)
                assert type(raised.value) is error
            await done(target.store.remember("acme", "After"))
            if target.commit:
                await done(target.commit())

    run(scenario())
    assert {"Before", "After", "Lost"} & headings(db) == {"Before", "After"}


@all_others
def test_an_error_outside_a_transaction_costs_nothing(url: str, db: psycopg.Connection, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            for error, call in REFUSED[2:5]:
                with pytest.raises(error):
                    await done(call(target.store))
            assert await done(target.store.compact_index(["acme"])) == ()

    run(scenario())


@each_connection
def test_without_a_savepoint_the_callers_transaction_has_failed(
    url: str, db: psycopg.Connection, kind: Kind
) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            with pytest.raises(hydrator.InvalidCount):
                await done(target.store.search_memories([1, 0, 0, 0], ["acme"], limit=-1))
            with pytest.raises(HydratorError, match="aborted"):
                await done(target.store.compact_index(["acme"]))
            await done(target.rollback())
            assert await done(target.store.compact_index(["acme"])) == ()

    run(scenario())


def test_a_store_that_cannot_be_reached_is_the_same_error(url: str) -> None:
    nowhere = "postgresql://user@127.0.0.1:1/none"

    async def scenario() -> None:
        closed = ConnectionPool(nowhere, open=False)
        engine = sqlalchemy.create_engine(nowhere.replace("://", "+psycopg://"))
        for target in (nowhere, closed, engine):
            with pytest.raises(StoreUnavailable):
                MemoryStore(target).schema_version()
        busy = sqlalchemy.create_engine(sqlalchemy_url(url), pool_size=1, max_overflow=0, pool_timeout=0.05)
        with busy.connect(), pytest.raises(StoreUnavailable, match="QueuePool"):
            MemoryStore(busy).schema_version()
        for async_target in (nowhere, AsyncConnectionPool(nowhere, open=False)):
            with pytest.raises(StoreUnavailable):
                await AsyncMemoryStore(async_target).schema_version()

    run(scenario())


# Closing ------------------------------------------------------------------------------------------


@every_kind
def test_a_store_closes_only_what_it_opened(url: str, db: psycopg.Connection, kind: Kind) -> None:
    async def scenario() -> None:
        async with kind(url) as target:
            backend = await done(target.store.execute(BACKEND))
            await done(target.store.close())
            await done(target.store.close())
            if target.usable:
                await done(target.usable())
            else:
                assert wait_for(lambda: not sessions(db, backend))
            assert await done(target.store.compact_index(["acme"])) == ()

    run(scenario())


def sessions(db: psycopg.Connection, backend: int) -> list[Any]:
    return db.execute("select pid from pg_stat_activity where pid = %s", [backend]).fetchall()


# Targets that are none ----------------------------------------------------------------------------


class ConnectionOfAnotherDriver:
    """Looks like psycopg2's: cursor, commit, rollback, and a name that fits."""

    def cursor(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def test_a_target_of_another_kind_is_refused(url: str) -> None:
    plain = r"a URL, a psycopg Connection or ConnectionPool, or a SQLAlchemy Engine or Connection, not {}$"
    awaited = (
        r"a URL, a psycopg AsyncConnection or AsyncConnectionPool, or a SQLAlchemy AsyncEngine or "
        r"AsyncConnection, not {}$"
    )
    engine = sqlalchemy.create_engine(sqlalchemy_url(url))
    for target in (ConnectionOfAnotherDriver(), b"postgresql://", 7, Path("x")):
        name = type(target).__name__
        with pytest.raises(TypeError, match=plain.format(name)):
            MemoryStore(target)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=awaited.format(name)):
            AsyncMemoryStore(target)  # type: ignore[arg-type]
    with psycopg.connect(url) as connection, engine.connect() as own:
        for target in (connection, ConnectionPool(url, open=False), engine, own):
            with pytest.raises(TypeError, match=awaited.format(type(target).__name__)):
                AsyncMemoryStore(target)  # type: ignore[arg-type]

    async def scenario() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            for target in (connection, AsyncConnectionPool(url, open=False), async_engine(url)):
                with pytest.raises(TypeError, match=plain.format(type(target).__name__)):
                    MemoryStore(target)  # type: ignore[arg-type]

    run(scenario())


def test_another_dialect_is_refused() -> None:
    with pytest.raises(TypeError, match=r"psycopg dialect \(postgresql\+psycopg://\), not sqlite\+pysqlite$"):
        MemoryStore(sqlalchemy.create_engine("sqlite://"))
    pytest.importorskip("greenlet")
    # The dialect without its driver, which is not installed.
    asyncpg = create_async_engine("postgresql+asyncpg://x/y", module=SimpleNamespace(paramstyle="format"))
    with pytest.raises(TypeError, match=r"postgresql\+psycopg://\), not postgresql\+asyncpg$"):
        AsyncMemoryStore(asyncpg)


# Event loops and threads --------------------------------------------------------------------------


def test_a_pool_of_another_event_loop_is_refused_at_once(url: str) -> None:
    pool = AsyncConnectionPool(url, min_size=1, open=False, timeout=30)
    store = AsyncMemoryStore(pool)
    opener = asyncio.new_event_loop()
    try:
        opener.run_until_complete(pool.open())
        assert opener.run_until_complete(store.schema_version())

        async def elsewhere() -> None:
            for _ in range(2):
                with pytest.raises(HydratorError, match=r"another event loop\. Open the pool in the loop"):
                    await store.schema_version()
                with pytest.raises(HydratorError, match="another event loop"):
                    async with store.transaction():
                        pass

        began = time.monotonic()
        asyncio.run(elsewhere())
        assert time.monotonic() - began < 10  # the pool itself would have waited for 30 seconds, each time
        assert opener.run_until_complete(store.schema_version())
    finally:
        opener.run_until_complete(pool.close())
        opener.close()


def test_a_url_serves_one_event_loop_after_the_other(url: str) -> None:
    store = AsyncMemoryStore(url)
    first, second = asyncio.run(store.execute(BACKEND)), asyncio.run(store.execute(BACKEND))
    # A pooler may give both the same session.
    assert first != second or POOLED
    asyncio.run(store.close())


def test_a_url_serves_two_event_loops_at_once(url: str, db: psycopg.Connection) -> None:
    store = AsyncMemoryStore(url)
    waiting = threading.Event()
    versions: list[Any] = []

    async def late() -> None:
        await store.schema_version()
        waiting.set()
        versions.append(await store.compact_index(["acme"]))
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(late()), daemon=True)
    with db.transaction():
        db.execute("lock table hydrator.memories in access exclusive mode")
        thread.start()
        assert waiting.wait(PATIENCE)
        assert asyncio.run(store.schema_version())
        assert versions == []
    thread.join(PATIENCE)
    assert versions == [()]


def test_threads_share_one_connection(url: str) -> None:
    count = 8
    together = threading.Barrier(count)
    backends: list[int] = []

    def work(store: MemoryStore) -> None:
        together.wait()
        backends.extend(store.execute(BACKEND) for _ in range(300))

    with MemoryStore(url) as store:
        threads = [threading.Thread(target=work, args=[store], daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        assert wait_for(lambda: not any(thread.is_alive() for thread in threads))
    # None waits for an answer that another one took from the socket.
    assert len(backends) == 300 * count
    assert len(set(backends)) == 1


def test_an_embedder_that_never_ends_keeps_no_event_loop_from_ending(url: str) -> None:
    released = threading.Event()
    ended: list[str] = []

    class Endless(Toy):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            released.wait(PATIENCE)
            ended.append("late")
            return super().embed(texts)

    async def scenario() -> None:
        async with AsyncMemoryStore(url) as store:
            retrieval = AsyncRetrievalCoordinator(store, Endless(), ["acme"], embedder_timeout=0.1)
            turn = await AsyncHydrationCoordinator(retrieval=retrieval).hydrate("x")
            assert [failure.half for failure in turn.failures] == ["embedder"]

    asyncio.run(scenario())
    assert ended == []
    released.set()


# Prepared statements ------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [MemoryStore, AsyncMemoryStore])
@pytest.mark.parametrize(("options", "prepares"), [({}, True), ({"prepare_threshold": None}, False)])
def test_statements_are_prepared_unless_told_otherwise(
    url: str, over: Any, options: dict[str, Any], prepares: bool
) -> None:
    async def scenario() -> None:
        store = over(url, **options)
        async with entered(store.transaction()) as inside:
            for own in (store, inside):
                for _ in range(12):
                    await done(own.schema_version())
                assert bool(await done(own.execute(PREPARED))) is (prepares and not POOLED)
        await done(store.close())

    run(scenario())


# One coordinator, many turns -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "update hydrator.memories set confidence = 0.999",  # rendered alike, and yet another index
        "update hydrator.memories set heading = 'Others'",
        "update hydrator.memories set memory_type = 'lesson'",
        "update hydrator.memories set deleted_at = now() where heading = 'B'",
        "insert into hydrator.memories (namespace, heading, content) values ('acme', 'C', 'C')",
    ],
)
def test_the_index_of_the_turn_before_is_kept_until_it_changes(
    url: str, db: psycopg.Connection, change: str
) -> None:
    with MemoryStore(url) as store:
        store.remember("acme", "A", embedding=[1, 0, 0, 0], embedding_model="toy")
        store.remember("acme", "B")
        turns = HydrationCoordinator(retrieval=RetrievalCoordinator(store, Toy(), ["acme"]))
        first = turns.hydrate("x").index
        assert turns.hydrate("y").index is first
        db.execute(change)
        second = turns.hydrate("x").index
        afresh = HydrationCoordinator(retrieval=RetrievalCoordinator(store, Toy(), ["acme"])).hydrate("x")
        assert first
        assert second
        assert second == afresh.index
        assert second.revision != first.revision


# A server that goes and comes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    folder = Path(tempfile.mkdtemp(prefix="hydrator-sources-"))
    folder.chmod(0o755)
    server = EmbeddedServer(folder, settings={"fsync": "off"})
    url = server.start(migrate=False)
    migrations.upgrade(url, dimensions=4)
    with MemoryStore(url) as store:
        store.remember("acme", "Still here", embedding=[1, 0, 0, 0], embedding_model="toy")
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def plain_turns(url: str, **options: Any) -> tuple[Any, Any]:
    store = MemoryStore(url)
    return store, HydrationCoordinator(retrieval=RetrievalCoordinator(store, Toy(), ["acme"], **options))


def async_turns(url: str, **options: Any) -> tuple[Any, Any]:
    store = AsyncMemoryStore(url)
    retrieval = AsyncRetrievalCoordinator(store, Toy(), ["acme"], **options)
    return store, AsyncHydrationCoordinator(retrieval=retrieval)


both = pytest.mark.parametrize("make", [plain_turns, async_turns])


@both
def test_a_server_that_stopped_and_started_again(own_server: EmbeddedServer, make: Any) -> None:
    url = own_server.start(migrate=False)

    async def scenario() -> None:
        store, turns = make(url)
        whole = await done(turns.hydrate("x"))
        assert (whole.degraded, [event.heading for event in whole.events()]) == (False, ["Still here"])
        own_server.stop()
        try:
            with pytest.raises(StoreUnavailable):
                await done(store.compact_index(["acme"]))
            turn = await done(turns.hydrate("x"))
            assert [failure.half for failure in turn.failures] == ["store"]
            assert (turn.block, turn.index, turn.events()) == ("", None, ())
        finally:
            own_server.start(migrate=False)
        again = await done(turns.hydrate("x"))
        assert (again.degraded, again.block, again.index) == (False, whole.block, whole.index)
        await done(store.close())

    run(scenario())


@both
def test_a_server_process_that_stops_answering(own_server: EmbeddedServer, make: Any) -> None:
    import psutil

    url = own_server.start(migrate=False)

    async def scenario() -> None:
        store, turns = make(url, store_timeout=0.5)
        whole = await done(turns.hydrate("x"))
        assert not whole.degraded
        backend = psutil.Process(await done(store.execute(BACKEND)))
        backend.send_signal(signal.SIGSTOP)
        try:
            turn = await done(turns.hydrate("x"))
            assert [failure.half for failure in turn.failures] == ["store"]
            assert "within 0.5 seconds" in turn.failures[0].reason
            # The next one has a connection of its own, beside the one that hangs.
            again = await done(turns.hydrate("x"))
            assert (again.degraded, again.block) == (False, whole.block)
            assert await done(store.execute(BACKEND)) != backend.pid
        finally:
            backend.send_signal(signal.SIGCONT)
        await done(store.close())

    run(scenario())


def test_an_embedded_server_that_cannot_start_degrades(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: EmbeddedServer, **options: Any) -> str:
        raise hydrator.EmbeddedServerError("no server today")

    monkeypatch.setattr(EmbeddedServer, "start", fail)

    async def scenario() -> None:
        for make in (plain_turns, async_turns):
            _, turns = make(None)
            turn = await done(turns.hydrate("x"))
            assert [(failure.half, failure.reason) for failure in turn.failures] == [
                ("store", "no server today")
            ]

    run(scenario())
