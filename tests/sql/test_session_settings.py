"""No setting of the caller's session, and nothing in its search path, changes an answer."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest

# Types by their full name: a caller with a hostile search path has to write them so, too.
READS = [
    "select * from hydrator.compact_index('{acme}')",
    "select memory_id, content, distance from hydrator.fetch_top_k_relevant('[1,0,0,0]', '{acme}', 100)",
    "select memory_id, snippet, tokens from hydrator.search_memories('[1,0,0,0]', '{acme}', 100)",
    "select heading, metadata, extract(epoch from expires_at)"
    " from hydrator.fetch_memories('{acme}', %(ids)s)",
    "select index::pg_catalog.text, relevant::pg_catalog.text, dropped::pg_catalog.text, index_total"
    " from hydrator.hydrate_session('[1,0,0,0]', '{acme}', 100, 60, null, 'skip', null, 0.01, '{\"k\": 1}')",
    "select * from hydrator.installation()",
    "select hydrator.schema_version(), hydrator.estimate_tokens('twelve chars')",
]


@pytest.fixture
def store(db: psycopg.Connection) -> psycopg.Connection:
    """Fill ``acme`` with memories whose numbers and times print differently by session."""
    for place in range(6):
        db.execute(
            """
            select hydrator.remember('acme', 'heading ' || %(i)s, E'some \\t content ' || %(i)s,
              %(embedding)s, p_confidence => %(confidence)s::real, p_pinned => %(i)s %% 5 = 4,
              p_expires_at => '2999-06-15 12:34:56.789+00', p_metadata => '{"k": 1, "x": 0.1}')
            """,
            {"i": place, "embedding": f"[1,{place},{place * place},0.1]", "confidence": 1 / (place + 1.7)},
        )
    db.execute("select hydrator.remember('other', 'of another', p_embedding => '[1,0,0,0]')")
    (old,) = db.execute("select hydrator.remember('acme', 'dead', p_embedding => '[1,0,0,0]')").fetchone()
    db.execute("select hydrator.forget('acme', %s)", (old,))
    return db


Answers = list[list[tuple[object, ...]]]


def every_id(db: psycopg.Connection) -> list[UUID]:
    return [row[0] for row in db.execute("select memory_id from hydrator.memories order by heading")]


def answers(db: psycopg.Connection, ids: list[UUID]) -> Answers:
    """Give what each of the READS answers; none of them is empty."""
    found = [db.execute(read, {"ids": ids} if "%(ids)s" in read else None).fetchall() for read in READS]
    assert all(found)
    return found


def test_a_session_s_settings_change_no_answer(store: psycopg.Connection) -> None:
    ids = every_id(store)
    expected = answers(store, ids)
    for setting, value in {
        "timezone": "Asia/Kathmandu",
        "datestyle": "SQL, DMY",
        "intervalstyle": "iso_8601",
        "standard_conforming_strings": "off",
        "backslash_quote": "off",
        "array_nulls": "off",
        "transform_null_equals": "on",
        "search_path": "",
        "plan_cache_mode": "force_generic_plan",
        "enable_indexscan": "off",
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
    }.items():
        store.execute("select set_config(%s, %s, false)", (setting, value))
        assert answers(store, ids) == expected, setting
        store.execute(f"reset {setting}")


def test_the_json_of_a_session_has_the_same_digits_for_every_caller(store: psycopg.Connection) -> None:
    hydrate = (
        "select index::text, relevant::text, dropped::text"
        " from hydrator.hydrate_session('[1,0,0,0]', '{acme}', p_token_budget => 60)"
    )
    expected = store.execute(hydrate).fetchone()
    assert "0.5882353" in expected[0]
    for digits in (-15, 0, 3):
        store.execute(f"set extra_float_digits = {digits}")
        assert store.execute(hydrate).fetchone() == expected, digits


# Everything that the functions use, under its own name, ahead of pg_catalog in the caller's path.
HOSTILE = """
create schema hostile;
create function hostile.now() returns timestamptz
  language sql as 'select timestamptz ''3500-01-01 00:00+00''';
create function hostile.no(text, text) returns boolean language sql as 'select false';
create function hostile.yes(text, text) returns boolean language sql as 'select true';
create function hostile.yes(timestamptz, timestamptz) returns boolean language sql as 'select true';
create function hostile.yes(uuid, uuid) returns boolean language sql as 'select true';
create function hostile.yes(jsonb, jsonb) returns boolean language sql as 'select true';
create function hostile.far(public.vector, public.vector) returns float8
  language sql as 'select -99.0::float8';
