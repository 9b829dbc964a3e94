"""A memory that expired, was deleted or was superseded is in none of the calls."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest

A, B, C = (UUID(int=i) for i in (1, 2, 3))


def remember(db: psycopg.Connection, heading: str, arguments: str = "", **parameters: object) -> UUID:
    """Write a memory of ``acme`` at the query's own place; ``arguments`` are further ones, as SQL."""
    call = f"select hydrator.remember('acme', %(heading)s, p_embedding => '[1,0,0,0]'{arguments})"
    return db.execute(call, {"heading": heading, **parameters}).fetchone()[0]


def seen(db: psycopg.Connection) -> dict[str, set[UUID]]:
    """The ids that each call, and each part of a hydrated session, shows of ``acme``."""
    every_id = [row[0] for row in db.execute("select memory_id from hydrator.memories")]
    found = {
        call: {row[0] for row in db.execute(f"select memory_id from hydrator.{call}")}
        for call in (
            "compact_index('{acme}')",
            "fetch_top_k_relevant('[1,0,0,0]', '{acme}', 100)",
            "search_memories('[1,0,0,0]', '{acme}', 100)",
        )
    }
    found["fetch_memories"] = {
        row[0]
        for row in db.execute("select memory_id from hydrator.fetch_memories('{acme}', %s)", (every_id,))
    }
    # A large budget accepts every candidate, none at all drops every one.
    for part, arguments in (
        ("index", "100"),
        ("relevant", "100, p_token_budget => 100000"),
        ("dropped", "100, p_token_budget => 0"),
    ):
        (memories,) = db.execute(
            f"select {part} from hydrator.hydrate_session('[1,0,0,0]', '{{acme}}', {arguments})"
        ).fetchone()
        found[part] = {UUID(memory["memory_id"]) for memory in memories}
    return found


def assert_seen(db: psycopg.Connection, *live: UUID) -> None:
    for call, found in seen(db).items():
        assert found == set(live), call


@pytest.mark.parametrize("pinned", [False, True])
def test_only_the_live_are_seen(db: psycopg.Connection, pinned: bool) -> None:
    more = f", p_pinned => {pinned}"
    remember(db, "expired a second ago", more + ", p_expires_at => now() - interval '1 second'")
    forgotten = remember(db, "forgotten", more)
    db.execute("select hydrator.forget('acme', %s)", (forgotten,))
    old = remember(db, "superseded", more)
    new = remember(db, "its successor", more + ", p_supersedes => %(old)s", old=old)
    lasting = remember(db, "lasting", more)
    for_now = remember(db, "expires in an hour", more + ", p_expires_at => now() + interval '1 hour'")
    assert_seen(db, new, lasting, for_now)


def test_the_moment_of_expiry_is_no_longer_live(db: psycopg.Connection) -> None:
    with db.transaction():
        remember(db, "expires now", ", p_expires_at => now()")
        last = remember(db, "a microsecond left", ", p_expires_at => now() + interval '1 microsecond'")
        assert_seen(db, last)


def test_the_dead_leave_their_places_to_the_living(db: psycopg.Connection) -> None:
    for i in range(10):
        db.execute("select hydrator.forget('acme', %s)", (remember(db, f"dead {i}"),))
    live = remember(db, "live")
    db.execute("update hydrator.memories set embedding = '[0,1,0,0]' where memory_id = %s", (live,))
    rows = db.execute(
        "select memory_id from hydrator.fetch_top_k_relevant('[1,0,0,0]', '{acme}', 1)"
    ).fetchall()
    assert rows == [(live,)]
    (shown,) = db.execute("select memory_id from hydrator.compact_index('{acme}', 1)").fetchall()
    assert shown == (live,)


