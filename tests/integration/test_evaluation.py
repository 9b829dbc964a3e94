"""``hydrator eval`` on real stores: the ways against references of their own, errors, and the command."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hydrator import HydratorError, MemoryStore, ModelMismatch, WordLlamaEmbedder, WrongDimensions, evaluation
from hydrator.evaluation import WAYS, Question, run
from hydrator.importing import import_memories

pytest.importorskip("numpy")

WORDS = ["apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbour", "island", "jacket"]


class Toy:
    """Four numbers a text: how often each of the first four words is in it, and a little of all."""

    model = "toy"
    dimensions = 4

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[0.01 * len(text) % 1 + text.split().count(word) for word in WORDS[:4]] for text in texts]


@pytest.fixture
def toys(url: str) -> Iterator[MemoryStore]:
    with MemoryStore(url) as store:
        yield store


def remember(store: MemoryStore, heading: str, content: str | None = None, **fields: Any) -> str:
    namespace = fields.pop("namespace", "n")
    [embedding] = Toy().embed([f"{heading}\n{content or heading}"])
    written = store.remember(
        namespace, heading, content, embedding=embedding, embedding_model="toy", **fields
    )
    return str(written)


def ask(text: str, *evidence: Any, namespaces: Sequence[str] = ("n",)) -> Question:
    return Question("set.jsonl:1", text, tuple(namespaces), evidence)


def figures(
    url: str, *questions: Question, **options: Any
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Give recall, hit rate and MRR for each way and cut."""
    result = run(url, Toy(), questions, configuration="simple", resamples=100, **options)
    return {
        way: {cut: tuple(estimate.mean for estimate in metrics.values()) for cut, metrics in of_way.items()}
        for way, of_way in result.figures.items()
    }  # type: ignore[return-value]


@pytest.fixture
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "KS", (1, 2))
    monkeypatch.setattr(evaluation, "BUDGETS", (10, 25))


@pytest.mark.usefixtures("small_cuts")
def test_a_store_worked_by_hand(db: psycopg.Connection, url: str, toys: MemoryStore) -> None:
    # Ten tokens each: 38 or 39 characters and the line break.
    apple = remember(toys, "apple apple", "." * 27, confidence=0.1)
    bridge = remember(toys, "bridge", "." * 32, confidence=0.9)
    candle = remember(toys, "candle and apple", "." * 22, confidence=0.5)
    db.execute("update hydrator.memories set created_at = '2030-01-01' where memory_id = %s", [candle])
    assert {m.tokens for m in toys.fetch_memories(["n"], [apple, bridge, candle])} == {10}

    found = figures(url, ask("apple", apple, candle))
    # Nearest: apple, then the candle with an apple; 25 tokens hold two memories, 10 hold one.
    expected = {"k=1": (0.5, 1, 1), "k=2": (1, 1, 1), "budget=10": (0.5, 1, 1), "budget=25": (1, 1, 1)}
    assert found["hydrator"] == found["vector"] == found["full text"] == expected
    # Newest: the candle, then one of the other two by id.
    assert found["newest first"]["k=1"] == (0.5, 1, 1)
    # Most confident: the bridge, which is no evidence, then the candle.
    expected = {"k=1": (0, 0, 0), "k=2": (0.5, 1, 0.5), "budget=10": (0, 0, 0), "budget=25": (0.5, 1, 0.5)}
    assert found["everything"] == expected

    # Over two questions, the mean.
    found = figures(url, ask("apple", apple, candle), ask("bridge", candle))
    assert found["full text"]["k=2"] == (0.5, 0.5, 0.5)
    assert found["hydrator"]["budget=10"] == (0.25, 0.5, 0.5)


def packed(ranked: list[tuple[str, int]], budget: int) -> list[str]:
    """Take in order, and end at the first that does not fit."""
    taken: list[str] = []
    for memory_id, tokens in ranked:
        budget -= tokens
        if budget < 0:
            break
        taken.append(memory_id)
    return taken


