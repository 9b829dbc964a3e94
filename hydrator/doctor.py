"""``hydrator doctor``: what a DBA should know of a live store, and the statement that mends it.

Everything is read in one transaction that is read-only and sees one snapshot. What a role may not
see is said, and the rest is examined.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg import sql

from hydrator.addresses import libpq_address
from hydrator.errors import translated
from hydrator.indexes import NAMES, index_name
from hydrator.models import Installation
from hydrator.schema import SQL, embedding_storage, head_revision, render

State = Literal["problem", "advice", "ok"]
Progress = Callable[[str, int, int], None]

LARGEST = 10  # namespaces that are told apart
WALKED = 10_000  # namespaces that are looked at, at the most
COUNTED = 100_000  # live memories of a namespace that are still counted one by one
MEASURED = 2  # namespaces in which recall is measured
RECALL = 0.95  # below: advice
_NEAREST = 10

# How each way of ranking is had, whatever the namespace's size.
_WAYS = {
    "exact": {"exact_max_rows": 999_999_999},
    "bits": {"exact_max_rows": 0, "bits_max_rows": 999_999_999},
    "hnsw": {"exact_max_rows": 0, "bits_max_rows": 0, "hnsw_min_percent": 0},
}

_SEVERITY: dict[State, int] = {"problem": 0, "advice": 1, "ok": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    subject
        What was looked at, such as ``Tier 1`` or ``index memories_live_idx``.
    state
        ``problem`` (calls fail, or answer wrongly or far too slowly), ``advice`` or ``ok``.
    what
        One sentence, with the figures.
    mend
        The statement or the command that mends it; None where there is nothing to mend, or no
        single statement does.
    """

    subject: str
    state: State
    what: str
    mend: str | None = None


@dataclass(slots=True)
class _Store:
    """The store that is examined, and what later checks need of earlier ones."""

    connection: psycopg.Connection[tuple[Any, ...]]
    samples: int
    progress: Progress
    database: str = ""
    role: str = ""
    # The largest namespaces, largest first, with their live memories.
    largest: list[tuple[str, int]] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)

    def rows(self, query: str | sql.Composed, *parameters: Any) -> list[tuple[Any, ...]]:
        text = query.encode() if isinstance(query, str) else query
        return self.connection.execute(text, parameters or None).fetchall()

    def row(self, query: str | sql.Composed, *parameters: Any) -> tuple[Any, ...]:
        return self.rows(query, *parameters)[0]

    def value(self, query: str | sql.Composed, *parameters: Any) -> Any:
        return self.row(query, *parameters)[0]

    def statement(self, text: str, **parts: Any) -> str:
        """Write out a statement: ``{name}`` becomes an identifier, ``{name_}`` a literal."""
        composed = {
            name: sql.Literal(part) if name.endswith("_") else sql.Identifier(part)
            for name, part in parts.items()
        }
        return sql.SQL(text).format(**composed).as_string(self.connection)

    def estimated_rows(self, query: str) -> int:
        """Give the planner's estimate, from its statistics."""
        return int(self.value(f"explain (format json) {query}")[0]["Plan"]["Plan Rows"])

    def installation(self) -> Installation:
        return Installation(
            *self.row(
                "select dimensions, vector_type, distance, extension_schema, text_search_config"
                " from hydrator.installation()"
            )
        )

    def setting(self, name: str) -> int:
        return int(self.value("select hydrator.setting(%s)", name))

    def set_local(self, **settings: Any) -> None:
        for name, value in settings.items():
            self.rows("select set_config(%s, %s, true)", f"hydrator.{name}", str(value))

    def valid_indexes(self) -> dict[str, bool]:
        """Give the indexes of the table, and which are valid."""
        return dict(
            self.rows(
                "select c.relname, i.indisvalid and i.indisready from pg_index i"
                " join pg_class c on c.oid = i.indexrelid where i.indrelid = 'hydrator.memories'::regclass"
            )
        )


