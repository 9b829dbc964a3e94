"""``hydrator bench``: what a hydration costs beside the plain ways, measured side by side in one run.

A scratch database is made, filled with the same memories twice, and dropped: once in our schema, once in
the plain table that one would write without it (default storage, an index on the namespace). The data
are clustered, as embeddings are: each namespace has a topic for every fifty memories. Both ways end with
entries by name (dictionaries), and both send the query's vector in binary form, as pgvector's package does.
"""

from __future__ import annotations

import os
import platform
import statistics
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from hydrator import indexes, migrations
from hydrator.addresses import libpq_address
from hydrator.errors import HydratorError, translated
from hydrator.extras import extra

if TYPE_CHECKING:
    import numpy as np

TOP_K = 5
BUDGET = 6_000
# Our calls are measured with an index of this many tokens too, from this many memories up.
INDEX_BUDGET, INDEX_BUDGET_FROM = 3_000, 2_000

_TOPIC = 50  # memories a topic
_ROUND = 4  # measured calls of a way, one after the other, before the next way has its turn
_BATCH = 5_000  # rows generated and sent at a time
# Of the whole table, the shares at which recall is measured, each by a namespace of its own.
_SHARES = (0.1, 0.01, 0.001)

_PLAIN = """
create table plain_memories (
  memory_id uuid primary key,
  namespace text not null,
  memory_type text not null,
  heading text not null,
  content text not null,
  confidence real not null,
  expires_at timestamptz,
  deleted_at timestamptz,
  token_count integer,
  embedding {extension_schema}.vector({dimensions})
)
"""

_PLAIN_INDEX = """
select memory_id, heading, memory_type, confidence from plain_memories
where namespace = %(namespace)s and deleted_at is null and (expires_at is null or expires_at > now())
order by confidence desc, memory_id
"""

_PLAIN_TOP_K = """
select memory_id, heading, content, memory_type, confidence, embedding <=> %(query)s as distance
from plain_memories
where namespace = %(namespace)s and deleted_at is null and (expires_at is null or expires_at > now())
order by embedding <=> %(query)s
limit %(top_k)s
"""

_PLAIN_WRITES = """
create table plain_writes (like plain_memories including defaults, primary key (memory_id));
alter table plain_writes alter column embedding type {extension_schema}.{vector_type}({dimensions});
insert into plain_writes select * from plain_memories;
create index on plain_writes using hnsw (embedding {extension_schema}.{vector_type}_cosine_ops) with ({hnsw})
"""

_PLAIN_WRITE = """
insert into plain_writes (memory_id, namespace, memory_type, heading, content, confidence, embedding)
values (gen_random_uuid(), %(namespace)s, 'semantic', %(heading)s, %(content)s, 1, %(embedding)s)
"""

_REMEMBER = """
select hydrator.remember(%(namespace)s, %(heading)s, %(content)s, %(embedding)s)
"""

_EVERYTHING = """
select heading, content from plain_memories
where namespace = %(namespace)s and deleted_at is null and (expires_at is null or expires_at > now())
"""

_OURS = """
select * from hydrator.hydrate_session(
  %(query)s, array[%(namespace)s], %(top_k)s, %(budget)s, %(index_budget)s
)
"""

_RANKED = """
select memory_id from hydrator.fetch_top_k_relevant(%(query)s, %(namespaces)s::text[], 10)
"""


