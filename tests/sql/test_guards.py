"""What may be written: sizes, rates, duplicates; and quarantine, which takes out without losing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import psycopg
import pytest

REMEMBER = "select hydrator.remember(%s, %s, %s)"


def remember(
    db: psycopg.Connection, heading: str, content: str = "c", more: str = "", namespace: str = "a"
) -> UUID:
    call = f"select hydrator.remember(%s, %s, %s{more})"
    return db.execute(call, (namespace, heading, content)).fetchone()[0]


def live(db: psycopg.Connection) -> list[UUID]:
    return [
        memory_id for (memory_id,) in db.execute("select memory_id from hydrator.live_memories order by 1")
    ]


def refused(db: psycopg.Connection, statement: str, *parameters: object) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        db.execute(statement, parameters)
    return caught.value


def test_sizes_are_limited_by_settings(db: psycopg.Connection) -> None:
    db.execute("set hydrator.max_content_chars = 10; set hydrator.max_metadata_bytes = 20")
    memory_id = remember(db, "h", "語" * 10, """, p_metadata => '{"key": "语语语"}'""")
    error = refused(db, REMEMBER, "a", "h2", "x" * 11)
    assert (error.sqlstate, error.diag.message_primary) == (
        "MH010",
        "content has 11 characters, at most 10 are allowed",
    )
    assert "hydrator.max_content_chars" in error.diag.message_hint
    metadata = "update hydrator.memories set metadata = %s"
    error = refused(db, metadata, '{"key": "语语语语"}')
    assert (error.sqlstate, error.diag.message_primary) == (
        "MH010",
        "metadata has 23 bytes as text, at most 20 are allowed",
    )
    assert "hydrator.max_metadata_bytes" in error.diag.message_hint
    # What was there before the limit can be retired, and changed otherwise.
    db.execute("set hydrator.max_content_chars = 1; set hydrator.max_metadata_bytes = 1")
    db.execute("update hydrator.memories set confidence = 0.5")
    assert db.execute("select hydrator.forget('a', %s)", [memory_id]).fetchone() == (True,)


def test_a_rate_is_limited_by_a_setting(db: psycopg.Connection, url: str) -> None:
    for number in range(3):
        remember(db, f"before {number}")
    assert db.execute("select count(*) from hydrator.namespace_rates").fetchone() == (0,)
    with psycopg.connect(url, autocommit=True) as other:
        for connection in (db, other):
            connection.execute("set hydrator.max_memories_per_hour = 4")
        remember(db, "one")
        remember(other, "two")
        remember(other, "two")  # the same again is none more
        db.execute(
            "insert into hydrator.memories (namespace, heading, content) select 'a', 'x', 'x' from generate_series(1, 2)"
        )
        for connection in (db, other):
            error = refused(connection, REMEMBER, "a", "one more", "c")
            assert (error.sqlstate, error.diag.message_primary) == (
                "MH012",
                'namespace "a" would have 5 new memories in this hour, at most 4 are allowed',
            )
        remember(db, "elsewhere", namespace="b")
        # Of the hour before, nothing counts.
        db.execute("update hydrator.namespace_rates set hour = hour - interval '1 hour'")
        remember(db, "another hour")
        assert db.execute(
            "select sum(written) from hydrator.namespace_rates where hour > now() - interval '1 hour'"
        ).fetchone() == (1,)
    with psycopg.connect(url, autocommit=True) as third:
        third.execute("set hydrator.max_memories_per_hour = 4")
        remember(third, "third")
        hours = third.execute(
            "select count(distinct hour) from hydrator.namespace_rates where namespace = 'a'"
        )
        assert hours.fetchone() == (1,)


def test_the_same_words_are_written_once(db: psycopg.Connection) -> None:
    first = remember(db, "h", more=", p_confidence => 0.5")
    again = remember(db, "h", more=", p_confidence => 0.9, p_metadata => '{\"n\": 1}', p_pinned => true")
    assert again == first
    assert db.execute("select confidence, metadata, pinned from hydrator.memories").fetchall() == [
        (0.5, {}, False)
    ]
    # A successor may say the same, and is then the one that is found.
    second = remember(db, "h", more=f", p_confidence => 0.9, p_supersedes => '{first}'")
    assert second != first
    assert remember(db, "h") == second
    assert live(db) == [second]
    # What was forgotten or has expired is no duplicate.
    db.execute("select hydrator.forget('a', %s)", [second])
    third = remember(db, "h")
    assert third not in (first, second)
    db.execute("update hydrator.memories set expires_at = now() where memory_id = %s", [third])
    fourth = remember(db, "h")
    assert fourth not in (first, second, third)
    assert remember(db, "h") == fourth
    # Nor is one whose words were changed.
    db.execute("update hydrator.memories set content = 'other' where memory_id = %s", [fourth])
    assert remember(db, "h") != fourth
    assert len(live(db)) == 2


def test_a_successor_is_written_whatever_else_says_the_same(db: psycopg.Connection) -> None:
    same, old = remember(db, "same"), remember(db, "old")
    successor = remember(db, "same", more=f", p_supersedes => '{old}'")
    assert live(db) == sorted([same, successor])
    assert remember(db, "same") == same
    with pytest.raises(psycopg.Error, match="already superseded"):
        remember(db, "same", more=f", p_supersedes => '{old}'")


def test_twenty_writers_of_the_same_words(db: psycopg.Connection, url: str) -> None:
    def write(number: int) -> set[UUID]:
        with psycopg.connect(url, autocommit=True) as connection:
            return {remember(connection, f"h{place}") for place in range(10) for _ in range(2)}

    with ThreadPoolExecutor(20) as pool:
        written = list(pool.map(write, range(20)))
    assert all(ids == written[0] for ids in written)
    assert live(db) == sorted(written[0])
    assert len(written[0]) == 10


def test_a_memory_in_quarantine_is_out_and_not_lost(db: psycopg.Connection) -> None:
    poison = remember(db, "poison", more=", '[1,0,0,0]', p_pinned => true")
    other = remember(db, "other", more=", '[0,1,0,0]'")
    assert db.execute("select hydrator.quarantine('b', %s)", [poison]).fetchone() == (False,)
    assert db.execute("select hydrator.quarantine('a', %s, 'looks forged')", [poison]).fetchone() == (True,)
    assert db.execute("select hydrator.quarantine('a', %s)", [poison]).fetchone() == (False,)
    for call in (
        "compact_index('{a}')", "search_memories('[1,0,0,0]', '{a}')", "fetch_top_k_relevant('[1,0,0,0]', '{a}')",
        f"fetch_memories('{{a}}', array['{poison}', '{other}']::uuid[])",
    ):  # fmt: skip
        assert db.execute(f"select memory_id from hydrator.{call}").fetchall() == [(other,)], call
    index, relevant = db.execute(
        "select index, relevant from hydrator.hydrate_session('[1,0,0,0]', '{a}')"
    ).fetchone()
    assert {entry["memory_id"] for entry in (*index, *relevant)} == {str(other)}
    assert db.execute("select hydrator.count_live('{a}')").fetchone() == (1,)

    assert db.execute(
        "select memory_id, heading, reason from hydrator.list_quarantined('{a,b}')"
    ).fetchall() == [(poison, "poison", "looks forged")]
    assert db.execute("select hydrator.list_quarantined('{b}')").fetchall() == []
    # Saying it again does not bring it back, and purging does not remove it.
    assert remember(db, "poison") == poison
    db.execute(
        "update hydrator.memories set expires_at = now() - interval '1 day' where memory_id = %s", [poison]
    )
    assert db.execute("select hydrator.purge('0')").fetchone() == (0,)
    db.execute("update hydrator.memories set expires_at = null where memory_id = %s", [poison])
    assert live(db) == [other]

    assert db.execute("select hydrator.release('b', %s)", [poison]).fetchone() == (False,)
    assert db.execute("select hydrator.release('a', %s)", [poison]).fetchone() == (True,)
    assert db.execute("select hydrator.release('a', %s)", [poison]).fetchone() == (False,)
    assert live(db) == sorted([other, poison])
    assert db.execute("select hydrator.count_live('{a}')").fetchone() == (2,)
    assert db.execute("select hydrator.list_quarantined('{a}')").fetchall() == []
    for unknown in (uuid4(), None):
        assert db.execute("select hydrator.quarantine('a', %s)", [unknown]).fetchone() == (False,)


def test_what_was_superseded_in_quarantine_stays_there(db: psycopg.Connection) -> None:
    old = remember(db, "old")
    db.execute("select hydrator.quarantine('a', %s, null)", [old])
    new = remember(db, "new", more=f", p_supersedes => '{old}'")
    error = refused(db, "select hydrator.release('a', %s)", old)
    assert (error.sqlstate, live(db)) == ("MH007", [new])
    assert db.execute("select reason from hydrator.list_quarantined('{a}')").fetchall() == [
        ("no reason given",)
    ]
    assert refused(db, "select hydrator.quarantine('a', %s, '  ')", new).sqlstate == "MH010"
    insert = "insert into hydrator.memories (namespace, heading, content, quarantine_reason) values ('a', 'x', 'y', 'z')"
    assert refused(db, insert).sqlstate == "MH010"


def test_near_duplicates_are_reported(db: psycopg.Connection) -> None:
    ids = {
        name: remember(db, name, more=f", p_embedding => '{vector}', p_embedding_model => {model}", namespace=namespace)
        for name, vector, model, namespace in (
            ("one", "[1,0,0,0]", "'m'", "a"), ("near", "[1,0.1,0,0]", "'m'", "a"), ("far", "[0,1,0,0]", "'m'", "a"),
            ("elsewhere", "[1,0,0,0]", "'m'", "b"), ("none", "[1,0,0,0]", "null", "a"),
        )
    }  # fmt: skip
    remember(db, "no vector")
    pairs = db.execute(
        "select memory_id, other_memory_id, distance from hydrator.near_duplicates('{a,b}')"
    ).fetchall()
    assert [{one, other} for one, other, _ in pairs] == [{ids["one"], ids["near"]}]
    assert pairs[0][2] == pytest.approx(0.00496, abs=1e-4)
    assert db.execute("select count(*) from hydrator.near_duplicates('{a,b}', 2)").fetchone() == (3,)
    assert db.execute("select count(*) from hydrator.near_duplicates('{a,b}', 2, 1)").fetchone() == (1,)
    for arguments in ("'{a}', null", "'{a}', 'NaN'", "'{a}', 1, -1"):
        assert refused(db, f"select hydrator.near_duplicates({arguments})").sqlstate == "MH003"


def test_a_direct_insert_is_guarded_too(db: psycopg.Connection) -> None:
    """It takes no part in the search for duplicates unless it gives the digest; vectors of two models are then
    refused when they are compared."""
    insert = "insert into hydrator.memories (namespace, heading, content, embedding, embedding_model) values ('a', %s, 'c', '[1,0,0,0]', %s)"
    db.execute(insert, ("h", "one"))
    assert remember(db, "h") not in (
        None,
        db.execute("select memory_id from hydrator.memories").fetchone()[0],
    )
    db.execute(insert, ("h2", "two"))
    error = refused(db, "select hydrator.search_memories('[1,0,0,0]', '{a}')")
    assert error.sqlstate == "MH009"
    db.execute(
        "insert into hydrator.memories (namespace, heading, content, digest) values ('a', 'd', 'c', hydrator.memory_digest('d', 'c'))"
    )
    assert db.execute(
        "select hydrator.remember('a', 'd', 'c') = (select memory_id from hydrator.live_memories where heading = 'd')"
    ).fetchone() == (True,)