def examine(
    url: str,
    *,
    samples: int = 20,
    progress: Progress = lambda phase, done, total: None,
) -> tuple[Finding, ...]:
    """Look a database over, problems first; writes nothing.

    Parameters
    ----------
    samples
        Stored vectors by which recall is measured in each of the two largest namespaces that are
        not ranked exactly; 0 measures nothing.
    progress
        Called with what is looked at, and the steps done and in all.

    Raises
    ------
    InstallationError
        The schema is not installed.
    HydratorError
        The role has no rights on the schema.
    StoreUnavailable
        The database cannot be reached.
    """
    findings: list[Finding] = []
    address = libpq_address(url)
    with translated(), psycopg.connect(address, autocommit=True, prepare_threshold=None) as connection:
        # One snapshot, so that counts which are compared are of one moment.
        connection.execute("begin isolation level repeatable read read only")
        store = _Store(connection, samples, progress)
        store.database, store.role = store.row("select current_database()::text, current_user::text")
        store.value("select hydrator.schema_version()")
        for number, (subject, check) in enumerate(_CHECKS):
            progress(subject, number, len(_CHECKS))
            try:
                with connection.transaction():
                    findings += list(check(store))
            except psycopg.Error as error:
                if connection.broken:
                    raise
                findings.append(_not_examined(store, subject, error))
        connection.execute("rollback")
    return tuple(sorted(findings, key=lambda finding: _SEVERITY[finding.state]))


def _not_examined(store: _Store, subject: str, error: psycopg.Error) -> Finding:
    message = error.diag.message_primary or str(error)
    mend = None
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        mend = store.statement(
            "grant select on all tables in schema hydrator to {role};\n"
            "grant execute on all functions in schema hydrator to {role};",
            role=store.role,
        )
    return Finding(subject, "advice", f"Not examined: {message}.", mend)


def _revision(store: _Store) -> Iterator[Finding]:
    found, head = store.value("select hydrator.schema_version()"), head_revision()
    installed = store.installation()
    kind = f"{installed.vector_type}({installed.dimensions}), {installed.distance}"
    if found == head:
        yield Finding("schema", "ok", f"Revision {found}, the newest; {kind}.")
    elif found is not None and found > head:
        what = f"Revision {found} is newer than {head}, the newest that this hydrator knows."
        yield Finding("schema", "problem", what, "pip install --upgrade hydrator")
    else:
        yield Finding("schema", "problem", f"Revision {found}; the newest is {head}.", "hydrator db upgrade")


def _defaults(store: _Store) -> dict[str, str]:
    text = render((SQL / "functions" / "setting.sql").read_text("utf-8"), store.installation())
    return dict(re.findall(r"when '(\w+)' then (\d+)", text))


def _settings(store: _Store) -> Iterator[Finding]:
    defaults = _defaults(store)
    wrong = False
    kept: set[tuple[str, str]] = set()
    for database, role, entry in store.rows(
        "select d.datname::text, r.rolname::text, c.entry from pg_db_role_setting s"
        " cross join unnest(s.setconfig) c (entry)"
        " left join pg_database d on d.oid = s.setdatabase left join pg_roles r on r.oid = s.setrole"
        " where c.entry like 'hydrator.%' and (s.setdatabase = 0 or d.datname = current_database())"
        " order by 1, 2, 3"
    ):
        name, _, value = entry.removeprefix("hydrator.").partition("=")
        kept.add((name, value))
        if name in defaults and _is_count(value):
            continue
        wrong = True
        parts = {"database": database, "role": role, "setting": name}
        if role is None:
            of, mend = f"database {database!r}", "alter database {database} reset hydrator.{setting};"
        elif database is None:
            of, mend = f"role {role!r}", "alter role {role} reset hydrator.{setting};"
        else:
            of = f"role {role!r} in database {database!r}"
            mend = "alter role {role} in database {database} reset hydrator.{setting};"
        used = {key: part for key, part in parts.items() if part is not None}
        yield _wrong_setting(name, value, f" for {of}", store.statement(mend, **used), defaults)

    shown = []
    for name, default in defaults.items():
        value = store.value("select current_setting(%s, true)", f"hydrator.{name}") or default
        if not _is_count(value):
            store.set_local(**{name: ""})  # or no later check could rank
            if (name, value) not in kept:  # postgresql.conf, or the connection's own options
                wrong = True
                mend = store.statement(
                    f"alter database {{database}} set hydrator.{name} = {default};", database=store.database
                )
                yield _wrong_setting(name, value, " in this session", mend, defaults)
        shown.append(f"{name} {value}" + ("" if value == default else f" (default {default})"))
    if not wrong:
        yield Finding("settings", "ok", f"hydrator: {', '.join(shown)}.")


