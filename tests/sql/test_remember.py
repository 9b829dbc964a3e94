"""remember: what it writes, its defaults, and what the table keeps by itself."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row


def stored(db: psycopg.Connection, memory_id: UUID) -> dict[str, Any]:
    cursor = db.cursor(row_factory=dict_row)
    row = cursor.execute("select * from hydrator.memories where memory_id = %s", (memory_id,)).fetchone()
    assert row is not None
    # What the database derives for its own use, and the calls show in their results.
    return {
        name: value for name, value in row.items() if name not in ("embedding_bits", "index_entry", "words")
    }


DEFAULTS = {
    "memory_type": "semantic",
    "content": "a heading",
    "confidence": 1.0,
    "source_type": "agent",
    "supersedes": None,
    "expires_at": None,
    "deleted_at": None,
    "pinned": False,
    "metadata": {},
    "embedding": None,
    "embedding_model": None,
    "token_count": None,
}


@pytest.mark.parametrize(
    "call",
    [
        "remember('acme', 'a heading')",
        "remember('acme', 'a heading', null, null, null, null, null, null, null, null, null, null, null)",
    ],
    ids=["left out", "null"],
)
def test_the_defaults(db: psycopg.Connection, call: str) -> None:
    with db.transaction():
        (memory_id,) = db.execute(f"select hydrator.{call}").fetchone()
        (now,) = db.execute("select now()").fetchone()
    assert isinstance(memory_id, UUID)
    assert stored(db, memory_id) == DEFAULTS | {
        "namespace": "acme",
        "memory_id": memory_id,
        "heading": "a heading",
        "created_at": now,
        "updated_at": now,
        "index_tokens": 3,
        "content_tokens": 5,
        "digest": db.execute("select hydrator.memory_digest('a heading', 'a heading')").fetchone()[0],
        "quarantine_reason": None,
    }


def test_each_parameter_is_written_as_given(db: psycopg.Connection) -> None:
    (old,) = db.execute("select hydrator.remember('acme', 'old')").fetchone()
    (memory_id,) = db.execute(
        """
        select hydrator.remember(
          p_namespace => 'acme', p_heading => ' a heading ', p_content => E'line\\r\\n\\tline ',
          p_embedding => '[1,2,3,4.5]', p_memory_type => 'lesson', p_confidence => 0.25,
          p_source_type => 'a person', p_supersedes => %s, p_expires_at => '2999-01-01 00:00+02',
          p_pinned => true, p_metadata => '{"a": {"b": [1, "é"]}}', p_embedding_model => 'some-model',
          p_token_count => 12
        )
        """,
        (old,),
    ).fetchone()
    row = stored(db, memory_id)
    assert {name: row[name] for name in DEFAULTS} == {
        "memory_type": "lesson",
        "content": "line\r\n\tline ",
        "confidence": 0.25,
        "source_type": "a person",
        "supersedes": old,
        "expires_at": datetime(2998, 12, 31, 22, tzinfo=UTC),
        "deleted_at": None,
        "pinned": True,
        "metadata": {"a": {"b": [1, "é"]}},
        "embedding": "[1,2,3,4.5]",
        "embedding_model": "some-model",
        "token_count": 12,
    }
    assert row["heading"] == " a heading "
    assert stored(db, old)["deleted_at"] == row["created_at"]


def test_every_other_words_make_another_memory(db: psycopg.Connection) -> None:
    calls = (
        "'acme', 'the same'",
        "'acme', 'the same ', 'the same'",
        "'acme', 'the same', 'the same '",
        "'b', 'the same'",
    )
    ids = {db.execute(f"select hydrator.remember({call})").fetchone()[0] for call in calls for _ in range(2)}
    assert len(ids) == 4
    assert db.execute("select count(*) from hydrator.compact_index('{acme,b}')").fetchone() == (4,)


def test_what_lies_at_the_limits_is_accepted(db: psycopg.Connection) -> None:
    for heading in (
        "x",
        "h" * 200,
        "🙂" * 200,
        "記憶" * 100,
        " \t leading and trailing \t ",
        "nul-free \x01 control",
        "\u200b",
        *(f"with {character}" for character in string.printable[:95]),
    ):
        (memory_id,) = db.execute("select hydrator.remember('acme', %s)", (heading,)).fetchone()
        row = stored(db, memory_id)
        assert (row["heading"], row["content"]) == (heading, heading)
        assert row["index_tokens"] == -(-len(heading) // 4)

    for arguments in (
        "p_confidence => 0",
        "p_confidence => 1",
        "p_token_count => 0",
        "p_token_count => 2147483647",
        "p_memory_type => 'a'",
        "p_memory_type => 'post-mortem_2'",
        "p_embedding => '[1e-17,0,0,0]'",
        "p_embedding => '[1e17,0,0,0]'",
        "p_expires_at => '0001-01-02 00:00+00'",
        "p_expires_at => '9999-12-31 00:00+00'",
    ):
        db.execute(f"select hydrator.remember('acme', 'heading', {arguments})")
    db.execute("select hydrator.remember(repeat('n', 255), 'heading')")
    db.execute("select hydrator.remember(repeat('🙂', 255), 'heading')")


def test_updated_at_is_kept_by_the_database(db: psycopg.Connection) -> None:
    (memory_id,) = db.execute("select hydrator.remember('acme', 'heading')").fetchone()
    before = stored(db, memory_id)
    db.execute("update hydrator.memories set content = 'changed', updated_at = '2000-01-01 00:00+00'")
    after = stored(db, memory_id)
    assert after["created_at"] == before["created_at"]
    assert after["updated_at"] > before["updated_at"]
    assert after["content_tokens"] == 4


def test_retiring_a_memory_updates_it(db: psycopg.Connection) -> None:
    (old,) = db.execute("select hydrator.remember('acme', 'old')").fetchone()
    before = stored(db, old)["updated_at"]
    db.execute("select hydrator.remember('acme', 'new', p_supersedes => %s)", (old,))
    row = stored(db, old)
    assert row["updated_at"] == row["deleted_at"] > before


# Tokens.


def test_estimate_tokens(db: psycopg.Connection) -> None:
    """Characters over four, rounded up; a character is a code point."""
    for text, tokens in {
        None: None,
        "": 0,
        "a": 1,
        "four": 1,
        "fives": 2,
        "🙂🙂🙂🙂": 1,
        "🙂🙂🙂🙂🙂": 2,
        "記憶は文脈": 2,
        "e\u0301e\u0301e": 2,
        "x" * 1_000_000: 250_000,
    }.items():
        assert db.execute("select hydrator.estimate_tokens(%s)", (text,)).fetchone() == (tokens,)


def test_the_tokens_of_a_memory(db: psycopg.Connection) -> None:
    for place, (heading, content, token_count, expected) in enumerate(
        (
            ("abcd", "abc", None, (1, 2)),
            ("abcd", "abcd", None, (1, 3)),
            ("abcde", "🙂", None, (2, 2)),
            ("abcd", "abcd", 99, (1, 99)),
            ("abcd", "abcd", 0, (1, 0)),
        )
    ):
        (memory_id,) = db.execute(
            "select hydrator.remember(%s, %s, %s, p_token_count => %s)",
            (f"acme {place}", heading, content, token_count),
        ).fetchone()
        row = stored(db, memory_id)
        assert (row["index_tokens"], row["content_tokens"]) == expected, (heading, content)


def test_a_million_characters_are_kept_whole(db: psycopg.Connection) -> None:
    content = "0123456789" * 100_000
    (memory_id,) = db.execute(
        "select hydrator.remember('acme', 'large', %s, '[1,0,0,0]')", (content,)
    ).fetchone()
    assert stored(db, memory_id)["content_tokens"] == 250_002
    assert db.execute(
        "select content, tokens from hydrator.fetch_memories('{acme}', %s)", ([memory_id],)
    ).fetchone() == (
        content,
        250_002,
    )
    row = db.execute(
        "select relevant, dropped from hydrator.hydrate_session('[1,0,0,0]', '{acme}')"
    ).fetchone()
    assert row == (
        [],
        [
            {
                "memory_id": str(memory_id),
                "heading": "large",
                "score": 1,
                "distance": 0,
                "vector_rank": 1,
                "text_rank": None,
                "tokens": 250_002,
                "reason": "over_budget",
                "duplicate_of": None,
            }
        ],
    )
