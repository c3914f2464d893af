from __future__ import annotations

import inspect
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import recipes
from holdfast.cli.command import split
from holdfast.config import load, validate
from holdfast.errors import GuardStop, RolloutError
from holdfast.train.events import Observer

Run = Callable[..., Any]


def make_checkpoint(step: int) -> Callable[[Path, Observer], None]:
    def script(run_dir: Path, observer: Observer) -> None:
        (run_dir / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)

    return script


def then_raise(error: BaseException, first: Callable[[Path, Observer], None] | None = None) -> Any:
    def script(run_dir: Path, observer: Observer) -> None:
        if first is not None:
            first(run_dir, observer)
        raise error

    return script


# ---- the recipe


def test_without_arguments_it_runs_the_quickstart(engine: Any, holdfast: Run) -> None:
    holdfast("train")
    assert engine.config == load(recipes.bundled()["quickstart"])
    assert Path("runs/quickstart/config.toml").is_file()


def test_settings_beat_the_recipe_wherever_they_stand(engine: Any, holdfast: Run) -> None:
    Path("my.toml").write_text("[train]\nsteps = 5\nquestions = 8\n")
    holdfast("train", "--loss.entropy_coef", "-0.01", "my.toml", "--train.steps", "7", "--overwrite")
    assert engine.config.train.steps == 7
    assert engine.config.train.questions == 8
    assert engine.config.loss.entropy_coef == -0.01


def test_a_flag_setting_leaves_the_recipe_alone(engine: Any, holdfast: Run) -> None:
    Path("my.toml").write_text("")
    holdfast("train", "--track.tensorboard", "my.toml")
    assert engine.config.track.tensorboard is True
    assert engine.config.run.name == "my"


def test_a_bundled_recipe_goes_by_its_name(engine: Any, holdfast: Run) -> None:
    holdfast("train", "collapse")
    by_name = engine.config
    holdfast("train", "recipes/collapse.toml", "--run.name", by_name.run.name, "--overwrite")
    assert engine.config == by_name
    assert by_name.loss.penalty.name == "none"


def test_a_recipe_of_ones_own_hides_the_bundled_one(engine: Any, holdfast: Run) -> None:
    Path("quickstart").write_text("[train]\nsteps = 3\n")
    holdfast("train", "quickstart")
    assert engine.config.train.steps == 3


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        ("quikstart", "did you mean quickstart?"),
        ("zzz.toml", "give the path of a TOML file, or one of collapse, flaky, quickstart"),
    ],
)
def test_a_recipe_that_is_not_there(engine: Any, holdfast: Run, recipe: str, hint: str) -> None:
    assert hint in holdfast("train", recipe, code=2).stderr
    assert engine.calls == []


def test_dry_run_prints_a_recipe_that_reads_back_equal(engine: Any, holdfast: Run) -> None:
    printed = holdfast(
        "train", "--dry-run", "--train.steps", "7", "--loss.penalty.name=none", "--world.filler_words=20"
    )
    config = validate(tomllib.loads(printed.stdout))
    assert config == load(
        recipes.bundled()["quickstart"], ["--train.steps=7", "--loss.penalty.name=none", "--world.filler_words=20"]
    )
    assert printed.stderr == ""
    assert engine.calls == []
    assert list(Path().iterdir()) == []


def test_dry_run_explains_and_names_what_is_not_set(engine: Any, holdfast: Run) -> None:
    text = holdfast("train", "--dry-run").stdout
    assert "\n# dev =\n" in text
    assert "(a text or none)" in text
    assert "# Rollouts per question.\ngroup_size = " in text
    assert "('none', 'llds', 'sapo' or 'nll')" in text.replace("\n# ", " ")
    assert max(map(len, text.splitlines())) <= 100


def test_dry_run_of_a_run_that_cannot_work(engine: Any, holdfast: Run) -> None:
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
        (["--lr", "3"], "error: --lr: there is no such setting; did you mean train.lr or warm_start.lr?\n"),
        (["--train.steps"], "error: --train.steps needs a value; write --train.steps 60\n"),
        (["--train.steps", "--dry-run"], "error: --train.steps needs a value; write --train.steps 60\n"),
        (["--run.name", "a/b"], "error: {quickstart}: run.name = 'a/b' is no name for a folder; "),
    ],
)
def test_errors_are_one_sentence_and_exit_code_2(
    engine: Any, holdfast: Run, arguments: list[str], sentence: str
) -> None:
    result = holdfast("train", *arguments, code=2)
    assert result.stderr.startswith(sentence.format(quickstart=recipes.bundled()["quickstart"]))
    assert result.stdout == ""
    assert engine.calls == []


