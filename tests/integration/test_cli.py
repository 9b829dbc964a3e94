from __future__ import annotations

import importlib.metadata
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from typer.testing import CliRunner

from hydrator import MemoryStore, cli


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(text_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as the shell would, on a fresh database."""
    monkeypatch.setenv("HYDRATOR_DATABASE_URL", text_url)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["hydrator", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


def test_from_remember_to_forget(run: Run) -> None:
    done = run("remember", "Deploys run on Fridays", "After 15:00.", "-n", "acme", "--confidence", "0.5")
    assert (done.code, done.err) == (0, "")
    first = done.out.strip()
    options = ["--metadata", '{"team": "ops"}', "--expires-at", "2100-01-01T00:00Z", "-t", "lesson", "--json"]
    rewritten = ["remember", "Deploys run on Mondays", "-", "-n", "acme", "--supersedes", first]
    second = run(*rewritten, *options, stdin="Since May.\n").json["memory_id"]
    assert [entry["memory_id"] for entry in run("index", "-n", "acme", "--json").json] == [second]
    assert "Deploys run on Mondays" in run("index", "-n", "acme").out

    [hit] = run("search", "when are deploys?", "-n", "acme", "--json").json
    assert (hit["memory_id"], hit["snippet"]) == (second, "Since May.")
    assert "Since May." in run("search", "when are deploys?", "-n", "acme").out
    assert run("search", "deploys", "-n", "acme", "--json", "-t", "episodic").json == []
    assert run("search", "deploys", "-n", "acme", "--json", "--metadata", '{"team": "dev"}').json == []
    assert run("search", "deploys", "-n", "acme", "--json", "--min-similarity", "0.999").json == []

    [memory] = run("fetch", second, first, "-n", "acme", "--json").json
    assert (memory["content"], memory["metadata"], memory["supersedes"]) == (
        "Since May.\n",
        {"team": "ops"},
        first,
    )
    fetched = run("fetch", second, first, "-n", "acme")
    assert "Since May." in fetched.out
    assert "1 of the ids" in fetched.err

    assert run("quarantine", second, "-n", "acme", "--reason", "[bold]odd").out == "In quarantine.\n"
    assert run("index", "-n", "acme", "--json").json == []
    told = run("quarantined", "-n", "acme").out
    assert second in told
    assert "[bold]odd" in told
    assert run("quarantined", "-n", "acme", "--json").json[0]["reason"] == "[bold]odd"
    assert run("quarantine", second, "-n", "acme").code == 1
    assert run("release", second, "-n", "acme").out == "Released.\n"
    assert run("release", second, "-n", "acme").code == 1

    nearly = run("remember", "Deploys run on Mondays", "Since May!", "-n", "acme").out.strip()
    [pair] = run("duplicates", "-n", "acme", "--distance", "0.2", "--json").json
    assert {pair["memory_id"], pair["other_memory_id"]} == {second, nearly}
    assert nearly in run("duplicates", "-n", "acme", "--distance", "0.2").out
    assert run("remember", "Deploys run on Mondays", "Since May!", "-n", "acme").out.strip() == nearly
    assert run("forget", nearly, "-n", "acme").code == 0

    assert run("forget", second, "-n", "acme").out == "Forgotten.\n"
    again = run("forget", second, "-n", "acme")
    assert (again.code, again.out) == (1, "")
    assert second in again.err
    assert run("index", "-n", "acme", "--json").json == []


def test_hydrate_prints_the_block_and_the_receipt_apart(run: Run) -> None:
    run("remember", "Deploys run on Fridays", "After 15:00.", "-n", "acme")
    run("remember", "Lunch is at noon", "Bring your own.", "-n", "acme")
    done = run("hydrate", "deploy the service", "-n", "acme", "--top-k", "2", "--budget", "20")
    assert done.code == 0
    assert done.out.count("<memory-index>") == done.out.count("</memory-context>") == 1
    assert "  After 15:00." in done.out
    assert "Bring your own." not in done.out
    assert "budget of 20" in done.err
    assert "would exceed the budget" in done.err
    assert "tokens" not in done.out

    told = run(
        "hydrate", "deploy the service", "-n", "acme", "--json", "--packing", "skip", "--index-budget", "0"
    ).json
    assert (told["index"], told["index_total"], told["ranked_by"]) == ([], 2, "exact+text")
    assert [memory["heading"] for memory in told["relevant"]] == [
        "Deploys run on Fridays",
        "Lunch is at noon",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["hydrate", "x", "-n", "a", "--packing", "squeeze"], 1, "packing is 'squeeze'"),
        (["hydrate", "x", "-n", "a", "--top-k", "-1"], 1, "top_k is -1"),
        (["hydrate", "x", "-n", "a", "--budget", "-1"], 1, "token_budget is -1"),
        (["hydrate", "", "-n", "a"], 1, "no vector for the text ''"),
        (["hydrate", "x"], 2, "--namespace"),
        (["hydrate", "x", "-n", "a", "--top-k", "many"], 2, "--top-k"),
        (["hydrate", "x", "-n", "a", "--metadata", "[1]"], 2, "not a JSON object"),
        (["hydrate", "x", "-n", "a", "--metadata", "{"], 2, "not JSON"),
        (["remember", "a\nb", "-n", "a"], 1, "heading is not one line"),
        (["remember", "x", "-n", "a", "--expires-at", "2030-01-01T00:00"], 1, "without a time zone"),
        (["remember", "x", "-n", "a", "--expires-at", "soon"], 2, "soon"),
        (["remember", "x", "-n", "a", "--supersedes", str(UUID(int=0))], 1, "no memory 0000"),
        (["forget", "x", "-n", "a"], 1, 'uuid: "x"'),
        (["fetch", "x", "-n", "a"], 1, 'uuid: "x"'),
        (["import", "nowhere", "-n", "a"], 2, "nowhere"),
        (["index", "-n", "a", "--url", "postgresql://127.0.0.1:1/none"], 1, "127.0.0.1"),
        (["index", "-n", "a", "--url", "no address"], 1, "address cannot be read"),
        (["db", "upgrade", "--dimensions", "8"], 1, "256"),
        (["db", "upgrade", "0099"], 1, "0099"),
        (["nonsense"], 2, "nonsense"),
        (["db", "downgrade", "base"], 1, "Abort"),
    ],
)  # fmt: skip
def test_errors_are_one_clear_line(run: Run, arguments: list[str], code: int, words: str) -> None:
    done = run(*arguments)
    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.out.strip() == ""
    if code == 1 and words != "Abort":
        assert len(done.err.splitlines()) == 1


def test_import_reports_and_counts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Alpha.")
    (tmp_path / "b.md").write_bytes(b"\xff")
    done = run("import", str(tmp_path), "-n", "acme")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "1 imported, 0 unchanged, 0 superseded, 1 skipped."
    assert "b.md is not UTF-8" in done.out
    told = run("import", str(tmp_path), "-n", "acme", "--json").json
    assert (told["imported"], told["unchanged"], told["skipped"]) == (0, 1, 1)
    assert {problem["name"] for problem in told["problems"]} == {"MEMORY.md", "b.md"}


def test_demo_explains_itself_and_can_be_run_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    first = run("demo")
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    shown = readme.partition("$ hydrator demo\n")[2].partition("```")[0].splitlines()
    printed = {line.rstrip() for line in (first.out + first.err).splitlines()}
    assert [line for line in shown if line not in printed and line != "…"] == []
    assert first.code == 0
    assert "<memory-context>" in first.out
    for words in (
        "index",
        "recalled",
        "dropped",
        "distance",
        "would exceed the budget",
        "Loading every memory",
    ):
        assert words in first.err
    assert "0 imported" in run("demo").err
    assert len(run("index", "-n", "hydrator-demo", "--json").json) >= 40


def test_db_commands(run: Run, text_url: str) -> None:
    assert run("db", "current", "--json").json == {
        "revision": "0001",
        "dimensions": 256,
        "vector_type": "vector",
        "distance": "cosine",
        "extension_schema": "public",
        "text_search_config": "english",
    }
    assert "256" in run("db", "current").out
    assert run("db", "url").out.strip() == text_url
    assert run("db", "downgrade", "base", "--yes").code == 0
    missing = run("index", "-n", "a")
    assert (missing.code, "hydrator db upgrade" in missing.err) == (1, True)
    assert (
        run("db", "upgrade", "--dimensions", "3", "--distance", "l2").out
        == "The schema is at revision 0001.\n"
    )
    assert run("db", "current", "--json").json["distance"] == "l2"
    wrong = run("search", "x", "-n", "a")
    assert (wrong.code, "3 dimensions" in wrong.err) == (1, True)


def test_the_module_is_the_command_and_tells_its_version() -> None:
    told = subprocess.run([sys.executable, "-m", "hydrator", "--version"], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == (f"hydrator {importlib.metadata.version('hydrator')}\n", "")


def test_every_command_helps_with_an_example() -> None:
    runner = CliRunner()
    for command in [
        "import",
        "remember",
        "forget",
        "quarantine",
        "release",
        "quarantined",
        "duplicates",
        "db secure",
        "index",
        "search",
        "fetch",
        "hydrate",
        "db upgrade",
        "db url",
    ]:
        shown = runner.invoke(cli.app, [*command.split(), "--help"])
        assert shown.exit_code == 0
        assert f"hydrator {command}" in shown.output or "psql" in shown.output
        assert "Example:" in shown.output


def test_text_that_looks_like_markup_is_shown_as_it_is(run: Run) -> None:
    memory_id = run("remember", "[bold]not bold[/] [red]", "[link=x]text[/link]", "-n", "[a]").out.strip()
    assert "[bold]not bold[/] [red]" in run("index", "-n", "[a]").out
    assert "[link=x]text[/link]" in run("fetch", memory_id, "-n", "[a]").out
    assert "[link=x]text[/link]" in run("search", "text", "-n", "[a]").out
    assert "[bold]not bold[/] [red]" in run("hydrate", "text", "-n", "[a]").err


def test_the_python_store_reads_what_the_command_line_wrote(run: Run, text_url: str) -> None:
    memory_id = run("remember", "Shared", "-n", "acme").out.strip()
    with psycopg.connect(text_url) as connection:
        store = MemoryStore(connection)
        assert [str(memory.memory_id) for memory in store.fetch_memories(["acme"], [memory_id])] == [
            memory_id
        ]
        store.forget("acme", memory_id)
        connection.rollback()
    assert len(run("index", "-n", "acme", "--json").json) == 1


def test_upgrade_is_refused_with_the_statement_for_a_superuser(run: Run, empty_url: str) -> None:
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("drop role if exists hydrator_plain")
        connection.execute("create role hydrator_plain login password 'plain'")
        connection.execute("create schema hydrator authorization hydrator_plain")
        try:
            plain = psycopg.conninfo.make_conninfo(empty_url, user="hydrator_plain", password="plain")
            done = run("db", "upgrade", "--url", plain)
            assert done.code == 1
            assert "create extension vector with schema public;" in done.err
        finally:
            connection.execute("drop schema hydrator")
            connection.execute("drop role hydrator_plain")
