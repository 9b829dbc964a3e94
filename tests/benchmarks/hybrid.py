"""What ranking by text beside the vector costs: hydrate_session with and without ``p_query_text``.

Three namespaces of 200, 2,000 and 20,000 memories of 1,536 dimensions in one table with all indexes; the
memories' words are spread as those of a language are (Zipf), two names are in half of them. Each call is
made in turn with the others, twice, and the second one measured: the median of the wall clock, and of the
backend's own processor time where the server is on this machine (Linux).

python tests/benchmarks/hybrid.py postgresql://postgres@localhost/postgres
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import psycopg

from hydrator import indexes, migrations
from hydrator.bench import Topics, _binary, scratch_database

SIZES = (200, 2_000, 20_000)
DIMENSIONS = 1536
REPETITIONS = 40

QUESTIONS = {
    "rare words": "where is id17 and the zebra",
    "some rare, some common": "did alice deploy the zebra with bob",
    "a word in half of them": "what is it that alice said",
    "two words in half of them": "what did alice say to bob",
    "ten words": "did alice deploy {0} {1} {2} {3} {4} {5} {6} for id33",
}

CALL = """
select relevant from hydrator.hydrate_session(
  %(embedding)s, array[%(namespace)s], 5, 6000, 3000, p_query_text => %(text)s::text
)
"""


def vocabulary(size: int, random: numpy.random.Generator) -> list[str]:
    """Words of our own, most of which are no words."""
    found: dict[str, None] = {}
    while len(found) < size:
        letters = random.choice(list("bdfgklmnprstaeiou"), random.integers(4, 9))
        found["".join(letters)] = None
    return list(found)


def fill(connection: psycopg.Connection[Any], topics: Topics, words: list[str]) -> None:
    random = numpy.random.default_rng(1)
    weights = 1 / numpy.arange(1, len(words) + 1)
    weights /= weights.sum()
    columns = "memory_id, namespace, memory_type, heading, content, confidence, embedding"
    for size in SIZES:
        for start in range(0, size, 1_000):
            count = min(1_000, size - start)
            vectors = _binary(topics.vectors(f"of {size}", size, count), "halfvec")
            with connection.cursor().copy(
                f"copy hydrator.memories ({columns}) from stdin (format binary)".encode()
            ) as copy:
                copy.set_types(["uuid", "text", "text", "text", "text", "float4", "bytea"])
                for number, vector in enumerate(vectors, start):
                    drawn = [words[place] for place in random.choice(len(words), 140, p=weights)]
                    for name, share in (("alice", 0.5), ("bob", 0.5), ("deploy", 0.02), ("zebra", 0.002)):
                        if random.random() < share:
                            drawn.insert(12, name)
                    heading, content = " ".join(drawn[:8]), " ".join([*drawn[8:], f"id{number}"])
                    row = (uuid.uuid4(), f"of {size}", "semantic", heading, content, number % 1000 / 1000)
                    copy.write_row((*row, vector))


def processor(connection: psycopg.Connection[Any]) -> float:
    """The backend's processor time, in milliseconds; 0 where it cannot be read."""
    try:
        return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e6
    except OSError:
        return 0.0


def hydrate(connection: psycopg.Connection[Any], parameters: dict[str, Any]) -> None:
    connection.execute(CALL, parameters).fetchall()


def timed(connection: psycopg.Connection[Any], run: Callable[[], Any]) -> tuple[float, float]:
    run()
    spent, began = processor(connection), time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3, processor(connection) - spent


def main(url: str) -> None:
    topics = Topics(DIMENSIONS)
    words = vocabulary(30_000, numpy.random.default_rng(2))
    with scratch_database(url) as address:
        migrations.upgrade(address, dimensions=DIMENSIONS, vector_type="halfvec")
        with psycopg.connect(address, autocommit=True) as connection:
            fill(connection, topics, words)
            for name in indexes.NAMES:
                indexes.create_index(address, name, memory="3GB")
            connection.execute("vacuum analyze hydrator.memories")
            for size in SIZES:
                vectors = [str(vector.tolist()) for vector in topics.vectors(f"of {size}", size, 20)]
                questions = {"": None} | {
                    name: text.format(*words[50:400:50]) for name, text in QUESTIONS.items()
                }
                times: dict[str, list[tuple[float, float]]] = {name: [] for name in questions}
                for number in range(-6, REPETITIONS):
                    for name, text in questions.items():
                        parameters = {
                            "embedding": vectors[number % len(vectors)],
                            "namespace": f"of {size}",
                            "text": text,
                        }
                        seen = timed(connection, partial(hydrate, connection, parameters))
                        if number >= 0:
                            times[name].append(seen)
                wall = {name: statistics.median(one for one, _ in seen) for name, seen in times.items()}
                spent = {name: statistics.median(one for _, one in seen) for name, seen in times.items()}
                print(f"{size:,} memories: vector alone {wall['']:.2f} ms")
                for name in QUESTIONS:
                    share = f", of processor time {spent[name] / spent['']:.1f}" if spent[""] else ""
                    print(f"  {name:26} {wall[name]:6.2f} ms, times {wall[name] / wall['']:.1f}{share}")


if __name__ == "__main__":
    main(sys.argv[1])
