"""A migration is whole or not there, in its own transaction or in the caller's."""

from __future__ import annotations

import psycopg
import pytest
from catalog import contents, differences

from hydrator import migrations
from hydrator.errors import HydratorError, InstallationError


def test_rollback_of_the_caller_undoes_it(admin: psycopg.Connection, empty_url: str) -> None:
    before = contents(admin)
    with migrations.engine(empty_url).connect() as connection, connection.begin() as transaction:
        migrations.upgrade(connection, dimensions=8)
        assert connection.exec_driver_sql("select hydrator.schema_version()").scalar_one() == "0001"
        transaction.rollback()
    assert differences(before, contents(admin)) == {}


def test_commit_of_the_caller_installs(admin: psycopg.Connection, empty_url: str) -> None:
    with migrations.engine(empty_url).connect() as connection:
        migrations.upgrade(connection, dimensions=8)
        # It is the caller's to commit: nobody else sees it yet.
        assert admin.execute("select to_regnamespace('hydrator')").fetchone() == (None,)
        connection.commit()
    assert admin.execute("select dimensions from hydrator.installation()").fetchall() == [(8,)]

    with migrations.engine(empty_url).begin() as connection:
        migrations.downgrade(connection, "base")
    assert admin.execute("select to_regnamespace('hydrator')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        ("create schema hydrator; create table hydrator.memories ()", 'relation "memories" already exists'),
        ("create schema hydrator; create table hydrator.installed ()", "dimensions"),
        (
            "create function refuse() returns event_trigger language plpgsql as"
            " $$ begin raise exception 'no views here'; end $$;"
            " create event trigger refuse on ddl_command_end when tag in ('CREATE VIEW')"
            " execute function refuse()",
            "no views here",
        ),
    ],
    ids=["a table of the same name", "another installed", "an event trigger"],
)
def test_failed_upgrade_leaves_nothing(
    admin: psycopg.Connection, empty_url: str, obstacle: str, message: str
) -> None:
    admin.execute(obstacle)
    before = contents(admin)
    with pytest.raises(HydratorError, match=message):
        migrations.upgrade(empty_url)
    assert differences(before, contents(admin)) == {}


def test_unknown_revision(admin: psycopg.Connection, empty_url: str) -> None:
    before = contents(admin)
    with pytest.raises(InstallationError, match="9999"):
        migrations.upgrade(empty_url, "9999")
    assert differences(before, contents(admin)) == {}


def test_schema_from_a_later_release(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url)
    admin.execute("update hydrator.alembic_version set version_num = '9999'")
    before = contents(admin)
    with pytest.raises(InstallationError, match="9999"):
        migrations.upgrade(empty_url)
    assert differences(before, contents(admin)) == {}


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_other_encoding_is_refused(make_database, encoding: str) -> None:
    url = make_database(f"encoding '{encoding}' locale 'C'")
    with pytest.raises(InstallationError, match=f"UTF8, this one is {encoding}"):
        migrations.upgrade(url)
    with psycopg.connect(url, client_encoding="utf8") as connection:
        assert connection.execute("select to_regnamespace('hydrator') is null").fetchone() == (True,)


def test_client_of_another_encoding(
    admin: psycopg.Connection, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    migrations.upgrade(empty_url)
    assert admin.execute("select hydrator.schema_version()").fetchone() == ("0001",)
