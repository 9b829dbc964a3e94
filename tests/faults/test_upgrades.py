"""Upgrades under load, and upgrades that are killed half-way.

There is one revision so far; a second one is made here, which changes the table and makes
hydrate_session() anew with another type of result.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from servers import kill
from targets import OTHERS, done, entered, over_connection, wait_for

from hydrator import HydratorError, migrations, schema
from hydrator.embedded import EmbeddedServer
from hydrator.errors import StoreUnavailable

fork = multiprocessing.get_context("fork")

SECOND = """
from alembic import op
from hydrator.migrations import run_sql

revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None


def upgrade():
    run_sql("0002/upgrade.sql")


def downgrade():
    run_sql("0002/downgrade.sql")
"""

DROP = """
drop function hydrator.hydrate_session;
drop function hydrator.index_json;
"""


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second revision after those there are."""
    alembic, sql = tmp_path / "alembic", tmp_path / "sql"
    shutil.copytree(schema.ALEMBIC, alembic, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(schema.SQL, sql)
    (alembic / "versions" / "0002_second.py").write_text(SECOND)
    before = "".join(
        (sql / "functions" / f"{name}.sql").read_text() for name in ("index_json", "hydrate_session")
    )
    after = before
    for narrow in ("  index_total integer,", "end)::integer,\n    v_ranked.ranked_by"):
        assert after.count(narrow) == 1
        after = after.replace(narrow, narrow.replace("integer", "bigint"))
    (sql / "revisions" / "0002").mkdir()
    (sql / "revisions" / "0002" / "upgrade.sql").write_text(
        f"alter table hydrator.memories add column mood text;{DROP}{after}"
    )
    (sql / "revisions" / "0002" / "downgrade.sql").write_text(
        f"{DROP}{before}alter table hydrator.memories drop column mood;"
    )
    for module in (schema, migrations):
        monkeypatch.setattr(module, "ALEMBIC", alembic)
        monkeypatch.setattr(module, "SQL", sql)


def test_under_load(url: str, db: psycopg.Connection, second: None) -> None:
    stopped = threading.Event()
    seen: dict[str, list[Any]] = {}
    written: set[str] = set()

    async def load(kind: Any) -> None:
        """Call until the end, and note what came of it."""
        outcomes = seen.setdefault(kind.__name__, [])
        async with kind(url) as target:
            number = 0
            while not stopped.is_set():
                number += 1
                heading = f"{kind.__name__} {number}"
                try:
                    await done(target.store.remember("acme", heading, embedding=[1, 0, 0, number]))
                    if target.commit:
                        await done(target.commit())
                    written.add(heading)
                    session = await done(target.store.hydrate_session([1, 0, 0, 1], ["acme"]))
                    assert len(session.index) == session.index_total >= number - 1
                    async with entered(target.store.transaction()) as inside:
                        await done(inside.hydrate_session([1, 0, 0, 1], ["acme"]))
                    outcomes.append("answered")
                except HydratorError as error:
                    outcomes.append(error)
                    if target.rollback:
                        await done(target.rollback())

    threads = [
        threading.Thread(target=lambda kind=kind: asyncio.run(load(kind)))
        for kind in (*OTHERS, over_connection)
    ]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: all(len(seen.get(kind.__name__, [])) > 5 for kind in (*OTHERS, over_connection)))
    for _ in range(2):
        for change, revision in ((migrations.upgrade, "0002"), (migrations.downgrade, "0001")):
            before = {name: len(outcomes) for name, outcomes in seen.items()}
            change(url, revision)
            assert db.execute("select hydrator.schema_version()").fetchone() == (revision,)
            assert wait_for(lambda before=before: all(len(seen[name]) > before[name] + 2 for name in seen))
    stopped.set()
    for thread in threads:
        thread.join()
    errors = [outcome for outcomes in seen.values() for outcome in outcomes if outcome != "answered"]
    assert all(isinstance(error, StoreUnavailable) and error.retryable for error in errors), errors
    found = {heading for (heading,) in db.execute("select heading from hydrator.live_memories")}
    assert found >= written
    db.execute("delete from hydrator.memories")


