from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydrator.compression import ABBREVIATIONS, compress

UNTOUCHED = [
    "`for example  **x**`",
    "```\n# for example\n\n\n**bold**\n```",
    "https://example.org/documentation?for=example#configuration",
    "/etc/configuration/*.conf",
    "src/database/parameter.py",
    "C:\\configuration\\database",
    "configuration.yaml",
    "maximum_parameter_count",
    "__init__.py",
    "*.py",
    "1,000,000",
    "v1.2.3-rc1",
    "192.168.0.1:5432",
    "2 * 3",
    "3 > 2",
    "p95 > 200",
    "`a` > `b`",
    "`a`*`b`",
    "a/b # c",
    "1 --- 2",
    "(`a/b  c`)",
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_is_never_touched(text: str) -> None:
    assert compress(f"Before {text} after") == f"Before {text} after"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("## A heading\n\n\nSome   text.  \n\n> quoted\n> > twice\n", "A heading\nSome text.\nquoted\ntwice"),
        ("**Why:** the *configuration* of the Database", "Why: the config of the DB"),
        ("For example, DATABASE Repositories", "E.g., DB Repos"),
        ("| a | b |\n|---|:--|\n| c | d |", "| a | b |\n| c | d |"),
        ("one\n\n---\n\n<!-- two -->three", "one\nthree"),
        ("***very*** strong", "very strong"),
        ("the database's configuration-file", "the database's configuration-file"),
        ("- item one\n- item two", "- item one\n- item two"),
        ("**`code`**, # C#", "`code`, # C#"),
        ("> # C# ##\n> a/b", "C#\na/b"),
        ("a <!-- of b/c and `d` -->e", "a e"),
        ("", ""),
    ],
)
def test_what_is_shortened(text: str, short: str) -> None:
    assert compress(text) == short


@given(
    st.lists(
        st.sampled_from([*UNTOUCHED, *ABBREVIATIONS, "**", "*", "#", ">", "`", "\n", " ", "a", "|--|"])
    ).map("".join)
)
def test_idempotent_and_never_longer(text: str) -> None:
    once = compress(text)
    assert compress(once) == once
    assert len(once) <= len(text)


@pytest.mark.parametrize(
    "text",
    ["漢" * 100_000, ">" * 100_000, "> # " * 25_000, "a" + " " * 100_000 + "b", "# a" + " #" * 50_000 + "b",
     "<!--" * 25_000, "<!" * 10_000 + "<!---->" + "---->" * 10_000, "|--" * 30_000, "a." * 50_000],
    ids=lambda text: repr(text[:6]),
)  # fmt: skip
def test_no_text_takes_quadratic_time(text: str) -> None:
    once = compress(text)  # in minutes or hours, if it did
    assert compress(once) == once
    assert len(once) <= len(text)


@given(st.text())
def test_any_text(text: str) -> None:
    once = compress(text)
    assert compress(once) == once
    assert sorted(re.findall(r"\d", once)) == sorted(re.findall(r"\d", text)) or "<!--" in text
