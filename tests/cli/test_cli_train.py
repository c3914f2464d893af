"""The recipe and the settings that `holdfast train` runs with, as `recipe show` prints them; and what is refused."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, RolloutError
from holdfast.base.files import locked
from holdfast.cli.train import claim
from holdfast.recipe import load, validate
from holdfast.recipe.loading import bundled

from .conftest import then_raise

Run = Callable[..., Any]


# ---- the recipe


def test_settings_beat_the_recipe_wherever_they_stand(trainer: Any, holdfast: Run) -> None:
    Path("my.toml").write_text("[train]\nsteps = 5\nquestions = 8\n")
    holdfast("train", "--loss.entropy_coef", "-0.01", "my.toml", "--train.steps", "7", "--overwrite")
    assert trainer.config.train.steps == 7
    assert trainer.config.train.questions == 8
    assert trainer.config.loss.entropy_coef == -0.01


def test_a_bundled_recipe_goes_by_its_name(trainer: Any, holdfast: Run) -> None:
    holdfast("train", "collapse")
    by_name = trainer.config
    holdfast("train", "recipes/collapse.toml", "--run.name", by_name.run.name, "--overwrite")
    assert trainer.config == by_name
    assert by_name.loss.penalty.name == "none"
    Path("collapse").mkdir()  # a run of it, say, where one stands in runs/
    holdfast("train", "collapse", "--run.name", by_name.run.name, "--overwrite")
    assert trainer.config == by_name


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        ("quikstart", "did you mean quickstart?"),
        ("zzz.toml", "give the path of a TOML file, or one of collapse, factbook, flaky, llama3.2-3b, "),
    ],
)
def test_a_recipe_that_is_not_there(trainer: Any, holdfast: Run, recipe: str, hint: str) -> None:
    assert hint in holdfast("train", recipe, code=2).stderr
    assert trainer.calls == []


# ---- recipe list and show, and the dry run


def test_a_shown_recipe_reads_back_equal(trainer: Any, holdfast: Run) -> None:
    printed = holdfast("recipe", "show", "--train.steps", "7", "--loss.penalty.name=none", "--world.filler_words=20")
    config = validate(tomllib.loads(printed.stdout))
    assert config == load(
        bundled()["quickstart"], ["--train.steps=7", "--loss.penalty.name=none", "--world.filler_words=20"]
    )
    assert printed.stderr == ""
    assert trainer.calls == []
    assert list(Path().iterdir()) == []


def test_a_dry_run_names_the_folder_and_makes_nothing(trainer: Any, holdfast: Run) -> None:
    for folder in ("runs/quickstart", "runs/quickstart-2"):
        assert f"{folder}.\n" in holdfast("train", "--dry-run").stdout
        assert not Path(folder).exists()
        holdfast("train")
    assert "runs/quickstart exists" in holdfast("train", "--dry-run", "--run.name=quickstart", code=2).stderr
    assert "runs/quickstart." in holdfast("train", "--dry-run", "--overwrite").stdout
    assert Path("runs/quickstart/config.toml").is_file() and len(trainer.calls) == 2


# ---- what cannot be read


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dryrun"], "error: there is no option --dryrun; did you mean --dry-run?\n"),
        (["--train.steps", "--dry-run"], "error: --train.steps needs a value; write --train.steps 60\n"),
        (["--run.name", "a/b"], "error: {quickstart}: run.name = 'a/b' is not "),
    ],
)
def test_errors_are_one_sentence_and_exit_code_2(
    trainer: Any, holdfast: Run, arguments: list[str], sentence: str
) -> None:
    result = holdfast("train", *arguments, code=2)
    assert result.stderr.startswith(sentence.format(quickstart=bundled()["quickstart"]))
    assert result.stdout == ""
    assert trainer.calls == []


# ---- the run folders of `holdfast train`


def test_a_taken_name_gets_a_number(trainer: Any, holdfast: Run) -> None:
    for expected in ("quickstart", "quickstart-2", "quickstart-3"):
        holdfast("train")
        assert trainer.config.run.name == expected  # so that config.toml and W&B say it too
        assert Path("runs", expected, "config.toml").is_file()
    assert trainer.config.train == load(bundled()["quickstart"]).train


def test_overwrite_replaces_a_run_and_nothing_else(trainer: Any, holdfast: Run) -> None:
    holdfast("train")
    Path("runs/quickstart/metrics.jsonl").write_text("old")
    holdfast("train", "--overwrite", "--train.steps", "0", code=2)
    with locked(Path("runs/quickstart/config.toml")):
        said = holdfast("train", "--overwrite", code=2).stderr
    assert "--overwrite would replace runs/quickstart, in which another process is training" in said
    assert Path("runs/quickstart/metrics.jsonl").read_text() == "old"
    holdfast("train", "--overwrite")
    assert trainer.config.run.name == "quickstart" and not Path("runs/quickstart/metrics.jsonl").exists()
    Path("runs/thesis").mkdir()
    Path("runs/thesis/chapter.tex").write_text("years of work")
    stderr = holdfast("train", "--run.name=thesis", "--overwrite", code=2).stderr
    assert "--overwrite would delete runs/thesis, which is not a run folder" in stderr
    assert Path("runs/thesis/chapter.tex").read_text() == "years of work"


def test_a_run_that_never_began_leaves_no_folder(trainer: Any, holdfast: Run) -> None:
    trainer.script = then_raise(RolloutError("the retriever is down"))
    assert holdfast("train", code=2).stderr == "error: the retriever is down\n"
    assert not Path("runs/quickstart").exists()


def test_two_runs_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load()
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: claim(config, "quickstart", named=False, overwrite=False)[1], range(32)))
    assert len(set(folders)) == 32
    Path("runs/empty").mkdir()
    night = validate({"run": {"name": "empty"}})
    assert claim(night, "quickstart", named=True, overwrite=False)[1] == Path("runs/empty")
    with pytest.raises(ConfigError, match="runs/empty exists"):
        claim(night, "quickstart", named=True, overwrite=False)


# ---- what `holdfast train` says of a run that goes well


def test_closing(trainer: Any, holdfast: Run) -> None:
    text = holdfast("train").stdout
    assert "60 steps in 1 min 23 s\n" in text
    assert "Learned, and stayed stable. Reward rose from 0.24 to 0.48.\n" in text
    rows = {line[:22].strip(): line[22:].split() for line in text.splitlines() if line.startswith("exact match")}
    # 0.45 - 0.2 = 0.25; 0.39 - 0.4 = -0.01
    assert rows["exact match, sampled"] == ["0.200", "0.450", "+0.250"]
    assert rows["exact match, greedy"] == ["0.400", "0.390", "-0.010"]
    assert text.endswith("  holdfast ask runs/quickstart 'Who is the mentor of Mira Tolvan?'\n")


def test_commands_to_copy_name_the_program_as_it_can_be_found(
    trainer: Any, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(".venv/bin/holdfast")
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "")
    assert "\n  .venv/bin/holdfast ask runs/quickstart " in holdfast("train").stdout
    monkeypatch.setenv("PATH", str(script.parent.absolute()))
    assert "\n  holdfast ask runs/quickstart-2 " in holdfast("train").stdout
