"""Where a store's statements run: thin executors over what the caller has, sync and async.

A source runs one statement (``run``), gives a transaction (``transaction``: all statements inside are
kept together, or none), gives up a statement that is late (``interrupt``), and closes what it opened
itself, nothing else. Each comes twice, as plain and as awaitable code, and holds no logic beyond that.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from typing import Any, Protocol

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from hydrator.addresses import resolve_url
from hydrator.errors import HydratorError

Rows = Sequence[Sequence[Any]]

# How long opening a connection may take, in seconds, where the address does not say.
_CONNECT_TIMEOUT = 10


class Source(Protocol):
    """Runs statements, plainly."""

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows: ...
    def transaction(self) -> AbstractContextManager[Source]: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class AsyncSource(Protocol):
    """Runs statements, awaitably."""

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows: ...
    def transaction(self) -> AbstractAsyncContextManager[AsyncSource]: ...
    def interrupt(self) -> None: ...
    async def close(self) -> None: ...


def _is_stale(connection: psycopg.Connection | psycopg.AsyncConnection) -> bool:
    """Tell whether an idle connection was closed by the other side; asks the socket, not the server."""
    if connection.closed:
        return True
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return False
    try:
        # A notice may wait there; behind the last words of a closed connection comes its end.
        while select.select([connection.fileno()], [], [], 0)[0]:
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return bool(connection.closed)


class _Given:
    """What the caller gave: the caller's to interrupt and to close."""

    def interrupt(self) -> None:
        """Leave a late statement to the caller's connection."""

    def close(self) -> None:
        """Leave what was given open."""


class _AsyncGiven:
    """What the caller gave: the caller's to interrupt and to close."""

    def interrupt(self) -> None:
        """Leave a late statement to the caller's connection."""

    async def close(self) -> None:
        """Leave what was given open."""


