"""Which database a command or a store speaks to."""

from __future__ import annotations

import os

URL_VARIABLE = "HYDRATOR_DATABASE_URL"


def resolve_url(url: str | None = None, *, migrate: bool = True) -> str:
    """Give the database's address: the argument, else HYDRATOR_DATABASE_URL, else the embedded server.

    The embedded server is started where it is not running, and its schema brought up to date
    unless ``migrate`` is false; another database's schema is its owner's to upgrade.

    Raises
    ------
    EmbeddedServerError
        No URL was given and the embedded server cannot be started.
    """
    if url is None:
        url = os.environ.get(URL_VARIABLE) or None
    if url is None:
        from hydrator.embedded import EmbeddedServer

        url = EmbeddedServer().start(migrate=migrate)
    return url
