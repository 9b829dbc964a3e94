"""``hydrator bench``: what a hydration costs beside the plain ways, measured side by side in one run.

A scratch database is made, filled with the same memories twice, and dropped: once in our schema, once in
the plain table that one would write without it (default storage, an index on the namespace). The data
are clustered, as embeddings are: each namespace has a topic for every fifty memories.
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
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hydrator import indexes, migrations
from hydrator.addresses import libpq_address
from hydrator.errors import HydratorError, translated

if TYPE_CHECKING:
    import numpy as np

TOP_K = 5
BUDGET = 6_000
# Our calls are measured with an index of this many tokens too, from this many memories up.
INDEX_BUDGET, INDEX_BUDGET_FROM = 3_000, 2_000

_TOPIC = 50  # memories a topic
_BATCH = 5_000  # rows generated and sent at a time

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
    plain: float = 0.0
    ours: float = 0.0
    ours_whole_index: float = 0.0
    everything: float = 0.0
    ranked_by: str = ""
    recall_at_10: float = 0.0

    @property
    def ratio(self) -> float:
        """How many times faster ours is than the plain way."""
        return self.plain / self.ours

    @property
    def whole_index_ratio(self) -> float:
        """The same, with an index of any size."""
        return self.plain / self.ours_whole_index


@dataclass(slots=True)
class BenchResult:
    """Everything a run measured."""

    dimensions: int
    vector_type: str
    machine: str
    server: str
    sizes: list[SizeResult] = field(default_factory=list)
    recall_by_selectivity: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    heap_fetches: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the result for programs, ratios included."""
        told = asdict(self)
        for row, size in zip(told["sizes"], self.sizes, strict=True):
            row |= {"ratio": size.ratio, "whole_index_ratio": size.whole_index_ratio}
        return told


Progress = Callable[[str, int, int], None]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise HydratorError(
            "numpy is not installed", hint="Install it with: pip install 'hydrator[bench]'"
        ) from error
    return numpy


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


class _Topics:
    """Clustered vectors of length 1: those of a namespace lie around its own topics."""

    def __init__(self, dimensions: int, seed: int = 1) -> None:
        self._np = _numpy()
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


def _text(vector: np.ndarray[Any, Any]) -> str:
    return "[" + ",".join(f"{value:.6f}" for value in vector.tolist()) + "]"


def _binary(vectors: np.ndarray[Any, Any], vector_type: str) -> list[bytes]:
    head = struct.pack(">HH", vectors.shape[1], 0)
    data = vectors.astype(">f2" if vector_type == "halfvec" else ">f4")
    return [head + row.tobytes() for row in data]


