"""The alembic command in a checkout: online, and as scripts for psql."""

from __future__ import annotations

import os

import psycopg
import pytest
from catalog import contents, differences
from psycopg.conninfo import make_conninfo

from hydrator import migrations


def test_upgrade_current_downgrade(admin: psycopg.Connection, empty_url: str, alembic) -> None:
    before = contents(admin)

    read_only = make_conninfo(empty_url, options="-c default_transaction_read_only=on")
    current = alembic("-x", f"url={read_only}", "current")
    assert (current.returncode, current.stdout) == (0, ""), current.stderr
    assert differences(before, contents(admin)) == {}

    upgrade = alembic("-x", f"url={empty_url}", "-x", "dimensions=8", "-x", "distance=l2", "upgrade", "head")
    assert upgrade.returncode == 0, upgrade.stderr
    assert admin.execute("select * from hydrator.installation()").fetchall() == [
        (8, "vector", "l2", "public", "english")
    ]

    current = alembic("current", env={**os.environ, "HYDRATOR_DATABASE_URL": empty_url})
    assert (current.returncode, current.stdout) == (0, "0001 (head)\n"), current.stderr

    downgrade = alembic("-x", f"url={empty_url}", "downgrade", "base")
    assert downgrade.returncode == 0, downgrade.stderr
    assert differences(before, contents(admin)) == {}


@pytest.fixture(scope="module")
def upgrade_script(alembic) -> str:
    made = alembic("-x", "dimensions=8", "-x", "distance=l2", "upgrade", "head", "--sql")
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_scripts_for_psql(
    admin: psycopg.Connection, empty_url: str, make_database, alembic, psql, upgrade_script: str
) -> None:
    before = contents(admin)
    run = psql(empty_url, upgrade_script)
    assert (run.returncode, run.stderr) == (0, "")

    online = make_database()
    migrations.upgrade(online, dimensions=8, distance="l2")
    with psycopg.connect(online) as connection:
        assert differences(contents(connection), contents(admin)) == {}

    made = alembic("downgrade", "head:base", "--sql")
    assert made.returncode == 0, made.stderr
    run = psql(empty_url, made.stdout)
    assert run.returncode == 0, run.stderr
    assert differences(before, contents(admin)) == {}


def test_script_tells_an_ordinary_role_what_is_missing(
    admin: psycopg.Connection, owner, psql, upgrade_script: str
) -> None:
    before = contents(admin)
    run = psql(owner.url, upgrade_script)
    assert run.returncode != 0
    assert "create extension vector with schema public;" in run.stderr
    assert differences(before, contents(admin)) == {}


def test_script_says_how_it_is_encoded(
    admin: psycopg.Connection, empty_url: str, psql, upgrade_script: str
) -> None:
    run = psql(empty_url, upgrade_script, env={**os.environ, "PGCLIENTENCODING": "LATIN1"})
    assert run.returncode == 0, run.stderr
    body = admin.execute("select prosrc from pg_proc where proname = 'search_memories'").fetchone()[0]
    assert "|| '…'" in body
