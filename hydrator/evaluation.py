"""``hydrator eval``: what a store recalls of one's own questions, beside the plain ways.

A question set is JSON Lines: each line a question, the namespaces it may read and the evidence that
answers it. Each question is put to the real calls and to plain ways of filling a context from the same
live rows, by the same token rule, in one read-only transaction: all see the same store.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from hydrator.addresses import libpq_address
from hydrator.calls import Call
from hydrator.embedding import Embedder, check_fits
from hydrator.errors import CallError, EmbedderError, HydratorError, translated
from hydrator.extras import extra
from hydrator.store import MemoryStore

T = TypeVar("T")
Progress = Callable[[str, int, int], None]

KS = (5, 10, 20)
BUDGETS = (1_000, 2_000, 4_000)
METRICS = {"recall": "evidence recall", "hit": "hit rate", "mrr": "MRR"}

RESAMPLES = 2_000
_SEED = 1
_CONFIDENCE = 0.95

# What a question hands to the real calls. "hydrator" is the product, "vector" its embedding alone.
_REAL: dict[str, Callable[[str, Sequence[float]], dict[str, Any]]] = {
    "hydrator": lambda text, vector: {"query_embedding": vector, "query_text": text},
    "vector": lambda text, vector: {"query_embedding": vector},
}

# The plain ways: which of the live rows, in which order; each is cut by the query below.
_PLAIN = {
    "full text": ("l.document @@ q.query", "ts_rank(l.document, q.query) desc"),
    "newest first": ("true", "l.created_at desc"),
    "everything": ("true", "l.confidence desc"),
}
_ASKED = {"full text"}  # those that depend on the question

WAYS = {
    "hydrator": "hydrate_session and fetch_top_k_relevant, as the product calls them",
    "vector": "the same calls with the embedding alone",
    "full text": "ts_rank over any of the question's words, heading and content, no index",
    "newest first": "by created_at, until full",
    "everything": "in the compact index's order, until full",
}

# Ranks start at 1 and running is what a memory costs with all before it, so that both cuts are the
# packing 'stop'.
_CUT = """
with query as (
  select regexp_replace(
    plainto_tsquery(%(configuration)s::regconfig, %(text)s)::text, ' (&|<[-0-9]+>) ', ' | ', 'g'
  )::tsquery as query
),
live as materialized (
  select
    m.memory_id, m.confidence, m.created_at, m.content_tokens,
    to_tsvector(%(configuration)s::regconfig, m.heading || E'\\n' || m.content) as document
  from hydrator.live_memories m
  where m.namespace = any (%(namespaces)s::text[] collate "C")
),
ordered as (
  select
    l.memory_id,
    row_number() over by_way as rank,
    sum(l.content_tokens) over (by_way rows unbounded preceding) as running
  from live l
  cross join query q
  where {among}
  window by_way as (order by {order}, l.memory_id)
)
select 0 as number, array(select o.memory_id from ordered o where o.rank <= %(top_k)s order by o.rank)
union all
select b.number, array(select o.memory_id from ordered o where o.running <= b.budget order by o.rank)
from unnest(%(budgets)s::integer[]) with ordinality b (budget, number)
order by number
"""

# As many as fit of the smallest: no ranking can place more, so a top-k of one more never cuts first.
_MOST = """
select count(*) + 1
from (
  select sum(m.content_tokens) over by_size as running
  from hydrator.live_memories m
  where m.namespace = any (%(namespaces)s::text[] collate "C")
  window by_size as (order by m.content_tokens, m.memory_id rows unbounded preceding)
) smallest
where running <= %(budget)s
"""

# A string is a memory's id or its key in the source it was imported from; an object is contained in the
# metadata.
_EVIDENCE = """
select coalesce(array_agg(m.memory_id) filter (where m.memory_id is not null), '{}')
from unnest(%(evidence)s::jsonb[]) with ordinality e (named, number)
left join hydrator.live_memories m
  on m.namespace = any (%(namespaces)s::text[] collate "C")
  and case jsonb_typeof(e.named)
    when 'string' then lower(e.named #>> '{}') = m.memory_id::text
      or e.named #>> '{}' = m.metadata #>> '{source,key}'
    else m.metadata @> e.named
  end
group by e.number
order by e.number
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A line of a question set; ``where`` names it to a person.

    Each evidence is a memory's id, its key in the source it was imported from, or an object that its
    metadata contains; where several memories match, any of them will do.
    """

    where: str
    text: str
    namespaces: tuple[str, ...]
    evidence: tuple[str | Mapping[str, Any], ...]


class Score(NamedTuple):
    """How well what was found covers a question's evidence.

    ``recall`` is the share of the evidence that was found, ``hit`` whether any was, ``mrr`` one over the
    rank of the first.
    """

    recall: float
    hit: float
    mrr: float


class Estimate(NamedTuple):
    """A mean over the questions, and its 95% interval."""

    mean: float
    low: float
    high: float


@dataclass(slots=True)
class EvalResult:
    """Everything a run measured.

    ``figures`` holds, for each way, cut (``k=5`` or ``budget=1000``) and metric, the estimate;
    ``ahead`` the same for how far hydrator is ahead of that way on the same questions.
    """

    questions: int
    evidence: int
    namespaces: int
    memories: int
    model: str
    configuration: str
    resamples: int
    options: dict[str, Any] = field(default_factory=dict)
    embedding_ms: float = 0.0
    figures: dict[str, dict[str, dict[str, Estimate]]] = field(default_factory=dict)
    ahead: dict[str, dict[str, dict[str, Estimate]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give the result for programs, estimates as objects."""
        told = asdict(self)
        told["options"] = {name: str(value) for name, value in self.options.items()}
        for ways in (told["figures"], told["ahead"]):
            for cuts in ways.values():
                for metrics in cuts.values():
                    for metric, (mean, low, high) in metrics.items():
                        metrics[metric] = {"mean": mean, "low": low, "high": high}
        return told


def cuts() -> tuple[str, ...]:
    """Name the cuts, in the order in which every way gives them."""
    return (*(f"k={k}" for k in KS), *(f"budget={budget}" for budget in BUDGETS))


def score(found: Sequence[UUID], evidence: Sequence[frozenset[UUID]]) -> Score:
    """Score what was found, best first, against the memories that hold each evidence of a question."""
    seen = frozenset(found)
    covered = sum(not seen.isdisjoint(holding) for holding in evidence)
    wanted = frozenset().union(*evidence)
    first = next((rank for rank, memory_id in enumerate(found, 1) if memory_id in wanted), None)
    return Score(covered / len(evidence), float(covered > 0), 1 / first if first else 0.0)


def read_questions(path: Path) -> tuple[Question, ...]:
    """Read a question set.

    Raises
    ------
    HydratorError
        A line is not a question; the file, the line and what is wrong are named.
    OSError
        The file cannot be read.
    """
    questions = []
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            if not raw.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                questions.append(_question(where, raw))
            except (ValueError, RecursionError) as error:
                raise HydratorError(
                    f"{where} {error}",
                    hint='A line is {"question": "…", "namespaces": ["…"], "evidence": ["…"]}',
                ) from error
    if not questions:
        raise HydratorError(f"{path.name} holds no questions")
    return tuple(questions)


def _question(where: str, raw: bytes) -> Question:
    try:
        line = json.loads(raw)
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")
    text: Any = line.get("question")
    namespaces: Any = line.get("namespaces")
    evidence: Any = line.get("evidence")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"has the question {text!r}, not a text")
    if not _list_of(namespaces, str):
        raise ValueError(f"has the namespaces {namespaces!r}, not a list of names")
    if not _list_of(evidence, str | dict):
        raise ValueError(f"has the evidence {evidence!r}, not a list of ids, source keys or metadata")
    distinct = {json.dumps(named, sort_keys=True): named for named in evidence}
    return Question(where, text, tuple(namespaces), tuple(distinct.values()))


