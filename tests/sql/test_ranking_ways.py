"""The three ways of ranking: which one is chosen, and that each gives what is there."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from hydrator import indexes

WAYS = {
    "exact": {"exact_max_rows": 999_999},
    "bits": {"exact_max_rows": 0, "bits_max_rows": 999_999},
    "hnsw": {"exact_max_rows": 0, "bits_max_rows": 0, "hnsw_min_percent": 0},
}


@pytest.fixture
def filled(db: psycopg.Connection, url: str) -> psycopg.Connection:
    """Three namespaces of 1,500, 150 and 15 memories, a fifth of them dead, and both indexes."""
    db.execute(
        """
        insert into hydrator.memories
          (namespace, heading, content, embedding, memory_type, pinned, metadata, deleted_at, expires_at)
        select
          case when i % 111 = 0 then 'small' when i % 11 = 0 then 'middle' else 'large' end, 'h' || i, 'c',
          array[sin(i), cos(i * 1.7), sin(i * 0.3), 0.1]::vector,
          case when i % 3 = 0 then 'lesson' else 'semantic' end, i % 50 = 0, jsonb_build_object('odd', i % 2),
          case when i % 7 = 0 then now() end, case when i % 13 = 0 then now() - interval '1 day' end
        from generate_series(1, 1665) i
        """
    )
    for name in indexes.NAMES:
        assert indexes.create_index(url, name)
        assert not indexes.create_index(url, name)
    db.execute("vacuum analyze hydrator.memories")
    return db


def ranked(db: psycopg.Connection, way: str, namespaces: list[str], top_k: int, **filters: Any) -> list[Any]:
    extra = "".join(f", p_{name} => %({name})s" for name in filters)
    with db.transaction():
        for name, value in WAYS[way].items():
            db.execute(f"set local hydrator.{name} = {value}")
        return db.execute(
            "select memory_id, distance from hydrator.fetch_top_k_relevant('[1,0.5,0.2,0.1]',"
            f" %(namespaces)s::text[], %(top_k)s::integer{extra})",
            {"namespaces": namespaces, "top_k": top_k, **filters},
        ).fetchall()


@pytest.mark.parametrize("way", ["bits", "hnsw"])
@pytest.mark.parametrize(
    "filters",
    [{}, {"memory_types": ["lesson"]}, {"min_similarity": 0.5}, {"metadata": '{"odd": 1}'}],
    ids=["all", "type", "floor", "metadata"],
)
def test_an_approximate_way_never_gives_fewer_rows(
    filled: psycopg.Connection, way: str, filters: dict[str, Any]
) -> None:
    for namespaces in (["large"], ["middle"], ["small"], ["large", "small"], ["none"], []):
        for top_k in (0, 1, 10, 200, 2_000):
            exact = ranked(filled, "exact", namespaces, top_k, **filters)
            ours = ranked(filled, way, namespaces, top_k, **filters)
            # A floor cuts what an approximate ranking gave, which is as near or less near.
            assert len(ours) == len(exact) or ("min_similarity" in filters and len(ours) <= len(exact))
            assert [distance for _, distance in ours] == sorted(distance for _, distance in ours)
            if top_k <= 10 and way == "hnsw":  # four signs are too few to tell these vectors apart
                assert len(set(ours) & set(exact)) >= 0.8 * len(exact)
            if len(exact) < top_k and "min_similarity" not in filters:
                assert ours == exact


def test_candidates_that_cover_the_namespace_give_the_exact_ranking(filled: psycopg.Connection) -> None:
    filled.execute("set hydrator.rerank_factor = 500")
    for namespaces in (["large"], ["middle", "small"]):
        assert ranked(filled, "bits", namespaces, 10) == ranked(filled, "exact", namespaces, 10)


@pytest.mark.parametrize(("way", "answer"), [("exact", "exact"), ("bits", "bits"), ("hnsw", "hnsw")])
def test_a_hydration_says_which_way_it_was_ranked(filled: psycopg.Connection, way: str, answer: str) -> None:
    for name, value in WAYS[way].items():
        filled.execute(f"set hydrator.{name} = {value}")
    (ranked_by,) = filled.execute(
        "select ranked_by from hydrator.hydrate_session('[1,0,0,0]', '{large}')"
    ).fetchone()
    assert ranked_by == answer


@pytest.mark.parametrize(
    ("rows", "drop", "by_metadata", "way"),
    [
        (1_000, None, False, "exact"),
        (1_001, None, False, "bits"),
        (12_000, None, False, "bits"),
        (12_001, None, False, "hnsw"),
        (1_001, "bits", False, "hnsw"),
        (12_001, "hnsw", False, "bits"),
        (1_001, None, True, "hnsw"),
        (1_001, "hnsw", True, "exact"),
    ],
)
def test_what_is_chosen(
    filled: psycopg.Connection, url: str, rows: int, drop: str | None, by_metadata: bool, way: str
) -> None:
    if drop is not None:
        indexes.drop_index(url, drop)
    assert filled.execute("select hydrator.choose_ranking(%s, %s)", (rows, by_metadata)).fetchone() == (way,)


def test_hnsw_is_for_a_fair_share_of_the_table(filled: psycopg.Connection) -> None:
    filled.execute("set hydrator.bits_max_rows = 0; set hydrator.exact_max_rows = 0")
    for percent, way in ((5, "hnsw"), (50, "bits")):
        filled.execute(f"set hydrator.hnsw_min_percent = {percent}")
        assert filled.execute("select hydrator.choose_ranking(150)").fetchone() == (way,)


def test_settings_hold_for_a_role_or_a_database_and_are_checked(db: psycopg.Connection, url: str) -> None:
    name = db.info.dbname
    db.execute(f'alter database "{name}" set hydrator.exact_max_rows = 7')
    with psycopg.connect(url) as connection:
        assert connection.execute("select hydrator.setting('exact_max_rows')").fetchone() == (7,)
    db.execute("set hydrator.rerank_factor = 'many'")
    with pytest.raises(psycopg.Error, match="hydrator.rerank_factor is 'many'") as refused:
        db.execute("select hydrator.setting('rerank_factor')")
    assert refused.value.sqlstate == "MH003"


def test_a_scan_s_settings_do_not_outlive_the_call(filled: psycopg.Connection) -> None:
    with filled.transaction():
        filled.execute("set local hnsw.ef_search = 77")
        assert ranked(filled, "hnsw", ["large"], 5)
        # pgvector 0.7 has no iterative scan.
        assert filled.execute(
            "select current_setting('hnsw.ef_search'), coalesce(current_setting('hnsw.iterative_scan', true), 'off')"
        ).fetchone() == ("77", "off")


@pytest.mark.parametrize(
    ("setting", "rows", "top_k", "visited"),
    [
        (41, 1_665, 5, 41),
        (None, -1, 50, 100),
        (None, 500_000, 5, 88),
        (100, 1_125_000, 1, 433),
        (900, 1e9, 5, 1000),
    ],
)
def test_what_a_search_of_hnsw_visits(
    filled: psycopg.Connection, setting: int | None, rows: float, top_k: int, visited: int
) -> None:
    filled.execute("update pg_class set reltuples = %s where oid = 'hydrator.memories'::regclass", [rows])
    (view,) = filled.execute("select pg_get_viewdef('hydrator.live_memories')").fetchone()
    filled.execute(
        """
        create function hydrator.tell_ef_search() returns boolean language plpgsql as
        $$ begin raise notice '%', current_setting('hnsw.ef_search'); return true; end $$
        """
    )
    filled.execute(
        f"create or replace view hydrator.live_memories as {view.rstrip().rstrip(';')}"
        " and hydrator.tell_ef_search()"
    )
    seen: list[str] = []
    filled.add_notice_handler(lambda notice: seen.append(notice.message_primary))
    if setting is not None:
        filled.execute(f"set hydrator.ef_search = {setting}")
    ranked(filled, "hnsw", ["large"], top_k)
    assert str(visited) in seen
    # 40 is pgvector's, where the call finishes exactly.
    assert set(seen) <= {str(visited), "40"}


@pytest.mark.parametrize("top_k", [0, 1, 5, 2**31 - 1])
@pytest.mark.parametrize("visited", [0, 1, 999_999_999])
def test_any_number_of_visited_rows_is_brought_into_pgvector_s_range(
    filled: psycopg.Connection, visited: int, top_k: int
) -> None:
    with filled.transaction():
        filled.execute(f"set local hydrator.ef_search = {visited}")
        assert ranked(filled, "hnsw", ["large"], top_k) == ranked(filled, "exact", ["large"], top_k)


def test_twenty_calls_alternating_tenants_give_the_same_each_time(filled: psycopg.Connection) -> None:
    for way in WAYS:
        first = {name: ranked(filled, way, [name], 10) for name in ("large", "small")}
        for number in range(20):
            name = ("large", "small")[number % 2]
            assert ranked(filled, way, [name], 10) == first[name]


BITS = "select memory_ids, ranked_by from hydrator.rank_memories(%s, '{a}', %s, null, null, null, null, null, null, false)"


def test_the_bound_of_the_bits_leaves_none_of_the_nearest_out(db: psycopg.Connection, url: str) -> None:
    # By id, 400 that are far and all alike, then 60 that are near, then 400 that are as far as can be.
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, embedding)
        select 'a', lpad(i::text, 32, '0')::uuid, 'h' || i, 'c',
          case when i <= 400 then '[1,1,-1,-1]'::vector when i <= 460 then array[1, 1, 1 + i / 1000.0, 1]::vector
            else '[-1,-1,-1,-1]' end
        from generate_series(1, 860) i
        """
    )
    indexes.create_index(url, "bits")
    db.execute("vacuum analyze hydrator.memories")
    for way, value in (WAYS["bits"] | {"rerank_factor": 10}).items():
        db.execute(f"set hydrator.{way} = {value}")
    nearest = [f"00000000-0000-0000-0000-{number:012}" for number in range(401, 411)]
    for query, top_k, found in (
        ("[1,1,1,1]", 5, nearest[:5]),
        ("[1,1,1,1]", 6, nearest[:6]),
        # All signs of the first 400 are the query's: the bound is 0, and what is as near as it stays.
        ("[1,1,-1,-1]", 5, [f"00000000-0000-0000-0000-{number:012}" for number in range(1, 401)]),
    ):
        memory_ids, ranked_by = db.execute(BITS, [query, top_k]).fetchone()
        assert ranked_by == "bits"
        assert len(memory_ids) == top_k
        assert {str(memory_id) for memory_id in memory_ids} <= set(found), query


