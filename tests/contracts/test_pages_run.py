"""Every command on the pages runs.

The commands of a page run one after another, in a folder that has a tiny stand-in for what they name: `scene.py`. A
training is its dry run. A page says in a comment before a block why it does not run here:

    <!-- not run: needs a GPU -->
    <!-- not run: needs a hub: `Qwen/Qwen3-4B`, `seven` -->

The second form leaves out only the lines that hold one of the texts.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from holdfast.agent.rewards import PARTS
from holdfast.base.files import locked

from ..conftest import SENTENCE_FILES, save_encoder
from ..evaluate.conftest import TINY, CompletionServer, completion_server, serve
from .scene import ROOT, build, holdfast

__all__ = ["completion_server"]

REAL_RUN = subprocess.run

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "research/README.md"] + [
    page for folder in ("docs", "skills") for page in sorted((ROOT / folder).rglob("*.md"))
]
FENCE = re.compile(r"(?:<!-- not run: ([^\n]*?) -->\n+)?^```bash\n(.*?)^```$", re.M | re.S)
SMALLER = {
    ("train",): ("--dry-run",),
    ("eval", "run"): ("--limit", "1"),
    ("study-probe",): ("--questions", "2"),
    ("warm-start", "quickstart"): ("--warm_start.steps=1", "--world.scripts.plain_steps=0", "--world.scripts.count=99"),
    ("warm-start",): ("--warm_start.steps", "1"),
    ("serve",): ("--port", "0"),
}
"""Command -> what makes it small; a later option replaces an earlier one."""
PLACEHOLDERS = {"RUN": "runs/quickstart", "START": "runs/quickstart/checkpoints/step-000002/model"}
FINDS = {"diagnose", "watch"}
"""Commands whose exit code 1 means findings."""


@dataclass(frozen=True)
class Line:
    text: str
    skipped: bool


def lines_of(page: Path) -> Iterator[Line]:
    """The lines of a page's blocks of commands."""
    for reason, body in FENCE.findall(page.read_text(encoding="utf-8")):
        lines = [line for line in body.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]
        texts = re.findall(r"`([^`]+)`", reason)
        stale = [text for text in texts if not any(text in line for line in lines)]
        assert not stale, f"{page.name}: `not run` names {stale}, which no line has"
        for line in lines:
            yield Line(line, bool(reason) and (not texts or any(text in line for text in texts)))


WITH_COMMANDS = [page for page in PAGES if any(not line.skipped for line in lines_of(page))]


@pytest.fixture(scope="session")
def scene(shared_folder: Path, speaker: Callable[[str], Any], random_model: Callable[..., Any]) -> Path:
    """The folder of `scene.build`, made once a test session."""
    folder, lock = shared_folder / "scene", shared_folder / "scene.lock"
    lock.touch()
    while not folder.is_dir():
        try:
            with locked(lock), pytest.MonkeyPatch.context() as patch:
                if not folder.is_dir():
                    new = Path(tempfile.mkdtemp(dir=shared_folder))
                    patch.setenv("HOLDFAST_CACHE", str(shared_folder / "cache"))
                    patch.setenv("HF_HUB_OFFLINE", "1")
                    patch.chdir(new)
                    save_encoder(new / "intfloat/e5-base-v2", files=SENTENCE_FILES)
                    build(new, speaker, random_model)
                    new.rename(folder)
        except BlockingIOError:
            time.sleep(0.2)
    return folder


@pytest.fixture
def here(scene: Path, tmp_path: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the scene is the current folder; nothing waits, and no program is called on a finding."""
    shutil.copytree(scene, tmp_path / "clone", symlinks=True)
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("HOLDFAST_CACHE", str(shared_folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("holdfast.cli.watch.sleep", interrupt)
    monkeypatch.setattr("subprocess.run", lambda *words, **options: subprocess.CompletedProcess(words, 0))
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    right = itertools.cycle((1.0, 0.0))
    monkeypatch.setitem(PARTS, "em", lambda *_: next(right))  # so small a policy is never right


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_run(page: Path, here: None, completion_server: CompletionServer) -> None:
    serve(completion_server, TINY)
    completion_server.saying = lambda body: {"text": "<answer> 1 </answer>", "finish_reason": "stop"}
    files_of(page)
    for line in lines_of(page):
        if not line.skipped:
            run(line.text.replace("http://127.0.0.1:8001", completion_server.url))


def files_of(page: Path) -> None:
    """Write what a page has: its recipe as my.toml, and the modules that the text before them names.

    A recipe may come in parts, of which the first has the questions.
    """
    text = page.read_text(encoding="utf-8")
    recipe: dict[str, Any] = {}
    for part in map(tomllib.loads, re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S)):
        if recipe or "train" in part.get("data", {}):
            recipe |= part
    if recipe:
        Path("my.toml").write_text(tomli_w.dumps(recipe))
    for name, module in re.findall(r"`(\w+\.py)`(?:[^\n]|\n(?!\n))*\n\n```python\n(.*?)^```$", text, re.M | re.S):
        Path(name).write_text(module)


def run(line: str) -> None:
    """Run a line of a shell, as far as the pages need one."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&>")
    lexer.whitespace_split = True
    words = list(lexer)
    for command in split_at(words, "&&"):
        piped: str | None = None
        for stage in split_at(command, "|"):
            piped = execute(stage, piped, line)


def split_at(words: list[str], mark: str) -> Iterator[list[str]]:
    while mark in words:
        yield words[: words.index(mark)]
        words = words[words.index(mark) + 1 :]
    yield words


def execute(words: list[str], stdin: str | None, line: str) -> str:
    """What a command printed. Fails where its exit code is not that of a success."""
    if words[0] == "pipx":  # pipx run --spec . holdfast-rl …
        words = ["holdfast", *words[words.index("holdfast-rl") + 1 :]]
    match words:
        case ["holdfast", *arguments]:
            return succeed(arguments, stdin, line)
        case ["make", *_]:
            done = REAL_RUN([*words, "-n"], cwd=ROOT, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            return ""
        case ["pip", "install", *packages]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            named = {extra for package in packages for extra in re.findall(r"\[(.*)\]", package)}
            assert {name for names in named for name in names.split(",")} <= set(extras), line
            return ""
        case ["cd", folder]:
            os.chdir(folder)
            return ""
        case ["python", "train.py", *_]:
            return Path("train.log").read_text()
    raise AssertionError(f"{line}: this cannot be run here; say why in a comment, `<!-- not run: … -->`")


def succeed(arguments: list[str], stdin: str | None, line: str) -> str:
    target = arguments.index(">") if ">" in arguments else len(arguments)
    words = [PLACEHOLDERS.get(word, word) for word in arguments[:target]]
    command = next((key for key in SMALLER if tuple(words[: len(key)]) == key), None)
    done = holdfast(*words, *(SMALLER[command] if command else ()), stdin=stdin)
    assert done.exit_code in ({0, 1} if words[0] in FINDS else {0}), f"holdfast {shlex.join(words)}\n{done.output}"
    if words[0] == "train" and (made := re.search(r"would be written to (\S+)\.\n", done.stdout)):
        shutil.copytree("runs/quickstart", made[1], dirs_exist_ok=True)
    if target < len(arguments):
        Path(arguments[target + 1]).write_text(done.stdout)
    return str(done.stdout)
