"""A namespace is matched exactly: no call reads or changes a memory of one that was not named."""

from __future__ import annotations

import unicodedata
from uuid import UUID

import psycopg
import pytest

# Each is like another by prefix, pattern, case, blank or looks.
NAMESPACES = [
    "acme",
    "acme-corp",
    "Acme",
    "acme ",
    " acme",
    "acme\n",
    "acme%",
    "acm_",
    "a%",
    "%",
    "_",
    "*",
    "john_doe",
    "john-doe",
    "johnXdoe",
    unicodedata.normalize("NFC", "café"),
    unicodedata.normalize("NFD", "café"),
    "аcme",  # the first letter is Cyrillic
    "acme\u200b",
    "ａｃｍｅ",
    "ACME",
    "straße",
    "strasse",
    "n" * 255,
]


@pytest.fixture
def ids(db: psycopg.Connection) -> dict[str, UUID]:
    """Add one memory to each namespace, all of them at one place, and give their ids."""
    return {
        namespace: db.execute(
            "select hydrator.remember(%s, %s, p_embedding => '[1,0,0,0]')", (namespace, f"of {place}")
        ).fetchone()[0]
        for place, namespace in enumerate(NAMESPACES)
    }


def test_each_call_sees_the_named_namespace_alone(db: psycopg.Connection, ids: dict[str, UUID]) -> None:
    every_id = list(ids.values())
    for namespace, memory_id in ids.items():
        for call, parameters in {
            "compact_index(%s)": ([namespace],),
            "fetch_top_k_relevant('[1,0,0,0]', %s, 100)": ([namespace],),
            "search_memories('[1,0,0,0]', %s, 100)": ([namespace],),
            "fetch_memories(%s, %s)": ([namespace], every_id),
        }.items():
            rows = db.execute(f"select memory_id from hydrator.{call}", parameters).fetchall()
            assert rows == [(memory_id,)], (call, namespace)

        index, relevant, dropped, total = db.execute(
            "select index, relevant, dropped, index_total"
            " from hydrator.hydrate_session('[1,0,0,0]', %s, 100)",
            ([namespace],),
        ).fetchone()
        assert [entry["memory_id"] for entry in index] == [str(memory_id)], namespace
        assert [(memory["memory_id"], memory["namespace"]) for memory in relevant] == [
            (str(memory_id), namespace)
        ]
        assert (dropped, total) == ([], 1)


def test_a_set_of_namespaces_sees_those_and_no_others(db: psycopg.Connection, ids: dict[str, UUID]) -> None:
    named = ["john_doe", "acme", "acme", "nobody"]
    expected = {ids["john_doe"], ids["acme"]}
    for call in (
        "compact_index(%s)",
        "fetch_top_k_relevant('[1,0,0,0]', %s, 100)",
        "search_memories('[1,0,0,0]', %s, 100)",
    ):
        rows = db.execute(f"select memory_id from hydrator.{call}", (named,)).fetchall()
        assert len(rows) == 2, call
        assert {row[0] for row in rows} == expected, call


def test_an_empty_set_sees_nothing(db: psycopg.Connection, ids: dict[str, UUID]) -> None:
    for call, parameters in {
        "compact_index('{}')": None,
        "fetch_top_k_relevant('[1,0,0,0]', '{}')": None,
        "search_memories('[1,0,0,0]', '{}')": None,
        "fetch_memories('{}', %s)": (list(ids.values()),),
    }.items():
        assert db.execute(f"select * from hydrator.{call}", parameters).fetchall() == [], call


def test_forget_and_supersede_stay_in_their_namespace(db: psycopg.Connection, ids: dict[str, UUID]) -> None:
    for namespace in NAMESPACES:
        for other, memory_id in ids.items():
            if other == namespace:
                continue
            forgot = db.execute("select hydrator.forget(%s, %s)", (namespace, memory_id)).fetchone()
            assert forgot == (False,), (namespace, other)
        neighbour = ids[NAMESPACES[NAMESPACES.index(namespace) - 1]]
        with pytest.raises(psycopg.Error) as refused:
            db.execute(
                "select hydrator.remember(%s, 'successor', p_supersedes => %s)", (namespace, neighbour)
            )
        assert refused.value.sqlstate == "MH006"
    assert db.execute("select count(*) from hydrator.live_memories").fetchone() == (len(NAMESPACES),)


