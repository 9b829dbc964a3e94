"""LoCoMo's file as a store and a question set, for ``hydrator eval``.

LoCoMo (snap-research/locomo, CC BY-NC 4.0) is long conversations with questions on them. It is not
shipped: the file is the user's. A conversation becomes a namespace, and its memories are either the
one-line observations that come with it or its turns as they were said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from hydrator.calls import Call
from hydrator.embedding import Embedder
from hydrator.errors import HydratorError
from hydrator.importing import ImportSummary, import_reading
from hydrator.memory_files import FileMemory, Reading
from hydrator.store import MemoryStore

SOURCE = "locomo"
ADVERSARIAL = 5  # the category of the questions that have no answer

_TURN = re.compile(r"D\d+:\d+")
_SESSION = re.compile(r"session_(\d+)")
_HEADING = 200  # characters a heading may have


class Memories(StrEnum):
    """What becomes a memory."""

    OBSERVATIONS = "observations"
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation's memories and questions; a question is its text and the turns of its evidence."""

    name: str
    memories: tuple[FileMemory, ...]
    questions: tuple[tuple[str, tuple[str, ...]], ...]
    without_evidence: int
    """Questions that are left out, since no memory rests on any turn of their evidence."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion did: the imports' sums, and the questions written and left out."""

    namespaces: tuple[str, ...]
    imported: int
    unchanged: int
    superseded: int
    questions: int
    without_evidence: int


def read(
    path: Path, memories: Memories, *, dates: bool = True, adversarial: bool = False
) -> tuple[Conversation, ...]:
    """Read LoCoMo's file.

    Parameters
    ----------
    dates
        Say in each memory when it was said, as the file tells it for each session: it is of what was said,
        and the questions ask for it.
    adversarial
        Keep the questions that have no answer, whose evidence is what they try to confuse with.

    Raises
    ------
    HydratorError
        The file is not LoCoMo's.
    OSError
        It cannot be read.
    """
    try:
        told = json.loads(path.read_bytes())
        if not told:
            raise ValueError("it holds no conversation")
        return tuple(_conversation(one, memories, dates, adversarial) for one in told)
    except KeyError as error:
        raise _not_locomo(path, f"{error} is not there") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _not_locomo(path, str(error)) from error


def _not_locomo(path: Path, what: str) -> HydratorError:
    return HydratorError(
        f"{path.name} is not as LoCoMo's file: {what}",
        hint="It is the list of conversations of snap-research/locomo, data/locomo10.json",
    )


def _conversation(
    told: Mapping[str, Any], memories: Memories, dates: bool, adversarial: bool
) -> Conversation:
    make = _turns if memories is Memories.TURNS else _observations
    made = tuple(make(told, dates))
    held = {turn for memory in made for turn in memory.fields["metadata"]["turns"]}
    questions, left_out = [], 0
    for asked in told["qa"]:
        if asked["category"] == ADVERSARIAL and not adversarial:
            continue
        # Some evidence names several turns in one text, some a turn that is not there.
        named = dict.fromkeys(turn for text in asked["evidence"] for turn in _TURN.findall(text))
        evidence = tuple(turn for turn in named if turn in held)
        if evidence:
            questions.append((str(asked["question"]), evidence))
        else:
            left_out += 1
    return Conversation(told["sample_id"], made, tuple(questions), left_out)


def _sessions(told: Mapping[str, Any]) -> Iterator[tuple[str, datetime, str]]:
    """Give the sessions in their order: name, when it was, and that as the file says it."""
    conversation = told["conversation"]
    numbers = sorted(int(match[1]) for match in map(_SESSION.fullmatch, conversation) if match)
    for number in numbers:
        said = conversation[f"session_{number}_date_time"]
        yield f"session_{number}", datetime.strptime(said, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC), said


def _turns(told: Mapping[str, Any], dates: bool) -> Iterator[FileMemory]:
    for session, began, said in _sessions(told):
        for number, turn in enumerate(told["conversation"][session]):
            photo = f" (shares a photo: {turn['blip_caption']})" if turn.get("blip_caption") else ""
            text = f"{turn['speaker']}: {turn['text']}{photo}"
            yield _memory(turn["dia_id"], text, [turn["dia_id"]], began, number, said if dates else None)


def _observations(told: Mapping[str, Any], dates: bool) -> Iterator[FileMemory]:
    for session, began, said in _sessions(told):
        made = [
            (f"{session}/{speaker}/{number}", text, _TURN.findall(json.dumps(turns)))
            for speaker, observations in told["observation"].get(f"{session}_observation", {}).items()
            for number, (text, turns) in enumerate(observations, 1)
        ]
        for number, (key, text, turns) in enumerate(made):
            yield _memory(key, text, turns, began, number, said if dates else None)


def _memory(
    key: str, text: str, turns: list[str], began: datetime, number: int, said: str | None
) -> FileMemory:
    content = f"{text} ({said})" if said else text
    line = " ".join(content.split())
    heading = line if len(line) <= _HEADING else line[: _HEADING - 1] + "…"
    # A second apart, so that what is newest is told within a session too.
    said_at = (began + timedelta(seconds=number)).isoformat()
    metadata = {"turns": turns, "said_at": said_at}
    fields = {"memory_type": "episodic", "source_type": SOURCE, "metadata": metadata}
    return FileMemory(key=key, name=key, headings=(heading,), content=content, fields=fields)


def convert(
    store: MemoryStore,
    embedder: Embedder,
    path: Path,
    memories: Memories,
    questions: Path,
    *,
    namespace: str,
    dates: bool = True,
    adversarial: bool = False,
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> Converted:
    """Import each conversation into ``<namespace>-<its name>`` and write the questions beside them.

    Safe to run again: what is there already stays as it is. The question set is written last, whole.
    """
    conversations = read(path, memories, dates=dates, adversarial=adversarial)
    summaries: list[ImportSummary] = []
    lines: list[str] = []
    namespaces = tuple(f"{namespace}-{conversation.name}" for conversation in conversations)
    for name, conversation in zip(namespaces, conversations, strict=True):
        reading = Reading(SOURCE, conversation.memories, ())
        summary = import_reading(store, embedder, reading, name, progress=partial(progress, name))
        for problem in summary.problems:
            raise HydratorError(f"{name}: {problem.name}: {problem.message}")
        store.execute(_said(name))
        summaries.append(summary)
        for text, evidence in conversation.questions:
            told = {
                "question": text,
                "namespaces": [name],
                "evidence": [{"turns": [turn]} for turn in evidence],
            }
            lines.append(json.dumps(told, ensure_ascii=False) + "\n")
    questions.write_text("".join(lines), "utf-8")
    return Converted(
        namespaces,
        imported=sum(summary.imported for summary in summaries),
        unchanged=sum(summary.unchanged for summary in summaries),
        superseded=sum(summary.superseded for summary in summaries),
        questions=len(lines),
        without_evidence=sum(conversation.without_evidence for conversation in conversations),
    )


def _said(namespace: str) -> Call[None]:
    # remember() stamps the time of writing; of a conversation that is over, what was said last is newest.
    # A successor keeps its own time, by which the next import knows it for the newest of its key.
    sql = """
        with dated as (
          update hydrator.memories m
          set created_at = (m.metadata ->> 'said_at')::timestamptz
          where m.namespace = %(namespace)s
            and m.metadata #>> '{source,name}' = %(source)s
            and m.supersedes is null
            and m.created_at is distinct from (m.metadata ->> 'said_at')::timestamptz
          returning 1
        )
        select count(*) from dated
        """
    return Call(sql, {"namespace": namespace, "source": SOURCE}, lambda rows: None)
