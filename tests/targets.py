"""Each kind of target that a store takes, sync and async, for scenarios that are written once.

A scenario is a coroutine; :func:`done` and :func:`entered` take what a plain store gives as they take
what an async one gives.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from hydrator import AsyncMemoryStore, MemoryStore

# What the owner of a connection, a pool or an engine says where it goes through a pooler.
POOLED = bool(os.environ.get("HYDRATOR_TEST_POOLER"))
OPTIONS: dict[str, Any] = {"prepare_threshold": None} if POOLED else {}

# Nothing here takes as long; what hangs shall fail, not wait for ever.
PATIENCE = 20


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def entered(context: Any) -> AsyncIterator[Any]:
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


def run(scenario: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


@contextmanager
def database(server: Any, name: str) -> Iterator[str]:
    """Give the address of a database for all tests of a file; a clone for each would take most of the time."""
    parts = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    names = {"name": sql.Identifier(name), "template": sql.Identifier(server.template_dbname)}
    with psycopg.connect(**parts, autocommit=True) as admin:
        # One may be left of a run that was killed.
        admin.execute(sql.SQL("drop database if exists {name} with (force)").format(**names))
        admin.execute(sql.SQL("create database {name} template {template}").format(**names))
        yield make_conninfo(**parts, dbname=name)
        admin.execute(sql.SQL("drop database {name} with (force)").format(**names))


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def sqlalchemy_url(url: str) -> sqlalchemy.URL:
    parts = conninfo_to_dict(url)
    return sqlalchemy.URL.create(
        "postgresql+psycopg",
        username=parts["user"],
        password=parts.get("password"),
        host=parts["host"],
        port=int(parts["port"]),
        database=parts["dbname"],
    )


def async_engine(url: str, **options: Any) -> Any:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs it")
    return create_async_engine(sqlalchemy_url(url), connect_args=OPTIONS, **options)


def session(store: Any, commit: Any, rollback: Any, usable: Any) -> SimpleNamespace:
    """A store and, where the target is a connection, how its owner ends the transaction."""
    return SimpleNamespace(store=store, commit=commit, rollback=rollback, usable=usable)


@asynccontextmanager
async def over_url(url: str) -> AsyncIterator[SimpleNamespace]:
    with MemoryStore(url) as store:
        yield session(store, None, None, None)


@asynccontextmanager
async def over_connection(url: str) -> AsyncIterator[SimpleNamespace]:
    with psycopg.connect(url, **OPTIONS) as own:
        yield session(MemoryStore(own), own.commit, own.rollback, lambda: own.execute("select 1"))


@asynccontextmanager
async def over_pool(url: str) -> AsyncIterator[SimpleNamespace]:
    with ConnectionPool(url, min_size=1, max_size=3, open=True, kwargs=OPTIONS) as own:
        own.wait()  # lest a call that comes first has another connection made
        yield session(MemoryStore(own), None, None, own.check)


@asynccontextmanager
async def over_engine(url: str) -> AsyncIterator[SimpleNamespace]:
    own = sqlalchemy.create_engine(sqlalchemy_url(url), connect_args=OPTIONS)
    try:
        yield session(MemoryStore(own), None, None, lambda: own.connect().close())
    finally:
        own.dispose()


@asynccontextmanager
async def over_sqlalchemy_connection(url: str) -> AsyncIterator[SimpleNamespace]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url), connect_args=OPTIONS)
    try:
        with engine.connect() as own:
            select = sqlalchemy.text("select 1")
            yield session(MemoryStore(own), own.commit, own.rollback, lambda: own.execute(select))
    finally:
        engine.dispose()


@asynccontextmanager
async def over_async_url(url: str) -> AsyncIterator[SimpleNamespace]:
    async with AsyncMemoryStore(url) as store:
        yield session(store, None, None, None)


@asynccontextmanager
async def over_async_connection(url: str) -> AsyncIterator[SimpleNamespace]:
    async with await psycopg.AsyncConnection.connect(url, **OPTIONS) as own:
        yield session(AsyncMemoryStore(own), own.commit, own.rollback, lambda: own.execute("select 1"))


@asynccontextmanager
async def over_async_pool(url: str) -> AsyncIterator[SimpleNamespace]:
    async with AsyncConnectionPool(url, min_size=1, max_size=3, open=False, kwargs=OPTIONS) as own:
        await own.wait()
        yield session(AsyncMemoryStore(own), None, None, own.check)


@asynccontextmanager
async def over_async_engine(url: str) -> AsyncIterator[SimpleNamespace]:
    own = async_engine(url)

    async def usable() -> None:
        async with own.connect():
            pass

    try:
        yield session(AsyncMemoryStore(own), None, None, usable)
    finally:
        await own.dispose()


@asynccontextmanager
async def over_async_sqlalchemy_connection(url: str) -> AsyncIterator[SimpleNamespace]:
    engine = async_engine(url)
    try:
        async with engine.connect() as own:
            select = sqlalchemy.text("select 1")
            yield session(AsyncMemoryStore(own), own.commit, own.rollback, lambda: own.execute(select))
    finally:
        await engine.dispose()


Kind = Callable[[str], AbstractAsyncContextManager[SimpleNamespace]]

CONNECTIONS: list[Kind] = [
    over_connection,
    over_sqlalchemy_connection,
    over_async_connection,
    over_async_sqlalchemy_connection,
]
OTHERS: list[Kind] = [
    over_url,
    over_pool,
    over_engine,
    over_async_url,
    over_async_pool,
    over_async_engine,
]

every_kind = pytest.mark.parametrize("kind", OTHERS + CONNECTIONS, ids=lambda kind: kind.__name__)
each_connection = pytest.mark.parametrize("kind", CONNECTIONS, ids=lambda kind: kind.__name__)
all_others = pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
