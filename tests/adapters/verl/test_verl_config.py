"""The Hydra configuration composed with our overrides, made into verl's dataclasses, and used by verl's own `ppo_loss`;
what `holdfast doctor verl` says about it; and how verl comes to know the losses."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl")

import verl
from hydra.utils import get_class
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import Metric
from verl.workers import engine_workers

from holdfast.adapters.verl import LOSSES
from holdfast.adapters.verl.check import EXAMPLE, Check, checks, compose, steps_per_rollout
from holdfast.adapters.verl_agent import SearchAgentLoop
from holdfast.base.errors import ConfigError

LOSS = "actor_rollout_ref.actor.policy_loss"


def check(*overrides: str, name: str = "ppo_trainer") -> list[Check]:
    return list(checks(compose([*EXAMPLE, *overrides], name)))


def problems(*overrides: str) -> list[str]:
    return [finding.text for finding in check(*overrides) if not finding.passed]


def test_a_truncated_sampler_gets_a_note() -> None:
    """verl has nothing that keeps its mask. It is no problem by itself: published runs sampled so."""
    for truncated in ("top_p=0.95", "top_k=50"):
        (note,) = [finding for finding in check(f"actor_rollout_ref.rollout.{truncated}") if "truncate" in finding.text]
        assert note.passed and "actor_rollout_ref.rollout.top_p=1 and" in note.text
    assert not [finding for finding in check() if "truncate" in finding.text]


@pytest.mark.parametrize("kind", ["rollout_is=token", "rollout_rs=seq_mean_k1"])
def test_weights_without_the_samplers_log_probs_are_refused(kind: str) -> None:
    changes = (f"algorithm.rollout_correction.{kind}", "actor_rollout_ref.rollout.calculate_log_probs=false")
    if "rs" in kind:
        changes += ("algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0",)
    (problem,) = problems(*changes)
    assert "rollout_correction without the sampler's log-probs" in problem
    with_them = "actor_rollout_ref.rollout.calculate_log_probs=true"  # verl 0.9's default, not 0.8's
    assert problems(changes[0], with_them, *changes[2:]) == problems(changes[1]) == []


def data(batch: dict[str, torch.Tensor], spans: list[list[int] | None]) -> TensorDict:
    """A micro-batch as verl's engine hands it to `ppo_loss`: nested, each row with two prompt tokens, and what the
    agent loop says of each."""

    def nested(rows: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)

    mask = batch["response_mask"]
    rows, length = mask.shape
    made = TensorDict(
        {
            "prompts": nested(torch.ones(rows, 2, dtype=torch.long)),
            "responses": nested(torch.ones(rows, length, dtype=torch.long)),
            "response_mask": nested(mask.long()),
            "old_log_probs": nested(batch["old_log_prob"]),
            "advantages": nested(batch["advantages"]),
        },
        batch_size=[rows],
    )
    tu.assign_non_tensor(made, dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=rows)
    tu.assign_non_tensor_stack(made, "extra_fields", [{"answer_span": span, "searches": 1} for span in spans])
    return made


def test_verls_own_loss_function_calls_ours(batch: dict[str, torch.Tensor]) -> None:
    """A weight of 0 on every token, as the agent loop has the answer, is no penalty; on no token the whole penalty."""
    ours = [*EXAMPLE, f"+{LOSS}.penalty_coef=0.3"]
    weighted = [*ours, f"+{LOSS}.penalty_answer=answer-span", f"+{LOSS}.penalty_answer_weight=0.0"]
    # the model's output begins one position earlier: two prompt tokens, of which the first predicts the second
    shifted = torch.cat([torch.zeros(5, 1), batch["log_prob"], torch.zeros(5, 1)], dim=1)
    output = {"log_probs": torch.nested.as_nested_tensor(list(shifted), layout=torch.jagged)}
    results = {}
    for name, overrides, span in (
        ("vanilla", [EXAMPLE[-1]], None), ("penalty", ours, None), ("none", weighted, None), ("all", weighted, [0, 7])
    ):  # fmt: skip
        actor = omega_conf_to_dataclass(compose(overrides).actor_rollout_ref.actor)
        results[name] = engine_workers.ppo_loss(actor, output, data(batch, [span] * 5))
    loss, metrics = results["penalty"]
    config = omega_conf_to_dataclass(compose(ours).actor_rollout_ref.actor)
    own = core_algos.get_policy_loss_fn("holdfast_llds")(**batch, loss_agg_mode="token-mean", config=config)[0]
    torch.testing.assert_close(loss, own, rtol=0, atol=1e-12)
    assert results["none"][0] == loss > results["vanilla"][0] + 1e-3
    torch.testing.assert_close(results["all"][0], results["vanilla"][0], rtol=0, atol=1e-12)
    series = {name: metric for name, metric in metrics.items() if name.startswith("holdfast/")}
    assert {"holdfast/penalty/active_fraction", "holdfast/likelihood/positive"} <= set(series)
    assert all(isinstance(metric, Metric) for metric in series.values())


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["data.train_batch_size=512", "actor_rollout_ref.actor.ppo_mini_batch_size=256"], 2),
        (["data.train_batch_size=512", "actor_rollout_ref.actor.ppo_mini_batch_size=512"], 1),
        (["data.train_batch_size=512", "actor_rollout_ref.actor.ppo_mini_batch_size=512",
          "actor_rollout_ref.actor.ppo_epochs=2"], 2),
    ],
)  # fmt: skip
def test_optimizer_steps_are_counted_before_the_run(overrides: list[str], steps: int) -> None:
    assert steps_per_rollout(compose([*EXAMPLE, *overrides])) == steps
    found = problems(*overrides)
    assert len(found) == (steps == 1)
    if found:
        assert "= 1 optimizer step per rollout batch" in found[0] and "holdfast_llds is always zero" in found[0]
        assert problems(*overrides, f"{LOSS}.loss_mode=holdfast_observe") == []
        sapo = (*overrides, f"{LOSS}.loss_mode=holdfast_search_sapo")
        assert len(problems(*sapo)) == 1 and problems(*sapo, f"+{LOSS}.penalty_tau=1.2") == []


def test_a_good_configuration_has_no_problem() -> None:
    texts = [finding.text for finding in check()]
    assert problems() == []
    assert texts[0].startswith("verl's own classes take the configuration: holdfast_llds on vanilla, LLDS(coef=0.2, ")


CORRECTION = "algorithm.rollout_correction"
PROBLEMS = {
    "not ours": ([f"{LOSS}.loss_mode=vanilla"], "policy_loss.loss_mode = 'vanilla' is not a loss of holdfast"),
    "tokens rejected": ([f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"],
                        "rejecting tokens splits actions"),
    "no such rejection": ([f"{CORRECTION}.rollout_rs=geometric", f"{CORRECTION}.rollout_rs_threshold=2"],
                          "rollout_correction: Invalid rollout_rs option: geometric. Must be one of"),
    "no threshold": ([f"{CORRECTION}.rollout_rs=seq_mean_k1"], "rollout_rs_threshold must be explicitly provided"),
    "an old mode": (["actor_rollout_ref.rollout.mode=sync"], "Rollout mode 'sync' has been removed"),
    "no rollout server": (["actor_rollout_ref.rollout.name=???"], "actor_rollout_ref.rollout.name"),
    "bypass without log-probs": (
        [f"{CORRECTION}.bypass_mode=true", "actor_rollout_ref.rollout.calculate_log_probs=false"],
        "verl then stops at the first step",
    ),
    "weights in bypass": (
        [f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=token"], "base_loss_mode=bypass_mode",
    ),
    "another class": ([f"{LOSS}._target_=verl.workers.config.PolicyLossConfig", f"+{LOSS}.penalty_coef=0.2"],
                      f"penalty_coef: this is a setting of holdfast's class. Set {LOSS}._target_=holdfast.adapters"),
    "a slip": ([f"+{LOSS}.penalty_coeff=0.2"], f"{LOSS}.penalty_coeff: there is no such setting; did you mean penalty"),
    "the gate": ([f"+{LOSS}.penalty_gate=response"], "loss_mode has the gate: holdfast_llds (action), holdfast_llds_r"),
    "below 0": ([f"+{LOSS}.penalty_coef=-1"], "policy_loss.penalty_coef = -1 must be 0 or more"),
    "no number": (["data.train_batch_size=abc"], "data.train_batch_size = 'abc' must be a whole number above 0"),
    "no mini-batch": (["actor_rollout_ref.actor.ppo_mini_batch_size=0"], "ppo_mini_batch_size = 0 must be a whole"),
    "no class": ([f"{LOSS}.loss_mode=holdfast_custom"], "penalty_path = '': a custom penalty needs the import path"),
    "another loss in bypass": (
        [f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.loss_type=reinforce"], "loss_type = 'reinforce'",
    ),
    "weights that its loss does not see": (
        [f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=token", f"+{LOSS}.base_loss_mode=bypass_mode",
         f"{LOSS}.rollout_correction=null"],
        "base_loss_mode = 'bypass_mode' does not see algorithm.rollout_correction with rollout_is = 'token'",
    ),
    "the loss of bypass without it": (
        [f"+{LOSS}.base_loss_mode=bypass_mode"], "takes the old log-probs for the sampler's, but they are recomputed",
    ),
    "no such trainer": (["trainer.v1.trainer_mode=seperate_async"], "did you mean separate_async?"),
    "no such estimator": (["algorithm.adv_estimator=grop"], "'grop': verl has no such estimator; did you mean grpo?"),
    "no such KL": (
        ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_type=low_var"],
        "kl_loss_type = 'low_var': did you mean low_var_kl?",
    ),
    "verl's own": (["actor_rollout_ref.actor.loss_agg_mode=mean"], "Invalid loss_agg_mode: mean"),
    "agent without a file": (
        ["actor_rollout_ref.rollout.agent.default_agent_loop=holdfast_search"],
        "set it to a YAML file with the address of the retriever",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems_are_found_without_a_gpu(case: str) -> None:
    overrides, sentence = PROBLEMS[case]
    (found,) = problems(*overrides)
    assert sentence in found and "\n" not in found


def test_a_configuration_that_verl_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(
        ConfigError, match=r"--config-name fully_async: .* it has .*, fully_async_ppo_trainer, one_step_off"
    ):
        compose(EXAMPLE, "fully_async")


@pytest.mark.parametrize("sign", ["", "+", "++"])
@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("actor_rollout_ref.actor.ppo_epoch=2", "actor_rollout_ref.actor.ppo_epochs"),
        ("trainer.v1.trainer_mod=separate_async", "trainer.v1.trainer_mode"),
        ("trainer.v1.separate_asinc.parameter_sync_step=2", "trainer.v1.separate_async.parameter_sync_step"),
        ("algorithm.rollout_corection.bypass_mode=true", "algorithm.rollout_correction.bypass_mode"),
    ],
)
def test_a_slip_in_a_key_is_refused_with_the_real_one(sign: str, slip: str, meant: str) -> None:
    """Hydra would advise to add it, and take it if it is added."""
    with pytest.raises(ConfigError, match=rf"verl has no such setting; did you mean {meant}\?"):
        compose([*EXAMPLE, sign + slip])


def test_what_a_script_adds_or_deletes_is_taken() -> None:
    own = ["+trainer.my_note=a", "+data.apply_chat_template_kwargs.enable_thinking=false", "~trainer.val_only"]
    assert compose([*EXAMPLE, *own]).trainer.my_note == "a"
    assert problems("trainer.v1.trainer_mode=my_own") == []  # a module of the user may register it


@pytest.mark.parametrize(
    "setting",
    [
        "actor_rollout_ref.actor.ppo_infer_max_token_len_per_gpu",
        "actor_rollout_ref.ref.ppo_micro_batch_size_per_gpu",
        "critic.ppo_infer_micro_batch_size_per_gpu",
    ],
)
def test_a_setting_of_verls_class_that_its_file_leaves_out_is_taken(setting: str) -> None:
    assert OmegaConf.select(compose([*EXAMPLE, f"+{setting}=7"]), setting) == 7
    slip = setting.replace("_size", "_sise").replace("_len", "_lem")
    with pytest.raises(ConfigError, match=rf"did you mean {setting}\?"):
        compose([*EXAMPLE, f"+{slip}=7"])


def test_bounds_that_hydra_reads_as_one_number_are_refused() -> None:
    """0.5_5 is 0.55 to Hydra, with which verl would cut every weight."""
    setting = f"{CORRECTION}.rollout_is_threshold"
    with pytest.raises(ConfigError, match=r"number 0\.55\. Quote the bounds"):
        compose([*EXAMPLE, f"{setting}=0.5_5"])
    for text, value in (("'0.5_5'", "0.5_5"), ("0.5_5.0", "0.5_5.0"), ("2", 2)):
        assert (
            OmegaConf.select(compose([*EXAMPLE, f"{setting}={text}", "data.train_batch_size=1_024"]), setting) == value
        )


def test_tokens_rejected_are_found_without_our_own_config_class_too() -> None:
    rejected = [f"algorithm.rollout_correction.{x}" for x in ("rollout_rs=token_k1", "rollout_rs_threshold=0.5_2.0")]
    plain = [f"{LOSS}.loss_mode=holdfast_llds", *EXAMPLE[-2:], "actor_rollout_ref.rollout.calculate_log_probs=true"]
    config = compose([*plain, *rejected])
    assert [f.passed for f in checks(config)] == [False]
    config = compose([*plain, *rejected, f"{LOSS}.loss_mode=holdfast_lld"])
    assert all(f.passed for f in checks(config))


def test_in_bypass_mode_the_first_step_counts() -> None:
    """The old log-probs are the sampler's there, so the penalty is not 0; a note says so."""
    once = ("data.train_batch_size=256", "actor_rollout_ref.actor.ppo_mini_batch_size=256")
    bypass = f"{CORRECTION}.bypass_mode=True"
    assert len(problems(*once)) == 1 and problems(*once, bypass) == []
    texts = " ".join(finding.text for finding in check(*once, bypass))
    assert "the penalty acts on 1 of them" in texts and "penalty_threshold" in texts
    assert "Begin without a penalty" in texts
    seen = (f"+{LOSS}.base_loss_mode=bypass_mode", f"{CORRECTION}.rollout_is=token")
    assert problems(*once, bypass, *seen) == []


