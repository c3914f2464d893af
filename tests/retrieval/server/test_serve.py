"""`holdfast serve` as a process: it answers, it stops without dropping anything, and it remembers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.base.errors import MissingExtra
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.client import HTTPRetriever
from holdfast.retrieval.server import serve

Start = Callable[..., Any]


def test_from_start_to_stop(index_folder: Path, serve_process: Start) -> None:
    process, address = serve_process(index_folder)
    assert address.startswith("http://127.0.0.1:")
    client = HTTPRetriever(address)
    expected = BM25Retriever.load(index_folder).search(["lake", "zebra", "town"], 2)
    assert client.search(["lake", "zebra", "town"], 2) == expected
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: client.search([f"lake {i % 50}"], 3), range(200)))
    assert all(hits == found[0] for hits in found)
    client.close()
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=20)
    assert "Stopped, after answering every request" in rest
    assert process.returncode == 0

    process, address = serve_process(index_folder)  # remembers
    assert "holdfast_cached_queries 53.0" in httpx.get(f"{address}/metrics", trust_env=False).text


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_what_was_accepted_is_answered(index_folder: Path, serve_process: Start, number: signal.Signals) -> None:
    # Seconds in which the batch waits for others: all requests are inside when the signal comes.
    process, address = serve_process(index_folder, "--wait-ms", "4000", "--batch", "500")
    host, port = address.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=30) for _ in range(40)]
    for i, connection in enumerate(sockets):
        body = f'{{"query": "lake {i}"}}'
        connection.sendall(f"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    while "holdfast_waiting_queries 40.0" not in httpx.get(f"{address}/metrics", trust_env=False).text:
        time.sleep(0.05)
    process.send_signal(number)
    for connection in sockets:
        with connection:
            answer = b"".join(iter(lambda own=connection: own.recv(65536), b""))  # until the server closes
            assert answer.startswith(b"HTTP/1.1 200 OK") and b"Orsa" in answer
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_token_from_the_environment(
    index_folder: Path, serve_process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = serve_process(index_folder, HOLDFAST_TOKEN="secret")
    assert httpx.post(f"{address}/retrieve", json={"query": "x"}, trust_env=False).status_code == 401
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    client = HTTPRetriever(address)
    assert client.search(["lake"], 1)
    client.close()


def test_without_the_extra_it_says_what_to_install(index_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"uvicorn is not installed. Run: pip install 'holdfast-rl\[server\]'"):
        serve(index_folder, port=0)


def test_what_cannot_be_served_is_a_sentence(index_folder: Path, tmp_path: Path) -> None:
    def refusal(*arguments: object, **environment: str) -> str:
        command = [sys.executable, "-m", "holdfast", "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)
        assert done.returncode == 2
        return done.stderr

    assert "is not an index" in refusal(tmp_path, "--port", 0)
    assert "HOLDFAST_TOKEN has" in refusal(index_folder, "--port", 0, HOLDFAST_TOKEN="tokén")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in refusal(index_folder, "--port", port)
