"""Many installers start at once: each succeeds, one installs."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

from hydrator import migrations

WAITING = """
select count(*) from pg_locks l
where l.locktype = 'advisory' and not l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
"""


def test_ten_processes(admin: psycopg.Connection, empty_url: str) -> None:
    with admin.transaction():
        # Hold the others at the door until all are there, so that they start as one.
        admin.execute(migrations.LOCK)
        fork = multiprocessing.get_context("fork")
        processes = [
            fork.Process(target=migrations.upgrade, args=(empty_url,), kwargs={"dimensions": 8})
            for _ in range(10)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + 60
        while admin.execute(WAITING).fetchone() != (10,):
            assert time.monotonic() < deadline, "not all ten came to wait for the lock"
            time.sleep(0.05)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 10
    assert admin.execute("select * from hydrator.alembic_version").fetchall() == [("0001",)]
    assert admin.execute("select dimensions from hydrator.installation()").fetchall() == [(8,)]


def test_ten_threads(admin: psycopg.Connection, empty_url: str) -> None:
    with ThreadPoolExecutor(10) as pool:
        for result in [pool.submit(migrations.upgrade, empty_url, dimensions=8) for _ in range(10)]:
            result.result()
    assert admin.execute("select * from hydrator.alembic_version").fetchall() == [("0001",)]
