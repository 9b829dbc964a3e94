"""The wheel carries the migrations, and they run from it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest

CHECKOUT = Path(__file__).parents[2]

UPGRADE = """
import sys
from pathlib import Path
from hydrator import migrations, schema

assert schema.SQL == Path(sys.argv[1], "hydrator", "sql"), schema.SQL
assert schema.ALEMBIC == Path(sys.argv[1], "hydrator", "alembic"), schema.ALEMBIC
migrations.upgrade(sys.argv[2], dimensions=8)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    # Where the build system is not installed, pip fetches it.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", CHECKOUT, "--no-deps", *isolation, "-w", folder],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("hydrator-*.whl")
    return zipfile.ZipFile(path)


def test_contents(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    expected = {"hydrator/py.typed"}
    for folder in ("alembic", "sql"):
        files = (path for path in (CHECKOUT / folder).rglob("*") if path.suffix in (".py", ".sql"))
        expected |= {f"hydrator/{path.relative_to(CHECKOUT)}" for path in files}
    assert "hydrator/alembic/env.py" in expected
    assert "hydrator/sql/revisions/0001/upgrade.sql" in expected
    assert expected - names == set()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hydrator"}
    assert [name for name in names if "__pycache__" in name] == []


def test_upgrade_from_the_wheel(
    wheel: zipfile.ZipFile, admin: psycopg.Connection, empty_url: str, tmp_path: Path
) -> None:
    unpacked = tmp_path / "unpacked"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    wheel.extractall(unpacked)
    run = subprocess.run(
        [sys.executable, "-c", UPGRADE, unpacked, empty_url],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert admin.execute("select dimensions from hydrator.installation()").fetchall() == [(8,)]