FULLY, ONE_STEP = "fully_async_ppo_trainer.yaml", "one_step_off_ppo_trainer"
DECOUPLED = f"{CORRECTION}.bypass_mode=false"
ONE = "async_training.trigger_parameter_sync_step=1"


@pytest.mark.parametrize(
    ("name", "overrides", "acting"),
    [
        (FULLY, (), "4 optimizer steps between two synchronisations; the penalty acts on 4 of them"),
        (FULLY, (DECOUPLED,), "4 optimizer steps between two synchronisations; the penalty acts on 3 of them"),
        (FULLY, (ONE,), "1 optimizer step between two synchronisations; the penalty acts on 1 of them"),
        (FULLY, (ONE, DECOUPLED), None),
        (ONE_STEP, ("data.train_batch_size=256",), "the penalty acts on 1 of them"),
        (ONE_STEP, ("data.train_batch_size=256", DECOUPLED), None),
    ],
)
def test_asynchronous_trainers_have_their_own_old_policy(
    name: str, overrides: tuple[str, ...], acting: str | None
) -> None:
    found = check(*overrides, name=name)
    if acting is None:
        (problem,) = [finding.text for finding in found if not finding.passed]
        assert "holdfast_llds is always zero" in problem
    else:
        assert all(finding.passed for finding in found) and any(acting in finding.text for finding in found)


