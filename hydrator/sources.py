"""Where a store's statements run: thin executors over what the caller has, sync and async.

A source runs one statement (``run``), gives a transaction (``transaction``: all statements inside are
kept together, or none), tells whether a statement is a transaction of its own (``alone``), gives up a
statement that is late (``interrupt``), and closes what it opened itself, nothing else. Each comes twice,
as plain and as awaitable code, and holds no logic beyond that.

Only here it is known what a failure left behind, so a connection that is lost is told here: in mid-statement
(ConnectionLost) or at a commit, whose outcome nobody knows then (OutcomeUnknown).
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
from hydrator.errors import ConnectionLost, HydratorError, OutcomeUnknown, StoreUnavailable
from hydrator.vectors import teach

Rows = Sequence[Sequence[Any]]

# How long opening a connection may take, in seconds, where the address does not say.
_CONNECT_TIMEOUT = 10


class Source(Protocol):
    """Runs statements, plainly."""

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows: ...
    def alone(self) -> bool: ...
    def transaction(self) -> AbstractContextManager[Source]: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class AsyncSource(Protocol):
    """Runs statements, awaitably."""

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows: ...
    async def alone(self) -> bool: ...
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


def _is_alone(connection: Any) -> bool:
    """Tell whether a driver's connection would commit a statement that is run now."""
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    return bool(connection.autocommit and idle)


@contextmanager
def _noticing_loss(own: ConnectionSource | AsyncConnectionSource) -> Iterator[None]:
    """Tell of a connection that is not there any more after the statement inside failed."""
    try:
        yield
    except psycopg.Error as error:
        if own.given_up:
            raise StoreUnavailable("the call was given up") from error
        # An address of several servers leads to the primary again, after they changed places.
        own.refused |= isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        if own.connection.closed:
            raise ConnectionLost(_said(error)) from error
        raise


class _Commit:
    """Whether a transaction has come so far that only its commit is left."""

    reached = False


@contextmanager
def _committing(connection: Any) -> Iterator[_Commit]:
    """Tell of a connection that was lost at the beginning or the end of the transaction inside."""
    commit = _Commit()
    outermost = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    try:
        yield commit
    except Exception as error:
        if commit.reached and connection.closed:
            raise (OutcomeUnknown if outermost else ConnectionLost)(_said(error)) from error
        # A pooler tells of it twice, of which the driver makes an error that says nothing of a connection.
        if isinstance(error, psycopg.Error) and connection.closed:
            raise ConnectionLost(_said(error)) from error
        raise


def _said(error: Exception) -> str:
    """Give a driver's message, SQLAlchemy's or not, as one line."""
    return " ".join(str(getattr(error, "orig", error)).split())


