"""The converter of LoCoMo's file, on invented conversations of the same shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hydrator import HydratorError, MemoryStore, WordLlamaEmbedder
from hydrator.evaluation import read_questions, run
from hydrator.locomo import Converted, Memories, convert, read


def told() -> list[dict[str, Any]]:
    """Two conversations, one of a single session; evidence in every form that the original has."""
    long = "The bakery on the corner " + "bakes rye bread and " * 12 + "closes at six."
    return [
        {
            "sample_id": "conv-1",
            "conversation": {
                "speaker_a": "Ada",
                "speaker_b": "Bo",
                "session_1_date_time": "1:05 pm on 3 May, 2020",
                "session_1": [
                    {"speaker": "Ada", "dia_id": "D1:1", "text": "I bought a red canoe."},
                    {"speaker": "Bo", "dia_id": "D1:2", "text": "Look!", "blip_caption": "a heron on a roof"},
                ],
                "session_2_date_time": "11:30 am on 12 June, 2020",
                "session_2": [
                    {"speaker": "Ada", "dia_id": "D2:1", "text": long},
                    {"speaker": "Bo", "dia_id": "D2:2", "text": "My\nlamp   broke."},
                ],
            },
            "observation": {
                "session_1_observation": {
                    "Ada": [["Ada bought a red canoe.", "D1:1"]],
                    "Bo": [["Bo photographs herons.", ["D1:2", "D1:1"]]],
                },
                "session_2_observation": {"Bo": [["Bo's lamp broke.", "D2:2"]]},
            },
            "qa": [
                {"question": "What did Ada buy?", "answer": "a canoe", "evidence": ["D1:1"], "category": 1},
                {"question": "What broke?", "answer": "a lamp", "evidence": ["D2:2; D1:2"], "category": 4},
                {"question": "When does it close?", "answer": 6, "evidence": ["D2:1"], "category": 2},
                {"question": "Which turn?", "answer": "none", "evidence": ["D9:9", "D"], "category": 3},
                {"question": "Nothing?", "answer": "none", "evidence": [], "category": 3},
                {
                    "question": "A green canoe?",
                    "adversarial_answer": "y",
                    "evidence": ["D1:1"],
                    "category": 5,
                },
            ],
        },
        {
            "sample_id": "conv-2",
            "conversation": {
                "session_1_date_time": "9:00 am on 1 July, 2020",
                "session_1": [{"speaker": "Cy", "dia_id": "D1:1", "text": "I play the cello."}],
            },
            "observation": {"session_1_observation": {"Cy": [["Cy plays the cello.", "D1:1"]]}},
            "qa": [{"question": "What does Cy play?", "answer": "?", "evidence": ["D1:1"], "category": 4}],
        },
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "locomo.json").write_text(json.dumps(told()), "utf-8")
    return tmp_path / "locomo.json"


def live(store: MemoryStore, namespace: str) -> dict[str, Any]:
    ids = [entry.memory_id for entry in store.compact_index([namespace])]
    return {memory.metadata["source"]["key"]: memory for memory in store.fetch_memories([namespace], ids)}


@pytest.mark.parametrize(
    ("memories", "expected"),
    [
        (Memories.TURNS, Converted(("x-conv-1", "x-conv-2"), 5, 0, 0, 4, 2)),
        (Memories.OBSERVATIONS, Converted(("x-conv-1", "x-conv-2"), 4, 0, 0, 3, 3)),
    ],
)
def test_converting_twice_changes_nothing_and_is_ready_for_eval(
    store: MemoryStore,
    text_url: str,
    embedder: WordLlamaEmbedder,
    path: Path,
    memories: Memories,
    expected: Converted,
) -> None:
    pytest.importorskip("numpy")
    out = path.with_name("set.jsonl")
    assert convert(store, embedder, path, memories, out, namespace="x") == expected
    before, questions = live(store, "x-conv-1"), out.read_bytes()
    again = convert(store, embedder, path, memories, out, namespace="x")
    assert (again.imported, again.unchanged, again.superseded) == (0, expected.imported, 0)
    assert (live(store, "x-conv-1"), out.read_bytes()) == (before, questions)
    assert {memory.embedding_model for memory in before.values()} == {embedder.model}

    result = run(text_url, embedder, read_questions(out), resamples=100)
    assert (result.questions, result.memories) == (expected.questions, expected.imported)
    assert result.figures["hydrator"]["k=5"]["recall"].mean == 1


def test_turns_as_they_were_said(
    store: MemoryStore, embedder: WordLlamaEmbedder, path: Path, text_db: psycopg.Connection
) -> None:
    convert(store, embedder, path, Memories.TURNS, path.with_name("set.jsonl"), namespace="x", dates=False)
    turns = live(store, "x-conv-1")
    assert turns["D1:1"].heading == turns["D1:1"].content == "Ada: I bought a red canoe."
    assert turns["D1:2"].content == "Bo: Look! (shares a photo: a heron on a roof)"
    assert (turns["D2:2"].heading, turns["D2:2"].content) == ("Bo: My lamp broke.", "Bo: My\nlamp   broke.")
    assert len(turns["D2:1"].heading) == 200
    assert turns["D2:1"].heading.endswith("…")
    assert turns["D2:1"].content.endswith("closes at six.")
    newest = text_db.execute(
        "select metadata #>> '{source,key}', created_at at time zone 'UTC' from hydrator.live_memories"
        " where namespace = 'x-conv-1' order by created_at desc, memory_id"
    ).fetchall()
    assert [key for key, _ in newest] == ["D2:2", "D2:1", "D1:2", "D1:1"]
    assert str(newest[-1][1]) == "2020-05-03 13:05:00"


def test_observations_rest_on_turns(store: MemoryStore, embedder: WordLlamaEmbedder, path: Path) -> None:
    out = path.with_name("set.jsonl")
    convert(store, embedder, path, Memories.OBSERVATIONS, out, namespace="x")
    made = live(store, "x-conv-1")
    assert made["session_1/Bo/1"].metadata["turns"] == ["D1:2", "D1:1"]
    asked = {question.text: question for question in read_questions(out)}
    assert asked["What broke?"].evidence == ({"turns": ["D2:2"]}, {"turns": ["D1:2"]})
    assert asked["What does Cy play?"].namespaces == ("x-conv-2",)
    # No observation rests on its turn, so that no way of ranking could find it.
    assert "When does it close?" not in asked


def test_adversarial_questions_are_kept_on_demand(path: Path) -> None:
    assert "A green canoe?" not in [text for text, _ in read(path, Memories.TURNS)[0].questions]
    kept = read(path, Memories.TURNS, adversarial=True)[0].questions
    assert ("A green canoe?", ("D1:1",)) in kept


def test_dates_on_demand_supersede_and_stay(
    store: MemoryStore, embedder: WordLlamaEmbedder, path: Path
) -> None:
    out = path.with_name("set.jsonl")
    for dates, counts in (
        (False, (5, 0, 0)),
        (True, (0, 0, 5)),
        (True, (0, 5, 0)),
        (False, (0, 0, 5)),
        (False, (0, 5, 0)),
    ):
        done = convert(store, embedder, path, Memories.TURNS, out, namespace="x", dates=dates)
        assert (done.imported, done.unchanged, done.superseded) == counts
        says = " (1:05 pm on 3 May, 2020)" if dates else ""
        assert live(store, "x-conv-1")["D1:1"].content == f"Ada: I bought a red canoe.{says}"


def test_an_interrupted_conversion_goes_on_where_it_was(
    store: MemoryStore, embedder: WordLlamaEmbedder, path: Path
) -> None:
    out = path.with_name("set.jsonl")

    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == "x-conv-2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(store, embedder, path, Memories.TURNS, out, namespace="x", progress=interrupt)
    assert not out.exists()
    done = convert(store, embedder, path, Memories.TURNS, out, namespace="x")
    assert (done.imported, done.unchanged) == (1, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "locomo.json is not as LoCoMo's file: Expecting"),
        ("[7]", "is not as LoCoMo's file"),
        ("{}", "is not as LoCoMo's file: it holds no conversation"),
        ('[{"qa": []}]', "'conversation' is not there"),
        ('[{"conversation": {"session_1_date_time": "noon", "session_1": []}}]', "noon"),
    ],
)
def test_another_file_is_an_error(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    with pytest.raises(HydratorError, match=words) as raised:
        read(path, Memories.TURNS)
    assert "snap-research/locomo" in str(raised.value)
