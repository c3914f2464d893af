"""The site: every page is in its navigation, it builds strictly, what it shows needs no network; and its pages of
commands and settings, which are made, have every one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.hosts import HOSTS
from holdfast.recipe import setting_names
from holdfast_research.__main__ import program

ROOT = Path(__file__).parents[2]


class AnyTag(yaml.SafeLoader):
    """Reads YAML with tags of Python, and makes nothing of them."""


AnyTag.add_multi_constructor("", lambda loader, suffix, node: suffix)


def site_module(name: str) -> Any:
    """docs/_site/NAME.py, which lies outside of any package, imported."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"docs/_site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_of(command: Any, name: str = "holdfast") -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    for child in command.list_commands(context) if hasattr(command, "commands") else ():
        yield f"{name} {child}"
        yield from names_of(command.resolve_command(context, [child])[1], f"{name} {child}")


def test_every_command_has_a_section() -> None:
    headings = set(re.findall(r"^###+ (holdfast .*)$", site_module("commands").page(), re.M))
    assert headings == set(names_of(program()))
    assert {"holdfast train", "holdfast eval compare", "holdfast reproduce run"} <= headings


def test_every_setting_is_on_its_page() -> None:
    settings, section, names = site_module("settings"), "", set()
    for line in settings.page().splitlines():
        if match := re.match(r"## `\[(.+)\]`", line):
            section = match[1]
        elif match := re.match(r"\| (?:\*\*)?`(\w+)`", line):
            names.add(f"{section}.{match[1]}")
    assert names == set(setting_names())
    assert set(settings.USEFUL) <= names


def test_every_name_that_is_read_is_on_its_page() -> None:
    text = site_module("names").page()
    read = {name.host for host in HOSTS.values() for name in host.series + host.more}
    assert len(read) > 100 and not [name for name in read if f"| `{name}` |" not in text]


@pytest.mark.parametrize("name", ["codes.md", "hosts.md", "methods.md", "metrics.md"])
def test_what_is_made_from_code_is_on_its_page(name: str) -> None:
    text = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert site_module("made").page(name) == text, f"{name} is behind the code: run `make docs`"


def test_the_diagrams_are_drawn_from_their_tables() -> None:
    diagrams = site_module("diagrams")
    for name, diagram in diagrams.DIAGRAMS.items():
        assert diagrams.drawn(diagram) == (diagrams.FIGURES / name).read_text(encoding="utf-8"), "run `make docs`"
        for box in diagram.boxes:
            assert box.x >= 0 and box.x + box.width <= diagram.width and box.y + box.height <= diagram.height
            widest = max(map(len, box.text.splitlines()))
            assert 12 + 6.4 * widest < box.width and 22 + 17 * box.text.count("\n") < box.height, box.text


def pages_in(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for item in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages_in(item)


def pages_of_the_site() -> set[str]:
    site = site_module("hooks")
    paths = {path.relative_to(ROOT).as_posix() for tree in site.TREES for path in (ROOT / tree).rglob("*.md")}
    return {site.site_path(path) for path in paths | set(site.PAGES)} | {
        *(f"{site.API_FOLDER}{name}.md" for name in site.API),
        *site.MADE,
    }


def test_the_navigation_names_every_page_once() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=AnyTag)
    named = list(pages_in(config["nav"]))
    assert len(named) == len(set(named))
    assert set(named) == pages_of_the_site()


def test_a_page_and_its_source_name_each_other() -> None:
    site = site_module("hooks")
    pages = {page for page in pages_of_the_site() if not page.startswith(site.API_FOLDER) and page not in site.MADE}
    assert {site.site_path(site.repository_path(page)) for page in pages} == pages
    assert not [page for page in pages if not (ROOT / site.repository_path(page)).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_each_page_is_there_as_html_and_as_markdown(built: Path) -> None:
    pages = pages_of_the_site()
    assert not [page for page in pages if not (built / page).with_suffix(".html").is_file()]
    assert not [page for page in pages if len((built / page).read_text(encoding="utf-8")) < 100]
    assert "clipped_policy_loss(logprobs" in (built / "reference/api/losses.md").read_text(encoding="utf-8")
    text = (built / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# holdfast\n\n> ")
    assert set(re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", text, re.M)) == pages


@pytest.mark.slow
def test_tables_become_tables(built: Path) -> None:
    """One inside an item of a list does not."""
    assert not [page.name for page in built.rglob("*.html") if "|---|" in page.read_text(encoding="utf-8")]


@pytest.mark.slow
def test_links_of_the_markdown_lead_somewhere(built: Path) -> None:
    site = site_module("hooks")
    broken = []
    for page in pages_of_the_site():
        if page.startswith(site.API_FOLDER):  # docstrings
            continue
        prose = site.FENCE.sub("", (built / page).read_text(encoding="utf-8"))
        for _, address in site.LINK.findall(prose):
            path = address.partition("#")[0]
            if path and ":" not in path and not ((built / page).parent / path).is_file():
                broken.append(f"{page}: {address}")
    assert not broken


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//')
    assert not [page.name for page in built.rglob("*.html") if loads.search(page.read_text(encoding="utf-8"))]
    assert loads.search('<link rel="stylesheet" href="https://fonts.example/css">')
    assert "__index" in (built / "search" / "search_index.js").read_text(encoding="utf-8")[:20]
