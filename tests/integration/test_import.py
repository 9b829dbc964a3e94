from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from hydrator import (
    EmbedderError,
    MemoryStore,
    ModelMismatch,
    StoreUnavailable,
    WordLlamaEmbedder,
    WrongDimensions,
)
from hydrator.importing import ImportSummary, import_memories

DATA = Path(__file__).parents[3] / "shared" / "data" / "memory"


def counts(summary: ImportSummary) -> tuple[int, int, int, int]:
    return summary.imported, summary.unchanged, summary.superseded, summary.skipped


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    directory = tmp_path / "notes"
    directory.mkdir()
    (directory / "MEMORY.md").write_text("- [Alpha](a.md) — first\n- [Beta](b.md) — second\n")
    (directory / "a.md").write_text(
        "---\nname: a\ndescription: about a\ntype: lesson\n---\nThe letter alpha."
    )
    (directory / "b.md").write_text("The letter beta.")
    return directory


def headings(store: MemoryStore) -> list[str]:
    return sorted(entry.heading for entry in store.compact_index(["n"]))


def test_two_files_that_say_the_same_are_one_memory(
    store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    (notes / "MEMORY.md").write_text("- [Same](a.md)\n- [Same](b.md)\n")
    for name in ("a.md", "b.md"):
        (notes / name).write_text("The same letter.")
    assert counts(import_memories(store, embedder, notes, "n")) == (1, 1, 0, 0)
    assert headings(store) == ["Same"]
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 2, 0, 0)
    # What one of them says later is its own.
    (notes / "b.md").write_text("Another letter.")
    assert counts(import_memories(store, embedder, notes, "n")) == (1, 1, 0, 0)
    assert headings(store) == ["Same", "Same"]


def test_twenty_writers_import_the_same_directory(
    store: MemoryStore, text_url: str, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    for number in range(60):
        (notes / f"n{number}.md").write_text(f"Note {number} of sixty.")

    def write(number: int) -> ImportSummary:
        with MemoryStore(text_url) as own:
            return import_memories(own, embedder, notes, "n")

    with ThreadPoolExecutor(20) as pool:
        summaries = list(pool.map(write, range(20)))
    assert sum(summary.imported for summary in summaries) == len(headings(store)) == 62
    assert all(sum(counts(summary)) == 62 and not summary.skipped for summary in summaries)


def test_import_again_changes_nothing(store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path) -> None:
    assert counts(import_memories(store, embedder, notes, "n")) == (2, 0, 0, 0)
    before = store.compact_index(["n"])
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 2, 0, 0)
    assert store.compact_index(["n"]) == before
    [memory] = [
        memory
        for memory in store.fetch_memories(["n"], [entry.memory_id for entry in before])
        if memory.heading == "Alpha"
    ]
    assert (memory.memory_type, memory.content, memory.embedding_model) == (
        "lesson",
        "The letter alpha.",
        embedder.model,
    )
    assert memory.metadata["description"] == "about a"
    assert memory.metadata["summary"] == "first"
    assert memory.metadata["source"]["name"] == "notes"


def test_a_changed_file_supersedes(store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path) -> None:
    import_memories(store, embedder, notes, "n")
    old = {entry.heading: entry.memory_id for entry in store.compact_index(["n"])}
    (notes / "b.md").write_text("The letter beta, changed.")
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 1, 1, 0)
    new = {entry.heading: entry.memory_id for entry in store.compact_index(["n"])}
    assert new["Alpha"] == old["Alpha"]
    [beta] = store.fetch_memories(["n"], [new["Beta"]])
    assert (beta.supersedes, beta.content) == (old["Beta"], "The letter beta, changed.")
    # And back again: an older state is a change too.
    (notes / "b.md").write_text("The letter beta.")
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 1, 1, 0)


def test_what_was_forgotten_stays_forgotten_until_it_changes(
    store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    import_memories(store, embedder, notes, "n")
    [beta] = [entry.memory_id for entry in store.compact_index(["n"]) if entry.heading == "Beta"]
    store.forget("n", beta)
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 2, 0, 0)
    assert headings(store) == ["Alpha"]
    (notes / "b.md").write_text("News of beta.")
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 1, 1, 0)
    assert headings(store) == ["Alpha", "Beta"]


