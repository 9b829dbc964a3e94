"""``hydrator doctor``: it finds what is wrong, writes nothing, and its mends mend."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hydrator import InstallationError, cli, doctor, indexes
from hydrator.doctor import Finding


def examined(url: str, samples: int = 5) -> list[Finding]:
    return list(doctor.examine(url, samples=samples))


def troubles(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings if finding.state != "ok"}


def mend(url: str, statement: str) -> None:
    """Do what a reader of the finding would do."""
    if statement.startswith("hydrator db index create "):
        assert indexes.create_index(url, statement.rsplit(" ", 1)[-1])
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for line in statement.splitlines():
            connection.execute(line.encode())


def fill(db: psycopg.Connection, size: int = 1_200) -> None:
    db.execute(
        """
        insert into hydrator.memories (memory_id, namespace, heading, content, embedding, embedding_model)
        select md5('h' || i)::uuid, case when mod(i, 100) = 0 then 'small' else 'it''s "large"' end, 'h' || i, repeat('c', 700),
          array[sin(i), cos(i * 1.7), sin(i * 0.3), 0.1]::vector, 'm'
        from generate_series(1, %s) i
        """,
        [size],
    )


def test_each_mend_mends(db: psycopg.Connection, url: str) -> None:
    large = """it's "large\""""
    db.execute("alter table hydrator.memories set (fillfactor = 10, autovacuum_enabled = off)")
    fill(db)  # a row a page
    found = troubles(examined(url))
    assert set(found) == {f"namespace {large!r}", "Tier 1"}
    assert found[f"namespace {large!r}"].mend == "hydrator db index create bits"
    assert "1,188 live memories" in found[f"namespace {large!r}"].what
    assert found["Tier 1"].what.startswith(
        "0% of 1,200 pages are all-visible, and 1,188 index entries took 1,188"
    )
    for finding in found.values():
        mend(url, finding.mend)
    alter = sql.SQL("alter database {} set hydrator.").format(sql.Identifier(db.info.dbname))
    db.execute(alter + sql.SQL("rerank_factor = 1"))
    # Four signs tell these vectors apart badly, until the candidates are many.
    seen = []
    while found := troubles(examined(url)):
        assert set(found) == {f"recall in {large!r}"}
        seen.append(found.popitem()[1])
        mend(url, seen[-1].mend)
    assert 0 < len(seen) < 9
    assert seen[0].what.startswith("bits has recall@10 0.")
    assert "hydrator.rerank_factor = 2;" in seen[0].mend

    db.execute(alter + sql.SQL("bits_max_rows = 100"))
    found = troubles(examined(url))
    assert {subject: finding.mend for subject, finding in found.items()} == {
        f"namespace {large!r}": "hydrator db index create hnsw"
    }
    mend(url, "hydrator db index create hnsw")
    after = examined(url)
    assert not troubles(after)
    told = [finding.what for finding in after if finding.subject.startswith("recall")]
    assert [(what.split()[0], "not in use" in what) for what in told] == [("bits", True), ("hnsw", False)]


