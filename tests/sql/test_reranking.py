"""What is off by default: neighbours, recency, confidence and near-duplicates, after every way of ranking."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from rich.console import Console

from hydrator import HydrationPolicy, MemoryStore, RetrievalCoordinator
from hydrator.receipt import receipt

WAYS = {
    "vector": "'[1,0,0,0]', '{acme}'",
    "text": "null, '{acme}', p_query_text => 'owl'",
    "both": "'[1,0,0,0]', '{acme}', p_query_text => 'owl'",
}
OFF = "p_neighbours", "p_recency_half_life", "p_confidence_weight", "p_duplicate_distance"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return WAYS[request.param]


def add(db: psycopg.Connection, heading: str, content: str = "owl", **fields: Any) -> Any:
    """Add a memory; ``ago`` in days, ``source`` by name, the others as remember() has them."""
    ago = fields.pop("ago", 0)
    source = fields.pop("source", None)
    named = {"namespace": "acme", "heading": heading, "content": content, "embedding": "[1,0,0,0]", **fields}
    arguments = ", ".join(f"p_{name} => %({name})s" for name in named)
    (memory_id,) = db.execute(f"select hydrator.remember({arguments})", named).fetchone()
    db.execute(
        "update hydrator.memories set created_at = now() - %s * interval '1 day', metadata ="
        " case when %s::text is null then metadata"
        " else jsonb_build_object('source', jsonb_build_object('name', %s::text)) end where memory_id = %s",
        [ago, source, source, memory_id],
    )
    return memory_id


def hydrate(db: psycopg.Connection, arguments: str) -> dict[str, Any]:
    call = f"select * from hydrator.hydrate_session({arguments})"
    return db.cursor(row_factory=dict_row).execute(call).fetchone()


def found(db: psycopg.Connection, arguments: str, top_k: int = 5) -> list[str]:
    """The headings, best first; the three calls rank alike."""
    ranked = [
        [heading for (heading,) in db.execute(f"select heading from hydrator.{call}({arguments}, {limit})")]
        for call, limit in (
            ("fetch_top_k_relevant", f"p_top_k => {top_k}"),
            ("search_memories", f"p_limit => {top_k}"),
        )
    ]
    session = hydrate(db, f"{arguments}, p_top_k => {top_k}")
    ranked.append([memory["heading"] for memory in session["relevant"]])
    assert ranked[0] == ranked[1] == ranked[2]
    return ranked[0]


def test_off_is_as_without(db: psycopg.Connection, way: str) -> None:
    for i in range(8):
        add(db, f"owl {i}", "owl " * (i + 1), embedding=f"[1,{i / 10},0,0]", confidence=1 - i / 10, ago=i)
    nothing = "".join(f", {name} => null" for name in OFF)
    assert hydrate(db, way) == hydrate(db, way + nothing)


def test_neighbours_lend_to_one_another_and_join(db: psycopg.Connection, way: str) -> None:
    for i in range(60):  # other sources fill the candidates
        add(db, f"far {i}", "owl among many other words", embedding=f"[1,{50 + i},0,0]", source=f"s{i}")
    lost = "an answer with none of it", "nothing of the kind"
    add(db, "an answer", lost[0], embedding="[0,0,0,1]", source="talk", ago=9)
    best = add(db, "the question", "owl owl owl", source="talk", ago=8)
    add(db, "another answer", lost[1], embedding="[0,0,0,1]", source="talk", ago=7)
    add(db, "one further", lost[1], embedding="[0,0,0,1]", source="talk", ago=6)
    add(db, "elsewhere", lost[1], embedding="[0,0,0,1]", source="another", ago=8)
    add(db, "of another's", lost[1], embedding="[0,0,0,1]", source="talk", ago=8, source_type="user")
    add(db, "of a tenant's", lost[1], embedding="[0,0,0,1]", source="talk", ago=8, namespace="evil")
    dead = add(db, "dead", lost[1], embedding="[0,0,0,1]", source="talk", ago=8)
    db.execute("select hydrator.forget('acme', %s)", [dead])
    assert "an answer" not in found(db, way)

    lifted = found(db, f"{way}, p_neighbours => 1", 3)
    assert lifted[0] == "the question"
    assert set(lifted[1:]) == {"an answer", "another answer"}
    wide = hydrate(db, f"{way}, p_neighbours => 2, p_top_k => 4")["relevant"]
    assert {memory["heading"] for memory in wide} == {*lifted, "one further"}
    for memory in wide:
        if memory["memory_id"] != str(best):
            assert (memory["vector_rank"], memory["text_rank"]) == (None, None)
            assert (memory["distance"] is None) == way.startswith("null")
    # The filters hold for those that join, too.
    db.execute("update hydrator.memories set pinned = true where heading = 'an answer'")
    db.execute("update hydrator.memories set confidence = 0.1 where heading = 'another answer'")
    left = hydrate(db, f"{way}, p_neighbours => 1, p_min_confidence => 0.5, p_top_k => 50")["relevant"]
    headings = [memory["heading"] for memory in left]
    assert headings.count("an answer") == 1
    assert left[0]["pinned"]
    assert not {"another answer", "dead", "of a tenant's"} & set(headings)


def test_worth_halves_with_age(db: psycopg.Connection, way: str) -> None:
    add(db, "old", "owl owl owl owl", ago=400)
    add(db, "new", "owl owl owl", embedding="[1,0.1,0,0]", ago=1)
    add(db, "least", "owl and a good many other words", embedding="[0,1,0,0]")
    assert found(db, way)[:2] == ["old", "new"]
    assert found(db, f"{way}, p_recency_half_life => '30 days'")[:2] == ["new", "old"]
    assert len(found(db, f"{way}, p_recency_half_life => '1 microsecond'")) == 3
    plain = hydrate(db, f"{way}, p_confidence_weight => 0")["relevant"]
    halved = hydrate(db, f"{way}, p_recency_half_life => '400 days'")["relevant"]
    old = [next(m["score"] for m in told if m["heading"] == "old") for told in (plain, halved)]
    assert old[1] == pytest.approx(old[0] / 2)


def test_confidence_weighs(db: psycopg.Connection, way: str) -> None:
    add(db, "doubtful", "owl owl owl owl", confidence=0.5)
    add(db, "certain", "owl owl owl", embedding="[1,0.1,0,0]")
    add(db, "least", "owl and a good many other words", embedding="[0,1,0,0]")
    assert found(db, way)[:2] == found(db, f"{way}, p_confidence_weight => 0")[:2] == ["doubtful", "certain"]
    assert found(db, f"{way}, p_confidence_weight => 1")[:2] == ["certain", "doubtful"]


def test_of_near_duplicates_the_better_takes_a_place(db: psycopg.Connection, way: str) -> None:
    first = add(db, "owl a", "owl owl owl owl owl")
    add(db, "owl b", "owl owl owl owl", embedding="[1,0.01,0,0]")
    add(db, "owl c", "owl owl owl", embedding="[1,0.02,0,0]")
    add(db, "other", "owl owl", embedding="[1,1,0,0]")
    add(db, "least", "owl and a good many other words", embedding="[0,1,0,0]")
    assert found(db, way, 3) == ["owl a", "owl b", "owl c"]
    near = f"{way}, p_duplicate_distance => 0.05"
    assert found(db, near, 3) == ["owl a", "other", "least"]
    assert found(db, near, 1) == ["owl a"]
    session = hydrate(db, f"{near}, p_top_k => 2")
    told = [(m["heading"], m["reason"], m["duplicate_of"]) for m in session["dropped"]]
    assert told == [("owl b", "duplicate_of", str(first)), ("owl c", "duplicate_of", str(first))]
    assert session["truncated"]
    assert hydrate(db, f"{near}, p_top_k => 1")["dropped"] == []
    # What does not fit is told so; it keeps its duplicates out all the same.
    reasons = {
        m["heading"]: m["reason"]
        for m in hydrate(db, f"{near}, p_top_k => 2, p_token_budget => 20")["dropped"]
    }
    assert reasons["owl b"] == "duplicate_of"


def test_vectors_of_two_models_are_no_duplicates(db: psycopg.Connection) -> None:
    add(db, "owl a", embedding_model="one")
    other = add(db, "owl b", embedding_model="two", namespace="more")
    call = "null, '{acme,more}', p_query_text => 'owl', p_duplicate_distance => 0.05"
    assert len(found(db, call)) == 2
    db.execute("update hydrator.memories set embedding_model = 'one' where memory_id = %s", [other])
    assert len(found(db, call)) == 1


def test_an_empty_store_and_no_places(db: psycopg.Connection, way: str) -> None:
    every = ", p_neighbours => 3, p_recency_half_life => '1 day', p_confidence_weight => 1, p_duplicate_distance => 0.1"
    assert found(db, way + every) == []
    add(db, "owl")
    assert found(db, way + every, 0) == []
    assert found(db, way + every, 2_147_483_647) == ["owl"]
    assert found(db, f"{way}, p_neighbours => 2147483647") == ["owl"]


@pytest.mark.parametrize(
    "argument",
    [
        "p_neighbours => -1",
        "p_recency_half_life => '0'",
        "p_recency_half_life => '-1 day'",
        "p_confidence_weight => -0.5",
        "p_confidence_weight => 'NaN'",
        "p_confidence_weight => 'Infinity'",
        "p_duplicate_distance => 'NaN'",
    ],
)
def test_what_cannot_be_is_refused(db: psycopg.Connection, way: str, argument: str) -> None:
    for call in ("fetch_top_k_relevant", "search_memories", "hydrate_session"):
        with pytest.raises(psycopg.Error) as refused:
            db.execute(f"select * from hydrator.{call}({way}, {argument})")
        assert refused.value.sqlstate == "MH003"
        assert refused.value.diag.message_hint


class Constant:
    model = None
    dimensions = 4

    def embed(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0, 0.0, 0.0] for _ in texts]


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ({}, "old"),
        ({"recency_half_life": timedelta(days=30)}, "doubtful"),
        ({"recency_half_life": timedelta(days=30), "confidence_weight": 3}, "new"),
        ({"confidence_weight": 3.0}, "old"),
        ({"neighbours": 2, "duplicate_distance": 0.05}, "new"),
    ],
    ids=str,
)
def test_the_wrapper_and_a_policy_pass_them_on(
    db: psycopg.Connection, url: str, option: dict[str, Any], first: str
) -> None:
    add(db, "old", "owl owl owl owl", ago=400)
    add(db, "doubtful", "owl owl owl owl", embedding="[1,0.1,0,0]", confidence=0.4)
    add(db, "new", "owl owl owl", embedding="[1,0.2,0,0]", ago=1)
    add(db, "least", "owl and a good many other words", embedding="[0,1,0,0]")
    with MemoryStore(url) as store:
        given = {"query_text": "owl", **option}
        ranked = store.fetch_top_k_relevant([1, 0, 0, 0], ["acme"], **given)
        hits = store.search_memories([1, 0, 0, 0], ["acme"], **given)
        session = store.hydrate_session([1, 0, 0, 0], ["acme"], **given)
        retrieved = RetrievalCoordinator(store, Constant(), ["acme"]).retrieve(
            "owl", HydrationPolicy(**option)
        )
        assert {found[0].heading for found in (ranked, hits, session.relevant, retrieved.relevant)} == {first}
        if "duplicate_distance" in option:
            best = session.relevant[0].memory_id
            assert {dropped.duplicate_of for dropped in retrieved.dropped} == {best}
            assert {dropped.reason for dropped in session.dropped} == {"duplicate_of"}
            assert any("near to one that is ranked better" in text for text in told(session))
        else:
            assert session.dropped == ()


def told(session: Any) -> list[str]:
    console = Console(width=200, record=True, file=StringIO())
    console.print(receipt(session, 0))
    return console.export_text().splitlines()


def reranked(
    base: list[dict[str, Any]],
    live: dict[UUID, dict[str, Any]],
    now: datetime,
    top_k: int,
    asked: dict[str, Any],
) -> tuple[list[UUID], dict[UUID, UUID]]:
    """What rerank_memories() says, in plain Python: the places, and the duplicates that had none."""
    worth = {row["memory_id"]: row["score"] - min(other["score"] for other in base) for row in base}
    if asked.get("neighbours"):
        lent: dict[UUID, float] = {}
        for lender, score in worth.items():
            of = live[lender]["source"]
            source = sorted(
                (m["created_at"], memory_id) for memory_id, m in live.items() if m["source"] == of
            )
            place = [memory_id for _, memory_id in source].index(lender)
            for other, (_, memory_id) in enumerate(source):
                if abs(other - place) <= min(asked["neighbours"], 10):
                    lent[memory_id] = lent.get(memory_id, 0.0) + score * 0.4 ** abs(other - place)
        worth = lent
    for memory_id in worth:
        memory = live[memory_id]
        if "recency_half_life" in asked:
            age = max((now - memory["created_at"]).total_seconds(), 0)
            worth[memory_id] *= 0.5 ** (age / asked["recency_half_life"].total_seconds())
        worth[memory_id] *= memory["confidence"] ** asked.get("confidence_weight", 0)
    order = sorted(worth, key=lambda memory_id: (-round(worth[memory_id], 8), memory_id))
    kept: list[UUID] = []
    duplicates: dict[UUID, UUID] = {}
    for memory_id in order:
        if len(kept) == top_k:
            break
        near = [
            better
            for better in kept
            if "duplicate_distance" in asked
            and 1 - cosine(live[better]["vector"], live[memory_id]["vector"]) <= asked["duplicate_distance"]
        ]
        if near:
            duplicates[memory_id] = near[0]
        else:
            kept.append(memory_id)
    return kept, duplicates


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_what_is_ranked_anew_equals_a_reference(db: psycopg.Connection) -> None:
    draw = random.Random(1)
    for number in range(90):
        add(
            db,
            f"owl {number}" if number % 3 else f"mouse {number}",
            " ".join(draw.choices(["owl", "mouse", "barn", "field"], k=draw.randint(1, 9))),
            # No threshold is near a distance between two.
            embedding=str([draw.choice([0, 1, 2, 3]), 1, draw.choice([0, 1]), draw.choice([0, 1, 2])]),
            confidence=draw.choice([0.25, 0.5, 1.0]),
            source_type=draw.choice(["agent", "user"]),
            namespace=draw.choice(["acme", "acme", "more"]),
            source=draw.choice([None, "a", "b"]),
            ago=draw.randint(0, 20),
        )
    options = {
        "neighbours": [1, 2, 12],
        "recency_half_life": [timedelta(days=3), timedelta(days=100)],
        "confidence_weight": [0.5, 2.0],
        "duplicate_distance": [0.0301, 0.1001],
    }
    seen = 0
    with db.transaction():
        rows = (
            db.cursor(row_factory=dict_row)
            .execute(
                "select *, jsonb_build_array(namespace, source_type, metadata #> '{source,name}') as source,"
                " embedding::text::jsonb as vector, now() as now from hydrator.live_memories"
            )
            .fetchall()
        )
        live = {row["memory_id"]: row for row in rows}
        for turn in range(60):
            asked = {name: draw.choice(of) for name, of in options.items() if draw.random() < 0.5}
            way = "'[1,0,0,0]'" if turn % 3 else "null"
            way += ", '{acme,more}'" + (", p_query_text => 'owl in a barn'" if turn % 3 != 1 else "")
            top_k = draw.choice([1, 5, 20])
            base = (
                db.cursor(row_factory=dict_row)
                .execute(
                    f"select * from hydrator.fetch_top_k_relevant({way}, p_top_k => {max(4 * top_k, 50)})"
                )
                .fetchall()
            )
            given = "".join(f", p_{name} => %({name})s" for name in asked)
            session = (
                db.cursor(row_factory=dict_row)
                .execute(
                    f"select * from hydrator.hydrate_session({way}{given}, p_top_k => {top_k}, p_token_budget => 99999)",
                    asked,
                )
                .fetchone()
            )
            if not asked:
                continue
            kept, duplicates = reranked(base, live, rows[0]["now"], top_k, asked)
            assert [UUID(memory["memory_id"]) for memory in session["relevant"]] == kept, (way, asked)
            told = {UUID(m["memory_id"]): UUID(m["duplicate_of"]) for m in session["dropped"]}
            assert told == duplicates, (way, asked)
            seen += len(duplicates)
    assert seen > 100
