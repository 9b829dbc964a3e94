"""Which database a command or a store speaks to."""

from __future__ import annotations

import os
import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hydrator.errors import StoreUnavailable

URL_VARIABLE = "HYDRATOR_DATABASE_URL"
READ_URL_VARIABLE = "HYDRATOR_READ_URL"


def resolve_url(url: str | None = None, *, migrate: bool = True) -> str:
    """Give the database's address: the argument, else HYDRATOR_DATABASE_URL, else the embedded server.

    The embedded server is started where it is not running, and its schema brought up to date
    unless ``migrate`` is false; another database's schema is its owner's to upgrade.

    Raises
    ------
    EmbeddedServerError
        No URL was given and the embedded server cannot be started.
    StoreUnavailable
        The URL is none.
    """
    if url is None:
        url = os.environ.get(URL_VARIABLE) or None
    if url is None:
        from hydrator.embedded import EmbeddedServer

        url = EmbeddedServer().start(migrate=migrate)
    return libpq_address(url)


def resolve_read_url(target: Any, read_url: str | None) -> str | None:
    """Give the standby's address for calls that only read, or None: the argument, else the environment's.

    HYDRATOR_READ_URL is a standby of HYDRATOR_DATABASE_URL, and of no other database.

    Raises
    ------
    TypeError
        There is a standby for something else than an address: what reads there would be no part of the
        caller's transaction.
    """
    if read_url is not None:
        if target is not None and not isinstance(target, str):
            raise TypeError(f"read_url is for a store of a URL, not of a {type(target).__name__}")
        return read_url
    url = os.environ.get(URL_VARIABLE)
    return (os.environ.get(READ_URL_VARIABLE) or None) if url and target in (None, url) else None


def libpq_address(url: str) -> str:
    """Give an address as libpq takes it: SQLAlchemy's form too, or ``key=value`` words.

    Raises
    ------
    StoreUnavailable
        It is no address; the message does not repeat it, since a password may be in it.
    """
    url = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", url)
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise StoreUnavailable(
            "the database's address cannot be read",
            hint="It is a URL such as postgresql://user@host:5432/database, or key=value words",
        ) from None
    return url
