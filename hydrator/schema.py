"""The SQL files, and how an installation's settings are written into them.

A placeholder is a word between at signs, as in PostgreSQL's own extension scripts:
``@extension_schema@`` (an identifier), ``@extension_schema_name@`` (a literal), ``@vector_type@``,
``@dimensions@``, ``@distance@``, ``@distance_operator@``, ``@text_search_config@`` (a literal),
``@embedding_storage@``, ``@toast_tuple_target@``, ``@operator_class@``, ``@rerank_factor@`` and
``@white_space@``; and ``@similarity(…)@``, what a distance stands for, where a call of
hydrator.similarity() would cost too much.
"""

from __future__ import annotations

import re
from pathlib import Path

from psycopg import sql

from hydrator.errors import InstallationError
from hydrator.models import Installation

DISTANCE_OPERATORS = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}
SIMILARITIES = {"cosine": "(1 - {})", "inner_product": "(-{})", "l2": "(1 / (1 + {}))"}
OPERATOR_CLASSES = {"cosine": "cosine", "inner_product": "ip", "l2": "l2"}
VECTOR_TYPES = ("vector", "halfvec")

# In bytes: what a page has for rows, PostgreSQL's own target for a row, and about what a row has beside its
# embedding and its content.
_PAGE, _ROW_TARGET, _ROW_WITHOUT_EMBEDDING = 8_160, 2_040, 600

# What a regular expression may take for white space, the same in every locale of a server.
_WHITE_SPACE = r"\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def _resources(name: str) -> Path:
    """Find a top-level folder of ours: inside the package in a wheel, beside it in a checkout."""
    here = Path(__file__).parent
    packaged = here / name
    return packaged if packaged.is_dir() else here.parent / name


SQL = _resources("sql")
ALEMBIC = _resources("alembic")


def head_revision() -> str:
    """Give the newest revision there is a file for."""
    return max(path.name.split("_")[0] for path in (ALEMBIC / "versions").glob("[0-9]*_*.py"))


def check_installation(installation: Installation) -> Installation:
    """Give the settings back, or raise InstallationError naming the one that cannot be."""
    if installation.vector_type not in VECTOR_TYPES:
        raise InstallationError(
            f"vector type is {installation.vector_type!r}", hint=f"Choose one of {', '.join(VECTOR_TYPES)}"
        )
    if installation.distance not in DISTANCE_OPERATORS:
        raise InstallationError(
            f"distance is {installation.distance!r}", hint=f"Choose one of {', '.join(DISTANCE_OPERATORS)}"
        )
    if type(installation.dimensions) is not int or not 1 <= installation.dimensions <= 16_000:
        raise InstallationError(
            f"dimensions is {installation.dimensions!r}", hint="pgvector stores 1 to 16000"
        )
    if not isinstance(installation.extension_schema, str) or not installation.extension_schema:
        raise InstallationError(
            f"extension schema is {installation.extension_schema!r}",
            hint="Name the schema that pgvector is in",
        )
    if not isinstance(installation.text_search_config, str) or not installation.text_search_config:
        raise InstallationError(
            f"text search configuration is {installation.text_search_config!r}",
            hint="Name one of pg_ts_config, such as english or simple",
        )
    return installation


def render(text: str, installation: Installation) -> str:
    """Write an installation's settings into the placeholders of an SQL text."""
    check_installation(installation)
    values = {
        "extension_schema": sql.Identifier(installation.extension_schema).as_string(None),
        "extension_schema_name": sql.Literal(installation.extension_schema).as_string(None),
        "vector_type": installation.vector_type,
        "dimensions": str(installation.dimensions),
        "distance": installation.distance,
        "distance_operator": DISTANCE_OPERATORS[installation.distance],
        "white_space": _WHITE_SPACE,
        "text_search_config": sql.Literal(installation.text_search_config).as_string(None),
        "embedding_storage": embedding_storage(installation),
        "toast_tuple_target": str(toast_tuple_target(installation)),
        # Fewer signs tell less apart: 10 candidates for each memory asked for, 40 at 256 dimensions.
        "rerank_factor": str(min(max(10_240 // installation.dimensions, 10), 40)),
        "operator_class": f"{installation.vector_type}_{OPERATOR_CLASSES[installation.distance]}_ops",
    }
    similarity = SIMILARITIES[installation.distance]
    text = re.sub(r"@similarity\(([\w.]+)\)@", lambda match: similarity.format(match[1]), text)
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def embedding_storage(installation: Installation) -> str:
    """Give how an embedding is stored: in the row, where a page of 8 kB has room for it beside the rest."""
    return "plain" if _embedding_bytes(installation) <= 7_000 else "external"


def toast_tuple_target(installation: Installation) -> int:
    """Give the bytes up to which a row keeps its content: as many as cost no other row its place on the page.

    With PostgreSQL's 2,040 an embedding of that size would leave none beside it, however short.
    """
    if embedding_storage(installation) == "external":
        return _ROW_TARGET
    rows = max(_PAGE // (_embedding_bytes(installation) + _ROW_WITHOUT_EMBEDDING), 1)
    return max(_PAGE // rows // 8 * 8, _ROW_TARGET)


def _embedding_bytes(installation: Installation) -> int:
    return installation.dimensions * {"vector": 4, "halfvec": 2}[installation.vector_type]


def current_files() -> list[Path]:
    """List the files of the current truth in an order in which they can be run.

    Bodies of functions are bound when they are called, so the functions need no order among
    themselves and come before the tables whose columns and triggers call them.
    """
    return [
        SQL / "tables" / "installed.sql",
        SQL / "tables" / "namespace_counts.sql",
        SQL / "tables" / "namespace_grants.sql",
        SQL / "tables" / "namespace_rates.sql",
        *sorted((SQL / "functions").glob("*.sql")),
        SQL / "tables" / "memories.sql",
        SQL / "tables" / "live_memories.sql",
    ]
