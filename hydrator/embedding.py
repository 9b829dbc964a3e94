"""Turning text into vectors: what an embedder is, and the one that needs no network."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from hydrator.errors import EmbedderError, WrongDimensions
from hydrator.models import Installation

if TYPE_CHECKING:
    from wordllama import WordLlamaInference


T = TypeVar("T")


class Embedder(Protocol):
    """Texts in, vectors out.

    ``model`` is stored beside each vector, so that vectors of two models are never compared;
    ``dimensions`` is the length of every vector.
    """

    @property
    def model(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Give one vector a text, in order.

        Raises
        ------
        EmbedderError
            A text cannot be embedded, or the model cannot be reached.
        """
        ...


class AsyncEmbedder(Protocol):
    """An embedder whose ``embed`` is awaited; see :class:`Embedder`."""

    @property
    def model(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Awaitable[list[list[float]]]: ...


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Give the items in their order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def check_fits(embedder: Embedder, installation: Installation) -> None:
    """Raise WrongDimensions where an embedder's vectors cannot be stored in an installation."""
    if embedder.dimensions != installation.dimensions:
        raise WrongDimensions(
            f"the model {embedder.model!r} makes {embedder.dimensions} dimensions, "
            f"this installation holds vectors of {installation.dimensions} dimensions",
            hint="Use the model that made the vectors: one of --embedder, or yours through the SQL calls or "
            "the Python store; or install into another database",
        )


class WordLlamaEmbedder:
    """The embedded default: static word vectors, 256 dimensions, from the wordllama wheel.

    The weights come with the package and nothing is downloaded. Vectors have length 1; the same
    text gives the same vector, whatever it is embedded together with.
    """

    model = "wordllama-l2-supercat-256"
    dimensions = 256

    def __init__(self) -> None:
        self._inference: WordLlamaInference | None = None

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Give one vector a text, in order; raises EmbedderError for empty text."""
        if self._inference is None:
            self._inference = _load_wordllama()
        with warnings.catch_warnings():
            # Text without tokens is divided by zero; the NaN is refused below.
            warnings.simplefilter("ignore", RuntimeWarning)
            # One at a time: a batch is padded to its longest text, which may be a book.
            vectors: list[list[float]] = self._inference.embed(list(texts), norm=True, batch_size=1).tolist()
        for text, vector in zip(texts, vectors, strict=True):
            if not all(map(math.isfinite, vector)):
                raise EmbedderError(
                    f"{self.model} has no vector for the text {text[:40]!r}", hint="Embed words"
                )
        return vectors


def _load_wordllama() -> WordLlamaInference:
    # Importing wordllama configures logging for the whole program; it must not.
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        import wordllama
    except ImportError as error:
        raise EmbedderError(
            "wordllama, the embedded embedding model, is not installed",
            hint="Install it with: pip install 'hydrator[embedded]'",
        ) from error
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
