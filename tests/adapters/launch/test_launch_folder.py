"""`holdfast launch` as it is typed, and the folder it leaves."""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from holdfast.adapters.launch import Machines, plan
from holdfast.cli import launch
from holdfast.cli.main import app
from holdfast.methods.penalties import SAPO
from holdfast.model.hub import MODELS, ORIGIN
from holdfast.recipe import Config, load
from holdfast.recipe.loading import bundled
from holdfast.tasks import factbook
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions

from .conftest import SMALL, WATCH, run_with_fakes

MakeRecipe = Callable[..., Config]
Rows = list[dict[str, object]]

pq = pytest.importorskip("pyarrow.parquet")


def typed(*words: str, code: int = 0) -> str:
    """What `holdfast launch` says."""
    result = CliRunner().invoke(app, ["launch", *words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def small(questions: Rows, tmp_path: Path) -> str:
    """The small recipe as a file, beside its questions."""
    from holdfast.recipe import dump

    (tmp_path / "small.toml").write_text(dump(load(None, SMALL)), encoding="utf-8")
    return "small.toml"


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_print_writes_nothing_and_reads_no_data(host: str, small: str, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").unlink()
    before = sorted(tmp_path.iterdir())
    text = typed(host, small, "--print", "--train.lr", "3e-6", "--gpus", "2")
    assert sorted(tmp_path.iterdir()) == before
    assert "3e-06" in text
    assert "#### run.sh" in text
    assert "Optimizer steps per rollout batch: 10 = " in text
    assert "questions.jsonl" in text


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_the_folder_is_named_after_run_and_host_and_not_reused(host: str, small: str, tmp_path: Path) -> None:
    text = typed(host, small)
    folder = Path("launch") / f"small-{host}"
    assert f"Wrote {folder}: " in text
    assert text.splitlines()[-4].strip() == f"cd {folder}"
    assert text.splitlines()[-1].strip() == "./run.sh"
    assert os.access(folder / "run.sh", os.X_OK)
    assert f"{folder} is not empty; add --overwrite" in typed(host, small, code=2).replace("\n", " ")
    typed(host, small, "--overwrite", "--train.lr=5e-6")
    assert "5e-06" in "".join(path.read_text() for path in folder.iterdir() if path.suffix in (".sh", ".py"))


@pytest.mark.parametrize(("installed", "noted"), [("1.99.0", True), ("1.16.1", False), (None, False)])
def test_a_trainer_that_is_newer_than_tested_is_noted(
    small: str, monkeypatch: pytest.MonkeyPatch, installed: str | None, noted: bool
) -> None:
    monkeypatch.setattr(launch, "installed_version", {"trl": installed}.get)
    assert ("Note: trl 1.99.0 is newer than 1.16, the newest" in typed("trl", small)) is noted


def test_a_file_in_the_way(small: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    assert "is a file" in typed("trl", small, "--out", "there", code=2)


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_missing_or_too_few_questions_leave_no_folder_behind(host: str, small: str, tmp_path: Path) -> None:
    """TRL would leave the only batch out, train nothing, and end well."""
    said = typed(host, small, "--train.questions", "60", "--out", "x", code=2).replace("\n", " ")
    assert "leaves 54 questions to train on" in said  # a tenth of 60 is held out
    (tmp_path / "questions.jsonl").unlink()
    assert "questions.jsonl" in typed(host, small, "--out", "x", code=2)
    assert not (tmp_path / "x").exists()


# ---- TRL


def test_the_script_and_its_recipe(small: str, tmp_path: Path) -> None:
    said = typed("trl", small, "--out", "x", "--model.lora_rank", "8", "--protocol.topk", "2", "--track.wandb", "p")
    assert "pip install 'holdfast-rl[train,trl,peft,track]'" in said
    tree = ast.parse((tmp_path / "x/train.py").read_text())
    calls = {ast.unparse(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    values = {k.arg: k.value for k in calls["GRPOConfig"].keywords}
    assert ast.literal_eval(values["learning_rate"]) == 1e-6
    assert ast.unparse(calls["LoraConfig"]) == (
        "LoraConfig(r=8, lora_alpha=32, lora_dropout=0.0, target_modules='all-linear')"
    )
    recipe = load(tmp_path / "x/recipe.toml")
    assert recipe.protocol.topk == 2
    assert (tmp_path / "x" / recipe.data.train).read_text() == (tmp_path / "questions.jsonl").read_text()


def test_the_last_step_is_evaluated_whatever_its_number(recipe: MakeRecipe) -> None:
    def script(*words: str) -> str:
        return plan("trl", recipe("--train.steps=7", *words)).files["train.py"]

    assert "trainer.evaluate()" in script("--eval.every=3")
    assert "trainer.evaluate()" not in script("--eval.every=7") + script("--eval.every=0")


def test_places_of_what_is_not_copied_are_written_in_full(recipe: MakeRecipe, tmp_path: Path, questions: Rows) -> None:
    (tmp_path / "model").mkdir()
    made = plan("trl", recipe("--retrieval.url=none", "--retrieval.corpus=c.jsonl", "--retrieval.index=i",
                              "--model.path=model", "--model.chat_template=t.jinja"))  # fmt: skip
    retrieval = tomllib.loads(made.files["recipe.toml"])["retrieval"]
    assert (retrieval["corpus"], retrieval["index"]) == (str(tmp_path / "c.jsonl"), str(tmp_path / "i"))
    assert f"model='{tmp_path}/model'" in made.files["train.py"]
    assert f"chat_template='{tmp_path}/t.jinja'" in made.files["train.py"]


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_a_stored_model_needs_no_hub(
    host: str, recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    config = recipe(f"--model.path={MODELS['smollm2'].hub_id}")
    folder = tmp_path / "models/HuggingFaceTB--SmolLM2-135M-Instruct"

    def named() -> tuple[bool, int]:
        """Whether the files name the folder, and how many notes do."""
        made = plan(host, config)
        written = "".join(text for name, text in made.files.items() if name != "recipe.toml")
        return str(folder) in written, len([note for note in made.notes if str(folder) in note])

    assert named() == (False, 0)
    folder.mkdir(parents=True)
    (folder / ORIGIN).touch()
    assert named() == (True, 1)


def test_the_bundled_world_goes_to_trl_as_it_is(recipe: MakeRecipe, tmp_path: Path) -> None:
    made = plan("trl", recipe("--data.train=world", "--retrieval.url=none", "--world.seed=5"))
    assert made.data == {}
    assert tomllib.loads(made.files["recipe.toml"])["world"]["seed"] == 5


def test_a_task_set_is_made_where_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = Example(source="factbook", split="train", index=0, question="?", golden_answers=("x",))
    few = Questions(train=(example,) * 20, dev=(example,), test=(example,))
    monkeypatch.setattr(factbook, "load_questions", lambda: few)
    typed("trl", "factbook", "--warm_start.steps", "0", "--model.path", "model", "--out", "x")
    assert load("x/recipe.toml").data.train == "factbook" and not Path("x/data").exists()
    made = plan("trl", load(bundled()["factbook"], ["--warm_start.steps=0", "--model.path=model"]))
    assert "factbook]" in made.first[0], "the job needs its extra"
    typed("verl", "factbook", "--warm_start.steps=0", "--retrieval.url=http://h/retrieve", "--out", "y")
    assert '\n  chat_template: "none"\n' in Path("y/agent_loops.yaml").read_text()
    assert len(pq.read_table("y/train.parquet")) == 20 and len(pq.read_table("y/test.parquet")) == 1


def test_the_command_of_trl(small: str, tmp_path: Path) -> None:
    typed("trl", small, "--out", "x", "--run.threads", "3", "--track.wandb", "my project")
    words = run_with_fakes(tmp_path / "x", "accelerate", "--resume")
    assert words == ["launch", "--config_file", "accelerate.yaml", "train.py", "--resume", "THREADS=3", "W=my project"]
    config = yaml.safe_load((tmp_path / "x/accelerate.yaml").read_text())
    assert (config["num_processes"], config["distributed_type"]) == (1, "NO")

    typed("trl", small, "--out", "y", "--nodes", "2", "--gpus", "2")
    words = run_with_fakes(tmp_path / "y", "accelerate", MACHINE_RANK="1", MAIN_ADDRESS="10.0.0.1")
    assert " ".join(words[3:-2]) == ("--machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500 train.py")
    config = yaml.safe_load((tmp_path / "y/accelerate.yaml").read_text())
    assert (config["num_machines"], config["num_processes"]) == (2, 4)


# ---- verl


def test_the_command_of_verl_says_the_options_of_the_plan(small: str, tmp_path: Path) -> None:
    name, runs = "a run", "it's [1], {x}"
    changes = ("--run.name", name, "--run.dir", runs, "--track.wandb", "p")
    typed("verl", small, "--out", "it's here", *changes, "--gpus", "2")
    folder = tmp_path / "it's here"
    assert f"exec python3 {' '.join(WATCH)} -m verl." in (folder / "run.sh").read_text()
    words = run_with_fakes(folder, "python3", "trainer.nnodes=3")
    assert words[:2] == ["-m", "verl.trainer.main_ppo"]
    assert words[-3] == "trainer.nnodes=3", "what is appended comes last, and so wins"
    given = dict(word.split("=", 1) for word in words[2:-3])
    made = plan("verl", load(None, [*SMALL, *changes]), Machines(gpus=2))
    assert list(given) == [option.name for option in made.options]
    folders = {"data.train_files": "train.parquet", "trainer.default_local_dir": f"{runs}/{name}"}
    folders["actor_rollout_ref.rollout.agent.agent_loop_config_path"] = "agent_loops.yaml"
    for option, inside in folders.items():
        assert given[option] == f"'{folder}/{inside}'".replace("it's", r"it\'s")
    assert given["trainer.logger"] == "[console,file,wandb]"
    assert given["actor_rollout_ref.actor.optim.lr"] == "1e-06"
    assert given["actor_rollout_ref.actor.use_kl_loss"] == "True"
    assert given["trainer.experiment_name"] == "'a run'"
    checked = run_with_fakes(folder, "holdfast", "--check", "trainer.nnodes=3")
    assert checked == ["doctor", "verl", *words[2:]], "--check hands the options to the doctor"


def test_the_agent_loop_of_verl(small: str, tmp_path: Path) -> None:
    typed("verl", small, "--out", "x", "--reward.f1", "0.5", "--protocol.max_turns", "7")
    (loop,) = yaml.safe_load((tmp_path / "x/agent_loops.yaml").read_text())
    assert loop == {
        "name": "holdfast_search",
        "_target_": "holdfast.adapters.verl_agent.SearchAgentLoop",
        "retriever": "http://127.0.0.1:8000/retrieve",
        "preset": "clean",
        "prompt": "data",
        "max_turns": 7,
        "max_turn_tokens": 500,
        "max_observation_tokens": 500,
        "topk": 3,
        "reward": {"em": 1.0, "f1": 0.5},
    }


def test_parquet_has_search_r1s_columns(small: str, tmp_path: Path, questions: Rows) -> None:
    typed("verl", small, "--out", "x", "--eval.questions", "4", "--data.test", "questions.jsonl")
    train, dev, test = (pq.read_table(tmp_path / f"x/{name}.parquet").to_pylist() for name in ("train", "dev", "test"))
    assert (len(train), len(dev), len(test)) == (54, 4, 60)
    assert train[0] == {
        "id": "questions/train/1",
        "data_source": "questions",
        "agent_name": "holdfast_search",
        "prompt": [{"role": "user", "content": train[0]["prompt"][0]["content"]}],
        "question": "Who is number 1",
        "golden_answers": ["Person 1", "1"],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Person 1", "1"]}},
        "extra_info": {"split": "train", "index": 1, "question": "Who is number 1"},
    }
    assert train[0]["prompt"][0]["content"].endswith("Question: Who is number 1\n")
    assert [row["extra_info"]["index"] for row in dev] == [0, 10, 30, 40], "six are held out, four evenly spaced"
    assert not {row["question"] for row in dev} & {row["question"] for row in train}


def test_the_prompt_column_is_the_protocols(small: str, tmp_path: Path) -> None:
    typed("verl", small, "--out", "x", "--protocol.prompt", "Ask: {question} {now}", "--protocol.preset", "search-r1")
    row = pq.read_table(tmp_path / "x/train.parquet").to_pylist()[0]
    assert row["prompt"] == [{"role": "user", "content": "Ask: Who is number 1? {now}"}], "search-r1 adds the mark"


# ---- shipped recipes

OTHERS = {"quickstart", "collapse", "flaky", "factbook", "search-r1-ppo"}
MASKED = ("qwen2.5-3b", "llama3.2-3b")
"""The models for which the paper masks answers, exactly so only in TRL."""


@pytest.mark.parametrize("name", sorted(set(bundled()) - OTHERS))
def test_a_shipped_recipe_translates_with_the_published_numbers(name: str) -> None:
    for host in ("trl", "verl"):
        config = load(bundled()[name], ["--loss.penalty.answer_weight=1"] if host == "verl" and name in MASKED else [])
        schedules = [plan(host, config, Machines(gpus=gpus)).schedule for gpus in (1, 4, 8)]
        assert all(schedule.startswith("10 = ") for schedule in schedules)
    config = load(bundled()[name])
    loss, train, penalty = config.loss, config.train, config.loss.penalty
    if name.startswith("sapo"):
        assert penalty == SAPO(coef=0.1, tau=1.0, preserve="positive", normalizer="policy")
        assert config.reward.weights() == {"em": 0.0, "f1": 1.0, "format": 0.0, "retrieval": 0.0, "thrift": 0.0}
        assert (train.group_size, train.lr, train.steps, train.warmup) == (10, 1e-6, 420, 0)
        assert (config.protocol.preset, config.protocol.max_turns, config.protocol.topk) == ("sapo", 6, 3)
        assert (config.sampling.temperature, config.sampling.top_p) == (1.0, 0.95)
        assert (loss.reduction, loss.kl_coef, loss.clip_high) == ("seq-mean-token-mean", 0.001, 0.2)
        return
    first = name == "llds-v1"
    assert penalty.coef == (0.1 if first else 0.3 if name == "qwen2.5-7b-instruct" else 0.2)
    assert (penalty.gate, penalty.preserve) == ("response" if first else "action", "nonnegative")
    assert (penalty.answer_weight == "adaptive-paper") == (name in MASKED)
    assert (penalty.answer_base, penalty.answer_target) == (1.0, 2.0)
    assert (train.group_size, train.lr, train.steps, train.warmup) == (5, 1e-6, 1005, 286)
    assert (loss.kl_coef, loss.entropy_coef) == (0.001, 0.001)


@pytest.mark.parametrize("name", ["qwen2.5-3b", "qwen2.5-7b", "sapo"])
def test_every_command_of_a_shipped_recipe_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"question": f"Who is {i}?", "golden_answers": [str(i)]}) for i in range(600)]
    for file in ("nq/train.jsonl", "train/train.jsonl"):
        (tmp_path / "data" / file).parent.mkdir(parents=True)
        (tmp_path / "data" / file).write_text("\n".join(rows))
    text = bundled()[name].read_text()
    commands = [line[2:].split()[2:] for line in text.splitlines() if line.startswith("# holdfast launch ")]
    for command in commands:
        typed(*command)
    (host,) = {command[0] for command in commands}
    assert host == ("trl" if name in MASKED else "verl")
    folders = [f"{name}-{host}"] + ([f"nq-{host}"] if len(commands) == 2 else [])
    assert sorted(path.name for path in Path("launch").iterdir()) == sorted(folders)
    for folder in folders:
        turns = 3 if folder.startswith("nq-") else 6 if name == "sapo" else 4
        written = Path("launch") / folder / ("recipe.toml" if host == "trl" else "agent_loops.yaml")
        assert re.search(rf"^ *max_turns(:| =) {turns}$", written.read_text(), re.M)
