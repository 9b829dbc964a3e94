"""Imports that are killed half-way, and twenty of the same directory at once: nothing twice, nothing lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from targets import wait_for

from hydrator import MemoryStore
from hydrator.importing import import_memories

fork = multiprocessing.get_context("fork")


class Toy:
    """Vectors of four dimensions, of no meaning."""

    model = "toy"
    dimensions = 4

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, *(float(ord(c) % 13) for c in f"...{text}"[-3:])] for text in texts]


def files(folder: Path, count: int, version: str = "first") -> Path:
    """Write a memory directory of so many memories."""
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    numbers = range(count)
    (notes / "MEMORY.md").write_text("".join(f"- [Memory {number}](m{number:03}.md)\n" for number in numbers))
    for number in numbers:
        (notes / f"m{number:03}.md").write_text(f"What is known of {number}, {version}.")
    return notes


def import_in_process(url: str, notes: Path, results: Any = None, together: Any = None) -> None:
    with MemoryStore(url) as store:
        store.schema_version()
        if together:
            together.wait(60)
        try:
            summary = import_memories(store, Toy(), notes, "n")
            result = (summary.imported, summary.unchanged, summary.superseded, summary.skipped)
        except BaseException as error:
            result = repr(error)
        if results:
            results.put(result)


def at_once(url: str, notes: Path, count: int = 20) -> list[Any]:
    results, together = fork.SimpleQueue(), fork.Barrier(count)
    processes = [
        fork.Process(target=import_in_process, args=(url, notes, results, together)) for _ in range(count)
    ]
    for process in processes:
        process.start()
    given = [results.get() for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    return given


def test_twenty_at_once(url: str, db: psycopg.Connection, tmp_path: Path) -> None:
    notes = files(tmp_path, 60)
    given = at_once(url, notes)
    # Each memory was imported by one of them, and found by the others.
    assert [sum(numbers) for numbers in zip(*given, strict=True)] == [60, 19 * 60, 0, 0]
    assert db.execute("select count(*), count(distinct heading) from hydrator.memories").fetchone() == (
        60,
        60,
    )

    files(tmp_path, 60, "second")
    given = at_once(url, notes)
    assert [sum(numbers) for numbers in zip(*given, strict=True)] == [0, 19 * 60, 60, 0]
    assert db.execute(
        "select count(*), count(supersedes), count(distinct supersedes) from hydrator.memories"
    ).fetchone() == (120, 60, 60)
    assert db.execute(
        "select count(*), count(*) filter (where content like '%second.') from hydrator.live_memories"
    ).fetchone() == (60, 60)
    assert db.execute("select hydrator.count_live(array['n'])").fetchone() == (60,)


def test_killed_half_way_and_run_again(url: str, db: psycopg.Connection, tmp_path: Path) -> None:
    notes = files(tmp_path, 80)

    def counted() -> int:
        return db.execute("select count(*) from hydrator.memories").fetchone()[0]

    # What is written next waits, so that it is killed in the midst of a batch.
    db.execute(
        "create function stall() returns trigger language plpgsql as $$ begin"
        " if new.heading = 'Memory 70' then perform pg_advisory_xact_lock(1); end if;"
        " return new; end $$;"
        " create trigger stall before insert on hydrator.memories for each row execute function stall()"
    )
    try:
        with db.transaction():
            db.execute("select pg_advisory_xact_lock(1)")
            process = fork.Process(target=import_in_process, args=(url, notes))
            process.start()
            assert wait_for(
                lambda: (
                    db.execute(
                        "select count(*) from pg_locks where locktype = 'advisory' and objid = 1 and not granted"
                    ).fetchone()
                    == (1,)
                )
            )
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert wait_for(
            lambda: (
                db.execute(
                    "select count(*) from pg_stat_activity where datname = current_database()"
                ).fetchone()
                == (1,)
            )
        )
        # The first batch.
        assert counted() == 50
    finally:
        db.execute("drop function stall cascade")
    import_in_process(url, notes)
    assert counted() == 80
    assert db.execute("select count(distinct heading) from hydrator.live_memories").fetchone() == (80,)


def test_what_another_import_changed_meanwhile_is_not_lost(
    url: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    notes = files(tmp_path, 2)
    import_in_process(url, notes)
    (tmp_path / "elsewhere").mkdir()
    other = files(tmp_path / "elsewhere", 2, "other")
    (notes / "m001.md").write_text("News of it.")

    class Meddling(Toy):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            if not self.met:
                self.met = True
                with MemoryStore(url) as store:
                    import_memories(store, Toy(), other, "n")
            return super().embed(texts)

        met = False

    with MemoryStore(url) as store:
        summary = import_memories(store, Meddling(), notes, "n")
    # The first was as it is in the directory when the import looked, and not when it wrote.
    assert (summary.imported, summary.unchanged, summary.superseded, summary.skipped) == (0, 0, 2, 0)
    assert db.execute("select content from hydrator.live_memories order by content").fetchall() == [
        ("News of it.",),
        ("What is known of 0, first.",),
    ]


def test_an_import_that_conflicts_goes_on(url: str, db: psycopg.Connection, tmp_path: Path) -> None:
    notes = files(tmp_path, 3)
    db.execute(
        "create sequence conflicts;"
        " create function conflict() returns trigger language plpgsql as $$ begin"
        " if nextval('public.conflicts') < 3 then raise exception 'not yet' using errcode = '40P01'; end if;"
        " return new; end $$;"
        " create trigger conflict before insert on hydrator.memories for each row execute function conflict()"
    )
    try:
        with MemoryStore(url) as store:
            summary = import_memories(store, Toy(), notes, "n")
    finally:
        db.execute("drop function conflict cascade; drop sequence conflicts")
    assert (summary.imported, summary.unchanged, summary.superseded, summary.skipped) == (3, 0, 0, 0)
