"""The SQL calls held against ``reference.py``, on stores and calls that hypothesis draws.

Every example runs in a transaction of its own that is rolled back. ``now()`` stands still in it, so
that a row can expire exactly now, or a microsecond later.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from reference import Filters, Memory, Metric, ModelMismatch, Query, Vector, float4

from hydrator import migrations

# The time at which stores are drawn; an example moves them to its transaction's now().
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
INT_MAX = 2**31 - 1

# The metric and type of an installation, and how many stores are drawn for it.
INSTALLATIONS = [
    ("cosine", "vector", 220),
    ("inner_product", "vector", 50),
    ("l2", "vector", 50),
    ("cosine", "halfvec", 30),
    ("inner_product", "halfvec", 30),
    ("l2", "halfvec", 30),
]

Connection = psycopg.Connection[dict[str, Any]]


@dataclass(frozen=True)
class Installation:
    connection: Connection
    metric: Metric
    examples: int


@pytest.fixture(
    scope="module",
    params=INSTALLATIONS,
    ids=[f"{distance}-{vector_type}" for distance, vector_type, _ in INSTALLATIONS],
)
def installation(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Installation]:
    """A database installed for one distance and vector type, and a connection to it."""
    distance, vector_type, examples = request.param
    name = f"hydrator_properties_{uuid.uuid4().hex}"
    server = {
        "host": pytestconfig.option.postgresql_host,
        "port": pytestconfig.option.postgresql_port,
        "user": pytestconfig.option.postgresql_user,
        "password": pytestconfig.option.postgresql_password,
    }
    database = sql.Identifier(name)
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(database))
        try:
            migrations.upgrade(
                psycopg.conninfo.make_conninfo(**server, dbname=name),
                dimensions=4,
                distance=distance,
                vector_type=vector_type,
            )
            with psycopg.connect(**server, dbname=name, autocommit=True, row_factory=dict_row) as connection:
                yield Installation(connection, Metric(distance), examples)
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(database))


# What is drawn. Small pools everywhere, since the interesting things are coincidences.

# Look-alikes by prefix, pattern, case and trailing space.
NAMESPACES = ["acme", "acme-corp", "acme_", "acme%", "ACME", "acme "]
MEMORY_TYPES = ["semantic", "episodic", "lesson"]

# Ids that a signed or a textual comparison would put in another order.
MEMORY_IDS = [
    uuid.UUID(int=value)
    for value in (1, 2, 9, 10, 16, 255, 256, 2**32, 2**63, 2**64, 2**96, 2**127 - 1, 2**127, 2**128 - 1)
]
UNKNOWN_ID = uuid.UUID(int=77)

LINE_BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))
LETTERS = "aZ9.'\"\\%:{}<&\x01\x7fé語記憶🦉\u200b\u200d\u0301\ufeff"

texts_of_one_line = st.text(
    st.sampled_from(LETTERS + "".join(space for space in WHITE_SPACE if space not in LINE_BREAKS)),
    min_size=1,
    max_size=30,
).filter(lambda text: not text.isspace())

# Runs that end at and around the snippet's 119 and 120 characters, with anything between them.
texts = (
    st.lists(
        st.sampled_from(WHITE_SPACE)
        | st.sampled_from(LETTERS)
        | st.sampled_from(
            ["word", "x" * 118 + " ", "語" * 59, "🦉" * 60, " " * 500, "\u3000\u00a0 ", "\r\n", "…"]
        )
        | st.sampled_from([1, 58, 118, 119, 120, 121]).map("x".__mul__),
        min_size=1,
        max_size=8,
    )
    .map("".join)
    .filter(lambda text: not text.isspace())
)

# Halves and small whole numbers: all sums over them are exact in float4 and in halfvec.
vectors = st.sampled_from(
    [
        (1.0, 0.0, 0.0, 0.0),
        (2.0, 0.0, 0.0, 0.0),
        (0.0, 1.0, 0.0, 0.0),
        (-1.0, 0.0, 0.0, 0.0),
        (1.0, 1.0, 0.0, 0.0),
    ]
) | st.tuples(*[st.integers(-4, 4).map(lambda value: value / 2)] * 4).filter(any)

METADATA = [
    {},
    {"project": "a"},
    {"project": "語", "n": 1},
    {"n": True},
    {"n": 1.0, "tags": ["x"]},
    {"n": None, "tags": "x"},
    {"tags": ["x", "y", ["x"], {"k": 1}]},
    {"tags": [], "nested": {"k": 1, "l": False}},
    {"project": "a", "nested": {"k": 1}},
]

PARTS = [
    [],
    {"project": "a"},
    {"n": 1},
    {"n": True},
    {"n": None},
    {"tags": "x"},
    {"tags": ["x"]},
    {"tags": [["x"], {}]},
    {"nested": {"k": 1}},
    {"nested": {}, "project": "a"},
]

offsets = [-400 * DAY, -DAY, timedelta(microseconds=-1), 0 * DAY, timedelta(microseconds=1), DAY, 400 * DAY]
moments = st.sampled_from([NOW + offset for offset in offsets])
future = st.sampled_from([NOW + offset for offset in offsets if offset > 0 * DAY])


@st.composite
def mostly(draw: st.DrawFn, common: st.SearchStrategy[Any], rare: st.SearchStrategy[Any]) -> Any:
    return draw(rare if draw(st.integers(0, 7)) == 7 else common)


memories = st.builds(
    Memory,
    namespace=st.sampled_from(NAMESPACES),
    memory_id=st.sampled_from(MEMORY_IDS),
    heading=mostly(st.sampled_from(["h", "Owls 🦉", "語記憶語記", "x" * 30]), texts_of_one_line),
    content=mostly(st.sampled_from(["c", " 語\u3000🦉 \n", "word " * 40, "y" * 120]), texts),
    created_at=moments,
    updated_at=st.just(NOW),
    memory_type=st.sampled_from(MEMORY_TYPES),
    # Two of them differ in a real's last digit.
    confidence=st.sampled_from([1.0, 0.93, 0.5, 0.1, 0.1 + 1e-8, 0.0]).map(float4),
    source_type=st.sampled_from(["agent", "user", "語"]),
    expires_at=mostly(st.none() | future, moments),
    deleted_at=mostly(st.none(), moments),
    pinned=st.sampled_from([False, False, True]),
    metadata=st.sampled_from(METADATA),
    embedding=mostly(vectors, st.none()),
    embedding_model=st.sampled_from([None, "model-a"]),
    token_count=mostly(st.none() | st.integers(0, 9), st.sampled_from([0, 900, INT_MAX])),
)


@st.composite
def stores(draw: st.DrawFn) -> list[Memory]:
    """Rows in the order they are written; one may supersede any that was not superseded before."""
    size = draw(st.sampled_from([3, 1, 6, 9, 12, 15, 18]))
    drawn = draw(st.lists(memories, min_size=size, max_size=size))
    # Few namespaces a store, or else hardly two rows of it would ever meet in one call.
    namespaces = draw(st.lists(st.sampled_from(NAMESPACES), min_size=1, max_size=3))
    for position, memory in enumerate(drawn):
        memory.namespace = namespaces[position % len(namespaces)]
        if position and draw(st.integers(0, 7)) == 7:
            # One id in two namespaces, and nothing but the namespace to order them by.
            for name in ("memory_id", "confidence", "embedding"):
                setattr(memory, name, getattr(drawn[position - 1], name))
    store = list({memory.key: memory for memory in drawn}.values())
    if draw(st.integers(0, 9)) == 9:
        store[-1].embedding_model = "model-b"
    for position, memory in enumerate(store):
        if draw(st.integers(0, 9)) == 9:
            earlier = [other for other in store[:position] if other.namespace == memory.namespace]
            superseded = {other.supersedes for other in earlier}
            free = [other for other in earlier if other.memory_id not in superseded]
            if free:
                retired = draw(st.sampled_from(free))
                memory.supersedes = retired.memory_id
                retired.deleted_at = retired.deleted_at or NOW
    return store


@dataclass(frozen=True)
class Call:
    """The arguments of one example; each SQL call takes those it knows."""

    namespaces: list[str]
    query: Vector
    top_k: int = 5
    token_budget: int = 6000
    index_budget: int | None = None
    packing: str = "stop"
    filters: Filters = field(default_factory=Filters)
    embedding_model: str | None = None
    memory_ids: list[uuid.UUID] = field(default_factory=list)

    def expected_session(self, store: Sequence[Memory], now: datetime, metric: Metric) -> dict[str, Any]:
        return reference.hydrate_session(
            store,
            now,
            metric,
            Query(self.query),
            self.namespaces,
            self.top_k,
            self.token_budget,
            self.index_budget,
            self.packing,
            self.filters,
            self.embedding_model,
        )


@st.composite
def calls(draw: st.DrawFn, store: Sequence[Memory], metric: Metric) -> Call:
    """A call for this store: its budgets and its floor fall where a sum or a similarity falls."""
    present = list(dict.fromkeys(memory.namespace for memory in store))
    listed = st.lists(st.sampled_from([*NAMESPACES, "unknown", "", "acm"]), max_size=8)
    namespaces = draw(mostly(st.sampled_from([present, present * 2, present[:1], NAMESPACES]), listed))
    known_ids = [*[memory.memory_id for memory in store], UNKNOWN_ID, MEMORY_IDS[0]]
    query = draw(vectors)
    call = Call(
        namespaces=namespaces,
        query=query,
        top_k=draw(st.sampled_from([5, 1, 2, 3, 4, 6, 7, 10, 0])),
        packing=draw(st.sampled_from(["stop", "skip"])),
        filters=draw(filters(query, store, metric)),
        embedding_model=draw(mostly(st.sampled_from([None, "model-a"]), st.just("model-b"))),
        memory_ids=draw(st.lists(st.sampled_from(known_ids), max_size=12)),
    )
    # A memory that does not fit its budget by one token, fits it, fits with one to spare.
    near = draw(st.sampled_from([-1, 0, 0, 1]))

    if draw(st.booleans()):
        live = reference.by_confidence(reference.live_in(store, namespaces, NOW))
        run = live[: draw(st.integers(0, len(live)))]
        index_budget = sum(memory.index_tokens for memory in run) + near
        call = replace(call, index_budget=max(0, index_budget))

    # With all the room there is, the call tells which sums matter.
    try:
        roomy = replace(call, token_budget=2**60).expected_session(store, NOW, metric)
    except ModelMismatch:
        return call
    index_tokens = roomy["index_tokens"]
    pinned = [memory["tokens"] for memory in roomy["relevant"] if memory["pinned"]]
    relevant = [memory["tokens"] for memory in roomy["relevant"]]
    kind = draw(st.integers(0, 7))
    if kind == 0:
        token_budget = draw(st.integers(0, 200) | st.sampled_from([0, 6000, INT_MAX]))
    elif kind == 1:
        token_budget = draw(st.integers(0, index_tokens))
    elif kind == 2:
        token_budget = index_tokens + 2 * sum(pinned[: draw(st.integers(0, len(pinned)))]) + near
    elif kind <= 4:
        token_budget = index_tokens + sum(relevant[: draw(st.integers(0, len(relevant)))]) + near
    else:
        wanted = [tokens for tokens in relevant if tokens < INT_MAX and draw(st.booleans())]
        token_budget = index_tokens + draw(st.integers(1, 2)) * sum(wanted) + near
    return replace(call, token_budget=min(max(0, token_budget), INT_MAX))


@st.composite
def filters(draw: st.DrawFn, query: Vector, store: Sequence[Memory], metric: Metric) -> Filters:
    """No filter, one, or more."""
    memory_types = min_similarity = wanted = None
    kind = draw(st.integers(0, 11))
    if kind in (1, 4, 5, 7):
        memory_types = draw(st.lists(st.sampled_from([*MEMORY_TYPES, "other"]), max_size=3))
    if kind in (2, 4, 6, 7, 8):
        embedded = [memory.embedding for memory in store if memory.embedding is not None]
        if embedded and draw(st.integers(0, 7)) < 7:
            # The similarity of a row; one that differs as a double, but not as a real; the next reals.
            similarity = metric.similarity(metric.distance(draw(st.sampled_from(embedded)), query))
            min_similarity = similarity * (1 + draw(st.sampled_from([0, 2**-40, -(2**-23), 2**-23])))
        else:
            min_similarity = draw(st.sampled_from([-5.0, 0.0, 0.5, 1.0, math.inf, -math.inf]))
    if kind in (3, 5, 6, 7):
        wanted = draw(st.sampled_from([*[memory.metadata for memory in store], *PARTS]))
    return Filters(memory_types, min_similarity, wanted)


@st.composite
def examples(draw: st.DrawFn, metric: Metric) -> tuple[list[Memory], Call]:
    store = draw(stores())
    return store, draw(calls(store, metric))


# How a store is written and a call is made.


def at(memory: Memory, now: datetime) -> Memory:
    """The memory, moved from NOW to a transaction's now()."""
    times = {name: getattr(memory, name) for name in ("created_at", "updated_at", "expires_at", "deleted_at")}
    return replace(memory, **{name: time and time - NOW + now for name, time in times.items()})


