"""Row security by ``hydrator.secure()``: what a role may not read, nothing shows.

The attempts run in databases that hold the same for the role that makes them, and something else, or
nothing, for all others: every answer, error, notice and plan must be the same in each.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
import unicodedata
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hydrator import cli, doctor, indexes, migrations

OWN = "a"
# Of others; each is like the own one or another, or means something in some syntax.
FOREIGN = [
    "b", "B", "b ", " b", "b%", "_", "%", "*", "a,b", "{b}", '{"a","b"}', '["b"]', "b'", "b'--", 'b"', '"b"', "b\\",
    "b\n", "null", "NULL", "a'); select * from hydrator.memories; --", "а", "ａ", "A", "a\u200b", "a ", "aa",
    unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "🦉", "n" * 255,
]  # fmt: skip
ROLES = ("reader", "writer", "admin", "tenant_reader", "tenant_writer", "shared")
ATTEMPTS = 2_000
# Databases with other memories of others, and with none; a fourth is like the first, for tests that write.
COMPARED = ("one", "other", "none")


@dataclass(frozen=True)
class Secured:
    """Databases in which ``a`` holds the same."""

    urls: dict[str, str]
    names: dict[str, str]

    def connect(self, database: str, role: str | None = None) -> psycopg.Connection:
        address = self.urls[database]
        if role is not None:
            address = make_conninfo(address, user=self.names[role], password="secret")
        return psycopg.connect(address, autocommit=True)


def memory_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=number * 0x9E3779B97F4A7C15 % 2**128)


OWN_IDS = [memory_id(number) for number in range(1, 13)]
FOREIGN_IDS = {
    "one": [memory_id(1_000 + number) for number in range(len(FOREIGN) * 3)],
    "other": [memory_id(5_000 + number) for number in range(len(FOREIGN) * 3)],
}
MARKS = {"one": "zebra", "other": "quail"}


def fill(connection: psycopg.Connection, kind: str) -> None:
    insert = """
        insert into hydrator.memories (namespace, memory_id, heading, content, confidence, source_type, embedding,
          embedding_model, expires_at, created_at, updated_at, deleted_at, pinned, metadata)
        values (%s, %s, %s, %s, %s, %s, %s, %s, %s, '2026-01-01Z', '2026-01-01Z', %s, %s, %s)
        """
    rows: list[tuple[Any, ...]] = []
    for number, own in enumerate(OWN_IDS):
        embedding = f"[{number % 3},1,{number % 5},0.5]"
        rows.append(
            (OWN, own, f"own {number}", "7" * (number + 1), 1 / (number + 1), "agent", embedding, "model",
             "2999-01-01Z" if number % 4 == 3 else None, "2026-02-01Z" if number == 5 else None,
             number == 7, json.dumps({"n": number}))
        )  # fmt: skip
    if kind != "none":
        kind = "one" if kind == "spare" else kind
        mark, sign = MARKS[kind], 1 if kind == "one" else -1
        for number, foreign in enumerate(FOREIGN_IDS[kind]):
            embedding = f"[{sign},{number % 7},{sign * 3},{number % 2}]"
            rows.append(
                (FOREIGN[number % len(FOREIGN)], foreign, f"{mark} {number % 5}", f"{mark} said " * 3, 0.5 + sign / 4,
                 mark, embedding, f"{mark} model", "2999-01-01Z" if (number + sign) % 3 == 0 else None,
                 "2026-02-01Z" if number % (6 + sign) == 0 else None, number % (4 + sign) == 0,
                 json.dumps({mark: number}))
            )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.executemany(insert, rows)


@pytest.fixture(scope="module")
def secured(pytestconfig: pytest.Config) -> Iterator[Secured]:
    suffix = uuid.uuid4().hex[:8]
    server = {
        "host": pytestconfig.option.postgresql_host,
        "port": pytestconfig.option.postgresql_port,
        "user": pytestconfig.option.postgresql_user,
        "password": pytestconfig.option.postgresql_password,
    }
    names = {role: f"hydrator_test_{role}_{suffix}" for role in ROLES}
    urls = {
        kind: make_conninfo(**server, dbname=f"hydrator_rls_{kind}_{suffix}") for kind in (*COMPARED, "spare")
    }
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as admin:
        try:
            for kind, url in urls.items():
                template = f"template hydrator_rls_one_{suffix}" if kind != "one" else ""
                admin.execute(f"create database hydrator_rls_{kind}_{suffix} {template}")
                if kind == "one":
                    migrations.upgrade(url, dimensions=4)
                    indexes.create_index(url, "bits")
            for kind, url in urls.items():
                with psycopg.connect(url, autocommit=True) as connection:
                    fill(connection, kind)
                    for table in ("memories", "namespace_counts", "namespace_grants"):
                        # The attempts leave dead rows, and plans should not change between two of them.
                        connection.execute(f"alter table hydrator.{table} set (autovacuum_enabled = off)")
                    connection.execute("vacuum analyze")
                    connection.execute(
                        "select hydrator.secure(true, false, %s, %s, %s)",
                        (names["reader"], names["writer"], names["admin"]),
                    )
                    if kind == "one":
                        for role, group in (
                            ("tenant_reader", "reader"),
                            ("tenant_writer", "writer"),
                            ("shared", "writer"),
                        ):
                            connection.execute(
                                f"create role {names[role]} login password 'secret' in role {names[group]}"
                            )
                    connection.execute(
                        "insert into hydrator.namespace_grants values (%s, 'a', false), (%s, 'a', true), (%s, null, true)",
                        (names["tenant_reader"], names["tenant_writer"], names["shared"]),
                    )
                    # What an analyze finds from now on, no estimate shows.
                    connection.execute("vacuum analyze")
            yield Secured(urls, names)
        finally:
            for kind in urls:
                admin.execute(f"drop database if exists hydrator_rls_{kind}_{suffix} with (force)")
            for role in reversed(ROLES):
                admin.execute(f"drop role if exists {names[role]}")


NAMESPACES = [OWN, *FOREIGN]
PREDICATES = [
    "namespace = %(namespace)s",
    "namespace <> 'a'",
    "namespace = any (%(namespaces)s)",
    "namespace like '%%'",
    "namespace > %(namespace)s",
    "memory_id = %(id)s",
    "memory_id = any (%(ids)s)",
    "supersedes = %(id)s",
    "heading = %(word)s",
    "heading ~ %(word)s",
    "content like '%%' || %(word)s || '%%'",
    "source_type = %(word)s",
    "embedding_model = %(word)s || ' model'",
    "confidence > 0.6",
    "deleted_at is not null",
    "expires_at > '2900-01-01Z'",
    "pinned",
    "metadata ? %(word)s",
    "metadata @> jsonb_build_object(%(word)s::text, 1)",
    "ctid = '(0,20)'",
    "(namespace = 'a' or pg_temp.leak(heading))",
    "pg_temp.leak(namespace || content)",
    "content::numeric > 0",
    "heading::integer > 0",
    "1 / (char_length(content) - 33) > 0",
    "embedding operator(public.<->) '[1,0,3,0]' < 1",
    "embedding_bits = b'1010'",
    "index_tokens > 0 or true",
    "words && hydrator.hash_words(%(namespace)s, hydrator.split_words(%(word)s), 0)",
    "exists (select from hydrator.namespace_counts c where c.namespace = %(namespace)s)",
]
SELECTS = [
    "select namespace, memory_id, heading from hydrator.memories where {0} and {1} order by memory_id",
    "select count(*), max(content), min(source_type), sum(confidence) from hydrator.memories where {0}",
    "select distinct namespace from hydrator.live_memories where {0} or {1} order by 1",
    "select namespace, lasting from hydrator.namespace_counts where namespace = %(namespace)s or true order by 1",
    "select sum(lasting), count(*) from hydrator.namespace_counts",
    "select * from hydrator.namespace_grants where role <> 'x' or namespace = %(namespace)s",
    "select heading from hydrator.memories m join hydrator.namespace_counts c using (namespace) where {0} order by 1",
    "select heading from hydrator.memories where {0} order by embedding operator(public.<=>) '[1,3,3,1]', 1 limit 3",
    "select memory_id from hydrator.memories tablesample bernoulli (100) where {0} order by 1",
    "select string_agg(content, ',' order by memory_id) filter (where {0}) from hydrator.memories",
    "select memory_id from hydrator.memories where {0} order by memory_id for update",
]
CALLS = [
    "select * from hydrator.compact_index(%(namespaces)s, %(number)s)",
    "select * from hydrator.fetch_top_k_relevant(%(query)s, %(namespaces)s, %(number)s, null, null, %(metadata)s)",
    "select * from hydrator.hydrate_session(%(query)s, %(namespaces)s, %(number)s, 600, %(number)s)",
    "select * from hydrator.hydrate_session(%(query)s, %(namespaces)s, p_embedding_model => %(word)s || ' model')",
    "select * from hydrator.search_memories(%(query)s, %(namespaces)s, %(number)s, array[%(word)s])",
    "select * from hydrator.search_memories(%(query)s, %(namespaces)s, p_embedding_model => 'model')",
    "select * from hydrator.fetch_memories(%(namespaces)s, %(ids)s)",
    "select * from hydrator.rank_memories(%(query)s, %(namespaces)s, 9, null, null, null, null, null, null, false)",
    "select * from hydrator.hydrate_session(null, %(namespaces)s, %(number)s, 600, p_query_text => %(word)s)",
    "select * from hydrator.fetch_top_k_relevant(%(query)s, %(namespaces)s, %(number)s, p_query_text => %(word)s)",
    "select * from hydrator.search_memories(null, %(namespaces)s, %(number)s, p_query_text => %(word)s)",
    "select * from hydrator.near_duplicates(%(namespaces)s, %(number)s)",
    "select * from hydrator.list_quarantined(%(namespaces)s)",
    "select * from hydrator.index_json(%(namespaces)s, null)",
    "select hydrator.check_embedding_model(%(word)s || ' model', %(namespaces)s)",
    "select hydrator.count_live(%(namespaces)s)",
    "select hydrator.survey_namespaces(%(namespaces)s, %(word)s || ' model')",
    "select hydrator.granted_namespaces(true), hydrator.granted_namespaces(false)",
    "select hydrator.choose_ranking(hydrator.count_live(%(namespaces)s))",
]
WRITES = [
    "select hydrator.remember(%(namespace)s, %(word)s || ' 1', %(word)s)",
    "select hydrator.remember(%(namespace)s, 'new', p_supersedes => %(id)s)",
    "select hydrator.remember('a', 'new', p_supersedes => %(id)s)",
    "select hydrator.remember(%(namespace)s, 'new', 'x', %(query)s, p_embedding_model => %(word)s || ' model')",
    "select hydrator.forget(%(namespace)s, %(id)s)",
    "select hydrator.forget('a', %(id)s)",
    "select hydrator.purge('0')",
    "select hydrator.secure()",
    "insert into hydrator.memories (namespace, memory_id, heading, content) values (%(namespace)s, %(id)s, 'x', 'y')",
    "insert into hydrator.memories (namespace, memory_id, heading, content) values ('a', %(id)s, 'x', 'y')"
    " on conflict (namespace, memory_id) do update set heading = excluded.heading returning heading",
    "insert into hydrator.memories (namespace, memory_id, heading, content, supersedes)"
    " values (%(namespace)s, %(id)s, 'x', null, %(id)s) on conflict do nothing returning *",
    "update hydrator.memories set namespace = %(namespace)s where {0}",
    "update hydrator.memories set supersedes = %(id)s where {0} returning memory_id",
    "update hydrator.memories set heading = heading || '!' where {0} returning memory_id, heading",
    "update hydrator.live_memories set deleted_at = now() where namespace = %(namespace)s returning heading",
    "delete from hydrator.memories where {0} returning content",
    "merge into hydrator.memories m using (select %(id)s::uuid as id) s on m.memory_id = s.id"
    " when matched then update set pinned = true when not matched then do nothing",
    "update hydrator.namespace_counts set lasting = lasting + 1 where namespace = %(namespace)s returning lasting",
    "insert into hydrator.namespace_counts values (%(namespace)s, 1, 1) on conflict do nothing",
    "insert into hydrator.namespace_grants values (current_user, %(namespace)s, true)",
    "update hydrator.namespace_grants set namespace = null",
    "truncate hydrator.memories",
    "alter table hydrator.memories no force row level security",
    "drop policy hydrator_read on hydrator.memories",
    "create table pg_temp.child (n text, i uuid, foreign key (n, i) references hydrator.memories (namespace, memory_id))",
    "create view pg_temp.peek as select * from hydrator.memories; select count(*) from pg_temp.peek",
    "create rule leak as on select to hydrator.memories do instead select 1",
]
CATALOGS = [
    "select tablename, attname, most_common_vals::text, histogram_bounds::text from pg_stats where schemaname = 'hydrator'",
    "select staattnum, stavalues1::text from pg_statistic where starelid = 'hydrator.memories'::regclass",
    "select most_common_vals::text from pg_stats_ext",
    "select query_to_xml('select heading from hydrator.memories order by memory_id', true, false, '')::text",
    "select table_to_xml('hydrator.namespace_counts', true, false, '')::text",
    "copy (select heading from hydrator.memories order by memory_id) to stdout",
    "copy hydrator.memories (namespace, heading, content) from stdin",
    "declare peek cursor for select heading from hydrator.memories order by memory_id; fetch all from peek",
    "prepare peek as select heading from hydrator.memories where namespace = 'b'; execute peek",
    "do $$ declare m record; begin for m in select * from hydrator.memories order by memory_id loop raise notice '%%', m; end loop; end $$",
    "select lo_import('/etc/hostname')",
    "select pg_read_file('PG_VERSION')",
    "select * from pgstattuple('hydrator.memories')",
]  # fmt: skip
SETTINGS = [
    "set row_security = off",
    "select set_config('hydrator.namespaces', %(namespaces)s::text[]::text, true)",
    "select set_config('hydrator.namespaces', array[%(namespace)s]::text, true)",
    "select set_config('hydrator.namespaces', %(namespace)s, true)",
    "select hydrator.act_for(%(namespaces)s)",
    "select hydrator.act_for(array[%(namespace)s])",
    "set local role {admin}",
    "set local role {shared}",
    "set local session authorization {shared}",
    "set local search_path = pg_temp",
    "set local enable_seqscan = off; set local enable_bitmapscan = off",
    "set local enable_indexscan = off; set local enable_indexonlyscan = off",
    "set local hydrator.exact_max_rows = 0; set local hydrator.rerank_factor = 1",
    "set local client_min_messages = debug5",
    "set local session_replication_role = replica",
    "set local plan_cache_mode = force_custom_plan",
    "set local debug_parallel_query = on; set local parallel_setup_cost = 0",
]
EXPLAIN = [
    "explain {0}",
    "explain (verbose, format json) {0}",
    "explain (analyze, timing off, summary off, buffers off) {0}",
]
LEAK = """
create function pg_temp.leak(p text) returns boolean language plpgsql cost 0.0000001
as $$ begin raise notice 'leaked %', p; return true; end $$
"""


def attempts(names: dict[str, str]) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Give (role, statements, parameters), the same at each run."""
    draw = random.Random(6)
    large = [namespace * 1_000 for namespace in ("b", "é")] + ["b", "B"]
    for number in range(ATTEMPTS):
        namespaces = draw.choices(NAMESPACES, k=draw.randrange(4)) + [OWN] * (draw.random() < 0.7)
        if number % 200 == 0:  # 1 MB, and the namespaces of all others in it
            namespaces = [*large * 250, *(f"b{n}" for n in range(60_000)), *FOREIGN]
        ids = (
            draw.choices(FOREIGN_IDS["one"], k=3)
            + draw.choices(OWN_IDS, k=1)
            + draw.choices(FOREIGN_IDS["other"], k=1)
        )
        draw.shuffle(ids)
        parameters = {
            "namespace": draw.choice([OWN, *draw.choices(FOREIGN, k=2)]),
            "namespaces": namespaces,
            "id": ids[0],
            "ids": ids,
            "word": draw.choice(["zebra", "quail", "zebra 1", "quail 2", "own 3", "x"]),
            "number": draw.choice([0, 1, 3, 20]),
            "query": draw.choice(["[1,1,3,0]", "[-1,1,-3,1]", "[0,1,0,0.5]"]),
            "metadata": draw.choice([None, '{"zebra": 3}', '{"n": 3}']),
        }  # fmt: skip
        kind = draw.choice([SELECTS, SELECTS, CALLS, CALLS, WRITES, CATALOGS])
        predicates = draw.choices(PREDICATES, k=2)
        statement = draw.choice(kind)
        if "{0}" in statement:
            statement = statement.replace("{0}", predicates[0]).replace("{1}", predicates[1])
        if kind is not CATALOGS and draw.random() < 0.4:
            statement = draw.choice(EXPLAIN).replace("{0}", statement)
        statements = [statement]
        if draw.random() < 0.6:
            setting = draw.choice(SETTINGS)
            for role, name in names.items():
                setting = setting.replace(f"{{{role}}}", name)
            statements.insert(0, setting)
        yield draw.choice(["tenant_reader", "tenant_writer"]), statements, parameters


