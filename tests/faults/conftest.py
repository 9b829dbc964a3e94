from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from servers import Proxy, own_server, proxied
from targets import database

from hydrator import migrations
from hydrator.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def url(postgresql_proc: Any) -> Iterator[str]:
    with database(postgresql_proc, "hydrator_faults") as url:
        yield url


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    """Somebody else's connection to that database, in which there are no memories yet."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from hydrator.memories")
        yield connection


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """What stands between a store and the database, and cuts."""
    with proxied(url) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def victim() -> Iterator[EmbeddedServer]:
    """A server that may be killed, with the schema of 4 dimensions."""
    with own_server({"fsync": "on", "max_connections": "200"}) as server:
        migrations.upgrade(server.start(migrate=False), dimensions=4)
        yield server
