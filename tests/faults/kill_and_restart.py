"""Kills a server under a writing and a reading load, round after round, and looks what is left.

    python tests/faults/kill_and_restart.py [--rounds N] [--folder PATH] [--seed N]

Each round has a namespace of its own. Writers remember, supersede one another's memories, forget, and
write pairs in transactions, and note what was acknowledged, refused or left unknown; readers hydrate and
check that what they see is whole. In the midst of it every process of the server gets SIGKILL. It is
started again, all go on for a while with the stores that they have, and then the database is compared with
the notes:

- what was acknowledged is there, and what was forgotten is not;
- what was refused as retryable is not there;
- what was left unknown is there whole or not at all;
- the memory that all supersede has exactly one live head, and no fork among its ancestors;
- the counts are those of the rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import kill, own_server

from hydrator import AlreadySuperseded, MemoryStore, OutcomeUnknown, StoreUnavailable, migrations
from hydrator.embedded import EmbeddedServer

WRITERS, READERS = 4, 2
DIMENSIONS = 16
CHAIN = "The one that all supersede"


@dataclass
class Notes:
    """What the writers of a round were told, by heading."""

    acknowledged: dict[str, UUID] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    perhaps_forgotten: set[str] = field(default_factory=set)
    superseded: set[UUID] = field(default_factory=set)
    reads: int = 0
    failed_reads: int = 0


@dataclass
class Round:
    namespace: str
    stopped: threading.Event = field(default_factory=threading.Event)
    restarted: threading.Event = field(default_factory=threading.Event)
    notes: Notes = field(default_factory=Notes)
    # How often each worker got through since the restart.
    since: Counter[str] = field(default_factory=Counter)
    errors: list[BaseException] = field(default_factory=list)

    def work(self, name: str, act: Callable[[Round, int], None]) -> threading.Thread:
        def run() -> None:
            number = 0
            try:
                while not self.stopped.is_set():
                    restarted = self.restarted.is_set()
                    try:
                        act(self, number)
                        self.since[name] += restarted
                    except StoreUnavailable as error:
                        if not (error.retryable or isinstance(error, OutcomeUnknown)):
                            raise
                        time.sleep(0.02)
                    number += 1
            except BaseException as error:
                self.errors.append(error)
                self.stopped.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread


def vector(numbers: random.Random) -> list[float]:
    return [numbers.gauss(0, 1) for _ in range(DIMENSIONS)]


class Writer:
    def __init__(self, name: str, store: MemoryStore, seed: int) -> None:
        self._name = name
        self.store = store
        self._numbers = random.Random(seed)

    def act(self, this: Round, number: int) -> None:
        kind = self._numbers.choices(["remember", "pair", "supersede", "forget"], [5, 2, 3, 1])[0]
        heading = f"{self._name} {number}"
        notes = this.notes
        if kind == "forget":
            self._forget(this)
            return
        try:
            if kind == "remember":
                told = {heading: self._remember(self.store, this, heading)}
            elif kind == "pair":
                heading += ", first and second"
                with self.store.transaction() as inside:
                    told = {
                        f"{heading}: {half}": self._remember(inside, this, f"{heading}: {half}")
                        for half in "12"
                    }
            else:
                heading, told = self._supersede(this, heading)
        except OutcomeUnknown:
            notes.unknown.add(heading)
            raise
        except StoreUnavailable:
            notes.refused.add(heading)
            raise
        notes.acknowledged.update(told)

    def _remember(
        self, store: MemoryStore, this: Round, heading: str, supersedes: UUID | None = None
    ) -> UUID:
        return store.remember(
            this.namespace,
            heading,
            f"{heading}. " * self._numbers.randint(1, 40),
            embedding=vector(self._numbers),
            embedding_model="toy",
            supersedes=supersedes,
        )

    def _supersede(self, this: Round, heading: str) -> tuple[str, dict[str, UUID]]:
        heading = f"{CHAIN}: {heading}"
        [head] = [
            entry.memory_id
            for entry in self.store.compact_index([this.namespace])
            if entry.heading.startswith(CHAIN)
        ]
        try:
            told = {heading: self._remember(self.store, this, heading, head)}
        except AlreadySuperseded:
            return heading, {}
        this.notes.superseded.add(head)
        return heading, told

    def _forget(self, this: Round) -> None:
        own = [
            heading
            for heading in list(this.notes.acknowledged)
            if heading.startswith(f"{self._name} ") and heading not in this.notes.forgotten
        ]
        if not own:
            return
        heading = self._numbers.choice(own)
        # Noted before it is known, for readers.
        this.notes.perhaps_forgotten.add(heading)
        self.store.forget(this.namespace, this.notes.acknowledged[heading])
        this.notes.forgotten.add(heading)


class Reader:
    def __init__(self, store: MemoryStore, seed: int) -> None:
        self.store = store
        self._numbers = random.Random(seed)

    def act(self, this: Round, number: int) -> None:
        before = set(this.notes.acknowledged)
        try:
            session = self.store.hydrate_session(
                vector(self._numbers),
                [this.namespace],
                token_budget=10**6,
                # Whole, and yet with a budget: then the total is the count that the triggers keep.
                index_budget=10**8,
                top_k=20,
                embedding_model="toy",
            )
        except StoreUnavailable:
            this.notes.failed_reads += 1
            raise
        shown = [entry.heading for entry in session.index]
        assert len(shown) == session.index_shown == session.index_total, (len(shown), session.index_total)
        assert len(set(shown)) == len(shown)
        ids = {entry.memory_id for entry in session.index}
        assert {memory.memory_id for memory in session.relevant} <= ids
        assert len(session.relevant) == min(20, len(shown))
        assert session.tokens_used == session.index_tokens + sum(memory.tokens for memory in session.relevant)
        for memory in session.relevant:
            assert memory.content.startswith(f"{memory.heading}. "), memory
            assert len(memory.content) % len(f"{memory.heading}. ") == 0, memory
        assert sum(heading.startswith(CHAIN) for heading in shown) == 1
        halves = Counter(heading[:-3] for heading in shown if ", first and second: " in heading)
        gone = {heading[:-3] for heading in this.notes.perhaps_forgotten}
        assert all(count == 2 for half, count in halves.items() if half not in gone), halves
        missing = {heading for heading in before if not heading.startswith(CHAIN)} - set(shown)
        assert missing <= this.notes.perhaps_forgotten, missing
        this.notes.reads += 1


def check(url: str, this: Round, kept: Counter[str]) -> None:
    """Compare the database with the notes."""
    notes = this.notes
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select heading, memory_id, supersedes, deleted_at is null from hydrator.memories"
            " where namespace = %s",
            [this.namespace],
        ).fetchall()
        [counted] = connection.execute(
            "select hydrator.count_live(array[%s])", [this.namespace]
        ).fetchone() or [None]
    found = {heading: memory_id for heading, memory_id, _, _ in rows}
    live = {heading for heading, _, _, is_live in rows if is_live}
    assert len(found) == len(rows), "a memory is there twice"
    lost = {heading for heading, memory_id in notes.acknowledged.items() if found.get(heading) != memory_id}
    assert not lost, f"acknowledged and lost: {lost}"
    assert not notes.forgotten & live, "forgotten and live"
    plain = {heading for heading in notes.acknowledged if not heading.startswith(CHAIN)}
    assert plain - live <= notes.perhaps_forgotten, "acknowledged and dead"
    for heading in notes.refused:
        assert not any(other == heading or other.startswith(f"{heading}:") for other in found), (
            f"refused and written: {heading}"
        )
    for heading in notes.unknown:
        parts = [other for other in found if other == heading or other.startswith(f"{heading}:")]
        assert len(parts) in ({0, 2} if heading.endswith("second") else {0, 1}), f"half-written: {parts}"
        kept["unknown and written" if parts else "unknown and not written"] += 1
    predecessors = [supersedes for _, _, supersedes, _ in rows if supersedes]
    assert len(set(predecessors)) == len(predecessors), "superseded twice"
    assert notes.superseded <= set(predecessors)
    chain = {memory_id for heading, memory_id, _, _ in rows if heading.startswith(CHAIN)}
    [head] = chain - set(predecessors)
    assert {found[heading] for heading in live if heading.startswith(CHAIN)} == {head}
    assert counted == len(live), (counted, len(live))
    kept["acknowledged writes"] += len(notes.acknowledged) + len(notes.forgotten)
    kept["acknowledged supersedes"] += len(notes.superseded)
    kept["refused writes"] += len(notes.refused)
    kept["whole reads"] += notes.reads
    kept["refused reads"] += notes.failed_reads


def wait_for(condition: Callable[[], bool], this: Round, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition() and not this.errors:
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def rounds(server: EmbeddedServer, count: int, seed: int, said: Callable[[str], None]) -> Counter[str]:
    """Run some rounds on a server, and give what happened; an AssertionError says what was broken."""
    numbers = random.Random(seed)
    url = server.start(migrate=False)
    migrations.upgrade(url, dimensions=DIMENSIONS)
    kept: Counter[str] = Counter()
    writers: list[Any] = [
        Writer(f"writer {number}", MemoryStore(url), numbers.random()) for number in range(WRITERS)
    ]
    readers = [Reader(MemoryStore(url), numbers.random()) for _ in range(READERS)]
    for number in range(count):
        this = Round(f"round {number}")
        with MemoryStore(url) as store:
            store.remember(
                this.namespace, CHAIN, f"{CHAIN}. ", embedding=vector(numbers), embedding_model="toy"
            )
        threads = [this.work(f"worker {place}", worker.act) for place, worker in enumerate(writers + readers)]
        wait_for(lambda this=this: len(this.notes.acknowledged) > WRITERS, this, "the load does not begin")
        time.sleep(numbers.uniform(0, 0.3))
        kill(server)
        began = time.monotonic()
        server.start(migrate=False)
        kept["milliseconds of starting"] += round((time.monotonic() - began) * 1000)
        this.restarted.set()
        wait_for(
            lambda this=this, threads=threads: all(this.since[thread.name] >= 2 for thread in threads),
            this,
            "the load does not go on",
        )
        this.stopped.set()
        for thread in threads:
            thread.join()
        if this.errors:
            raise this.errors[0]
        check(url, this, kept)
        kept["rounds"] += 1
        said(
            f"{number + 1} rounds: {kept['acknowledged writes']:,} acknowledged, {kept['whole reads']:,} reads"
        )
    for worker in writers + readers:
        worker.store.close()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="where the server's data go; else the temporary folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    with own_server({"fsync": "on"}, options.folder or Path(tempfile.gettempdir())) as server:
        kept = rounds(server, options.rounds, options.seed, lambda line: print(line, end="\r", flush=True))
    print(f"\n{time.monotonic() - began:.0f} s")
    for name, number in kept.items():
        print(f"{number:10,} {name}")


if __name__ == "__main__":
    main()
