"""Beside an application's own Alembic, in one database."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from catalog import contents, differences

from hydrator import migrations

ENVIRONMENT = """
from alembic import context

from hydrator import migrations

with migrations.engine(context.config.get_main_option("url")).begin() as connection:
    context.configure(connection=connection)
    context.run_migrations()
"""

# An application that keeps ours up to date along with its own.
JOINT_ENVIRONMENT = """
from alembic import context

from hydrator import migrations

with migrations.engine(context.config.get_main_option("url")).begin() as connection:
    migrations.upgrade(connection)
    context.configure(connection=connection)
    context.run_migrations()
"""

REVISION = """
from alembic import op

revision = "app1"
down_revision = None


def upgrade():
    op.execute("create table notes (note text)")


def downgrade():
    op.execute("drop table notes")
"""


@pytest.fixture
def application(tmp_path: Path, empty_url: str) -> Config:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "versions" / "app1.py").write_text(REVISION)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    config.set_main_option("url", empty_url)
    return config


def versions(admin: psycopg.Connection) -> tuple[object, object]:
    """Give the application's revisions and ours, None where there is no table."""
    found = []
    for table in ("public.alembic_version", "hydrator.alembic_version"):
        there = admin.execute("select to_regclass(%s) is not null", [table]).fetchone()[0]
        found.append(admin.execute(f"select version_num from {table}").fetchall() if there else None)
    return tuple(found)


def test_application_first(admin: psycopg.Connection, empty_url: str, application: Config) -> None:
    command.upgrade(application, "head")
    before = contents(admin)
    migrations.upgrade(empty_url)
    assert versions(admin) == ([("app1",)], [("0001",)])

    migrations.downgrade(empty_url, "base")
    assert versions(admin) == ([("app1",)], None)
    assert differences(before, contents(admin)) == {}


def test_hydrator_first(admin: psycopg.Connection, empty_url: str, application: Config) -> None:
    migrations.upgrade(empty_url)
    command.upgrade(application, "head")
    assert versions(admin) == ([("app1",)], [("0001",)])

    command.downgrade(application, "base")
    assert versions(admin) == ([], [("0001",)])
    admin.execute("select hydrator.remember('agent', 'a memory')")
    assert admin.execute("select heading from hydrator.compact_index(array['agent'])").fetchall() == [
        ("a memory",)
    ]


def test_from_the_environment_of_the_application(
    admin: psycopg.Connection, application: Config, tmp_path: Path
) -> None:
    (tmp_path / "env.py").write_text(JOINT_ENVIRONMENT)
    command.upgrade(application, "head")
    assert versions(admin) == ([("app1",)], [("0001",)])
