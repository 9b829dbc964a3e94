"""What the wrapper costs over the bare SQL call, on 200 memories; prints medians in microseconds.

    python tests/benchmarks/wrapper.py [--dimensions N] [--repetitions N] [--json]

It starts an embedded server in a temporary folder. The bare call sends its vector with pgvector's package.
Repetitions are interleaved, so that whatever else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector

from hydrator import (
    HydrationCoordinator,
    HydrationMode,
    HydrationPolicy,
    MemoryStore,
    RetrievalCoordinator,
    migrations,
)
from hydrator.embedded import EmbeddedServer

MEMORIES, HEADING, CONTENT = 200, 60, 1_000
TOP_K, BUDGET = 5, 6_000

BARE = """
select * from hydrator.hydrate_session(
  %(query)s, %(namespaces)s, p_top_k => %(top_k)s, p_token_budget => %(budget)s, p_embedding_model => 'constant',
  p_query_text => %(text)s)
"""


class Constant:
    """One vector for every text, at no cost."""

    model = "constant"

    def __init__(self, vector: list[float]) -> None:
        self.vector = vector
        self.dimensions = len(vector)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.vector for _ in texts]


@contextmanager
def server(dimensions: int = 256) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hydrator-benchmark-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        embedded = EmbeddedServer(folder, settings={"fsync": "off"})
        try:
            url = embedded.start(migrate=False)
            migrations.upgrade(url, dimensions=dimensions)
            yield url
        finally:
            embedded.stop()


def fill(store: MemoryStore, namespace: str, dimensions: int) -> list[float]:
    """Fill the namespace, and give the vector to ask with."""
    numbers = random.Random(0)
    with store.transaction() as inside:
        for number in range(MEMORIES):
            inside.remember(
                namespace,
                f"Heading {number} ".ljust(HEADING, "."),
                f"Content {number} ".ljust(CONTENT, "."),
                embedding=[numbers.gauss(0, 1) for _ in range(dimensions)],
                embedding_model="constant",
                confidence=round(numbers.random(), 2),
            )
    return [numbers.gauss(0, 1) for _ in range(dimensions)]


def median_times(calls: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Give each call's median time in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repetition in range(repetitions + 20):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if repetition >= 20:  # what comes before warms up
                times[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(measured) for name, measured in times.items()}


def measure(url: str, dimensions: int, repetitions: int) -> dict[str, float]:
    namespace = "benchmark"
    with psycopg.connect(url, autocommit=True) as connection, MemoryStore(url) as store:
        register_vector(connection)
        query = fill(store, namespace, dimensions)
        connection.execute("vacuum analyze hydrator.memories")
        retrieval = RetrievalCoordinator(store, Constant(query), [namespace])
        eager = HydrationCoordinator(retrieval=retrieval, policy=HydrationPolicy(top_k=TOP_K))
        lazy = HydrationCoordinator(retrieval=retrieval, policy=HydrationPolicy(mode=HydrationMode.JIT))
        parameters = {"namespaces": [namespace], "top_k": TOP_K, "budget": BUDGET}

        def bare(text: str | None) -> None:
            connection.execute(BARE, {"query": Vector(query), "text": text, **parameters}).fetchall()

        return median_times(
            {
                "bare": partial(bare, None),
                "bare with text": partial(bare, "task"),
                "store": lambda: store.hydrate_session(
                    query, [namespace], top_k=TOP_K, token_budget=BUDGET, embedding_model="constant"
                ),
                "eager": lambda: eager.hydrate("task"),
                "jit": lambda: lazy.hydrate("task"),
            },
            repetitions,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server(options.dimensions) as url:
        times = measure(url, options.dimensions, options.repetitions)
    # The coordinator ranks by the text too.
    against = {name: "bare with text" if name == "eager" else "bare" for name in times}
    ratios = {name: times[name] / times[against[name]] for name in times}
    if options.json:
        print(json.dumps({"microseconds": times, "ratios": ratios}))
        return
    labels = {
        "bare": "the SQL call through psycopg",
        "bare with text": "the same, ranked by the text too",
        "store": "MemoryStore.hydrate_session",
        "eager": "HydrationCoordinator.hydrate, eager",
        "jit": "HydrationCoordinator.hydrate, just-in-time",
    }
    for name, label in labels.items():
        print(f"{label:44} {times[name]:10.1f} µs   {ratios[name]:7.3f} × {against[name]}")


if __name__ == "__main__":
    main()
