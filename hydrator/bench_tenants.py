"""``hydrator bench --tenants``: single-namespace sessions in a store of many tenants, by two clients at once.

The namespaces have Zipf sizes: the second is half as large as the first, the third a third. Half of the
calls go to a namespace drawn among all, half to that of a memory drawn among all, so that the many small
tenants and the few large ones are both seen.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector

from hydrator import bench, indexes, migrations
from hydrator.errors import translated

_CLASSES = (100, 1_000, 10_000)  # where a class of sizes ends and the next begins

_QUERY = """
select embedding::real[] from hydrator.memories
where namespace = %s and embedding is not null
limit 1
"""

_SESSION = """
select ranked_by from hydrator.hydrate_session(
  %s, array[%s], %s::integer, %s::integer, %s::integer
)
"""


@dataclass(frozen=True, slots=True)
class TenantClass:
    """The calls to namespaces of a class of sizes, in milliseconds."""

    smallest: int
    largest: int
    namespaces: int
    calls: int
    median: float
    p99: float
    ranked_by: dict[str, int]


@dataclass(slots=True)
class TenantsResult:
    """Everything a run measured."""

    memories: int
    tenants: int
    clients: int
    dimensions: int
    vector_type: str
    machine: str
    server: str
    calls_per_second: float = 0.0
    classes: list[TenantClass] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give the result for programs."""
        return asdict(self)


def zipf_sizes(memories: int, tenants: int) -> list[int]:
    """Give the sizes of so many tenants, the largest first: at least one memory each, and all of them."""
    weights = [1 / rank for rank in range(1, tenants + 1)]
    spare, weight = memories - tenants, sum(weights)
    ends = [round(spare * part / weight) for part in accumulate(weights)]
    return [1 + end - start for start, end in zip([0, *ends], ends, strict=False)]


def run(
    url: str,
    memories: int,
    tenants: int,
    *,
    clients: int = 2,
    calls: int = 20_000,
    dimensions: int = 256,
    vector_type: str = "halfvec",
    hnsw: bool = True,
    progress: bench.Progress = lambda phase, done, total: None,
) -> TenantsResult:
    """Measure sessions of a random mix of tenants, by so many concurrent clients."""
    namespaces = {f"tenant-{rank}": size for rank, size in enumerate(zipf_sizes(memories, tenants), 1)}
    with bench.scratch_database(url) as address:
        migrations.upgrade(address, dimensions=dimensions, vector_type=vector_type)
        with translated(), psycopg.connect(address, autocommit=True) as connection:
            result = TenantsResult(
                memories, tenants, clients, dimensions, vector_type, *bench.surroundings(connection)
            )
            began = time.perf_counter()
            bench.fill(connection, namespaces, bench.Topics(dimensions), vector_type, progress, plain=False)
            result.seconds["filling"] = time.perf_counter() - began
            bench.build_indexes(
                connection, address, result.seconds, progress, indexes.NAMES if hnsw else ["bits"]
            )
            result.bytes = bench.sizes_in_bytes(connection)
        began = time.perf_counter()
        progress("measuring", 0, calls)
        # Processes, since two threads of Python would wait for each other.
        with multiprocessing.get_context("spawn").Pool(clients) as pool:
            shares = [(address, namespaces, calls // clients, client) for client in range(clients)]
            seen = [call for part in pool.starmap(client, shares) for call in part]
        progress("measuring", calls, calls)
        result.calls_per_second = len(seen) / (time.perf_counter() - began)
    result.classes = _classes(namespaces, seen)
    return result


def client(address: str, namespaces: dict[str, int], calls: int, seed: int) -> list[tuple[int, float, str]]:
    """Make the calls of one client: the size of the namespace, the milliseconds, and the way of ranking."""
    names, sizes = list(namespaces), list(namespaces.values())
    drawn = random.Random(seed)
    mix = drawn.choices(names, k=calls // 2) + drawn.choices(names, sizes, k=calls - calls // 2)
    drawn.shuffle(mix)
    queries: dict[str, Vector] = {}
    seen = []
    with psycopg.connect(address, autocommit=True) as connection:
        register_vector(connection)

        def call(namespace: str, query: Vector) -> str:
            parameters = [query, namespace, bench.TOP_K, bench.BUDGET, bench.INDEX_BUDGET]
            row = connection.execute(_SESSION.encode(), parameters).fetchone()
            assert row is not None
            return str(row[0])

        for namespace in set(mix):
            found = connection.execute(_QUERY.encode(), [namespace]).fetchone()
            assert found is not None
            queries[namespace] = Vector(found[0])
        for namespace in names[:: max(len(names) // 20, 1)]:  # a session that has called before
            call(namespace, queries[mix[0]])
        for namespace in mix:
            began = time.perf_counter()
            way = call(namespace, queries[namespace])
            seen.append((namespaces[namespace], (time.perf_counter() - began) * 1e3, way))
    return seen


def _classes(namespaces: dict[str, int], seen: Sequence[tuple[int, float, str]]) -> list[TenantClass]:
    found = []
    for low, high in zip((0, *_CLASSES), (*_CLASSES, max(namespaces.values()) + 1), strict=True):
        calls = [(milliseconds, way) for size, milliseconds, way in seen if low <= size < high]
        sizes = [size for size in namespaces.values() if low <= size < high]
        if len(calls) < 2:
            continue
        times = [milliseconds for milliseconds, _ in calls]
        ways = [way for _, way in calls]
        found.append(
            TenantClass(
                min(sizes),
                max(sizes),
                len(sizes),
                len(calls),
                statistics.median(times),
                statistics.quantiles(times, n=100)[98],
                {way: ways.count(way) for way in sorted(set(ways))},
            )
        )
    return found
