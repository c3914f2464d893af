"""What a new penalty, reward part or reader of logs takes: its own file, and one line where it is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.rewards import score_trajectory
from holdfast.agent.trajectory import Answer, Invalid, Trajectory, Turn
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import find, read_log
from holdfast.recipe import load
from holdfast.recipe.validation import check_training

PENALTY = '''
from typing import Literal

from pydantic import Field

from holdfast.methods.penalties import Penalty


class Ramp(Penalty):
    name: Literal["ramp"] = Field("ramp", repr=False)
    coef: float = 0.4
    slope: float = Field(2.0, gt=0)
    """How steep."""

    def per_token(self, logprobs, old_logprobs, advantages, loss_mask, *, preserved, **_):
        import torch

        return torch.where(preserved, self.slope * (old_logprobs.detach() - logprobs).clamp(min=0), 0.0)
'''
METHOD = '''
from typing import ClassVar

from pydantic import Field

from holdfast.methods.method import Method


class Toy(Method):
    """Use every hook."""

    share: float = Field(0.5, gt=0, le=1)
    """Weight of everything."""

    name: ClassVar = "toy"
    source: ClassVar = "a test"
    needs: ClassVar = frozenset({"group advantages", "sampler"})
    acts_on: ClassVar = "it compares the rollouts of a group"
    elsewhere: ClassVar = "it is a toy"
'''
OPERATION = """
class _Toy(Operation):
    def on_rollouts(self, batch, groups, gold):
        assert all(mean < 0 for mean in gold([(group.id, (1,)) for group in groups]))
        return batch.without(batch.action_ids > 1)

    def on_old_policy(self, micro):
        return micro.without(micro.sampler_logprobs < -20).weighted(micro.old_logprobs * 0 + self.settings.share)

    def keeps(self, micro, logprobs):
        return logprobs.detach() >= -15


"""
REWARD = """
def brevity(trajectory, golden_answers):
    return 1.0 / len(trajectory.turns)
"""
READER = """
from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.reader import Raw, Reader


def read(found, tally):
    columns = Columns(tally, null_is_nan=False)
    for place, line in enumerate(found.path.read_text().splitlines()[1:], 2):
        step, reward = line.split("|")
        columns.add(place, int(step), {"reward/mean": float(reward)})
    return [Raw("holdfast", "holdfast", found.name, columns, {})]


