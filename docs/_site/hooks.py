"""What mkdocs does not do by itself: the study's pages, settings, commands, the Python API, `llms.txt`, and pages as
Markdown.

Some pages lie outside `docs`: those of the study and two of the repository. They are read from where they are, and
links between the trees are rewritten. A link to another file of the repository becomes a link to `repo_url`; while
there is none it becomes its text.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TREES = {"docs": "", "research/docs": "study"}
"""Folder of the repository -> folder of the site."""
PAGES = {
    "research/docs/README.md": "study/index.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "changelog.md",
}
"""Page of the repository -> page of the site, where the folders do not say it."""

# Page of the API -> its title, and what is on it: modules with all that is public in them, or single functions.
API = {
    "losses": ("Losses", ["losses"]),
    "penalties": ("Penalties", ["methods.penalties"]),
    "trajectory": ("Trajectories", ["agent.trajectory"]),
    "batch": ("Batches", ["agent.batch"]),
    "config": ("Recipes", [f"recipe.{n}" for n in ("load", "validate", "dump", "setting_names", "setting_values")]),
    "loading": ("Loading", ["tasks.opening"]),
    "tasks": ("Tasks", ["tasks.questions"]),
    "scoring": ("Scoring", ["base.scoring", "agent.rewards"]),
    "rollout": ("Rollouts", ["agent.protocol", "agent.observations", "agent.agent", "model.sampler.policy"]),
    "retrieval": ("Retrieval", ["retrieval", "retrieval.types", "retrieval.bm25", "retrieval.client"]),
    "diagnostics": ("Diagnostics", [f"diagnose.{n}" for n in ("readers", "log", "diagnose", "finding", "report")]),
    "collapse": ("Collapse", ["diagnose.log.collapse"]),
    "trl": ("TRL", ["adapters.trl", "adapters.trl_search", "adapters.trl_monitor"]),
    "hosts": ("verl, slime, prime-rl", ["adapters.verl", "adapters.slime", "adapters.prime_rl"]),
    "launch": ("Launch", ["adapters.launch"]),
    "errors": ("Errors", ["base.errors"]),
}

API_FOLDER = "reference/api/"
MADE = {"reference/settings.md": "settings", "reference/cli.md": "commands", "reference/names.md": "names"}
"""Page of the site -> the module beside this one whose `page()` makes it from the code."""

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[^\n]*$", re.M | re.S)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
PROMPTS = re.compile(r"^>>> .*(?:\n.*\S.*)*", re.M)
COMMENT = re.compile(r"^<!--.*?-->\n?", re.M | re.S)


# ---- the study's pages, and links between the trees


def site_path(path: str) -> str | None:
    """Where a file of the repository is in the site, None if it is not there.

    >>> site_path("research/docs/log.md"), site_path("docs/theory.md"), site_path("examples/custom_loop.py")
    ('study/log.md', 'theory.md', None)
    """
    for tree, folder in TREES.items():
        if path.startswith(f"{tree}/"):
            return PAGES.get(path, posixpath.join(folder, path.removeprefix(f"{tree}/")))
    return PAGES.get(path)


def repository_path(page: str) -> str:
    """Where a page of the site is in the repository.

    >>> repository_path("study/index.md"), repository_path("study/log.md"), repository_path("theory.md")
    ('research/docs/README.md', 'research/docs/log.md', 'docs/theory.md')
    """
    for path, inside in PAGES.items():
        if inside == page:
            return path
    return f"research/docs/{page.removeprefix('study/')}" if page.startswith("study/") else f"docs/{page}"


def rewritten(markdown: str, source: str, repository: str | None = None) -> str:
    """The page with its links as the site needs them. `source`: the page's path in the repository.

    >>> rewritten("[a](../research/docs/README.md#x), [b](../src/), [c](https://d.org)", "docs/theory.md")
    '[a](study/index.md#x), b, [c](https://d.org)'
    >>> rewritten("[b](../src/)", "docs/theory.md", "https://forge.org/holdfast/")
    '[b](https://forge.org/holdfast/blob/main/src)'
    """
    folder = posixpath.dirname(site_path(source) or "") or "."

    def link(match: re.Match[str]) -> str:
        text, address = match.groups()
        path, mark, anchor = address.partition("#")
        if not path or ":" in path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        inside = site_path(target)
        if inside is not None:
            return f"[{text}]({posixpath.relpath(inside, folder)}{mark}{anchor})"
        return f"[{text}]({repository.rstrip('/')}/blob/main/{target})" if repository else text

    return outside_fences(markdown, lambda prose: LINK.sub(link, prose))


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The page with its prose changed, and its fenced code as it is."""
    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def api_page(page: str) -> str:
    """A page of the API, for mkdocstrings."""
    title, names = API[page]
    return f"# {title}\n\n" + "\n".join(f"::: holdfast.{name}\n" for name in names)