def test_the_doctor_says_what_counts_as_the_answer() -> None:
    for answer, weight, says in (
        ("last-action", "0.5", "as its answer"),
        ("answer-span", "adaptive-paper", "256 roll"),
    ):
        found = check(f"+{LOSS}.penalty_answer={answer}", f"+{LOSS}.penalty_answer_weight={weight}")
        assert [f.text for f in found if says in f.text]


def test_the_doctor_prints_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from holdfast.cli.main import app

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["doctor", "verl", *arguments])

    done = run()
    assert f"ok       verl {verl.__version__}" in done.stdout
    assert "policy losses in verl's registry: holdfast_observe, holdfast_llds, " in done.stdout
    assert all(override in done.stdout for override in EXAMPLE)
    done = run("--config-path=config", "--config-name", FULLY, *EXAMPLE)
    assert done.exit_code == 0 and "between two synchronisations" in done.stdout
    done = run(*EXAMPLE, "data.train_batch_size=256")
    assert done.exit_code == 1
    assert "PROBLEM  data.train_batch_size / ppo_mini_batch_size × ppo_epochs = 1 optimizer step " in done.stdout


def test_the_example_is_a_good_configuration(tmp_path: Path) -> None:
    """Its own command, with a `python3` that prints what it was given."""
    fake = tmp_path / "python3"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    fake.chmod(0o755)
    script = Path(__file__).parents[3] / "examples" / "verl_llds.sh"
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CHECK": ""}
    done = subprocess.run(
        ["bash", str(script), "trainer.n_gpus_per_node=2"], env=environment, capture_output=True, text=True
    )
    module, *overrides = done.stdout.splitlines()[1:]
    assert module == "verl.trainer.main_ppo", done.stderr
    config = compose(overrides)
    assert [finding.text for finding in checks(config) if not finding.passed] == []
    assert steps_per_rollout(config) == 10 and config.trainer.n_gpus_per_node == 2
    assert config.actor_rollout_ref.actor.policy_loss.rollout_correction == config.algorithm.rollout_correction
    (loop,) = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert get_class(loop["_target_"]) is SearchAgentLoop
    own = set(inspect.signature(SearchAgentLoop.__init__).parameters)
    assert set(loop) - {"name", "_target_"} <= own


