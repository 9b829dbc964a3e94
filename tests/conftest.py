"""One server for the run, one migrated template database, one clone of it for each test.

The server is the embedded one, in a folder of its own that is removed at the end. To run the
tests on another server, name it: ``HYDRATOR_TEST_URL=postgresql://user:password@host:port``. With
``HYDRATOR_TEST_POOLER=1`` what the tests call goes through PgBouncer in transaction mode; what they
make databases with, and look at them with (``db``), does not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_postgresql import factories
from servers import in_memory, pooled

from hydrator import MemoryStore, WordLlamaEmbedder, migrations

DIMENSIONS = 4

# The URL of this run's server, without a database; set before any test is collected.
_server: dict[str, Any] = {}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", 0) and not hasattr(config, "workerinput"):
        return  # the workers run the tests, each beside a server of its own
    url = os.environ.get("HYDRATOR_TEST_URL")
    if url is None:
        from hydrator.embedded import EmbeddedServer

        folder = Path(tempfile.mkdtemp(prefix="hydrator-tests-", dir=in_memory()))
        folder.chmod(0o755)
        server = EmbeddedServer(folder, settings={"fsync": "off", "max_connections": "200"})
        url = server.start()
        _server.update(server=server, folder=folder)
    parts = conninfo_to_dict(url)
    _server["url"] = url
    config.option.postgresql_host = parts.get("host", "127.0.0.1")
    config.option.postgresql_port = parts.get("port", 5432)
    config.option.postgresql_user = parts.get("user", "postgres")
    config.option.postgresql_password = parts.get("password")
    if os.environ.get("HYDRATOR_TEST_POOLER"):
        pooler = pooled(url)
        _server.update(pooler=pooler, pooled=conninfo_to_dict(pooler.__enter__()))
    # A console keeps the width that it finds first, and xdist tells its workers of its own.
    os.environ.pop("COLUMNS", None)
    # No test of a user's command may reach a database or a server of the person who runs it.
    os.environ.pop("HYDRATOR_DATABASE_URL", None)


def pytest_unconfigure(config: pytest.Config) -> None:
    if "pooler" in _server:
        _server["pooler"].__exit__(None, None, None)
    if "server" in _server:
        _server["server"].stop()
        shutil.rmtree(_server["folder"], ignore_errors=True)


def database_url(host: str, port: int | str, user: str, password: str | None, dbname: str) -> str:
    return psycopg.conninfo.make_conninfo(host=host, port=port, user=user, password=password, dbname=dbname)


def load_schema(*, host: str, port: int, user: str, password: str, dbname: str, **_: Any) -> None:
    migrations.upgrade(database_url(host, port, user, password, dbname), dimensions=DIMENSIONS)


postgresql_proc = factories.postgresql_noproc(dbname="hydrator_test", load=[load_schema])
postgresql = factories.postgresql("postgresql_proc")


def load_text_schema(*, host: str, port: int, user: str, password: str, dbname: str, **_: Any) -> None:
    migrations.upgrade(
        database_url(host, port, user, password, dbname), dimensions=WordLlamaEmbedder.dimensions
    )


text_proc = factories.postgresql_noproc(dbname="hydrator_text", load=[load_text_schema])
text_db = factories.postgresql("text_proc")

empty_proc = factories.postgresql_noproc(dbname="hydrator_empty", load=[])
empty = factories.postgresql("empty_proc")


def url_of(connection: psycopg.Connection) -> str:
    """Give the address of the database that a fixture's connection is in."""
    info = connection.info
    return database_url(info.host, info.port, info.user, info.password or None, info.dbname)


def through_pooler(url: str) -> str:
    """Give the address by which what is tested calls a database: through the pooler, if there is to be one."""
    pooler = _server.get("pooled")
    return make_conninfo(url, host=pooler["host"], port=pooler["port"]) if pooler else url


@pytest.fixture(scope="session")
def called() -> Callable[[str], str]:
    return through_pooler


@pytest.fixture
def db(postgresql: psycopg.Connection) -> psycopg.Connection:
    """A connection (autocommit) to a fresh database with the schema, 4 dimensions, cosine."""
    postgresql.autocommit = True
    return postgresql


@pytest.fixture
def url(db: psycopg.Connection) -> str:
    """The address of the database behind ``db``."""
    return through_pooler(url_of(db))


@pytest.fixture
def empty_url(empty: psycopg.Connection) -> str:
    """The address of a fresh database with nothing in it, not even the extension."""
    empty.autocommit = True
    return url_of(empty)


@pytest.fixture
def text_url(text_db: psycopg.Connection) -> str:
    """The address of a fresh database for the embedded default embedder's 256 dimensions."""
    text_db.autocommit = True
    return through_pooler(url_of(text_db))


@pytest.fixture
def store(text_url: str) -> Iterator[MemoryStore]:
    """A store in a fresh database of 256 dimensions."""
    with MemoryStore(text_url) as store:
        yield store


@pytest.fixture(scope="session")
def embedder() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()
