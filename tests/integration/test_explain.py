"""``hydrator db explain``: the plans inside a call, as people and programs read them."""

from __future__ import annotations

import json
import sys
import uuid

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hydrator import HydratorError, MemoryStore, WordLlamaEmbedder, calls, cli, explaining


@pytest.fixture
def filled(store: MemoryStore, embedder: WordLlamaEmbedder, text_db: psycopg.Connection) -> MemoryStore:
    texts = [f"Deploy {number} ran" for number in range(40)]
    for text, embedding in zip(texts, embedder.embed(texts), strict=True):
        store.remember("acme", text, embedding=embedding, embedding_model=embedder.model)
    text_db.execute("vacuum analyze hydrator.memories")
    return store


def test_the_plans_are_those_of_the_statements_inside(
    filled: MemoryStore, text_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hydrator", "db", "explain", "--url", text_url, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    told = json.loads(run("a deploy failed", "-n", "acme", "--top-k", "3", "--json"))
    *inside, call = told
    assert call["function"] is None
    assert call["statement"].startswith("select index::text, relevant::text, dropped::text")
    assert "Function Scan on hydrate_session" in call["plan"]
    [index] = [s for s in inside if s["function"] == "hydrator.index_json" and "json_agg" in s["statement"]]
    assert "Index Only Scan using memories_live_idx" in index["plan"]
    assert "Heap Fetches: 0" in index["plan"]
    assert "Buffers: shared hit=" in index["plan"]
    [ranking] = [
        s for s in inside if s["function"] == "hydrator.rank_memories" and "nearest" in s["statement"]
    ]
    assert "rows=3" in ranking["plan"]
    assert "Query Text" not in json.dumps(told)
    # The query's vector is 256 numbers, wherever it is shown; before 16, the server does not.
    if call["parameters"] is not None:
        assert ",…]', $2 = '{acme}'" in call["parameters"]
    assert max(len(line) for s in told for line in [s["parameters"] or "", *s["plan"].splitlines()]) < 600

    printed = run("a deploy failed", "-n", "acme").splitlines()
    heads = [line for line in printed if " ms  " in line and not line.startswith(" ")]
    assert len(heads) == len(told)
    assert "  the call  select index::text, relevant::text" in heads[-1]
    assert any("Index Only Scan using memories_live_idx" in line for line in printed)
    [count] = [number for number, line in enumerate(printed) if "hydrator.survey_namespaces:" in line]
    assert printed[count + 1].startswith("  Result ")


def test_a_role_that_may_not_is_told_what_to_run(
    filled: MemoryStore, text_url: str, text_db: psycopg.Connection, embedder: WordLlamaEmbedder
) -> None:
    [embedding] = embedder.embed(["a deploy failed"])
    call = calls.hydrate_session(embedding, ["acme"], embedding_model=embedder.model)
    role = f"app_{uuid.uuid4().hex[:8]}"
    text_db.execute(f"create role {role} login password 'secret'")
    text_db.execute(f"grant usage on schema hydrator to {role}")
    text_db.execute(f"grant execute on all functions in schema hydrator to {role}")
    text_db.execute(f"grant select on all tables in schema hydrator to {role}")
    try:
        own = make_conninfo(text_url, user=role, password="secret")
        with pytest.raises(HydratorError) as refused:
            explaining.explain(own, call)
        assert "session_preload_libraries" in refused.value.hint
        for statement in refused.value.hint.split(": ", 1)[1].split("; "):
            text_db.execute(statement)
        assert explaining.explain(own, call)[-1].function is None
    finally:
        text_db.execute(f"drop owned by {role}")
        text_db.execute(f"drop role {role}")


def test_a_dba_has_the_plans_of_one_transaction_told(
    filled: MemoryStore, text_db: psycopg.Connection
) -> None:
    told: list[str] = []
    text_db.add_notice_handler(lambda diagnostic: told.append(diagnostic.message_primary or ""))
    call = "select count(*) from hydrator.compact_index(array['acme'])"
    with text_db.transaction(force_rollback=True):
        text_db.execute("select hydrator.tell_plans()")
        text_db.execute(call)
        text_db.execute("select 1")
    assert any("Index Only Scan using memories_live_idx" in plan and "Buffers:" in plan for plan in told)
    told.clear()
    text_db.execute(call)
    assert told == []
