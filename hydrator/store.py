"""A store of memories: a method for each SQL call, over one connection."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import psycopg

from hydrator import calls
from hydrator.addresses import resolve_url
from hydrator.calls import Call
from hydrator.errors import translated

P = ParamSpec("P")
T = TypeVar("T")


def _executed(build: Callable[P, Call[T]]) -> Callable[Concatenate[MemoryStore, P], T]:
    """Make a method that builds a call and executes it."""

    def method(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # What a builder refuses (a lone surrogate in JSON, say) is an error like the database's own.
        with translated():
            return self.execute(build(*args, **kwargs))

    update_wrapper(method, build)
    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [own, *signature.parameters.values()]
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


class MemoryStore:
    """Memories in Postgres, through the SQL calls; every decision is the database's.

    Parameters
    ----------
    target
        A database URL; or a psycopg connection, whose transaction the calls then take part in and
        which stays open; or nothing: ``HYDRATOR_DATABASE_URL``, else the embedded server.

    Raises
    ------
    StoreUnavailable
        The database cannot be reached. Every call may raise it too.

    Examples
    --------
    >>> with MemoryStore() as store:  # doctest: +SKIP
    ...     store.remember("acme", "Deploys run on Fridays", embedding=vector)
    ...     store.hydrate_session(query_vector, ["acme"]).relevant
    """

    def __init__(self, target: str | psycopg.Connection | None = None) -> None:
        if isinstance(target, psycopg.Connection):
            self._given: psycopg.Connection | None = target
            self._url = ""
        else:
            self._given = None
            self._url = resolve_url(target)
        self._own: psycopg.Connection | None = None

    @property
    def connection(self) -> psycopg.Connection:
        """The connection the calls run on; an own one is opened again after it broke."""
        if self._given is not None:
            return self._given
        if self._own is None or self._own.closed:
            with translated():
                self._own = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
        return self._own

    def execute(self, call: Call[T]) -> T:
        """Run a call of :mod:`hydrator.calls` and give its result."""
        with translated():
            return call.parse(self.connection.execute(call.sql, call.parameters).fetchall())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All calls inside are kept together, or none."""
        with translated(), self.connection.transaction():
            yield

    def close(self) -> None:
        """Close the connection, if it is the store's own."""
        if self._own is not None:
            self._own.close()

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
    estimate_tokens = _executed(calls.estimate_tokens)
    schema_version = _executed(calls.schema_version)
    installation = _executed(calls.installation)
