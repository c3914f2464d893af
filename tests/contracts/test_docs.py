"""What the pages say works: links, settings, commands, recipes and Python in README and docs."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import jinja2
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.base.errors import MissingExtra
from holdfast.cli.command import split
from holdfast.cli.main import app
from holdfast.diagnose.codes import CODES
from holdfast.recipe import Config, load, setting_names, validate
from holdfast.recipe.overrides import parse_overrides

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")] + [
    page for folder in ("docs", "research/docs", "skills") for page in sorted((ROOT / folder).rglob("*.md"))
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OF_VERL = re.compile(r"^\* \*\*In verl\..*$", re.M)
"""Where codes.md has verl's settings, some of which begin like ours."""
SECTIONS = set(Config.model_fields)
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_file())
OF_OTHERS = {"openai", "openenv", "trl", "unsloth", "verl"}
"""Modules of pages that the environment of the tests may lack."""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [body for name, body in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What GitHub calls the page's headings."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, root: Path = ROOT) -> list[str]:
    broken = []
    for link in LINK.findall(prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        missing = not target.exists() or root not in target.parents
        if missing or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in seen and page.suffix == ".md" and page.is_file():
            seen.add(page)
            queue += [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(page))]
    assert set(PAGES) - seen == set()


def unknown_settings(page: Path) -> list[str]:
    """Dotted names in inline code that begin like a setting and are none."""
    known = {*setting_names(), *SECTIONS, *(name.rpartition(".")[0] for name in setting_names())}
    unknown = []
    ours = OF_VERL.sub("", prose(page))
    for code in re.findall(r"`([^`\n]+)`", ours):
        name = code.partition("=")[0].strip().removeprefix("--")
        head, _, last = name.partition(".")
        a_file = last in ("md", "py", "toml", "json", "jsonl", "parquet", "sh")
        if re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", name) and head in SECTIONS and not a_file and name not in known:
            unknown.append(name)
    return unknown


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_settings_exist(page: Path) -> None:
    assert unknown_settings(page) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_toml_is_a_recipe(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "toml"):
        (tmp_path / f"{page.stem}.toml").write_text(block, encoding="utf-8")
        load(tmp_path / f"{page.stem}.toml")


def test_the_settings_of_a_method_work_together() -> None:
    """Where docs/reference/papers.md names settings, they are a recipe, or a set of alternatives."""
    rows = 0
    for line in prose(ROOT / "docs" / "reference" / "papers.md").splitlines():
        settings = re.findall(r"`([a-z0-9_.]+ = [^`]+)`", line)
        if settings:
            rows += 1
            validate(tomllib.loads("\n".join(settings)), where=line)
    assert rows > 10


def commands() -> Iterator[tuple[str, list[str]]]:
    for page, name in zip(PAGES, NAMES, strict=True):
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and Path(words[0]).name == "holdfast":
                    yield name, words[1:]


def test_commands_exist() -> None:
    from holdfast.cli.command import SettingsCommand
    from holdfast_research.__main__ import program

    group = program()
    context = group.context_class(group, info_name="holdfast")
    shown = list(commands())
    assert {"train", "ask"} <= {words[0] for _, words in shown}
    for page, (verb, *rest) in shown:
        assert verb in group.list_commands(context), f"{page}: holdfast {verb} does not exist"
        _, command, _ = group.resolve_command(context, [verb])
        if inner := getattr(command, "commands", {}):
            assert rest and rest[0] in inner, f"{page}: holdfast {verb} {' '.join(rest[:1])} does not exist"
            command = inner[rest.pop(0)]
        flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        options = [word for word in rest if word.startswith("--")]
        strange = [o for o in options if "." not in o and o.partition("=")[0] not in flags]
        assert not strange, f"{page}: holdfast {verb} has no {strange}"
        settings = settings_in(rest)
        assert not settings or isinstance(command, SettingsCommand), f"{page}: holdfast {verb} takes no settings"
        # Settings on top of a run's, of those of data or of a recipe need not work alone.
        on_top = verb == "eval" or any(word.endswith(".toml") for word in rest)
        parse_overrides(settings, Config) if on_top else load(None, settings)
        for word in rest:
            assert word.partition("/")[0] != "run", f"{page}: {word} is a run folder, which is runs/NAME"
            if word.startswith("recipes/"):
                assert (ROOT / "src/holdfast" / word).is_file(), f"{page}: {word} does not exist"


def settings_in(words: list[str]) -> list[str]:
    """`["my.toml", "--train.steps", "50", "--dry-run"]` -> `["--train.steps", "50"]`."""
    found: list[str] = []
    wants_value = False
    for word in words:
        is_setting = word.startswith("--") and "." in word
        if is_setting or (wants_value and not word.startswith("--")):
            found.append(word)
        wants_value = is_setting and "=" not in word
    return found


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_runs(page: Path) -> None:
    """Blocks with prompts are doctests, which pytest collects by itself; the others are run here."""
    for block in blocks(page, "python"):
        if ">>>" not in block:
            exec(compile(block, str(page), "exec"), {"__name__": "page"})


def test_the_stable_api_exists() -> None:
    rows = re.findall(r"^\| `(holdfast[.\w]+)`: (.*?) \|", prose(ROOT / "docs" / "reference" / "stable.md"), re.M)
    assert len(rows) > 8
    for module, names in rows:
        there = importlib.import_module(module)
        assert [name for name in re.findall(r"`(\w+)`", names) if not hasattr(there, name)] == [], module


def imports_of(code: str) -> Iterator[tuple[str, str | None]]:
    """(module, name in it) of each import in Python that may lack what stands around it."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((name.name, None) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), name.name) for name in node.names)


def unresolved(code: str) -> list[str]:
    """Imports from holdfast that fail, and modules of others that nothing has."""
    bad = []
    for module, name in imports_of(code):
        if module.partition(".")[0] != "holdfast":
            known = module.partition(".")[0] in OF_OTHERS or find_spec(module.partition(".")[0]) is not None
        else:
            known = has(module, name)
        if not known:
            bad.append(f"{module}:{name}")
    return bad


def has(module: str, name: str | None) -> bool:
    """Whether a module of holdfast has a name. Of one that needs what is not installed, its source says so."""
    if (spec := find_spec(module)) is None:
        return False
    try:
        return name is None or hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        assert (error.name or "").partition(".")[0] in OF_OTHERS, error
        return (
            re.search(rf"^(class|def) {name}\b", Path(str(spec.origin)).read_text(encoding="utf-8"), re.M) is not None
        )


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "contributing"], ids=lambda p: p.name)
def test_fragments_of_python_could_run(page: Path) -> None:
    """Blocks marked `py` need a trainer around them, and indented ones files: they compile, and import what exists."""
    text = page.read_text(encoding="utf-8")
    for body in [*blocks(page, "py"), *map(dedent, re.findall(r"^ +```py(?:thon)?\n(.*?)^ +```$", text, re.M | re.S))]:
        assert unresolved(body) == []


READ: dict[str, Callable[[str], object]] = {
    ".py": unresolved,
    ".ipynb": lambda text: unresolved(
        "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code")
    ),
    ".toml": lambda text: None,  # loaded below, and a page trains it
    ".yaml": lambda text: [target for target in re.findall(r"_target_: (\S+)", text) if not importable(target)],
    ".sh": lambda text: subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr,
    ".jinja": lambda text: jinja2.Environment().parse(text) and None,
}


def importable(path: str) -> bool:
    """Whether a module has such a class, or one that it hands on, without the packages that the module imports."""
    module, _, name = path.rpartition(".")
    source = module_source(module)
    handed_on = re.search(rf"^from (\S+) import .*\b{name}\b", source, re.M)
    return f"class {name}(" in (module_source(handed_on[1]) if handed_on else source)


def module_source(module: str) -> str:
    """The source of a module of holdfast, which is not imported; empty if there is none."""
    path = Path(holdfast.__file__).parent.parent / module.replace(".", "/")
    found = next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)
    return "" if found is None else found.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_can_be_read_and_is_named_on_a_page(path: Path) -> None:
    assert not READ[path.suffix](path.read_text(encoding="utf-8"))
    assert any(path.name in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_questions_asked_are_in_the_data_of_the_run() -> None:
    from holdfast.tasks import factbook
    from holdfast.tasks.world.facts import build_world

    world = build_world(load(ROOT / "src/holdfast/recipe/bundled" / "quickstart.toml").world)
    known = {question.example.question for question in world.questions["test"]}
    asked = [words[1:3] for _, words in commands() if words[0] == "ask" and len(words) > 2 and " " in words[2]]
    if any(run == "runs/factbook" for run, _ in asked):
        try:
            known |= {example.question for example in factbook.load_questions().dev}
        except MissingExtra as error:
            pytest.skip(str(error))
    assert asked
    known |= {f"Who discovered {moon}?" for moon in ("Rhea",)}  # docs/guide/own-tasks.md, which a test follows
    assert {question for _, question in asked} <= known


def test_the_architecture_names_files_that_exist(root: Path) -> None:
    text = (root / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    paths = [
        path
        for path in re.findall(r"`([\w/]+(?:\.py|/))`", text)
        if not path.startswith(("examples/", "research/", "src/", "tests/"))
    ]
    assert len(paths) > 30
    assert not [path for path in paths if not (root / "src" / "holdfast" / path).exists()]


def test_pre_commit_pins_the_ruff_of_the_constraints(root: Path) -> None:
    (pinned,) = re.findall(r"^ruff==(.+)$", (root / "constraints.txt").read_text(), re.M)
    assert f"rev: v{pinned}\n" in (root / ".pre-commit-config.yaml").read_text()


def test_the_contract_environments_have_the_torch_of_the_constraints(root: Path) -> None:
    """pip is given both files."""
    (pinned,) = re.findall(r"^torch==.+$", (root / "constraints.txt").read_text(), re.M)
    files = {path.stem: path.read_text().splitlines() for path in (root / "constraints").glob("*.txt")}
    without = {"verifiers", "skyrl-gym"}
    assert set(files) == {"trl", "verl", "vllm", "prime-rl", "openenv", *without}
    assert {host for host, lines in files.items() if pinned not in lines} == without


# ---- every recipe loads, and opens with the command that runs it

MACHINES = {"--gpus", "--nodes"}
RECIPES = sorted([*(ROOT / "src/holdfast/recipe/bundled").rglob("*.toml"), *(ROOT / "examples").glob("*.toml")])


def command_in(text: str) -> list[str]:
    """Words of the first `holdfast …` line in the comment a recipe opens with; empty when there is none."""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words = line.removeprefix("#").strip().strip("`")
        if words.partition(" ")[0] == "holdfast":
            return shlex.split(words, comments=True)
    return []


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_a_recipe_loads_and_says_how_to_run_it(path: Path) -> None:
    assert isinstance(load(path), Config)
    words = command_in(path.read_text(encoding="utf-8"))
    starts = (["holdfast", "train"], ["holdfast", "launch", "trl"], ["holdfast", "launch", "verl"])
    start = next((start for start in starts if words[: len(start)] == start), None)
    assert start, "its first comment must hold the exact command that runs it, or makes the files that do"
    rest = words[len(start) :]
    if path.stem != "quickstart":  # which `holdfast train` runs unless told otherwise
        name = path.stem if "bundled" in path.parts else str(path.relative_to(ROOT))
        assert rest[:1] == [name], f"the command must name {name}"
        rest = rest[1:]
    settings, others = split(rest, MACHINES)
    load(path, settings)  # the overrides it shows, if any, are real settings
    assert not others or (start[1] == "launch" and set(others[::2]) <= MACHINES), f"{others} are no settings"


# ---- skills/diagnose-run: its frontmatter, and that its keys, codes and exit codes are those of the command

SKILL = (ROOT / "skills/diagnose-run/SKILL.md").read_text(encoding="utf-8")
LOGS = ROOT / "tests/fixtures/logs"


def test_agents_can_find_it() -> None:
    head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL)
    assert head is not None
    assert head[1] == "diagnose-run" and len(head[2]) <= 1024
    assert len(SKILL.splitlines()) <= 120


def test_its_codes_exist() -> None:
    named = set(re.findall(r"\b[A-Z]{3}\d{3}\b", SKILL))
    assert named and named <= set(CODES)


def test_its_table_has_every_key() -> None:
    value = json.loads(CliRunner().invoke(app, ["diagnose", str(LOGS / "verl-console.log"), "--json"]).stdout)
    table = "\n".join(line.partition(" | ")[0] for line in SKILL.splitlines() if line.startswith("| `"))
    assert set(value) - set(re.findall(r"`(\w+)`", table)) == {"format", "host", "name", "steps"}
    in_a_finding = set(re.findall(r"`(?:findings\[\])?\.(\w+)`", table))
    assert in_a_finding == set(value["findings"][0]) - {"series", "level", "by_verdict"}
    assert set(re.findall(r"`([\w ]+)`", re.findall(r"^\| `facts` \| (.*) \|$", SKILL, re.M)[0])) <= set(value["facts"])


@pytest.mark.parametrize(("log", "code"), [("trl-console.log", 0), ("verl-console.log", 1), ("nothing.log", 2)])
def test_exit_codes(log: str, code: int) -> None:
    assert re.search(rf"^\| {code} \| ", SKILL, re.M)
    assert CliRunner().invoke(app, ["diagnose", str(LOGS / log)]).exit_code == code