PIPES = Reader(
    recognises=lambda path, start: start.startswith("step|reward"),
    read=read,
    lacks="has no row below its heading",
    suffixes=(".pipes",),
)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """write(name, source): a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, source: (tmp_path / f"{name}.py").write_text(source) and None


def test_a_penalty_by_its_import_path(write: Callable[[str, str], None]) -> None:
    write("toy_ramp", PENALTY)
    config = load(overrides=["--loss.penalty.name=custom", "--loss.penalty.path=toy_ramp:Ramp"])
    check_training(config)
    assert repr(config.loss.penalty.term) == "Ramp(coef=0.4, normalizer='preserved', slope=2.0)"


def test_a_penalty_of_the_package(tmp_path: Path) -> None:
    """In a copy of the package: a module, and its class among those that `name` chooses from. Schema, help, errors,
    overrides and the script for TRL follow."""
    package = Path(load.__code__.co_filename).parents[1]
    shutil.copytree(package, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__", "published", "static"))
    (tmp_path / "holdfast" / "ramp.py").write_text(PENALTY)
    penalties = tmp_path / "holdfast" / "methods" / "penalties.py"
    source = penalties.read_text()
    registry_line = "    NoPenalty | LLDS | SAPO | NLL | CustomPenalty,\n"
    assert source.count(registry_line) == 1
    source = source.replace(registry_line, "    NoPenalty | LLDS | SAPO | NLL | Ramp | CustomPenalty,\n")
    source = source.replace("AnyPenalty = ", "from holdfast.ramp import Ramp\n\nAnyPenalty = ", 1)
    penalties.write_text(source)

    def holdfast(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
        return done.stdout + done.stderr

    recipe = tmp_path / "my.toml"
    recipe.write_text("[train]\nquestions = 40\n")
    shown = holdfast("recipe", "show", "my.toml", "--loss.penalty.name=ramp", "--loss.penalty.slope=3")
    assert 'name = "ramp"\n' in shown and "coef = 0.4\n" in shown and "# How steep.\nslope = 3.0\n" in shown
    assert "'none', 'llds', 'sapo', 'nll', 'ramp' or 'custom'" in " ".join(shown.replace("# ", "").split())
    assert "slope = 0.0: must be more than 0" in holdfast(
        "train", "my.toml", "--loss.penalty.name=ramp", "--loss.penalty.slope=0"
    )
    assert "set loss.penalty.name = 'ramp'" in holdfast("train", "my.toml", "--loss.penalty.slope=3")
    launch = ("--loss.penalty.name=ramp", "--data.train=q.jsonl", "--retrieval.url=http://h:1", "--model.path=m")
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"question": f"Who is {i}?", "golden_answers": ["Mira"]}) + "\n" for i in range(60))
    )
    assert "error" not in holdfast("launch", "trl", str(recipe), *launch, "--out", "out")
    assert "Ramp(coef=0.4, normalizer='preserved', slope=2.0)" in (tmp_path / "out" / "train.py").read_text()
    assert "verl does not have this penalty" in holdfast("launch", "verl", str(recipe), *launch, "--out", "other")


def test_a_method_of_the_package(tmp_path: Path) -> None:
    """In a copy of the package: settings, their field, and their operation. A run, a refusal by TRL, the pages
    follow."""
    package = Path(load.__code__.co_filename).parents[1]
    shutil.copytree(package, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__", "published", "static"))
    methods = tmp_path / "holdfast" / "methods"
    (methods / "toy.py").write_text(METHOD)

    def insert(name: str, *pairs: tuple[str, str]) -> None:
        """Each text before a line of a module."""
        source = (methods / name).read_text()
        for line, text in pairs:
            assert source.count(line) == 1
            source = source.replace(line, text + line)
        (methods / name).write_text(source)

    imported = "from holdfast.methods.toy import Toy\n\n\n"
    field = "    toy: Toy = Toy(on=False)\n"
    insert("registry.py", ("class Methods(", imported), ("    drop_void: DropVoid = DropVoid(on=False)\n", field))
    table = (("OPERATIONS: ", imported + OPERATION), ("    DropVoid: _DropVoid,\n", "    Toy: _Toy,\n"))
    insert("operations.py", *table)

    def python(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
        command = [sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
        return done.stdout + done.stderr

    shown = python("-m", "holdfast", "recipe", "show", "quickstart", "--loss.methods.toy.share=0.25")
    assert "[loss.methods.toy]" in shown and "share = 0.25" in shown
    refused = python("-m", "holdfast", "train", "--dry-run", "--loss.methods.toy.on", "--loss.advantage=reinforce")
    assert "[loss.methods.toy] with loss.advantage = 'reinforce': it compares the rollouts of a group" in refused
    small = ("world.people=60", "train.steps=1", "train.questions=6", "train.group_size=4", "eval.every=0")
    small += ("world.train_questions=40", "world.dev_questions=2", "world.test_questions=2", "checkpoint.every=0")
    small += ("warm_start.steps=0", "world.scripts.plain_steps=2", 'reward.custom="toy_reward:spread" = 1.0')
    small += ("protocol.max_turn_tokens=16", "protocol.max_total_tokens=200", "loss.methods.toy.share=0.25")
    reward = "def spread(trajectory, golds): return trajectory.turns[0].tokens[0] / 1e3\n"
    (tmp_path / "toy_reward.py").write_text(reward)
    trained = python("-m", "holdfast", "train", "quickstart", *(f"--{word}" for word in small), "--run.name=toy")
    (row,) = (json.loads(text) for text in (tmp_path / "runs" / "toy" / "metrics.jsonl").read_text().splitlines())
    assert row["loss/mean_weight"] == 0.25 and row["loss/dropped_fraction"] >= 0, trained
    assert "loss/excluded_fraction" in row
    launch = ("--loss.methods.toy.on", "--data.train=q.jsonl", "--retrieval.url=http://h:1", "--model.path=m")
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "golden_answers": ["Mira"]}\n' * 60)
    assert "[loss.methods.toy]: it is a toy" in python("-m", "holdfast", "launch", "trl", "quickstart", *launch)
    for page in ("test_methods_page.py", "test_metrics_glossary.py"):
        shutil.copy(Path(__file__).parent / page, tmp_path / page)
    shutil.copy(Path(__file__).parents[2] / "docs" / "_site" / "settings.py", tmp_path / "settings.py")
    made = "import test_methods_page as m, settings as s, test_metrics_glossary as g"
    printed = python("-c", f"{made}; print(m.page(), s.page(), g.table())")
    assert "## `[loss.methods.toy]`" in printed
    assert (
        "| `toy` | Use every hook. | a test | group advantages, sampler | no: it is a toy | no: it is a toy |"
        in printed
    )


def test_a_reward_part(write: Callable[[str, str], None]) -> None:
    write("toy_brevity", REWARD)
    config = load(overrides=["--reward.custom", '"toy_brevity:brevity" = 0.5'])
    check_training(config)
    turns = (
        Turn(tokens=(1,), logprobs=(-0.1,), action=Invalid("hm")),
        Turn(tokens=(2,), logprobs=(-0.1,), action=Answer("Lisbon")),
    )
    episode = Trajectory(example_id="nq/dev/0", prompt=(0,), turns=turns)
    scored = score_trajectory(episode, ["Lisbon"], config.reward.weights())
    assert scored.reward == 1.25 and scored.reward_parts == {"em": 1.0, "f1": 1.0, "toy_brevity:brevity": 0.5}


def test_a_reader_of_logs(write: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("toy_pipes", READER)
    from toy_pipes import PIPES  # type: ignore[import-not-found]

    monkeypatch.setattr(find, "READERS", (PIPES, *find.READERS))
    folder = tmp_path / "runs"
    folder.mkdir()
    log = folder / "one.pipes"
    log.write_text("step|reward\n" + "".join(f"{step}|{step / 100}\n" for step in range(1, 31)))
    (folder / "notes.md").write_text("step|reward\n")
    for path in (log, folder):  # a file, and a folder in which it is found
        read = read_log(path)
        assert read.series["reward/mean"].values.tolist() == [step / 100 for step in range(1, 31)]
    assert diagnose(read_log(log)).findings == ()
    (folder / "empty.pipes").write_text("step|reward\n")
    with pytest.raises(Exception, match=r"empty\.pipes has no row below its heading"):
        read_log(folder / "empty.pipes")
