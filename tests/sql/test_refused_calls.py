"""Bad input: each is refused with its SQLSTATE and a message that names it, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor
from pytest_postgresql.janitor import DatabaseJanitor

OLD, RETIRED, NEW, ELSEWHERE, MISSING = (UUID(int=i) for i in range(1, 6))

# What the store holds before each call: one live memory to supersede, one superseded already, one
# in another namespace, and vectors of two models in two namespaces.
STORE = f"""
insert into hydrator.memories
  (namespace, memory_id, heading, content, embedding, embedding_model, supersedes)
values
  ('acme', '{OLD}', 'old', 'old', '[1,0,0,0]', null, null),
  ('acme', '{RETIRED}', 'retired', 'retired', '[1,0,0,0]', null, null),
  ('acme', '{NEW}', 'new', 'new', '[1,0,0,0]', null, '{RETIRED}'),
  ('other', '{ELSEWHERE}', 'elsewhere', 'elsewhere', '[1,0,0,0]', null, null),
  ('large', gen_random_uuid(), 'by the large model', 'x', '[1,0,0,0]', 'large-model', null),
  ('small', gen_random_uuid(), 'by the small model', 'x', '[1,0,0,0]', 'small-model', null)
"""


@pytest.fixture(scope="module")
def store(postgresql_proc: NoopExecutor) -> Iterator[psycopg.Connection]:
    """A connection to a database of this module, since refused calls leave it as it was."""
    server = {
        "host": postgresql_proc.host,
        "port": postgresql_proc.port,
        "user": postgresql_proc.user,
        "password": postgresql_proc.password,
        "dbname": f"{postgresql_proc.dbname}_refused",
    }
    janitor = DatabaseJanitor(**server, template_dbname=postgresql_proc.template_dbname)
    janitor.drop()
    with janitor, psycopg.connect(**server, autocommit=True) as connection:
        connection.execute(STORE)
        yield connection


def everything(store: psycopg.Connection) -> list[tuple[object, ...]]:
    return store.execute("select * from hydrator.memories order by namespace, memory_id").fetchall()


def assert_refused(store: psycopg.Connection, statement: str, sqlstate: str, *words: str) -> None:
    """Run a statement that has to fail so, with these words in its message, and change nothing."""
    before = everything(store)
    with pytest.raises(psycopg.Error) as refused:
        store.execute(statement)
    message = refused.value.diag.message_primary
    assert (refused.value.sqlstate, message) == (sqlstate, message)
    for word in words:
        assert word in message
    if sqlstate.startswith("MH"):
        assert refused.value.diag.message_hint, "every error of ours says what to do"
    assert everything(store) == before


def call(function: str, arguments: dict[str, str]) -> str:
    named = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    return f"select * from hydrator.{function}({named})"


# The three calls that rank.

READ = {"p_query_embedding": "'[1,0,0,0]'", "p_namespaces": "'{acme}'"}


@pytest.mark.parametrize("function", ["fetch_top_k_relevant", "search_memories", "hydrate_session"])
@pytest.mark.parametrize(
    ("arguments", "sqlstate", "words"),
    [
        ({"p_query_embedding": "'[1,2,3]'"}, "MH001", ["query_embedding", "3", "4"]),
        ({"p_query_embedding": "'[1,2,3,4,5]'"}, "MH001", ["query_embedding", "5", "4"]),
        ({"p_query_embedding": "null"}, "MH002", ["query_embedding", "null"]),
        ({"p_query_embedding": "'[0,0,0,0]'"}, "MH002", ["query_embedding", "zero"]),
        ({"p_query_embedding": "'[-0,0,0,0]'"}, "MH002", ["query_embedding", "zero"]),
        ({"p_query_embedding": "'[1e-30,0,0,0]'"}, "MH002", ["query_embedding"]),
        ({"p_query_embedding": "'[1e-19,0,0,0]'"}, "MH002", ["query_embedding"]),
        ({"p_query_embedding": "'[1e30,1e30,0,0]'"}, "MH002", ["query_embedding"]),
        ({"p_query_embedding": "'[1e39,0,0,0]'"}, "22003", ["1e39"]),
        ({"p_query_embedding": "'[NaN,0,0,0]'"}, "22000", ["NaN"]),
        ({"p_query_embedding": "'[Infinity,0,0,0]'"}, "22000", ["infinite"]),
        ({"p_query_embedding": "'[]'"}, "22000", ["dimension"]),
        ({"p_query_embedding": "'none'"}, "22P02", ["none"]),
        ({"p_namespaces": "null"}, "MH005", ["namespaces", "null"]),
        ({"p_namespaces": "array['acme', null]"}, "MH005", ["namespaces", "null"]),
        ({"p_min_similarity": "'NaN'"}, "MH003", ["min_similarity", "NaN"]),
        (
            {"p_namespaces": "'{large}'", "p_embedding_model": "'x'"},
            "MH009",
            ["large-model", '"x"', '"large"'],
        ),
        (
            {"p_namespaces": "'{small}'", "p_embedding_model": "'x'"},
            "MH009",
            ["small-model", '"x"', '"small"'],
        ),
    ],
)
def test_a_ranking_is_refused(
    store: psycopg.Connection, function: str, arguments: dict[str, str], sqlstate: str, words: list[str]
) -> None:
    assert_refused(store, call(function, READ | arguments), sqlstate, *words)


@pytest.mark.parametrize(
    ("function", "parameter", "value", "sqlstate"),
    [
        ("fetch_top_k_relevant", "top_k", "-1", "MH003"),
        ("fetch_top_k_relevant", "top_k", "null", "MH003"),
        ("search_memories", "limit", "-1", "MH003"),
        ("search_memories", "limit", "null", "MH003"),
        ("hydrate_session", "top_k", "-1", "MH003"),
        ("hydrate_session", "top_k", "null", "MH003"),
        ("hydrate_session", "token_budget", "-1", "MH003"),
        ("hydrate_session", "token_budget", "null", "MH003"),
        ("hydrate_session", "index_budget", "-1", "MH003"),
        ("hydrate_session", "packing", "null", "MH004"),
        ("hydrate_session", "packing", "'STOP'", "MH004"),
        ("hydrate_session", "packing", "' stop'", "MH004"),
        ("hydrate_session", "packing", "''", "MH004"),
        ("hydrate_session", "packing", "'greedy'", "MH004"),
    ],
)
def test_a_limit_a_budget_or_a_packing_is_refused(
    store: psycopg.Connection, function: str, parameter: str, value: str, sqlstate: str
) -> None:
    statement = call(function, READ | {f"p_{parameter}": value})
    assert_refused(store, statement, sqlstate, parameter, value)


@pytest.mark.parametrize("namespaces", ["'{}'", "'{nobody}'"])
def test_what_is_wrong_is_refused_also_where_there_is_nothing_to_rank(
    store: psycopg.Connection, namespaces: str
) -> None:
    nothing = {"p_namespaces": namespaces}
    for wrong, sqlstate in {
        "p_query_embedding => '[1,2,3]'": "MH001",
        "p_query_embedding => null": "MH002",
        "p_query_embedding => '[1,0,0,0]', p_top_k => -1": "MH003",
        "p_query_embedding => '[1,0,0,0]', p_min_similarity => 'NaN'": "MH003",
    }.items():
        for function in ("hydrate_session", "fetch_top_k_relevant"):
            assert_refused(store, call(function, nothing)[:-1] + f", {wrong})", sqlstate)


def test_vectors_of_two_models_are_never_compared_in_silence(store: psycopg.Connection) -> None:
    """A query of either model, and one that names none, would rank the other model's vectors too."""
    both = READ | {"p_namespaces": "'{large,small}'"}
    for function in ("fetch_top_k_relevant", "search_memories", "hydrate_session"):
        for model in ("'large-model'", "'small-model'"):
            assert_refused(store, call(function, both | {"p_embedding_model": model}), "MH009")
        assert_refused(store, call(function, both), "MH009", "large-model", "small-model")