@dataclass(slots=True)
class SizeResult:
    """The medians of one namespace size, in milliseconds, and what else was seen there."""

    size: int
    share: float
    ours: float = 0.0
    ours_whole_index: float = 0.0
    plain: float | None = None
    everything: float | None = None
    ranked_by: str = ""
    recall_at_10: float = 0.0

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is than the plain way, where that was measured."""
        return None if self.plain is None else self.plain / self.ours

    @property
    def whole_index_ratio(self) -> float | None:
        """The same, with an index of any size."""
        return None if self.plain is None else self.plain / self.ours_whole_index


@dataclass(frozen=True, slots=True)
class Recall:
    """What the chosen way found of the exact top 10 in namespaces that are some share of the table."""

    share: float
    memories: int
    recall_at_10: float
    fewest: int
    ranked_by: str


@dataclass(slots=True)
class BenchResult:
    """Everything a run measured."""

    dimensions: int
    vector_type: str
    machine: str
    server: str
    sizes: list[SizeResult] = field(default_factory=list)
    recalls: list[Recall] = field(default_factory=list)
    writes: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    heap_fetches: int | None = None

    @property
    def growth(self) -> tuple[int, int, float] | None:
        """The smallest and the largest size with an index budget, and how much longer the latter takes."""
        bounded = sorted((row.size, row.ours) for row in self.sizes if row.size >= INDEX_BUDGET_FROM)
        if len(bounded) < 2:
            return None
        (small, short), (large, long) = bounded[0], bounded[-1]
        return small, large, long / short

    def to_json(self) -> dict[str, Any]:
        """Give the result for programs, ratios included."""
        told = asdict(self) | {"growth": self.growth}
        for row, size in zip(told["sizes"], self.sizes, strict=True):
            row |= {"ratio": size.ratio, "whole_index_ratio": size.whole_index_ratio}
        return told


Progress = Callable[[str, int, int], None]


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """Make a database of our own on a server, and drop it at the end."""
    address = libpq_address(url)
    name = f"hydrator_bench_{uuid.uuid4().hex[:8]}"
    with translated(), psycopg.connect(address, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield make_conninfo(address, dbname=name)
    finally:
        with translated(), psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


class Topics:
    """Clustered vectors of length 1: those of a namespace lie around its own topics."""

    def __init__(self, dimensions: int, seed: int = 1) -> None:
        self._np = extra("numpy")
        self._dimensions = dimensions
        self._random = self._np.random.default_rng(seed)
        self._centres: dict[str, np.ndarray[Any, Any]] = {}

    def vectors(self, namespace: str, size: int, count: int) -> np.ndarray[Any, Any]:
        """Give ``count`` vectors for a namespace that will hold ``size``."""
        if namespace not in self._centres:
            shape = (max(size // _TOPIC, 1), self._dimensions)
            self._centres[namespace] = self._random.normal(0, 1, shape).astype("float32")
        centres = self._centres[namespace]
        around = centres[self._random.integers(0, len(centres), count)]
        found = around + 0.7 * self._random.standard_normal((count, self._dimensions), dtype="float32")
        unit: np.ndarray[Any, Any] = found / self._np.linalg.norm(found, axis=1, keepdims=True)
        return unit


def _binary(vectors: np.ndarray[Any, Any], vector_type: str) -> list[bytes]:
    head = struct.pack(">HH", vectors.shape[1], 0)
    data = vectors.astype(">f2" if vector_type == "halfvec" else ">f4")
    return [head + row.tobytes() for row in data]


def fill(
    connection: psycopg.Connection[Any],
    namespaces: dict[str, int],
    topics: Topics,
    vector_type: str,
    progress: Progress,
    *,
    plain: bool = True,
) -> None:
    """Fill our table and, unless told not to, the plain one with the same memories."""
    total = sum(namespaces.values())
    done = 0
    for namespace, size in namespaces.items():
        for start in range(0, size, _BATCH):
            count = min(_BATCH, size - start)
            vectors = topics.vectors(namespace, size, count)
            rows = [
                (
                    uuid.uuid4(),
                    namespace,
                    "semantic",
                    f"memory {start + number} of {namespace} ".ljust(60, "."),
                    f"What memory {start + number} says. ".ljust(939, "x"),
                    (start + number) % 1000 / 1000,
                    None,
                )
                for number in range(count)
            ]
            _copy(connection, "hydrator.memories", rows, _binary(vectors, vector_type))
            if plain:
                _copy(connection, "plain_memories", rows, _binary(vectors, "vector"))
            done += count
            progress("filling", done, total)


def _copy(
    connection: psycopg.Connection[Any], table: str, rows: Sequence[tuple[Any, ...]], vectors: list[bytes]
) -> None:
    columns = "memory_id, namespace, memory_type, heading, content, confidence, token_count, embedding"
    with connection.cursor().copy(f"copy {table} ({columns}) from stdin (format binary)".encode()) as copy:
        # A vector's binary form is sent under the name of a type that leaves it as it is.
        copy.set_types(["uuid", "text", "text", "text", "text", "float4", "int4", "bytea"])
        for row, vector in zip(rows, vectors, strict=True):
            copy.write_row((*row, vector))


def _plain_session(connection: psycopg.Connection[Any], parameters: dict[str, Any]) -> int:
    """Do what an application without us does: two queries, and the cut in the client."""
    cursor = connection.cursor(row_factory=dict_row)
    index = cursor.execute(_PLAIN_INDEX, parameters).fetchall()
    used = sum((len(entry["heading"]) + 3) // 4 for entry in index)
    accepted = []
    for row in cursor.execute(_PLAIN_TOP_K, parameters).fetchall():
        tokens = (len(row["heading"]) + 1 + len(row["content"]) + 3) // 4
        if used + tokens > BUDGET:
            break
        used += tokens
        accepted.append(row)
    return len(accepted)


def _run(connection: psycopg.Connection[Any], statement: str, parameters: dict[str, Any]) -> list[Any]:
    return connection.execute(statement.encode(), parameters).fetchall()


def _timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1e3


def _measure(
    connection: psycopg.Connection[Any],
    result: SizeResult,
    namespace: str,
    queries: Sequence[np.ndarray[Any, Any]],
    repetitions: int,
    *,
    plain: bool,
) -> None:
    """Measure the ways in rounds and in turn, so that what else the machine does falls on all of them.

    The first call of a round is not counted: it finds the processor's caches as another way left them.
    """
    parameters = {"namespace": namespace, "top_k": TOP_K, "budget": BUDGET, "index_budget": None}
    bounded = {"index_budget": INDEX_BUDGET} if result.size >= INDEX_BUDGET_FROM else {}
    ways: dict[str, Callable[[dict[str, Any]], Any]] = {
        "ours": lambda query: _run(connection, _OURS, parameters | bounded | query),
        "ours_whole_index": lambda query: _run(connection, _OURS, parameters | query),
    }
    if plain:
        ways["plain"] = lambda query: _plain_session(connection, parameters | query)
        ways["everything"] = lambda query: _run(connection, _EVERYTHING, parameters | query)
    times: dict[str, list[float]] = {way: [] for way in ways}
    rounds = -(-repetitions // _ROUND)
    for number in range(-2, rounds):  # psycopg prepares a statement at its sixth execution
        for way, function in ways.items():
            if way in ("ours_whole_index", "everything") and number >= max(rounds // 4, 1):
                continue  # the slow ways need fewer
            for call in range(-1, _ROUND):
                query = {"query": queries[(number * _ROUND + call) % len(queries)]}
                milliseconds = _timed(partial(function, query))
                if number >= 0 and call >= 0:
                    times[way].append(milliseconds)
    for way, seen in times.items():
        setattr(result, way, statistics.median(seen))


def _recall(
    connection: psycopg.Connection[Any],
    namespaces: dict[str, int],
    total: int,
    queries: Sequence[np.ndarray[Any, Any]],
) -> Recall:
    """Hold the chosen way against exact ranking, which raises if it gave fewer memories."""
    names, size = list(namespaces), sum(namespaces.values())
    found, fewest = [], min(10, size)
    for query in queries:
        parameters = {"query": query, "namespaces": names}
        ours = {row[0] for row in connection.execute(_RANKED, parameters).fetchall()}
        with connection.transaction():
            connection.execute("set local hydrator.exact_max_rows = 999999999")
            exact = {row[0] for row in connection.execute(_RANKED, parameters).fetchall()}
        if len(ours) < len(exact):
            raise HydratorError(f"only {len(ours)} of {len(exact)} memories were ranked in {names}")
        found.append(len(ours & exact) / max(len(exact), 1))
        fewest = min(fewest, len(ours))
    way = _one(connection, "select hydrator.choose_ranking(hydrator.count_live(%s::text[]))", names)
    return Recall(size / total, size, statistics.mean(found), fewest, way)


def _write_rates(
    connection: psycopg.Connection[Any],
    address: str,
    result: BenchResult,
    schema: str,
    topics: Topics,
    writes: int,
    progress: Progress,
) -> None:
    """Measure single writes, each in its own transaction: remember(), and an insert into a plain table.

    The plain table holds the same rows and an HNSW index like ours, and nothing else. Afterwards the optional
    indexes of ours go one by one, so that the result says what each costs.
    """
    progress("index hnsw of the plain table", 0, 1)
    connection.execute("set maintenance_work_mem = '3GB'")
    hnsw = _one(
        connection,
        "select array_to_string(reloptions, ', ') from pg_class"
        " where oid = 'hydrator.memories_hnsw_idx'::regclass",
    )
    for statement in _PLAIN_WRITES.format(
        extension_schema=schema, vector_type=result.vector_type, dimensions=result.dimensions, hnsw=hnsw
    ).split(";"):
        connection.execute(statement.encode())
    for name, ways in (
        ("remember, with bits and hnsw", ("plain", "ours")),
        ("remember, with hnsw", ("ours",)),
        ("remember, with neither", ("ours",)),
    ):
        times: dict[str, list[float]] = {way: [] for way in ways}
        vectors = topics.vectors("writes", 1_000, writes)
        for number in range(writes):
            parameters = {
                "namespace": "writes",
                "heading": f"{name}: memory {number} ".ljust(60, "."),
                "content": f"What memory {number} says. ".ljust(939, "x"),
                "embedding": vectors[number],
            }
            for way in ways:
                statement = _PLAIN_WRITE if way == "plain" else _REMEMBER
                times[way].append(_timed(partial(connection.execute, statement.encode(), parameters)))
            progress(name, number + 1, writes)
        if "plain" in times:
            result.writes["insert into a plain table with hnsw"] = 1e3 / statistics.median(times["plain"])
        result.writes[name] = 1e3 / statistics.median(times["ours"])
        if name != "remember, with neither":
            indexes.drop_index(address, "bits" if name.endswith("bits and hnsw") else "hnsw")


def run(
    url: str,
    sizes: Sequence[int],
    *,
    dimensions: int = 1536,
    vector_type: str = "halfvec",
    repetitions: int = 80,
    writes: int = 200,
    plain: bool = True,
    progress: Progress = lambda phase, done, total: None,
) -> BenchResult:
    """Measure sessions in namespaces of these sizes, all in one table, beside the plain ways.

    Parameters
    ----------
    url
        A server on which a scratch database can be made.
    repetitions
        How often each way is measured; the slowest ones a quarter as often.
    writes
        How many single writes are measured in each state of the indexes; 0 for none. They need ``plain``.
    plain
        Whether the plain ways are measured too.
    """
    topics = Topics(dimensions)
    namespaces = {f"tenant-{size}": size for size in sizes}
    total = round(sum(sizes) / (1 - sum(_SHARES)))
    shares = {f"share-{share}": round(total * share) for share in _SHARES if total * share >= 10}
    known = namespaces | shares
    total = sum(known.values())
    with scratch_database(url) as address:
        migrations.upgrade(address, dimensions=dimensions, vector_type=vector_type)
        with translated(), psycopg.connect(address, autocommit=True) as connection:
            register_vector(connection)
            result = BenchResult(dimensions, vector_type, *surroundings(connection))
            schema = _one(connection, "select extension_schema from hydrator.installation()")
            connection.execute(_PLAIN.format(extension_schema=schema, dimensions=dimensions).encode())
            began = time.perf_counter()
            fill(connection, known, topics, vector_type, progress, plain=plain)
            result.seconds["filling"] = time.perf_counter() - began
            connection.execute("create index on plain_memories (namespace)")
            build_indexes(connection, address, result.seconds, progress)
            result.bytes = sizes_in_bytes(connection)
            result.heap_fetches = _heap_fetches(connection, list(namespaces)[-1])
            for done, (namespace, size) in enumerate(namespaces.items()):
                progress("measuring", done, len(namespaces))
                queries = list(topics.vectors(namespace, size, 20))
                row = SizeResult(size, size / total)
                many = repetitions if size < 50_000 else repetitions // 2
                _measure(connection, row, namespace, queries, many, plain=plain)
                told = _recall(connection, {namespace: size}, total, queries)
                row.recall_at_10, row.ranked_by = told.recall_at_10, told.ranked_by
                result.sizes.append(row)
            progress("measuring", len(namespaces), len(namespaces))
            # Of each namespace, since a search may miss whatever is far from where it starts.
            queries = [query for name, size in known.items() for query in topics.vectors(name, size, 10)]
            result.recalls.append(_recall(connection, known, total, queries))
            for name, size in shares.items():
                queries = list(topics.vectors(name, size, 20))
                result.recalls.append(_recall(connection, {name: size}, total, queries))
            if plain and writes:
                _write_rates(connection, address, result, schema, topics, writes, progress)
    return result


def build_indexes(
    connection: psycopg.Connection[Any],
    address: str,
    seconds: dict[str, float],
    progress: Progress,
    names: Sequence[str] = indexes.NAMES,
) -> None:
    """Make the optional indexes, or those named, and vacuum both tables, as in a store that is in use."""
    for name in names:
        began = time.perf_counter()
        indexes.create_index(
            address,
            name,
            memory="3GB",
            progress=lambda phase, done, total, name=name: progress(f"index {name}", done, total),  # type: ignore[misc]
        )
        seconds[f"index {name}"] = time.perf_counter() - began
    progress("vacuum", 0, 1)
    # What was committed asynchronously is all-visible to no vacuum until a later commit is on disk.
    for statement in ("set synchronous_commit = on", "analyze", "vacuum", "reset synchronous_commit"):
        connection.execute(statement.encode())


def _one(connection: psycopg.Connection[Any], statement: str, *parameters: Any) -> Any:
    row = connection.execute(statement.encode(), parameters or None).fetchone()
    assert row is not None
    return row[0]


def surroundings(connection: psycopg.Connection[Any]) -> tuple[str, str]:
    """Name the machine and the server, without which no figure means anything."""
    vector = _one(connection, "select extversion from pg_extension where extname = 'vector'")
    memory = _one(connection, "select current_setting('shared_buffers')")
    version = _one(connection, "select current_setting('server_version')")
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        f"PostgreSQL {version}, pgvector {vector}, shared_buffers {memory}",
    )


def sizes_in_bytes(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Tell what the tables, with all that belongs to them, and each of our indexes take."""
    rows = connection.execute(
        "select relname, pg_total_relation_size(oid) from pg_class"
        " where relname in ('plain_memories', 'memories')"
        " union all select c.relname, pg_relation_size(c.oid) from pg_index i"
        " join pg_class c on c.oid = i.indexrelid where i.indrelid = 'hydrator.memories'::regclass"
    ).fetchall()
    return {name: int(size) for name, size in rows}


