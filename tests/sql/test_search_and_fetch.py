"""Progressive disclosure: search gives one-line snippets, fetch gives full memories by id."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest


def snippets(db: psycopg.Connection, *contents: str) -> list[str]:
    """Give the snippets of these contents, in their order."""
    for place, content in enumerate(contents):
        db.execute("select hydrator.remember('acme', 'heading', %s, %s)", (content, f"[1,{place},0,0]"))
    rows = db.execute("select snippet from hydrator.search_memories('[1,0,0,0]', '{acme}', 1000)").fetchall()
    return [row[0] for row in rows]


def test_a_snippet_has_at_most_120_characters(db: psycopg.Connection) -> None:
    assert snippets(db, "x" * 119, "x" * 120, "x" * 121, "x" * 100_000) == [
        "x" * 119,
        "x" * 120,
        "x" * 119 + "…",
        "x" * 119 + "…",
    ]


def test_white_space_is_folded_before_the_snippet_is_cut(db: psycopg.Connection) -> None:
    assert snippets(
        db,
        "one\n\n  two\t\tthree\r\nfour",
        "\n\t  \u3000 leading",
        "trailing \n",
        "no\u00a0break \u2003 em\u2028line",
        " ".join(["x" * 9] * 12),
        "\n" * 500 + "text after white space",
        "x  " * 200,
        "x" * 118 + " " * 50 + "yz",
    ) == [
        "one two three four",
        "leading",
        "trailing",
        "no break em line",
        " ".join(["x" * 9] * 12),
        "text after white space",
        "x " * 59 + "x…",
        "x" * 118 + "…",
    ]


def test_characters_outside_the_bmp_count_as_one_and_stay_whole(db: psycopg.Connection) -> None:
    assert snippets(db, "🙂" * 120, "🙂" * 121, "記" * 121) == [
        "🙂" * 120,
        "🙂" * 119 + "…",
        "記" * 119 + "…",
    ]


# fetch_memories.


@pytest.fixture
def ids(db: psycopg.Connection) -> list[UUID]:
    return [
        db.execute("select hydrator.remember('acme', %s)", (heading,)).fetchone()[0] for heading in "abcd"
    ]


def fetch(db: psycopg.Connection, memory_ids: list[UUID | None]) -> str:
    rows = db.execute("select heading from hydrator.fetch_memories('{acme}', %s::uuid[])", (memory_ids,))
    return "".join(row[0] for row in rows)


def test_fetch_keeps_the_order_asked_for(db: psycopg.Connection, ids: list[UUID]) -> None:
    a, b, c, d = ids
    assert fetch(db, [c, a, d, b]) == "cadb"
    assert fetch(db, [b, a]) == "ba"
    assert fetch(db, [b, a, b, c, a]) == "bac", "one asked for twice comes once, at its first place"
    assert fetch(db, []) == ""


def test_fetch_leaves_out_what_is_absent_or_dead(db: psycopg.Connection, ids: list[UUID]) -> None:
    a, b, c, d = ids
    db.execute("select hydrator.forget('acme', %s)", (b,))
    db.execute("select hydrator.remember('acme', 'successor', p_supersedes => %s)", (c,))
    (elsewhere,) = db.execute("select hydrator.remember('other', 'elsewhere')").fetchone()
    assert fetch(db, [uuid4(), d, b, c, None, elsewhere, a]) == "da"


def test_fetch_gives_the_memory_in_full_without_its_vector(db: psycopg.Connection) -> None:
    (old,) = db.execute("select hydrator.remember('acme', 'old')").fetchone()
    (memory_id,) = db.execute(
        "select hydrator.remember('acme', 'new', E'the\\ncontent', '[1,0,0,0]', 'lesson', 0.5, 'user', %s,"
        " '2999-01-01 00:00+00', true, '{\"k\": 1}', 'some-model', 9)",
        (old,),
    ).fetchone()
    cursor = db.execute("select * from hydrator.fetch_memories('{acme}', %s)", ([memory_id],))
    names = [described.name for described in cursor.description]
    (row,) = cursor.fetchall()
    memory = dict(zip(names, row, strict=True))
    stored = db.execute(
        "select expires_at, created_at, updated_at from hydrator.memories where memory_id = %s", (memory_id,)
    ).fetchone()
    assert list(memory.items()) == [
        ("memory_id", memory_id),
        ("namespace", "acme"),
        ("memory_type", "lesson"),
        ("heading", "new"),
        ("content", "the\ncontent"),
        ("confidence", 0.5),
        ("source_type", "user"),
        ("supersedes", old),
        ("expires_at", stored[0]),
        ("created_at", stored[1]),
        ("updated_at", stored[2]),
        ("pinned", True),
        ("metadata", {"k": 1}),
        ("embedding_model", "some-model"),
        ("tokens", 9),
    ]
