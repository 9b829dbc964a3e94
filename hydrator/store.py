"""Stores of memories, sync and async: a method for each SQL call, over what the caller has.

Both are made from the builders of :mod:`hydrator.calls`: a method builds a call, runs it on the
store's source and parses the rows. Every decision is the database's.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from hydrator import calls
from hydrator.addresses import resolve_read_url
from hydrator.calls import Call
from hydrator.errors import (
    ConnectionLost,
    HydratorError,
    OutcomeUnknown,
    SchemaChanged,
    TransactionConflict,
    translated,
)
from hydrator.sources import AsyncSource, Source, async_source, source

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool
    import sqlalchemy.ext.asyncio

P = ParamSpec("P")
T = TypeVar("T")

# psycopg's own default: a statement is prepared when it is run for the sixth time.
_PREPARE_THRESHOLD = 5


# How often a call is made at the most that conflicts with others, and the longest first pause.
_TRIALS, _PAUSE = 5, 0.02


class _Trials:
    """Decides which failed calls are made again: those that wrote nothing and are a whole transaction.

    In a transaction of the caller's the rest of it would have to be run again too, which is the
    caller's to do; and a write that was perhaps committed would perhaps be made twice.
    """

    def __init__(self, call: Call[Any], alone: bool) -> None:
        self._read_only = call.read_only
        self._alone = alone
        self._made = self._lost = 0

    def pause(self, error: HydratorError) -> float:
        """Give the seconds until the next trial, or raise what the error is to the caller."""
        self._made += 1
        if isinstance(error, ConnectionLost | OutcomeUnknown) and self._alone:
            if not self._read_only:
                raise OutcomeUnknown(
                    error.message, hint="Look whether it is there before it is written again"
                ) from error
            self._lost += 1
            if self._lost == 1:
                return 0.0
            raise ConnectionLost(error.message) from error
        if not self._alone or self._made == _TRIALS:
            raise error
        if not isinstance(error, TransactionConflict | SchemaChanged):
            raise error
        # By chance, so that those who met do not meet again.
        return random.uniform(0, _PAUSE * 2**self._made)


def _describe(method: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Give a method the name, the help and the signature of the builder it wraps."""
    update_wrapper(method, build)
    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [own, *signature.parameters.values()]
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