@pytest.fixture
def stalled(db: psycopg.Connection) -> Iterator[Callable[[], bool]]:
    """Holds a migration in its midst; tells whether one is there."""
    db.execute(
        "create function stall() returns event_trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock(2); end $$;"
        " create event trigger stall on ddl_command_end when tag in ('CREATE FUNCTION') execute function stall()"
    )
    db.execute("select pg_advisory_lock(2)")
    try:
        held = "select from pg_locks where locktype = 'advisory' and objid = 2 and not granted"
        yield lambda: db.execute(held).fetchone() is not None
    finally:
        db.execute("select pg_advisory_unlock_all()")
        db.execute("drop event trigger stall; drop function stall")


@pytest.mark.parametrize("killed", ["the client", "its session"])
def test_killed_half_way(
    url: str, db: psycopg.Connection, second: None, stalled: Callable[[], bool], killed: str
) -> None:
    process = fork.Process(target=migrations.upgrade, args=(url, "0002"))
    process.start()
    assert wait_for(stalled)
    assert process.pid is not None
    if killed == "the client":
        os.kill(process.pid, signal.SIGKILL)
    else:
        db.execute("select pg_terminate_backend(pid) from pg_locks where objid = 2 and not granted")
    process.join()
    assert process.exitcode != 0
    db.execute("select pg_advisory_unlock(2)")
    db.execute("alter event trigger stall disable")
    # It was the old schema, and still is.
    assert wait_for(
        lambda: (
            db.execute("select count(*) from pg_stat_activity where datname = current_database()").fetchone()
            == (1,)
        )
    )
    assert db.execute("select hydrator.schema_version()").fetchone() == ("0001",)
    assert columns(db) == []
    migrations.upgrade(url, "0002")
    assert columns(db) == [("mood",)]
    assert db.execute("select hydrator.schema_version()").fetchone() == ("0002",)
    migrations.downgrade(url, "0001")
    assert columns(db) == []


def columns(db: psycopg.Connection) -> list[Any]:
    return db.execute(
        "select attname from pg_attribute where attrelid = 'hydrator.memories'::regclass"
        " and attname = 'mood' and not attisdropped"
    ).fetchall()


def test_a_server_that_is_killed_half_way(victim: EmbeddedServer, second: None) -> None:
    url = victim.start(migrate=False)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("select hydrator.remember('acme', 'Kept')")
        blocking = psycopg.connect(url)
        # The table is altered last but once: the upgrade stands before it with half of its work done.
        blocking.execute("select from hydrator.memories")
        process = fork.Process(target=migrations.upgrade, args=(url, "0002"))
        process.start()
        waiting = "select from pg_locks where relation = 'hydrator.memories'::regclass and not granted"
        assert wait_for(lambda: db.execute(waiting).fetchone() is not None)
        kill(victim)
        process.join()
        blocking.close()
    assert process.exitcode != 0
    victim.start(migrate=False)
    with psycopg.connect(url, autocommit=True) as db:
        assert db.execute("select hydrator.schema_version()").fetchone() == ("0001",)
        assert columns(db) == []
        migrations.upgrade(url, "0002")
        assert db.execute("select hydrator.schema_version()").fetchone() == ("0002",)
        assert db.execute("select hydrator.count_live(array['acme'])").fetchone() >= (1,)
        migrations.downgrade(url, "0001")


def test_an_upgrade_that_ends_in_a_deadlock_is_made_again(
    url: str, db: psycopg.Connection, second: None
) -> None:
    db.execute(
        "create sequence tries;"
        " create function refuse() returns event_trigger language plpgsql as $$ begin"
        " if nextval('public.tries') < 3 then raise exception 'not yet' using errcode = '40P01'; end if; end $$;"
        " create event trigger refuse on ddl_command_end when tag in ('ALTER TABLE') execute function refuse()"
    )
    try:
        migrations.upgrade(url, "0002")
        assert db.execute("select hydrator.schema_version()").fetchone() == ("0002",)
        assert db.execute("select last_value from tries").fetchone() == (3,)
    finally:
        db.execute("drop event trigger refuse; drop function refuse; drop sequence tries")
    migrations.downgrade(url, "0001")
