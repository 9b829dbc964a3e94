"""Upgrade, downgrade to base, upgrade again: nothing left behind, nothing doubled."""

from __future__ import annotations

import psycopg
import pytest
from catalog import contents, differences

from hydrator import migrations
from hydrator.errors import HydratorError
from hydrator.schema import SQL

REMEMBER = "select hydrator.remember('agent', 'a memory', p_embedding => '[1,0,0,0]')"


def tables(admin: psycopg.Connection) -> set[str]:
    rows = admin.execute("select c.relname from pg_class c where c.relnamespace = 'hydrator'::regnamespace")
    return {name for (name,) in rows}


def has_extension(admin: psycopg.Connection) -> bool:
    return admin.execute("select exists (select from pg_extension where extname = 'vector')").fetchone()[0]


@pytest.mark.parametrize(
    "prepared",
    [
        "select",
        "create extension vector",
        "create schema extensions; create extension vector schema extensions",
        "create schema hydrator",
        "create schema hydrator; comment on schema hydrator is 'made by a DBA';"
        " grant usage on schema hydrator to public",
        "create extension vector; create table public.notes (embedding vector(3))",
    ],
    ids=[
        "nothing",
        "extension",
        "extension elsewhere",
        "schema",
        "schema with a comment",
        "a user's vectors",
    ],
)
def test_downgrade_leaves_what_was_there_before(
    admin: psycopg.Connection, empty_url: str, prepared: str
) -> None:
    admin.execute(prepared)
    before = contents(admin)

    migrations.upgrade(empty_url, dimensions=4)
    admin.execute(REMEMBER)
    first = contents(admin)
    migrations.downgrade(empty_url, "base")
    assert differences(before, contents(admin)) == {}

    migrations.upgrade(empty_url, dimensions=4)
    assert differences(first, contents(admin)) == {}
    assert admin.execute("select count(*) from hydrator.memories").fetchone() == (0,)


def test_one_signature_for_each_function(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url)
    migrations.downgrade(empty_url, "base")
    migrations.upgrade(empty_url)
    rows = admin.execute("select p.proname from pg_proc p where p.pronamespace = 'hydrator'::regnamespace")
    assert sorted(name for (name,) in rows) == sorted(path.stem for path in (SQL / "functions").glob("*.sql"))


def test_upgrade_again_changes_nothing(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url, dimensions=4)
    admin.execute(REMEMBER)
    before = contents(admin)
    migrations.upgrade(empty_url)
    assert differences(before, contents(admin)) == {}
    assert admin.execute("select count(*) from hydrator.memories").fetchone() == (1,)


def test_downgrade_of_an_empty_database_does_nothing(admin: psycopg.Connection, empty_url: str) -> None:
    before = contents(admin)
    migrations.downgrade(empty_url, "base")
    assert differences(before, contents(admin)) == {}


def test_extension_stays_where_others_use_it(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url)
    admin.execute("create table public.notes (embedding public.vector(3))")
    migrations.downgrade(empty_url, "base")
    assert has_extension(admin)
    assert admin.execute("select to_regnamespace('hydrator')").fetchone() == (None,)

    # By now it is the user's: another round does not take it away.
    migrations.upgrade(empty_url)
    admin.execute("drop table public.notes")
    migrations.downgrade(empty_url, "base")
    assert has_extension(admin)


def test_objects_of_the_user_keep_the_schema(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url)
    admin.execute("create table hydrator.mine as select 1 as number")
    migrations.downgrade(empty_url, "base")
    assert admin.execute("select number from hydrator.mine").fetchall() == [(1,)]
    assert tables(admin) == {"mine"}

    migrations.upgrade(empty_url)
    assert admin.execute("select hydrator.schema_version()").fetchone() == ("0001",)
    admin.execute("drop table hydrator.mine")
    migrations.downgrade(empty_url, "base")
    assert admin.execute("select to_regnamespace('hydrator')").fetchone() == (None,)


def test_view_of_the_user_on_memories_keeps_everything(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url, dimensions=4)
    admin.execute(REMEMBER)
    admin.execute("create view public.headings as select m.heading from hydrator.live_memories m")
    before = contents(admin)
    with pytest.raises(HydratorError, match="other objects depend on it"):
        migrations.downgrade(empty_url, "base")
    assert differences(before, contents(admin)) == {}
    assert admin.execute("select * from public.headings").fetchall() == [("a memory",)]