def _executed(build: Callable[P, Call[T]]) -> Callable[Concatenate[MemoryStore, P], T]:
    """Make a method that builds a call and executes it."""

    def method(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.execute(build(*args, **kwargs))

    _describe(method, build)
    return method


def _awaited(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncMemoryStore, P], Coroutine[Any, Any, T]]:
    """Make a coroutine method that builds a call and executes it."""

    async def method(self: AsyncMemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.execute(build(*args, **kwargs))

    _describe(method, build)
    return method


class MemoryStore:
    """Memories in Postgres, through the SQL calls.

    Parameters
    ----------
    target
        A database URL; a psycopg ``Connection`` or ``ConnectionPool``; a SQLAlchemy ``Engine`` or
        ``Connection`` (of the psycopg dialect); or nothing: ``HYDRATOR_DATABASE_URL``, else the
        embedded server. Of a connection that is given, the calls take part in its transaction. The
        store closes only what it opened.
    prepare_threshold
        For a URL: how often a statement is run before it is prepared; None for never. Through a pooler
        that gives each transaction another session (PgBouncer) nothing is prepared in any case; of a
        connection, a pool or an engine that is given, its maker says so.
    read_url
        For a URL: a hot standby's, where calls that only read are made, but for those in a transaction;
        without one, ``HYDRATOR_READ_URL`` for the database of ``HYDRATOR_DATABASE_URL``. What was just
        written may not be there yet.

    Raises
    ------
    StoreUnavailable
        By every call: the database cannot be reached. The next call tries again. A call that is a
        transaction of its own is made again by the store where it is sure that nothing was written: a
        few times after a conflict, once after a reading call's connection was lost.
    OutcomeUnknown
        By a call that writes, and at the end of a transaction: the connection was lost meanwhile, and
        what was written may be there or not.

    Examples
    --------
    >>> with MemoryStore() as store:  # doctest: +SKIP
    ...     store.remember("acme", "Deploys run on Mondays", embedding=vector)
    ...     store.hydrate_session(query_vector, ["acme"]).relevant
    """

    def __init__(
        self,
        target: str
        | psycopg.Connection[Any]
        | psycopg_pool.ConnectionPool[Any]
        | sqlalchemy.Engine
        | sqlalchemy.Connection
        | None = None,
        *,
        prepare_threshold: int | None = _PREPARE_THRESHOLD,
        read_url: str | None = None,
    ) -> None:
        self._source: Source = source(target, prepare_threshold)
        read_url = resolve_read_url(target, read_url)
        self._reading = self._source if read_url is None else source(read_url, prepare_threshold)

    @classmethod
    def _over(cls, own: Source) -> Self:
        store = cls.__new__(cls)
        store._source = store._reading = own
        return store

    def execute(self, call: Call[T]) -> T:
        """Run a call of :mod:`hydrator.calls` and give its result."""
        own = self._reading if call.read_only else self._source
        trials = None
        while True:
            try:
                with translated():
                    trials = trials or _Trials(call, own.alone())
                    rows = own.run(call.sql, call.parameters)
            except HydratorError as error:
                if trials is None:
                    raise
                time.sleep(trials.pause(error))
            else:
                return call.parse(rows)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Give a store whose calls are kept together, or none; inside another, a savepoint."""
        with translated(), self._source.transaction() as inside:
            yield self._over(inside)

    def interrupt(self) -> None:
        """Give up a call that is late, from another thread; the next call opens a connection of its own.

        A connection or a pool that was given is left as it is.
        """
        for own in {self._source, self._reading}:
            own.interrupt()

    def close(self) -> None:
        """Close what the store opened; a later call opens it again."""
        for own in {self._source, self._reading}:
            own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    compact_index = _executed(calls.compact_index)
    fetch_top_k_relevant = _executed(calls.fetch_top_k_relevant)
    hydrate_session = _executed(calls.hydrate_session)
    search_memories = _executed(calls.search_memories)
    fetch_memories = _executed(calls.fetch_memories)
    remember = _executed(calls.remember)
    forget = _executed(calls.forget)
    quarantine = _executed(calls.quarantine)
    release = _executed(calls.release)
    list_quarantined = _executed(calls.list_quarantined)
    near_duplicates = _executed(calls.near_duplicates)
    act_for = _executed(calls.act_for)
    purge = _executed(calls.purge)
    count_live = _executed(calls.count_live)
    estimate_tokens = _executed(calls.estimate_tokens)
    schema_version = _executed(calls.schema_version)
    installation = _executed(calls.installation)


class AsyncMemoryStore:
    """Memories in Postgres, through the SQL calls, awaitably; see :class:`MemoryStore`.

    Parameters
    ----------
    target
        A database URL; a psycopg ``AsyncConnection`` or ``AsyncConnectionPool``; a SQLAlchemy
        ``AsyncEngine`` or ``AsyncConnection`` (of the psycopg dialect); or nothing:
        ``HYDRATOR_DATABASE_URL``, else the embedded server. With a URL, each event loop that uses the
        store gets a connection of its own; a pool is used in the loop that opened it, and raises
        ``HydratorError`` at once in another.
    prepare_threshold, read_url
        As of :class:`MemoryStore`.
    """

    def __init__(
        self,
        target: str
        | psycopg.AsyncConnection[Any]
        | psycopg_pool.AsyncConnectionPool[Any]
        | sqlalchemy.ext.asyncio.AsyncEngine
        | sqlalchemy.ext.asyncio.AsyncConnection
        | None = None,
        *,
        prepare_threshold: int | None = _PREPARE_THRESHOLD,
        read_url: str | None = None,
    ) -> None:
        self._source: AsyncSource = async_source(target, prepare_threshold)
        read_url = resolve_read_url(target, read_url)
        self._reading = self._source if read_url is None else async_source(read_url, prepare_threshold)

    @classmethod
    def _over(cls, own: AsyncSource) -> Self:
        store = cls.__new__(cls)
        store._source = store._reading = own
        return store

    async def execute(self, call: Call[T]) -> T:
        """Run a call of :mod:`hydrator.calls` and give its result."""
        own = self._reading if call.read_only else self._source
        trials = None
        while True:
            try:
                with translated():
                    trials = trials or _Trials(call, await own.alone())
                    rows = await own.run(call.sql, call.parameters)
            except HydratorError as error:
                if trials is None:
                    raise
                await asyncio.sleep(trials.pause(error))
            else:
                return call.parse(rows)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Give a store whose calls are kept together, or none; inside another, a savepoint."""
        with translated():
            async with self._source.transaction() as inside:
                yield self._over(inside)

    def interrupt(self) -> None:
        """Give up a call that is late; the next call opens a connection of its own.

        A connection or a pool that was given is left as it is.
        """
        for own in {self._source, self._reading}:
            own.interrupt()

    async def close(self) -> None:
        """Close what the store opened; a later call opens it again."""
        for own in {self._source, self._reading}:
            await own.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    compact_index = _awaited(calls.compact_index)
    fetch_top_k_relevant = _awaited(calls.fetch_top_k_relevant)
    hydrate_session = _awaited(calls.hydrate_session)
    search_memories = _awaited(calls.search_memories)
    fetch_memories = _awaited(calls.fetch_memories)
    remember = _awaited(calls.remember)
    forget = _awaited(calls.forget)
    quarantine = _awaited(calls.quarantine)
    release = _awaited(calls.release)
    list_quarantined = _awaited(calls.list_quarantined)
    near_duplicates = _awaited(calls.near_duplicates)
    act_for = _awaited(calls.act_for)
    purge = _awaited(calls.purge)
    count_live = _awaited(calls.count_live)
    estimate_tokens = _awaited(calls.estimate_tokens)
    schema_version = _awaited(calls.schema_version)
    installation = _awaited(calls.installation)