def test_a_model_that_agrees_or_is_not_known_passes(store: psycopg.Connection) -> None:
    for namespaces, model in {"{large}": "large-model", "{small}": None, "{acme}": "any-model"}.items():
        rows = store.execute(
            "select * from hydrator.search_memories('[1,0,0,0]', %s, p_embedding_model => %s)",
            (namespaces, model),
        ).fetchall()
        assert rows, namespaces


# The other reads.


@pytest.mark.parametrize(
    ("statement", "sqlstate", "words"),
    [
        ("select hydrator.compact_index(null)", "MH005", ["namespaces", "null"]),
        ("select hydrator.compact_index('{acme,null}')", "MH005", ["namespaces", "null"]),
        ("select hydrator.compact_index('{acme}', -1)", "MH003", ["budget", "-1"]),
        ("select hydrator.fetch_memories(null, '{}')", "MH005", ["namespaces", "null"]),
        ("select hydrator.fetch_memories('{null}', '{}')", "MH005", ["namespaces", "null"]),
        ("select hydrator.fetch_memories('{acme}', null)", "MH010", ["memory_ids", "null"]),
        ("select hydrator.fetch_memories('{acme}', '{not-an-id}')", "22P02", ["not-an-id"]),
        ("select hydrator.purge(null)", "MH003", ["older_than", "null"]),
        ("select hydrator.purge('-1 second')", "MH003", ["older_than", "-00:00:01"]),
        ("select hydrator.purge('1000000 years')", "22008", ["out of range"]),
    ],
)
def test_another_call_is_refused(
    store: psycopg.Connection, statement: str, sqlstate: str, words: list[str]
) -> None:
    assert_refused(store, statement, sqlstate, *words)