def _heap_fetches(connection: psycopg.Connection[Any], namespace: str) -> int:
    """Tell how often Tier 1's scan has to look into the table: never, after a vacuum."""
    plan = _one(
        connection,
        "explain (analyze, format json) select memory_id, heading, memory_type, confidence, index_tokens"
        " from hydrator.live_memories where namespace = %s order by confidence desc, memory_id limit 400",
        namespace,
    )

    def fetches(node: dict[str, Any]) -> int:
        own = int(node.get("Heap Fetches", 0))
        return own + sum(fetches(child) for child in node.get("Plans", []))

    return fetches(plan[0]["Plan"])


def plot(result: BenchResult, path: Path) -> None:
    """Draw latency against size, both axes logarithmic, as a PNG."""
    figure = extra("matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [row.size for row in result.sizes]
    for label, name, style in (
        ("everything", "everything", "^:"),
        ("two plain queries", "plain", "s--"),
        ("hydrate_session, whole index", "ours_whole_index", "o-."),
        (f"hydrate_session, index of {INDEX_BUDGET:,} tokens from {INDEX_BUDGET_FROM:,}", "ours", "o-"),
    ):
        found = [(row.size, getattr(row, name)) for row in result.sizes if getattr(row, name) is not None]
        if found:
            axes.plot(*zip(*found, strict=True), style, label=label)
    axes.set(xscale="log", yscale="log", xlabel="live memories in the namespace", ylabel="median, ms")
    axes.set_title(f"A session's context, {result.dimensions} dimensions ({result.vector_type}), top {TOP_K}")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
