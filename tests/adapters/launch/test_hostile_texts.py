"""Recipes of others: no text in one can become code, or anything else than the text, in the files that are written."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

from holdfast.adapters.launch import Plan, plan, write_plan
from holdfast.base.errors import ConfigError
from holdfast.base.section import kinds_of, setting
from holdfast.recipe import Config, setting_names

from .conftest import run_with_fakes

MakeRecipe = Callable[..., Config]

TEXTS = [name for name in setting_names() if str in kinds_of(setting(Config, name).annotation)]
CUSTOM = ("--loss.penalty.name=custom", "--loss.penalty.path=own_code_of_launch:Ramp")
NEEDS = {
    "retrieval.corpus": ("--retrieval.url=none",),
    "retrieval.index": ("--retrieval.url=none", "--retrieval.corpus=c.jsonl"),
    "loss.penalty.settings": CUSTOM,
    "critic.path": ("--loss.advantage=gae", "--loss.penalty.name=none", "--loss.kl_coef=0"),
}

HOSTILE = "a\"'\\' \"\"\" ''' {x} # \U0001f600\x85\u2028\x7f\nopen('ran', 'w')\n$(touch ran) `touch ran`; touch ran \\"
REFERENCE = "a ${oc.env:HOME}"
"""What verl's configuration would replace."""


def written(name: str, text: str) -> str:
    """The override that sets a setting to a text, or to something around it."""
    if name == "loss.penalty.settings":
        return f"--{name}={tomli_w.dumps({'label': text}).strip()}"
    around = {"protocol.prompt": f"{text} {{question}}", "retrieval.url": f"http://h/{text}"}
    return f"--{name}={around.get(name, text)}"


def hydra(word: str) -> str:
    """A text as Hydra reads it: in quotes, backslashes before a quote are halved. (tests/adapters/verl has Hydra.)"""
    word = re.sub(r"(?s)\{label:(.*)\}", r"\1", word)
    if not word.startswith("'"):
        assert re.fullmatch(r"[\w./\[{$-][\w./,:{}\]-]*", word, re.ASCII), word
        return word
    quotes = re.findall(r"(\\*)'", word[1:])
    assert [len(slashes) % 2 for slashes in quotes] == [1] * (len(quotes) - 1) + [0], "it ends at the end"
    return re.sub(r"(\\+)(?='|\Z)", lambda found: "\\" * (len(found[1]) // 2), word[1:-1])


def read_back(made: Plan, folder: Path, text: str) -> Any:
    """All that the files of a plan say to those who read them, with a mark where the text was."""

    def marked(value: Any) -> Any:
        if isinstance(value, dict):
            return {marked(key): marked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [marked(item) for item in value]
        return value.replace(text, "¤") if isinstance(value, str) else value

    write_plan(replace(made, write_data=lambda _: None), folder)
    words = run_with_fakes(folder, "accelerate" if made.host == "trl" else "python3")
    read: dict[str, Any] = {"recipe": tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))}
    if made.host == "trl":
        read["words"] = words
        tree = ast.parse((folder / "train.py").read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                node.value = marked(node.value)
        read["script"] = ast.dump(tree)
    else:
        read["words"] = [hydra(word.partition("=")[2]).replace(str(folder), "") for word in words[2:-2]]
        read["loops"] = yaml.safe_load((folder / "agent_loops.yaml").read_bytes())
    return marked(read)


@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize("name", [*TEXTS, "loss.penalty.settings"])
@pytest.mark.parametrize("text", [HOSTILE, REFERENCE], ids=["hostile", "reference"])
def test_a_text_arrives_or_is_refused(
    host: str, name: str, text: str, recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        made = plan(host, recipe(*NEEDS.get(name, ()), written(name, text)))
    except ConfigError as error:
        assert name in str(error)
        return
    plain = plan(host, recipe(*NEEDS.get(name, ()), written(name, "plain")))
    read = read_back(made, tmp_path / "x", text)
    assert read == read_back(plain, tmp_path / "y", "plain")
    assert "¤" in str(read)
    assert not list(tmp_path.rglob("ran"))


def test_which_texts_are_refused(recipe: MakeRecipe) -> None:
    """The test above would pass if all were."""
    free = {"run.dir", "model.path", "model.chat_template", "track.wandb", "data.train", "protocol.prompt"}

    def refused(host: str, text: str) -> set[str]:
        names = set()
        for name in free:
            try:
                plan(host, recipe(written(name, text)))
            except ConfigError:
                names.add(name)
        return names

    assert [refused(host, HOSTILE) for host in ("trl", "verl")] == [set(), set()]
    assert refused("trl", REFERENCE) == set()
    assert refused("verl", REFERENCE) == free - {"data.train", "protocol.prompt"}


@pytest.mark.parametrize("key", ["a,b", "a:1", "ü", "true"])
def test_a_key_that_hydra_would_read_otherwise(recipe: MakeRecipe, key: str) -> None:
    """Python takes any."""
    config = recipe(*CUSTOM, f'--loss.penalty.settings=words = {{ "{key}" = 1 }}')
    assert f"words={{{key!r}: 1}}" in plan("trl", config).files["train.py"]
    with pytest.raises(ConfigError, match=r"loss\.penalty\.settings"):
        plan("verl", config)
    plan("verl", recipe(*CUSTOM, '--loss.penalty.settings=words = { "a_b" = 1 }'))