def test_every_way_gives_what_its_reference_gives(
    db: psycopg.Connection, url: str, toys: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "BUDGETS", (50, 120, 400))
    draw = random.Random(5)
    began = datetime(2030, 1, 1, tzinfo=UTC)
    memories = []
    for number in range(60):
        heading = " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))
        content = " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))
        namespace = draw.choice(["n", "n", "m", "other"])
        confidence = draw.choice([0.25, 0.5, 1.0])
        memory_id = remember(toys, heading, content, namespace=namespace, confidence=confidence)
        created = began + timedelta(days=draw.randint(0, 20))
        db.execute("update hydrator.memories set created_at = %s where memory_id = %s", [created, memory_id])
        if number % 10 == 9:
            toys.forget(namespace, memory_id)
        elif namespace != "other":
            text = f"{heading}\n{content}"
            memories.append((memory_id, text, math.ceil(len(text) / 4), confidence, created))

    found: dict[tuple[str, str], list[list[str]]] = {}
    kept = evaluation._Asking.ask

    def listen(self: Any, way: str, question: Question, vector: Sequence[float]) -> list[list[UUID]]:
        told = kept(self, way, question, vector)
        found[way, question.text] = [[str(memory_id) for memory_id in cut] for cut in told]
        return told

    monkeypatch.setattr(evaluation._Asking, "ask", listen)
    texts = ["apple bridge", "desert island?", "the harbour and the candle", "zebra"]
    figures(url, *(ask(text, memories[0][0], namespaces=["n", "m"]) for text in texts))
    assert len(found) == len(WAYS) * len(texts)

    def rank(way: str, text: str) -> list[tuple[str, int]]:
        [query] = Toy().embed([text])
        told = []
        for memory_id, document, tokens, confidence, created in memories:
            if way == "everything":
                key = -confidence
            elif way == "newest first":
                key = -created.timestamp()
            elif way == "full text":
                if not set(text.replace("?", "").split()) & set(document.split()):
                    continue
                words = " | ".join(text.replace("?", "").split())
                statement = "select ts_rank(to_tsvector('simple', %s), to_tsquery('simple', %s))"
                key = -db.execute(statement, [document, words]).fetchone()[0]
            else:
                [vector] = Toy().embed([document])
                literals = [str(query), str(vector)]
                key = db.execute("select %s::vector <=> %s::vector", literals).fetchone()[0]
            told.append((key, UUID(memory_id), tokens))
        return [(str(memory_id), tokens) for _, memory_id, tokens in sorted(told)]

    for (way, text), told in found.items():
        if way == "hydrator":
            # However it ranks: what its calls give by themselves, as many ranked as could fit and one.
            [vector] = Toy().embed([text])
            asked = {**evaluation._REAL[way](text, vector), "namespaces": ["n", "m"]}
            sizes = sorted(tokens for _, _, tokens, _, _ in memories)
            fitting = [sum(total <= budget for total in accumulate(sizes)) for budget in evaluation.BUDGETS]
            by_k, *by_budget = (
                [(str(m.memory_id), m.tokens) for m in toys.fetch_top_k_relevant(**asked, top_k=top_k)]
                for top_k in (max(evaluation.KS), *(most + 1 for most in fitting))
            )
        else:
            by_k = rank(way, text)
            by_budget = [by_k] * len(evaluation.BUDGETS)
        expected = [[memory_id for memory_id, _ in by_k[:k]] for k in evaluation.KS]
        expected += [packed(*each) for each in zip(by_budget, evaluation.BUDGETS, strict=True)]
        assert told == expected, (way, text)
    assert found["full text", "zebra"] == [[]] * 6
    # The budgets cut, and not the number of memories ranked.
    assert len(found["hydrator", "zebra"][3]) < len(found["hydrator", "zebra"][5]) < len(memories)


def test_small_memories_are_limited_by_the_budget_alone(url: str, toys: MemoryStore) -> None:
    written = [remember(toys, f"{word} {number}") for word in WORDS for number in range(10)]
    found = figures(url, ask("apple", *written))
    assert found["hydrator"]["budget=1000"] == (1, 1, 1)
    assert found["everything"]["budget=1000"] == (1, 1, 1)
    assert found["hydrator"]["k=20"][0] == 0.2


