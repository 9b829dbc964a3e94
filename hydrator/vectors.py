"""Embeddings on their way to the server: in pgvector's binary form, and of no type.

The server finds the type itself, by the function that is called, in whatever schema pgvector lives: a
statement needs neither a cast nor a look-up beforehand. As text, 1,536 dimensions would take longer to write
and to read than the ranking of 200 memories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import psycopg
from pgvector import Vector
from pgvector.psycopg.vector import VectorBinaryDumper, VectorDumper
from psycopg.abc import AdaptContext

from hydrator.errors import InvalidEmbedding

# pgvector's limit; the binary form counts in 16 bits, and could not write 65,536.
_MAX_DIMENSIONS = 16_000


class Embedding(Vector):
    """An embedding as the calls send it; a class of its own, so that nobody's vectors are sent otherwise."""

    def __init__(self, elements: Sequence[float]) -> None:
        try:
            # An array of numpy's goes as it is, whatever else there is number by number.
            is_array = hasattr(elements, "__array_interface__")
            super().__init__(cast("list[float]", elements) if is_array else list(elements))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidEmbedding(f"an embedding is a sequence of numbers: {error}") from error
        dimensions = self.dimensions()
        if dimensions > _MAX_DIMENSIONS:
            raise InvalidEmbedding(
                f"an embedding has {dimensions} dimensions, pgvector's vectors at most {_MAX_DIMENSIONS}"
            )


def teach(connection: AdaptContext) -> None:
    """Have a connection send embeddings; as text too, for cursors that write values into the statement."""
    connection.adapters.register_dumper(Embedding, VectorDumper)
    connection.adapters.register_dumper(Embedding, VectorBinaryDumper)


# Every connection made from now on; a caller's may be older, and is taught by its source.
teach(psycopg.adapters)
