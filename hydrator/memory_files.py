"""Reading memories from files: the index-file pattern and JSON Lines. No database here.

The index-file pattern is a directory with a ``MEMORY.md`` of one-line entries
(``- [Heading](file.md) — summary``) beside one Markdown file a memory, with front matter
(``name``, ``description``, and ``type``, flat or under ``metadata:``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

INDEX_FILE = "MEMORY.md"

_ENTRY = re.compile(
    r"^\s*[-*+]\s+\[(?P<heading>.+?)\]\(<?(?P<target>[^()<>]+?)>?\)\s*(?:[—–:-]+\s*)?(?P<summary>.*)$"
)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?P<yaml>.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)

# Front matter that is not YAML (a colon in a description will do) is still told line by line.
_PLAIN_LINE = re.compile(r"^\s*(?P<key>name|description|type):[ \t]*(?P<value>\S.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileMemory:
    """A memory as a file tells it; ``key`` names it within its source, ``name`` to a person."""

    key: str
    name: str
    headings: tuple[str, ...]
    """Where there are several, the first that the database takes becomes the heading."""
    content: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``remember``, without the embedding."""

    @property
    def digest(self) -> str:
        """A hash of all that is remembered: another one means the memory has changed."""
        told = [self.headings, self.content, sorted(self.fields.items())]
        return hashlib.sha256(json.dumps(told, default=str, sort_keys=True).encode()).hexdigest()

    @property
    def text(self) -> str:
        """What the embedding is made of; a heading that is all there is counts once."""
        metadata = self.fields.get("metadata", {})
        content = self.content if self.content != self.headings[0] else None
        parts = [self.headings[0], metadata.get("description"), metadata.get("summary"), content]
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a source that its owner should know; ``skipped`` if it cost a memory."""

    name: str
    message: str
    skipped: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source holds."""

    source: str
    memories: tuple[FileMemory, ...]
    problems: tuple[Problem, ...]


def read_source(path: Path) -> Reading:
    """Read a directory in the index-file pattern, or a JSON Lines file.

    Raises
    ------
    OSError
        There is no such path, or it cannot be read at all. What is wrong with single files or
        lines is a :class:`Problem`, and the rest is read.
    """
    problems: list[Problem] = []
    read = _read_directory if path.is_dir() else _read_json_lines
    memories = tuple(read(path, problems))
    return Reading(path.resolve().name, memories, tuple(problems))


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    if "\0" in text:
        raise ValueError(f"holds a NUL byte (line {text[: text.index(chr(0))].count(chr(10)) + 1})")
    return text


@dataclass(frozen=True, slots=True)
class _Entry:
    heading: str
    summary: str


def _read_directory(directory: Path, problems: list[Problem]) -> Iterator[FileMemory]:
    entries = _read_index(directory, problems)
    # A link may lead anywhere; what is not in the directory is none of its memories.
    inside = directory.resolve()
    files = {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*.md"))
        if path.is_file() and path != directory / INDEX_FILE and path.resolve().is_relative_to(inside)
    }
    for name, entry in entries.items():
        if name not in files:
            problems.append(
                Problem(INDEX_FILE, f"the entry {entry.heading!r} names {name}, which is not there")
            )
    for name, path in files.items():
        if entries and name not in entries:
            problems.append(
                Problem(name, f"has no entry in {INDEX_FILE}; imported all the same", skipped=False)
            )
        try:
            yield _read_memory(name, _text(path.read_bytes()), entries.get(name), problems)
        except UnicodeDecodeError as error:
            problems.append(
                Problem(name, f"is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}")
            )
        except (ValueError, OSError) as error:
            problems.append(Problem(name, str(error)))


def _read_index(directory: Path, problems: list[Problem]) -> dict[str, _Entry]:
    path = directory / INDEX_FILE
    try:
        lines = _text(path.read_bytes()).splitlines()
    except FileNotFoundError:
        problems.append(Problem(INDEX_FILE, "is not there; headings come from the files", skipped=False))
        return {}
    except (ValueError, OSError) as error:
        problems.append(
            Problem(INDEX_FILE, f"cannot be read ({error}); headings come from the files", skipped=False)
        )
        return {}
    entries: dict[str, _Entry] = {}
    for line in lines:
        match = _ENTRY.match(line)
        if match is None or re.match(r"\w+://", match["target"]):
            continue
        name = unquote(match["target"].split("#")[0]).removeprefix("./")
        if name in entries:
            problems.append(Problem(INDEX_FILE, f"names {name} twice; the first entry counts", skipped=False))
        entries.setdefault(name, _Entry(match["heading"].strip(), match["summary"].strip()))
    return entries


