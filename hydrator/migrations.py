"""Installing the schema: what Alembic's environment asks, and the three commands.

``alembic/env.py`` and the revisions are thin; they call :func:`settle` and :func:`run_sql`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from alembic import command, context, op
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.pool import NullPool

from hydrator import errors
from hydrator.addresses import libpq_address
from hydrator.errors import InstallationError, TransactionConflict
from hydrator.models import Installation
from hydrator.schema import ALEMBIC, SQL, check_installation, render

# One migration at a time, whoever starts it.
LOCK = """\
do $lock$
begin
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception using errcode = 'MH011',
      message = 'hydrator needs a database encoded in UTF8, this one is '
        || current_setting('server_encoding'),
      hint = 'create database ... encoding ''UTF8'' template template0;';
  end if;
  perform pg_advisory_xact_lock(hashtextextended('hydrator.migrations', 0));
end
$lock$"""

# How often a migration is made at the most that ends in a deadlock with what the application does.
_TRIALS = 5

# The comment marks a schema that we made and may drop; one that a DBA made for us stays.
_MADE_BY_US = "Memory hydration for LLM agents; made and dropped by its migrations."

CREATE_SCHEMA = f"""\
do $schema$
begin
  if to_regnamespace('hydrator') is null then
    create schema hydrator;
    comment on schema hydrator is '{_MADE_BY_US}';
  end if;
end
$schema$"""

DROP_SCHEMA = f"""\
do $schema$
begin
  drop table if exists hydrator.alembic_version;
  if obj_description('hydrator'::regnamespace) = '{_MADE_BY_US}' then
    begin
      drop schema hydrator;
    exception
      when dependent_objects_still_exist then
        raise notice 'the schema hydrator stays: there are other objects in it';
    end;
  end if;
end
$schema$"""


def engine(url: str) -> sqlalchemy.Engine:
    """Give an engine for any address that libpq takes, a URL or ``key=value`` words."""
    address = libpq_address(url)
    return sqlalchemy.create_engine(
        "postgresql+psycopg://",
        # Statements that are prepared do not get on with poolers, and each is run about once.
        creator=lambda: psycopg.connect(address, client_encoding="utf8", prepare_threshold=None),
        poolclass=NullPool,
    )


def settle(connection: sqlalchemy.Connection, requested: Mapping[str, Any]) -> Installation:
    """Tell what an installation's settings are to be, or have been since it was made.

    Parameters
    ----------
    requested
        Those fields of :class:`Installation` that the caller named.

    Raises
    ------
    InstallationError
        The database has settled a field otherwise.
    """
    found: dict[str, Any] = {}
    if connection.exec_driver_sql("select to_regclass('hydrator.installed')").scalar_one():
        row = connection.exec_driver_sql(
            "select dimensions, vector_type, distance, extension_schema, text_search_config"
            " from hydrator.installed"
        ).one()
        found = dict(row._mapping)
    else:
        schema = connection.exec_driver_sql(
            "select n.nspname from pg_catalog.pg_extension e"
            " join pg_catalog.pg_namespace n on n.oid = e.extnamespace where e.extname = 'vector'"
        ).scalar_one_or_none()
        if schema is not None:
            found["extension_schema"] = schema
    for name, value in requested.items():
        if name in found and found[name] != value:
            raise InstallationError(
                f"{name} is {found[name]} in this database, not {value}",
                hint="It is settled when the schema is installed; leave the option out, "
                "or install into another database",
            )
    return check_installation(Installation(**{**requested, **found}))


def run_sql(name: str) -> None:
    """Run a file of ``sql/revisions`` in the migration under way, or print it (``--sql``).

    The text goes to the server as it is, without parameters: ``%`` and ``:`` in the bodies of
    functions would mean something to the driver and to SQLAlchemy.
    """
    context = op.get_context()
    text = render((SQL / "revisions" / name).read_text("utf-8"), context.opts["installation"])
    if context.as_sql:
        context.impl.static_output(text)
    else:
        op.get_bind().execution_options(no_parameters=True).exec_driver_sql(text)


# Alembic keeps the migration under way in globals: one at a time in a process, and one that an
# application's own migration started gives them back.
_threads = threading.RLock()


@contextmanager
def _alembic(target: str | sqlalchemy.Connection, requested: Mapping[str, Any]) -> Iterator[Config]:
    config = Config()
    config.set_main_option("script_location", str(ALEMBIC).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["requested"] = dict(requested)
    config.attributes["url" if isinstance(target, str) else "connection"] = target
    try:
        with _threads:
            outer = [module._proxy for module in (context, op) if getattr(module, "_proxy", None)]
            try:
                yield config
            finally:
                for proxy in outer:
                    proxy._install_proxy()
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        translation = errors.translate(error)
        if translation is not None and "permission denied" in translation.message:
            translation = InstallationError(
                translation.message,
                hint="The role needs CREATE on the database (or a schema hydrator of its own) "
                "and USAGE on pgvector's schema",
            )
        raise translation or error from error
    except CommandError as error:
        raise InstallationError(str(error)) from error


def upgrade(target: str | sqlalchemy.Connection, revision: str = "head", **requested: Any) -> None:
    """Install the schema, or bring it up to a revision; safe to run at once and again.

    Parameters
    ----------
    target
        A database URL, or a connection whose transaction the migration joins.
    requested
        ``dimensions``, ``vector_type``, ``distance``, ``extension_schema``, ``text_search_config``: see
        :class:`Installation`. What is left out keeps what the database has, else the default.

    Raises
    ------
    InstallationError
        pgvector is missing and cannot be created (the hint is the statement a superuser must
        run), or a setting differs from what the database was installed with.
    """
    unknown = requested.keys() - {field.name for field in dataclasses.fields(Installation)}
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
    _run(command.upgrade, target, revision, requested)


def downgrade(target: str | sqlalchemy.Connection, revision: str) -> None:
    """Go back to a revision; ``base`` removes the schema and **all memories** with it."""
    _run(command.downgrade, target, revision, {})


def _run(
    step: Callable[[Config, str], None],
    target: str | sqlalchemy.Connection,
    revision: str,
    requested: Mapping[str, Any],
) -> None:
    # Its locks may meet those of the calls that go on meanwhile; then it is rolled back whole.
    trials = _TRIALS if isinstance(target, str) else 1
    for left in reversed(range(trials)):
        try:
            with _alembic(target, requested) as config:
                step(config, revision)
        except TransactionConflict:
            if not left:
                raise
        else:
            return
