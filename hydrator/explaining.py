"""``hydrator db explain``: the plans of the statements inside a call.

``explain`` shows a call as one function scan. What runs inside, ``hydrator.tell_plans()`` has told as
notices, which are collected here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg

from hydrator.addresses import libpq_address
from hydrator.calls import Call
from hydrator.errors import translated

_NOTICE = re.compile(
    r"duration: ([\d.]+) ms\s+plan:\n(?:Query Text: )?(.*?)\n(?=[A-Z][^\n]*\(cost=)(.*)", re.S
)
_PARAMETERS = re.compile(r"\nQuery Parameters: (.*)\Z", re.S)
_FUNCTION = re.compile(r"PL/pgSQL function (\S+?)\(.*\) line (\d+)")
# Of a vector, and of its signs, the first few numbers; what is cut by the server has no end.
_VECTOR = re.compile(r"\[(-?[\d.]+(?:e[-+]?\d+)?(?:, ?-?[\d.]+(?:e[-+]?\d+)?){2}),[-+\d.,e ]*\]?")
_BITS = re.compile(r"\b[01]{33,}\b")


@dataclass(frozen=True, slots=True)
class Explained:
    """One statement that ran, in the order in which they ended: the call itself is the last.

    Parameters
    ----------
    function
        The function it is in, such as ``hydrator.rank_memories``; None for the call itself.
    line
        Where in the function's body it stands.
    statement
        Its text, on one line; long vectors are cut.
    parameters
        What the call was given, where the server tells it.
    duration_ms
        What it took, with all that it called.
    plan
        Its plan with rows, times and buffers, as ``explain (analyze, buffers)`` writes it.
    """

    function: str | None
    line: int | None
    statement: str
    parameters: str | None
    duration_ms: float
    plan: str


def explain(url: str, call: Call[Any]) -> tuple[Explained, ...]:
    """Run a call in a transaction that is rolled back, and give the plans of all that it ran.

    Raises
    ------
    HydratorError
        The role may not have the plans told; the hint is what a superuser can run.
    """
    told: list[Explained] = []

    def take(diagnostic: psycopg.errors.Diagnostic) -> None:  # which is emptied afterwards
        explained = _explained(diagnostic)
        if explained is not None:
            told.append(explained)

    address = libpq_address(url)
    with (
        translated(),
        psycopg.connect(address, autocommit=True, prepare_threshold=None) as connection,
        connection.transaction(force_rollback=True),
    ):
        # As in a session that has called before: what the first call reads of the catalog is no part
        # of the plans.
        connection.execute(call.sql.encode(), call.parameters)
        connection.execute("select hydrator.tell_plans()")
        connection.add_notice_handler(take)
        connection.execute(call.sql.encode(), call.parameters)
    # A statement of a session ends, and is told, when the next one begins: ours at the rollback.
    return tuple(statement for statement in told[:-1] if statement.function is not None) + tuple(told[-1:])


def _explained(diagnostic: psycopg.errors.Diagnostic) -> Explained | None:
    found = _NOTICE.match(diagnostic.message_primary or "")
    if found is None:
        return None
    text = found[2]
    parameters = _PARAMETERS.search(text)
    if parameters is not None:
        text = text[: parameters.start()]
    where = _FUNCTION.search(diagnostic.context or "")
    return Explained(
        where[1] if where else None,
        int(where[2]) if where else None,
        _cut(" ".join(text.split())),
        _cut(parameters[1]) if parameters else None,
        float(found[1]),
        _cut(found[3].rstrip()),
    )


def _cut(text: str) -> str:
    return _BITS.sub(lambda bits: bits[0][:8] + "…", _VECTOR.sub(r"[\1,…]", text))