# "cached plan must not change result type": what was prepared is out of date. At this statement, and
# at the end of a transaction that failed, psycopg forgets it all.
_STALE_PLAN = psycopg.errors.FeatureNotSupported
_FORGET_PLANS = "deallocate all"


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

    given_up = refused = False

    def __init__(self, connection: psycopg.Connection) -> None:
        teach(connection)
        self.connection = connection

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return self.run_alone(sql, parameters) if self.alone() else self._run(sql, parameters)

    def _run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        # The caller's factories of rows and cursors are for the caller's own statements.
        with _noticing_loss(self), psycopg.Cursor(self.connection, row_factory=tuple_row) as cursor:
            return cursor.execute(sql, parameters).fetchall()

    def run_alone(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run a statement that is the whole transaction, so that an outdated plan is made again."""
        try:
            return self._run(sql, parameters)
        except _STALE_PLAN:
            self.connection.execute(_FORGET_PLANS if self.connection.autocommit else "rollback")
            return self._run(sql, parameters)

    def alone(self) -> bool:
        return _is_alone(self.connection)

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        with _committing(self.connection) as commit, self.connection.transaction():
            yield self
            commit.reached = True


class AsyncConnectionSource(_AsyncGiven):
    """An async psycopg connection of the caller's, and its transaction."""

    given_up = refused = False

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        teach(connection)
        self.connection = connection

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        alone = await self.alone()
        return await (self.run_alone(sql, parameters) if alone else self._run(sql, parameters))

    async def _run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        # The caller's factories of rows and cursors are for the caller's own statements.
        with _noticing_loss(self):
            async with psycopg.AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
                return await (await cursor.execute(sql, parameters)).fetchall()

    async def run_alone(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run a statement that is the whole transaction, so that an outdated plan is made again."""
        try:
            return await self._run(sql, parameters)
        except _STALE_PLAN:
            await self.connection.execute(_FORGET_PLANS if self.connection.autocommit else "rollback")
            return await self._run(sql, parameters)

    async def alone(self) -> bool:
        return _is_alone(self.connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        with _committing(self.connection) as commit:
            async with self.connection.transaction():
                yield self
                commit.reached = True


# Of a pooler in transaction mode each statement may have another session, and prepared statements
# belong to sessions: the name that this client prepared may be another client's there. A pooler
# makes up the process id that it tells its clients, so that it shows.
_BACKEND = "select pg_backend_pid()"


def _set_up(connection: psycopg.Connection | psycopg.AsyncConnection, backend: Any) -> None:
    """Prepare no statements through a pooler."""
    if backend != (connection.info.backend_pid,):
        connection.prepare_threshold = None


class UrlSource:
    """A connection of our own, opened at first use and again after it was lost; threads take turns."""

    def __init__(self, address: Callable[[], str], options: Mapping[str, Any]) -> None:
        self._address = address
        self._options = options
        self._own: ConnectionSource | None = None
        self._opening = threading.Lock()

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(self._address(), autocommit=True, **self._options)
        try:
            if connection.prepare_threshold is not None:
                _set_up(connection, connection.execute(_BACKEND).fetchone())
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self) -> ConnectionSource:
        # Not for ever: threads would pile up behind a server that takes connections and says nothing.
        if not self._opening.acquire(timeout=_CONNECT_TIMEOUT):
            raise psycopg.OperationalError("another thread is still waiting for a connection")
        try:
            own = self._own
            if own is None or self._is_lost(own):
                self.close()
                self._own = own = ConnectionSource(self._connect())
            return own
        finally:
            self._opening.release()

    def _is_lost(self, own: ConnectionSource) -> bool:
        if own.connection.closed:
            return True
        # While another thread's statement runs, what comes through the socket is for that thread.
        if not own.connection.lock.acquire(blocking=False):
            return False
        try:
            return own.refused or _is_stale(own.connection)
        finally:
            own.connection.lock.release()

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return self._connected().run_alone(sql, parameters)

    def alone(self) -> bool:
        return True

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        # On a connection of its own: what other threads run meanwhile is no part of it.
        with self._connect() as connection, ConnectionSource(connection).transaction() as inside:
            yield inside

    def interrupt(self) -> None:
        if (own := self._own) is not None:
            self._own = None
            own.given_up = True
            _hang_up(own.connection)

    def close(self) -> None:
        if (own := self._own) is not None:
            self._own = None
            own.connection.close()


class _Line:
    """An event loop's connection, and the lock of those who wait for it to be opened."""

    def __init__(self) -> None:
        self.own: AsyncConnectionSource | None = None
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
            if loop.is_closed() and (line := self._lines.pop(loop, None)) and line.own:
                line.own.connection.pgconn.finish()
        return self._lines.setdefault(asyncio.get_running_loop(), _Line())

    async def _connect(self) -> psycopg.AsyncConnection:
        address = await asyncio.to_thread(self._address)
        connection = await psycopg.AsyncConnection.connect(address, autocommit=True, **self._options)
        try:
            if connection.prepare_threshold is not None:
                _set_up(connection, await (await connection.execute(_BACKEND)).fetchone())
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connected(self) -> AsyncConnectionSource:
        line = self._line()
        async with line.opening:
            if line.own is None or line.own.refused or _is_stale(line.own.connection):
                if line.own is not None:
                    await line.own.connection.close()
                line.own = AsyncConnectionSource(await self._connect())
            return line.own

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await (await self._connected()).run_alone(sql, parameters)

    async def alone(self) -> bool:
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        # On a connection of its own: what other tasks run meanwhile is no part of it.
        async with (
            await self._connect() as connection,
            AsyncConnectionSource(connection).transaction() as inside,
        ):
            yield inside

    def interrupt(self) -> None:
        line = self._line()
        if line.own is not None:
            line.own.given_up = True
            _hang_up(line.own.connection)
            line.own = None

    async def close(self) -> None:
        for line in list(self._lines.values()):
            if line.own is not None:
                await line.own.connection.close()
                line.own = None


class PoolSource(_Given):
    """A pool of the caller's: a connection for each statement, one for a whole transaction."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool

    @contextmanager
    def _connected(self) -> Iterator[ConnectionSource]:
        while True:
            # What was closed by the other side meanwhile, the pool replaces when it comes back.
            with self._pool.connection() as connection:
                if not _is_stale(connection):
                    with _committing(connection) as commit:
                        yield ConnectionSource(connection)
                        commit.reached = True
                        connection.commit()
                    return

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with self._connected() as own:
            return own.run_alone(sql, parameters)

    def alone(self) -> bool:
        return True

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        with self._connected() as own, own.transaction() as inside:
            yield inside


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

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnectionSource]:
        self._check_loop()
        while True:
            async with self._pool.connection() as connection:
                if not _is_stale(connection):
                    with _committing(connection) as commit:
                        yield AsyncConnectionSource(connection)
                        commit.reached = True
                        await connection.commit()
                    return

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        async with self._connected() as own:
            return await own.run_alone(sql, parameters)

    async def alone(self) -> bool:
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        async with self._connected() as own, own.transaction() as inside:
            yield inside


class SqlalchemySource(_Given):
    """A SQLAlchemy Connection of the caller's and its transaction, or an Engine."""

    def __init__(self, bind: Any, *, engine: bool) -> None:
        self._bind = bind
        self._engine = engine

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._bind.connect() if self._engine else nullcontext(self._bind) as connection:
            while self._engine and _is_stale(connection.connection.driver_connection):
                connection.invalidate()
            yield connection

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if not self._engine:
            teach(self._bind.connection.driver_connection)
            rows: Rows = self._bind.exec_driver_sql(sql, dict(parameters)).fetchall()
            return rows
        with self._connected() as connection:
            own = SqlalchemySource(connection, engine=False)
            try:
                with connection.begin():
                    return own.run(sql, parameters)
            except Exception as error:
                if not isinstance(getattr(error, "orig", None), _STALE_PLAN):
                    raise
            with connection.begin():
                connection.exec_driver_sql(_FORGET_PLANS)
                return own.run(sql, parameters)

    def alone(self) -> bool:
        return self._engine or _is_alone(self._bind.connection.driver_connection)

    @contextmanager
    def transaction(self) -> Iterator[Source]:
        with self._connected() as connection:
            driver = connection.connection.driver_connection
            with _committing(driver) as commit, _begin(connection, driver):
                yield SqlalchemySource(connection, engine=False)
                commit.reached = True


class AsyncSqlalchemySource(_AsyncGiven):
    """A SQLAlchemy AsyncConnection of the caller's and its transaction, or an AsyncEngine."""

    def __init__(self, bind: Any, *, engine: bool) -> None:
        self._bind = bind
        self._engine = engine

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        async with self._bind.connect() if self._engine else nullcontext(self._bind) as connection:
            while self._engine and _is_stale((await connection.get_raw_connection()).driver_connection):
                await connection.invalidate()
            yield connection

    async def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if not self._engine:
            teach((await self._bind.get_raw_connection()).driver_connection)
            rows: Rows = (await self._bind.exec_driver_sql(sql, dict(parameters))).fetchall()
            return rows
        async with self._connected() as connection:
            own = AsyncSqlalchemySource(connection, engine=False)
            try:
                async with connection.begin():
                    return await own.run(sql, parameters)
            except Exception as error:
                if not isinstance(getattr(error, "orig", None), _STALE_PLAN):
                    raise
            async with connection.begin():
                await connection.exec_driver_sql(_FORGET_PLANS)
                return await own.run(sql, parameters)

    async def alone(self) -> bool:
        return self._engine or _is_alone((await self._bind.get_raw_connection()).driver_connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSource]:
        async with self._connected() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            with _committing(driver) as commit:
                async with _begin(connection, driver):
                    yield AsyncSqlalchemySource(connection, engine=False)
                    commit.reached = True


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
