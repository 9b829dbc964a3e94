"""What is handed to the compiler of a prompt: blocks, where they belong, and who asked for them."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

_CONTRIBUTION_ID = re.compile(r"memory(?:\.[a-z][a-z0-9_]*)+")


def check_contribution_id(contribution_id: str) -> str:
    """Give the id back, or raise ValueError: a contribution of ours is named ``memory.…`` and no one else's.

    Only lower-case ASCII words after ``memory``, so that no look-alike can pass for another's id.
    """
    if not isinstance(contribution_id, str) or not _CONTRIBUTION_ID.fullmatch(contribution_id):
        raise ValueError(
            f"contribution id is {contribution_id!r}; it is 'memory' and lower-case words, joined by dots"
        )
    return contribution_id


@dataclass(frozen=True, slots=True)
class ComposedMemorySource:
    """A rendered block.

    ``revision`` is a hash of what the block tells: the same memories give the same revision, any change
    to them another. ``scope_path`` says where the block belongs, from what is stable to what changes:
    the index in the session's head, which a prompt cache keeps; the context in the turn, last.
    """

    block: str
    revision: str
    scope_path: tuple[str, ...]

    @classmethod
    def of(cls, block: str, told: Any, *scope_path: str) -> Self:
        """Compose a source whose revision is the hash of ``told``, as JSON."""
        text = json.dumps(told, default=str, ensure_ascii=True, sort_keys=True)
        return cls(block, hashlib.sha256(text.encode()).hexdigest(), scope_path)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What was asked of memory in a turn."""

    contribution_id: str
    query: str
    namespaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryContribution:
    """What a turn declares to the compiler of the prompt; ``order`` ranks it among contributions.

    ``index`` belongs in the stable head and is None where there is none; ``source`` goes last.
    """

    contribution_id: str
    order: int
    index: ComposedMemorySource | None
    source: ComposedMemorySource


@dataclass(frozen=True, slots=True)
class ActivationEvent:
    """A memory that a turn has put before the model.

    ``score`` is higher for what ranks better, and None for a pinned memory, which is not ranked; ``tier``
    is 2, the memories in full.
    """

    memory_id: UUID
    heading: str
    score: float | None
    namespace: str
    tier: int = 2
