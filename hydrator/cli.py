"""The command line: each command opens a store, makes one call and shows what came back."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from hydrator import block, calls, evaluation
from hydrator.addresses import READ_URL_VARIABLE, URL_VARIABLE, resolve_url
from hydrator.embedders import Embedded
from hydrator.embedding import Embedder, check_fits
from hydrator.errors import HydratorError, UnknownMemory
from hydrator.extras import extra
from hydrator.importing import ImportSummary, import_memories
from hydrator.locomo import Memories
from hydrator.receipt import bench_table, doctor_table, eval_table, plans, receipt, tenants_table
from hydrator.store import MemoryStore

app = typer.Typer(
    help="Memory hydration for LLM agents, inside Postgres.",
    epilog=f"Without --url or {URL_VARIABLE} an embedded server is started and used. "
    "Start with: hydrator demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
db = typer.Typer(help="The database: install, upgrade, find and stop it.", no_args_is_help=True)
app.add_typer(db, name="db")
db_index = typer.Typer(help="The optional indexes, for large stores.", no_args_is_help=True)
db.add_typer(db_index, name="index")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Url = Annotated[
    str | None,
    typer.Option(
        "--url", envvar=URL_VARIABLE, show_envvar=True, help="The database; else the embedded server."
    ),
]
ReadUrl = Annotated[
    str | None,
    typer.Option(
        help=f"A hot standby to read from; else {READ_URL_VARIABLE}, for the database of {URL_VARIABLE}."
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Whose memory it is.")]
Namespaces = Annotated[
    list[str], typer.Option("--namespace", "-n", help="A namespace to read; give several for several.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
EmbedderName = Annotated[
    Embedded,
    typer.Option(
        "--embedder",
        envvar="HYDRATOR_EMBEDDER",
        show_envvar=True,
        help="What makes the vectors; a store holds those of one.",
    ),
]
MemoryTypes = Annotated[
    list[str] | None,
    typer.Option("--type", "-t", help="Rank this memory type only; give several for several."),
]
MinSimilarity = Annotated[
    float | None,
    typer.Option(min=-1e30, help="Rank nothing less similar than this; 1 is the same direction."),
]
Metadata = Annotated[
    str | None, typer.Option(help="Rank only memories whose metadata contains this JSON object.")
]


def _print_json(value: Any) -> None:
    def plain(item: Any) -> Any:
        return (
            dataclasses.asdict(item)
            if dataclasses.is_dataclass(item) and not isinstance(item, type)
            else str(item)
        )

    typer.echo(json.dumps(value, default=plain, ensure_ascii=False, indent=2))


def _json_object(text: str | None, option: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint=option) from error
    if not isinstance(value, dict):
        raise typer.BadParameter("not a JSON object", param_hint=option)
    return value


def _embedder(store: MemoryStore, name: Embedded) -> Embedder:
    """Give the embedder of that name, or say why it does not fit the store."""
    embedder = name.load()
    check_fits(embedder, store.installation())
    return embedder


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hydrator {importlib.metadata.version('hydrator')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@db.command("upgrade")
def db_upgrade(
    revision: Annotated[str, typer.Argument(help="The revision to go to.")] = "head",
    url: Url = None,
    dimensions: Annotated[
        int | None, typer.Option(help="Length of every embedding; 256 if never said.")
    ] = None,
    vector_type: Annotated[str | None, typer.Option(help="vector or halfvec.")] = None,
    distance: Annotated[str | None, typer.Option(help="cosine, inner_product or l2.")] = None,
    extension_schema: Annotated[
        str | None, typer.Option(help="The schema pgvector is in, or is to be in.")
    ] = None,
    text_search_config: Annotated[
        str | None, typer.Option(help="How texts are read: simple, german, …; english if never said.")
    ] = None,
) -> None:
    """Install the schema, or bring it up to date. Safe to run again, and by many at once.

    Dimensions, vector type, distance, the extension's schema and the text search configuration are
    settled by the first upgrade.

    Example: hydrator db upgrade --url postgresql://localhost/app --dimensions 1536
    """
    from hydrator import migrations

    settings = {
        "dimensions": dimensions,
        "vector_type": vector_type,
        "distance": distance,
        "extension_schema": extension_schema,
        "text_search_config": text_search_config,
    }
    address = resolve_url(url, migrate=False)
    requested = {name: value for name, value in settings.items() if value is not None}
    migrations.upgrade(address, revision, **requested)
    with MemoryStore(address) as store:
        out.print(f"The schema is at revision {store.schema_version()}.")


@db.command("downgrade")
def db_downgrade(
    revision: Annotated[str, typer.Argument(help="The revision to go back to; base removes everything.")],
    url: Url = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Go back to an older revision. Going to base removes the schema and all memories in it.

    Example: hydrator db downgrade base --yes
    """
    from hydrator import migrations

    if not yes:
        typer.confirm(f"Go back to {revision}? Memories may be lost", abort=True, err=True)
    migrations.downgrade(resolve_url(url, migrate=False), revision)
    out.print(f"The schema is at revision {revision}.")