def test_split_keeps_the_order_of_both() -> None:
    arguments = ["--resume", "RUN", "--train.lr=-1", "--run.seed", "-3", "my.toml", "--overwrite", "--a.b"]
    assert split(arguments, {"--resume", "--overwrite"}) == (
        ["--train.lr=-1", "--run.seed", "-3", "--a.b"],
        ["--resume", "RUN", "my.toml", "--overwrite"],
    )


def test_two_recipes(engine: Any, holdfast: Run) -> None:
    assert "unexpected extra argument" in holdfast("train", "quickstart", "collapse", code=2).stderr


# ---- run folders


def test_a_taken_name_gets_a_number(engine: Any, holdfast: Run) -> None:
    for expected in ("quickstart", "quickstart-2", "quickstart-3"):
        holdfast("train")
        assert engine.config.run.name == expected  # so that config.toml and W&B say it too
        assert Path("runs", expected, "config.toml").is_file()


def test_a_name_given_by_hand_is_taken_as_it_is(engine: Any, holdfast: Run) -> None:
    holdfast("train", "--run.name", "night", "--run.dir", "elsewhere")
    stderr = holdfast("train", "--run.name", "night", "--run.dir", "elsewhere", code=2).stderr
    assert "elsewhere/night exists; continue it with --resume elsewhere/night, replace it with --overwrite" in stderr
    assert len(engine.calls) == 1


def test_overwrite_replaces_a_run(engine: Any, holdfast: Run) -> None:
    holdfast("train")
    Path("runs/quickstart/metrics.jsonl").write_text("old")
    holdfast("train", "--overwrite")
    assert engine.config.run.name == "quickstart"
    assert not Path("runs/quickstart/metrics.jsonl").exists()
    assert list(Path("runs").iterdir()) == [Path("runs/quickstart")]


def test_overwrite_deletes_runs_only(engine: Any, holdfast: Run) -> None:
    Path("runs/thesis").mkdir(parents=True)
    Path("runs/thesis/chapter.tex").write_text("years of work")
    stderr = holdfast("train", "--run.name=thesis", "--overwrite", code=2).stderr
    assert "--overwrite would delete runs/thesis, which is no run folder" in stderr
    assert Path("runs/thesis/chapter.tex").read_text() == "years of work"


def test_overwrite_does_not_follow_a_link(engine: Any, holdfast: Run) -> None:
    holdfast("train", "--run.name=real")
    Path("runs/link").symlink_to("real")
    assert "no run folder" in holdfast("train", "--run.name=link", "--overwrite", code=2).stderr
    assert Path("runs/real/config.toml").is_file()


def test_overwrite_costs_the_old_run_only_when_the_new_one_trains(engine: Any, holdfast: Run) -> None:
    holdfast("train")
    Path("runs/quickstart/metrics.jsonl").write_text("old")
    engine.script = then_raise(RolloutError("no such questions"))
    holdfast("train", "--overwrite", code=2)
    assert Path("runs/quickstart/metrics.jsonl").read_text() == "old"

    def script(run_dir: Path, observer: Observer) -> None:
        assert len(list(Path("runs").iterdir())) == 2
        observer.stage("training", 1)
        observer.step(0, 1, {})
        assert list(Path("runs").iterdir()) == [Path("runs/quickstart")]  # the disk is free before checkpoints come
        (run_dir / "metrics.jsonl").write_text("new")
        raise RolloutError("later")

    engine.script = script
    holdfast("train", "--overwrite", code=2)
    assert Path("runs/quickstart/metrics.jsonl").read_text() == "new"
    assert list(Path("runs").iterdir()) == [Path("runs/quickstart")]


def test_an_unreadable_recipe_does_not_cost_the_old_run(engine: Any, holdfast: Run) -> None:
    holdfast("train")
    holdfast("train", "--overwrite", "--train.steps", "0", code=2)
    assert Path("runs/quickstart/config.toml").is_file()