def _list_of(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, kind) and item for item in value)


def run(
    url: str,
    embedder: Embedder,
    questions: Sequence[Question],
    *,
    configuration: str = "english",
    resamples: int = RESAMPLES,
    options: Mapping[str, Any] | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> EvalResult:
    """Put the questions to every way, and estimate how much of the evidence each recalls.

    At a budget the index takes none of it (``p_index_budget`` is 0), so that every way fills the same
    tokens with memories; hydrator's packing is the default, ``stop``, which is how the others are cut.

    Parameters
    ----------
    configuration
        The text search configuration of the full-text way.
    resamples
        Resamples of the questions, for the intervals; their seed is fixed.
    options
        What hydrator's calls are given beside the question: neighbours, recency_half_life,
        confidence_weight, duplicate_distance. The other ways go without.

    Raises
    ------
    HydratorError
        A question's evidence is in no live memory, a namespace holds none, or a call was refused.
    """
    extra("numpy")
    with translated(), psycopg.connect(libpq_address(url)) as connection:
        connection.read_only = True
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        store = MemoryStore(connection)
        check_fits(embedder, store.installation())
        namespaces = sorted({name for question in questions for name in question.namespaces})
        _check_configuration(store, configuration)
        _check_namespaces(store, questions)
        evidence = _resolve(store, questions, progress)
        vectors, embedding_ms = _embed(embedder, questions, progress)
        result = EvalResult(
            questions=len(questions),
            evidence=sum(map(len, evidence)),
            namespaces=len(namespaces),
            memories=store.count_live(namespaces),
            model=embedder.model,
            configuration=configuration,
            resamples=resamples,
            options=dict(options or {}),
            embedding_ms=embedding_ms,
        )
        asking = _Asking(store, embedder.model, configuration, result.options)
        scores: dict[str, list[list[Score]]] = {way: [] for way in WAYS}
        for done, (question, vector, wanted) in enumerate(zip(questions, vectors, evidence, strict=True)):
            progress("asking", done, len(questions))
            with _located(question):
                for way in WAYS:
                    scores[way].append([score(cut, wanted) for cut in asking.ask(way, question, vector)])
        progress("asking", len(questions), len(questions))
    result.figures, result.ahead = _estimates(scores, resamples)
    return result


@contextmanager
def _located(question: Question) -> Iterator[None]:
    """Say of which question it was that the database or the embedder refused something."""
    try:
        yield
    except (CallError, EmbedderError) as error:
        raise type(error)(f"{question.where}: {error.message}", hint=error.hint) from error


def _check_configuration(store: MemoryStore, configuration: str) -> None:
    try:
        store.execute(Call("select %(name)s::regconfig", {"name": configuration}, len))
    except HydratorError as error:
        raise HydratorError(
            error.message, hint="select cfgname from pg_ts_config; lists those there are"
        ) from error


def _check_namespaces(store: MemoryStore, questions: Sequence[Question]) -> None:
    known: set[str] = set()
    for question in questions:
        for name in set(question.namespaces) - known:
            with _located(question):
                live = store.count_live([name])
            if not live:
                raise HydratorError(
                    f"{question.where}: namespace {name!r} holds no live memory",
                    hint="Namespaces match exactly; import its memories, or name another database with --url",
                )
            known.add(name)


def _resolve(
    store: MemoryStore, questions: Sequence[Question], progress: Progress
) -> list[tuple[frozenset[UUID], ...]]:
    """Find the memories that hold each question's evidence."""
    found: list[tuple[frozenset[UUID], ...]] = []
    missing = []
    for done, question in enumerate(questions):
        progress("finding the evidence", done, len(questions))
        parameters = {
            "namespaces": list(question.namespaces),
            "evidence": [Jsonb(named) for named in question.evidence],
        }
        with _located(question):
            found.append(
                store.execute(
                    Call(_EVIDENCE, parameters, lambda rows: tuple(frozenset(row[0]) for row in rows))
                )
            )
        missing += [
            f"{question.where}: no live memory of {', '.join(question.namespaces)}"
            f" holds the evidence {json.dumps(named, ensure_ascii=False)}"
            for named, holding in zip(question.evidence, found[-1], strict=True)
            if not holding
        ]
    if missing:
        more = f", and {len(missing) - 1:,} more are missing" if len(missing) > 1 else ""
        raise HydratorError(
            missing[0] + more,
            hint="Evidence is a memory's id, its key in its source, or an object that its metadata contains;"
            " import the memory, or take the evidence out",
        )
    return found


def _embed(
    embedder: Embedder, questions: Sequence[Question], progress: Progress
) -> tuple[list[list[float]], float]:
    """Embed the questions one by one, as an agent's turns come, and give the median time in milliseconds."""
    vectors, times = [], []
    for done, question in enumerate(questions):
        progress("embedding the questions", done, len(questions))
        began = time.perf_counter()
        with _located(question):
            vectors += embedder.embed([question.text])
        times.append((time.perf_counter() - began) * 1e3)
    return vectors, statistics.median(times)


class _Asking:
    """Puts questions to the ways; each gives what it found at every cut, best first."""

    def __init__(
        self, store: MemoryStore, model: str, configuration: str, options: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._model = model
        self._configuration = configuration
        self._options = options
        # What does not depend on the question is asked once for each set of namespaces.
        self._kept: dict[tuple[str, tuple[str, ...]], Any] = {}

    def ask(self, way: str, question: Question, vector: Sequence[float]) -> list[list[UUID]]:
        if way in _REAL:
            given = self._options if way == "hydrator" else {}
            return self._real(question.namespaces, {**_REAL[way](question.text, vector), **given})
        if way in _ASKED:
            return self._plain(way, question)
        return self._once(way, question.namespaces, partial(self._plain, way, question))

    def _once(self, what: str, namespaces: tuple[str, ...], function: Callable[[], T]) -> T:
        key = (what, namespaces)
        if key not in self._kept:
            self._kept[key] = function()
        return self._kept[key]  # type: ignore[no-any-return]

    def _real(self, namespaces: tuple[str, ...], asked: dict[str, Any]) -> list[list[UUID]]:
        asked |= {"namespaces": namespaces, "embedding_model": self._model}
        ranked = self._store.fetch_top_k_relevant(**asked, top_k=max(KS))
        found = [[memory.memory_id for memory in ranked[:k]] for k in KS]
        for budget in BUDGETS:
            most = self._once(f"most {budget}", namespaces, partial(self._most, namespaces, budget))
            session = self._store.hydrate_session(**asked, top_k=most, token_budget=budget, index_budget=0)
            found.append([memory.memory_id for memory in session.relevant])
        return found

    def _most(self, namespaces: tuple[str, ...], budget: int) -> int:
        parameters = {"namespaces": list(namespaces), "budget": budget}
        return self._store.execute(Call(_MOST, parameters, lambda rows: int(rows[0][0])))

    def _plain(self, way: str, question: Question) -> list[list[UUID]]:
        parameters = {
            "namespaces": list(question.namespaces),
            "text": question.text,
            "configuration": self._configuration,
            "top_k": max(KS),
            "budgets": list(BUDGETS),
        }
        among, order = _PLAIN[way]
        call = Call(_CUT.format(among=among, order=order), parameters, lambda rows: [row[1] for row in rows])
        ranked, *fitting = self._store.execute(call)
        return [*(ranked[:k] for k in KS), *fitting]


def _estimates(
    scores: Mapping[str, Sequence[Sequence[Score]]], resamples: int
) -> tuple[dict[str, dict[str, dict[str, Estimate]]], dict[str, dict[str, dict[str, Estimate]]]]:
    """Estimate each way's means, and how far hydrator is ahead, by resampling the questions.

    Every way is resampled alike, so the intervals of what hydrator is ahead are paired: what makes a
    question hard for all ways widens none of them.
    """
    numpy = extra("numpy")
    values = {way: numpy.array(of_way, dtype=float) for way, of_way in scores.items()}
    count = len(values["hydrator"])
    draws = numpy.random.default_rng(_SEED).multinomial(count, [1 / count] * count, size=resamples) / count
    tail = (1 - _CONFIDENCE) / 2

    def estimates(of_questions: Any) -> dict[str, dict[str, Estimate]]:
        # Of shape (questions, cuts, metrics).
        means = of_questions.mean(axis=0)
        low, high = numpy.quantile(numpy.tensordot(draws, of_questions, axes=1), [tail, 1 - tail], axis=0)
        return {
            cut: {
                metric: Estimate(*(round(float(told[i, j]), 6) for told in (means, low, high)))
                for j, metric in enumerate(METRICS)
            }
            for i, cut in enumerate(cuts())
        }

    figures = {way: estimates(of_way) for way, of_way in values.items()}
    ahead = {
        way: estimates(values["hydrator"] - of_way) for way, of_way in values.items() if way != "hydrator"
    }
    return figures, ahead


def plot(result: EvalResult, path: Path) -> None:
    """Draw evidence recall against k and against the budget, with the intervals, as a PNG."""
    figure = extra("matplotlib.figure").Figure(figsize=(10, 4.5), layout="constrained")
    styles = dict(zip(WAYS, ("o-", "s--", "^-.", "v:", "x:"), strict=True))
    by_k, by_budget = figure.subplots(1, 2, sharey=True)
    for axes, name, sizes, label in (
        (by_k, "k", KS, "first k"),
        (by_budget, "budget", BUDGETS, "budget in tokens"),
    ):
        for way, style in styles.items():
            seen = [result.figures[way][f"{name}={size}"]["recall"] for size in sizes]
            means = [estimate.mean for estimate in seen]
            off = [[e.mean - e.low for e in seen], [e.high - e.mean for e in seen]]
            axes.errorbar(sizes, means, yerr=off, fmt=style, capsize=3, label=way)
        axes.set(xscale="log", xlabel=label, ylim=(0, 1))
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
    by_k.set_ylabel("evidence recall")
    by_k.legend()
    figure.suptitle(f"{result.questions:,} questions, {result.memories:,} memories, {result.model}")
    figure.savefig(path, dpi=150)