def test_a_null_index_budget_means_the_whole_index(store: psycopg.Connection) -> None:
    (entries,) = store.execute("select count(*) from hydrator.compact_index('{acme}', null)").fetchone()
    row = store.execute(call("hydrate_session", READ | {"p_index_budget": "null"})).fetchone()
    assert entries == len(row[0]) == 2


# What remember refuses. Each would supersede a live memory, which has to stay as it was.

WRITE = {"p_namespace": "'acme'", "p_heading": "'heading'", "p_supersedes": f"'{OLD}'"}

LINE_BREAKS = {
    "line feed": "\n",
    "vertical tab": "\v",
    "form feed": "\f",
    "carriage return": "\r",
    "file separator": "\x1c",
    "group separator": "\x1d",
    "record separator": "\x1e",
    "next line": "\x85",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
}


@pytest.mark.parametrize("line_break", LINE_BREAKS.values(), ids=LINE_BREAKS)
def test_a_heading_of_two_lines_is_refused(store: psycopg.Connection, line_break: str) -> None:
    for heading in (f"one{line_break}two", f"one{line_break}", f"{line_break}one"):
        statement = call("remember", WRITE | {"p_heading": f"'{heading}'"})
        assert_refused(store, statement, "MH008", "heading", "line", "one")


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "words"),
    [
        ({"p_heading": "null"}, "MH008", ["heading", "null"]),
        ({"p_heading": "''"}, "MH008", ["heading", "blank"]),
        ({"p_heading": "' \t '"}, "MH008", ["heading", "blank"]),
        ({"p_heading": "'\u00a0\u3000'"}, "MH008", ["heading", "blank"]),
        ({"p_heading": "repeat('h', 201)"}, "MH008", ["heading", "201", "200", "hhh"]),
        ({"p_heading": "repeat('🙂', 201)"}, "MH008", ["heading", "201", "200", "🙂"]),
        ({"p_heading": r"E'nul \000'"}, "22021", ["0x00"]),
        ({"p_content": "''"}, "MH010", ["content", "blank"]),
        ({"p_content": "' \n\t\r\n'"}, "MH010", ["content", "blank"]),
        ({"p_content": "'\u3000'"}, "MH010", ["content", "blank"]),
        ({"p_namespace": "null"}, "MH010", ["namespace", "null"]),
        ({"p_namespace": "''"}, "MH010", ["namespace", "0"]),
        ({"p_namespace": "repeat('n', 256)"}, "MH010", ["namespace", "256", "255"]),
        ({"p_memory_type": "'Semantic'"}, "MH010", ["memory_type", "Semantic"]),
        ({"p_memory_type": "'two words'"}, "MH010", ["memory_type", "two words"]),
        ({"p_memory_type": "E'lesson\\n'"}, "MH010", ["memory_type", "lesson"]),
        ({"p_memory_type": "''"}, "MH010", ["memory_type"]),
        ({"p_source_type": "' '"}, "MH010", ["source_type"]),
        ({"p_confidence": "-0.1"}, "MH010", ["confidence", "-0.1"]),
        ({"p_confidence": "1.1"}, "MH010", ["confidence", "1.1"]),
        ({"p_confidence": "'NaN'"}, "MH010", ["confidence", "NaN"]),
        ({"p_confidence": "'Infinity'"}, "MH010", ["confidence", "Infinity"]),
        ({"p_expires_at": "'infinity'"}, "MH010", ["expires_at", "infinity"]),
        ({"p_expires_at": "'-infinity'"}, "MH010", ["expires_at", "-infinity"]),
        ({"p_expires_at": "'9999-12-31 00:00:01Z'"}, "MH010", ["expires_at", "9999-12-31"]),
        ({"p_expires_at": "'0044-03-15 BC'"}, "MH010", ["expires_at", "0044-03-15"]),
        ({"p_token_count": "-1"}, "MH010", ["token_count", "-1"]),
        (
            {"p_metadata": """format('{"a": %s1%s}', repeat('[', 100), repeat(']', 100))::jsonb"""},
            "MH010",
            ["100 deep"],
        ),
        ({"p_metadata": """format('{"a": [{"b": %s}]}', repeat('9', 309))::jsonb"""}, "MH010", ["1e308"]),
        ({"p_metadata": """'{"a": -1e5000}'"""}, "MH010", ["1e308"]),
        ({"p_metadata": "'[]'"}, "MH010", ["metadata", "array"]),
        ({"p_metadata": "'\"text\"'"}, "MH010", ["metadata", "string"]),
        ({"p_metadata": "'null'"}, "MH010", ["metadata", "null"]),
        ({"p_metadata": "'{not json'"}, "22P02", ["json"]),
        ({"p_metadata": r"""'{"nul": "\u0000"}'"""}, "22P05", ["Unicode"]),
        ({"p_metadata": r"""'{"surrogate": "\ud800"}'"""}, "22P02", ["json"]),
        ({"p_embedding": "'[1,2,3]'"}, "MH001", ["embedding", "3", "4"]),
        ({"p_embedding": "'[0,0,0,0]'"}, "MH002", ["embedding", "zero"]),
        ({"p_embedding": "'[1e-30,1e-30,0,0]'"}, "MH002", ["embedding"]),
        ({"p_embedding": "'[1e30,0,0,0]'"}, "MH002", ["embedding"]),
        ({"p_embedding": "'[NaN,0,0,0]'"}, "22000", ["NaN"]),
        ({"p_supersedes": f"'{MISSING}'"}, "MH006", [str(MISSING), '"acme"']),
        ({"p_supersedes": f"'{ELSEWHERE}'"}, "MH006", [str(ELSEWHERE), '"acme"']),
        ({"p_supersedes": f"'{RETIRED}'"}, "MH007", [str(RETIRED), str(NEW)]),
        ({"p_supersedes": "'old'"}, "22P02", ["uuid", "old"]),
        (
            {
                "p_namespace": "'large'",
                "p_supersedes": "null",
                "p_embedding": "'[1,0,0,0]'",
                "p_embedding_model": "'small-model'",
            },
            "MH009",
            ['"large"', "large-model", "small-model"],
        ),
    ],
)
def test_a_memory_is_refused(
    store: psycopg.Connection, arguments: dict[str, str], sqlstate: str, words: list[str]
) -> None:
    assert_refused(store, call("remember", WRITE | arguments), sqlstate, *words)


