"""forget takes a memory out of every call; purge removes what has long been dead."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest


def remember(db: psycopg.Connection, heading: str, arguments: str = "", **parameters: object) -> UUID:
    statement = f"select hydrator.remember('acme', %(heading)s{arguments})"
    return db.execute(statement, {"heading": heading, **parameters}).fetchone()[0]


def forget(db: psycopg.Connection, namespace: str | None, memory_id: UUID | None) -> bool:
    return db.execute("select hydrator.forget(%s, %s)", (namespace, memory_id)).fetchone()[0]


def purge(db: psycopg.Connection, older_than: str) -> int:
    return db.execute("select hydrator.purge(%s)", (older_than,)).fetchone()[0]


def left(db: psycopg.Connection) -> list[str]:
    return [row[0] for row in db.execute("select heading from hydrator.memories order by heading")]


def live(db: psycopg.Connection) -> list[str]:
    return [row[0] for row in db.execute("select heading from hydrator.compact_index('{acme}') order by 1")]


def test_forget_is_true_once(db: psycopg.Connection) -> None:
    memory_id = remember(db, "heading")
    assert forget(db, "acme", memory_id) is True
    assert live(db) == []
    assert left(db) == ["heading"]
    (deleted,) = db.execute("select deleted_at from hydrator.memories").fetchone()
    assert forget(db, "acme", memory_id) is False
    assert db.execute("select deleted_at from hydrator.memories").fetchone() == (deleted,)


def test_forget_is_false_for_what_is_not_live_there(db: psycopg.Connection) -> None:
    kept = remember(db, "kept")
    expired = remember(db, "expired", ", p_expires_at => now() - interval '1 second'")
    superseded = remember(db, "superseded")
    remember(db, "successor", ", p_supersedes => %(old)s", old=superseded)
    for namespace, memory_id in (
        ("acme-corp", kept),
        ("", kept),
        (None, kept),
        ("acme", None),
        ("acme", uuid4()),
        ("acme", expired),
        ("acme", superseded),
    ):
        assert forget(db, namespace, memory_id) is False, (namespace, memory_id)
    assert live(db) == ["kept", "successor"]


def test_forget_takes_one_memory_alone(db: psycopg.Connection) -> None:
    remember(db, "other")
    forget(db, "acme", remember(db, "forgotten"))
    assert live(db) == ["other"]


def test_purge_removes_what_is_dead_and_never_what_is_live(db: psycopg.Connection) -> None:
    remember(db, "live")
    remember(db, "pinned", ", p_pinned => true")
    remember(db, "expires later", ", p_expires_at => now() + interval '1 hour'")
    remember(db, "expired", ", p_expires_at => now() - interval '1 hour'")
    forget(db, "acme", remember(db, "forgotten"))
    old = remember(db, "superseded")
    remember(db, "successor", ", p_supersedes => %(old)s", old=old)
    assert purge(db, "1 day") == 0
    assert len(left(db)) == 7
    assert purge(db, "0") == 3
    assert left(db) == live(db) == ["expires later", "live", "pinned", "successor"]
    assert purge(db, "0") == 0


def test_purge_takes_what_died_before_the_boundary_and_not_at_it(db: psycopg.Connection) -> None:
    """One transaction has one now()."""
    with db.transaction():
        for heading, column, moment in (
            ("deleted at", "deleted_at", "now() - interval '1 day'"),
            ("deleted before", "deleted_at", "now() - interval '1 day 1 microsecond'"),
            ("expired at", "expires_at", "now() - interval '1 day'"),
            ("expired before", "expires_at", "now() - interval '1 day 1 microsecond'"),
        ):
            memory_id = remember(db, heading)
            db.execute(f"update hydrator.memories set {column} = {moment} where memory_id = %s", (memory_id,))
        assert purge(db, "1 day") == 2
    assert left(db) == ["deleted at", "expired at"]


def test_purge_counts_from_the_first_death(db: psycopg.Connection) -> None:
    remember(db, "expired, then forgotten")
    remember(db, "forgotten, then expired")
    for heading, deleted, expired in (
        ("expired, then forgotten", "1 hour", "3 days"),
        ("forgotten, then expired", "3 days", "1 hour"),
    ):
        db.execute(
            "update hydrator.memories"
            " set deleted_at = now() - %s::interval, expires_at = now() - %s::interval where heading = %s",
            (deleted, expired, heading),
        )
    assert purge(db, "4 days") == 0
    assert purge(db, "2 days") == 2


def test_purge_spares_the_live_also_where_the_interval_s_parts_differ_in_sign(db: psycopg.Connection) -> None:
    """Compared, this interval is 0; taken from now, it leads five days ahead or six."""
    remember(db, "three days to live", ", p_expires_at => now() + interval '3 days'")
    with pytest.raises(psycopg.Error) as refused:
        purge(db, "-12 months 360 days")
    assert refused.value.sqlstate == "MH003"
    assert left(db) == ["three days to live"]


def test_purge_is_for_every_namespace(db: psycopg.Connection) -> None:
    for namespace in ("acme", "other"):
        db.execute(
            "select hydrator.remember(%s, 'x', p_expires_at => now() - interval '1 day')", (namespace,)
        )
    assert purge(db, "1 hour") == 2


def test_a_successor_outlives_its_purged_predecessor(db: psycopg.Connection) -> None:
    old = remember(db, "old")
    remember(db, "new", ", p_supersedes => %(old)s", old=old)
    assert purge(db, "0") == 1
    assert db.execute("select heading, supersedes, deleted_at from hydrator.memories").fetchall() == [
        ("new", None, None)
    ]
    assert live(db) == ["new"]


def test_a_dead_chain_is_purged_whole(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    c = remember(db, "C", ", p_supersedes => %(b)s", b=b)
    assert forget(db, "acme", c) is True
    assert purge(db, "0") == 3
    assert left(db) == []


def test_a_part_of_a_chain_is_purged_alone(db: psycopg.Connection) -> None:
    a = remember(db, "A")
    b = remember(db, "B", ", p_supersedes => %(a)s", a=a)
    remember(db, "C", ", p_supersedes => %(b)s", b=b)
    db.execute(
        "update hydrator.memories set deleted_at = now() - interval '9 days' where memory_id = %s", (a,)
    )
    assert purge(db, "1 day") == 1
    assert db.execute("select heading, supersedes from hydrator.memories order by 1").fetchall() == [
        ("B", None),
        ("C", b),
    ]
    assert live(db) == ["C"]