INSERT = """\
insert into hydrator.memories (
  namespace, memory_id, heading, content, created_at, memory_type, confidence, source_type, supersedes,
  expires_at, deleted_at, pinned, metadata, embedding, embedding_model, token_count
)
values (
  %(namespace)s, %(memory_id)s, %(heading)s, %(content)s, %(created_at)s, %(memory_type)s, %(confidence)s,
  %(source_type)s, %(supersedes)s, %(expires_at)s, %(deleted_at)s, %(pinned)s, %(metadata)s, %(embedding)s,
  %(embedding_model)s, %(token_count)s
)"""

ARGUMENT_TYPES = {
    "namespaces": "text[]",
    "memory_ids": "uuid[]",
    "memory_types": "text[]",
    "metadata": "jsonb",
    "token_count": "integer",
    "query_text": "text",
}


def literal(vector: Vector | None) -> str | None:
    return None if vector is None else "[" + ",".join(map(str, vector)) + "]"


def write(connection: Connection, store: Sequence[Memory], now: datetime) -> None:
    """Insert the rows one after the other: the one that is superseded is live until then."""
    superseded = {(memory.namespace, memory.supersedes) for memory in store}
    rows = []
    for memory in store:
        retired = memory.deleted_at == now and (memory.namespace, memory.memory_id) in superseded
        rows.append(
            vars(memory)
            | {
                "deleted_at": None if retired else memory.deleted_at,
                "metadata": Jsonb(memory.metadata),
                "embedding": literal(memory.embedding),
            }
        )
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(INSERT, rows)