def test_a_refused_memory_leaves_the_rest_of_its_transaction(store: psycopg.Connection) -> None:
    """An application that catches the error and commits has written nothing in part."""
    before = everything(store)
    with store.transaction():
        with pytest.raises(psycopg.Error) as refused, store.transaction():
            store.execute(call("remember", WRITE | {"p_content": "' '"}))
        assert refused.value.sqlstate == "MH010"
    assert everything(store) == before


# The table keeps the same rules for those who write to it themselves.


@pytest.mark.parametrize(
    ("change", "sqlstate", "words"),
    [
        ("heading = null", "MH008", ["heading", "null"]),
        ("heading = E'one\\ntwo'", "MH008", ["heading", "line"]),
        ("heading = repeat('h', 201)", "MH008", ["heading", "201"]),
        ("content = null", "MH010", ["content", "null"]),
        ("content = ' '", "MH010", ["content", "blank"]),
        ("memory_type = null", "MH010", ["memory_type"]),
        ("source_type = null", "MH010", ["source_type"]),
        ("confidence = null", "MH010", ["confidence"]),
        ("confidence = 2", "MH010", ["confidence", "2"]),
        ("metadata = null", "MH010", ["metadata"]),
        ("metadata = '[]'", "MH010", ["metadata", "array"]),
        ("namespace = ''", "MH010", ["namespace"]),
        ("namespace = 'other'", "MH010", ["keeps its id and namespace"]),
        ("expires_at = 'infinity'", "MH010", ["expires_at"]),
        ("deleted_at = 'infinity'", "MH010", ["deleted_at"]),
        ("created_at = '-infinity'", "MH010", ["created_at"]),
        ("created_at = '0001-01-01Z'", "MH010", ["created_at"]),
        ("deleted_at = '10000-01-01'", "MH010", ["deleted_at"]),
        ("token_count = -1", "MH010", ["token_count", "-1"]),
        ("embedding = '[0,0,0,0]'", "MH002", ["embedding", "zero"]),
        ("embedding = '[1e-30,0,0,0]'", "MH002", ["embedding"]),
        ("embedding = '[1e30,0,0,0]'", "MH002", ["embedding"]),
        ("embedding = '[1,2,3]'", "22000", ["3", "4"]),
        ("memory_id = null", "MH010", ["keeps its id"]),
        ("index_tokens = 0", "428C9", ["index_tokens"]),
        ("content_tokens = 0", "428C9", ["content_tokens"]),
    ],
)
def test_an_update_is_refused(
    store: psycopg.Connection, change: str, sqlstate: str, words: list[str]
) -> None:
    statement = f"update hydrator.memories set {change} where memory_id = '{OLD}'"
    assert_refused(store, statement, sqlstate, *words)
