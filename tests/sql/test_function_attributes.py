"""What the catalogue says of each function: who may call it, as whom, and in which search path."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

# The documented calls: their parameters, and how many of them have a default.
SIGNATURES = {
    "compact_index": ("p_namespaces p_token_budget", 1),
    "fetch_top_k_relevant": (
        "p_query_embedding p_namespaces p_top_k p_memory_types p_min_similarity p_metadata p_embedding_model"
        " p_query_text p_min_confidence p_source_types"
        " p_neighbours p_recency_half_life p_confidence_weight p_duplicate_distance",
        12,
    ),
    "hydrate_session": (
        "p_query_embedding p_namespaces p_top_k p_token_budget p_index_budget p_packing"
        " p_memory_types p_min_similarity p_metadata p_embedding_model p_query_text p_min_confidence"
        " p_source_types p_neighbours p_recency_half_life p_confidence_weight p_duplicate_distance",
        15,
    ),
    "search_memories": (
        "p_query_embedding p_namespaces p_limit p_memory_types p_min_similarity p_metadata p_embedding_model"
        " p_query_text p_min_confidence p_source_types"
        " p_neighbours p_recency_half_life p_confidence_weight p_duplicate_distance",
        12,
    ),
    "fetch_memories": ("p_namespaces p_memory_ids", 0),
    "remember": (
        "p_namespace p_heading p_content p_embedding p_memory_type p_confidence p_source_type p_supersedes"
        " p_expires_at p_pinned p_metadata p_embedding_model p_token_count",
        11,
    ),
    "forget": ("p_namespace p_memory_id", 0),
    "purge": ("p_older_than", 0),
    "estimate_tokens": ("p_text", 0),
    "schema_version": ("", 0),
    "installation": ("", 0),
}

VOLATILE = {"remember", "forget", "purge"}


def functions(db: psycopg.Connection) -> dict[str, dict[str, Any]]:
    rows = (
        db.cursor(row_factory=dict_row)
        .execute(
            """
            select
              p.proname as name, p.prosecdef, p.proconfig, p.provolatile::text, p.pronargdefaults as defaults,
              coalesce(p.proargnames[:p.pronargs], '{}') as parameters,
              obj_description(p.oid, 'pg_proc') as comment,
              exists (
                select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                where a.grantee = 0 and a.privilege_type = 'EXECUTE'
              ) as public_may_execute
            from pg_proc p
            where p.pronamespace = 'hydrator'::regnamespace
            """
        )
        .fetchall()
    )
    by_name = {row["name"]: row for row in rows}
    assert len(by_name) == len(rows), "a name has more than one signature"
    return by_name


def test_every_function(db: psycopg.Connection) -> None:
    found = functions(db)
    assert set(SIGNATURES) <= set(found)
    for name, function in found.items():
        assert not function["prosecdef"], f"{name} is not SECURITY INVOKER"
        assert not function["public_may_execute"], f"{name} is open to PUBLIC"
        assert function["comment"], f"{name} has no comment"
        assert all(parameter.startswith("p_") for parameter in function["parameters"]), name
        (search_path,) = [
            setting.removeprefix("search_path=")
            for setting in function["proconfig"] or []
            if setting.startswith("search_path=")
        ]
        schemas = search_path.split(", ")
        assert (schemas[0], schemas[-1]) == ("pg_catalog", "pg_temp"), name
        assert "public" not in schemas, name


def test_the_documented_calls(db: psycopg.Connection) -> None:
    found = functions(db)
    for name, (parameters, defaults) in SIGNATURES.items():
        assert " ".join(found[name]["parameters"]) == parameters, name
        assert found[name]["defaults"] == defaults, name
        volatility = "v" if name in VOLATILE else "i" if name == "estimate_tokens" else "s"
        assert found[name]["provolatile"] == volatility, name


def test_the_view_reads_as_its_caller(db: psycopg.Connection) -> None:
    (options,) = db.execute(
        "select reloptions from pg_class where oid = 'hydrator.live_memories'::regclass"
    ).fetchone()
    assert options == ["security_invoker=true"]


def test_nothing_in_the_schema_is_open_to_everyone(db: psycopg.Connection) -> None:
    open_to_public = db.execute(
        """
        select c.relname
        from pg_class c, aclexplode(c.relacl) a
        where c.relnamespace = 'hydrator'::regnamespace and a.grantee = 0
        union all
        select n.nspname
        from pg_namespace n, aclexplode(n.nspacl) a
        where n.nspname = 'hydrator' and a.grantee = 0
        """
    ).fetchall()
    assert open_to_public == []


def test_a_caller_s_own_rights_and_row_policies_hold(db: psycopg.Connection) -> None:
    """A role that may call and read, in a table whose policy hides one namespace from it."""
    db.execute(
        "select hydrator.remember(n, 'of ' || n, p_embedding => '[1,0,0,0]') from unnest('{a,b}'::text[]) n"
    )
    with db.transaction(force_rollback=True):
        db.execute("create role hydrator_test_reader")
        db.execute("grant usage on schema hydrator to hydrator_test_reader")
        db.execute("grant execute on all functions in schema hydrator to hydrator_test_reader")
        db.execute(
            "grant select on hydrator.memories, hydrator.live_memories, hydrator.namespace_counts to hydrator_test_reader"
        )
        db.execute("alter table hydrator.memories enable row level security")
        db.execute("create policy only_a on hydrator.memories for select using (namespace = 'a')")
        db.execute("set local role hydrator_test_reader")
        for call in (
            "compact_index('{a,b}')",
            "fetch_top_k_relevant('[1,0,0,0]', '{a,b}')",
            "search_memories('[1,0,0,0]', '{a,b}')",
        ):
            assert db.execute(f"select heading from hydrator.{call}").fetchall() == [("of a",)], call
        (total, relevant) = db.execute(
            "select index_total, relevant from hydrator.hydrate_session('[1,0,0,0]', '{a,b}')"
        ).fetchone()
        assert (total, [memory["heading"] for memory in relevant]) == (1, ["of a"])
        for write in ("remember('a', 'x')", "forget('a', gen_random_uuid())", "purge('1 day')"):
            with db.transaction(force_rollback=True):
                try:
                    db.execute(f"select hydrator.{write}")
                except psycopg.errors.InsufficientPrivilege:
                    continue
            raise AssertionError(f"{write} went through without a right to write")


def test_where_the_planner_is_led_nothing_is_compiled(db: psycopg.Connection) -> None:
    """A disabled way costs 1e10 before PostgreSQL 18, which would have each call compiled."""
    led = db.execute(
        "select proname, proconfig from pg_proc where pronamespace = 'hydrator'::regnamespace"
        " and proconfig && array['enable_sort=off', 'enable_seqscan=off', 'plan_cache_mode=force_generic_plan']"
    ).fetchall()
    assert len(led) >= 5
    assert [name for name, settings in led if "jit=off" not in settings] == []