def answer(connection: Connection, function: str, **arguments: Any) -> list[dict[str, Any]]:
    """Call a function by name; its rows.

    A float is sent as its digits without a type: the function's own type reads them.
    """
    arguments = {name: str(value) if isinstance(value, float) else value for name, value in arguments.items()}
    casts = {name: f"::{ARGUMENT_TYPES[name]}" if name in ARGUMENT_TYPES else "" for name in arguments}
    named = ", ".join(f"p_{name} => %({name})s{cast}" for name, cast in casts.items())
    return [read(row) for row in connection.execute(f"select * from hydrator.{function}({named})", arguments)]


def read(row: dict[str, Any]) -> dict[str, Any]:
    """A row, or an object in its JSON, with the types of the reference."""
    values = dict(row)
    for name, value in values.items():
        if name in ("memory_id", "supersedes") and isinstance(value, str):
            values[name] = uuid.UUID(value)
        elif name in ("expires_at", "created_at") and isinstance(value, str):
            values[name] = datetime.fromisoformat(value)
        elif name == "confidence":
            values[name] = float4(value)
        elif name in ("index", "relevant", "dropped"):
            values[name] = [read(entry) for entry in value]
    return values


def same(function: str, rows: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    """Compare the rows, their columns in order (a caller may read by position) and every field."""
    rows, expected = steady(list(rows)), steady(list(expected))
    assert [list(row) for row in rows] == [list(row) for row in expected], function
    different = [
        f"row {position}, {name}: {value!r}, expected {wanted[name]!r}"
        for position, (row, wanted) in enumerate(zip(rows, expected, strict=True))
        for name, value in row.items()
        if value != wanted[name]
    ]
    assert not different, function + "\n" + "\n".join(different)


def steady(value: Any) -> Any:
    """The value with its scores to six digits: the last ones are those of the order of a sum."""
    if isinstance(value, list):
        return [steady(item) for item in value]
    if isinstance(value, dict):
        return {
            name: round(item, 6) + 0.0 if name == "score" and item is not None else steady(item)
            for name, item in value.items()
        }
    return value


def hold(connection: Connection, metric: Metric, store: Sequence[Memory], call: Call, now: datetime) -> None:
    """Make every call that reads, and compare its answer with the reference's."""
    namespaces = call.namespaces

    rows = answer(connection, "compact_index", namespaces=namespaces, token_budget=call.index_budget)
    expected = reference.compact_index(store, now, namespaces, call.index_budget)
    same("compact_index", rows, expected)

    rows = answer(connection, "fetch_memories", namespaces=namespaces, memory_ids=call.memory_ids)
    same("fetch_memories", rows, reference.fetch_memories(store, now, namespaces, call.memory_ids))

    arguments = {
        "query_embedding": literal(call.query),
        "namespaces": namespaces,
        "memory_types": call.filters.memory_types,
        "min_similarity": call.filters.min_similarity,
        "metadata": None if call.filters.metadata is None else Jsonb(call.filters.metadata),
        "embedding_model": call.embedding_model,
    }
    ranking = (
        store,
        now,
        metric,
        Query(call.query),
        namespaces,
        call.top_k,
        call.filters,
        call.embedding_model,
    )
    budgets = {
        "token_budget": call.token_budget,
        "index_budget": call.index_budget,
        "packing": call.packing,
    }
    try:
        session = call.expected_session(store, now, metric)
    except ModelMismatch:
        refused(connection, "MH009", "hydrate_session", top_k=call.top_k, **budgets, **arguments)
        refused(connection, "MH009", "fetch_top_k_relevant", top_k=call.top_k, **arguments)
        refused(connection, "MH009", "search_memories", limit=call.top_k, **arguments)
        return
    rows = answer(connection, "hydrate_session", top_k=call.top_k, **budgets, **arguments)
    same("hydrate_session", rows, [session])
    rows = answer(connection, "fetch_top_k_relevant", top_k=call.top_k, **arguments)
    same("fetch_top_k_relevant", rows, reference.fetch_top_k_relevant(*ranking))
    rows = answer(connection, "search_memories", limit=call.top_k, **arguments)
    same("search_memories", rows, reference.search_memories(*ranking))


def hold_defaults(
    connection: Connection, metric: Metric, store: Sequence[Memory], call: Call, now: datetime
) -> None:
    """The same calls with their required arguments alone."""
    rows = answer(connection, "compact_index", namespaces=call.namespaces)
    same("compact_index", rows, reference.compact_index(store, now, call.namespaces))

    arguments = {"query_embedding": literal(call.query), "namespaces": call.namespaces}
    required = (store, now, metric, Query(call.query), call.namespaces)
    try:
        session = reference.hydrate_session(*required)
    except ModelMismatch:
        return
    rows = answer(connection, "hydrate_session", **arguments)
    same("hydrate_session", rows, [session])
    rows = answer(connection, "fetch_top_k_relevant", **arguments)
    same("fetch_top_k_relevant", rows, reference.fetch_top_k_relevant(*required))
    rows = answer(connection, "search_memories", **arguments)
    same("search_memories", rows, reference.search_memories(*required))


def refused(connection: Connection, sqlstate: str, function: str, **arguments: Any) -> None:
    with pytest.raises(psycopg.Error) as caught, connection.transaction():
        answer(connection, function, **arguments)
    assert caught.value.sqlstate == sqlstate


def test_every_call_equals_the_reference(installation: Installation) -> None:
    connection, metric = installation.connection, installation.metric

    @settings(max_examples=installation.examples, deadline=None, print_blob=True)
    @given(examples(metric))
    def check(example: tuple[list[Memory], Call]) -> None:
        drawn, call = example
        with connection.transaction(force_rollback=True):
            now = connection.execute("select now()").fetchone()["now"]
            store = [at(memory, now) for memory in drawn]
            write(connection, store, now)
            hold(connection, metric, store, call, now)
            hold_defaults(connection, metric, store, call, now)

    check()


def test_texts_of_every_kind_equal_the_reference(installation: Installation) -> None:
    connection, metric = installation.connection, installation.metric
    call = Call(namespaces=["acme"], query=(1.0, 0.0, 0.0, 0.0), memory_ids=MEMORY_IDS)

    @settings(max_examples=installation.examples // 4, deadline=None, print_blob=True)
    @given(st.lists(st.tuples(texts_of_one_line, texts), max_size=len(MEMORY_IDS)))
    def check(drawn: list[tuple[str, str]]) -> None:
        with connection.transaction(force_rollback=True):
            now = connection.execute("select now()").fetchone()["now"]
            store = [
                Memory("acme", memory_id, heading, content, now, now, embedding=(1.0, 1.0, 0.0, 0.0))
                for memory_id, (heading, content) in zip(MEMORY_IDS, drawn, strict=False)
            ]
            write(connection, store, now)
            hold(connection, metric, store, call, now)

    check()


# Words that many memories share, names that few do, and what a text search configuration leaves out.
WORDS = [
    "owl",
    "owls",
    "the",
    "deploy",
    "deploy.sh",
    "rank_memories",
    "rankMemories",
    "v0.8.6",
    "언어 기억",
    "記憶",
]
prose = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)


def read_words(connection: Connection, texts: Sequence[str]) -> list[list[str]]:
    """The words of each text, by the database: test_text_ranking.py holds them against the rules."""
    rows = connection.execute(
        "select hydrator.split_words(t.text) as words from unnest(%s::text[]) with ordinality t (text, ordinal)"
        " order by t.ordinal",
        [list(texts)],
    )
    return [row["words"] for row in rows]


@st.composite
def text_examples(draw: st.DrawFn, metric: Metric) -> tuple[list[Memory], Call, str, bool]:
    store, call = draw(examples(metric))
    for memory in store:
        memory.heading, memory.content = draw(prose), draw(prose)
    by_vector = draw(st.booleans())
    if not by_vector:
        call = replace(call, filters=replace(call.filters, min_similarity=None))
    return store, call, draw(mostly(prose, st.sampled_from(["", "the", "zebra"]))), by_vector


def test_rankings_by_text_equal_the_reference(installation: Installation) -> None:
    connection, metric = installation.connection, installation.metric

    @settings(max_examples=installation.examples, deadline=None, print_blob=True)
    @given(text_examples(metric))
    def check(example: tuple[list[Memory], Call, str, bool]) -> None:
        drawn, call, text, by_vector = example
        with connection.transaction(force_rollback=True):
            now = connection.execute("select now()").fetchone()["now"]
            store = [at(memory, now) for memory in drawn]
            write(connection, store, now)
            headings = read_words(connection, [memory.heading for memory in store])
            contents = read_words(connection, [memory.content for memory in store])
            for memory, heading, content in zip(store, headings, contents, strict=True):
                memory.words = heading if memory.content == memory.heading else heading * 3 + content
            [words] = read_words(connection, [text])
            query = Query(call.query if by_vector else None, words)
            arguments = {
                "query_embedding": literal(query.vector),
                "query_text": text,
                "namespaces": call.namespaces,
                "memory_types": call.filters.memory_types,
                "min_similarity": call.filters.min_similarity,
                "metadata": None if call.filters.metadata is None else Jsonb(call.filters.metadata),
            }
            ranking = (store, now, metric, query, call.namespaces, call.top_k, call.filters)
            session = (*ranking[:6], call.token_budget, call.index_budget, call.packing, call.filters)
            try:
                expected = reference.hydrate_session(*session)
            except ModelMismatch:
                if by_vector:
                    refused(connection, "MH009", "hydrate_session", **arguments)
                return
            rows = answer(
                connection,
                "hydrate_session",
                top_k=call.top_k,
                token_budget=call.token_budget,
                index_budget=call.index_budget,
                packing=call.packing,
                **arguments,
            )
            same("hydrate_session", rows, [expected])
            rows = answer(connection, "fetch_top_k_relevant", top_k=call.top_k, **arguments)
            same("fetch_top_k_relevant", rows, reference.fetch_top_k_relevant(*ranking))
            rows = answer(connection, "search_memories", limit=call.top_k, **arguments)
            same("search_memories", rows, reference.search_memories(*ranking))

    check()


def test_tokens_are_estimated_by_the_rule(installation: Installation) -> None:
    @settings(max_examples=30, deadline=None, print_blob=True)
    @given(texts)
    def check(text: str) -> None:
        rows = answer(installation.connection, "estimate_tokens", text=text)
        assert rows == [{"estimate_tokens": reference.estimate_tokens(text)}]

    check()


# Sequences of writes.


@dataclass(frozen=True)
class Step:
    """One write, or the passing of days. ``choice`` counts from the newest memory backwards."""

    action: str
    memory: Memory
    namespace: str
    lifetime: timedelta | None
    choice: int | None
    days: int


steps = st.builds(
    Step,
    action=st.sampled_from(
        [
            "remember",
            "remember",
            "supersede",
            "supersede",
            "forget",
            "forget",
            "wait",
            "wait",
            "purge",
            "fail",
        ]
    ),
    memory=memories,
    namespace=mostly(st.just(NAMESPACES[0]), st.just(NAMESPACES[1])),
    lifetime=st.sampled_from([None, DAY, 3 * DAY, 0 * DAY]),
    choice=mostly(st.integers(0, 3), st.none()),
    days=st.integers(1, 2),
)


def written(memory: Memory) -> dict[str, Any]:
    """The arguments of remember()."""
    names = ("namespace", "heading", "content", "memory_type", "confidence", "source_type", "supersedes")
    return {
        **reference.fields(memory, *names, "expires_at", "pinned", "embedding_model", "token_count"),
        "embedding": literal(memory.embedding),
        "metadata": Jsonb(memory.metadata),
    }


class Model:
    """A list of rows to which each step is done as to the database, with the answer it must give.

    Time passes by moving every row into the past, since now() stands still.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.now = connection.execute("select now()").fetchone()["now"]
        self.store: list[Memory] = []
        self.unknown = UNKNOWN_ID
        # The ids of those that are known again by their words.
        self.claims: set[uuid.UUID] = set()

    def find(self, namespace: str, memory_id: uuid.UUID) -> Memory | None:
        for memory in self.store:
            if (memory.namespace, memory.memory_id) == (namespace, memory_id):
                return memory
        return None

    def pick(self, choice: int | None) -> uuid.UUID:
        """The id of a memory, live or dead, of either namespace; or one that is not, or no longer, there."""
        if choice is None or not self.store:
            return self.unknown
        return self.store[-1 - choice % len(self.store)].memory_id

    def fresh(self, step: Step, supersedes: uuid.UUID | None = None) -> Memory:
        return replace(
            step.memory,
            namespace=step.namespace,
            created_at=self.now,
            updated_at=self.now,
            supersedes=supersedes,
            expires_at=None if step.lifetime is None else self.now + step.lifetime,
            deleted_at=None,
        )

    def write(self, memory: Memory) -> None:
        (row,) = answer(self.connection, "remember", **written(memory))
        memory.memory_id = row["remember"]
        self.store.append(memory)
        if (same := self.same(memory)) is not None and memory.supersedes is None:
            self.claims.discard(same.memory_id)  # it has expired
            same = None
        if same is None:
            self.claims.add(memory.memory_id)

    def same(self, memory: Memory) -> Memory | None:
        """The memory, live or expired, of the same words that remember() wrote."""
        for other in self.store:
            if (
                other.memory_id in self.claims
                and other.deleted_at is None
                and (
                    (other.namespace, other.heading, other.content)
                    == (memory.namespace, memory.heading, memory.content)
                )
            ):
                return other
        return None

    def remember(self, step: Step) -> None:
        memory = self.fresh(step)
        same = self.same(memory)
        if same is not None and reference.is_live(same, self.now):
            assert answer(self.connection, "remember", **written(memory)) == [{"remember": same.memory_id}]
        else:
            self.write(memory)

    def supersede(self, step: Step) -> None:
        memory = self.fresh(step, supersedes=self.pick(step.choice))
        retired = self.find(step.namespace, memory.supersedes)
        if retired is None:
            refused(self.connection, "MH006", "remember", **written(memory))
        elif any(other.supersedes == retired.memory_id for other in self.store):
            refused(self.connection, "MH007", "remember", **written(memory))
        else:
            # What was deleted already keeps its moment of death.
            retired.deleted_at = retired.deleted_at or self.now
            self.write(memory)

    def fail(self, step: Step) -> None:
        """What a refused memory would have superseded lives on."""
        live = [memory for memory in self.store if reference.is_live(memory, self.now)]
        if live:
            step = replace(step, namespace=live[-1].namespace)
        bad = self.fresh(step, supersedes=live[-1].memory_id if live else None)
        refused(self.connection, "MH008", "remember", **written(replace(bad, heading="two\nlines")))

    def forget(self, step: Step) -> None:
        memory = self.find(step.namespace, self.pick(step.choice))
        rows = answer(self.connection, "forget", namespace=step.namespace, memory_id=self.pick(step.choice))
        was_live = memory is not None and reference.is_live(memory, self.now)
        assert rows == [{"forget": was_live}]
        if was_live:
            memory.deleted_at = self.now

    def wait(self, step: Step) -> None:
        for memory in self.store:
            for name in ("created_at", "expires_at", "deleted_at"):
                moment = getattr(memory, name)
                setattr(memory, name, moment and moment - step.days * DAY)
        self.connection.execute(
            """
            update hydrator.memories
            set created_at = created_at - %(days)s * interval '1 day',
                expires_at = expires_at - %(days)s * interval '1 day',
                deleted_at = deleted_at - %(days)s * interval '1 day'
            """,
            {"days": step.days},
        )

    def purge(self, step: Step) -> None:
        """What died of two causes has been dead since the first."""
        older_than = (step.days - 1) * DAY
        removed = []
        for memory in self.store:
            deaths = [moment for moment in (memory.deleted_at, memory.expires_at) if moment is not None]
            if deaths and min(deaths) < self.now - older_than:
                removed.append(memory)
                self.unknown = memory.memory_id
        assert answer(self.connection, "purge", older_than=older_than) == [{"purge": len(removed)}]
        self.store = [memory for memory in self.store if memory not in removed]
        for memory in self.store:
            # A successor stays, without the predecessor that is gone.
            if memory.supersedes is not None and self.find(memory.namespace, memory.supersedes) is None:
                memory.supersedes = None

    def hold_table(self) -> None:
        names = ("namespace", "memory_id", "supersedes", "created_at", "expires_at", "deleted_at")
        rows = self.connection.execute(f"select {', '.join(names)} from hydrator.memories").fetchall()
        expected = {memory.key: reference.fields(memory, *names) for memory in self.store}
        assert {(row["memory_id"], row["namespace"]): row for row in rows} == expected


def test_sequences_of_writes_equal_a_model(installation: Installation) -> None:
    connection, metric = installation.connection, installation.metric

    @settings(max_examples=installation.examples * 3 // 4, deadline=None, print_blob=True)
    @given(st.lists(steps, min_size=6, max_size=20))
    def check(sequence: list[Step]) -> None:
        with connection.transaction(force_rollback=True):
            model = Model(connection)
            for step in sequence:
                getattr(model, step.action)(step)
                model.hold_table()
            call = Call(
                namespaces=NAMESPACES[:2],
                query=(1.0, 0.0, 0.0, 0.0),
                memory_ids=[memory.memory_id for memory in model.store],
            )
            hold(connection, metric, model.store, call, model.now)

    check()