# ---- how verl comes to know the losses: from an entry point or the environment, in the version they are for

ROOT = Path(__file__).parents[3]


def run_python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`folder` holds the metadata of an installed holdfast, with the entry points that pyproject.toml declares."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "holdfast-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in points.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    paths = os.pathsep.join([str(folder), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


without_plugins = pytest.mark.skipif(verl.__version__.startswith("0.8."), reason="verl 0.8 has no plugins")
SHOW = (
    "import verl\nfrom verl.trainer.ppo.core_algos import get_policy_loss_fn as get\nprint(type(get({!r})).__module__)"
)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, marks=without_plugins, id="entry point"),
        pytest.param(
            {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "holdfast.adapters.verl"},
            id="environment",
        ),
    ],
)
def test_verl_finds_the_losses_by_itself(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run_python(SHOW.format("holdfast_llds"), tmp_path, **environment)
    assert done.stdout.split() == ["holdfast.adapters.verl.plugin"], done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    assert said == [f"holdfast: policy losses registered with verl {verl.__version__}: {', '.join(LOSSES)}"]


def test_without_the_plugin_verl_knows_none(tmp_path: Path) -> None:
    done = run_python(SHOW.format("holdfast_llds"), tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert done.returncode != 0 and "Unsupported loss mode: holdfast_llds" in done.stderr


def test_another_version_is_refused_aloud(tmp_path: Path) -> None:
    code = "import verl, sys\nverl.__version__ = '0.7.1'\nimport holdfast.adapters.verl"
    done = run_python(code, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert (
        "holdfast: no losses registered: verl 0.7.1 is installed, but holdfast.adapters.verl needs 0.8 or newer"
        in done.stderr
    )
    assert "ConfigError" in done.stderr and done.returncode != 0


def test_a_newer_version_is_told(tmp_path: Path) -> None:
    code = "import verl\nverl.__version__ = '0.11.0'\nimport holdfast.adapters.verl"
    done = run_python(code, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert "holdfast: verl 0.11.0 is newer than 0.9, the newest that" in done.stderr and done.returncode == 0


def test_the_loss_of_an_engine_that_is_imported_already_is_ours_too(tmp_path: Path) -> None:
    code = "import verl.workers.engine_workers as e, holdfast.adapters.verl\nprint(hasattr(e.ppo_loss, '__wrapped__'))"
    assert run_python(code, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none").stdout.split() == ["True"]
