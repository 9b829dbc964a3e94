"""Stores of memories, sync and async: a method for each SQL call, over what the caller has.

Both are made from the builders of :mod:`hydrator.calls`: a method builds a call, runs it on the
store's source and parses the rows. Every decision is the database's.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from hydrator import calls
from hydrator.calls import Call
from hydrator.errors import translated
from hydrator.sources import AsyncSource, Source, async_source, source

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool
    import sqlalchemy.ext.asyncio

P = ParamSpec("P")
T = TypeVar("T")

# psycopg's own default: a statement is prepared when it is run for the sixth time.
_PREPARE_THRESHOLD = 5


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
        For a URL: how often a statement is run before it is prepared; None for never, which poolers
        in transaction mode need.

    Raises
    ------
    StoreUnavailable
        By every call: the database cannot be reached. The next call tries again.

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
    ) -> None:
        self._source: Source = source(target, prepare_threshold)

    @classmethod
    def _over(cls, own: Source) -> Self:
        store = cls.__new__(cls)
        store._source = own
        return store

    def execute(self, call: Call[T]) -> T:
        """Run a call of :mod:`hydrator.calls` and give its result."""
        with translated():
            return call.parse(self._source.run(call.sql, call.parameters))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Give a store whose calls are kept together, or none; inside another, a savepoint."""
        with translated(), self._source.transaction() as inside:
            yield self._over(inside)

    def interrupt(self) -> None:
        """Give up a call that is late, from another thread; the next call opens a connection of its own.

        A connection or a pool that was given is left as it is.
        """
        self._source.interrupt()

    def close(self) -> None:
        """Close what the store opened; a later call opens it again."""
        self._source.close()

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
    prepare_threshold
        For a URL: how often a statement is run before it is prepared; None for never, which poolers
        in transaction mode need.
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
    ) -> None:
        self._source: AsyncSource = async_source(target, prepare_threshold)

    @classmethod
    def _over(cls, own: AsyncSource) -> Self:
        store = cls.__new__(cls)
        store._source = own
        return store

    async def execute(self, call: Call[T]) -> T:
        """Run a call of :mod:`hydrator.calls` and give its result."""
        with translated():
            return call.parse(await self._source.run(call.sql, call.parameters))

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
        self._source.interrupt()

    async def close(self) -> None:
        """Close what the store opened; a later call opens it again."""
        await self._source.close()

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
    purge = _awaited(calls.purge)
    count_live = _awaited(calls.count_live)
    estimate_tokens = _awaited(calls.estimate_tokens)
    schema_version = _awaited(calls.schema_version)
    installation = _awaited(calls.installation)
