"""Every page, snippet, command and remedy advises what the table of `holdfast.hosts.advice` says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.adapters.launch.plan import LAUNCHES, plan
from holdfast.cli.main import COMMANDS, app, command_named
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules import RULES
from holdfast.hosts import HOSTS, PENALTY, words
from holdfast.hosts.advice import ADVICE, WITH, WITHOUT
from holdfast.hosts.host import COEF
from holdfast.methods.penalties import LLDS
from holdfast.recipe import load
from holdfast.recipe.loading import bundled

ROOT = Path(__file__).parents[2]
COEFFICIENT = re.compile(
    r"""(?:LLDS\(coef=|penalty_coef=|loss\.penalty\.coef[ =]+|name:\ llds,\ coef:\ |"llds"\s+coef\ =\ |
    [Bb]egin\ with\ LLDS\ at\ )([\d.]*\d)""",
    re.VERBOSE,
)
"""How LLDS's coefficient is written in Python, for verl, for a recipe, in YAML, in TOML, and in a sentence."""
PUBLISHED = {
    "llds-v1": 0.1,  # the first version of the paper
    "qwen2.5-7b-instruct": 0.3,  # its table
}
ELSEWHERE: dict[str, set[float]] = {
    "examples/trl_stabilised.py": {1.0},  # the tiny testbed at four times its rate, which needs 1
    "docs/guide/real-model.md": {1.0},  # a comparison of coefficients
    "docs/reference/papers.md": {0.1},  # what was published
}


def pages() -> dict[str, str]:
    """Pages, examples and sources."""
    patterns = ("README.md", "docs/**/*.md", "skills/**/*.md", "examples/*.*", "src/holdfast/**/*.py")
    paths = [path for pattern in patterns for path in ROOT.glob(pattern) if path.suffix != ".ipynb"]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def helps() -> str:
    """The help of every command."""
    return "\n".join(_help(command_named(name)) for name in COMMANDS)


def _help(command: Any) -> str:
    inner = getattr(command, "commands", {})
    return "\n".join([command.help or "", *map(_help, inner.values())])


def demo(folder: Path) -> str:
    done = CliRunner().invoke(app, ["demo", str(folder / "demo"), "--no-open"])
    assert done.exit_code == 0, done.output
    return done.output


def remedies() -> str:
    """Of every rule, in the words of every host."""
    rules = [remedy for rule in RULES.values() for remedy in (rule.remedy, *(check.remedy for check in rule.checks))]
    return "\n".join(remedy[host] for remedy in rules if remedy for host in remedy)


def launched(host: str) -> str:
    """The files that are written for a recipe that sets nothing of the penalty."""
    small = ("--data.train=questions.jsonl", "--retrieval.url=http://127.0.0.1:8000", "--train.questions=40")
    files = plan(host, load(None, ["--run.name=small", "--model.path=Qwen/Qwen2.5-0.5B-Instruct", *small])).files
    return "\n".join(files.values())


MADE: dict[str, Callable[[Path], str]] = {
    "help": lambda folder: helps(),
    "demo": demo,
    "remedies": lambda folder: remedies(),
    **{f"launch {host}": lambda folder, host=host: launched(host) for host in LAUNCHES},  # type: ignore[misc]
}
"""What a command says or writes -> its text, given an empty folder."""


def coefficients(text: str) -> Iterator[float]:
    return (float(found[1]) for found in COEFFICIENT.finditer(text))


def test_the_default_is_what_is_advised() -> None:
    assert LLDS().coef == COEF and f"{COEF:g}" in WITH
    for host in HOSTS:
        if named := words(host, PENALTY):
            assert f"{COEF}" in " ".join(named), host


def test_pages_examples_and_sources_advise_it() -> None:
    """0 is a control with everything else in place."""
    found = {name: set(coefficients(text)) - {COEF, 0.0} for name, text in pages().items()}
    assert {name: odd for name, odd in found.items() if odd - ELSEWHERE.get(name, set())} == {}
    assert sum(COEF in coefficients(text) for text in pages().values()) > 20


@pytest.mark.parametrize("name", bundled())
def test_recipes_have_it(name: str) -> None:
    penalty = load(bundled()[name]).loss.penalty
    assert penalty.name != "llds" or penalty.coef == PUBLISHED.get(name, COEF)


@pytest.mark.parametrize("name", MADE)
def test_commands_advise_it(name: str, tmp_path: Path) -> None:
    assert set(coefficients(MADE[name](tmp_path))) <= {COEF}


@pytest.mark.parametrize(("phrase", "places"), [
    (WITH, ("docs/guide/verl.md", "docs/reference/hosts.md")),
    (WITHOUT, ("docs/guide/verl.md", "docs/reference/hosts.md", "docs/guide/trl.md")),
])  # fmt: skip
def test_pages_say_what_to_begin_with(phrase: str, places: tuple[str, ...]) -> None:
    texts = {place: " ".join(text.replace("Begin with", "begin with").split()) for place, text in pages().items()}
    assert not [place for place in places if phrase not in texts[place]]


def test_where_ratios_are_to_the_sampler_no_remedy_adds_a_penalty() -> None:
    """Whatever the rule takes into account, as long as it is the log's old policy."""
    for rule in RULES.values():
        for host, old_policy in (("trl-async", "sampler"), ("verl", "sampler"), ("verl", "recomputed")):
            log: Any = Log(format="jsonl", host=host, name="run", series={}, old_policy=old_policy)  # type: ignore[arg-type]
            hit: Any = SimpleNamespace(remedy=None)
            remedies = [rule.remedy, *(check.remedy for check in rule.checks)]
            if rule.remedy_in is not None and any(f"{PENALTY} (" in remedy[host] for remedy in remedies if remedy):
                remedies = [rule.remedy_in(log, hit, ())]
            texts = [remedy.get(host, "") for remedy in remedies if remedy]
            adds = [text for text in texts if f"{PENALTY} (" in text and "old policy is recomputed" not in text]
            assert not adds or old_policy == "recomputed", rule.code


def test_every_row_has_its_evidence() -> None:
    for row in ADVICE.values():
        assert (ROOT / "research" / "docs" / row.evidence).is_file(), row


def test_trainers_are_in_the_situation_that_their_old_policy_says() -> None:
    for host in HOSTS.values():
        assert host.trainers.keys() <= ADVICE.keys(), host.id
        if host.old_policy({}, {}) == "sampler":
            assert host.trainers.keys() == {"sampler"}, host.id
