from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hydrator.memory_files import Reading, read_source


def write(directory: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return directory


def problems(reading: Reading) -> dict[str, str]:
    return {problem.name: problem.message for problem in reading.problems}


def test_entry_front_matter_and_content(tmp_path: Path) -> None:
    write(
        tmp_path / "notes",
        {
            "MEMORY.md": "# Index\n\n- [Deploys run on Fridays](deploys.md) — after 15:00.\n",
            "deploys.md": (
                "---\nname: deploys\ndescription: when we deploy\ntype: Feedback\nowner: ops\n---\n"
                "\nFridays.\n"
            ),
        },
    )
    reading = read_source(tmp_path / "notes")
    assert reading.problems == ()
    assert reading.source == "notes"
    [memory] = reading.memories
    assert memory.key == memory.name == "deploys.md"
    assert memory.headings == ("Deploys run on Fridays", "deploys", "deploys")
    assert memory.content == "Fridays."
    assert memory.fields == {
        "memory_type": "feedback",
        "metadata": {
            "name": "deploys",
            "description": "when we deploy",
            "summary": "after 15:00.",
            "owner": "ops",
        },
    }
    assert memory.text.split("\n") == [
        "Deploys run on Fridays",
        "when we deploy",
        "after 15:00.",
        "Fridays.",
    ]


@pytest.mark.parametrize(
    ("front", "memory_type"),
    [
        ("type: project", "project"),
        ("metadata:\n  type: reference\n  since: 2024-01-31", "reference"),
        ("type: project\nmetadata:\n  type: reference", "project"),
        ("name: x", "semantic"),
        ("metadata: none", "semantic"),
    ],
)
def test_type_is_flat_or_nested(tmp_path: Path, front: str, memory_type: str) -> None:
    write(tmp_path, {"a.md": f"---\n{front}\n---\nText."})
    [memory] = read_source(tmp_path).memories
    assert memory.fields["memory_type"] == memory_type


def test_heading_falls_back_to_the_name_and_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"a-file.md": "Text.", "b-file.md": "---\nname: The name\n---\nText."})
    assert [memory.headings for memory in read_source(tmp_path).memories] == [
        ("a-file",),
        ("The name", "b-file"),
    ]


@pytest.mark.parametrize(
    ("line", "heading", "summary"),
    [
        ("- [A](a.md) — why", "A", "why"),
        ("* [A](a.md) - why", "A", "why"),
        ("  + [A](<a.md>): why", "A", "why"),
        ("- [A](./a.md)", "A", None),
        ("- [A [b] (c)](a.md#part) – why — how", "A [b] (c)", "why — how"),
        ("- [A](%61.md) — why", "A", "why"),
    ],
)
def test_forms_of_an_entry(tmp_path: Path, line: str, heading: str, summary: str | None) -> None:
    write(tmp_path, {"MEMORY.md": line, "a.md": "Text."})
    [memory] = read_source(tmp_path).memories
    assert memory.headings[0] == heading
    assert memory.fields["metadata"].get("summary") == summary


def test_what_is_wrong_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "MEMORY.md": (
                "- [Good](good.md)\n- [Gone](gone.md)\n- [Out](../out.md)\n"
                "- [Site](https://example.org/x.md)\n"
                "- [Again](good.md)\n- [Bytes](bytes.md)\n- [Nul](nul.md)\n"
                "- [Yaml](yaml.md)\n- [Open](open.md)\n"
            ),
            "good.md": "Text.",
            "unlisted.md": "Text.",
            "bytes.md": b"caf\xe9",
            "nul.md": "a\n\0",
            "yaml.md": "---\nname: x\ndescription: a: b\nmetadata:\n  type: lesson\n---\nText.",
            "open.md": "---\nname: x\nText.",
        },
    )
    reading = read_source(tmp_path)
    assert sorted(memory.name for memory in reading.memories) == [
        "good.md",
        "open.md",
        "unlisted.md",
        "yaml.md",
    ]
    assert [
        (problem.name, problem.message.partition(",")[0].partition(";")[0], problem.skipped)
        for problem in reading.problems
    ] == [
        ("MEMORY.md", "names good.md twice", False),
        ("MEMORY.md", "the entry 'Gone' names gone.md", True),
        ("MEMORY.md", "the entry 'Out' names ../out.md", True),
        ("bytes.md", "is not UTF-8: byte 3 is 0xe9", True),
        ("nul.md", "holds a NUL byte (line 2)", True),
        ("open.md", "has front matter that does not end", False),
        ("unlisted.md", "has no entry in MEMORY.md", False),
        ("yaml.md", "has bad front matter: mapping values are not allowed here (line 3)", False),
    ]
    [yaml] = [memory for memory in reading.memories if memory.name == "yaml.md"]
    assert yaml.fields == {"memory_type": "lesson", "metadata": {"name": "x", "description": "a: b"}}


