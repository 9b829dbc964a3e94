"""A hot standby, streaming from its primary: every reading call works there, and no writing one."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers import caught_up, standby
from targets import done, run
from typer.testing import CliRunner

from hydrator import (
    AsyncMemoryStore,
    MemoryStore,
    ReadOnlyStore,
    StoreUnavailable,
    TransactionConflict,
    calls,
)
from hydrator.addresses import READ_URL_VARIABLE, URL_VARIABLE
from hydrator.calls import Call
from hydrator.cli import app
from hydrator.embedded import EmbeddedServer

NOWHERE = "postgresql://127.0.0.1:1/none"

IN_RECOVERY: Call[bool] = Call("select pg_is_in_recovery()", {}, lambda rows: rows[0][0], read_only=True)


@pytest.fixture(scope="module")
def replica(victim: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A standby that cancels at once what stands in the way of what it replays."""
    victim.start(migrate=False)
    with standby(victim, {"max_standby_streaming_delay": "0"}) as server:
        yield server


@pytest.fixture
def primary_url(victim: EmbeddedServer) -> str:
    url = victim.start(migrate=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from hydrator.memories")
    return url


@pytest.fixture
def primary(primary_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(primary_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def replica_url(replica: EmbeddedServer) -> str:
    return replica.start(migrate=False)


@pytest.fixture
def follow(primary: psycopg.Connection, replica_url: str) -> Iterator[Any]:
    with psycopg.connect(replica_url, autocommit=True) as connection:
        yield lambda: caught_up(primary, connection)


READS = {
    "compact_index": lambda store: store.compact_index(["acme"]),
    "fetch_top_k_relevant": lambda store: store.fetch_top_k_relevant([1, 0, 0, 0], ["acme"]),
    "hydrate_session": lambda store: store.hydrate_session([1, 0, 0, 0], ["acme"], index_budget=99),
    "search_memories": lambda store: store.search_memories([1, 0, 0, 0], ["acme"], embedding_model="toy"),
    "fetch_memories": lambda store: store.fetch_memories(["acme"], []),
    "count_live": lambda store: store.count_live(["acme"]),
    "estimate_tokens": lambda store: store.estimate_tokens("five"),
    "schema_version": lambda store: store.schema_version(),
    "installation": lambda store: store.installation(),
    "near_duplicates": lambda store: store.near_duplicates(["acme"]),
    "list_quarantined": lambda store: store.list_quarantined(["acme"]),
    "act_for": lambda store: store.act_for(["acme"]),
    "live_tokens": lambda store: store.execute(calls.live_tokens(["acme"])),
}
WRITES = {
    "remember": lambda store: store.remember("acme", "x"),
    "forget": lambda store: store.forget("acme", "00000000-0000-0000-0000-000000000000"),
    "quarantine": lambda store: store.quarantine("acme", "00000000-0000-0000-0000-000000000000"),
    "release": lambda store: store.release("acme", "00000000-0000-0000-0000-000000000000"),
    "purge": lambda store: store.purge(timedelta(0)),
}


def test_no_call_is_missed_here() -> None:
    made = {
        name: function
        for name, function in vars(calls).items()
        if inspect.isfunction(function)
        and str(inspect.signature(function).return_annotation).startswith("Call[")
    }
    assert {name for name in made if not name.startswith("_")} == READS.keys() | WRITES.keys()


@pytest.mark.parametrize("over", [MemoryStore, AsyncMemoryStore])
def test_every_reading_call_works_on_a_standby(
    primary_url: str, replica_url: str, follow: Any, over: Any
) -> None:
    with MemoryStore(primary_url) as store:
        for number in range(5):
            store.remember("acme", f"Memory {number}", embedding=[1, 0, 0, number], embedding_model="toy")
        follow()
        expected = {name: read(store) for name, read in READS.items()}
    assert len(expected["hydrate_session"].relevant) == 5

    async def scenario() -> None:
        replica = over(replica_url)
        assert {name: await done(read(replica)) for name, read in READS.items()} == expected
        for write in WRITES.values():
            with pytest.raises(ReadOnlyStore) as raised:
                await done(write(replica))
            assert not raised.value.retryable
        assert await done(replica.execute(IN_RECOVERY)) is True
        await done(replica.close())

    run(scenario())


@pytest.mark.parametrize("over", [MemoryStore, AsyncMemoryStore])
def test_reads_go_to_the_standby_and_writes_to_the_primary(
    primary_url: str, replica_url: str, follow: Any, over: Any
) -> None:
    async def scenario() -> None:
        store = over(primary_url, read_url=replica_url)
        memory_id = await done(store.remember("acme", "Written on the primary"))
        follow()
        assert [entry.memory_id for entry in await done(store.compact_index(["acme"]))] == [memory_id]
        assert await done(store.execute(IN_RECOVERY)) is True
        # What nobody said only reads goes where writes go.
        assert await done(store.execute(Call(IN_RECOVERY.sql, {}, IN_RECOVERY.parse))) is False
        transaction = store.transaction()
        if over is MemoryStore:
            with transaction as inside:
                assert inside.execute(IN_RECOVERY) is False
                inside.remember("acme", "Seen in its own transaction")
                assert inside.count_live(["acme"]) == 2
        else:
            async with transaction as inside:
                assert await inside.execute(IN_RECOVERY) is False
                await inside.remember("acme", "Seen in its own transaction")
                assert await inside.count_live(["acme"]) == 2
        await done(store.close())

    run(scenario())


def test_the_environment_names_the_standby_of_its_own_database(
    primary_url: str, replica_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_URL_VARIABLE, replica_url)

    def in_recovery(*target: str, **options: str) -> bool:
        with MemoryStore(*target, **options) as store:
            return store.execute(IN_RECOVERY)

    assert not in_recovery(primary_url)
    monkeypatch.setenv(URL_VARIABLE, primary_url)
    assert in_recovery()
    assert in_recovery(primary_url)
    assert not in_recovery(make_conninfo(primary_url, application_name="another"))
    assert not in_recovery(read_url=primary_url)
    monkeypatch.setenv(READ_URL_VARIABLE, "")
    assert not in_recovery()


def test_reads_fall_back_to_the_primary_where_the_address_names_both(
    primary_url: str, replica_url: str
) -> None:
    hosts = conninfo_to_dict(primary_url)
    for first, expected in ((conninfo_to_dict(replica_url)["port"], True), (1, False)):
        both = make_conninfo(primary_url, host="127.0.0.1,127.0.0.1", port=f"{first},{hosts['port']}")
        with MemoryStore(primary_url, read_url=both) as store:
            assert store.execute(IN_RECOVERY) is expected


def test_a_standby_is_for_addresses(primary: psycopg.Connection, replica_url: str) -> None:
    with pytest.raises(TypeError, match="read_url is for a store of a URL, not of a Connection"):
        MemoryStore(primary, read_url=replica_url)


# Long enough to be in the way of what the primary does meanwhile.
SLOW: Call[int] = Call(
    "select count(*) from hydrator.memories, lateral (select pg_sleep(0.03) where heading <> '') s",
    {},
    lambda rows: rows[0][0],
    read_only=True,
)


READING = (
    "select from pg_stat_activity where query like '%pg_sleep(0.03)%' and wait_event = 'PgSleep'"
    " and clock_timestamp() - query_start > '0.05 s'"
)


@pytest.mark.parametrize("over", [MemoryStore, AsyncMemoryStore])
def test_a_conflict_with_recovery_is_made_again(
    primary: psycopg.Connection, primary_url: str, replica_url: str, follow: Any, over: Any
) -> None:
    primary.execute("select hydrator.remember('acme', i::text) from generate_series(1, 20) i")
    follow()
    results: list[Any] = []

    async def read() -> None:
        store = over(primary_url, read_url=replica_url)
        try:
            results.append(await done(store.execute(SLOW)))
        except Exception as error:
            results.append(error)
        await done(store.close())

    def read_against(conflicts: float) -> Any:
        """Read, while the primary does so often what the standby cannot replay beside a reader."""
        thread = threading.Thread(target=lambda: asyncio.run(read()))
        thread.start()
        with psycopg.connect(replica_url, autocommit=True) as watching:
            while thread.is_alive():
                if conflicts and watching.execute(READING).fetchone() is not None:
                    primary.execute("begin; lock table hydrator.memories in access exclusive mode; commit")
                    conflicts -= 1
                thread.join(0.02)
        return results.pop()

    assert read_against(1) == 20
    error = read_against(math.inf)
    assert type(error) is TransactionConflict
    assert error.retryable
    assert "recovery" in error.message


@pytest.mark.parametrize("way", ["option", "environment"])
def test_commands_read_on_the_standby(
    primary_url: str, replica_url: str, follow: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, primary_url)
    with MemoryStore(primary_url) as store:
        memory_id = store.remember("acme", "Read on the standby")
    follow()
    options = ["--read-url", replica_url] if way == "option" else []
    if way == "environment":
        monkeypatch.setenv(READ_URL_VARIABLE, replica_url)
    # Nothing comes from the primary: there is none.
    monkeypatch.setattr("hydrator.sources.resolve_url", lambda url: url if url == replica_url else NOWHERE)
    told = CliRunner().invoke(app, ["index", "-n", "acme", "--json", *options])
    assert [entry["memory_id"] for entry in json.loads(told.output)] == [str(memory_id)]
    told = CliRunner().invoke(app, ["fetch", str(memory_id), "-n", "acme", *options])
    assert "Read on the standby" in told.output
    with pytest.raises(StoreUnavailable):
        CliRunner().invoke(app, ["forget", str(memory_id), "-n", "acme"], catch_exceptions=False)
