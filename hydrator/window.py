"""The conversation window: the last turns, which lead the block."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """Something that was said, and by whom (``user``, ``assistant``, …)."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkingContext:
    """The turns that lead a block, oldest first."""

    turns: tuple[Turn, ...] = ()


class WorkingSource(Protocol):
    """Whatever knows the last turns; one that raises leaves the block without them, marked degraded."""

    def context(self) -> WorkingContext: ...


class WorkingWindow:
    """The last turns of a conversation, in memory.

    Parameters
    ----------
    max_turns
        How many turns are kept; 0 disables the window. Blank turns are skipped and do not count.
    max_chars
        How long their texts may be together, in characters; the oldest turns are dropped.
    """

    def __init__(self, max_turns: int = 6, *, max_chars: int = 8_000) -> None:
        if max_turns < 0 or max_chars < 0:
            raise ValueError(f"max_turns and max_chars are 0 or more, not {max_turns} and {max_chars}")
        self._turns: deque[Turn] = deque(maxlen=max_turns)
        self._max_chars = max_chars

    def add(self, role: str, text: str) -> None:
        """Add what was said last."""
        if text.strip():
            self._turns.append(Turn(role, text))

    def context(self) -> WorkingContext:
        """Give the last turns that fit, oldest first."""
        turns: list[Turn] = []
        left = self._max_chars
        for turn in reversed(self._turns):
            left -= len(turn.text)
            if left < 0:
                break
            turns.append(turn)
        return WorkingContext(tuple(reversed(turns)))