class _FrontMatterLoader(yaml.SafeLoader):
    """YAML without aliases, which a few lines can blow up to any size."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def _read_memory(name: str, text: str, entry: _Entry | None, problems: list[Problem]) -> FileMemory:
    match = _FRONT_MATTER.match(text)
    front: dict[str, Any] = {}
    if match is not None:
        text = text[match.end() :]
        try:
            front = _front_matter(match["yaml"])
        except ValueError as error:
            front = {
                found["key"]: found["value"].strip("'\"") for found in _PLAIN_LINE.finditer(match["yaml"])
            }
            problems.append(
                Problem(name, f"{error}; read line by line and imported all the same", skipped=False)
            )
    elif re.match(r"---[ \t]*\n", text):
        problems.append(Problem(name, "has front matter that does not end; imported as text", skipped=False))
    nested = front.pop("metadata", None)
    nested = nested if isinstance(nested, dict) else {}
    title = front.pop("name", None)
    memory_type = front.pop("type", None) or nested.pop("type", None) or "semantic"
    metadata = {**nested, **front}
    if entry is not None and entry.summary:
        metadata["summary"] = entry.summary
    if title:
        metadata["name"] = title
    headings = [entry and entry.heading, title and str(title), Path(name).stem]
    return FileMemory(
        key=name,
        name=name,
        headings=tuple(heading for heading in headings if heading),
        content=text.strip() or str(front.get("description") or ""),
        # Through JSON, so that YAML's dates become what the database will give back.
        fields={
            "memory_type": str(memory_type).strip().lower(),
            "metadata": json.loads(json.dumps(metadata, default=str)),
        },
    )


def _front_matter(text: str) -> dict[str, Any]:
    try:
        front = yaml.load(text, _FrontMatterLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 2})" if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"has bad front matter: {what}{where}") from error
    if front is None:
        return {}
    if not isinstance(front, dict):
        raise ValueError("has bad front matter: not a mapping of names to values")
    return {str(key): value for key, value in front.items()}


# What a line of JSON may say: the parameters of remember, and a key of its own.
_LINE_FIELDS = {
    "heading", "content", "key", "memory_type", "confidence", "source_type", "expires_at",
    "pinned", "metadata", "embedding", "embedding_model", "token_count",
}  # fmt: skip


def _read_json_lines(path: Path, problems: list[Problem]) -> Iterator[FileMemory]:
    seen: dict[str, int] = {}
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            if not raw.strip():
                continue
            name = f"{path.name}:{number}"
            try:
                yield _read_line(name, _text(raw), seen)
            except UnicodeDecodeError:
                problems.append(Problem(name, "is not UTF-8"))
            except (ValueError, RecursionError) as error:
                problems.append(Problem(name, str(error)))


def _read_line(name: str, text: str, seen: dict[str, int]) -> FileMemory:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")
    unknown = line.keys() - _LINE_FIELDS
    if unknown:
        raise ValueError(
            f"has unknown fields: {', '.join(sorted(unknown))}; known: {', '.join(sorted(_LINE_FIELDS))}"
        )
    heading = line.pop("heading", None)
    content = line.pop("content", heading)
    if not isinstance(heading, str) or not isinstance(content, str):
        raise ValueError("needs a heading, a string, and takes a content, a string")
    if line.get("expires_at") is not None:
        line["expires_at"] = datetime.fromisoformat(str(line["expires_at"]))
    if not isinstance(line.setdefault("metadata", {}), dict):
        raise ValueError("metadata is not an object")
    key = line.pop("key", None)
    if key is None:
        # Without a key the heading is one; lines that share it are told apart by their order.
        count = seen[heading] = seen.get(heading, 0) + 1
        key = heading if count == 1 else f"{heading} ({count})"
    elif f"key {key}" in seen:
        raise ValueError(f"has the key {key!r} of an earlier line")
    else:
        seen[f"key {key}"] = 1
    key = str(key)
    # The key is looked up before the memory is written, so it is checked before the rest is.
    if re.search("[\0\ud800-\udfff]", key):
        raise ValueError(f"has the key {key!r}, which holds a NUL byte or a lone surrogate")
    return FileMemory(key=key, name=name, headings=(heading,), content=content, fields=line)
