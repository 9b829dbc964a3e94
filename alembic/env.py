"""Alembic's way into the database: one lock, one transaction, version table in our schema.

Settings of a new installation and the database come as ``-x`` arguments::

    alembic -x url=postgresql://… -x dimensions=1536 -x vector_type=halfvec upgrade head

Without a URL: ``HYDRATOR_DATABASE_URL``, else the embedded server.
"""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection

from hydrator import migrations
from hydrator.errors import InstallationError
from hydrator.models import Installation
from hydrator.schema import check_installation

arguments: dict[str, Any] = context.get_x_argument(as_dictionary=True)
requested = context.config.attributes.get("requested")
if requested is None:
    requested = {key: value for key, value in arguments.items() if key != "url"}
    if requested.get("dimensions", "").isdecimal():
        requested["dimensions"] = int(requested["dimensions"])

VERSION_TABLE = {"version_table": "alembic_version", "version_table_schema": "hydrator"}


def run_offline() -> None:
    installation = check_installation(Installation(**requested))
    context.configure(dialect_name="postgresql", installation=installation, **VERSION_TABLE)
    with context.begin_transaction():
        context.execute("set client_encoding = 'UTF8'")
        context.execute(migrations.LOCK)
        context.execute(migrations.CREATE_SCHEMA)
        context.run_migrations()
        if not context.get_revision_argument():
            context.execute(migrations.DROP_SCHEMA)


def run_online(connection: Connection) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise InstallationError(
            "the connection is in autocommit mode",
            hint="A migration is one transaction: give one that begins it",
        )
    connection.exec_driver_sql(migrations.LOCK)
    installation = migrations.settle(connection, requested)
    context.configure(connection=connection, installation=installation, **VERSION_TABLE)
    migration = context.get_context()
    if migration.opts.get("dont_mutate"):
        context.run_migrations()
        return
    context.execute(migrations.CREATE_SCHEMA)
    context.run_migrations()
    if not migration.get_current_heads():
        context.execute(migrations.DROP_SCHEMA)


if context.is_offline_mode():
    run_offline()
elif given := context.config.attributes.get("connection"):
    run_online(given)
else:
    url = context.config.attributes.get("url") or arguments.get("url")
    if url is None:
        from hydrator.addresses import resolve_url

        url = resolve_url(migrate=False)
    with migrations.engine(url).begin() as connection:
        run_online(connection)
