"""The guide to tools of one's own, as it is written: its module, its recipe, and a service that answers."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.calling import begin
from holdfast.agent.protocol import render_prompt
from holdfast.agent.tools import ToolProtocol
from holdfast.loading import load_protocol
from holdfast.model.tokens import decode
from holdfast.recipe import load
from holdfast.recipe.validation import code_errors

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "own-tools.md").read_text(encoding="utf-8")


class Rates(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/rate?from=USD&to=EUR"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"rate": 0.85}).encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_the_guide_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speaker: Callable[[str], Any]) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for language, name in (("python", "my_tools.py"), ("toml", "my.toml")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
        (tmp_path / name).write_text(block)
    recipe = load(tmp_path / "my.toml")
    assert recipe.run.code == str(tmp_path) and list(code_errors(recipe)) == []
    protocol = load_protocol(recipe)
    assert isinstance(protocol, ToolProtocol) and protocol.tool_timeout == 10
    tokenizer = speaker("hermes")
    prompt = decode(tokenizer, render_prompt("Who?", protocol, tokenizer))
    assert "Compute an arithmetic expression." in prompt and "exchange_rate" in prompt

    def called(name: str, **arguments: str) -> str:
        return begin(protocol.by_name[name], json.dumps(arguments), protocol.tool_timeout).result().text

    assert called("calculator", expression="400 * (12.5 / 100)") == "50.0"
    assert called("calculator", expression="9 ** 9").startswith("Error: ValueError: 9 ** 9 is not arithmetic")
    server = HTTPServer(("127.0.0.1", 0), Rates)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("RATES_URL", f"http://127.0.0.1:{server.server_port}")
    assert called("exchange_rate", base="USD", target="EUR") == "1 USD is 0.85 EUR"
    assert called("exchange_rate", base="USD", target="x") == "Error: HTTPError: HTTP Error 404: Not Found"
    server.shutdown()
    server.server_close()