def test_numbers_that_are_as_large_as_can_be_are_no_error(filled: psycopg.Connection) -> None:
    filled.execute("set hydrator.rerank_factor = 999999999")
    for way in WAYS:
        assert len(ranked(filled, way, ["small"], 2147483647)) == len(ranked(filled, "exact", ["small"], 99))


def test_the_first_tier_never_looks_into_the_table(filled: psycopg.Connection) -> None:
    for way in ("p_token_budget => 100", "p_token_budget => null"):
        filled.execute("select pg_stat_force_next_flush()")
        before = filled.execute(
            "select idx_tup_fetch + coalesce(seq_tup_read, 0) from pg_stat_user_tables where relname = 'memories'"
        ).fetchone()
        filled.execute(f"select count(*) from hydrator.compact_index(array['large'], {way})")
        filled.execute("select pg_stat_force_next_flush()")
        assert (
            before
            == filled.execute(
                "select idx_tup_fetch + coalesce(seq_tup_read, 0) from pg_stat_user_tables where relname = 'memories'"
            ).fetchone()
        )


def counted(db: psycopg.Connection) -> tuple[Any, Any]:
    return db.execute(
        "select hydrator.count_live(array['a', 'b']), (select count(*) from hydrator.live_memories)"
    ).fetchone()