def test_a_run_that_never_began_leaves_no_folder(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(RolloutError("the retriever is down"))
    assert holdfast("train", code=2).stderr == "error: the retriever is down\n"
    assert not Path("runs/quickstart").exists()


def test_a_file_in_the_way_of_the_run_folder(engine: Any, holdfast: Run) -> None:
    Path("runs").write_text("")
    assert "the run folder runs/quickstart cannot be made" in holdfast("train", code=2).stderr


# ---- resume, stage, stops


def test_resume_takes_a_path_or_a_name(engine: Any, holdfast: Run) -> None:
    holdfast("train", "--run.name=night")
    holdfast("train", "--resume", "runs/night")
    holdfast("train", "--resume", "night")
    assert engine.calls[1:] == [("resume", Path("runs/night"))] * 2


def test_resume_of_what_is_no_run(engine: Any, holdfast: Run) -> None:
    assert "gone is no run folder. Make one with: holdfast train" in holdfast("train", "--resume=gone", code=2).stderr
    holdfast("train", "--run.name=night")
    assert "gone is no run folder. Newest runs here: runs/night" in holdfast("train", "--resume=gone", code=2).stderr
    Path("folder").mkdir()
    stderr = holdfast("train", "--resume", "folder", code=2).stderr
    assert "folder has no config.toml, so it is no run folder" in stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--train.steps", "9"], "with its own recipe, but you also gave --train.steps 9"),
        (["collapse"], "with its own recipe, but you also gave collapse"),
        (["--overwrite"], "does not go with --overwrite or --stage"),
        (["--stage", "warm-start"], "does not go with --overwrite or --stage"),
    ],
)
def test_resume_changes_nothing(engine: Any, holdfast: Run, arguments: list[str], sentence: str) -> None:
    holdfast("train", "--run.name=night")
    assert sentence in holdfast("train", "--resume", "night", *arguments, code=2).stderr
    assert len(engine.calls) == 1


def test_dry_run_of_a_resume_prints_the_runs_own_recipe(engine: Any, holdfast: Run) -> None:
    holdfast("train", "--run.name=night", "--train.steps=7")
    printed = holdfast("train", "--resume", "night", "--dry-run").stdout
    assert validate(tomllib.loads(printed)) == engine.config


def test_the_warm_start_alone(engine: Any, holdfast: Run) -> None:
    result = holdfast("train", "--stage", "warm-start", "--run.name=start")
    assert engine.calls[0][0] == "warm start"
    assert "holdfast train --model.path runs/start/model --warm_start.steps 0" in result.stdout


def test_the_warm_start_alone_needs_steps(engine: Any, holdfast: Run) -> None:
    stderr = holdfast("train", "--stage=warm-start", "--warm_start.steps=0", code=2).stderr
    assert "there is nothing to do; set warm_start.steps" in stderr
    assert not Path("runs").exists()


