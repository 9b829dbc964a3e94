"""``hydrator bench`` on stores so small that its figures mean nothing: what it does and says is what counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hydrator import bench, bench_tenants, cli


def benched(url: str, *arguments: str) -> Any:
    done = CliRunner().invoke(
        cli.app, ["bench", "--url", url, "--dimensions", "8", "--json", *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def databases(connection: psycopg.Connection) -> set[str]:
    return {name for (name,) in connection.execute("select datname from pg_database").fetchall()}


def test_both_ways_are_measured_and_the_scratch_database_is_dropped(
    db: psycopg.Connection, url: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    before = databases(db)
    picture = tmp_path / "bench.png"
    told = benched(url, "--sizes", "20,1100", "--repetitions", "3", "--writes", "3", "--plot", str(picture))
    assert [row["size"] for row in told["sizes"]] == [20, 1100]
    assert [row["ranked_by"] for row in told["sizes"]] == ["exact", "bits"]
    for row in told["sizes"]:
        assert row["ratio"] == pytest.approx(row["plain"] / row["ours"])
        assert row["recall_at_10"] > 0.5
    assert [recall["memories"] for recall in told["recalls"]] == [1259, 126, 13]
    assert all(recall["fewest"] == 10 for recall in told["recalls"])
    assert len(told["writes"]) == 4
    assert told["heap_fetches"] == 0
    assert told["bytes"]["memories_bits_idx"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert databases(db) == before


def test_ours_alone(url: str) -> None:
    told = benched(url, "--sizes", "20", "--repetitions", "3", "--no-plain")
    assert [(row["plain"], row["everything"], row["ratio"]) for row in told["sizes"]] == [(None, None, None)]
    assert (told["writes"], told["growth"]) == ({}, None)


def test_growth_is_between_the_sizes_that_have_an_index_budget() -> None:
    result = bench.BenchResult(8, "vector", "", "")
    result.sizes = [
        bench.SizeResult(size, 0.1, ours=ours) for size, ours in ((200, 9), (2_000, 2), (9_000, 5))
    ]
    assert result.growth == (2_000, 9_000, 2.5)


@pytest.mark.parametrize("hnsw", [True, False])
def test_tenants_of_every_size_are_called(url: str, hnsw: bool) -> None:
    result = bench_tenants.run(url, 1_000, 20, calls=60, dimensions=8, hnsw=hnsw)
    assert {name for name in result.bytes if name in ("memories_bits_idx", "memories_hnsw_idx")} == (
        {"memories_bits_idx", "memories_hnsw_idx"} if hnsw else {"memories_bits_idx"}
    )
    assert sum(row.calls for row in result.classes) == 60
    assert sum(row.namespaces for row in result.classes) == 20
    assert [row.largest for row in result.classes] == [91, 273]
    for row in result.classes:
        assert 0 < row.median <= row.p99
        assert sum(row.ranked_by.values()) == row.calls


@given(st.integers(1, 500), st.integers(0, 5_000))
def test_zipf_sizes_are_all_of_the_memories(tenants: int, spare: int) -> None:
    sizes = bench_tenants.zipf_sizes(tenants + spare, tenants)
    assert len(sizes) == tenants
    assert sum(sizes) == tenants + spare
    assert min(sizes) >= 1


def test_the_plain_way_cuts_where_ours_does(url: str) -> None:
    """Both ways accept the same memories, or the comparison would be none."""
    topics = bench.Topics(8)
    with bench.scratch_database(url) as address:
        from hydrator import migrations

        migrations.upgrade(address, dimensions=8, vector_type="vector")
        with psycopg.connect(address, autocommit=True) as connection:
            bench.register_vector(connection)
            connection.execute(bench._PLAIN.format(extension_schema="public", dimensions=8).encode())
            bench.fill(connection, {"a": 60}, topics, "vector", lambda phase, done, total: None)
            for budget in (0, 1_000, 2_000):
                bench_budget, bench.BUDGET = bench.BUDGET, budget
                try:
                    parameters = {"query": topics.vectors("a", 60, 1)[0], "namespace": "a", "top_k": 5}
                    parameters |= {"budget": budget, "index_budget": None}
                    [ours] = bench._run(connection, bench._OURS, parameters)
                    assert bench._plain_session(connection, parameters) == len(ours[1])
                finally:
                    bench.BUDGET = bench_budget