def test_yaml_that_would_blow_up_is_refused(tmp_path: Path) -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"
    write(tmp_path, {"a.md": f"---\n{bomb}\n---\nText."})
    reading = read_source(tmp_path)
    assert "aliases are not allowed" in problems(reading)["a.md"]
    assert reading.memories[0].content == "Text."


def test_links_out_of_the_directory_are_none_of_its_memories(tmp_path: Path) -> None:
    write(tmp_path, {"secret.md": "Secret.", "notes/a.md": "Text."})
    (tmp_path / "notes" / "b.md").symlink_to(tmp_path / "secret.md")
    assert [memory.key for memory in read_source(tmp_path / "notes").memories] == ["a.md"]


def test_content_is_the_description_where_there_is_no_text(tmp_path: Path) -> None:
    write(tmp_path, {"a.md": "---\nname: a\ndescription: All there is.\n---\n"})
    assert read_source(tmp_path).memories[0].content == "All there is."


def test_digest_follows_all_that_is_told(tmp_path: Path) -> None:
    digests = set()
    for index, text in [
        ("- [A](a.md)", "Text."),
        ("- [B](a.md)", "Text."),
        ("- [A](a.md) — more", "Text."),
        ("- [A](a.md)", "Text!"),
        ("- [A](a.md)", "---\ntype: lesson\n---\nText."),
        ("- [A](a.md)", "---\ndescription: d\n---\nText."),
    ]:
        write(tmp_path, {"MEMORY.md": index, "a.md": text})
        digests.add(read_source(tmp_path).memories[0].digest)
    assert len(digests) == 6
    assert read_source(tmp_path).memories[0].digest in digests


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "memories.jsonl"
    path.write_bytes(
        b'{"heading": "A", "content": "Text.", "confidence": 0.5, "expires_at": "2030-01-31T12:00:00Z"}\n'
        b"\n"
        b'{"heading": "A"}\n'
        b'{"heading": "B", "key": "k", "metadata": {"a": 1}}\n'
        b'{"heading": "C", "key": "k"}\n'
        b"not json\n"
        b"[1]\n"
        b'{"content": "no heading"}\n'
        b'{"heading": "D", "colour": "red"}\n'
        b'{"heading": "E", "expires_at": "tomorrow"}\n'
        b'{"heading": "F", "metadata": []}\n'
        b'{"heading": "\xff"}\n'
        b'{"heading": "G"}'
    )
    reading = read_source(path)
    assert [(memory.key, memory.content) for memory in reading.memories] == [
        ("A", "Text."),
        ("A (2)", "A"),
        ("k", "B"),
        ("G", "G"),
    ]
    assert reading.memories[0].fields == {
        "confidence": 0.5,
        "expires_at": datetime(2030, 1, 31, 12, tzinfo=UTC),
        "metadata": {},
    }
    named = problems(reading)
    assert sorted(named) == sorted(f"memories.jsonl:{n}" for n in (5, 6, 7, 8, 9, 10, 11, 12))
    assert "colour" in named["memories.jsonl:9"]
    assert all(problem.skipped for problem in reading.problems)


def test_a_heading_that_is_all_there_is_is_embedded_once(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"heading": "Alpha"}\n{"heading": "Beta", "content": "more"}\n')
    assert [memory.text for memory in read_source(path).memories] == ["Alpha", "Beta\nmore"]