@db.command("current")
def db_current(url: Url = None, as_json: Json = False) -> None:
    """Show the schema's revision and what was settled at install."""
    with MemoryStore(resolve_url(url, migrate=False)) as store:
        current = {"revision": store.schema_version(), **dataclasses.asdict(store.installation())}
    if as_json:
        _print_json(current)
        return
    for name, value in current.items():
        out.print(f"{name.replace('_', ' '):18} {value}")


@db.command("secure")
def db_secure(
    url: Url = None,
    show: Annotated[bool, typer.Option("--show", help="Print the statements and run none.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Turn row security off again.")] = False,
    reader: Annotated[str, typer.Option(help="The role whose members may read.")] = "hydrator_reader",
    writer: Annotated[str, typer.Option(help="The role whose members may write too.")] = "hydrator_writer",
    admin: Annotated[str, typer.Option(help="The role that sees all, and grants.")] = "hydrator_admin",
) -> None:
    """Turn row security on: a role then sees the namespaces that hydrator.namespace_grants gives it.

    Safe to run again, and to be run again after an upgrade.

    Example: hydrator db secure --show
    """
    from hydrator import security

    address = resolve_url(url)
    statements = security.secure(address, on=not off, show=show, roles=(reader, writer, admin))
    if show:
        for statement in statements:
            typer.echo(f"{statement};")
    elif off:
        out.print("Row security is off: who may read the tables reads every namespace.")
    else:
        out.print(f"Row security is on; grant {reader} or {writer}, and rows of hydrator.namespace_grants.")
        if unbound := security.unbound(address):
            out.print(f"It does not bind superusers and roles with BYPASSRLS: {escape(', '.join(unbound))}.")


@db.command("url")
def db_url(url: Url = None) -> None:
    """Print the database's address, for psql or any other client; starts the embedded server.

    Example: psql "$(hydrator db url)"
    """
    typer.echo(resolve_url(url))


@db.command("stop")
def db_stop() -> None:
    """Stop the embedded server; its memories stay. Safe to run again."""
    from hydrator.embedded import EmbeddedServer

    out.print("Stopped." if EmbeddedServer().stop() else "It was not running.")


