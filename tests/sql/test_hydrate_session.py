"""hydrate_session: the budget, the two packings, pinned memories, and the shape of the answer."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

QUERY = "p_query_embedding => '[1,0,0,0]', p_namespaces => '{agent}'"


def hydrate(db: psycopg.Connection, arguments: str = "") -> dict[str, Any]:
    """Hydrate ``agent``; ``arguments`` are further ones, as SQL."""
    call = f"select * from hydrator.hydrate_session({QUERY}{', ' if arguments else ''}{arguments})"
    row = db.cursor(row_factory=dict_row).execute(call).fetchone()
    assert row is not None
    return row


def add_ranked(db: psycopg.Connection, *costs: int) -> None:
    """Add memories of these costs, each further away than the one before; 1 token each in the index."""
    for place, cost in enumerate(costs):
        db.execute(
            "select hydrator.remember('agent', %s, p_embedding => %s, p_token_count => %s)",
            (f"r{place}", f"[1,{place},0,0]", cost),
        )


def add_pinned(db: psycopg.Connection, *costs: int) -> None:
    """Add pinned memories of these costs, each less certain than the one before; 1 token in the index."""
    for place, cost in enumerate(costs):
        db.execute(
            "select hydrator.remember('agent', %s, p_confidence => %s::real, p_pinned => true,"
            " p_token_count => %s)",
            (f"p{place}", 0.9 - place / 10, cost),
        )


def headings(memories: list[dict[str, Any]]) -> list[str]:
    return [memory["heading"] for memory in memories]


def reasons(session: dict[str, Any]) -> dict[str, str]:
    return {memory["heading"]: memory["reason"] for memory in session["dropped"]}


def test_seed_arithmetic(db: psycopg.Connection) -> None:
    """200 memories: the index and the nearest five cost under 9% of what loading everything costs."""
    db.execute(
        """
        insert into hydrator.memories (namespace, heading, content, embedding)
        select 'agent', rpad('memory ' || i, 60, '.'), repeat('x', 939), array[1, i, 0, 0]::vector
        from generate_series(1, 200) i
        """
    )
    session = hydrate(db, "p_top_k => 5")
    assert (session["index_tokens"], session["relevant_tokens"], session["tokens_used"]) == (3000, 1250, 4250)
    assert (session["index_shown"], session["index_total"], len(session["index"])) == (200, 200, 200)
    assert [memory["heading"].rstrip(".") for memory in session["relevant"]] == [
        f"memory {i}" for i in range(1, 6)
    ]
    assert not session["truncated"]
    assert not session["over_budget"]

    (everything,) = db.execute("select sum(content_tokens) from hydrator.live_memories").fetchone()
    assert everything == 50_000
    assert session["tokens_used"] < 0.09 * everything


# The budget.


def test_stop_ends_at_the_first_that_does_not_fit(db: psycopg.Connection) -> None:
    add_ranked(db, 900, 30, 30)
    session = hydrate(db, "p_token_budget => 503")
    assert session["relevant"] == []
    assert session["relevant_tokens"] == 0
    assert reasons(session) == {"r0": "over_budget", "r1": "after_cutoff", "r2": "after_cutoff"}
    assert session["truncated"]
    assert not session["over_budget"]


def test_skip_passes_over_the_one_that_does_not_fit(db: psycopg.Connection) -> None:
    add_ranked(db, 900, 30, 30)
    session = hydrate(db, "p_token_budget => 503, p_packing => 'skip'")
    assert headings(session["relevant"]) == ["r1", "r2"]
    assert reasons(session) == {"r0": "over_budget"}
    assert (session["index_tokens"], session["relevant_tokens"], session["tokens_used"]) == (3, 60, 63)
    assert session["truncated"]


def test_stop_keeps_what_came_before_the_cutoff(db: psycopg.Connection) -> None:
    add_ranked(db, 40, 70, 10)
    session = hydrate(db, "p_token_budget => 103")
    assert headings(session["relevant"]) == ["r0"]
    assert reasons(session) == {"r1": "over_budget", "r2": "after_cutoff"}


@pytest.mark.parametrize("packing", ["stop", "skip"])
def test_an_exact_fit_is_accepted_and_one_token_less_is_not(db: psycopg.Connection, packing: str) -> None:
    add_ranked(db, 60, 40)
    exact = hydrate(db, f"p_token_budget => 102, p_packing => '{packing}'")
    assert headings(exact["relevant"]) == ["r0", "r1"]
    assert (exact["tokens_used"], exact["token_budget"]) == (102, 102)
    assert not exact["truncated"]

    short = hydrate(db, f"p_token_budget => 101, p_packing => '{packing}'")
    assert headings(short["relevant"]) == ["r0"]
    assert reasons(short) == {"r1": "over_budget"}


def test_budget_0_accepts_nothing_and_says_so(db: psycopg.Connection) -> None:
    add_ranked(db, 10, 10)
    session = hydrate(db, "p_token_budget => 0")
    assert headings(session["index"]) != []
    assert session["relevant"] == []
    assert reasons(session) == {"r0": "over_budget", "r1": "after_cutoff"}
    assert (session["tokens_used"], session["token_budget"]) == (2, 0)
    assert session["truncated"]
    assert session["over_budget"]


def test_an_index_over_budget_loads_whole_and_leaves_no_room(db: psycopg.Connection) -> None:
    add_ranked(db, 1, 1, 1)
    add_pinned(db, 1)
    session = hydrate(db, "p_token_budget => 3, p_packing => 'skip'")
    assert session["index_shown"] == session["index_total"] == len(session["index"]) == 4
    assert (session["index_tokens"], session["relevant_tokens"], session["tokens_used"]) == (4, 0, 4)
    assert session["over_budget"]
    assert reasons(session) == {
        "p0": "pinned_share",
        "r0": "over_budget",
        "r1": "over_budget",
        "r2": "over_budget",
    }


def test_an_index_over_budget_accepts_not_even_what_costs_nothing(db: psycopg.Connection) -> None:
    """Accepted is what keeps index and running sum within the budget; here the index breaks it."""
    add_ranked(db, 0)
    add_pinned(db, 0)
    session = hydrate(db, "p_token_budget => 1")
    assert session["over_budget"]
    assert session["relevant"] == []
    assert reasons(session) == {"p0": "pinned_share", "r0": "over_budget"}


def test_an_index_that_takes_the_whole_budget_is_not_over_it(db: psycopg.Connection) -> None:
    add_ranked(db, 1)
    session = hydrate(db, "p_token_budget => 1")
    assert not session["over_budget"]
    assert session["truncated"]
    assert (session["tokens_used"], session["token_budget"]) == (1, 1)


def test_the_largest_costs_and_budget_do_not_overflow(db: psycopg.Connection) -> None:
    add_ranked(db, 2_147_483_647, 2_147_483_647, 5)
    session = hydrate(db, "p_token_budget => 2147483647, p_packing => 'skip'")
    assert headings(session["relevant"]) == ["r2"]
    assert reasons(session) == {"r0": "over_budget", "r1": "over_budget"}


# The index budget.


def test_the_index_budget_loads_the_leading_run(db: psycopg.Connection) -> None:
    """The third entry, of one token, would fit after the first; but the run ends at the second."""
    for heading, confidence in (("first", 0.9), ("second " * 8, 0.8), ("3rd", 0.7)):
        db.execute(
            "select hydrator.remember('agent', %s, p_confidence => %s::real)", (heading.strip(), confidence)
        )
    session = hydrate(db, "p_index_budget => 4")
    assert headings(session["index"]) == ["first"]
    assert (session["index_tokens"], session["index_shown"], session["index_total"]) == (2, 1, 3)

    whole = hydrate(db)
    assert whole["index_shown"] == whole["index_total"] == 3


def test_an_index_budget_makes_room_for_the_relevant(db: psycopg.Connection) -> None:
    add_ranked(db, 8, 8)
    assert hydrate(db, "p_token_budget => 17")["relevant_tokens"] == 8
    session = hydrate(db, "p_token_budget => 17, p_index_budget => 1")
    assert (session["index_tokens"], session["relevant_tokens"], session["tokens_used"]) == (1, 16, 17)

    session = hydrate(db, "p_token_budget => 17, p_index_budget => 0")
    assert session["index"] == []
    assert (session["index_tokens"], session["index_shown"], session["index_total"]) == (0, 0, 2)
    assert headings(session["relevant"]) == ["r0", "r1"]


def test_the_index_budget_may_exceed_the_token_budget(db: psycopg.Connection) -> None:
    add_ranked(db, 8, 8)
    session = hydrate(db, "p_token_budget => 1, p_index_budget => 100")
    assert session["index_shown"] == 2
    assert session["over_budget"]


# Pinned memories.


@pytest.mark.parametrize(("cost", "accepted"), [(50, True), (51, False)])
def test_pinned_ones_may_use_half_of_what_the_index_left(
    db: psycopg.Connection, cost: int, accepted: bool
) -> None:
    """102 less an index of one leaves 101; its half, rounded down, is 50."""
    add_pinned(db, cost)
    session = hydrate(db, "p_token_budget => 102")
    assert headings(session["relevant"]) == (["p0"] if accepted else [])
    assert reasons(session) == ({} if accepted else {"p0": "pinned_share"})
    assert session["truncated"] is not accepted


def test_the_pinned_share_is_used_up_in_order_of_confidence(db: psycopg.Connection) -> None:
    add_pinned(db, 30, 30, 20)
    session = hydrate(db, "p_token_budget => 103")
    assert headings(session["relevant"]) == ["p0", "p2"]
    assert reasons(session) == {"p1": "pinned_share"}


@pytest.mark.parametrize("packing", ["stop", "skip"])
def test_a_pinned_one_that_does_not_fit_never_ends_the_ranked_list(
    db: psycopg.Connection, packing: str
) -> None:
    add_pinned(db, 5000, 10)
    add_ranked(db, 60, 20)
    session = hydrate(db, f"p_token_budget => 100, p_packing => '{packing}'")
    assert headings(session["relevant"]) == ["p1", "r0", "r1"]
    assert reasons(session) == {"p0": "pinned_share"}


def test_what_the_pinned_use_is_gone_for_the_ranked(db: psycopg.Connection) -> None:
    add_pinned(db, 40)
    add_ranked(db, 58, 10)
    session = hydrate(db, "p_token_budget => 103, p_packing => 'skip'")
    assert headings(session["relevant"]) == ["p0", "r0"]
    assert reasons(session) == {"r1": "over_budget"}
    session = hydrate(db, "p_token_budget => 100, p_packing => 'skip'")
    assert headings(session["relevant"]) == ["p0", "r1"]


def test_pinned_ones_take_no_place_in_the_top_k(db: psycopg.Connection) -> None:
    add_ranked(db, 5, 5, 5)
    db.execute("update hydrator.memories set pinned = true where heading = 'r0'")
    assert headings(hydrate(db, "p_top_k => 1")["relevant"]) == ["r0", "r1"]
    assert headings(hydrate(db, "p_top_k => 0")["relevant"]) == ["r0"]
    assert headings(hydrate(db, "p_top_k => 9")["relevant"]) == ["r0", "r1", "r2"]


def test_pinned_ones_come_by_confidence_then_memory_id(db: psycopg.Connection) -> None:
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, confidence, pinned, embedding)
        values
          ('agent', '00000000-0000-0000-0000-000000000003', 'tie, larger id', 'x', 0.5, true, '[1,0,0,0]'),
          ('agent', '00000000-0000-0000-0000-000000000002', 'tie, smaller id', 'x', 0.5, true, '[0,1,0,0]'),
          ('agent', '00000000-0000-0000-0000-000000000004', 'surest', 'x', 0.6, true, null)
        """
    )
    session = hydrate(db)
    assert headings(session["relevant"]) == ["surest", "tie, smaller id", "tie, larger id"]
    assert [memory["distance"] for memory in session["relevant"]] == [None, 1, 0]