def test_counts_follow_every_kind_of_write(db: psycopg.Connection, url: str) -> None:
    steps = [
        "insert into hydrator.memories (namespace, heading, content, expires_at, deleted_at)"
        " select chr(97 + i % 2), 'h' || i, 'c', case when i % 3 = 0 then now() + i * interval '1 day' end,"
        " case when i % 5 = 0 then now() end from generate_series(1, 60) i",
        "select hydrator.remember('a', 'x', p_expires_at => now() - interval '1 second')",
        "select hydrator.remember('a', 'x', p_supersedes => (select memory_id from hydrator.live_memories"
        " where namespace = 'a' order by heading desc limit 1))",
        "select hydrator.forget(namespace, memory_id) from hydrator.live_memories limit 3",
        "update hydrator.memories set expires_at = now() + interval '1 day' where heading < 'h3'",
        "update hydrator.memories set expires_at = null where heading < 'h2'",
        "update hydrator.memories set heading = heading || '!'",
        "update hydrator.memories m set deleted_at = null where heading like 'h5%'"
        " and not exists (select from hydrator.memories s where s.supersedes = m.memory_id)",
        "delete from hydrator.memories where heading like 'h4%'",
        "insert into hydrator.memories (namespace, heading, content) values ('a', 'x', 'c'), ('b', 'x', 'c')"
        " on conflict do nothing",
        "select hydrator.purge('0')",
        "truncate hydrator.memories",
        "select hydrator.remember('b', 'x')",
    ]
    with psycopg.connect(url, autocommit=True) as other:
        for number, step in enumerate(steps):
            (db, other)[number % 2].execute(step)
            ours, truth = counted(db)
            assert ours == truth, step
        with other.transaction(force_rollback=True):
            other.execute("select hydrator.remember('b', 'rolled back')")
        assert counted(db) == (1, 1)


