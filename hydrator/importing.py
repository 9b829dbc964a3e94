"""Importing memories from files: what is new is remembered, what changed supersedes.

Where a memory came from stands in its metadata, as ``source``: the source's name, the memory's
key within it, and a digest of what was told. So importing again changes nothing, and a memory
that was forgotten stays forgotten until its file changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from hydrator.calls import Call
from hydrator.embedding import Embedder, batches, check_fits
from hydrator.errors import (
    CallError,
    EmbedderError,
    InvalidHeading,
    ModelMismatch,
    SchemaChanged,
    TransactionConflict,
)
from hydrator.memory_files import FileMemory, Problem, Reading, read_source
from hydrator.store import MemoryStore

# Memories that are written in one transaction; an interruption loses no more than these.
_BATCH = 50

# How often a batch is written at the most that conflicts with what others write.
_TRIALS = 5


@dataclass(slots=True)
class ImportSummary:
    """What an import did: numbers of memories, and what its owner should know."""

    imported: int = 0
    superseded: int = 0
    unchanged: int = 0
    skipped: int = 0
    problems: list[Problem] = field(default_factory=list)

    def report(self, problem: Problem) -> None:
        self.problems.append(problem)
        self.skipped += problem.skipped

    def add(self, other: ImportSummary) -> None:
        self.imported += other.imported
        self.superseded += other.superseded
        self.unchanged += other.unchanged
        for problem in other.problems:
            self.report(problem)


@dataclass(frozen=True, slots=True)
class _Imported:
    """What an earlier import made of a key, and what stands at the end of its successors."""

    digest: str
    head: UUID


def _imported(namespace: str, source: str, keys: Sequence[str]) -> Call[dict[str, _Imported]]:
    sql = """
        with recursive imported as (
          select distinct on (m.metadata #>> '{source,key}')
            m.metadata #>> '{source,key}' as key, m.metadata #>> '{source,digest}' as digest, m.memory_id
          from hydrator.memories m
          where m.namespace = %(namespace)s
            and m.metadata @> jsonb_build_object('source', jsonb_build_object('name', %(source)s::text))
            and m.metadata #>> '{source,key}' = any (%(keys)s::text[])
          order by 1, m.created_at desc, m.memory_id
        ),
        chain as (
          select i.key, i.memory_id, 0 as length from imported i
          union all
          select c.key, m.memory_id, c.length + 1
          from chain c
          join hydrator.memories m on m.namespace = %(namespace)s and m.supersedes = c.memory_id
        )
        select distinct on (c.key) c.key, i.digest, c.memory_id
        from chain c
        join imported i on i.key = c.key
        order by c.key, c.length desc
        """
    parameters = {"namespace": namespace, "source": source, "keys": list(keys)}
    return Call(sql, parameters, lambda rows: {key: _Imported(digest, head) for key, digest, head in rows})


def _lock(namespace: str) -> Call[None]:
    # Two imports into one namespace take turns, batch by batch.
    sql = "select pg_advisory_xact_lock(hashtextextended('hydrator.import ' || %(namespace)s::text, 0))"
    return Call(sql, {"namespace": namespace}, lambda rows: None)


def import_memories(
    store: MemoryStore,
    embedder: Embedder,
    path: Path,
    namespace: str,
    *,
    source: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImportSummary:
    """Import a memory directory or a JSON Lines file into a namespace.

    Parameters
    ----------
    source
        The name under which the memories are known at the next import; by default the
        directory's or the file's own.
    progress
        Called with the number of memories done and their total.

    Raises
    ------
    OSError
        The path cannot be read. Single files that cannot be are problems of the summary.
    WrongDimensions, ModelMismatch
        The embedder does not fit the store; nothing more is written.
    """
    reading = read_source(path)
    if source:
        reading = replace(reading, source=source)
    return import_reading(store, embedder, reading, namespace, progress=progress)


def import_reading(
    store: MemoryStore,
    embedder: Embedder,
    reading: Reading,
    namespace: str,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImportSummary:
    """Import what has been read already; see :func:`import_memories`."""
    check_fits(embedder, store.installation())
    summary = ImportSummary()
    for problem in reading.problems:
        summary.report(problem)
    done = 0
    progress(0, len(reading.memories))
    for batch in batches(reading.memories, _BATCH):
        summary.add(_import_batch(store, embedder, namespace, reading.source, batch))
        done += len(batch)
        progress(done, len(reading.memories))
    return summary


def _import_batch(
    store: MemoryStore, embedder: Embedder, namespace: str, source: str, batch: Sequence[FileMemory]
) -> ImportSummary:
    look_up = _imported(namespace, source, [memory.key for memory in batch])
    # Embedding takes the time, so it is done before the lock is taken, for what seems new.
    known = store.execute(look_up)
    vectors: dict[str, dict[str, Any] | EmbedderError] = {}
    conflicts = 0
    while True:
        for memory in batch:
            if memory.key not in vectors and _is_new(memory, known):
                try:
                    vectors[memory.key] = _vector(memory, embedder)
                except EmbedderError as error:
                    vectors[memory.key] = error
        try:
            with store.transaction() as inside:
                inside.execute(_lock(namespace))
                known = inside.execute(look_up)
                # Another import may have brought other versions meanwhile.
                if all(memory.key in vectors for memory in batch if _is_new(memory, known)):
                    return _write_batch(inside, namespace, source, batch, known, vectors)
        except (TransactionConflict, SchemaChanged):
            conflicts += 1
            if conflicts == _TRIALS:
                raise


def _is_new(memory: FileMemory, known: Mapping[str, _Imported]) -> bool:
    return memory.key not in known or known[memory.key].digest != memory.digest


def _write_batch(
    store: MemoryStore,
    namespace: str,
    source: str,
    batch: Sequence[FileMemory],
    known: Mapping[str, _Imported],
    vectors: Mapping[str, dict[str, Any] | EmbedderError],
) -> ImportSummary:
    summary = ImportSummary()
    for memory in batch:
        if not _is_new(memory, known):
            summary.unchanged += 1
            continue
        vector = vectors[memory.key]
        if isinstance(vector, EmbedderError):
            summary.report(Problem(memory.name, str(vector)))
            continue
        before = known.get(memory.key)
        origin = {"name": source, "key": memory.key, "digest": memory.digest}
        fields = {**memory.fields, **vector}
        fields["metadata"] = {**memory.fields["metadata"], "source": origin}
        fields["supersedes"] = before.head if before else None
        try:
            is_new = _remember(store, namespace, memory, fields, summary)
        except ModelMismatch:
            raise
        except CallError as error:
            summary.report(Problem(memory.name, str(error)))
        else:
            summary.superseded += before is not None
            summary.imported += before is None and is_new
            summary.unchanged += not is_new
    return summary


def _remember(
    store: MemoryStore, namespace: str, memory: FileMemory, fields: dict[str, Any], summary: ImportSummary
) -> bool:
    """Write a memory under the first of its headings that the database takes; False if it was there."""
    for heading, next_heading in zip(memory.headings, [*memory.headings[1:], None], strict=True):
        try:
            with store.transaction() as inside:
                memory_id = inside.remember(namespace, heading, memory.content, **fields)
                # Another may have said the same: then it is there, with an origin of its own.
                found = inside.fetch_memories([namespace], [memory_id])
            return bool(found) and found[0].metadata.get("source") == fields["metadata"]["source"]
        except InvalidHeading as error:
            if next_heading is None:
                raise
            message = f"{error.message}; imported as {next_heading!r}"
            summary.report(Problem(memory.name, message, skipped=False))
    raise AssertionError("a memory has a heading")


def _vector(memory: FileMemory, embedder: Embedder) -> dict[str, Any]:
    """Give the embedding and its model, unless the file brought its own."""
    if memory.fields.get("embedding") is not None:
        return {}
    [embedding] = embedder.embed([memory.text])
    return {"embedding": embedding, "embedding_model": embedder.model}