create operator hostile.= (leftarg = text, rightarg = text, function = hostile.yes);
create operator hostile.!~ (leftarg = text, rightarg = text, function = hostile.no);
create operator hostile.~ (leftarg = text, rightarg = text, function = hostile.no);
create operator hostile.> (leftarg = timestamptz, rightarg = timestamptz, function = hostile.yes);
create operator hostile.= (leftarg = uuid, rightarg = uuid, function = hostile.yes);
create operator hostile.@> (leftarg = jsonb, rightarg = jsonb, function = hostile.yes);
create operator hostile.<=> (leftarg = public.vector, rightarg = public.vector, function = hostile.far);
create operator hostile.<#> (leftarg = public.vector, rightarg = public.vector, function = hostile.far);
create function hostile.char_length(text) returns integer language sql as 'select 1000000';
create function hostile.btrim(text) returns text language sql as 'select ''hostile''::text';
create function hostile.rtrim(text) returns text language sql as 'select ''hostile''::text';
create function hostile.regexp_replace(text, text, text, text) returns text
  language sql as 'select ''hostile''::text';
create function hostile.gen_random_uuid() returns uuid
  language sql as 'select uuid ''00000000-0000-0000-0000-000000000000''';
create function hostile.vector_dims(public.vector) returns integer language sql as 'select 4';
create function hostile.jsonb_path_exists(jsonb, jsonpath) returns boolean language sql as 'select false';
create domain hostile.text as pg_catalog.int4;
create table hostile.memories (like hydrator.memories);
create table hostile.live_memories (like hydrator.memories);
create table hostile.installed (like hydrator.installed);
create temporary table memories (like hydrator.memories);
create temporary table live_memories (like hydrator.memories);
create temporary table alembic_version (version_num pg_catalog.text);
set search_path = hostile, pg_catalog, public;
"""


def test_a_hostile_schema_in_the_caller_s_path_changes_no_answer(store: psycopg.Connection) -> None:
    ids = every_id(store)
    expected = answers(store, ids)
    store.execute(HOSTILE)
    trapped = store.execute(
        "select now() > '3000-01-01', 'a'::pg_catalog.text = 'b', char_length('a')"
    ).fetchone()
    assert trapped == (True, True, 1_000_000), "the trap is set"
    assert answers(store, ids) == expected


def test_a_hostile_schema_in_the_caller_s_path_changes_no_write(store: psycopg.Connection) -> None:
    store.execute(HOSTILE)
    for bad, sqlstate in {
        "remember('acme', E'two\\nlines')": "MH008",
        "remember('acme', 'heading', ' ')": "MH010",
        "remember('acme', 'heading', p_expires_at => 'infinity')": "MH010",
        "remember('acme', 'heading', p_metadata => '{\"a\": 1e400}')": "MH010",
        "remember('acme', 'heading', p_embedding => '[1,2,3]')": "MH001",
        "remember('acme', 'heading', p_embedding => '[0,0,0,0]')": "MH002",
        "purge('-1 day')": "MH003",
    }.items():
        with pytest.raises(psycopg.Error) as refused:
            store.execute(f"select hydrator.{bad}")
        assert refused.value.sqlstate == sqlstate, bad

    assert store.execute("select hydrator.purge('0')").fetchone() == (1,)
    (memory_id,) = store.execute("select hydrator.remember('acme', 'new')").fetchone()
    assert store.execute("select hydrator.forget('other', %s)", (memory_id,)).fetchone() == (False,)
    assert store.execute("select hydrator.forget('acme', %s)", (memory_id,)).fetchone() == (True,)
    store.execute("reset search_path")
    row = store.execute(
        "select index_tokens, deleted_at between now() - interval '1 hour' and now() from hydrator.memories"
        " where memory_id = %s",
        (memory_id,),
    ).fetchone()
    assert row == (1, True)
    assert store.execute("select count(*) from hydrator.live_memories").fetchone() == (7,)


def test_the_reads_go_through_in_a_read_only_transaction(store: psycopg.Connection) -> None:
    """As on a standby."""
    ids = every_id(store)
    expected = answers(store, ids)
    with store.transaction():
        store.execute("set transaction read only")
        assert answers(store, ids) == expected


def test_what_a_session_writes_does_not_depend_on_its_settings(db: psycopg.Connection) -> None:
    db.execute("set extra_float_digits = 0")
    db.execute("select hydrator.remember('floats', 'h', p_confidence => 0.123456789)")
    db.execute("reset extra_float_digits")
    assert db.execute(
        "select i.confidence = m.confidence from hydrator.compact_index(array['floats']) i"
        " join hydrator.memories m using (memory_id)"
    ).fetchone() == (True,)
