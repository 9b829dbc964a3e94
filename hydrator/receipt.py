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
    from hydrator.bench_tenants import TenantsResult
    from hydrator.doctor import Finding
    from hydrator.evaluation import EvalResult
    from hydrator.explaining import Explained

_REASONS = {
    "over_budget": "would exceed the budget",
    "after_cutoff": "ranked after the first that did not fit",
    "duplicate_of": "near to one that is ranked better",
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
    """Give a benchmark's medians in milliseconds, a line a size, and what else it measured."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "memories",
        "plain",
        "ours",
        "faster",
        "whole index",
        "faster",
        "load all",
        "ranked by",
    ):
        table.add_column(title, justify="left" if title == "ranked by" else "right")
    table.add_column("recall@10", justify="right", no_wrap=True)
    for row in result.sizes:
        table.add_row(
            f"{row.size:,}",
            _number(row.plain, ".2f"),
            f"{row.ours:.2f}",
            _number(row.ratio, ".1f", "x"),
            f"{row.ours_whole_index:.2f}",
            _number(row.whole_index_ratio, ".1f", "x"),
            _number(row.everything, ".2f"),
            row.ranked_by,
            f"{row.recall_at_10:.3f}",
        )
    parts: list[RenderableType] = [table, ""]
    if result.growth is not None:
        small, large, growth = result.growth
        parts.append(f"Growth: {large:,} memories take {growth:.1f} times as long as {small:,}.")
    parts += [
        f"Recall at {told.share:.1%} of the table ({told.memories:,} memories): recall@10"
        f" {told.recall_at_10:.3f}, never fewer than {told.fewest}, ranked by {told.ranked_by}."
        for told in result.recalls
    ]
    parts.append(f"Heap fetches of Tier 1 after a vacuum: {result.heap_fetches}.")
    parts += [f"{name}: {rate:,.0f} a second" for name, rate in result.writes.items()]
    return Group(*parts, *_costs(result))


def tenants_table(result: TenantsResult) -> RenderableType:
    """Give the latencies of a store of many tenants in milliseconds, a line a class of sizes."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("memories", "namespaces", "calls", "median", "p99"):
        table.add_column(title, justify="right")
    table.add_column("ranked by")
    for row in result.classes:
        table.add_row(
            f"{row.smallest:,} to {row.largest:,}",
            f"{row.namespaces:,}",
            f"{row.calls:,}",
            f"{row.median:.2f}",
            f"{row.p99:.2f}",
            ", ".join(f"{way} {calls:,}" for way, calls in row.ranked_by.items()),
        )
    return Group(
        table,
        "",
        f"{result.memories:,} memories, {result.tenants:,} namespaces of Zipf sizes,"
        f" {result.clients} clients: {result.calls_per_second:,.0f} sessions a second.",
        *_costs(result),
    )


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _costs(result: BenchResult | TenantsResult) -> list[str]:
    return [
        *(f"{name}: {seconds:.1f} s" for name, seconds in result.seconds.items()),
        *(f"{name}: {size / 2**20:,.1f} MB" for name, size in result.bytes.items()),
        f"{result.machine}; {result.server}; {result.dimensions} dimensions, {result.vector_type}.",
    ]


def eval_table(result: EvalResult) -> RenderableType:
    """Give a table a metric: two lines a way, what was measured and below it its 95% interval."""
    from hydrator.evaluation import METRICS, WAYS, cuts

    tables: list[RenderableType] = []
    for metric, title in METRICS.items():
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column(title, min_width=max(map(len, METRICS.values())), no_wrap=True)
        for cut in cuts():
            name, _, size = cut.partition("=")
            table.add_column(f"k={size}" if name == "k" else f"{int(size):,}\ntokens", no_wrap=True)
        for way in WAYS:
            figures = [result.figures[way][cut][metric] for cut in cuts()]
            table.add_row(
                way, *(f"{mean:.3f}\n[dim]{low:.2f}–{high:.2f}[/dim]" for mean, low, high in figures)
            )
        tables += [table, Text()]
    lines = [
        f"{result.questions:,} questions with {result.evidence:,} pieces of evidence; "
        f"{result.memories:,} live memories in {result.namespaces:,} namespaces.",
        f"{result.model}, {result.embedding_ms:.1f} ms a question.",
        *(f"hydrator ranks with {name} => {value}." for name, value in result.options.items()),
        f"Intervals of 95%, by {result.resamples:,} resamples of the questions.",
        "At a budget the index takes none of it, in any way.",
        *(f"{way}: {told}." for way, told in WAYS.items()),
    ]
    return Group(*tables, *lines)


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
