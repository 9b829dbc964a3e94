"""What row security costs a hydration: secured over unsecured, in medians of interleaved calls.

    python tests/benchmarks/secured.py [--repetitions N] [--json]

Two databases of one temporary embedded server hold the same memories, with both optional indexes; one
is secured and called by a role with grants. Prints milliseconds and the ratio by way of ranking.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from wrapper import median_times, server

from hydrator import indexes, migrations

DIMENSIONS = 256
SIZES = {"exact": 200, "bits": 5_000, "hnsw": 20_000}

FILL = """
insert into hydrator.memories (namespace, heading, content, confidence, embedding)
select %(namespace)s, rpad('Heading ' || i, 60, '.'), rpad('Content ' || i, 1000, '.'), mod(i, 100) / 100.0,
  (select array_agg(sin(i * j) + cos(i + j * j)) from generate_series(1, %(dimensions)s) j)::vector
from generate_series(1, %(size)s) i
"""
CALL = "select * from hydrator.hydrate_session(%s, %s, p_index_budget => %s)"


def prepare(url: str) -> tuple[str, str]:
    """Make the two databases; give their addresses."""
    names = ("hydrator_plain", "hydrator_secured")
    plain, secured = (make_conninfo(url, dbname=name) for name in names)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create database {names[0]}")
        migrations.upgrade(plain, dimensions=DIMENSIONS)
        with psycopg.connect(plain, autocommit=True) as connection:
            for namespace, size in SIZES.items():
                connection.execute(FILL, {"namespace": namespace, "size": size, "dimensions": DIMENSIONS})
            for name in indexes.NAMES:
                indexes.create_index(plain, name)
            connection.execute("vacuum analyze")
        admin.execute(f"create database {names[1]} template {names[0]}")
    with psycopg.connect(secured, autocommit=True) as connection:
        connection.execute("select hydrator.secure()")
        connection.execute("create role tenant login password 'tenant' in role hydrator_reader")
        connection.execute(
            "insert into hydrator.namespace_grants (role, namespace) select 'tenant', unnest(%s::text[])",
            [[*SIZES, *(f"another {number}" for number in range(20))]],
        )
        connection.execute("vacuum analyze")
    return plain, make_conninfo(secured, user="tenant", password="tenant")


def hydrate(connection: psycopg.Connection[Any], parameters: list[Any]) -> None:
    connection.execute(CALL, parameters).fetchall()


def measure(url: str, repetitions: int) -> dict[str, dict[str, float]]:
    query = str([1.0 / (number + 1) for number in range(DIMENSIONS)])
    plain, secured = prepare(url)
    times = {}
    with psycopg.connect(plain, autocommit=True) as one, psycopg.connect(secured, autocommit=True) as other:
        for way in SIZES:
            for budget in (None, 3_000):
                parameters = [query, [way], budget]
                if (found := other.execute(CALL, parameters).fetchone()) is None or found[-1] != way:
                    raise AssertionError(f"not ranked by {way}: {found}")
                measured = median_times(
                    {
                        "plain": partial(hydrate, one, parameters),
                        "secured": partial(hydrate, other, parameters),
                    },
                    repetitions,
                )
                name = f"{way}, index {'whole' if budget is None else budget}"
                times[name] = {**measured, "ratio": measured["secured"] / measured["plain"]}
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server() as url:
        times = measure(url, options.repetitions)
    if options.json:
        print(json.dumps(times))
        return
    print(f"{'':22} {'plain':>9} {'secured':>9}   ratio")
    for name, row in times.items():
        print(f"{name:22} {row['plain'] / 1e3:9.2f} {row['secured'] / 1e3:9.2f} {row['ratio']:7.2f}")


if __name__ == "__main__":
    main()