def fill(
    connection: psycopg.Connection[Any],
    namespaces: dict[str, int],
    topics: _Topics,
    vector_type: str,
    progress: Progress,
) -> None:
    """Fill our table and the plain one with the same memories."""
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
    index = connection.execute(_PLAIN_INDEX, parameters).fetchall()
    used = sum((len(heading) + 3) // 4 for _, heading, _, _ in index)
    accepted = []
    for row in connection.execute(_PLAIN_TOP_K, parameters).fetchall():
        tokens = (len(row[1]) + 1 + len(row[2]) + 3) // 4
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
    queries: Sequence[str],
    repetitions: int,
) -> None:
    """Measure the ways in turn, so that what else the machine does falls on all of them."""
    times: dict[str, list[float]] = {"plain": [], "ours": [], "ours_whole_index": [], "everything": []}
    budget = INDEX_BUDGET if result.size >= INDEX_BUDGET_FROM else None
    for number in range(-6, repetitions):  # psycopg prepares a statement at its sixth execution
        parameters = {
            "query": queries[number % len(queries)],
            "namespace": namespace,
            "top_k": TOP_K,
            "budget": BUDGET,
        }
        ways: dict[str, Callable[[], Any]] = {
            "plain": partial(_plain_session, connection, parameters),
            "ours": partial(_run, connection, _OURS, {**parameters, "index_budget": budget}),
        }
        if number < max(repetitions // 4, 3):  # the slow ways need fewer
            ways["ours_whole_index"] = partial(_run, connection, _OURS, {**parameters, "index_budget": None})
            ways["everything"] = partial(_run, connection, _EVERYTHING, parameters)
        for way, function in ways.items():
            function()  # what the way before it left in the processor's caches is no merit of either
            milliseconds = _timed(function)
            if number >= 0:
                times[way].append(milliseconds)
    for way, seen in times.items():
        setattr(result, way, statistics.median(seen))


def _recall(
    connection: psycopg.Connection[Any], namespaces: Sequence[str], queries: Sequence[str]
) -> tuple[float, int, str]:
    """Give recall@10 of the chosen way against exact ranking, the fewest rows, and the way."""
    found, fewest = [], 10
    for query in queries:
        parameters = {"query": query, "namespaces": list(namespaces)}
        ours = {row[0] for row in connection.execute(_RANKED, parameters).fetchall()}
        with connection.transaction():
            connection.execute("set local hydrator.exact_max_rows = 999999999")
            exact = {row[0] for row in connection.execute(_RANKED, parameters).fetchall()}
        found.append(len(ours & exact) / max(len(exact), 1))
        fewest = min(fewest, len(ours))
    way = connection.execute(
        "select hydrator.choose_ranking(hydrator.count_live(%s::text[]))", [list(namespaces)]
    ).fetchone()
    return statistics.mean(found), fewest, way[0] if way else ""


def run(
    url: str,
    sizes: Sequence[int],
    *,
    dimensions: int = 1536,
    vector_type: str = "halfvec",
    repetitions: int = 40,
    progress: Progress = lambda phase, done, total: None,
) -> BenchResult:
    """Measure sessions in namespaces of these sizes, all in one table, beside the plain ways.

    Parameters
    ----------
    url
        A server on which a scratch database can be made.
    repetitions
        How often each way is measured; the slowest ones a quarter as often.
    """
    topics = _Topics(dimensions)
    namespaces = {f"tenant-{size}": size for size in sizes}
    with scratch_database(url) as address:
        migrations.upgrade(address, dimensions=dimensions, vector_type=vector_type)
        with translated(), psycopg.connect(address, autocommit=True) as connection:
            result = BenchResult(dimensions, vector_type, _machine(), _server(connection))
            schema = _one(connection, "select extension_schema from hydrator.installation()")
            connection.execute(_PLAIN.format(extension_schema=schema, dimensions=dimensions).encode())
            began = time.perf_counter()
            fill(connection, namespaces, topics, vector_type, progress)
            result.seconds["filling"] = time.perf_counter() - began
            connection.execute("create index on plain_memories (namespace)")
            for name in indexes.NAMES:
                began = time.perf_counter()
                indexes.create_index(
                    address,
                    name,
                    memory="3GB",
                    progress=lambda phase, done, total, name=name: progress(f"index {name}", done, total),  # type: ignore[misc]
                )
                result.seconds[f"index {name}"] = time.perf_counter() - began
            progress("vacuum", 0, 1)
            connection.execute("vacuum analyze plain_memories")
            connection.execute("vacuum analyze hydrator.memories")
            result.bytes = _sizes(connection)
            result.heap_fetches = _heap_fetches(connection, list(namespaces)[-1])
            total = sum(sizes)
            for done, (namespace, size) in enumerate(namespaces.items()):
                progress("measuring", done, len(namespaces))
                queries = [_text(vector) for vector in topics.vectors(namespace, size, 20)]
                row = SizeResult(size, size / total)
                _measure(
                    connection, row, namespace, queries, repetitions if size < 50_000 else repetitions // 2
                )
                row.recall_at_10, fewest, row.ranked_by = _recall(connection, [namespace], queries)
                if fewest < min(10, size):
                    raise HydratorError(f"only {fewest} memories were ranked in {namespace}")
                result.sizes.append(row)
            progress("measuring", len(namespaces), len(namespaces))
            queries = [
                _text(topics.vectors(name, namespaces[name], 1)[0]) for name in namespaces for _ in range(5)
            ]
            recall, fewest, way = _recall(connection, list(namespaces), queries)
            result.recall_by_selectivity["all"] = {"recall_at_10": recall, "fewest": fewest, "ranked_by": way}
    return result


def _one(connection: psycopg.Connection[Any], statement: str, *parameters: Any) -> Any:
    row = connection.execute(statement.encode(), parameters or None).fetchone()
    assert row is not None
    return row[0]


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"


def _server(connection: psycopg.Connection[Any]) -> str:
    vector = _one(connection, "select extversion from pg_extension where extname = 'vector'")
    memory = _one(connection, "select current_setting('shared_buffers')")
    version = _one(connection, "select current_setting('server_version')")
    return f"PostgreSQL {version}, pgvector {vector}, shared_buffers {memory}"


def _sizes(connection: psycopg.Connection[Any]) -> dict[str, int]:
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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HydratorError(
            "matplotlib is not installed", hint="Install it with: pip install 'hydrator[bench]'"
        ) from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [row.size for row in result.sizes]
    for label, name, style in (
        ("everything", "everything", "^:"),
        ("two plain queries", "plain", "s--"),
        ("hydrate_session, whole index", "ours_whole_index", "o-."),
        (f"hydrate_session, index of {INDEX_BUDGET:,} tokens from {INDEX_BUDGET_FROM:,}", "ours", "o-"),
    ):
        axes.plot(sizes, [getattr(row, name) for row in result.sizes], style, label=label)
    axes.set(xscale="log", yscale="log", xlabel="live memories in the namespace", ylabel="median, ms")
    axes.set_title(f"A session's context, {result.dimensions} dimensions ({result.vector_type}), top {TOP_K}")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