KNOWN = {str(known) for known in (*OWN_IDS, *FOREIGN_IDS["one"], *FOREIGN_IDS["other"])}


def comparable(text: str) -> str:
    """Write new ids alike, of memories and of transactions, and what is named for its database."""
    text = re.sub(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", lambda m: m[0] if m[0] in KNOWN else "<new>", text
    )
    text = re.sub(r"(?<=xid/subid/cid: )\d+", "<new>", text)
    return re.sub(r"pg_temp_\d+|hydrator_rls_\w+|pg_toast_temp_\d+", "<of the database>", text)


def outcome(connection: psycopg.Connection, statements: list[str], parameters: dict[str, Any]) -> str:
    """Run the statements, roll them back, and give all that was told: rows, errors and notices."""
    told: list[str] = []

    def handler(diag: psycopg.errors.Diagnostic) -> None:
        if not diag.message_primary.startswith("rehashing catalog cache"):
            told.append(f"{diag.severity} {diag.message_primary} {diag.message_detail} {diag.context}")

    connection.add_notice_handler(handler)
    try:
        with connection.transaction(force_rollback=True):
            for statement in statements:
                cursor = psycopg.ClientCursor(connection)
                if statement.startswith("copy"):
                    with cursor.copy(statement.encode()) as copy:
                        told.append(
                            repr([bytes(part) for part in copy] if "to stdout" in statement else None)
                        )
                    continue
                cursor.execute(statement, parameters)
                while True:
                    told.extend(
                        map(repr, cursor.fetchall()) if cursor.description else [str(cursor.rowcount)]
                    )
                    if not cursor.nextset():
                        break
    except psycopg.Error as error:
        diag = error.diag
        told.append(
            f"{error.sqlstate} {diag.message_primary} {diag.message_detail} {diag.message_hint} {diag.context}"
        )
        if error.sqlstate is None:
            told.append(str(error))
    finally:
        connection.remove_notice_handler(handler)
    # In which order rows come by follows from how large the tables are.
    return comparable("\n".join(sorted(told)))


