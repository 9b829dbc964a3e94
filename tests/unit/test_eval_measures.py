"""The measures of ``hydrator eval``, and the question sets it reads; without a database."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydrator import HydratorError
from hydrator.evaluation import (
    METRICS,
    WAYS,
    Estimate,
    EvalResult,
    Score,
    _estimates,
    cuts,
    plot,
    read_questions,
    score,
)
from hydrator.receipt import eval_table

A, B, C, D = (UUID(int=number) for number in range(4))


@pytest.mark.parametrize(
    ("found", "evidence", "scored"),
    [
        ([A, B], [{A}], Score(1, 1, 1)),
        ([B, A], [{A}], Score(1, 1, 1 / 2)),
        ([B, C, A], [{A}, {D}], Score(1 / 2, 1, 1 / 3)),
        # Several memories hold one evidence: any of them will do, and it counts once.
        ([B, C], [{A, C}], Score(1, 1, 1 / 2)),
        ([A, C], [{A, C}, {D}], Score(1 / 2, 1, 1)),
        # One memory holds several.
        ([A], [{A}, {A, B}], Score(1, 1, 1)),
        ([B, C], [{A}, {D}], Score(0, 0, 0)),
        ([], [{A}], Score(0, 0, 0)),
    ],
)
def test_scores_by_hand(found: list[UUID], evidence: list[set[UUID]], scored: Score) -> None:
    assert score(found, [frozenset(holding) for holding in evidence]) == pytest.approx(scored)


some = st.integers(0, 7).map(lambda number: UUID(int=number))


@given(st.lists(some, unique=True), st.lists(st.frozensets(some, min_size=1), min_size=1, max_size=4))
def test_more_of_the_same_ranking_never_scores_less(
    found: list[UUID], evidence: list[frozenset[UUID]]
) -> None:
    scores = [score(found[:k], evidence) for k in range(len(found) + 1)]
    for fewer, more in itertools.pairwise(scores):
        assert all(less <= much for less, much in zip(fewer, more, strict=True))
    for seen in scores:
        assert (seen.recall > 0) == (seen.hit == 1) == (seen.mrr > 0)
        assert seen.mrr in {0, *(1 / rank for rank in range(1, 9))}
    everything = score([UUID(int=number) for number in range(8)], evidence)
    assert (everything.recall, everything.hit) == (1, 1)


def scores_of(*recalls: float) -> list[list[Score]]:
    """Scores of as many questions, the same at every cut."""
    return [[Score(recall, float(recall > 0), recall) for _ in cuts()] for recall in recalls]


def test_estimates_are_means_with_intervals_that_are_the_same_each_time() -> None:
    pytest.importorskip("numpy")
    ours, theirs = [0.25, 0.5, 0.75, 1.0] * 25, [0.0, 0.25, 0.5, 0.75] * 25
    scores = {way: scores_of(*(ours if way == "hydrator" else theirs)) for way in WAYS}
    figures, ahead = _estimates(scores, 2_000)
    assert (figures, ahead) == _estimates(scores, 2_000)
    told = figures["hydrator"]["k=5"]["recall"]
    assert told.mean == 0.625
    # The standard error is 0.2795 / 10; a 95% interval is 1.96 of them to each side.
    assert told.low == pytest.approx(0.625 - 1.96 * 0.02795, abs=0.01)
    assert told.high == pytest.approx(0.625 + 1.96 * 0.02795, abs=0.01)
    # Always ahead by as much, so there is no doubt about it, though the intervals overlap.
    assert ahead["vector"]["k=5"]["recall"] == Estimate(0.25, 0.25, 0.25)
    assert figures["vector"]["k=5"]["recall"].high > 0.375
    assert "hydrator" not in ahead


def test_one_question_has_an_interval_of_one_point() -> None:
    pytest.importorskip("numpy")
    figures, _ = _estimates({way: scores_of(0.5) for way in WAYS}, 100)
    assert figures["everything"]["budget=1000"]["mrr"] == Estimate(0.5, 0.5, 0.5)


@pytest.fixture
def result() -> EvalResult:
    pytest.importorskip("numpy")
    told = EvalResult(4, 5, 2, 1_234, "toy", "simple", 100)
    told.figures, told.ahead = _estimates({way: scores_of(0, 0.5, 1, 1) for way in WAYS}, 100)
    return told


def test_the_table_and_the_json_tell_every_figure(result: EvalResult) -> None:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(eval_table(result))
    told = capture.get()
    assert told.count("0.625") == len(WAYS) * len(cuts()) * 2  # recall and MRR
    assert told.count("0.750") == len(WAYS) * len(cuts())
    assert "1,234 live memories" in told
    json = result.to_json()
    assert json["figures"].keys() == set(WAYS)
    for ways in json["figures"].values():
        assert list(ways) == list(cuts())
        assert all(set(ways[cut]) == set(METRICS) for cut in cuts())
    assert json["figures"]["vector"]["k=20"]["hit"]["mean"] == 0.75
    assert set(json["ahead"]["vector"]["k=20"]["hit"].values()) == {0}


def test_the_plot_is_a_png(result: EvalResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(result, tmp_path / "recall.png")
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")


def test_a_package_that_is_absent_is_named_with_its_extra(
    result: EvalResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HydratorError, match=r"matplotlib is not installed\. .*hydrator\[bench\]"):
        plot(result, tmp_path / "recall.png")
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(HydratorError, match=r"numpy is not installed\. .*hydrator\[bench\]"):
        _estimates({}, 100)


GOOD = '{"question": "q", "namespaces": ["n"], "evidence": ["e", {"b": 1, "a": 2}, "e", {"a": 2, "b": 1}]}'


def test_questions_are_read_and_evidence_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f'{GOOD}\n\n  \n{GOOD[:-1]}, "note": 7}}\n', "utf-8")
    first, second = read_questions(path)
    assert (first.text, first.namespaces, len(first.evidence)) == ("q", ("n",), 2)
    assert (first.where, second.where) == ("set.jsonl:1", "set.jsonl:4")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b"[" * 100_000, "set.jsonl:2"),
        (b"[]", "is not a JSON object"),
        (b'{"namespaces": ["n"], "evidence": ["e"]}', "the question None"),
        (b'{"question": " ", "namespaces": ["n"], "evidence": ["e"]}', "the question ' '"),
        (b'{"question": 7, "namespaces": ["n"], "evidence": ["e"]}', "the question 7"),
        (b'{"question": "q", "namespaces": "n", "evidence": ["e"]}', "the namespaces 'n', not a list"),
        (b'{"question": "q", "namespaces": [], "evidence": ["e"]}', r"the namespaces \[\]"),
        (b'{"question": "q", "namespaces": ["n", null], "evidence": ["e"]}', "None"),
        (b'{"question": "q", "namespaces": ["n"]}', "the evidence None"),
        (b'{"question": "q", "namespaces": ["n"], "evidence": []}', r"the evidence \[\]"),
        (b'{"question": "q", "namespaces": ["n"], "evidence": [7]}', r"the evidence \[7\]"),
        (b'{"question": "q", "namespaces": ["n"], "evidence": [{}]}', r"the evidence \[{}\]"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_bad_line_is_named_with_the_way_out(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + line + b"\n")
    with pytest.raises(HydratorError, match=words) as raised:
        read_questions(path)
    assert str(raised.value).startswith("set.jsonl:2 ")
    assert 'A line is {"question"' in str(raised.value)


def test_a_file_without_questions_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text("\n")
    with pytest.raises(HydratorError, match=r"set\.jsonl holds no questions"):
        read_questions(tmp_path / "set.jsonl")
