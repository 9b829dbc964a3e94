"""Row security: turned on and off by ``hydrator.secure()``, which holds all there is to it."""

from __future__ import annotations

import psycopg

from hydrator.addresses import libpq_address
from hydrator.errors import translated

ROLES = ("hydrator_reader", "hydrator_writer", "hydrator_admin")


def secure(
    url: str,
    *,
    on: bool = True,
    show: bool = False,
    roles: tuple[str, str, str] = ROLES,
) -> tuple[str, ...]:
    """Turn row security on or off, and give the statements; with ``show`` they are only given.

    Parameters
    ----------
    roles
        The names of the reader, the writer and the admin; made where they are missing.

    Raises
    ------
    InstallationError
        The schema is not installed, or the role may not do it; the hint is what a DBA must run.
    """
    with translated(), psycopg.connect(libpq_address(url)) as connection:
        rows = connection.execute("select hydrator.secure(%s, %s, %s, %s, %s)", [on, show, *roles])
        return tuple(statement for (statement,) in rows)


def unbound(url: str) -> tuple[str, ...]:
    """Give the roles that can log in and that row security does not bind."""
    with translated(), psycopg.connect(libpq_address(url)) as connection:
        rows = connection.execute(
            "select r.rolname::text from pg_roles r"
            " where r.rolcanlogin and (r.rolsuper or r.rolbypassrls) order by 1"
        )
        return tuple(name for (name,) in rows)