@pytest.mark.usefixtures("small_cuts")
def test_evidence_by_id_by_source_key_and_by_metadata(url: str, toys: MemoryStore, tmp_path: Path) -> None:
    lines = [
        {"heading": "apple", "key": "a", "metadata": {"turns": ["1", "2"]}},
        {"heading": "apple apple", "key": "b", "metadata": {"turns": ["2"]}},
        {"heading": "bridge", "key": "c"},
    ]
    path = tmp_path / "notes.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    import_memories(toys, Toy(), path, "n")
    # A memory that was changed since is still known by its key.
    lines[2]["content"] = "candle"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert import_memories(toys, Toy(), path, "n").superseded == 1
    ids = {entry.heading: str(entry.memory_id) for entry in toys.compact_index(["n"])}

    def recall(*evidence: Any) -> float:
        return figures(url, ask("apple", *evidence))["vector"]["k=2"][0]

    assert recall(ids["apple"]) == recall(ids["apple"].upper()) == recall("a") == recall("a", "b") == 1
    assert recall(ids["bridge"]) == recall("c") == 0
    assert recall("a", "c") == 0.5
    assert recall({"turns": ["2"]}, {"turns": ["1"]}) == 1
    assert recall({"source": {"name": "notes.jsonl"}}) == 1


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            ask("q", "here", "gone"),
            r'set\.jsonl:1: no live memory of n holds the evidence "gone"\. Evidence is',
        ),
        (ask("q", {"key": "gone"}), r'no live memory of n holds the evidence \{"key": "gone"\}'),
        (ask("q", "there"), 'the evidence "there"'),
        (ask("q", "x", "here", "y", "z"), 'holds the evidence "x", and 2 more are missing. Evidence is'),
        (
            ask("q", "here", namespaces=["n", "nowhere"]),
            "set.jsonl:1: namespace 'nowhere' holds no live memory",
        ),
        (ask("q", "here", namespaces=["N"]), "namespace 'N' holds no live memory. Namespaces match exactly"),
        (ask("q", "here", namespaces=["n\0"]), r"set\.jsonl:1: .*NUL"),
        (ask("q", "he\0re"), r"set\.jsonl:1: "),
        (ask("q \ud800", "here"), r"set\.jsonl:1: "),
    ],
    ids=str,
)
def test_errors_name_the_line_and_the_value(
    url: str, toys: MemoryStore, question: Question, words: str
) -> None:
    remember(toys, "apple", metadata={"source": {"key": "here"}})
    remember(toys, "apple", metadata={"source": {"key": "there"}}, namespace="other")
    gone = remember(toys, "no apple", metadata={"source": {"key": "gone"}, "key": "gone"})
    toys.forget("n", gone)
    with pytest.raises(HydratorError, match=words):
        figures(url, question)


def test_other_errors(url: str, toys: MemoryStore, embedder: WordLlamaEmbedder) -> None:
    written = remember(toys, "apple")
    with pytest.raises(WrongDimensions, match="256 dimensions"):
        run(url, embedder, [ask("q", written)])
    with pytest.raises(HydratorError, match=r'"klingon" does not exist\. select cfgname'):
        run(url, Toy(), [ask("q", written)], configuration="klingon")

    class Other(Toy):
        model = "other"

    with pytest.raises(ModelMismatch, match=r"set\.jsonl:1: .*other"):
        run(url, Other(), [ask("q", written)])