@db.command("explain")
def db_explain(
    task: Annotated[str, typer.Argument(help="What the session is about.")],
    namespaces: Namespaces,
    url: Url = None,
    top_k: Annotated[int, typer.Option(help="How many memories to rank.")] = 5,
    budget: Annotated[int, typer.Option(help="Tokens for index and memories together.")] = 6000,
    index_budget: Annotated[
        int | None, typer.Option(help="Tokens for the index; else it loads whole.")
    ] = None,
    memory_types: MemoryTypes = None,
    min_similarity: MinSimilarity = None,
    metadata: Metadata = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Show the plans inside a hydration, with rows, times and buffers, the call itself last.

    Needs a superuser, or one who has let the role load auto_explain.

    Example: hydrator db explain "fix the failing deploy" -n acme
    """
    from hydrator import explaining

    address = resolve_url(url)
    with MemoryStore(address) as store:
        embedder = _embedder(store, embedder_name)
    [embedding] = embedder.embed([task])
    call = calls.hydrate_session(
        embedding,
        namespaces,
        top_k=top_k,
        token_budget=budget,
        index_budget=index_budget,
        memory_types=memory_types or None,
        min_similarity=min_similarity,
        metadata=_json_object(metadata, "--metadata"),
        embedding_model=embedder.model,
        query_text=task,
    )
    explained = explaining.explain(address, call)
    if as_json:
        _print_json(explained)
    else:
        out.print(plans(explained))


@db_index.command("create")
def db_index_create(
    name: Annotated[str, typer.Argument(help="bits or hnsw.")],
    url: Url = None,
    memory: Annotated[str, typer.Option(help="Memory for the build; an HNSW graph should fit in.")] = "1GB",
) -> None:
    """Create an optional index while the store is in use; safe to run again.

    bits serves rankings over some thousands of memories, hnsw those over more.

    Example: hydrator db index create hnsw --memory 4GB
    """
    from hydrator import indexes

    address = resolve_url(url)
    with _progress(f"Creating {indexes.index_name(name)}") as progress:
        created = indexes.create_index(
            address, name, memory=memory, progress=lambda phase, done, total: progress(done, total or None)
        )
    out.print("Created." if created else "It is there already.")


@db_index.command("drop")
def db_index_drop(name: Annotated[str, typer.Argument(help="bits or hnsw.")], url: Url = None) -> None:
    """Drop an optional index while the store is in use; rankings go on without it.

    Example: hydrator db index drop hnsw
    """
    from hydrator import indexes

    indexes.drop_index(resolve_url(url), name)
    out.print("Dropped.")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A memory directory, or a file of JSON Lines.", exists=True)],
    namespace: Namespace,
    url: Url = None,
    source: Annotated[
        str | None,
        typer.Option(help="The name the memories are known by at the next import; the path's own."),
    ] = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Import memories: new ones are remembered, changed ones supersede, the rest stays as it is.

    A memory directory is a MEMORY.md of one-line entries beside one Markdown file a memory. A line
    of JSON has a heading and may have content, key, memory_type, confidence, source_type,
    expires_at, pinned, metadata, embedding, embedding_model, token_count.

    Example: hydrator import ~/notes/memory -n acme
    """
    with MemoryStore(url) as store:
        summary = _import(store, path, namespace, source, embedder_name)
    if as_json:
        _print_json(summary)
        return
    for problem in summary.problems:
        out.print(f"[yellow]{escape(problem.name)}[/] {escape(problem.message)}")
    out.print(
        f"{summary.imported:,} imported, {summary.unchanged:,} unchanged, "
        f"{summary.superseded:,} superseded, {summary.skipped:,} skipped."
    )


def _import(
    store: MemoryStore,
    path: Path,
    namespace: str,
    source: str | None = None,
    embedder_name: Embedded = Embedded.WORDLLAMA,
) -> ImportSummary:
    embedder = _embedder(store, embedder_name)
    with _progress(f"Importing {path.name}") as progress:
        return import_memories(store, embedder, path, namespace, source=source, progress=progress)


@contextmanager
def _progress(title: str) -> Iterator[Any]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command()
def remember(
    heading: Annotated[str, typer.Argument(help="One line of 1 to 200 characters: the line of the index.")],
    content: Annotated[
        str | None, typer.Argument(help="The memory in full; - reads it from the input.")
    ] = None,
    *,
    namespace: Namespace,
    url: Url = None,
    memory_type: Annotated[str, typer.Option("--type", "-t", help="A lower-case word.")] = "semantic",
    confidence: Annotated[float, typer.Option(help="From 0 to 1.")] = 1.0,
    source_type: Annotated[str, typer.Option(help="Who observed it.")] = "agent",
    supersedes: Annotated[str | None, typer.Option(help="The id of the memory it replaces.")] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="An ISO time with a zone, such as 2030-01-31T12:00Z.")
    ] = None,
    pinned: Annotated[bool, typer.Option("--pinned", help="A candidate of every hydration.")] = False,
    metadata: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Remember something, and print its id.

    Example: hydrator remember "Deploys run on Fridays" "After 15:00, never before a holiday." -n acme
    """
    if content == "-":
        content = sys.stdin.read()
    try:
        expiry = None if expires_at is None else datetime.fromisoformat(expires_at)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires-at") from error
    with MemoryStore(url) as store:
        embedder = _embedder(store, embedder_name)
        text = heading if content is None else f"{heading}\n{content}"
        [embedding] = embedder.embed([text])
        memory_id = store.remember(
            namespace,
            heading,
            content,
            embedding=embedding,
            embedding_model=embedder.model,
            memory_type=memory_type,
            confidence=confidence,
            source_type=source_type,
            supersedes=supersedes,
            expires_at=expiry,
            pinned=pinned,
            metadata=_json_object(metadata, "--metadata"),
        )
    if as_json:
        _print_json({"memory_id": memory_id})
    else:
        typer.echo(memory_id)


@app.command()
def forget(
    memory_id: Annotated[str, typer.Argument(help="The memory's id.")],
    namespace: Namespace,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Forget a memory: no call shows it any more. Its row stays until it is purged.

    Example: hydrator forget 5a0c6e9e-... -n acme
    """
    with MemoryStore(url) as store:
        if not store.forget(namespace, memory_id):
            raise UnknownMemory(f"there is no live memory {memory_id} in namespace {namespace!r}")
    if as_json:
        _print_json({"forgotten": memory_id})
    else:
        out.print("Forgotten.")