def made(module: str) -> str:
    """The text of a page that a module beside this one makes."""
    spec = importlib.util.spec_from_file_location(module, Path(__file__).with_name(f"{module}.py"))
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return str(loaded.page())


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside `docs`, those of the API, and those made from the code."""
    from mkdocs.structure.files import File

    study = (path.relative_to(ROOT) for path in (ROOT / "research" / "docs").rglob("*"))
    outside = {path.as_posix() for path in study if path.suffix in (".md", ".svg", ".png")} | set(PAGES)
    for path in sorted(outside):
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    for name in API:
        files.append(File.generated(config, f"{API_FOLDER}{name}.md", content=api_page(name)))
    for page, module in MADE.items():
        files.append(File.generated(config, page, content=made(module)))
    return files


# ---- Markdown


def on_config(config: Any) -> Any:
    """Markdown as GitHub reads it, and docstrings as people write them."""
    config.markdown_extensions.append(reading_as_written())
    return config


def reading_as_written() -> Any:
    """An extension: two spaces are enough for what belongs to an item of a list, and `>>>` begins code."""
    from markdown.blockprocessors import ListIndentProcessor
    from markdown.extensions import Extension
    from markdown.extensions.sane_lists import SaneOListProcessor, SaneUListProcessor
    from markdown.preprocessors import Preprocessor

    class Prompts(Preprocessor):
        def run(self, lines: list[str]) -> list[str]:
            return outside_fences("\n".join(lines), fenced_prompts).split("\n")

    class ReadingAsWritten(Extension):
        def extendMarkdown(self, md: Any) -> None:
            md.preprocessors.register(Prompts(md), "prompts", 28)  # before fences are read, at 25
            usual, md.tab_length = md.tab_length, 2
            processors = md.parser.blockprocessors
            processors.register(ListIndentProcessor(md.parser), "indent", 90)
            processors.register(SaneOListProcessor(md.parser), "olist", 40)
            processors.register(SaneUListProcessor(md.parser), "ulist", 30)
            md.tab_length = usual

    return ReadingAsWritten()


def fenced_prompts(prose: str) -> str:
    """The text with its Python sessions as fenced code.

    >>> fenced_prompts("One:\\n\\n" + ">" * 3 + " 1\\n1\\n\\nTwo.").splitlines()
    ['One:', '', '', '```pycon', '>>> 1', '1', '```', '', 'Two.']
    """
    return PROMPTS.sub(lambda session: f"\n```pycon\n{session[0]}\n```", prose)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page without comments and with its links rewritten."""
    if page.parent is None:  # its tab is all of its navigation
        page.meta["hide"] = ["navigation"]
    bare = outside_fences(markdown, lambda prose: COMMENT.sub("", prose))
    markdown = rewritten(bare, repository_path(page.file.src_uri), config.repo_url)
    page.plain = plain_api(Path(page.file.src_uri).stem) if page.file.src_uri.startswith(API_FOLDER) else markdown
    return outside_fences(markdown, plain_bars)


def plain_bars(prose: str) -> str:
    """The text without the backslashes that only GitHub needs before a bar in the code of a table.

    >>> plain_bars(r"| `a \\| b` | c \\| d |")
    '| `a | b` | c \\\\| d |'
    """
    in_code = re.compile(r"`[^`\n]+`")
    return re.sub(
        r"^\|.*$", lambda row: in_code.sub(lambda code: code[0].replace("\\|", "|"), row[0]), prose, flags=re.M
    )


# ---- for programs that read


def summary(markdown: str) -> str:
    """The first sentence of a page.

    >>> summary("# A\\n\\n![b](c)\\n\\nReads [a log](d.md), as\\nit is. More.")
    'Reads a log, as it is.'
    """
    for paragraph in re.split(r"\n\s*\n", FENCE.sub("", markdown)):
        if re.match(r"[\w`*\[]", paragraph) and not paragraph.startswith("* "):
            return re.split(r"(?<=[.?!])\s", " ".join(LINK.sub(r"\1", paragraph).split()))[0].rstrip(":")
    return ""


def described(items: Any, level: int = 2) -> Iterator[str]:
    """Lines of `llms.txt` for a part of the navigation: its pages, then its sections."""
    pages = [item for item in items if item.is_page]
    yield from (f"- [{page.title}]({page.file.src_uri}): {summary(page.plain)}" for page in pages)
    if pages:
        yield ""
    for section in (item for item in items if item.is_section):
        yield from (f"{'#' * level} {section.title}", "", *described(section.children, level + 1))


@cache
def library() -> Any:
    """The package, read without being imported."""
    import griffe

    return griffe.load("holdfast", search_paths=[ROOT / "src"])


def plain_api(page: str) -> str:
    """A page of the API as Markdown: docstrings as they stand in the code."""
    title, names = API[page]
    parts = [f"# {title}"]
    for name in names:
        thing = library()[name]
        inside = [m for m in thing.members.values() if m.is_public and not m.is_module] if thing.is_module else []
        parts += [f"## {thing.path}", *signature_of(thing), text_of(thing)]
        for member in inside:
            parts += [f"### {thing.path}.{member.name}", *signature_of(member), text_of(member)]
            methods = [m for m in member.members.values() if m.is_public and m.docstring] if member.is_class else []
            parts += ["\n".join(f"* `{method.name}`: {summary(text_of(method))}" for method in methods)]
    return "\n\n".join(part for part in parts if part) + "\n"


def text_of(thing: Any) -> str:
    """Its docstring, Python sessions fenced; empty without one."""
    return fenced_prompts(thing.docstring.value) if thing.docstring else ""


def signature_of(thing: Any) -> list[str]:
    """The call, as Python; nothing for a value."""
    target = thing.final_target if thing.is_alias else thing
    return [f"```python\n{target.signature()}\n```"] if target.is_function or target.is_class else []


def on_post_build(config: Any) -> None:
    """Write `llms.txt`."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", *described(NAVIGATION)]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


NAVIGATION: list[Any] = []


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Remember what `llms.txt` lists."""
    NAVIGATION[:] = nav.items
    return nav


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Write the page as Markdown beside its HTML."""
    target = Path(config.site_dir) / page.file.src_uri
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page.plain, encoding="utf-8")
    return output