def test_what_an_agent_superseded_is_not_brought_back(
    store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    import_memories(store, embedder, notes, "n")
    [beta] = [entry.memory_id for entry in store.compact_index(["n"]) if entry.heading == "Beta"]
    newer = store.remember("n", "Beta, as the agent knows it", supersedes=beta)
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 2, 0, 0)
    assert headings(store) == ["Alpha", "Beta, as the agent knows it"]
    (notes / "b.md").write_text("News of beta.")
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 1, 1, 0)
    assert headings(store) == ["Alpha", "Beta"]
    [beta] = [entry.memory_id for entry in store.compact_index(["n"]) if entry.heading == "Beta"]
    assert store.fetch_memories(["n"], [beta])[0].supersedes == newer


def test_sources_and_namespaces_are_kept_apart(
    store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    assert counts(import_memories(store, embedder, notes, "n")) == (2, 0, 0, 0)
    assert counts(import_memories(store, embedder, notes, "other")) == (2, 0, 0, 0)
    (notes / "b.md").write_text("Beta of another source.")
    assert counts(import_memories(store, embedder, notes, "n", source="elsewhere")) == (1, 1, 0, 0)
    assert headings(store) == ["Alpha", "Beta", "Beta"]


def test_every_problem_is_named_and_the_rest_is_imported(
    store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    long = "x" * 201
    with (notes / "MEMORY.md").open("a") as index:
        index.write(f"- [{long}](long.md)\n- [Gone](gone.md)\n- [Nul](nul.md)\n- [Yaml](yaml.md)\n")
    (notes / "long.md").write_text("A heading that is too long.")
    (notes / "nul.md").write_bytes(b"a\0b")
    (notes / "latin.md").write_bytes("café".encode("latin-1"))
    (notes / "yaml.md").write_text("---\nname: [\n---\nText of yaml.")
    (notes / "empty.md").write_text("")
    (notes / "type.md").write_text("---\ntype: no such, type\n---\nText.")
    summary = import_memories(store, embedder, notes, "n")
    assert counts(summary) == (4, 0, 0, 5)
    told = {problem.name: problem.message for problem in summary.problems if problem.skipped}
    assert sorted(told) == ["MEMORY.md", "empty.md", "latin.md", "nul.md", "type.md"]
    assert "content is blank" in told["empty.md"]
    assert "'no such, type'" in told["type.md"]
    kept = {problem.name: problem.message for problem in summary.problems if not problem.skipped}
    assert "heading has 201 characters" in kept["long.md"]
    assert "imported as 'long'" in kept["long.md"]
    assert headings(store) == ["Alpha", "Beta", "Yaml", "long"]
    assert counts(import_memories(store, embedder, notes, "n")) == (0, 4, 0, 5)


def test_json_lines_bring_their_own_fields(
    store: MemoryStore, embedder: WordLlamaEmbedder, tmp_path: Path
) -> None:
    lines = [
        {"heading": "Pinned", "pinned": True, "confidence": 0.25, "token_count": 7, "memory_type": "lesson"},
        {"heading": "Own vector", "embedding": [1.0] + [0.0] * 255},
        {"heading": "Bad confidence", "confidence": "high"},
        {"heading": "Bad object", "confidence": {"a": 1}},
        {"heading": "Bad vector", "embedding": [1, 2]},
        {"heading": "Lone \ud800 surrogate"},
        {"heading": "Naive", "expires_at": "2030-01-31T12:00:00"},
    ]
    path = tmp_path / "memories.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    summary = import_memories(store, embedder, path, "n")
    assert counts(summary) == (2, 0, 0, 5)
    assert sorted(problem.name for problem in summary.problems) == [
        f"memories.jsonl:{n}" for n in (3, 4, 5, 6, 7)
    ]
    own, pinned = store.fetch_memories(
        ["n"],
        [e.memory_id for e in sorted(store.compact_index(["n"]), key=lambda entry: entry.heading)],
    )
    assert (pinned.pinned, pinned.confidence, pinned.tokens, pinned.memory_type) == (True, 0.25, 7, "lesson")
    assert (pinned.embedding_model, own.embedding_model) == (embedder.model, None)


def test_an_embedder_that_does_not_fit_writes_nothing(store: MemoryStore, notes: Path) -> None:
    class Small(WordLlamaEmbedder):
        dimensions = 3

    class Other(WordLlamaEmbedder):
        model = "other"

    with pytest.raises(WrongDimensions, match=r"3 dimensions.* 256"):
        import_memories(store, Small(), notes, "n")
    import_memories(store, Other(), notes, "n")
    with pytest.raises(ModelMismatch, match=r'"other".*wordllama'):
        import_memories(store, WordLlamaEmbedder(), notes, "n", source="again")
    assert len(store.compact_index(["n"])) == 2


def test_text_that_cannot_be_embedded_is_skipped(store: MemoryStore, notes: Path) -> None:
    class Picky(WordLlamaEmbedder):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            if "Beta" in texts[0]:
                raise EmbedderError("no vector for this")
            return super().embed(texts)

    summary = import_memories(store, Picky(), notes, "n")
    assert counts(summary) == (1, 0, 0, 1)
    assert [(problem.name, problem.message) for problem in summary.problems] == [
        ("b.md", "no vector for this")
    ]


def test_an_interrupted_import_is_finished_by_the_next(
    store: MemoryStore, text_url: str, embedder: WordLlamaEmbedder, tmp_path: Path
) -> None:
    for number in range(120):
        (tmp_path / f"{number:03}.md").write_text(f"Memory number {number}.")

    class Dies(WordLlamaEmbedder):
        calls = 0

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            self.calls += 1
            if self.calls == 70:
                raise KeyboardInterrupt
            return super().embed(texts)

    with pytest.raises(KeyboardInterrupt), MemoryStore(text_url) as other:
        import_memories(other, Dies(), tmp_path, "n")
    assert len(store.compact_index(["n"])) == 50
    summary = import_memories(store, embedder, tmp_path, "n")
    assert counts(summary) == (70, 50, 0, 0)
    assert len(store.compact_index(["n"])) == 120


def test_progress_reaches_the_total(store: MemoryStore, embedder: WordLlamaEmbedder, notes: Path) -> None:
    seen: list[tuple[int, int]] = []
    import_memories(store, embedder, notes, "n", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (2, 2)]


def test_concurrent_imports_of_one_directory_leave_no_duplicate(
    store: MemoryStore, text_url: str, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    for number in range(60):
        (notes / f"{number:03}.md").write_text(f"Memory number {number}.")
    summaries: list[ImportSummary] = []

    def run() -> None:
        with MemoryStore(text_url) as own:
            summaries.append(import_memories(own, embedder, notes, "n"))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(summaries) == 6
    assert sum(summary.imported for summary in summaries) == 62
    assert sum(summary.superseded for summary in summaries) == 0
    assert len(store.compact_index(["n"])) == 62


def test_a_lost_connection_is_an_error_not_a_problem(
    store: MemoryStore, text_url: str, embedder: WordLlamaEmbedder, notes: Path
) -> None:
    class Cuts(WordLlamaEmbedder):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            connection.execute("select pg_terminate_backend(%s)", [backend])
            return super().embed(texts)

    victim = psycopg.connect(text_url)
    [backend] = victim.execute("select pg_backend_pid()").fetchone() or [None]
    with psycopg.connect(text_url, autocommit=True) as connection, pytest.raises(StoreUnavailable):
        import_memories(MemoryStore(victim), Cuts(), notes, "n")
    assert victim.closed


@pytest.mark.skipif(not DATA.is_dir(), reason="the directories to try imports on are not here")
@pytest.mark.parametrize(
    ("name", "imported", "skipped"),
    [("decoder-project", 108, 0), ("simulation-project", 36, 1), ("tool-project", 19, 0)],
)
def test_real_directories(
    store: MemoryStore, embedder: WordLlamaEmbedder, name: str, imported: int, skipped: int
) -> None:
    assert counts(import_memories(store, embedder, DATA / name, name)) == (imported, 0, 0, skipped)
    assert counts(import_memories(store, embedder, DATA / name, name)) == (0, imported, 0, skipped)
    assert len(store.compact_index([name])) == imported
