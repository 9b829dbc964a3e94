"""How a session is hydrated: when, within which bounds, and through which compressor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class HydrationMode(StrEnum):
    """When memories are retrieved."""

    EAGER = "eager"
    """Before the prompt is compiled; a block is declared."""
    JIT = "jit"
    """When the model asks, through a tool; nothing is declared up front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HydrationPolicy:
    """The caller's choices, for every turn.

    Parameters
    ----------
    mode
        Eager or just-in-time.
    max_block_chars
        The ceiling of the block, in characters; the default is the default token budget at four
        characters a token.
    max_block_tokens, token_counter
        A ceiling of the block in tokens, and what counts them, on the rendered block. With a counter
        alone the ceiling is ``token_budget``.
    compressor
        From text to text, applied to the content of one memory at a time, before the ceiling;
        :func:`hydrator.compression.compress` is one.
    top_k, token_budget, index_budget, packing
        As in ``hydrate_session``: memories to rank, tokens for index and memories together, tokens for
        the index (None: whole), ``stop`` or ``skip``.
    min_confidence, source_types
        What is trusted: memories of less confidence or of other sources are recalled neither by rank nor
        for being pinned. The index shows them still.
    neighbours, recency_half_life, confidence_weight, duplicate_distance
        As in ``hydrate_session``, and off unless given: memories written just before or after a recalled
        one in its source; what halves a memory's worth with age; what takes account of its confidence;
        the distance at which of two memories only the better ranked takes a place.
    show_source
        Whether each recalled memory says who observed it.

    Raises
    ------
    ValueError
        A ceiling is negative, or is in tokens and nothing counts them; source_types is a string.
    """

    mode: HydrationMode = HydrationMode.EAGER
    max_block_chars: int = 24_000
    max_block_tokens: int | None = None
    token_counter: Callable[[str], int] | None = None
    compressor: Callable[[str], str] | None = None
    top_k: int = 5
    token_budget: int = 6_000
    index_budget: int | None = None
    packing: str = "stop"
    min_confidence: float | None = None
    source_types: tuple[str, ...] | None = None
    neighbours: int | None = None
    recency_half_life: timedelta | None = None
    confidence_weight: float | None = None
    duplicate_distance: float | None = None
    show_source: bool = False

    def __post_init__(self) -> None:
        # A mode may come as its value, from a configuration file.
        object.__setattr__(self, "mode", HydrationMode(self.mode))
        if isinstance(self.source_types, str):
            raise ValueError(f"source_types is the single string {self.source_types!r}; pass a tuple")
        if self.max_block_chars < 0:
            raise ValueError(f"max_block_chars is {self.max_block_chars}; it is 0 or more")
        if self.max_block_tokens is not None and self.max_block_tokens < 0:
            raise ValueError(f"max_block_tokens is {self.max_block_tokens}; it is 0 or more")
        if self.max_block_tokens is not None and self.token_counter is None:
            raise ValueError("max_block_tokens needs a token_counter")

    def fits(self, block: str) -> bool:
        """Tell whether a rendered block keeps the ceilings."""
        if len(block) > self.max_block_chars:
            return False
        if self.token_counter is None:
            return True
        ceiling = self.token_budget if self.max_block_tokens is None else self.max_block_tokens
        return self.token_counter(block) <= ceiling

    def compressed(self, text: str) -> str:
        """Give the text as the compressor leaves it."""
        return text if self.compressor is None else self.compressor(text)
