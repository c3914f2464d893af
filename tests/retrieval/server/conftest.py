"""A served index: in this process without sockets, or as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.server.app import make_app
from holdfast.retrieval.types import Document, Ranked

TEXTS = {
    "a": '"Orsa"\nA town by the lake.',
    "b": "Mora\nTowns have lakes.",
    "c": "Elk\nAn animal of the lake.",
    "d": "x",
}


class Recording:
    """A BM25 index that notes its batches, and fails where it is told to."""

    in_process = True

    def __init__(self) -> None:
        self._bm25 = BM25Retriever.build([Document(key, text) for key, text in TEXTS.items()])
        self.documents, self.corpus_hash = self._bm25.documents, self._bm25.corpus_hash
        self.batches: list[tuple[str, ...]] = []
        self.search = self._bm25.search
        self.before: Callable[[], None] = lambda: None

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        self.batches.append(tuple(queries))
        self.before()
        if "poison" in queries:
            raise RuntimeError("poisoned")
        return self._bm25.rank(queries, k)


@pytest.fixture
def index() -> Recording:
    return Recording()


Talk = Callable[[httpx.AsyncClient], Awaitable[Any]]


@pytest.fixture
def served() -> Callable[..., Any]:
    """served(talk, retriever, **settings of make_app): what `talk(client)` returns while the app runs."""

    def run(talk: Talk, retriever: Any, **settings: Any) -> Any:
        async def main() -> Any:
            app = make_app(retriever, **settings)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
            ):
                return await talk(client)

        return asyncio.run(asyncio.wait_for(main(), 30))

    return run


@pytest.fixture
def serve_process(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """serve_process(folder, *options): a running `holdfast serve`, and its address."""
    running: list[subprocess.Popen[str]] = []

    def start(folder: Path, *options: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "holdfast", "serve", str(folder), "--port", "0", *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment
        )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http://" in line, line
        return process, line.split(" at ")[1].split()[0]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def index_folder(tmp_path: Path) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": key, "contents": text}) + "\n" for key, text in TEXTS.items()))
    BM25Retriever.build([Document(key, text) for key, text in TEXTS.items()]).save(tmp_path / "index")
    return tmp_path / "index"