def test_one_id_in_two_namespaces_is_two_memories(db: psycopg.Connection) -> None:
    shared = UUID(int=1)
    for namespace in ("acme", "acme-corp"):
        db.execute(
            "insert into hydrator.memories (namespace, memory_id, heading, content) values (%s, %s, %s, 'x')",
            (namespace, shared, f"of {namespace}"),
        )
    fetch = "select heading from hydrator.fetch_memories(%s, %s)"
    assert db.execute(fetch, (["acme"], [shared])).fetchall() == [("of acme",)]
    assert db.execute(fetch, (["acme-corp", "acme"], [shared])).fetchall() == [
        ("of acme",),
        ("of acme-corp",),
    ]

    (new,) = db.execute("select hydrator.remember('acme', 'new', p_supersedes => %s)", (shared,)).fetchone()
    assert db.execute(fetch, (["acme", "acme-corp"], [shared, new])).fetchall() == [
        ("of acme-corp",),
        ("new",),
    ]
    assert db.execute("select hydrator.forget('acme', %s)", (shared,)).fetchone() == (False,)
    assert db.execute("select hydrator.forget('acme-corp', %s)", (shared,)).fetchone() == (True,)


def test_a_model_of_another_namespace_does_not_matter(db: psycopg.Connection) -> None:
    remember = "select hydrator.remember(%s, 'x', p_embedding => '[1,0,0,0]', p_embedding_model => %s)"
    db.execute(remember, ("acme", "one-model"))
    db.execute(remember, ("acme-corp", "another-model"))
    search = "select heading from hydrator.search_memories('[1,0,0,0]', %s, p_embedding_model => 'one-model')"
    assert db.execute(search, (["acme"],)).fetchall() == [("x",)]


def test_the_caller_s_collation_does_not_widen_a_namespace(db: psycopg.Connection) -> None:
    """An application may keep its tenants in a column whose collation ignores case."""
    try:
        db.execute(
            "create collation public.ignoring_case"
            " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU, so no collation of it takes two names for one")
    for namespace in ("acme", "ACME"):
        db.execute(
            "select hydrator.remember(%s, %s, p_embedding => '[1,0,0,0]')", (namespace, f"of {namespace}")
        )
    named = "array['acme' collate public.ignoring_case]"
    for call in (f"compact_index({named})", f"search_memories('[1,0,0,0]', {named})"):
        assert db.execute(f"select heading from hydrator.{call}").fetchall() == [("of acme",)], call


def test_a_caller_s_collation_is_no_obstacle(db: psycopg.Connection) -> None:
    remember = """
        select hydrator.remember('acme' collate "POSIX", %s collate "POSIX", 'c', '[1,0,0,0]',
          p_memory_type => 'lesson' collate "POSIX", p_embedding_model => 'm' collate "POSIX")
        """
    for heading in ("h", "g", "h"):
        db.execute(remember, (heading,))
    for call in (
        """fetch_top_k_relevant('[1,0,0,0]', array['acme' collate "POSIX"],
          p_memory_types => array['lesson' collate "POSIX"], p_embedding_model => 'm' collate "POSIX")""",
        """search_memories('[1,0,0,0]', array['acme' collate "POSIX"])""",
        """compact_index(array['acme' collate "POSIX"])""",
        """fetch_memories(array['acme' collate "POSIX"], array(select memory_id from hydrator.memories))""",
    ):
        assert db.execute(f"select count(*) from hydrator.{call}").fetchone() == (2,)
    (shown,) = db.execute(
        """
        select json_array_length(relevant) from hydrator.hydrate_session(
          '[1,0,0,0]', array['acme' collate "POSIX"], p_embedding_model => 'm' collate "POSIX", p_index_budget => 9)
        """
    ).fetchone()
    assert shown == 2
    assert db.execute("""select hydrator.count_live(array['acme' collate "POSIX"])""").fetchone() == (2,)
    assert db.execute(
        """select hydrator.forget('acme' collate "POSIX", memory_id) from hydrator.memories limit 1"""
    ).fetchone() == (True,)
