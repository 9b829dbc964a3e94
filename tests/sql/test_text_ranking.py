"""Ranking by text, alone and with the vector: what is found, by what, and in which order."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hydrator import indexes

CALLS = {
    "fetch_top_k_relevant": "p_top_k",
    "search_memories": "p_limit",
}


def add(db: psycopg.Connection, heading: str, content: str | None = None, **fields: Any) -> UUID:
    named = {"namespace": "acme", "heading": heading, "content": content, **fields}
    arguments = ", ".join(f"p_{name} => %({name})s" for name in named)
    return db.execute(f"select hydrator.remember({arguments})", named).fetchone()[0]


def found(
    db: psycopg.Connection, text: str | None, embedding: str | None = None, top_k: int = 10, **filters: Any
) -> list[str]:
    """The headings that a call ranks, the best first; the three calls rank alike."""
    given = {"text": text, "embedding": embedding, "top_k": top_k, "namespaces": ["acme"], **filters}
    extra = "".join(f", p_{name} => %({name})s" for name in filters if name != "namespaces")
    ranked = {
        call: [
            heading
            for (heading,) in db.execute(
                f"select heading from hydrator.{call}(%(embedding)s, %(namespaces)s,"
                f" {limit} => %(top_k)s, p_query_text => %(text)s{extra})",
                given,
            )
        ]
        for call, limit in CALLS.items()
    }
    (relevant,) = db.execute(
        "select relevant from hydrator.hydrate_session(%(embedding)s, %(namespaces)s, %(top_k)s, 100000,"
        f" p_query_text => %(text)s{extra})",
        given,
    ).fetchone()
    headings = [memory["heading"] for memory in relevant]
    assert list(ranked.values()) == [headings] * len(CALLS)
    return headings


def words(db: psycopg.Connection, text: str) -> set[str]:
    return set(db.execute("select hydrator.split_words(%s)", [text]).fetchone()[0])


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        ("see src/sql/rank_memories.sql.", ["src/sql/rank_memories.sql", "rank_memories"], ["rank", "sql"]),
        ("(hydrator.rankMemories)", ["hydrator.rankmemories", "rankmemories"], ["rank", "hydrat"]),
        ("HTTPServerError", ["httpservererror"], ["http", "server", "error"]),
        ("run `--no-verify`, or --jobs=4", ["no-verify", "jobs=4"], ["verifi", "job", "4"]),
        ("pgvector v0.8.6", ["v0.8.6"], ["pgvector", "v0"]),
        ("mail ops@example.com", ["ops@example.com", "example.com"], ["op", "exampl"]),
        ("std::vector<int>", ["std::vector"], ["std", "vector", "int"]),
        ("PG_DUMP_OPTS", ["pg_dump_opts"], ["pg", "dump", "opt"]),
        ("C:\\temp\\build-7", ["build-7"], ["temp", "build"]),
    ],
)
def test_a_name_is_found_whole_and_in_parts(
    db: psycopg.Connection, text: str, whole: list[str], parts: list[str]
) -> None:
    assert {*whole, *parts} <= words(db, text)


def test_words_are_those_of_the_text_search_configuration(db: psycopg.Connection) -> None:
    assert words(db, "The owls were deploying") == {"owl", "deploy"}
    assert words(db, "") == words(db, "the") == words(db, " .,;-- ") == set()
    assert words(db, None) == set()


def test_the_first_hundred_thousand_characters_count(db: psycopg.Connection) -> None:
    text = ("filler " * 20_000)[:99_990] + " owl"
    assert "owl" in words(db, text)
    assert "owl" not in words(db, " " * 10 + text)


@pytest.mark.parametrize(
    ("memory", "query"),
    [
        ("서버를 금요일에 재시작한다", "금요일 재시작"),
        ("服务器每周五重新启动", "周五启动"),
        ("サーバーは金曜日に再起動する", "金曜日の再起動"),
        ("数据库 Postgres 的备份", "备份"),
    ],
    ids=["Korean", "Chinese", "Japanese", "mixed"],
)
def test_text_without_latin_letters_is_found(db: psycopg.Connection, memory: str, query: str) -> None:
    for other in ("컴퓨터 화면", "天气很好", "天気がいい", "the weather"):
        add(db, other, embedding="[1,0,0,0]")
    add(db, memory, embedding="[0,1,0,0]")
    assert found(db, query) == [memory]
    assert found(db, query, "[1,1,0,0]")[0] == memory


def test_a_name_outweighs_what_only_shares_its_parts(db: psycopg.Connection) -> None:
    for i in range(20):
        add(db, f"rank and memories, part {i}", "rank memories " * 5, embedding=f"[1,{i / 10},0,0]")
    add(
        db,
        "the one",
        "Long. " + "Other words than that. " * 200 + "See rank_memories.",
        embedding="[1,2,0,0]",
    )
    assert found(db, "rank_memories")[0] == "the one"
    assert found(db, "rank_memories", "[1,0,0,0]")[0] == "the one"


def test_rare_words_heading_and_repetition_count_for_more(db: psycopg.Connection) -> None:
    for i in range(10):
        add(db, f"note {i}", "about the deploy")
    add(db, "note a", "about the owl")
    assert found(db, "deploy owl")[0] == "note a"
    add(db, "owl", "nothing else")
    assert found(db, "owl") == ["owl", "note a"]
    add(db, "note b", "owl owl owl owl owl owl owl owl owl owl")
    assert found(db, "owl")[0] == "note b"


def test_text_finds_what_has_no_embedding(db: psycopg.Connection) -> None:
    add(db, "an owl without a vector")
    add(db, "a near memory", embedding="[1,0,0,0]")
    assert found(db, "owl") == ["an owl without a vector"]
    assert set(found(db, "owl", "[1,0,0,0]")) == {"an owl without a vector", "a near memory"}
    # It has no similarity, so it cannot reach a floor of it.
    assert found(db, "owl", "[1,0,0,0]", min_similarity=-1) == ["a near memory"]


def test_without_text_nothing_changes_and_every_entry_says_so(db: psycopg.Connection) -> None:
    add(db, "near", embedding="[1,0,0,0]")
    add(db, "far", embedding="[0,1,0,0]")
    rows = db.execute(
        "select heading, score, distance, vector_rank, text_rank"
        " from hydrator.fetch_top_k_relevant('[1,0,0,0]', '{acme}')"
    ).fetchall()
    assert rows == [("near", 1, 0, 1, None), ("far", 0, 1, 2, None)]


def test_entries_carry_the_score_and_each_side_s_rank(db: psycopg.Connection) -> None:
    add(db, "both", "owl", embedding="[1,0,0,0]")
    add(db, "near alone", "mouse", embedding="[1,0.1,0,0]")
    add(db, "text alone", "owl owl owl owl")
    relevant, ranked_by = db.execute(
        "select relevant, ranked_by from hydrator.hydrate_session('[1,0,0,0]', '{acme}', p_query_text => 'owl')"
    ).fetchone()
    ranks = {memory["heading"]: (memory["vector_rank"], memory["text_rank"]) for memory in relevant}
    assert ranks == {"both": (1, 2), "near alone": (2, None), "text alone": (None, 1)}
    scores = [memory["score"] for memory in relevant]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(0, abs=1e-6)
    assert ranked_by == "exact+text"


def test_pinned_memories_have_no_score(db: psycopg.Connection) -> None:
    add(db, "a pinned owl", embedding="[1,0,0,0]", pinned=True)
    add(db, "another owl", embedding="[1,0,0,0]")
    (relevant,) = db.execute(
        "select relevant from hydrator.hydrate_session('[1,0,0,0]', '{acme}', p_query_text => 'owl')"
    ).fetchone()
    assert [(m["heading"], m["score"], m["vector_rank"], m["text_rank"]) for m in relevant] == [
        ("a pinned owl", None, None, None),
        ("another owl", 0, 1, 1),
    ]


def test_the_dead_neither_appear_nor_count(db: psycopg.Connection) -> None:
    live = add(db, "a live owl", embedding="[1,0,0,0]")
    add(db, "a live mouse", embedding="[1,0,0,0]")
    score = "select score from hydrator.fetch_top_k_relevant(null, '{acme}', p_query_text => 'owl')"
    (before,) = db.execute(score).fetchone()
    gone = add(db, "a forgotten owl", embedding="[1,0,0,0]")
    db.execute("select hydrator.forget('acme', %s)", [gone])
    db.execute(
        "select hydrator.remember('acme', 'an expired owl', p_embedding => '[1,0,0,0]',"
        " p_expires_at => now() - interval '1 second')"
    )
    for _ in range(3):  # a superseded one dies, its successor lives
        live = add(db, "a live owl", embedding="[1,0,0,0]", supersedes=live)
    assert found(db, "owl") == ["a live owl"]
    assert set(found(db, "owl", "[1,0,0,0]")) == {"a live owl", "a live mouse"}
    assert db.execute(score).fetchall() == [(before,)]


def test_rarity_is_the_tenant_s_own(db: psycopg.Connection) -> None:
    for i in range(30):
        add(db, f"deploy {i}")
        add(db, f"owl {i}", namespace="other")
    add(db, "an owl")
    add(db, "an owl and a deploy, among other words")
    assert found(db, "owl deploy")[:2] == ["an owl and a deploy, among other words", "an owl"]
    assert all(
        "owl" not in heading or heading.startswith("an") for heading in found(db, "owl deploy", top_k=100)
    )
    assert len(found(db, "owl deploy", top_k=100, namespaces=["acme", "other", "acme"])) == 62


def test_filters_narrow_the_text_side(db: psycopg.Connection) -> None:
    add(db, "an owl lesson", memory_type="lesson", metadata='{"project": "a"}', embedding="[1,0,0,0]")
    add(db, "an owl fact", memory_type="semantic", metadata='{"project": "b"}', embedding="[0,1,0,0]")
    for embedding in (None, "[1,1,0,0]"):
        assert found(db, "owl", embedding, memory_types=["lesson"]) == ["an owl lesson"]
        assert found(db, "owl", embedding, metadata='{"project": "b"}') == ["an owl fact"]
        assert found(db, "owl", embedding, memory_types=[]) == []
    assert found(db, "owl", "[1,0,0,0]", min_similarity=0.5) == ["an owl lesson"]


def test_common_words_alone_still_answer(db: psycopg.Connection) -> None:
    fill(db, 2_000)
    for top_k in (1, 10, 300):
        for embedding in (None, "[1,0,0,0]"):
            assert len(found(db, "common", embedding, top_k=top_k)) == top_k
            assert len(found(db, "common everywhere", embedding, top_k=top_k)) == top_k


@pytest.mark.parametrize("top_k", [0, 1, 7, 45, 3_000])
def test_all_that_can_be_ranked_is_ranked(db: psycopg.Connection, top_k: int) -> None:
    """Of 700 memories 7 hold a rare word, 350 a common one, and 70 have an embedding."""
    db.execute(
        """
        insert into hydrator.memories (namespace, heading, content, embedding)
        select 'acme', 'h' || i, case when i % 2 = 0 then 'common ' else '' end
            || case when i % 100 = 0 then 'rare' else 'x' end,
          case when i % 10 = 1 then '[1,0,0,0]'::vector end
        from generate_series(1, 700) i
        """
    )
    assert len(found(db, "common rare", top_k=top_k)) == min(top_k, 350)
    assert len(found(db, "common rare", "[1,0,0,0]", top_k=top_k)) == min(top_k, 350 + 70)
    assert len(found(db, "rare", "[1,0,0,0]", top_k=top_k)) == min(top_k, 7 + 70)
    assert len(found(db, "nowhere", "[1,0,0,0]", top_k=top_k)) == min(top_k, 70)
    assert found(db, "nowhere", top_k=top_k) == []


def fill(db: psycopg.Connection, rows: int) -> None:
    db.execute(
        """
        insert into hydrator.memories (namespace, memory_id, heading, content, embedding)
        select
          'acme', ('00000000-0000-4000-8000-' || lpad(to_hex(i * 7919), 12, '0'))::uuid, 'h' || i,
          'everywhere' || case when mod(i, 2) = 0 then ' common' else '' end
            || case when mod(i, 50) = 0 then ' seldom' else '' end
            || case when mod(i, 400) = 0 then ' rare' else '' end,
          array[sin(i), cos(i * 1.7), sin(i * 0.3), 0.1]::vector
        from generate_series(1, %s) i
        """,
        [rows],
    )


def test_the_rarity_of_common_words_is_told_from_a_sample(db: psycopg.Connection) -> None:
    fill(db, 4_000)
    scores = dict(
        db.execute(
            "select w.word, (select score from hydrator.fetch_top_k_relevant(null, '{acme}', 1,"
            " p_query_text => w.word)) from unnest('{everywhere,common,seldom,rare}'::text[]) w (word)"
        ).fetchall()
    )
    exact = {"everywhere": 4_000, "common": 2_000, "seldom": 80, "rare": 10}
    for word, count in exact.items():
        frequency = 2.2 / (1 + 0.3 + 0.0009 * 5)
        # What a sampled count may be off by moves a score by no more than this.
        assert scores[word] == pytest.approx(math.log(4_001 / (count + 0.5)) * frequency, abs=0.5), word


WAYS = {
    "exact": {"exact_max_rows": 999_999},
    "bits": {"exact_max_rows": 0, "bits_max_rows": 999_999, "rerank_factor": 999},
    "hnsw": {"exact_max_rows": 0, "bits_max_rows": 0, "hnsw_min_percent": 0, "ef_search": 1000},
}


def test_the_fusion_is_the_same_however_the_nearest_are_found(db: psycopg.Connection, url: str) -> None:
    fill(db, 1_500)
    for name in indexes.NAMES:
        indexes.create_index(url, name)
    for text in ("rare", "seldom common", "common everywhere", "nowhere"):
        answers = {}
        for way, settings in WAYS.items():
            with db.transaction():
                for name, value in settings.items():
                    db.execute(f"set local hydrator.{name} = {value}")
                *answer, ranked_by = db.execute(
                    "select relevant, dropped, ranked_by from hydrator.hydrate_session('[1,0.5,0.2,0.1]',"
                    " '{acme}', 20, 600, 100, p_query_text => %s)",
                    [text],
                ).fetchone()
            assert ranked_by == f"{way}+text"
            answers[way] = answer
        assert answers["bits"] == answers["exact"] == answers["hnsw"], text


def test_the_same_call_gives_the_same_answer(db: psycopg.Connection) -> None:
    """Twenty times over, across a large and a small tenant, and whatever the session has set."""
    fill(db, 700)
    for i in range(5):
        add(db, f"common {i}", namespace="small", embedding="[1,0,0,0]")
    answers: dict[str, set[str]] = {"acme": set(), "small": set()}
    for i in range(20):
        db.execute(f"set enable_bitmapscan = {'off' if i % 3 == 0 else 'on'}")
        db.execute(f"set work_mem = '{'64kB' if i % 2 else '4MB'}'")
        for namespace, seen in answers.items():
            (answer,) = db.execute(
                "select relevant::text from hydrator.hydrate_session('[1,0.5,0.2,0.1]', array[%s],"
                " p_query_text => 'common rare seldom')",
                [namespace],
            ).fetchone()
            seen.add(answer)
    assert [len(seen) for seen in answers.values()] == [1, 1]


def test_without_its_index_a_text_is_still_found(db: psycopg.Connection) -> None:
    fill(db, 700)
    before = found(db, "rare common", "[1,0,0,0]"), found(db, "rare")
    db.execute("drop index hydrator.memories_words_idx")
    assert (found(db, "rare common", "[1,0,0,0]"), found(db, "rare")) == before


def test_a_changed_memory_is_found_by_its_new_words(db: psycopg.Connection) -> None:
    memory_id = add(db, "an owl")
    db.execute("update hydrator.memories set content = 'a mouse' where memory_id = %s", [memory_id])
    assert found(db, "mouse") == ["an owl"]


@pytest.mark.parametrize(
    "text",
    [
        "' or 1=1 --",
        "a & b | !c",
        "%s %(x)s :x",
        "\\",
        "(" * 50,
        "é" * 200,
        "a-" * 2_000,
        "😀 owl",
        "x" * 10_000,
    ],
)
def test_a_query_may_hold_anything(db: psycopg.Connection, text: str) -> None:
    add(db, "an owl", embedding="[1,0,0,0]")
    assert found(db, text, "[1,0,0,0]") == ["an owl"]
    assert found(db, text) == (["an owl"] if "owl" in text else [])


def test_a_long_query_ranks(db: psycopg.Connection) -> None:
    fill(db, 700)
    text = " ".join(f"word{i}" for i in range(5_000)) + " rare rare"
    assert found(db, text)[0].startswith("h")


def test_what_cannot_be_ranked_is_refused(db: psycopg.Connection) -> None:
    for arguments, sqlstate in (
        ("null, '{acme}'", "MH002"),
        ("null, '{acme}', p_query_text => null", "MH002"),
        ("null, '{acme}', p_query_text => 'owl', p_min_similarity => 0.5", "MH003"),
        ("null, null, p_query_text => 'owl'", "MH005"),
        ("'[1,2]', '{acme}', p_query_text => 'owl'", "MH001"),
        ("'[0,0,0,0]', '{acme}', p_query_text => 'owl'", "MH002"),
        ("null, '{acme}', -1, p_query_text => 'owl'", "MH003"),
        ("'[1,0,0,0]', '{acme}', -1, p_query_text => 'owl'", "MH003"),
        ("'[1,0,0,0]', '{acme}', null, p_query_text => 'owl'", "MH003"),
    ):
        for call in ("fetch_top_k_relevant", "search_memories", "hydrate_session"):
            with pytest.raises(psycopg.Error) as refused:
                db.execute(f"select * from hydrator.{call}({arguments})")
            assert refused.value.sqlstate == sqlstate, (call, arguments)
            assert refused.value.diag.message_hint


@pytest.mark.parametrize(
    ("text_search_config", "query", "matches"),
    [
        ("simple", "owls", False),
        ("simple", "the", True),
        ("english", "owls", True),
        ("german", "eulen", False),
    ],
)
def test_the_configuration_is_chosen_at_install(
    empty_url: str, text_search_config: str, query: str, matches: bool
) -> None:
    from hydrator import migrations

    migrations.upgrade(empty_url, dimensions=4, text_search_config=text_search_config)
    with psycopg.connect(empty_url, autocommit=True) as db:
        add(db, "the owl")
        assert bool(found(db, query)) == matches
        assert db.execute("select text_search_config from hydrator.installation()").fetchone() == (
            text_search_config,
        )


def test_a_configuration_that_is_not_there_is_refused(empty_url: str) -> None:
    from hydrator import InstallationError, migrations

    for name in ("klingon", "nowhere.english", "a.b.c.d", "'; drop"):
        with pytest.raises(InstallationError, match="text search configuration"):
            migrations.upgrade(empty_url, dimensions=4, text_search_config=name)
