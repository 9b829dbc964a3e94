"""The README's example of an agent's turn is run, against a fresh database."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hydrator import MemoryStore, WordLlamaEmbedder
from hydrator.addresses import URL_VARIABLE

README = Path(__file__).parents[2] / "README.md"

MEMORIES = {
    "Deploys run on Mondays": "Since May; Fridays were too risky.",
    "Lunch is at noon": "Except on Fridays.",
    "The staging database is reset every night": "At 02:00 UTC, from an anonymised copy.",
}


def examples() -> list[str]:
    section = re.search(
        r"^## An agent's turn\n(.*?)^## ", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert section is not None
    return re.findall(r"^```python\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)


def test_an_agents_turn(
    store: MemoryStore,
    text_url: str,
    embedder: WordLlamaEmbedder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for heading, content in MEMORIES.items():
        [vector] = embedder.embed([f"{heading}\n{content}"])
        store.remember("acme", heading, content, embedding=vector, embedding_model=embedder.model)
    monkeypatch.setenv(URL_VARIABLE, text_url)

    eager, just_in_time = examples()
    names: dict[str, Any] = {}
    exec(eager, names)
    printed = capsys.readouterr().out
    assert printed.startswith("{'system': ")  # and nothing that failed

    request = names["request"]("And when was it last on a Friday?")
    [system, index] = request["system"]
    assert index["cache_control"] == {"type": "ephemeral"}
    assert index["text"].startswith("<memory-index>\n")
    assert sorted(re.findall(r"^- (.+) \(semantic, 1\.00\)$", index["text"], re.MULTILINE)) == sorted(
        MEMORIES
    )
    assert repr(index) in printed  # the head stays the same from turn to turn
    [message] = request["messages"]
    [context, task] = message["content"]
    assert context["text"].startswith("<memory-context>\n")
    assert "\nuser: When can I deploy?\n" in context["text"]
    assert context["text"].index("user: ") < context["text"].index("# Deploys run on Mondays (")
    assert task["text"] == "And when was it last on a Friday?"

    exec(just_in_time, names)
    assert capsys.readouterr().out == "Since May; Fridays were too risky.\n"

    # A store that is gone: what is left is the conversation, and it is told.
    names["store"].close()
    monkeypatch.setenv(URL_VARIABLE, "postgresql://127.0.0.1:1/none")
    degraded = names["request"]("Still there?")
    assert capsys.readouterr().out.startswith("without store: ")
    assert degraded["system"] == [system]
    [context, task] = degraded["messages"][0]["content"]
    assert "\nuser: And when was it last on a Friday?\n" in context["text"]
    assert "Mondays" not in context["text"]
    assert "Memory cannot be read right now" in names["run_tool_call"](
        names["retrieval"], "recall", {"query": "deploys"}
    )
