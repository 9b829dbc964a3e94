"""Every function of the schema, called with hostile arguments of its parameters' types.

A call answers, or refuses with one of our errors or a standard one about the data; it never fails
inside, never ends the connection, and, if it is one that reads, never changes a row.
"""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json

# The classes of what was wrong with a call: ours; data; a constraint; more than the server can hold or do.
EXPECTED = ("MH", "22", "23", "54")
# Of our own tables, only ours to call: what they do is tested elsewhere.
LEFT_OUT = {"secure", "tell_plans"}

UNKNOWN = uuid.UUID(int=7)
LONG = st.sampled_from(["x" * 300, "語" * 100_000, "\n" * 50, "a,b" * 90])
TEXTS = (
    st.sampled_from(
        ["", " ", "a", "b", "A", "a%", "_", "'", '"', "\\", "$$", "{}", "{a,b}", "null", "stop", "skip", "'; drop table x; --",
         "\u202e", "\u200b", "🦉", "\ufffe", "e\u0301", "\x01", "\x7f", "%s %I %L %", "~1~0", "top_k", "NaN", "semantic"]
    )
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
    | LONG
)  # fmt: skip
INTEGERS = st.sampled_from([0, 1, 2, 5, -1, 2**31 - 1, -(2**31), 100, 2**30]) | st.integers(
    -(2**31), 2**31 - 1
)
FLOATS = (
    st.sampled_from(
        [0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"), -float("inf"), 5e-324, 1e308, 3.5e38, 1e-46]
    )
    | st.floats()
)
UUIDS = st.sampled_from(
    [UNKNOWN, uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), *(uuid.UUID(int=n) for n in range(1, 5))]
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text("ab\\\"'{}🦉", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab'\"", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
).map(Json)
COMPONENTS = st.sampled_from(
    ["0", "1", "-1", "0.5", "1e-30", "1e30", "3e38", "-3e38", "1e-46", "1e39", "nan", "inf"]
)
VECTORS = st.sampled_from([3, 4, 4, 4, 4, 5]).flatmap(lambda n: st.lists(COMPONENTS, min_size=n, max_size=n)).map(
    lambda parts: f"[{','.join(parts)}]"
) | st.sampled_from(["[]", "", "[1,0,0,0]", "[0,1,0,0]", "[1,0,0,0", "[" + "0," * 16_000 + "0]"])  # fmt: skip
TIMES = st.sampled_from(
    [
        "infinity",
        "-infinity",
        "epoch",
        "4714-11-24 00:00:00 BC",
        "294276-12-31 23:59:59Z",
        "now",
        "2030-01-01T00:00Z",
        "x",
    ]
)
INTERVALS = st.sampled_from(
    [
        "0",
        "-1 second",
        "178000000 years",
        "-178000000 years",
        "1 month -30 days",
        "1 microsecond",
        "infinity",
        "-infinity",
        "x",
    ]
)


def arrays(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inner = st.lists(st.none() | elements, max_size=4)
    return inner | st.sampled_from([[], [None]]) | st.lists(inner.filter(bool), min_size=2, max_size=2)


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "text[]": arrays(TEXTS) | st.just(["a"]) | st.just(["a", "b"]),
    "integer": INTEGERS,
    "integer[]": arrays(INTEGERS),
    "bigint": INTEGERS | st.sampled_from([2**63 - 1, -(2**63)]),
    "double precision": FLOATS,
    "double precision[]": arrays(FLOATS),
    "real": FLOATS,
    "boolean": st.booleans(),
    "uuid": UUIDS,
    "uuid[]": arrays(UUIDS),
    "jsonb": JSONS,
    "vector": VECTORS,
    "timestamp with time zone": TIMES,
    "interval": INTERVALS,
}


# What most arguments of a call are, so that the hostile one is not stopped for another's sake.
USUAL: dict[str, Any] = {
    "text": "a", "text[]": ["a"], "integer": 2, "bigint": 2, "double precision": 0.5, "real": 0.5, "boolean": False,
    "uuid": UNKNOWN, "uuid[]": [UNKNOWN], "integer[]": [1], "double precision[]": [0.5], "jsonb": Json({}), "vector": "[1,0,0,0]", "timestamp with time zone": None,
    "interval": "1 day", "p_packing": "stop", "p_memory_type": "semantic", "p_supersedes": None, "p_embedding_model": None,
}  # fmt: skip


@pytest.fixture
def calls(db: psycopg.Connection) -> dict[str, tuple[bool, list[tuple[str, str]]]]:
    """Fill the store, and give each function's volatility and parameters with their types."""
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, embedding, pinned, embedding_model)
        select (array['a', 'b', ''' ', '%'])[1 + mod(i, 4)], ('00000000-0000-0000-0000-00000000000' || i)::uuid,
          'h' || i, 'content ' || i, array[1, i, 0, mod(i, 2)]::vector, i = 3, case when i < 5 then 'model' end
        from generate_series(1, 9) i
        """
    )
    rows = db.execute(
        """
        select p.proname, p.provolatile = 'v',
          array(
            select array[p.proargnames[a.place], format_type(a.type, null)]
            from unnest(p.proargtypes) with ordinality a (type, place)
            order by a.place
          )
        from pg_proc p
        where p.pronamespace = 'hydrator'::regnamespace and p.prorettype <> 'trigger'::regtype
        order by 1
        """
    ).fetchall()
    return {name: (writes, parameters) for name, writes, parameters in rows if name not in LEFT_OUT}


CONTENTS = """
select md5(string_agg(m::text, ',' order by m.namespace, m.memory_id)), (select count(*) from hydrator.namespace_counts)
from hydrator.memories m
"""
TYPE = {"vector": "public.vector"}


def test_no_argument_breaks_a_call(db: psycopg.Connection, calls: dict[str, Any]) -> None:
    db.execute("set statement_timeout = '20s'")
    unknown = {kind for _, parameters in calls.values() for _, kind in parameters} - ARGUMENTS.keys()
    assert not unknown, "a type that nothing is drawn for"
    before = db.execute(CONTENTS).fetchone()
    answered: set[str] = set()
    refused: set[str] = set()

    @settings(
        max_examples=25 * len(calls), deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(calls)))
        writes, parameters = calls[name]
        hostile = data.draw(
            st.sets(st.sampled_from([parameter for parameter, _ in parameters] or [""]), max_size=3)
        )
        values = {
            parameter: data.draw(st.none() | ARGUMENTS[kind] | ARGUMENTS[kind])
            if parameter in hostile
            else USUAL.get(parameter, USUAL[kind])
            for parameter, kind in parameters
        }
        arguments = ", ".join(
            f"{parameter} => %({parameter})s::{TYPE.get(kind, kind)}" for parameter, kind in parameters
        )
        try:
            with db.transaction(force_rollback=True):
                db.execute(f"select * from hydrator.{name}({arguments})", values).fetchall()
                changed = db.execute(CONTENTS).fetchone() != before
        except psycopg.Error as error:
            sqlstate, problem = error.sqlstate or "", error
            refused.add(name)
        else:
            assert writes or not changed, (name, values)
            sqlstate, problem = "00000", None
            answered.add(name)
        assert sqlstate.startswith(("00", *EXPECTED)), (name, values, problem)
        assert not db.closed

    check()
    assert db.execute(CONTENTS).fetchone() == before
    # Each call answered some arguments, so that the others were not all stopped at the door.
    assert answered >= calls.keys() - {"check_embedding"}, calls.keys() - answered
    assert len(refused) > 15


@pytest.mark.parametrize(
    "setting",
    [
        "exact_max_rows",
        "rerank_factor",
        "ef_search",
        "max_content_chars",
        "max_memories_per_hour",
        "namespaces",
    ],
)
def test_no_setting_breaks_a_call(db: psycopg.Connection, calls: dict[str, Any], setting: str) -> None:
    for value in (
        "",
        "0",
        "-1",
        "1e9",
        "999999999",
        "9999999999",
        "x",
        "'",
        "{",
        "~",
        ",",
        "~1,~0",
        "\n",
        "🦉",
        "x" * 100_000,
    ):
        db.execute("select set_config(%s, %s, false)", [f"hydrator.{setting}", value])
        for call in (
            "hydrate_session('[1,0,0,0]', '{a,b}')",
            "search_memories('[1,0,0,0]', '{a}')",
            "remember('a', 'new')",
            "granted_namespaces(true)",
        ):
            sqlstate = None
            try:
                with db.transaction(force_rollback=True):
                    db.execute(f"select * from hydrator.{call}").fetchall()
            except psycopg.Error as error:
                sqlstate = error.sqlstate
            assert sqlstate in (None, "MH003", "MH010", "MH012"), (setting, value, call)