def _hang_up(connection: psycopg.Connection | psycopg.AsyncConnection) -> None:
    """Shut a connection's socket, so that whoever waits on it fails at once, in whatever thread."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


class ConnectionSource(_Given):
    """A psycopg connection of the caller's, and its transaction."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        # The caller's factories of rows and cursors are for the caller's own statements.
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            return cursor.execute(sql, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        with self._connection.transaction():
            yield self


class AsyncConnectionSource(_AsyncGiven):
    """An async psycopg connection of the caller's, and its transaction."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        # The caller's factories of rows and cursors are for the caller's own statements.
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            return await (await cursor.execute(sql, parameters)).fetchall()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        async with self._connection.transaction():
            yield self


class UrlSource:
    """A connection of our own, opened at first use and again after it was lost; threads take turns."""

    def __init__(self, address: Callable[[], str], options: Mapping[str, Any]) -> None:
        self._address = address
        self._options = options
        self._connection: psycopg.Connection | None = None
        self._opening = threading.Lock()

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._address(), autocommit=True, **self._options)

    def _connected(self) -> ConnectionSource:
        # Not for ever: threads would pile up behind a server that takes connections and says nothing.
        if not self._opening.acquire(timeout=_CONNECT_TIMEOUT):
            raise psycopg.OperationalError("another thread is still waiting for a connection")
        try:
            connection = self._connection
            if connection is None or self._is_lost(connection):
                self.close()
                self._connection = connection = self._connect()
            return ConnectionSource(connection)
        finally:
            self._opening.release()

    def _is_lost(self, connection: psycopg.Connection) -> bool:
        # While another thread's statement runs, what comes through the socket is for that thread.
        if not connection.lock.acquire(blocking=False):
            return False
        try:
            return _is_stale(connection)
        finally:
            connection.lock.release()

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return self._connected().run(sql, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        # On a connection of its own: what other threads run meanwhile is no part of it.
        with self._connect() as connection, connection.transaction():
            yield ConnectionSource(connection)

    def interrupt(self) -> None:
        if (connection := self._connection) is not None:
            self._connection = None
            _hang_up(connection)

    def close(self) -> None:
        if (connection := self._connection) is not None:
            self._connection = None
            connection.close()


class _Line:
    """An event loop's connection, and the lock of those who wait for it to be opened."""

    def __init__(self) -> None:
        self.connection: psycopg.AsyncConnection | None = None
        self.opening = asyncio.Lock()


class AsyncUrlSource:
    """Async connections of our own, one for each event loop, opened as :class:`UrlSource` does."""

    def __init__(self, address: Callable[[], str], options: Mapping[str, Any]) -> None:
        self._address = address
        self._options = options
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}

    def _line(self) -> _Line:
        for loop in list(self._lines):
            # What a closed loop opened cannot be awaited any more; its socket is closed without waiting.
            if loop.is_closed() and (line := self._lines.pop(loop, None)) and line.connection:
                line.connection.pgconn.finish()
        return self._lines.setdefault(asyncio.get_running_loop(), _Line())

    async def _connect(self) -> psycopg.AsyncConnection:
        address = await asyncio.to_thread(self._address)
        return await psycopg.AsyncConnection.connect(address, autocommit=True, **self._options)

    async def _connected(self) -> AsyncConnectionSource:
        line = self._line()
        async with line.opening:
            if line.connection is None or _is_stale(line.connection):
                if line.connection is not None:
                    await line.connection.close()
                line.connection = await self._connect()
            return AsyncConnectionSource(line.connection)

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await (await self._connected()).run(sql, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        # On a connection of its own: what other tasks run meanwhile is no part of it.
        async with await self._connect() as connection, connection.transaction():
            yield AsyncConnectionSource(connection)

    def interrupt(self) -> None:
        line = self._line()
        if line.connection is not None:
            _hang_up(line.connection)
            line.connection = None

    async def close(self) -> None:
        for line in list(self._lines.values()):
            if line.connection is not None:
                await line.connection.close()
                line.connection = None


class PoolSource(_Given):
    """A pool of the caller's: a connection for each statement, one for a whole transaction."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with self._pool.connection() as connection:
            return ConnectionSource(connection).run(sql, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        with self._pool.connection() as connection, connection.transaction():
            yield ConnectionSource(connection)


class AsyncPoolSource(_AsyncGiven):
    """An async pool of the caller's, used in the event loop that opened it."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self._loop: asyncio.AbstractEventLoop | None = None

    def _check_loop(self) -> None:
        running = asyncio.get_running_loop()
        # The pool's own tasks tell where it was opened; it would wait there for 30 seconds.
        tasks = [task for task in getattr(self._pool, "_workers", ()) if isinstance(task, asyncio.Task)]
        opened = tasks[0].get_loop() if tasks else self._loop
        if opened is not None and opened is not running:
            raise HydratorError(
                "the connection pool was opened in another event loop",
                hint="Open the pool in the loop that uses it, or give the store a URL",
            )
        self._loop = running

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        self._check_loop()
        async with self._pool.connection() as connection:
            return await AsyncConnectionSource(connection).run(sql, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        self._check_loop()
        async with self._pool.connection() as connection, connection.transaction():
            yield AsyncConnectionSource(connection)


class SqlalchemySource(_Given):
    """A SQLAlchemy Connection of the caller's and its transaction, or an Engine."""

    def __init__(self, bind: Any, *, engine: bool) -> None:
        self._bind = bind
        self._engine = engine

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if self._engine:
            with self._bind.begin() as connection:
                return SqlalchemySource(connection, engine=False).run(sql, parameters)
        rows: Rows = self._bind.exec_driver_sql(sql, dict(parameters)).fetchall()
        return rows

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        with self._bind.connect() if self._engine else nullcontext(self._bind) as connection:
            driver = connection.connection.driver_connection
            with _begin(connection, driver):
                yield SqlalchemySource(connection, engine=False)


class AsyncSqlalchemySource(_AsyncGiven):
    """A SQLAlchemy AsyncConnection of the caller's and its transaction, or an AsyncEngine."""

    def __init__(self, bind: Any, *, engine: bool) -> None:
        self._bind = bind
        self._engine = engine

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if self._engine:
            async with self._bind.begin() as connection:
                return await AsyncSqlalchemySource(connection, engine=False).run(sql, parameters)
        rows: Rows = (await self._bind.exec_driver_sql(sql, dict(parameters))).fetchall()
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        async with self._bind.connect() if self._engine else nullcontext(self._bind) as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            async with _begin(connection, driver):
                yield AsyncSqlalchemySource(connection, engine=False)


def _begin(connection: Any, driver: Any) -> Any:
    """Begin a transaction or a savepoint on SQLAlchemy's connection, plain or async.

    At its isolation level AUTOCOMMIT it would begin none in truth; there the driver does.
    """
    if driver.autocommit:
        return driver.transaction()
    return connection.begin_nested() if connection.in_transaction() else connection.begin()


def _options(prepare_threshold: int | None) -> dict[str, Any]:
    return {"prepare_threshold": prepare_threshold, "connect_timeout": _CONNECT_TIMEOUT}


def _sqlalchemy(target: Any, connection: str, engine: str) -> bool | None:
    """Tell whether a target is SQLAlchemy's engine (True) or connection (False) of these class names."""
    for cls in type(target).__mro__:
        if cls.__module__.startswith("sqlalchemy.") and cls.__name__ in (connection, engine):
            dialect = target.dialect
            if dialect.driver not in ("psycopg", "psycopg_async"):
                raise TypeError(
                    f"a store needs SQLAlchemy's psycopg dialect (postgresql+psycopg://), "
                    f"not {dialect.name}+{dialect.driver}"
                )
            return cls.__name__ == engine
    return None


def source(target: Any, prepare_threshold: int | None) -> Source:
    """Give the source for a URL or none, a connection, a pool or SQLAlchemy's."""
    if target is None or isinstance(target, str):
        return UrlSource(partial(resolve_url, target), _options(prepare_threshold))
    if isinstance(target, psycopg.Connection):
        return ConnectionSource(target)
    if isinstance(target, ConnectionPool):
        return PoolSource(target)
    engine = _sqlalchemy(target, "Connection", "Engine")
    if engine is not None:
        return SqlalchemySource(target, engine=engine)
    raise TypeError(
        "a store takes a URL, a psycopg Connection or ConnectionPool, or a SQLAlchemy Engine or Connection, "
        f"not {type(target).__name__}"
    )


def async_source(target: Any, prepare_threshold: int | None) -> AsyncSource:
    """Give the async source for a URL or none, an async connection or pool, or SQLAlchemy's async ones."""
    if target is None or isinstance(target, str):
        return AsyncUrlSource(partial(resolve_url, target), _options(prepare_threshold))
    if isinstance(target, psycopg.AsyncConnection):
        return AsyncConnectionSource(target)
    if isinstance(target, AsyncConnectionPool):
        return AsyncPoolSource(target)
    engine = _sqlalchemy(target, "AsyncConnection", "AsyncEngine")
    if engine is not None:
        return AsyncSqlalchemySource(target, engine=engine)
    raise TypeError(
        "an async store takes a URL, a psycopg AsyncConnection or AsyncConnectionPool, or a SQLAlchemy "
        f"AsyncEngine or AsyncConnection, not {type(target).__name__}"
    )