def test_a_chain_shows_only_its_newest(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    assert_seen(db, b)
    c = remember(db, "C", ", p_supersedes => %(b)s", b=b)
    assert_seen(db, c)


def test_a_deleted_successor_does_not_bring_its_predecessor_back(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    db.execute("select hydrator.forget('acme', %s)", (b,))
    assert_seen(db)


def test_a_retired_memory_is_deleted_at_the_moment_its_successor_is_made(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    row = db.execute(
        "select a.deleted_at = b.created_at, b.supersedes = a.memory_id"
        " from hydrator.memories a, hydrator.memories b where a.memory_id = %s and b.memory_id = %s",
        (a, b),
    ).fetchone()
    assert row == (True, True)


# What may be superseded.


def test_superseding_a_forgotten_memory_is_allowed(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    db.execute("update hydrator.memories set deleted_at = '2020-01-01 00:00+00'")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    assert_seen(db, b)
    (year,) = db.execute(
        "select extract(year from deleted_at)::int from hydrator.memories where memory_id = %s", (a,)
    ).fetchone()
    assert year == 2020, "it died when it was forgotten, not when it was superseded"


def test_superseding_an_expired_memory_is_allowed_and_final(db: psycopg.Connection) -> None:
    a = remember(db, "A", ", p_expires_at => now() - interval '1 day'")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    assert_seen(db, b)
    db.execute("update hydrator.memories set expires_at = null where memory_id = %s", (a,))
    assert_seen(db, b)


def refusal(db: psycopg.Connection, statement: str, *parameters: object) -> str | None:
    with pytest.raises(psycopg.Error) as refused:
        db.execute(statement, parameters or None)
    assert refused.value.diag.message_hint
    return refused.value.sqlstate


def test_a_memory_is_superseded_at_most_once(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    with pytest.raises(psycopg.Error) as refused:
        remember(db, "again", ", p_supersedes => %(a)s", a=a)
    assert refused.value.sqlstate == "MH007"
    assert str(a) in str(refused.value)
    assert str(b) in str(refused.value)
    db.execute("select hydrator.forget('acme', %s)", (b,))
    with pytest.raises(psycopg.Error) as refused:
        remember(db, "after its successor is gone", ", p_supersedes => %(a)s", a=a)
    assert refused.value.sqlstate == "MH007"


def test_two_successors_in_one_insert_are_refused(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    assert (
        refusal(
            db,
            "insert into hydrator.memories (namespace, heading, content, supersedes)"
            " values ('acme', 'x', 'x', %s), ('acme', 'y', 'y', %s)",
            a,
            a,
        )
        == "MH007"
    )
    assert_seen(db, a)


def test_superseding_across_namespaces_is_refused(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    assert refusal(db, "select hydrator.remember('acme-corp', 'B', p_supersedes => %s)", a) == "MH006"
    assert_seen(db, a)


def test_superseding_what_is_not_there_is_refused(db: psycopg.Connection) -> None:
    assert refusal(db, "select hydrator.remember('acme', 'B', p_supersedes => %s)", uuid4()) == "MH006"
    assert_seen(db)


# Cycles, and coming back to life.


def test_cycles_in_one_insert_are_refused(db: psycopg.Connection) -> None:
    insert = "insert into hydrator.memories (namespace, memory_id, heading, content, supersedes) values "
    assert refusal(db, insert + "('acme', %s, 'self', 'x', %s)", A, A) == "MH006"
    assert (
        refusal(db, insert + "('acme', %s, 'a', 'x', %s), ('acme', %s, 'b', 'x', %s)", A, B, B, A) == "MH006"
    )
    assert db.execute("select count(*) from hydrator.memories").fetchone() == (0,)


def add_chain(db: psycopg.Connection) -> None:
    """Add A, superseded by B, superseded by C."""
    for memory_id, supersedes in ((A, None), (B, A), (C, B)):
        db.execute(
            "insert into hydrator.memories (namespace, memory_id, heading, content, embedding, supersedes)"
            " values ('acme', %s, 'x', 'x', '[1,0,0,0]', %s)",
            (memory_id, supersedes),
        )


def test_an_update_cannot_close_a_cycle(db: psycopg.Connection) -> None:
    add_chain(db)
    update = "update hydrator.memories set supersedes = %s where memory_id = %s"
    for memory_id, supersedes in ((A, C), (A, B), (A, A), (C, A)):
        assert refusal(db, update, supersedes, memory_id) == "MH010"
    assert_seen(db, C)


def test_changing_ids_cannot_close_a_cycle(db: psycopg.Connection) -> None:
    """C, which supersedes B, takes the id of A, which B supersedes."""
    add_chain(db)
    statement = (
        "update hydrator.memories set memory_id = case memory_id when %s then gen_random_uuid() else %s end"
        " where memory_id in (%s, %s)"
    )
    with pytest.raises(psycopg.Error):
        db.execute(statement, (A, A, A, C))
    assert_seen(db, C)


def test_a_superseded_memory_cannot_be_undeleted(db: psycopg.Connection) -> None:
    add_chain(db)
    for memory_id in (A, B):
        undelete = "update hydrator.memories set deleted_at = null where memory_id = %s"
        assert refusal(db, undelete, memory_id) == "MH007"
    assert_seen(db, C)


def test_a_forgotten_memory_can_be_undeleted(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    db.execute("select hydrator.forget('acme', %s)", (a,))
    db.execute("update hydrator.memories set deleted_at = null where memory_id = %s", (a,))
    assert_seen(db, a)
