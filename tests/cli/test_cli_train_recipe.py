"""The recipe and the settings that `holdfast train` runs with, as `recipe show` prints them; and what is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import recipes
from holdfast.cli.command import split
from holdfast.methods.penalties import LLDS, SAPO
from holdfast.recipe import dump, load, validate

Run = Callable[..., Any]


# ---- the recipe


def test_without_arguments_it_runs_the_quickstart(trainer: Any, holdfast: Run) -> None:
    holdfast("train")
    assert trainer.config == load(recipes.bundled()["quickstart"])
    assert Path("runs/quickstart/config.toml").is_file()


def test_settings_beat_the_recipe_wherever_they_stand(trainer: Any, holdfast: Run) -> None:
    Path("my.toml").write_text("[train]\nsteps = 5\nquestions = 8\n")
    holdfast("train", "--loss.entropy_coef", "-0.01", "my.toml", "--train.steps", "7", "--overwrite")
    assert trainer.config.train.steps == 7
    assert trainer.config.train.questions == 8
    assert trainer.config.loss.entropy_coef == -0.01


def test_a_flag_setting_leaves_the_recipe_alone(trainer: Any, holdfast: Run) -> None:
    Path("my.toml").write_text("")
    holdfast("train", "--track.tensorboard", "my.toml")
    assert trainer.config.track.tensorboard is True
    assert trainer.config.run.name == "my"


def test_a_bundled_recipe_goes_by_its_name(trainer: Any, holdfast: Run) -> None:
    holdfast("train", "collapse")
    by_name = trainer.config
    holdfast("train", "recipes/collapse.toml", "--run.name", by_name.run.name, "--overwrite")
    assert trainer.config == by_name
    assert by_name.loss.penalty.name == "none"
    Path("collapse").mkdir()  # a run of it, say, where one stands in runs/
    holdfast("train", "collapse", "--run.name", by_name.run.name, "--overwrite")
    assert trainer.config == by_name


def test_a_recipe_of_ones_own_hides_the_bundled_one(trainer: Any, holdfast: Run) -> None:
    Path("quickstart").write_text("[train]\nsteps = 3\n")
    holdfast("train", "quickstart")
    assert trainer.config.train.steps == 3


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
        recipes.bundled()["quickstart"], ["--train.steps=7", "--loss.penalty.name=none", "--world.filler_words=20"]
    )
    assert printed.stderr == ""
    assert trainer.calls == []
    assert list(Path().iterdir()) == []


def test_another_penalty_in_a_written_recipe_has_its_own_strength(trainer: Any, holdfast: Run) -> None:
    text = holdfast("recipe", "show", "--loss.penalty.name=none").stdout
    edited = validate(tomllib.loads(text.replace('name = "none"', 'name = "sapo"'))).loss.penalty
    assert edited == SAPO()
    Path("resolved.toml").write_text(dump(load(overrides=["--loss.penalty.name=none"])))
    assert load("resolved.toml", ["--loss.penalty.name=llds"]).loss.penalty == LLDS()
    Path("own.toml").write_text('[loss.penalty]\nname = "sapo"\ncoef = 0.7\n')
    assert load("own.toml", ["--loss.penalty.name=llds"]).loss.penalty == LLDS()  # γ of SAPO is not λ of LLDS


def test_a_shown_recipe_explains_and_names_what_is_not_set(trainer: Any, holdfast: Run) -> None:
    text = holdfast("recipe", "show").stdout
    assert "\n# dev =\n" in text
    assert "(string, optional)" in text
    assert "# Rollouts per question.\ngroup_size = " in text
    assert "('none', 'llds', 'sapo', 'nll' or 'custom')" in text.replace("\n# ", " ")
    assert 'With name = "sapo" also: tau. With name = "custom" also: path, settings.' in text.replace("\n# ", " ")
    assert max(map(len, text.splitlines())) <= 100


def test_bundled_recipes_are_listed_on_one_line_each(holdfast: Run) -> None:
    lines = holdfast("recipe", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(recipes.bundled())
    assert all(len(line.split()) > 5 for line in lines)


def test_a_dry_run_names_the_folder_and_makes_nothing(trainer: Any, holdfast: Run) -> None:
    for folder in ("runs/quickstart", "runs/quickstart-2"):
        assert f"{folder}.\n" in holdfast("train", "--dry-run").stdout
        assert not Path(folder).exists()
        holdfast("train")
    assert "runs/quickstart exists" in holdfast("train", "--dry-run", "--run.name=quickstart", code=2).stderr
    assert "runs/quickstart." in holdfast("train", "--dry-run", "--overwrite").stdout
    assert Path("runs/quickstart/config.toml").is_file() and len(trainer.calls) == 2


def test_dry_run_of_a_run_that_cannot_work(trainer: Any, holdfast: Run) -> None:
    result = holdfast("train", "--dry-run", "--train.optimizer_steps_per_rollout", "1", code=2)
    assert "this penalty is always zero. Set train.optimizer_steps_per_rollout to 2" in result.stderr
    assert result.stdout == ""


# ---- what cannot be read


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--train.stesp", "5"], "error: --train.stesp: there is no such setting; did you mean train.steps?\n"),
        (["--dryrun"], "error: there is no option --dryrun; did you mean --dry-run?\n"),
        (["--over-write"], "error: there is no option --over-write; did you mean --overwrite?\n"),
        (
            ["--lr", "3"],
            "error: --lr: there is no such setting; did you mean train.lr or critic.lr or warm_start.lr?\n",
        ),
        (["--train.steps"], "error: --train.steps needs a value; write --train.steps 60\n"),
        (["--train.steps", "--dry-run"], "error: --train.steps needs a value; write --train.steps 60\n"),
        (["--run.name", "a/b"], "error: {quickstart}: run.name = 'a/b' is not "),
    ],
)
def test_errors_are_one_sentence_and_exit_code_2(
    trainer: Any, holdfast: Run, arguments: list[str], sentence: str
) -> None:
    result = holdfast("train", *arguments, code=2)
    assert result.stderr.startswith(sentence.format(quickstart=recipes.bundled()["quickstart"]))
    assert result.stdout == ""
    assert trainer.calls == []


def test_split_keeps_the_order_of_both() -> None:
    arguments = ["--out", "DIR", "--train.lr=-1", "--run.seed", "-3", "my.toml", "--track.tensorboard", "--overwrite"]
    assert split(arguments, {"--out", "--overwrite"}) == (
        ["--train.lr=-1", "--run.seed", "-3", "--track.tensorboard"],
        ["--out", "DIR", "my.toml", "--overwrite"],
    )


def test_two_recipes(trainer: Any, holdfast: Run) -> None:
    assert "unexpected extra argument" in holdfast("train", "quickstart", "collapse", code=2).stderr
