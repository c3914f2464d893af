"""docs/contributing/add-a-*.md, followed to the letter in a copy of the repository.

A code block is a file if the paragraph before it names a path and ends with a colon. A `diff` is applied to that file:
its lines with a blank or a minus must occur there once. `sh` is run, and must end well; each line of a `text` after it
must be in what was printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "contributing").glob("add-a-*.md"))
HELD_BY_A_FAST_ONE = ("add-a-host", "add-a-rule")
"""By tests/contracts/test_hosts.py, and tests/diagnose/test_rules_registry.py."""
COPIED = ("src", "tests", "docs", "examples", "pyproject.toml")

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PATH = re.compile(r"`([\w./-]+\.(?:py|md|minilog))`")


def blocks(text: str) -> Iterator[tuple[str, str, str | None]]:
    """(language, contents, path that the line before names) of each code block."""
    for match in FENCE.finditer(text):
        paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
        named = PATH.findall(paragraph) if paragraph.endswith(":") else []
        yield match[1], match[2], named[-1] if named else None


def applied(diff: str, source: str) -> str:
    """The source with a diff that has no line numbers.

    >>> applied(" a\\n-b\\n+c\\n", "a\\nb\\nd\\n")
    'a\\nc\\nd\\n'
    """
    lines = [line or " " for line in diff.splitlines()]
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert {line[0] for line in lines} <= set(" -+"), diff
    assert source.count(before) == 1, f"{source.count(before)} times in the file:\n{before}"
    return source.replace(before, after)


def follow(page: str, folder: Path) -> None:
    """Do what a page says in a folder with a copy of the repository."""
    printed = ""
    written: list[str] = []
    for language, contents, path in blocks(page):
        if path is not None:
            place = folder / path
            if language == "diff":
                contents = applied(contents, place.read_text(encoding="utf-8"))
            else:
                assert not place.exists()
            place.write_text(contents, encoding="utf-8")
            written.append(path)
        elif language == "sh":
            printed = "".join(shell(line, folder) for line in contents.splitlines())
        elif language == "text":
            assert [line for line in contents.splitlines() if line not in printed] == [], printed
        else:
            raise AssertionError(f"a block that is neither a file nor a command:\n{contents}")
    if sources := " ".join(path for path in written if path.endswith(".py") and "/" in path):
        shell(f".venv/bin/ruff check {sources} && .venv/bin/ruff format --check {sources}", folder)


def shell(command: str, folder: Path) -> str:
    """What a command prints, with the Python of these tests for that of `.venv`, and the sources of the copy."""
    command = command.replace(".venv/bin/holdfast", ".venv/bin/python -m holdfast")
    command = command.replace(".venv/bin", str(Path(sys.executable).parent))
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, cwd=folder, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.long] * (p.stem in HELD_BY_A_FAST_ONE)) for p in PAGES]
)
def test_it_can_be_followed(page: Path, tmp_path: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    follow(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.slow
def test_a_task_of_ones_own_trains_evaluates_answers_and_is_launched(tmp_path: Path) -> None:
    """docs/guide/own-tasks.md, with the shipped start of the quickstart as the model, which reads any text."""
    page = (ROOT / "docs" / "guide" / "own-tasks.md").read_text(encoding="utf-8")
    code, recipe = (next(text for kind, text, _ in blocks(page) if kind == wanted) for wanted in ("python", "toml"))
    model = ROOT / "src/holdfast/recipe/bundled/starts/quickstart/model"
    (tmp_path / "my_tasks.py").write_text(code, encoding="utf-8")
    (tmp_path / "my.toml").write_text(recipe.replace("Qwen/Qwen2.5-0.5B-Instruct", str(model)), encoding="utf-8")
    (tmp_path / "src").symlink_to(ROOT / "src")
    few = "--train.steps 1 --warm_start.steps 1 --protocol.max_turn_tokens 20 --eval.every 0 --run.threads 1"
    holdfast = ".venv/bin/holdfast"
    assert "12 passages" in shell(f"{holdfast} train my.toml --dry-run {few}", tmp_path)
    shell(f"{holdfast} train my.toml {few}", tmp_path)
    shell(f"{holdfast} eval run my --data test --trust-code --out scores", tmp_path)
    assert json.loads((tmp_path / "scores" / "results.json").read_text())["sets"]["moons"]["questions"] == 6
    shell(f"{holdfast} ask my 'Who discovered Rhea?' --trust-code", tmp_path)
    shell(f"{holdfast} launch trl my.toml --out job --loss.penalty.name none --warm_start.steps 0", tmp_path)
    assert 'train = "my_tasks:Moons"' in (tmp_path / "job" / "recipe.toml").read_text()
