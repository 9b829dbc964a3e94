"""A disk that fills up: a tablespace on a small file system of its own, which root alone can mount."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from servers import folder

from hydrator import MemoryStore, StoreFull, migrations
from hydrator.embedded import EmbeddedServer

# An empty database with the schema takes about 10 MB.
SIZE = 24 * 2**20


@pytest.fixture
def disk(victim: EmbeddedServer) -> Iterator[Path]:
    """A small disk on which the server has its place."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    with folder() as path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount on this machine")
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
        try:
            path.chmod(0o755)
            place = path / "place"
            place.mkdir()
            owner = (victim.folder / "cluster").stat()
            os.chown(place, owner.st_uid, owner.st_gid)
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def small_url(victim: EmbeddedServer, disk: Path) -> Iterator[str]:
    url = victim.start(migrate=False)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create tablespace small location '{disk}'")
        admin.execute("create database small tablespace small")
        small = make_conninfo(url, dbname="small")
        migrations.upgrade(small, dimensions=4)
        yield small
        admin.execute("drop database small with (force)")
        # It waits for the sessions of other databases to let go of what was dropped.
        admin.execute("checkpoint")
        admin.execute("drop tablespace small")


def test_a_full_disk(small_url: str, disk: Path) -> None:
    filler = disk.parent / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - 2**20))
    acknowledged = set()

    def write(store: MemoryStore, heading: str) -> None:
        # What cannot be compressed.
        store.remember("acme", heading, secrets.token_hex(20_000), embedding=[1, 0, 0, 0])
        acknowledged.add(heading)

    with MemoryStore(small_url) as store:

        def fill() -> None:
            for number in range(200):
                write(store, f"Memory {number}")

        with pytest.raises(StoreFull) as raised:
            fill()
        assert not raised.value.retryable
        assert len(acknowledged) > 5

        def fill_in_one() -> None:
            with store.transaction() as inside:
                for number in range(200):
                    inside.remember("acme", f"Lost {number}", secrets.token_hex(number * 1_000 + 1))

        def check() -> None:
            session = store.hydrate_session([1, 0, 0, 0], ["acme"], index_budget=10**6, top_k=200)
            assert {entry.heading for entry in session.index} == acknowledged
            assert session.index_total == store.count_live(["acme"]) == len(acknowledged)
            assert len(session.relevant) + len(session.dropped) == len(acknowledged)

        check()
        # Neither half of a transaction that does not fit.
        with pytest.raises(StoreFull):
            fill_in_one()
        check()
        filler.unlink()
        write(store, "There is room again")
        check()