@pytest.fixture
def tenants(secured: Secured) -> Iterator[dict[str, psycopg.Connection]]:
    """Connections to a database with memories of others, by role, in transactions that are rolled back."""
    roles = ("tenant_reader", "tenant_writer", "shared")
    connections = {role: secured.connect("spare", role) for role in roles}
    for connection in connections.values():
        connection.execute("begin")
    yield connections
    for connection in connections.values():
        connection.close()


def visible(connection: psycopg.Connection) -> set[str]:
    return {name for (name,) in connection.execute("select distinct namespace from hydrator.memories")}


def test_a_named_grant_is_narrowed_by_the_setting_and_never_widened(
    tenants: dict[str, psycopg.Connection],
) -> None:
    reader = tenants["tenant_reader"]
    assert visible(reader) == {OWN}
    for asked, seen in (([OWN, "b"], {OWN}), (["b"], set()), ([], set()), ([OWN], {OWN})):
        reader.execute("select hydrator.act_for(%s)", [asked])
        assert visible(reader) == seen


def test_a_shared_role_sees_what_its_transaction_names(tenants: dict[str, psycopg.Connection]) -> None:
    shared = tenants["shared"]
    assert visible(shared) == set()
    for asked in ([name] for name in NAMESPACES):
        shared.execute("select hydrator.act_for(%s)", [asked])
        assert visible(shared) == set(asked)
        assert (
            shared.execute("select hydrator.count_live(%s)", [NAMESPACES]).fetchone()
            == shared.execute("select count(*) from hydrator.live_memories").fetchone()
        )
    shared.execute("select hydrator.act_for(%s)", [[*NAMESPACES, "a~0b", "~1"]])
    assert visible(shared) == set(NAMESPACES)
    shared.execute("select hydrator.act_for('{}')")
    assert visible(shared) == set()
    shared.execute("rollback")
    assert visible(shared) == set()


