"""A hydration's receipt for people: what was loaded, what was left out, and at what cost."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydrator.models import SessionHydration

_REASONS = {
    "over_budget": "would exceed the budget",
    "after_cutoff": "ranked after the first that did not fit",
    "pinned_share": "pinned memories may use half of what the index left",
}


def receipt(hydration: SessionHydration, everything: int) -> RenderableType:
    """Give a receipt; ``everything`` is what all live memories would cost in full, in tokens."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("tokens", justify="right")
    table.add_column("distance", justify="right")
    table.add_column("", overflow="fold")

    shown = f"{hydration.index_shown:,} of {hydration.index_total:,} memories, one line each"
    table.add_row("index", f"{hydration.index_tokens:,}", "", shown)
    for memory in hydration.relevant:
        kind = "pinned" if memory.pinned else "recalled"
        table.add_row(kind, f"{memory.tokens:,}", _distance(memory.distance), Text(memory.heading))
    for dropped in hydration.dropped:
        about = Text(f"{dropped.heading} ({_REASONS.get(dropped.reason, dropped.reason)})")
        table.add_row("dropped", f"{dropped.tokens:,}", _distance(dropped.distance), about, style="dim")

    used = hydration.tokens_used
    lines = [f"{used:,} tokens used of a budget of {hydration.token_budget:,}."]
    if hydration.over_budget:
        lines.append(
            "The index alone exceeds the budget, so nothing was recalled: "
            "raise the budget or give the index one of its own."
        )
    if everything > 0:
        share = f"{used / everything:.0%}"
        lines.append(f"Loading every memory in full would cost {everything:,} tokens: this is {share} of it.")
    return Group(table, "", *lines)


def _distance(distance: float | None) -> str:
    return "" if distance is None else f"{distance:.3f}"
