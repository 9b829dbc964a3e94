"""The optional indexes: created and dropped concurrently, with progress, safe to repeat.

Their definitions are in ``sql/indexes``; which rankings use them, ``hydrator.choose_ranking`` decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import sql

from hydrator.addresses import libpq_address
from hydrator.errors import InvalidValue, translated
from hydrator.models import Installation
from hydrator.schema import SQL, render

NAMES = tuple(sorted(path.stem for path in (SQL / "indexes").glob("*.sql")))

Progress = Callable[[str, int, int], None]


def index_name(name: str) -> str:
    """Give the full name of an optional index, or raise InvalidValue."""
    if name not in NAMES:
        raise InvalidValue(f"there is no optional index {name!r}", hint=f"Choose one of {', '.join(NAMES)}")
    return f"memories_{name}_idx"


def create_index(
    url: str,
    name: str,
    *,
    memory: str = "1GB",
    progress: Progress = lambda phase, done, total: None,
) -> bool:
    """Create an optional index while the table is in use; False if it is there already.

    Parameters
    ----------
    memory
        ``maintenance_work_mem`` for the build: an HNSW graph that fits into it is built many times
        faster.
    progress
        Called with the phase, and the tuples or blocks done and in all.

    Raises
    ------
    InvalidValue
        There is no such index.
    InstallationError
        The schema is not installed.
    """
    full = index_name(name)
    address = libpq_address(url)
    with translated(), psycopg.connect(address, autocommit=True) as connection:
        row = connection.execute(
            "select dimensions, vector_type, distance, extension_schema, text_search_config"
            " from hydrator.installation()"
        ).fetchone()
        assert row is not None
        statement = render((SQL / "indexes" / f"{name}.sql").read_text("utf-8"), Installation(*row))
        valid = connection.execute(
            "select i.indisvalid from pg_index i where i.indexrelid = to_regclass(%s)", [f"hydrator.{full}"]
        ).fetchone()
        if valid is not None and valid[0]:
            return False
        if valid is not None:  # a build that was interrupted leaves an index that is kept up, but not used
            drop_index(url, name)
        connection.execute(sql.SQL("set maintenance_work_mem = {}").format(sql.Literal(memory)))
        with _Watching(address, connection.info.backend_pid, progress):
            connection.execute(statement.encode())
    return True


def drop_index(url: str, name: str) -> None:
    """Drop an optional index while the table is in use, if it is there."""
    full = index_name(name)
    with translated(), psycopg.connect(libpq_address(url), autocommit=True) as connection:
        connection.execute(
            sql.SQL("drop index concurrently if exists {}").format(sql.Identifier("hydrator", full))
        )


class _Watching:
    """Reports what a backend's CREATE INDEX does, twice a second, until the block ends."""

    def __init__(self, address: str, pid: int, progress: Progress) -> None:
        self._address = address
        self._pid = pid
        self._progress = progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        with suppress(psycopg.Error), psycopg.connect(self._address, autocommit=True) as connection:
            while not self._ended.wait(0.5):
                row = connection.execute(
                    "select phase, greatest(tuples_done, blocks_done), greatest(tuples_total, blocks_total)"
                    " from pg_stat_progress_create_index where pid = %s",
                    [self._pid],
                ).fetchone()
                if row is not None:
                    self._progress(*row)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