def test_a_pinned_one_needs_no_embedding_and_passes_every_filter(db: psycopg.Connection) -> None:
    add_pinned(db, 5)
    add_ranked(db, 5)
    session = hydrate(
        db,
        "p_memory_types => '{lesson}', p_min_similarity => 2, p_metadata => '{\"project\": \"x\"}'",
    )
    assert [(memory["heading"], memory["distance"]) for memory in session["relevant"]] == [("p0", None)]
    assert not session["truncated"]


# What are the candidates.


def test_the_filters_narrow_the_ranking_and_not_the_index(db: psycopg.Connection) -> None:
    add_ranked(db, 5, 5)
    db.execute("update hydrator.memories set memory_type = 'lesson' where heading = 'r1'")
    session = hydrate(db, "p_memory_types => '{lesson}', p_top_k => 1")
    assert headings(session["relevant"]) == ["r1"]
    assert session["index_shown"] == session["index_total"] == 2
    assert not session["truncated"]


def test_a_memory_without_an_embedding_is_in_the_index_and_never_ranked(db: psycopg.Connection) -> None:
    db.execute("select hydrator.remember('agent', 'no vector')")
    add_ranked(db, 5)
    session = hydrate(db, "p_top_k => 10")
    assert sorted(headings(session["index"])) == ["no vector", "r0"]
    assert headings(session["relevant"]) == ["r0"]
    assert session["dropped"] == []