def test_it_reads_only_and_gives_up_cleanly(db: psycopg.Connection, url: str, toys: MemoryStore) -> None:
    written = remember(toys, "apple")

    class Interrupted(Toy):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            # Asked while the run's transaction is open.
            statement = (
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and state = 'idle in transaction'"
            )
            assert db.execute(statement).fetchone()[0] == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(url, Interrupted(), [ask("q", written)])
    statement = "select count(*) from pg_stat_activity where datname = current_database() and state <> 'idle'"
    deadline = time.monotonic() + 30
    while db.execute(statement).fetchone()[0] > 1:
        assert time.monotonic() < deadline, "a session is left in its transaction"
        time.sleep(0.05)

    # A role that may only read will do.
    db.execute("drop role if exists hydrator_reader")
    db.execute("create role hydrator_reader login password 'reader'")
    try:
        db.execute("grant usage on schema hydrator to hydrator_reader")
        db.execute("grant select on all tables in schema hydrator to hydrator_reader")
        db.execute("grant execute on all functions in schema hydrator to hydrator_reader")
        reader = psycopg.conninfo.make_conninfo(url, user="hydrator_reader", password="reader")
        assert figures(reader, ask("q", written))["vector"]["k=5"] == (1, 1, 1)
    finally:
        db.execute("drop owned by hydrator_reader")
        db.execute("drop role hydrator_reader")


# The command ----------------------------------------------------------------------------------------


def command(url: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hydrator.cli", *map(str, arguments)],
        env={**os.environ, "HYDRATOR_DATABASE_URL": url, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def asked(store: MemoryStore, embedder: WordLlamaEmbedder, tmp_path: Path) -> Path:
    for heading in (
        "Deploys run on Mondays",
        "Lunch is at noon",
        "The staging database is reset every night",
    ):
        [embedding] = embedder.embed([heading])
        store.remember(
            "acme",
            heading,
            embedding=embedding,
            embedding_model=embedder.model,
            metadata={"source": {"key": heading.split()[0]}},
        )
    lines = [("When do we deploy?", "Deploys"), ("When do we eat lunch?", "Lunch")]
    told = [
        json.dumps({"question": text, "namespaces": ["acme"], "evidence": [key]}) + "\n"
        for text, key in lines
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(told), "utf-8")
    return path


def test_the_command_prints_a_table_and_gives_the_same_json_each_time(text_url: str, asked: Path) -> None:
    done = command(text_url, "eval", asked)
    assert done.returncode == 0, done.stderr
    assert "evidence recall" in done.stdout
    assert "2 questions with 2 pieces of evidence; 3 live memories in 1 namespaces." in done.stdout
    first, second = (
        json.loads(command(text_url, "eval", asked, "--json", "--resamples", "200").stdout) for _ in range(2)
    )
    assert first.pop("embedding_ms") > 0
    second.pop("embedding_ms")
    assert first == second
    assert first["figures"]["hydrator"]["k=5"]["recall"]["mean"] == 1
    assert first["figures"]["everything"]["k=5"]["hit"]["mean"] == 1


def test_the_command_draws(text_url: str, asked: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = asked.with_suffix(".png")
    assert command(text_url, "eval", asked, "--plot", picture).returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    done = command(text_url, "eval", asked, "--plot", asked.parent / "nowhere" / "recall.png")
    assert (done.returncode, "there is no folder" in done.stderr) == (2, True)


def test_the_command_fails_in_one_line(text_url: str, asked: Path) -> None:
    with asked.open("a") as file:
        file.write('{"question": "q", "namespaces": ["acme"], "evidence": ["gone"]}\n')
    done = command(text_url, "eval", asked)
    assert done.returncode == 1
    assert done.stdout.strip() == ""
    [line] = done.stderr.strip().splitlines()
    assert 'set.jsonl:3: no live memory of acme holds the evidence "gone"' in line
    assert command(text_url, "eval", asked.parent / "nothing.jsonl").returncode == 2
    assert command(text_url, "eval", asked, "--embedder", "none").returncode == 2


def test_ctrl_c_ends_the_command_at_once(text_url: str, asked: Path) -> None:
    asked.write_text(asked.read_text() * 20_000)  # more than it gets through before the signal
    process = subprocess.Popen(
        [sys.executable, "-m", "hydrator.cli", "eval", str(asked)],
        env={**os.environ, "HYDRATOR_DATABASE_URL": text_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell without job control has its background jobs ignore the signal; a person's does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with psycopg.connect(text_url, autocommit=True) as connection:
        statement = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and state = 'idle in transaction'"
        )
        while not connection.execute(statement).fetchone()[0]:
            assert process.poll() is None
            time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    told, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "Traceback" not in err
    assert told.strip() == ""