@app.command()
def quarantine(
    memory_id: Annotated[str, typer.Argument(help="The memory's id.")],
    namespace: Namespace,
    url: Url = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it later.")] = "no reason given",
    as_json: Json = False,
) -> None:
    """Take a memory out of every call without losing it; release brings it back.

    Example: hydrator quarantine 5a0c6e9e-... -n acme --reason "contradicts the runbook"
    """
    with MemoryStore(url) as store:
        if not store.quarantine(namespace, memory_id, reason=reason):
            raise UnknownMemory(f"there is no live memory {memory_id} in namespace {namespace!r}")
    if as_json:
        _print_json({"quarantined": memory_id})
    else:
        out.print("In quarantine.")


@app.command()
def release(
    memory_id: Annotated[str, typer.Argument(help="The memory's id.")],
    namespace: Namespace,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Bring a memory back from quarantine.

    Example: hydrator release 5a0c6e9e-... -n acme
    """
    with MemoryStore(url) as store:
        if not store.release(namespace, memory_id):
            raise UnknownMemory(f"there is no memory {memory_id} in quarantine in namespace {namespace!r}")
    if as_json:
        _print_json({"released": memory_id})
    else:
        out.print("Released.")


@app.command()
def quarantined(namespaces: Namespaces, url: Url = None, as_json: Json = False) -> None:
    """Show what is in quarantine, latest first, and why.

    Example: hydrator quarantined -n acme
    """
    with MemoryStore(url) as store:
        memories = store.list_quarantined(namespaces)
    if as_json:
        _print_json(memories)
        return
    table = Table("id", "heading", "source", "since", "reason", box=None, pad_edge=False)
    for memory in memories:
        table.add_row(
            str(memory.memory_id),
            escape(block.one_line(memory.heading)),
            escape(block.one_line(memory.source_type)),
            f"{memory.quarantined_at:%Y-%m-%d %H:%M}",
            escape(block.one_line(memory.reason)),
        )
    out.print(table)


@app.command()
def duplicates(
    namespaces: Namespaces,
    url: Url = None,
    distance: Annotated[float, typer.Option(help="How far apart two memories may be.")] = 0.05,
    limit: Annotated[int, typer.Option(help="How many pairs at the most.")] = 20,
    as_json: Json = False,
) -> None:
    """Show pairs of memories that say nearly the same, by their embeddings, nearest first.

    Compares every memory of a namespace with every other.

    Example: hydrator duplicates -n acme --distance 0.1
    """
    with MemoryStore(url) as store:
        pairs = store.near_duplicates(namespaces, distance=distance, limit=limit)
    if as_json:
        _print_json(pairs)
        return
    for pair in pairs:
        out.print(f"[bold]{pair.distance:.3f}[/]  {escape(block.one_line(pair.heading))}  {pair.memory_id}")
        out.print(f"       {escape(block.one_line(pair.other_heading))}  {pair.other_memory_id}")


@app.command()
def index(
    namespaces: Namespaces,
    url: Url = None,
    read_url: ReadUrl = None,
    index_budget: Annotated[int | None, typer.Option(help="Show only what fits into so many tokens.")] = None,
    as_json: Json = False,
) -> None:
    """Show the compact index: one line a live memory, best confidence first.

    Example: hydrator index -n acme -n shared
    """
    with MemoryStore(url, read_url=read_url) as store:
        entries = store.compact_index(namespaces, token_budget=index_budget)
    if as_json:
        _print_json(entries)
        return
    table = Table("id", "heading", "type", "confidence", box=None, pad_edge=False)
    for entry in entries:
        table.add_row(
            str(entry.memory_id),
            escape(block.one_line(entry.heading)),
            entry.memory_type,
            f"{entry.confidence:.2f}",
        )
    out.print(table)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    namespaces: Namespaces,
    url: Url = None,
    read_url: ReadUrl = None,
    limit: Annotated[int, typer.Option(help="How many at the most.")] = 20,
    memory_types: MemoryTypes = None,
    min_similarity: MinSimilarity = None,
    metadata: Metadata = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Search for memories, by meaning and words: summaries, the best first. fetch shows them in full.

    Example: hydrator search "when do we deploy" -n acme --limit 5
    """
    with MemoryStore(url, read_url=read_url) as store:
        embedder = _embedder(store, embedder_name)
        [embedding] = embedder.embed([query])
        hits = store.search_memories(
            embedding,
            namespaces,
            limit=limit,
            memory_types=memory_types or None,
            min_similarity=min_similarity,
            metadata=_json_object(metadata, "--metadata"),
            embedding_model=embedder.model,
            query_text=query,
        )
    if as_json:
        _print_json(hits)
        return
    for hit in hits:
        out.print(f"[bold]{escape(block.one_line(hit.heading))}[/]  {hit.memory_id}")
        out.print(f"  {escape(block.one_line(hit.snippet))}")
        found = "" if hit.distance is None else f"distance {hit.distance:.3f}, "
        found += "" if hit.text_rank is None else f"by its words no. {hit.text_rank}, "
        out.print(f"  [dim]{hit.memory_type}, {found}{hit.tokens:,} tokens[/]")


@app.command()
def fetch(
    memory_ids: Annotated[list[str], typer.Argument(help="The ids of the memories.")],
    namespaces: Namespaces,
    url: Url = None,
    read_url: ReadUrl = None,
    as_json: Json = False,
) -> None:
    """Show memories in full, in the order asked for; what is not there is left out.

    Example: hydrator fetch 5a0c6e9e-... -n acme
    """
    with MemoryStore(url, read_url=read_url) as store:
        memories = store.fetch_memories(namespaces, memory_ids)
    if as_json:
        _print_json(memories)
        return
    for memory in memories:
        out.print(f"[bold]{escape(block.one_line(memory.heading))}[/]  {memory.memory_id}")
        out.print(
            f"[dim]{memory.memory_type}, confidence {memory.confidence:.2f}, {memory.tokens:,} tokens[/]"
        )
        out.print(escape(memory.content) + "\n")
    missing = len(set(memory_ids)) - len({memory.memory_id for memory in memories})
    if missing > 0:
        err.print(f"{missing:,} of the ids are not live memories of these namespaces.")


@app.command()
def hydrate(
    task: Annotated[str, typer.Argument(help="What the session is about.")],
    namespaces: Namespaces,
    url: Url = None,
    read_url: ReadUrl = None,
    top_k: Annotated[int, typer.Option(help="How many memories to rank.")] = 5,
    budget: Annotated[int, typer.Option(help="Tokens for index and memories together.")] = 6000,
    index_budget: Annotated[
        int | None, typer.Option(help="Tokens for the index; else it loads whole.")
    ] = None,
    packing: Annotated[
        str, typer.Option(help="stop at the first memory that does not fit, or skip it.")
    ] = "stop",
    memory_types: MemoryTypes = None,
    min_similarity: MinSimilarity = None,
    metadata: Metadata = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Assemble a session's context: the block on the output, the receipt beside it (on stderr).

    Example: hydrator hydrate "fix the failing deploy" -n acme --budget 4000
    """
    with MemoryStore(url, read_url=read_url) as store:
        _hydrate(
            store,
            task,
            namespaces,
            embedder_name,
            as_json,
            top_k=top_k,
            token_budget=budget,
            index_budget=index_budget,
            packing=packing,
            memory_types=memory_types or None,
            min_similarity=min_similarity,
            metadata=_json_object(metadata, "--metadata"),
        )


def _hydrate(
    store: MemoryStore,
    task: str,
    namespaces: list[str],
    embedder_name: Embedded,
    as_json: bool,
    **options: Any,
) -> None:
    embedder = _embedder(store, embedder_name)
    [embedding] = embedder.embed([task])
    hydration = store.hydrate_session(
        embedding, namespaces, embedding_model=embedder.model, query_text=task, **options
    )
    if as_json:
        _print_json(hydration)
        return
    typer.echo(block.render_index(hydration.index, hydration.index_total))
    now = datetime.now(UTC)
    memories = [block.render_memory(memory, memory.content, now) for memory in hydration.relevant]
    typer.echo(block.render_context([], memories))
    err.print()
    err.print(receipt(hydration, store.execute(calls.live_tokens(namespaces))))


@app.command()
def bench(
    url: Url = None,
    sizes: Annotated[str, typer.Option(help="Memories in each namespace.")] = "200,2000,20000",
    dimensions: Annotated[int, typer.Option(help="Length of the embeddings.")] = 1536,
    vector_type: Annotated[str, typer.Option(help="vector or halfvec.")] = "halfvec",
    repetitions: Annotated[int, typer.Option(help="How often each way is measured.")] = 80,
    writes: Annotated[
        int, typer.Option(help="Single writes measured for each set of indexes; 0: none.")
    ] = 200,
    plain: Annotated[bool, typer.Option(help="Measure the plain ways too.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw latency against size into this PNG.")] = None,
    tenants: Annotated[
        int | None, typer.Option(help="Instead: p99 in a store of so many namespaces of Zipf sizes.")
    ] = None,
    memories: Annotated[int, typer.Option(help="With --tenants: memories in all.")] = 1_000_000,
    clients: Annotated[int, typer.Option(help="With --tenants: clients at once.")] = 2,
    hnsw: Annotated[bool, typer.Option(help="With --tenants: make the HNSW index too.")] = True,
    as_json: Json = False,
) -> None:
    """Measure hydration beside the plain ways, in a scratch database that is dropped again.

    Example: hydrator bench --sizes 200,2000,20000,100000 --plot bench.png

    Example: hydrator bench --no-plain --dimensions 256 --sizes 2000,1000000

    Example: hydrator bench --tenants 5000 --memories 1000000 --dimensions 256 --no-hnsw
    """
    from hydrator import bench as benchmark
    from hydrator import bench_tenants

    if tenants is not None:
        if not 0 < tenants <= memories:
            raise typer.BadParameter(f"{tenants} is not from 1 to --memories", param_hint="--tenants")
        with _phases() as progress:
            mix = bench_tenants.run(
                resolve_url(url),
                memories,
                tenants,
                clients=clients,
                dimensions=dimensions,
                vector_type=vector_type,
                hnsw=hnsw,
                progress=progress,
            )
        if as_json:
            _print_json(mix.to_json())
        else:
            out.print(tenants_table(mix))
        return

    try:
        counts = [int(size) for size in sizes.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"not whole numbers: {sizes}", param_hint="--sizes") from error
    with _phases() as progress:
        result = benchmark.run(
            resolve_url(url),
            counts,
            dimensions=dimensions,
            vector_type=vector_type,
            repetitions=repetitions,
            writes=writes,
            plain=plain,
            progress=progress,
        )
    if plot is not None:
        benchmark.plot(result, plot)
    if as_json:
        _print_json(result.to_json())
    else:
        out.print(bench_table(result))


@app.command("eval")
def eval_(
    questions: Annotated[
        Path, typer.Argument(help="The question set, JSON Lines.", exists=True, dir_okay=False)
    ],
    url: Url = None,
    configuration: Annotated[
        str, typer.Option("--text-config", help="The text search configuration of plain full-text search.")
    ] = "english",
    resamples: Annotated[
        int, typer.Option(min=100, help="Resamples of the questions, for the intervals.")
    ] = evaluation.RESAMPLES,
    plot: Annotated[Path | None, typer.Option(help="Draw evidence recall into this PNG.")] = None,
    neighbours: Annotated[
        int | None, typer.Option(help="Rank with so many memories before and after in a source.")
    ] = None,
    recency_half_life: Annotated[
        float | None, typer.Option(help="Rank with a half-life, in days.", metavar="DAYS")
    ] = None,
    confidence_weight: Annotated[
        float | None, typer.Option(help="Rank with confidence to this power.")
    ] = None,
    duplicate_distance: Annotated[
        float | None, typer.Option(help="Rank without what is so near to a better one.")
    ] = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Measure what a store recalls of your own questions, beside plain ways; read-only.

    A line of the question set is a question, the namespaces it may read, and its evidence: each a
    memory's id, its key in the source it was imported from, or an object that its metadata contains.
    Where several memories match an evidence, any of them will do.

    {"question": "When do we deploy?", "namespaces": ["acme"], "evidence": ["deploys.md"]}

    Example: hydrator eval questions.jsonl --plot recall.png
    """
    if plot is not None:
        # Before the work, not after it.
        extra("matplotlib.figure")
        if not plot.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {plot.absolute().parent}", param_hint="--plot")
    asked = evaluation.read_questions(questions)
    options = {
        "neighbours": neighbours,
        "recency_half_life": None if recency_half_life is None else timedelta(days=recency_half_life),
        "confidence_weight": confidence_weight,
        "duplicate_distance": duplicate_distance,
    }
    with _phases() as progress:
        result = evaluation.run(
            resolve_url(url),
            embedder_name.load(),
            asked,
            configuration=configuration,
            resamples=resamples,
            options={name: value for name, value in options.items() if value is not None},
            progress=progress,
        )
    if plot is not None:
        evaluation.plot(result, plot)
    if as_json:
        _print_json(result.to_json())
    else:
        out.print(eval_table(result))


@app.command("import-locomo")
def import_locomo(
    path: Annotated[
        Path, typer.Argument(help="LoCoMo's file; it is not shipped.", exists=True, dir_okay=False)
    ],
    memories: Annotated[Memories, typer.Option("--as", help="What becomes a memory.")],
    questions: Annotated[Path, typer.Option("--out", help="The question set to write, for hydrator eval.")],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Of each conversation's namespace, what leads its name.",
            show_default="locomo-observations or locomo-turns",
        ),
    ] = None,
    dates: Annotated[
        bool, typer.Option("--dates/--no-dates", help="Say in each memory when it was said.")
    ] = True,
    adversarial: Annotated[
        bool, typer.Option("--adversarial", help="Keep the questions that have no answer (category 5).")
    ] = False,
    url: Url = None,
    embedder_name: EmbedderName = Embedded.WORDLLAMA,
    as_json: Json = False,
) -> None:
    """Make LoCoMo's file a store and a question set: a conversation, a namespace. Safe to run again.

    A memory is a one-line observation, or a turn as its speaker said it. Evidence that no memory
    rests on is left out, and a question without any.

    Example: hydrator import-locomo locomo10.json --as turns --out turns.jsonl
    """
    from hydrator import locomo

    with MemoryStore(url) as store, _phases() as progress:
        converted = locomo.convert(
            store,
            _embedder(store, embedder_name),
            path,
            memories,
            questions,
            namespace=namespace or f"locomo-{memories}",
            dates=dates,
            adversarial=adversarial,
            progress=progress,
        )
    if as_json:
        _print_json(converted)
        return
    out.print(
        f"{converted.imported:,} imported, {converted.unchanged:,} unchanged, "
        f"{converted.superseded:,} superseded in {len(converted.namespaces):,} namespaces."
    )
    out.print(
        f"{converted.questions:,} questions in {escape(str(questions))}; "
        f"{converted.without_evidence:,} left out, since no memory rests on their evidence."
    )
    out.print(f"Next: hydrator eval {escape(str(questions))}")