@pytest.mark.parametrize("namespaces", ["{}", "{nobody}"])
def test_nothing_authorised_gives_an_empty_session(db: psycopg.Connection, namespaces: str) -> None:
    add_ranked(db, 5)
    add_pinned(db, 5)
    row = db.execute(
        "select * from hydrator.hydrate_session('[1,0,0,0]', %s, p_token_budget => 0)", (namespaces,)
    ).fetchone()
    assert row == ([], [], [], 0, 0, 0, 0, False, False, 0, 0, "exact")


def test_a_namespace_named_twice_counts_once(db: psycopg.Connection) -> None:
    add_ranked(db, 5, 5)
    add_pinned(db, 5)
    once = hydrate(db, "p_index_budget => 2")
    twice = db.execute(
        "select * from hydrator.hydrate_session('[1,0,0,0]', '{agent,agent}', p_index_budget => 2)"
    ).fetchone()
    assert twice == tuple(once.values())


def test_one_id_in_two_namespaces_is_two_memories(db: psycopg.Connection) -> None:
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, embedding, pinned)
        select n, '00000000-0000-0000-0000-000000000001', 'of ' || n, 'content of ' || n, '[1,0,0,0]', n < 'c'
        from unnest(array['a', 'b', 'c', 'd']) n
        """
    )
    index, relevant = db.execute(
        "select index, relevant from hydrator.hydrate_session('[1,0,0,0]', '{d,c,b,a}')"
    ).fetchone()
    assert headings(index) == ["of a", "of b", "of c", "of d"]
    assert [(memory["namespace"], memory["content"]) for memory in relevant] == [
        (namespace, f"content of {namespace}") for namespace in "abcd"
    ]


# The shape of the answer.


def test_the_columns_are_the_documented_ones(db: psycopg.Connection) -> None:
    assert list(hydrate(db)) == [
        "index",
        "relevant",
        "dropped",
        "index_tokens",
        "relevant_tokens",
        "tokens_used",
        "token_budget",
        "truncated",
        "over_budget",
        "index_shown",
        "index_total",
        "ranked_by",
    ]


def test_each_json_object_has_its_keys_in_order(db: psycopg.Connection) -> None:
    add_ranked(db, 5, 5000)
    add_pinned(db, 5, 5000)
    session = hydrate(db, "p_token_budget => 100")
    for entry in session["index"]:
        assert list(entry) == ["memory_id", "heading", "memory_type", "confidence"]
    assert headings(session["relevant"]) == ["p0", "r0"]
    for memory in session["relevant"]:
        assert list(memory) == [
            "memory_id",
            "namespace",
            "memory_type",
            "heading",
            "content",
            "confidence",
            "source_type",
            "supersedes",
            "expires_at",
            "created_at",
            "metadata",
            "pinned",
            "score",
            "distance",
            "vector_rank",
            "text_rank",
            "tokens",
        ]
    assert headings(session["dropped"]) == ["p1", "r1"]
    for memory in session["dropped"]:
        assert list(memory) == [
            *(
                "memory_id",
                "heading",
                "score",
                "distance",
                "vector_rank",
                "text_rank",
                "tokens",
                "reason",
                "duplicate_of",
            )
        ]


def test_the_values_in_relevant_are_the_row_s(db: psycopg.Connection) -> None:
    (old,) = db.execute("select hydrator.remember('agent', 'old')").fetchone()
    (new,) = db.execute(
        """
        select hydrator.remember('agent', 'new', 'two
        lines and "quotes"', '[3,4,0,0]', 'lesson', 0.9, 'user', %s, '2999-12-31 23:59:59.5+01', false,
          '{"b": [1, null], "a": "é🙂"}', 'some-model', 77)
        """,
        (old,),
    ).fetchone()
    (created,) = db.execute(
        """
        select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')
        from hydrator.memories where memory_id = %s
        """,
        (new,),
    ).fetchone()
    (memory,) = hydrate(db)["relevant"]
    # JSON leaves out a fraction's last zeros.
    assert memory.pop("created_at").split("+")[0] == created.split("+")[0].rstrip("0").rstrip(".")
    assert memory == {
        "memory_id": str(new),
        "namespace": "agent",
        "memory_type": "lesson",
        "heading": "new",
        "content": 'two\n        lines and "quotes"',
        "confidence": 0.9,
        "source_type": "user",
        "supersedes": str(old),
        "expires_at": "2999-12-31T22:59:59.5+00:00",
        "metadata": {"b": [1, None], "a": "é🙂"},
        "pinned": False,
        "score": pytest.approx(0.6),
        "distance": pytest.approx(0.4),
        "vector_rank": 1,
        "text_rank": None,
        "tokens": 77,
    }


def test_the_defaults_are_five_memories_and_six_thousand_tokens(db: psycopg.Connection) -> None:
    add_ranked(db, 1, 1, 1, 1, 1, 1)
    session = hydrate(db)
    assert len(session["relevant"]) == 5
    assert session["token_budget"] == 6000
    assert session["index_shown"] == 6
