"""fetch_top_k_relevant, search_memories, compact_index: order, limits, filters, columns."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

RANKED_CALLS = ["fetch_top_k_relevant", "search_memories"]


def column(db: psycopg.Connection, name: str, call: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
    return [value for (value,) in db.execute(f"select {name} from hydrator.{call}", parameters or None)]


def add(db: psycopg.Connection, heading: str, embedding: str | None, arguments: str = "") -> None:
    db.execute(
        f"select hydrator.remember('a', %s, p_embedding => %s{', ' if arguments else ''}{arguments})",
        (heading, embedding),
    )


@pytest.mark.parametrize("call", RANKED_CALLS)
def test_nearest_first_and_no_more_than_asked_for(db: psycopg.Connection, call: str) -> None:
    add(db, "far", "[0,1,0,0]")
    add(db, "near", "[2,0,0,0]")
    add(db, "between", "[3,4,0,0]")
    add(db, "no vector", None)
    rows = db.execute(f"select heading, distance from hydrator.{call}('[1,0,0,0]', '{{a}}')").fetchall()
    assert rows == [("near", 0), ("between", pytest.approx(0.4)), ("far", 1)]
    assert column(db, "heading", f"{call}('[1,0,0,0]', '{{a}}', 2)") == ["near", "between"]
    assert column(db, "heading", f"{call}('[1,0,0,0]', '{{a}}', 0)") == []
    assert len(column(db, "heading", f"{call}('[1,0,0,0]', '{{a}}', 2147483647)")) == 3


@pytest.mark.parametrize("call", RANKED_CALLS)
def test_ties_come_by_memory_id_also_where_the_limit_cuts_them(db: psycopg.Connection, call: str) -> None:
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, confidence, embedding)
        select 'a', ('00000000-0000-0000-0000-00000000000' || i)::uuid, i, i, i / 10.0, '[1,1,0,0]'
        from unnest(array[3, 1, 5, 2, 4]) i
        """
    )
    assert column(db, "heading", f"{call}('[1,0,0,0]', '{{a}}', 3)") == ["1", "2", "3"]


def test_the_default_limits(db: psycopg.Connection) -> None:
    for i in range(21):
        add(db, f"memory {i}", f"[1,{i},0,0]")
    assert len(column(db, "1", "fetch_top_k_relevant('[1,0,0,0]', '{a}')")) == 5
    assert len(column(db, "1", "search_memories('[1,0,0,0]', '{a}')")) == 20


def test_pinned_memories_are_ranked_like_the_others(db: psycopg.Connection) -> None:
    add(db, "far", "[0,1,0,0]", "p_pinned => true")
    add(db, "near", "[1,0,0,0]")
    for call in RANKED_CALLS:
        assert column(db, "heading", f"{call}('[1,0,0,0]', '{{a}}')") == ["near", "far"]


def test_filters_narrow_before_the_limit(db: psycopg.Connection) -> None:
    add(db, "near", "[1,0,0,0]")
    add(db, "lesson", "[3,4,0,0]", "p_memory_type => 'lesson'")
    add(db, "project x", "[0,1,0,0]", """p_metadata => '{"project": "x", "tags": ["u", "v"], "n": null}'""")
    add(db, "both", "[-1,0,0,0]", """p_memory_type => 'lesson', p_metadata => '{"project": "x"}'""")

    for filters, expected in {
        "p_memory_types => '{lesson}'": ["lesson"],
        "p_memory_types => '{lesson,semantic}'": ["near"],
        "p_memory_types => '{}'": [],
        "p_memory_types => '{les}'": [],
        """p_metadata => '{"project": "x"}'""": ["project x"],
        """p_metadata => '{"tags": ["v"]}'""": ["project x"],
        """p_metadata => '{"n": null}'""": ["project x"],
        """p_metadata => '{"project": "X"}'""": [],
        "p_metadata => '{}'": ["near"],
        """p_memory_types => '{lesson}', p_metadata => '{"project": "x"}'""": ["both"],
        """p_memory_types => '{lesson}', p_metadata => '{"project": "x"}', p_min_similarity => 0""": [],
    }.items():
        assert column(db, "heading", f"fetch_top_k_relevant('[1,0,0,0]', '{{a}}', 1, {filters})") == expected
        assert column(db, "heading", f"search_memories('[1,0,0,0]', '{{a}}', 1, {filters})") == expected
        relevant = column(db, "relevant", f"hydrate_session('[1,0,0,0]', '{{a}}', 1, {filters})")[0]
        assert [memory["heading"] for memory in relevant] == expected, filters