@app.command()
def doctor(
    url: Url = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Stored vectors by which recall is measured; 0 for none.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Look a store over, read-only: what a DBA should know, and the statement that mends it.

    Example: hydrator doctor --url postgresql://localhost/app
    """
    from hydrator import doctor as doctor_

    with _phases() as progress:
        findings = doctor_.examine(resolve_url(url, migrate=False), samples=samples, progress=progress)
    if as_json:
        _print_json(findings)
    else:
        out.print(doctor_table(findings))


@contextmanager
def _phases() -> Iterator[Any]:
    """Show a bar for the phase under way."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda phase, done, total: bar.update(
            task, description=phase, completed=done, total=total or None
        )


DEMO = Path(__file__).parent / "demo"
DEMO_TASK = "A search returns fewer rows than top_k after someone created an HNSW index"
# Small enough for the receipt to show what does not fit.
DEMO_BUDGET = 2000


@app.command()
def demo(
    task: Annotated[str, typer.Argument(help="What the session is about.")] = DEMO_TASK,
    url: Url = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where the memories go.")
    ] = "hydrator-demo",
) -> None:
    """Try it: import this project's own memories, hydrate a task, and explain what was loaded.

    Safe to run again; remove it with: hydrator db downgrade base, or forget the memories.
    """
    with MemoryStore(url) as store:
        summary = _import(store, DEMO, namespace, "hydrator-demo")
        err.print(
            f"The memories of this project are in namespace [bold]{escape(namespace)}[/]: "
            f"{summary.imported} imported, {summary.unchanged} unchanged, {summary.superseded} superseded."
        )
        err.print(f"The task: [bold]{escape(task)}[/]\n")
        _hydrate(store, task, [namespace], Embedded.WORDLLAMA, False, token_budget=DEMO_BUDGET)
    err.print("\nNext, try your own:")
    err.print(f'  hydrator search "vectors of zero length" -n {escape(namespace)}')
    err.print("  hydrator import YOUR-DIRECTORY -n YOUR-NAMESPACE")
    err.print('  psql "$(hydrator db url)"')


def main() -> None:
    """Run the command line: 0, or 1 with one clear line for an error, or 2 for wrong usage."""
    try:
        app()
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to flush it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (HydratorError, OSError) as error:
        _fail(str(error))
    except Exception as error:
        if os.environ.get("HYDRATOR_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (HYDRATOR_DEBUG=1 shows where)")


def _fail(message: str) -> None:
    err.print(f"[bold red]Error:[/] {escape(' '.join(message.split()))}")
    sys.exit(1)


if __name__ == "__main__":
    main()