def test_an_interrupt_says_how_to_go_on(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(KeyboardInterrupt(), make_checkpoint(40))
    stderr = holdfast("train", code=130).stderr
    assert stderr == "Stopped. Step 40 is saved; to go on from there:\n  holdfast train --resume runs/quickstart\n"
    assert Path("runs/quickstart/config.toml").is_file()


def test_an_interrupt_before_the_first_checkpoint(engine: Any, holdfast: Run) -> None:
    def script(run_dir: Path, observer: Observer) -> None:
        (run_dir / "metrics.jsonl").write_text("")
        raise KeyboardInterrupt

    engine.script = script
    stderr = holdfast("train", code=130).stderr
    assert stderr == (
        "Stopped before the first checkpoint (checkpoint.every). To begin again:\n"
        "  holdfast train --resume runs/quickstart\n"
    )


def test_an_interrupt_before_anything_leaves_no_folder(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(KeyboardInterrupt())
    assert holdfast("train", code=130).stderr == "Stopped before the first step, so nothing is kept.\n"
    assert not Path("runs/quickstart").exists()


def test_a_kill_says_it_too(engine: Any, holdfast: Run) -> None:
    def script(run_dir: Path, observer: Observer) -> None:
        make_checkpoint(20)(run_dir, observer)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    engine.script = script
    before = signal.getsignal(signal.SIGTERM)
    assert "--resume runs/quickstart" in holdfast("train", code=143).stderr
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_after_a_checkpoint_says_how_to_go_on(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(RolloutError("the retriever is down"), make_checkpoint(20))
    stderr = holdfast("train", "--run.name=my run", code=2).stderr
    assert stderr.startswith("error: the retriever is down\n")
    assert stderr.endswith("To go on from there:\n  holdfast train --resume 'runs/my run'\n")


def test_a_guard_that_stops_a_run_has_an_exit_code_of_its_own(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(GuardStop("stopped by guard.on after step 20: LLD003."), make_checkpoint(20))
    assert holdfast("train", code=3).stderr == "stopped by guard.on after step 20: LLD003.\n"


def test_an_error_that_says_how_to_go_on_says_it_once(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(RolloutError("the disk is full; then --resume runs/x"), make_checkpoint(20))
    assert holdfast("train", code=2).stderr == "error: the disk is full; then --resume runs/x\n"


def test_commands_to_copy_name_the_program_as_it_can_be_found(
    engine: Any, holdfast: Run, monkeypatch: pytest.MonkeyPatch
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


def test_a_bug_keeps_its_traceback(engine: Any, holdfast: Run) -> None:
    engine.script = then_raise(ZeroDivisionError("a bug"))
    assert isinstance(holdfast("train", code=1).exception, ZeroDivisionError)


def test_a_missing_package_is_said_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holdfast: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "holdfast.train.run", raising=False)
    for module in ("transformers", "transformers.utils"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    assert holdfast("train", code=2).stderr == (
        "error: transformers is not installed. Run: pip install 'holdfast[train]'\n"
    )
    assert not Path("runs").exists()


# ---- the closing words


def test_closing(engine: Any, holdfast: Run) -> None:
    text = holdfast("train").stdout
    assert "60 steps in 1 min 23 s\n" in text
    assert "Learned and held. Reward rose from 0.24 to 0.48.\n" in text
    rows = {line[:22].strip(): line[22:].split() for line in text.splitlines() if line.startswith("exact match")}
    # 0.45 - 0.2 = 0.25; 0.39 - 0.4 = -0.01
    assert rows["exact match, sampled"] == ["0.200", "0.450", "+0.250"]
    assert rows["exact match, greedy"] == ["0.400", "0.390", "-0.010"]
    assert text.endswith("  holdfast ask runs/quickstart 'Who is the mentor of Mira Tolvan?'\n")


def test_closing_shows_episodes_a_person_can_read(engine: Any, holdfast: Run) -> None:
    text = holdfast("train").stdout
    assert (
        "question  Who is the mentor of Mira Tolvan?\n"
        "thinks    her mentor\n"
        "searches  Mira Tolvan mentor\n"
        "finds     1 Mira Tolvan · Mira Tolvan has teacher Kelan Orso.\n"
        "          2 [bold] Zed · Zed has rival Bo.\n"  # no markup of ours
        "answers   Kelan Orso\n"
        "expected  Kelan Orso ✓\n"
    ) in text
    assert "says      hm\nexpected  A ✗ (no answer was given)\n" in text


def test_recipes_are_found_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "holdfast" / "recipes"
    installed.mkdir(parents=True)
    (installed / "quickstart.toml").write_text("")
    monkeypatch.setattr(recipes, "_FOLDERS", (installed, tmp_path / "recipes"))
    assert recipes.find("quickstart") == installed / "quickstart.toml"


def test_the_wheel_carries_the_recipes() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert carried == {"recipes": "holdfast/recipes"}
    assert {"quickstart", "collapse"} <= set(recipes.bundled())


def test_progress_is_plain_where_nobody_watches(engine: Any, holdfast: Run) -> None:
    def script(run_dir: Path, observer: Observer) -> None:
        observer.stage("training", 2)
        observer.step(1, 2, {"reward/mean": 0.25})

    engine.script = script
    text = holdfast("train").stdout
    assert text.startswith("holdfast · runs/quickstart\ntraining 0/2\nstep 1/2  reward 0.250")
    assert "\x1b" not in text


def test_the_real_engine_is_what_the_command_expects() -> None:
    engine = pytest.importorskip("holdfast.train.run", exc_type=ModuleNotFoundError)
    for name in ("train", "resume", "warm_start_only"):
        parameters = inspect.signature(getattr(engine, name)).parameters
        expected = ["run_dir", "observer"] if name == "resume" else ["config", "run_dir", "observer"]
        assert list(parameters) == expected