def _is_count(value: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", value) is not None or value == ""


def _wrong_setting(name: str, value: str, of: str, mend: str, defaults: dict[str, str]) -> Finding:
    subject = f"setting hydrator.{name}"
    if name not in defaults:
        return Finding(subject, "advice", f"Set to {value!r}{of}, and there is no such setting.", mend)
    return Finding(subject, "problem", f"Set to {value!r}{of}, which is no whole number: calls fail.", mend)


def _largest(store: _Store) -> Iterator[Finding]:
    # From one namespace to the next in the primary key, so that those are seen too which the
    # counts do not know.
    rows = store.rows(
        """
        with recursive walked (namespace, number) as (
          (select m.namespace, 1 from hydrator.memories m order by m.namespace limit 1)
          union all
          select
            (select m.namespace from hydrator.memories m where m.namespace > w.namespace
             order by m.namespace limit 1),
            w.number + 1
          from walked w
          where w.namespace is not null and w.number < %s
        ),
        known as (
          select w.namespace from walked w where w.namespace is not null
          union
          (select c.namespace from hydrator.namespace_counts c
           group by c.namespace having sum(c.lasting) > 0 order by sum(c.lasting) desc limit %s)
        )
        select k.namespace, hydrator.count_live(array[k.namespace]) from known k order by 2 desc, 1
        """,
        WALKED,
        LARGEST,
    )
    store.namespaces = [namespace for namespace, _ in rows]
    store.largest = [(namespace, live) for namespace, live in rows[:LARGEST] if live > 0]
    if len(rows) >= WALKED:
        what = f"More than {WALKED:,}: only the first, and the largest by their counts, were looked at."
        yield Finding("namespaces", "ok", what)

    exact_max, bits_max = store.setting("exact_max_rows"), store.setting("bits_max_rows")
    percent = store.setting("hnsw_min_percent")
    indexes = store.valid_indexes()
    there = [name for name in NAMES if indexes.get(index_name(name))]
    table_rows = store.estimated_rows("select from hydrator.memories")
    for namespace, live in store.largest:
        way = store.value("select hydrator.choose_ranking(%s)", live)
        subject = f"namespace {namespace!r}"
        what = f"{live:,} live memories, ranked by {way}"
        fair = live * 100 >= table_rows * percent
        if live > exact_max and way == "exact":
            name = "hnsw" if live > bits_max and fair and "hnsw" not in there else "bits"
            having = f"{' and '.join(there)} does not serve it" if there else "no optional index is there"
            what += f" although above exact_max_rows ({exact_max:,}): {having}."
            yield Finding(subject, "advice", what, f"hydrator db index create {name}")
        elif live > bits_max and fair and "hnsw" not in there and way != "exact":
            what += f" although above bits_max_rows ({bits_max:,}): its time grows with the namespace."
            yield Finding(subject, "advice", what, "hydrator db index create hnsw")
        else:
            yield Finding(subject, "ok", what + ".")
    if not store.largest:
        yield Finding("namespaces", "ok", "There are no live memories.")


def _statements(store: _Store) -> tuple[str, Installation]:
    installation = store.installation()
    return render((SQL / "tables" / "memories.sql").read_text("utf-8"), installation), installation


def _indexes(store: _Store) -> Iterator[Finding]:
    text, installation = _statements(store)
    wanted = {
        match[2]: _one_line(f"create {match[1] or ''}index concurrently {match[2]}{match[3]}")
        for match in re.finditer(r"create (unique )?index (\w+)( on hydrator\.memories\b[^;]*;)", text)
    }
    wanted["memories_pkey"] = (
        "alter table hydrator.memories add constraint memories_pkey primary key (namespace, memory_id);"
    )
    optional = {
        index_name(name): _one_line(
            re.sub(
                "^--.*",
                "",
                render((SQL / "indexes" / f"{name}.sql").read_text("utf-8"), installation),
                flags=re.M,
            )
        )
        for name in NAMES
    }
    found = store.valid_indexes()
    building = dict(
        store.rows(
            "select c.relname, p.phase from pg_stat_progress_create_index p"
            " join pg_class c on c.oid = p.index_relid"
            " where p.relid = to_regclass('hydrator.memories') and p.datname = current_database()"
        )
    )
    sound = True
    for name, create in {**wanted, **optional}.items():
        if name in building:
            yield Finding(f"index {name}", "ok", f"It is being built: {building[name]}.")
        elif name not in found and name in wanted:
            sound = False
            yield Finding(f"index {name}", "problem", "It is missing.", create)
        elif name in found and not found[name]:
            sound = False
            drop = f"drop index concurrently hydrator.{name};"
            if name == "memories_pkey":
                drop = "alter table hydrator.memories drop constraint memories_pkey;"
            what = "It is invalid, as an interrupted build leaves it: kept up by each write and never used."
            yield Finding(f"index {name}", "problem", what, f"{drop}\n{create}")
    if sound:
        sizes = store.rows(
            "select c.relname, pg_relation_size(c.oid) from pg_index i"
            " join pg_class c on c.oid = i.indexrelid where i.indrelid = 'hydrator.memories'::regclass"
            " order by 2 desc"
        )
        shown = ", ".join(f"{name} {_bytes(size)}" for name, size in sizes if size > 2**20)
        yield Finding("indexes", "ok", f"All {len(found)} are valid{': ' + shown if shown else ''}.")


def _triggers(store: _Store) -> Iterator[Finding]:
    text, _ = _statements(store)
    enabled = dict(
        store.rows(
            "select t.tgname, t.tgenabled in ('O', 'A') from pg_trigger t"
            " where t.tgrelid = 'hydrator.memories'::regclass and not t.tgisinternal"
        )
    )
    for match in re.finditer(r"create trigger (\w+)[^;]*;", text):
        subject = f"trigger {match[1]}"
        if match[1] not in enabled:
            yield Finding(subject, "problem", "It is missing.", _one_line(match[0]))
        elif not enabled[match[1]]:
            mend = f"alter table hydrator.memories enable trigger {match[1]};"
            yield Finding(subject, "problem", "It is disabled: writes go unchecked or uncounted.", mend)


def _tier_1(store: _Store) -> Iterator[Finding]:
    pages, visible = store.row(
        "select pg_relation_size(c.oid) / current_setting('block_size')::integer, c.relallvisible"
        " from pg_class c where c.oid = 'hydrator.memories'::regclass"
    )
    share = 1.0 if pages == 0 else min(visible / pages, 1.0)
    what = f"{share:.0%} of {pages:,} pages are all-visible"
    read = fetched = 0
    if store.largest:  # the share is of the last vacuum; a read tells what holds now
        read, fetched = _read_index(store, store.largest[0][0])
        what += f", and {read:,} index entries took {fetched:,} look-ups in the table"
    if pages > 1_000 and (share < 0.9 or fetched > 0.1 * read):
        what += ": the compact index is not read from the index alone."
        yield Finding("Tier 1", "advice", what, "vacuum (analyze) hydrator.memories;")
    else:
        sound = share >= 0.9 and fetched <= 0.1 * read
        yield Finding("Tier 1", "ok", what + ("." if sound else "; the table is too small for it to matter."))


def _read_index(store: _Store, namespace: str) -> tuple[int, int]:
    """Read the head of a namespace's index; give the entries and the heap fetches."""
    store.rows(
        "select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"
    )
    plan = store.value(
        store.statement(
            "explain (analyze, timing off, format json) select m.index_entry, m.index_tokens"
            " from hydrator.live_memories m where m.namespace = {namespace_}"
            " order by m.confidence desc, m.memory_id limit 10000",
            namespace_=namespace,
        )
    )[0]["Plan"]
    store.rows("select set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true)")
    nodes, fetched = [plan], 0
    for node in nodes:
        nodes += node.get("Plans", [])
        # One that reads rows without an index of theirs fetches each.
        only = node["Node Type"] == "Index Only Scan"
        scans = node.get("Relation Name") == "memories"
        fetched += node["Heap Fetches"] if only else node["Actual Rows"] if scans else 0
    return int(plan["Actual Rows"]), int(fetched)


_STORAGE = {"p": "plain", "e": "external", "m": "main", "x": "extended"}


def _stored(store: _Store) -> Iterator[Finding]:
    installation = store.installation()
    wanted = embedding_storage(installation)
    heap, toast = store.row(
        "select pg_relation_size(c.oid), coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0)"
        " from pg_class c where c.oid = 'hydrator.memories'::regclass"
    )
    sound = True
    for column, storage in store.rows(
        "select a.attname::text, a.attstorage::text from pg_attribute a"
        " where a.attrelid = 'hydrator.memories'::regclass and a.attname in ('embedding', 'embedding_bits')"
        " order by 1"
    ):
        if _STORAGE[storage] != wanted:
            sound = False
            cost = (
                "each distance may pay a look-up in TOAST" if wanted == "plain" else "rows may not fit a page"
            )
            what = (
                f"{column} is stored {_STORAGE[storage]}, not {wanted}: {cost}."
                " The change holds for rows that are written after it."
            )
            mend = f"alter table hydrator.memories alter column {column} set storage {wanted};"
            yield Finding("storage", "advice", what, mend)
    if sound:
        where = "in the row" if wanted == "plain" else "in TOAST"
        what = f"Embeddings are stored {where} ({wanted}); table {_bytes(heap)}, TOAST {_bytes(toast)}."
        yield Finding("storage", "ok", what)


def _recall(store: _Store) -> Iterator[Finding]:
    indexes = store.valid_indexes()
    ways = [name for name in NAMES if indexes.get(index_name(name))]
    exact_max = store.setting("exact_max_rows")
    large = [(namespace, live) for namespace, live in store.largest if live > exact_max][:MEASURED]
    if not ways or not large or store.samples < 1:
        return
    knobs = {"bits": "rerank_factor", "hnsw": "ef_search"}
    values = {name: store.setting(name) for name in knobs.values()}
    schema = store.installation().extension_schema
    for namespace, live in large:
        used = {store.value("select hydrator.choose_ranking(%s, %s)", live, by) for by in (False, True)}
        measured = _measure(store, schema, namespace, ways)
        if measured is None:
            continue
        exact_ms, told = measured
        for way, (recall, ms, fell_back) in told.items():
            what = (
                f"{way} has recall@{_NEAREST} {recall:.3f} over {store.samples} stored vectors,"
                f" in {ms:.1f} ms against {exact_ms:.1f} ms exact"
            )
            if fell_back:
                what += f"; {fell_back} were finished exactly"
            subject = f"recall in {namespace!r}"
            knob = knobs[way]
            raised = min(values[knob] * 2, 1000) if way == "hnsw" else values[knob] * 2
            if recall < RECALL and way in used and raised > values[knob]:
                mend = store.statement(
                    f"alter database {{database}} set hydrator.{knob} = {raised};", database=store.database
                )
                what += f"; a higher hydrator.{knob} (now {values[knob]}) finds more and takes longer."
                yield Finding(subject, "advice", what, mend)
            else:
                yield Finding(subject, "ok", what + ("." if way in used else "; it is not in use here."))


def _measure(
    store: _Store, schema: str, namespace: str, ways: Sequence[str]
) -> tuple[float, dict[str, tuple[float, float, int]]] | None:
    """Give the exact way's median in ms and each way's recall, median and exact finishes."""
    # By the hash of the ids, so that the next run measures the same.
    ids = [
        memory_id
        for (memory_id,) in store.rows(
            "select m.memory_id from hydrator.live_memories m"
            " where m.namespace = %s and m.embedding is not null"
            " order by uuid_hash(m.memory_id), m.memory_id limit %s",
            namespace,
            store.samples,
        )
    ]
    rank = sql.SQL(
        "select r.memory_ids, r.distances, r.ranked_by from hydrator.memories m"
        " cross join lateral hydrator.rank_memories("
        "m.embedding::{}, array[m.namespace], {}, null, null, null, m.embedding_model,"
        " null, null, false) r"
        " where m.namespace = %s and m.memory_id = %s"
    ).format(sql.Identifier(schema, "vector"), sql.Literal(_NEAREST))
    times: dict[str, list[float]] = {way: [] for way in ("exact", *ways)}
    shares: dict[str, list[float]] = {way: [] for way in ways}
    fell_back = dict.fromkeys(ways, 0)
    for number, memory_id in enumerate(ids):
        store.progress(f"recall in {namespace!r}", number, len(ids))
        bound, others = 0.0, 0
        for way in ("exact", *ways):
            store.set_local(**_WAYS[way])
            start = time.perf_counter()
            found, distances, ranked_by = store.row(rank, namespace, memory_id)
            times[way].append((time.perf_counter() - start) * 1000)
            # Without the vector itself, which finds itself; by distance, since ties are as good.
            apart = [d for other, d in zip(found, distances, strict=True) if other != memory_id]
            if way == "exact":
                apart = apart[: _NEAREST - 1]
                bound, others = (apart[-1] if apart else 0.0), len(apart)
            else:
                near = sum(distance <= bound + 1e-6 for distance in apart)
                shares[way].append(min(near, others) / others if others else 1.0)
                fell_back[way] += ranked_by == "exact"
    if not ids:
        return None
    told = {
        way: (statistics.fmean(shares[way]), statistics.median(times[way]), fell_back[way]) for way in ways
    }
    return statistics.median(times["exact"]), told


def _dead_memories(store: _Store) -> Iterator[Finding]:
    rows = store.estimated_rows("select from hydrator.memories")
    about = ""
    if rows > 1_000_000:
        live, about = store.estimated_rows("select from hydrator.live_memories"), "about "
    else:
        rows, live = store.row(
            "select (select count(*) from hydrator.memories), (select count(*) from hydrator.live_memories)"
        )
    dead = max(rows - live, 0)
    share = dead / rows if rows else 0.0
    what = f"{about}{dead:,} of {rows:,} memories ({share:.0%}) are deleted, superseded or expired"
    if share > 0.3 and dead > 100:
        mend = "select hydrator.purge(interval '30 days');"
        what += "; those dead for longer than 30 days can go."
        yield Finding("dead memories", "advice", what[0].upper() + what[1:], mend)
    else:
        yield Finding("dead memories", "ok", what[0].upper() + what[1:] + ".")


def _dead_tuples(store: _Store) -> Iterator[Finding]:
    for table, live, dead, vacuumed, analyzed in store.rows(
        "select s.relname::text, s.n_live_tup, s.n_dead_tup,"
        " to_char(greatest(s.last_autovacuum, s.last_vacuum), 'YYYY-MM-DD HH24:MI'),"
        " greatest(s.last_autoanalyze, s.last_analyze) is not null"
        " from pg_stat_user_tables s"
        " where s.schemaname = 'hydrator' and s.relname in ('memories', 'namespace_counts') order by 1"
    ):
        what = f"{table} has {dead:,} dead rows beside {live:,} others, last vacuum {vacuumed or 'never'}"
        if dead > 10_000 and dead > 0.2 * (live + dead):
            what += "; autovacuum is late or held back by an old transaction."
            yield Finding("dead tuples", "advice", what, f"vacuum (analyze) hydrator.{table};")
        elif live > 10_000 and not analyzed:
            what += "; it was never analyzed, so plans and ways are chosen blindly."
            yield Finding("dead tuples", "advice", what, f"vacuum (analyze) hydrator.{table};")
        elif table == "memories":
            yield Finding("dead tuples", "ok", what + ".")


_RECOUNT = (
    "do $mend$ begin lock table hydrator.namespace_counts in share row exclusive mode;"
    " delete from hydrator.namespace_counts{which_counts};"
    " insert into hydrator.namespace_counts (namespace, writer, lasting)"
    " select m.namespace, 0, count(*) from hydrator.memories m"
    " where m.deleted_at is null and m.expires_at is null{which_memories} group by m.namespace; end $mend$;"
)


def _recount(store: _Store, namespace: str | None) -> str:
    """Write the statement that counts anew; the lock makes it wait for those who have counted."""
    text = _RECOUNT.format(which_counts="", which_memories="")
    if namespace is not None:
        text = _RECOUNT.format(
            which_counts=" where namespace = {namespace_}",
            which_memories=" and m.namespace = {namespace_}",
        )
        text = store.statement(text, namespace_=namespace)
        if "$mend$" in namespace:
            tag = max(re.findall("_+", namespace), default="", key=len) + "_"
            text = f"do ${tag}${text.removeprefix('do $mend$').removesuffix('$mend$;')}${tag}$;"
    return text


def _counts(store: _Store) -> Iterator[Finding]:
    if store.value("select row_security_active('hydrator.memories')"):
        yield Finding("counts", "ok", "Not examined: row security hides memories from this role.")
        return
    if store.estimated_rows("select from hydrator.memories") <= 2 * COUNTED:
        rows = store.rows(
            """
            with counted as (
              select c.namespace, 0 as live from hydrator.namespace_counts c
              union all
              select m.namespace, 1 from hydrator.live_memories m
            )
            select c.namespace, hydrator.count_live(array[c.namespace]), sum(c.live)
            from counted c group by c.namespace order by 3 desc, 1
            """
        )
    else:
        # The commonest by the planner's statistics too: the counts may not know the largest.
        rows = store.rows(
            """
            with asked as (
              select u.namespace from unnest(%s::text[]) u (namespace)
              union
              (select s.namespace from pg_stats p
               cross join unnest(p.most_common_vals::text::text[]) with ordinality s (namespace, rank)
               where p.schemaname = 'hydrator' and p.tablename = 'memories' and p.attname = 'namespace'
               order by s.rank limit %s)
            )
            select a.namespace, hydrator.count_live(array[a.namespace]), t.live
            from asked a
            cross join lateral (
              select count(*) as live
              from (select from hydrator.live_memories m where m.namespace = a.namespace limit %s) l
            ) t
            where t.live <= %s
            """,
            [namespace for namespace, live in store.largest if live <= COUNTED],
            LARGEST,
            COUNTED + 1,
            COUNTED,
        )
    wrong = [(namespace, told, true) for namespace, told, true in rows if told != true]
    if not wrong:
        yield Finding("counts", "ok", f"Right in the {len(rows):,} namespaces that were counted.")
    elif len(wrong) > 3:
        namespace, told, true = max(wrong, key=lambda row: abs(row[1] - row[2]))
        what = (
            f"Wrong in {len(wrong):,} of {len(rows):,} namespaces, such as {namespace!r}: {told:,} told,"
            f" {true:,} there, as a load without triggers leaves them."
        )
        yield Finding("counts", "problem", what, _recount(store, None))
    else:
        for namespace, told, true in wrong:
            what = f"{told:,} live memories told in {namespace!r}, {true:,} there."
            yield Finding("counts", "problem", what, _recount(store, namespace))


def _row_security(store: _Store) -> Iterator[Finding]:
    secured, role_bypasses = store.row(
        "select c.relrowsecurity and c.relforcerowsecurity, r.rolsuper or r.rolbypassrls"
        " from pg_class c cross join pg_roles r"
        " where c.oid = 'hydrator.memories'::regclass and r.rolname = current_user"
    )
    uncovered = store.rows(
        "select c.relname::text from pg_class c"
        " join pg_attribute a on a.attrelid = c.oid and a.attname = 'namespace'"
        " where c.relnamespace = 'hydrator'::regnamespace and c.relkind in ('r', 'p')"
        " and not (c.relrowsecurity and c.relforcerowsecurity) order by 1"
    )
    if not secured:
        what = "Off: a role that may read the tables reads every namespace (hydrator db secure)."
        yield Finding("row security", "ok", what)
    elif uncovered:
        what = f"It does not cover {', '.join(name for (name,) in uncovered)}."
        yield Finding("row security", "problem", what, "hydrator db secure")
    else:
        bound = "does not bind" if role_bypasses else "binds"
        yield Finding("row security", "ok", f"On; it {bound} the role {store.role!r} that looks here.")


def _server(store: _Store) -> Iterator[Finding]:
    version, available = store.row(
        "select e.extversion, a.default_version from pg_extension e"
        " left join pg_available_extensions a on a.name = e.extname where e.extname = 'vector'"
    )
    if _version(version) < (0, 8):
        can = available is not None and _version(available) >= (0, 8)
        what = f"{version} has no iterative scan (0.8): where HNSW finds too few, the call ranks exactly."
        if not can:
            what += " The server has no newer one installed."
        yield Finding("pgvector", "advice", what, "alter extension vector update;" if can else None)
    else:
        yield Finding("pgvector", "ok", f"{version}, with iterative scan.")

    hnsw = store.value("select pg_relation_size(to_regclass('hydrator.memories_hnsw_idx'))")
    shared, shared_shown, maintenance, maintenance_shown, autovacuum = store.row(
        "select pg_size_bytes(current_setting('shared_buffers')), current_setting('shared_buffers'),"
        " pg_size_bytes(current_setting('maintenance_work_mem')), current_setting('maintenance_work_mem'),"
        " current_setting('autovacuum') = 'on'"
    )
    if hnsw is not None and hnsw > shared:
        what = f"{shared_shown} do not hold memories_hnsw_idx ({_bytes(hnsw)}); a restart makes it count."
        mend = f"alter system set shared_buffers = '{_megabytes(hnsw * 5 // 4)}';"
        yield Finding("shared_buffers", "advice", what, mend)
    if hnsw is not None and hnsw > maintenance:
        what = (
            f"{maintenance_shown} do not hold memories_hnsw_idx ({_bytes(hnsw)}): a reindex takes many times"
            " longer. `hydrator db index create` has its own --memory."
        )
        mend = store.statement(
            f"alter database {{database}} set maintenance_work_mem = '{_megabytes(hnsw * 5 // 4)}';",
            database=store.database,
        )
        yield Finding("maintenance_work_mem", "advice", what, mend)
    if not autovacuum:
        what = "It is off: dead rows stay, and Tier 1 is never index-only."
        mend = "alter system set autovacuum = on;\nselect pg_reload_conf();"
        yield Finding("autovacuum", "advice", what, mend)


def _models(store: _Store) -> Iterator[Finding]:
    rows = store.rows(
        """
        select n.namespace, lowest.embedding_model, highest.embedding_model
        from unnest(%s::text[]) n (namespace)
        cross join lateral (
          select m.embedding_model from hydrator.live_memories m
          where m.namespace = n.namespace collate "C"
            and m.embedding is not null and m.embedding_model is not null
          order by m.embedding_model limit 1
        ) lowest
        cross join lateral (
          select m.embedding_model from hydrator.live_memories m
          where m.namespace = n.namespace collate "C"
            and m.embedding is not null and m.embedding_model is not null
          order by m.embedding_model desc limit 1
        ) highest
        order by array_position(%s::text[], n.namespace)
        """,
        store.namespaces,
        store.namespaces,
    )
    mixed = [row for row in rows if row[1] != row[2]]
    for namespace, lowest, highest in mixed[:LARGEST]:
        what = (
            f"Vectors of {lowest!r} and of {highest!r} in namespace {namespace!r}: rankings are refused"
            " until all are embedded by one model."
        )
        yield Finding("models", "problem", what)
    if len(mixed) > LARGEST:
        yield Finding("models", "problem", f"So have {len(mixed) - LARGEST:,} other namespaces.")
    if not mixed:
        used = sorted({row[1] for row in rows})
        shown = ", ".join(used[:3]) + (", …" if len(used) > 3 else "")
        yield Finding("models", "ok", f"One a namespace at the most{': ' + shown if used else ''}.")


_CHECKS: tuple[tuple[str, Callable[[_Store], Iterator[Finding]]], ...] = (
    ("schema", _revision),
    ("settings", _settings),
    ("indexes", _indexes),
    ("triggers", _triggers),
    ("namespaces", _largest),
    ("counts", _counts),
    ("models", _models),
    ("Tier 1", _tier_1),
    ("storage", _stored),
    ("dead memories", _dead_memories),
    ("dead tuples", _dead_tuples),
    ("row security", _row_security),
    ("server", _server),
    ("recall", _recall),
)


def _one_line(statement: str) -> str:
    return " ".join(statement.split())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _bytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"


def _megabytes(size: int) -> str:
    return f"{max(-(-size // 2**20), 1)}MB"