@pytest.mark.parametrize("model", ["a", "m", "z", None])
@pytest.mark.parametrize(
    "change",
    [
        "true",
        "embedding_model = 'm'",
        "embedding = null",
        "pinned = true",
        "pinned = true, deleted_at = now()",
        "pinned = true, expires_at = now() - interval '1 day'",
        "pinned = true, embedding_model = 'a', expires_at = now() + interval '1 day'",
        "embedding_model = 'z', deleted_at = now()",
        "embedding_model = 'z', expires_at = now() - interval '1 day'",
        "embedding_model = 'z', embedding = null",
    ],
)
def test_the_survey_finds_what_is_there(db: psycopg.Connection, model: str | None, change: str) -> None:
    db.execute(
        "insert into hydrator.memories (namespace, heading, content, embedding, embedding_model)"
        " select case when i > 6 then 'b' else 'a' end, 'h' || i, 'c', '[1,0,0,0]', case when i % 2 = 0 then 'm' end"
        " from generate_series(1, 9) i"
    )
    if change != "true":
        db.execute(f"update hydrator.memories set {change} where heading in ('h3', 'h8')")
    for namespaces in (["a"], ["b"], ["b", "a", "b", "none"], ["none"], []):
        told = db.execute(
            "select * from hydrator.survey_namespaces(%s::text[], %s)", [namespaces, model]
        ).fetchone()
        truth = db.execute(
            "select count(*), coalesce(bool_or(pinned), false), coalesce(bool_or(embedding is not null"
            " and embedding_model is not null and embedding_model is distinct from %s), false)"
            " from hydrator.live_memories where namespace = any (%s)",
            [model, namespaces],
        ).fetchone()
        assert told == truth, namespaces


def test_counts_that_are_wrong_lose_no_memory_and_no_refusal(db: psycopg.Connection) -> None:
    for heading, pinned in (("pinned", True), ("near", False)):
        db.execute(
            "select hydrator.remember('a', %s, p_embedding => '[1,0,0,0]', p_pinned => %s, p_embedding_model => 'm')",
            [heading, pinned],
        )
    for lasting in (None, -7, -1, 0, 999_999):
        db.execute("delete from hydrator.namespace_counts")
        if lasting is not None:
            db.execute("insert into hydrator.namespace_counts values ('a', 0, %s)", [lasting])
        for budget in (None, 100):
            (index, relevant) = db.execute(
                "select index, relevant from hydrator.hydrate_session('[1,0,0,0]', '{a}', p_index_budget => %s)",
                [budget],
            ).fetchone()
            assert {entry["heading"] for entry in index} == {"pinned", "near"}
            assert [memory["heading"] for memory in relevant] == ["pinned", "near"]
            for query in (None, "[1,0,0,0]"):
                (relevant,) = db.execute(
                    "select relevant from hydrator.hydrate_session(%s, '{a}', p_query_text => 'near',"
                    " p_index_budget => %s)",
                    [query, budget],
                ).fetchone()
                assert [memory["heading"] for memory in relevant] == ["pinned", "near"]
            with pytest.raises(psycopg.Error) as refused, db.transaction():
                db.execute(
                    "select hydrator.hydrate_session('[1,0,0,0]', '{a}', p_embedding_model => 'other',"
                    " p_index_budget => %s)",
                    [budget],
                )
            assert refused.value.sqlstate == "MH009"


def test_backends_that_have_ended_leave_no_rows_behind(db: psycopg.Connection, url: str) -> None:
    for number in range(5):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("select hydrator.remember('a', %s)", [f"x{number}"])
    db.execute("select pg_sleep(0.2); select hydrator.remember('a', 'x')")
    assert counted(db) == (6, 6)
    (rows,) = db.execute("select count(*) from hydrator.namespace_counts").fetchone()
    assert rows <= 2


def test_writers_do_not_wait_for_each_other_to_be_counted(db: psycopg.Connection, url: str) -> None:
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        first.execute("select hydrator.remember('a', 'x')")
        second.execute("set lock_timeout = '2s'")
        second.execute("select hydrator.remember('a', 'y')")
        second.commit()
        assert counted(db) == (1, 1)
        first.commit()
        assert counted(db) == (2, 2)


def test_counts_are_right_after_many_writers(db: psycopg.Connection, url: str) -> None:
    def write(number: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for i in range(20):
                connection.execute("select hydrator.remember(%s, %s)", ("ab"[i % 2], f"{number} {i}"))
                connection.execute(
                    "select hydrator.forget(namespace, memory_id) from hydrator.live_memories"
                    " where heading = %s",
                    (f"{number} {i - 1}",),
                )

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(db) == (6, 6)


def test_an_interrupted_build_is_made_again(db: psycopg.Connection, url: str) -> None:
    indexes.create_index(url, "bits")
    db.execute(
        "update pg_index set indisvalid = false where indexrelid = 'hydrator.memories_bits_idx'::regclass"
    )
    assert indexes.create_index(url, "bits")
    assert not indexes.create_index(url, "bits")
    indexes.drop_index(url, "bits")
    indexes.drop_index(url, "bits")
    assert indexes.create_index(url, "bits")