def test_a_writer_writes_where_it_may(tenants: dict[str, psycopg.Connection]) -> None:
    writer = tenants["tenant_writer"]
    (before,) = writer.execute("select hydrator.count_live('{a}')").fetchone()
    (new,) = writer.execute("select hydrator.remember('a', 'new', 'new', '[1,0,0,0]')").fetchone()
    writer.execute("select hydrator.remember('a', 'newer', p_supersedes => %s)", [new])
    assert writer.execute("select hydrator.forget('a', %s)", [OWN_IDS[0]]).fetchone() == (True,)
    # The triggers have counted.
    assert writer.execute("select hydrator.count_live('{a}')").fetchone() == (before,)
    for role, statement in (
        ("tenant_writer", "select hydrator.remember('b', 'new')"),
        ("tenant_reader", "select hydrator.remember('a', 'new')"),
        ("tenant_writer", "select hydrator.purge('0')"),
        ("shared", "select hydrator.remember('b', 'new')"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), tenants[role].transaction():
            tenants[role].execute(statement)
    tenants["shared"].execute("select hydrator.act_for('{b}')")
    tenants["shared"].execute("select hydrator.remember('b', 'new')")


def test_the_owner_is_bound_and_the_admin_sees_all(secured: Secured) -> None:
    with secured.connect("spare") as connection, connection.transaction(force_rollback=True):
        connection.execute("create role hydrator_test_owner_of_all")
        connection.execute("grant usage on schema hydrator to hydrator_test_owner_of_all")
        for table in ("memories", "namespace_counts", "namespace_grants"):
            connection.execute(f"alter table hydrator.{table} owner to hydrator_test_owner_of_all")
        connection.execute("set local role hydrator_test_owner_of_all")
        for table in ("memories", "namespace_counts", "namespace_grants"):
            assert connection.execute(f"select count(*) from hydrator.{table}").fetchone() == (0,)
        connection.execute("reset role")
        connection.execute(f"set local role {secured.names['admin']}")
        assert visible(connection) == set(NAMESPACES)
        connection.execute("select hydrator.remember('of admin', 'x'), hydrator.purge('1000 years')")
        connection.execute("insert into hydrator.namespace_grants values ('someone', 'b')")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


@pytest.mark.parametrize("way", ["exact", "bits", "hnsw"])
def test_plans_stay_on_the_indexes(db: psycopg.Connection, url: str, secured: Secured, way: str) -> None:
    db.execute("alter table hydrator.memories set (autovacuum_enabled = off)")
    db.execute(
        """
        insert into hydrator.memories (namespace, heading, content, embedding)
        select case when i % 3 = 0 then 'a' else 'b' || i % 7 end, 'h' || i, repeat('c', 300),
          array[sin(i), cos(i * 1.7), sin(i * 0.3), 0.1]::vector
        from generate_series(1, 4000) i
        """
    )
    for name in indexes.NAMES:
        indexes.create_index(url, name)
    db.execute("select hydrator.secure(true, false, %s, %s, %s)", [secured.names[role] for role in ROLES[:3]])
    db.execute("insert into hydrator.namespace_grants values (%s, 'a')", [secured.names["tenant_reader"]])
    # A snapshot that somebody else, such as autovacuum, still holds keeps pages from being all-visible.
    visible_pages = "select relallvisible = relpages from pg_class where oid = 'hydrator.memories'::regclass"
    deadline = time.monotonic() + 30
    while True:
        db.execute("vacuum analyze hydrator.memories")
        if db.execute(visible_pages).fetchone() == (True,):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for setting, value in {
        "exact": {"exact_max_rows": 9_999},
        "bits": {},
        "hnsw": {"bits_max_rows": 0, "hnsw_min_percent": 0},
    }[way].items():
        db.execute(f"set hydrator.{setting} = {value}")
    db.execute("load 'auto_explain'")
    for setting in ("min_duration = 0", "analyze = on", "nested_statements = on", "format = json"):
        db.execute(f"set auto_explain.log_{setting}")
    db.execute("set client_min_messages = log")
    told: list[str] = []
    db.add_notice_handler(lambda diag: told.append(diag.message_primary))
    db.execute(f"set role {secured.names['tenant_reader']}")
    (ranked_by, shown) = db.execute(
        "select ranked_by, index_shown from hydrator.hydrate_session('[1,0,0,0]', '{a,b1}', p_index_budget => 100)"
    ).fetchone()
    assert (ranked_by, shown > 10) == (way, True)

    plans = [json.loads(text[text.index("{") :]) for text in told if "plan:" in text]
    scans = [
        (plan["Query Text"], node)
        for plan in plans
        for node in nodes(plan["Plan"])
        if node.get("Relation Name") == "memories" or "Index Name" in node
    ]
    tier_1 = {
        (scan["Node Type"], scan["Index Name"], scan.get("Heap Fetches"))
        for text, scan in scans
        if "index_entry" in text
    }
    assert tier_1 == {("Index Only Scan", "memories_live_idx", 0)}
    for text, scan in scans:
        # No table is read but through an index, and no index but hnsw passes over rows of others.
        assert "Index" in scan["Node Type"], text
        if scan["Index Name"] == "memories_hnsw_idx":
            assert way == "hnsw"
        elif scan.get("Relation Name") == "memories":
            assert scan["Index Cond"].count("(namespace = ") == 2, text
            assert "[namespace] IS NOT NULL" in scan["Filter"], text
            # What row security keeps from an index, such as an expression it calls leaky, costs a row each.
            if scan["Index Name"] != "memories_bits_idx":
                assert scan.get("Rows Removed by Filter", 0) == 0, text


def test_securing_again_and_off_again(db: psycopg.Connection, url: str, secured: Secured) -> None:
    names = [secured.names[role] for role in ROLES[:3]]
    state = """
        select c.relname, c.relacl::text, c.relrowsecurity, c.relforcerowsecurity from pg_class c
        where c.relnamespace = 'hydrator'::regnamespace and c.relkind in ('r', 'v')
        union all
        select p.oid::regprocedure::text, p.proacl::text, null, null from pg_proc p where p.pronamespace = 'hydrator'::regnamespace
        union all
        select a.attname, a.attacl::text, coalesce(a.attstattarget, -1) = -1, null from pg_attribute a
        where a.attrelid = 'hydrator.memories'::regclass and a.attnum > 0
        order by 1, 2
        """
    # The owner's own rights are written out by the first grant.
    db.execute("grant select on all tables in schema hydrator to current_user")
    before = db.execute(state).fetchall()
    shown = db.execute("select hydrator.secure(true, true, %s, %s, %s)", names).fetchall()
    assert db.execute(state).fetchall() == before
    assert db.execute("select hydrator.secure(true, false, %s, %s, %s)", names).fetchall() == shown
    secure = db.execute(state).fetchall()
    again = db.execute("select hydrator.secure(true, false, %s, %s, %s)", names).fetchall()
    assert again[-len(shown) :] == shown
    assert db.execute(state).fetchall() == secure
    # Roles of another name take the place of the first; memberships hold for all databases and stay.
    with pytest.raises(psycopg.Error, match="which sees everything") as refused:
        db.execute("select hydrator.secure(true, false, %s, %s, %s)", [names[2], names[1], names[0]])
    assert refused.value.sqlstate == "MH011"
    with db.transaction(force_rollback=True):
        db.execute(
            "select hydrator.secure(true, false, 'hydrator_test_r', 'hydrator_test_w', 'hydrator_test_a')"
        )
        may = "select has_function_privilege(%s, 'hydrator.purge(interval)', 'execute')"
        assert db.execute(may, names[2:]).fetchone() == (False,)
        assert db.execute(may, ["hydrator_test_a"]).fetchone() == (True,)
    db.execute("select hydrator.secure(false)")
    assert db.execute(state).fetchall() == before
    assert db.execute("select hydrator.secure(false)").fetchall() == []
    for name in names:
        assert db.execute("select has_schema_privilege(%s, 'hydrator', 'usage')", [name]).fetchone() == (
            False,
        )


def test_who_may_not_secure_is_told_what_to_run(db: psycopg.Connection, secured: Secured) -> None:
    with db.transaction(force_rollback=True):
        db.execute(f"grant usage on schema hydrator to {secured.names['shared']}")
        db.execute(f"grant execute on all functions in schema hydrator to {secured.names['shared']}")
        db.execute(f"set local role {secured.names['shared']}")
        with pytest.raises(psycopg.Error, match="does not own the schema hydrator") as refused:
            db.execute("select hydrator.secure()")
    assert refused.value.sqlstate == "MH011"
    assert "must run: select hydrator.secure();" in refused.value.diag.message_hint
    with db.transaction(force_rollback=True):
        db.execute(f"grant usage on schema hydrator to {secured.names['shared']}")
        db.execute(f"grant execute on all functions in schema hydrator to {secured.names['shared']}")
        db.execute(f"alter table hydrator.memories owner to {secured.names['shared']}")
        db.execute(f"set local role {secured.names['shared']}")
        with pytest.raises(psycopg.Error, match="may not run: create role hydrator_test_no_one") as refused:
            db.execute("select hydrator.secure(p_reader => 'hydrator_test_no_one')")
    assert refused.value.sqlstate == "MH011"
    for names in (["x", "x", "y"], ["x", None, "y"]):
        with pytest.raises(psycopg.Error, match="Name three different roles") as refused:
            db.execute("select hydrator.secure(true, false, %s, %s, %s)", names)
        assert refused.value.sqlstate == "MH011"


def test_the_command(
    db: psycopg.Connection,
    url: str,
    secured: Secured,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hydrator", *arguments, "--url", url])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    is_on = "select relrowsecurity from pg_class where oid = 'hydrator.memories'::regclass"
    roles = [f"--{role}={secured.names[role]}" for role in ROLES[:3]]
    script = run("db", "secure", "--show", *roles)
    assert db.execute(is_on).fetchone() == (False,)
    with db.transaction(force_rollback=True):
        db.execute(script.encode())  # what is shown is what a DBA can run
        assert db.execute(is_on).fetchone() == (True,)
    told = run("db", "secure", *roles)
    assert db.info.user in told.splitlines()[-1]
    assert db.execute(is_on).fetchone() == (True,)
    [finding] = [finding for finding in doctor.examine(url, samples=0) if finding.subject == "row security"]
    assert (finding.state, "does not bind" in finding.what) == ("ok", True)
    db.execute("alter table hydrator.namespace_counts disable row level security")
    [finding] = [finding for finding in doctor.examine(url, samples=0) if finding.subject == "row security"]
    assert (finding.state, finding.mend) == ("problem", "hydrator db secure")
    assert "is off" in run("db", "secure", "--off")
    assert db.execute(is_on).fetchone() == (False,)


def test_no_condition_of_a_query_is_tried_before_the_policy(secured: Secured) -> None:
    """An equality that the planner takes for harmless, before something that can be seen."""
    oracles = [
        "select from hydrator.memories where heading = %s and namespace = (select pg_temp.seen())",
        "select from hydrator.memories where heading = any (array[%s]) and namespace = (select pg_temp.seen())",
        "select from hydrator.memories where case when heading = %s then namespace = (select pg_temp.seen()) end",
        "select from hydrator.memories where case when pinned and deleted_at is not null then (select pg_temp.seen()) end = %s",
        "select from hydrator.memories where metadata['zebra'] is not null and heading = (select pg_temp.seen() || %s)",
        "select from hydrator.namespace_counts where namespace = %s and lasting = (select length(pg_temp.seen()))",
        "select from hydrator.namespace_grants where role = %s and namespace = (select pg_temp.seen())",
    ]
    settings = "set enable_indexscan = off; set enable_bitmapscan = off; set enable_indexonlyscan = off"
    with secured.connect("one", "tenant_reader") as connection:
        connection.execute(settings)
        connection.execute(
            "create function pg_temp.seen() returns text language plpgsql as $$ begin raise notice 'seen'; return 'x'; end $$"
        )
        told: list[str] = []
        connection.add_notice_handler(lambda diag: told.append(diag.message_primary))
        for oracle in oracles:
            for guess in ("zebra 1", "b", secured.names["tenant_writer"]):
                psycopg.ClientCursor(connection).execute(oracle, [guess])
                assert told == [], (oracle, guess)
            told.clear()
        psycopg.ClientCursor(connection).execute(oracles[0], ["own 1"])
        assert told == ["seen"]


def test_two_thousand_attempts_show_nothing_of_others(secured: Secured) -> None:
    connections = {
        (kind, role): secured.connect(kind, role)
        for kind in COMPARED
        for role in ("tenant_reader", "tenant_writer")
    }
    try:
        for connection in connections.values():
            connection.execute(LEAK)
        seen = explained = refused = 0
        for role, statements, parameters in attempts(secured.names):
            is_plan = statements[-1].startswith("explain")
            # A plan's costs, and the rows it passed over, tell how large the tables are; so do the
            # messages of a debugging server, by which plan was run.
            tells_sizes = is_plan or "debug5" in statements[0]
            kinds = COMPARED[:2] if tells_sizes else COMPARED
            told = {kind: outcome(connections[kind, role], statements, parameters) for kind in kinds}
            about = (role, statements, {name: str(value)[:200] for name, value in parameters.items()})
            assert len(set(told.values())) == 1, (about, told)
            explained += is_plan
            refused += bool(re.search(r"^(42501|MH\d\d\d|2201|22P) ", told["one"], re.M))
            seen += "own " in told["one"]
        # The attempts are worth their name: many got to see what is their own.
        assert min(seen, explained, refused) > 150, (seen, explained, refused)
    finally:
        for connection in connections.values():
            connection.close()
