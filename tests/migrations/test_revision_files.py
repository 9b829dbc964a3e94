"""The frozen revisions and the current truth are one schema."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from catalog import contents, differences
from freeze import frozen

from hydrator import migrations
from hydrator.models import Installation
from hydrator.schema import SQL, current_files, render


def test_revision_is_made_from_the_current_truth() -> None:
    revision = SQL / "revisions" / "0001" / "upgrade.sql"
    assert revision.read_text("utf-8") == frozen(), "run: python tests/migrations/freeze.py"


def test_every_file_is_part_of_the_current_truth() -> None:
    files = current_files()
    assert sorted(files) == sorted([*SQL.glob("tables/*"), *SQL.glob("functions/*")])


@pytest.fixture(scope="module")
def upgraded(make_database: Callable[..., str]) -> dict[str, object]:
    url = make_database()
    migrations.upgrade(url, dimensions=8)
    with psycopg.connect(url) as connection:
        found = contents(connection)
    # The migrations' own bookkeeping is not part of what the files describe.
    return {key: value for key, value in found.items() if "alembic_version" not in key}


@pytest.fixture(scope="module")
def from_files(make_database: Callable[..., str]) -> psycopg.Connection:
    url = make_database()
    with psycopg.connect(url) as connection:
        connection.execute(migrations.CREATE_SCHEMA)
        for path in current_files():
            connection.execute(render(path.read_text("utf-8"), Installation(dimensions=8)))
        connection.commit()
        yield connection


def test_upgrade_and_current_files_make_the_same_database(upgraded, from_files) -> None:
    assert differences(upgraded, contents(from_files)) == {}


@pytest.mark.parametrize(
    ("mutation", "noticed"),
    [
        (
            "comment on function hydrator.forget(text, uuid) is 'x'",
            "comment on function hydrator.forget(text,uuid)",
        ),
        (
            "comment on column hydrator.memories.heading is null",
            "comment on column heading of table hydrator.memories",
        ),
        ("comment on schema hydrator is 'x'", "comment on schema hydrator"),
        (
            "grant execute on function hydrator.purge(interval) to public",
            "definition of hydrator.purge(interval)",
        ),
        (
            "alter function hydrator.purge(interval) reset search_path",
            "definition of hydrator.purge(interval)",
        ),
        (
            "alter function hydrator.purge(interval) security definer",
            "definition of hydrator.purge(interval)",
        ),
        (
            "create function hydrator.purge(p_older_than interval, p_limit int) returns int"
            " language sql return 1",
            "function hydrator.purge(interval,integer)",
        ),
        ("grant usage on schema hydrator to public", "grants on schema hydrator"),
        ("grant select on hydrator.memories to public", "definition of hydrator.memories"),
        ("grant select (heading) on hydrator.memories to public", "definition of hydrator.memories.heading"),
        ("alter table hydrator.memories alter pinned drop default", "definition of hydrator.memories.pinned"),
        (
            "alter table hydrator.memories alter content drop not null",
            "definition of hydrator.memories.content",
        ),
        (
            "alter table hydrator.memories alter content set storage external",
            "definition of hydrator.memories.content",
        ),
        (
            "alter table hydrator.memories drop constraint memories_supersedes_fkey",
            "definition of memories_supersedes_fkey on hydrator.memories",
        ),
        (
            "alter table hydrator.memories disable trigger guard_memory",
            "definition of guard_memory on hydrator.memories",
        ),
        (
            "drop index hydrator.memories_live_idx;"
            " create index memories_live_idx on hydrator.memories (namespace, confidence, memory_id)",
            "definition of hydrator.memories_live_idx",
        ),
        (
            "alter view hydrator.live_memories reset (security_invoker)",
            "definition of hydrator.live_memories",
        ),
        ("alter table hydrator.memories enable row level security", "definition of hydrator.memories"),
        ("create type hydrator.mood as enum ()", "type hydrator.mood"),
        ("update hydrator.installed set distance = 'l2'", "settings"),
    ],
)
def test_comparison_notices(upgraded, from_files, mutation: str, noticed: str) -> None:
    with from_files.transaction(force_rollback=True):
        from_files.execute(mutation)
        assert noticed in differences(upgraded, contents(from_files))