def test_injuries_are_found_and_mended(db: psycopg.Connection, url: str) -> None:
    fill(db)
    indexes.create_index(url, "bits")
    db.execute("analyze hydrator.memories")
    name = db.info.dbname
    database = sql.Identifier(name)
    db.execute(sql.SQL("alter database {} set hydrator.rerank_factor = 'many'").format(database))
    db.execute(sql.SQL("alter database {} set hydrator.rerank = 7").format(database))
    db.execute("drop index hydrator.memories_live_idx, hydrator.memories_supersedes_key")
    db.execute(
        "update pg_index set indisvalid = false where indexrelid = 'hydrator.memories_bits_idx'::regclass"
    )
    db.execute("alter table hydrator.memories alter column embedding set storage external")
    db.execute("alter table hydrator.memories disable trigger guard_memory")
    db.execute("alter table hydrator.memories disable trigger count_inserted")
    db.execute(
        "insert into hydrator.memories (namespace, heading, content) values ('small', 'x', 'c'), ('$mend$', 'x', 'c')"
    )
    db.execute("alter table hydrator.memories enable trigger count_inserted")
    db.execute(
        "update hydrator.memories set deleted_at = now() - interval '40 days' where heading <> 'x' and memory_id < '88888888-0000-0000-0000-000000000000'"
    )
    found = troubles(examined(url, samples=0))
    assert {subject: finding.state for subject, finding in found.items()} == {
        "setting hydrator.rerank_factor": "problem",
        "setting hydrator.rerank": "advice",
        "index memories_live_idx": "problem",
        "index memories_supersedes_key": "problem",
        "index memories_bits_idx": "problem",
        "trigger guard_memory": "problem",
        "counts": "problem",
        "storage": "advice",
        "dead memories": "advice",
    }
    counts = [finding for finding in examined(url, samples=0) if finding.subject == "counts"]
    assert len(counts) == 2
    for finding in [*found.values(), *counts]:
        mend(url, finding.mend)
    after = examined(url, samples=0)
    assert not troubles(after)
    assert [finding.what for finding in after if finding.subject == "counts"] == [
        "Right in the 3 namespaces that were counted."
    ]


def test_it_writes_nothing_and_says_what_fails_outright(
    db: psycopg.Connection, url: str, empty_url: str
) -> None:
    fill(db, 50)
    db.execute("update hydrator.memories set embedding_model = 'other' where heading = 'h7'")
    db.execute("update hydrator.alembic_version set version_num = '0000'")
    for namespace in "abcde":  # as a load without triggers leaves it
        db.execute("insert into hydrator.namespace_counts values (%s, 7, 3)", [namespace])
    found = troubles(examined(url))

    def written() -> int:
        """Tell how many bytes the server wrote while the store was examined."""
        (before,) = db.execute("select pg_current_wal_lsn()").fetchone()
        examined(url)
        return db.execute("select pg_current_wal_lsn() - %s::pg_lsn", [before]).fetchone()[0]

    assert min(written() for _ in range(5)) == 0  # the server itself writes now and then
    assert set(found) == {"schema", "models", "counts"}
    assert {finding.state for finding in found.values()} == {"problem"}
    assert found["schema"].mend == "hydrator db upgrade"
    assert "of 'm' and of 'other'" in found["models"].what
    mend(url, found["counts"].mend)
    assert "counts" not in troubles(examined(url))

    with pytest.raises(InstallationError):
        doctor.examine(empty_url)


@pytest.fixture
def role(db: psycopg.Connection, url: str) -> Iterator[str]:
    name = f"app_{uuid.uuid4().hex[:8]}"
    db.execute(f"create role {name} login password 'secret'")
    db.execute(f"grant usage on schema hydrator to {name}")
    db.execute(f"grant execute on all functions in schema hydrator to {name}")
    db.execute(f"grant select on hydrator.alembic_version, hydrator.installed to {name}")
    yield name
    db.execute(f"drop owned by {name}; drop role {name}")


def test_a_role_sees_what_it_may(db: psycopg.Connection, url: str, role: str) -> None:
    fill(db, 50)
    own = make_conninfo(url, user=role, password="secret")
    found = troubles(examined(own))
    assert {"counts", "models", "dead memories"} <= set(found)
    assert found["counts"].what == "Not examined: permission denied for table memories."
    mend(url, found["counts"].mend)
    assert not troubles(examined(own))
    with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(own) as connection:
        connection.execute("delete from hydrator.memories")


def test_the_command_prints_problems_first_and_mends_to_copy(
    db: psycopg.Connection, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(db, 50)
    db.execute("drop index hydrator.memories_pinned_idx")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hydrator", "doctor", "--url", url, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    first, second, third, *_ = run().splitlines()
    assert first.split() == ["problem", "index", "memories_pinned_idx", "It", "is", "missing."]
    assert second.startswith("  create index concurrently memories_pinned_idx on hydrator.memories (")
    assert second.endswith(";")
    assert third.startswith("ok ")
    told = json.loads(run("--json"))
    assert (told[0]["state"], told[0]["mend"]) == ("problem", second.strip())