@pytest.mark.parametrize("call", RANKED_CALLS)
def test_a_similarity_equal_to_the_floor_passes(db: psycopg.Connection, call: str) -> None:
    add(db, "same", "[1,0,0,0]")
    add(db, "six tenths", "[3,4,0,0]")
    add(db, "opposite", "[-1,0,0,0]")
    for floor, expected in {
        "1": ["same"],
        "1.1": [],
        "0.6001": ["same"],
        "0.6": ["same", "six tenths"],
        "-1": ["same", "six tenths", "opposite"],
    }.items():
        found = column(db, "heading", f"{call}('[1,0,0,0]', '{{a}}', p_min_similarity => {floor})")
        assert found == expected, floor


def test_the_columns_are_the_documented_ones(db: psycopg.Connection) -> None:
    for call, names in {
        "compact_index('{a}')": "memory_id heading memory_type confidence",
        "fetch_top_k_relevant('[1,0,0,0]', '{a}')": (
            "memory_id namespace memory_type heading content confidence source_type supersedes"
            " expires_at deleted_at score distance vector_rank text_rank tokens"
        ),
        "search_memories('[1,0,0,0]', '{a}')": (
            "memory_id heading memory_type confidence snippet score distance vector_rank text_rank tokens"
        ),
    }.items():
        description = db.execute(f"select * from hydrator.{call}").description
        assert " ".join(described.name for described in description) == names


def test_top_k_gives_the_memory_in_full(db: psycopg.Connection) -> None:
    (old,) = db.execute("select hydrator.remember('a', 'old')").fetchone()
    (new,) = db.execute(
        "select hydrator.remember('a', 'new', 'the content', '[1,0,0,0]', 'lesson', 0.5, 'user', %s,"
        " '2999-01-01 00:00+00', p_token_count => 7)",
        (old,),
    ).fetchone()
    (row,) = db.execute("select * from hydrator.fetch_top_k_relevant('[1,0,0,0]', '{a}')").fetchall()
    assert row[:8] == (new, "a", "lesson", "new", "the content", 0.5, "user", old)
    assert row[8].timestamp() == 32472144000
    assert row[9:] == (None, 1, 0, 1, None, 7)


# The compact index.


def test_the_index_has_the_best_confidence_first_and_ties_by_memory_id(db: psycopg.Connection) -> None:
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, confidence)
        values
          ('a', '00000000-0000-0000-0000-000000000009', 'second', 'x', 0.5),
          ('a', '00000000-0000-0000-0000-000000000001', 'last', 'x', 0),
          ('b', '00000000-0000-0000-0000-000000000008', 'first', 'x', 0.5),
          ('a', '00000000-0000-0000-0000-00000000000f', 'surest', 'x', 1)
        """
    )
    assert column(db, "heading", "compact_index('{a,b}')") == ["surest", "first", "second", "last"]
    assert column(db, "heading", "compact_index('{b,b}')") == ["first"]
    assert column(db, "heading", "compact_index('{}')") == []


def test_the_index_budget_is_in_tokens_of_the_leading_run(db: psycopg.Connection) -> None:
    for heading, confidence in (("five.", 0.9), ("nine char", 0.8), ("four", 0.7)):
        db.execute("select hydrator.remember('a', %s, p_confidence => %s::real)", (heading, confidence))
    for budget, expected in {
        0: [],
        1: [],
        2: ["five."],
        4: ["five."],
        5: ["five.", "nine char"],
        6: ["five.", "nine char", "four"],
    }.items():
        assert column(db, "heading", "compact_index('{a}', %s)", (budget,)) == expected, budget
    assert len(column(db, "heading", "compact_index('{a}', null)")) == 3
