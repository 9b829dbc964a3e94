"""Results for people: a hydration's receipt, a benchmark's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydrator.models import SessionHydration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydrator.bench import BenchResult
    from hydrator.doctor import Finding
    from hydrator.explaining import Explained

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


def bench_table(result: BenchResult) -> RenderableType:
    """Give a benchmark's medians in milliseconds, a line a size."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "memories",
        "share",
        "plain",
        "ours",
        "faster",
        "whole index",
        "faster",
        "everything",
        "ranked by",
    ):
        table.add_column(title, justify="left" if title == "ranked by" else "right")
    table.add_column("recall@10", justify="right")
    for row in result.sizes:
        table.add_row(
            f"{row.size:,}",
            f"{row.share:.1%}",
            f"{row.plain:.2f}",
            f"{row.ours:.2f}",
            f"{row.ratio:.1f}x",
            f"{row.ours_whole_index:.2f}",
            f"{row.whole_index_ratio:.1f}x",
            f"{row.everything:.2f}",
            row.ranked_by,
            f"{row.recall_at_10:.3f}",
        )
    lines = [f"{result.machine}; {result.server}; {result.dimensions} dimensions, {result.vector_type}."]
    for which, told in result.recall_by_selectivity.items():
        lines.append(
            f"Namespaces {which}: recall@10 {told['recall_at_10']:.3f}, ranked by {told['ranked_by']}."
        )
    lines.append(f"Heap fetches of Tier 1 after a vacuum: {result.heap_fetches}.")
    lines += [f"{name}: {seconds:.1f} s" for name, seconds in result.seconds.items()]
    lines += [f"{name}: {size / 2**20:,.1f} MB" for name, size in result.bytes.items()]
    return Group(table, "", *lines)


_STATES = {"problem": "bold red", "advice": "yellow", "ok": "green"}


def doctor_table(findings: Sequence[Finding]) -> RenderableType:
    """Give a line a finding, its mend below it, on lines of its own that can be copied."""
    width = max((len(finding.subject) for finding in findings), default=0)
    lines = []
    for finding in findings:
        line = Text(f"{finding.state:7}", style=_STATES[finding.state])
        lines.append(line.append(f"  {finding.subject:{width}}  {finding.what}", style="not bold default"))
        lines += [Text(f"  {mend}", style="bold") for mend in (finding.mend or "").splitlines()]
    return Group(*lines)


def plans(explained: Sequence[Explained]) -> RenderableType:
    """Give each statement's head and its plan; of checks that read nothing by themselves, the head."""
    lines = []
    for statement in explained:
        where = f"{statement.function}:{statement.line}" if statement.function else "the call"
        head = statement.statement if len(statement.statement) <= 80 else statement.statement[:79] + "…"
        lines.append(Text(f"{statement.duration_ms:.3f} ms  {where}  {head}", style="bold"))
        if not statement.plan.startswith("Result ") or "->" in statement.plan:
            lines += [Text(f"  {line}") for line in statement.plan.splitlines()]
            lines.append(Text())
    return Group(*lines)
