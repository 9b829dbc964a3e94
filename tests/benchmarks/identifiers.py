"""Whether a rare identifier recalls its memory: one query a memory, by both sides and by text alone.

    python tests/benchmarks/identifiers.py DIRECTORY… [--json]

Each directory of memories is imported into a namespace of a temporary embedded server. An identifier is
written like code (a path, a flag, camelCase, snake_case, a version …); of each memory's, one that the fewest
memories of its directory hold is asked for by itself: among those held equally seldom the longest, then the
first by alphabet. It is counted where that very memory comes first, even if others hold the identifier too.
Memories without an identifier are told and not asked for.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from wrapper import server

from hydrator import MemoryStore, WordLlamaEmbedder
from hydrator.importing import import_memories

# Found by a rule of its own, not by split_words(): what a person would call an identifier.
IDENTIFIER = re.compile(
    r"""
    (?<![\w./:@-])(?:
      --?[a-z][a-z0-9-]+                          # a flag
      | [\w-]+(?:/[\w.-]+)+                       # a path
      | [A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)+    # a qualified name, a file's name
      | [A-Za-z]\w*_\w+                           # snake_case
      | [a-z]+[0-9]*[A-Z]\w*                      # camelCase
      | [A-Z][a-z0-9]+[A-Z]\w*                    # PascalCase
      | v?[0-9]+(?:\.[0-9]+)+                     # a version
    )(?![\w/-])
    """,
    re.VERBOSE,
)


def identifiers(text: str) -> set[str]:
    return {found for found in IDENTIFIER.findall(text) if 4 <= len(found) <= 80}


def measure(
    store: MemoryStore, embedder: WordLlamaEmbedder, directory: Path, namespace: str
) -> dict[str, Any]:
    import_memories(store, embedder, directory, namespace)
    index = store.compact_index([namespace])
    memories = store.fetch_memories([namespace], [entry.memory_id for entry in index])
    held = {memory.memory_id: identifiers(f"{memory.heading}\n{memory.content}") for memory in memories}
    texts = {memory.memory_id: f"{memory.heading}\n{memory.content}" for memory in memories}
    counts = {name: sum(name in text for text in texts.values()) for name in set().union(*held.values())}
    first = {"hybrid": 0, "text": 0}
    missed: dict[str, list[str]] = {"hybrid": [], "text": []}
    asked = shared = 0
    for memory in memories:
        if not held[memory.memory_id]:
            continue
        name = min(held[memory.memory_id], key=lambda one: (counts[one], -len(one), one))
        asked += 1
        shared += counts[name] > 1
        for way, vector in (("hybrid", embedder.embed([name])[0]), ("text", None)):
            ranked = store.fetch_top_k_relevant(vector, [namespace], top_k=1, query_text=name)
            if ranked and ranked[0].memory_id == memory.memory_id:
                first[way] += 1
            else:
                missed[way].append(name)
    return {
        "directory": directory.name,
        "memories": len(memories),
        "asked": asked,
        "shared": shared,
        "first": first,
        "missed": missed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIRECTORY")
    parser.add_argument("--json", action="store_true", help="with the identifiers that did not come first")
    arguments = parser.parse_args()
    with server() as url, MemoryStore(url) as store:
        embedder = WordLlamaEmbedder()
        told = [
            measure(store, embedder, directory, f"{number}-{directory.name}")
            for number, directory in enumerate(arguments.directories)
        ]
    if arguments.json:
        print(json.dumps(told, indent=2))
        return
    for one in told:
        shares = ", ".join(f"{way} {count / max(one['asked'], 1):.1%}" for way, count in one["first"].items())
        print(
            f"{one['directory']}: {one['asked']} of {one['memories']} memories asked for"
            f" ({one['shared']} by what another holds too); first: {shares}"
        )
    asked = sum(one["asked"] for one in told)
    for way in ("hybrid", "text"):
        count = sum(one["first"][way] for one in told)
        print(f"{way}: {count} of {asked}, {count / max(asked, 1):.1%}")


if __name__ == "__main__":
    main()
