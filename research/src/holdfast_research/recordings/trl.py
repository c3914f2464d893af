"""A recorded run of TRL: `GRPOTrainer` as `holdfast launch trl` sets it up, with a fault put into it from outside.

The log is TRL's `trainer_state.json` with the observer's series, which `library.load(…, stock=True)` leaves out.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from holdfast.adapters import trl_penalty as adapter
from holdfast.adapters.launch import Machines, plan
from holdfast.adapters.trl import LLDS, with_penalties
from holdfast.adapters.trl_search import SearchRollouts, question_dataset, reward_functions
from holdfast.data.world.bundle import world_of
from holdfast.recipe import Config, dump
from holdfast.train.checkpoint import save_whole_model
from holdfast.train.loading import load_protocol, load_questions, load_retrievers
from holdfast.train.start import starting_policy
from holdfast_research.recordings.local import Broken
from holdfast_research.recordings.plan import Planned, config_of

SHORT = {
    "eval_strategy": "no",
    "eval_on_start": False,
    "save_strategy": "no",
    "report_to": "none",
    "log_completions": False,
    "disable_tqdm": True,
    "logging_nan_inf_filter": False,
}
_RETRIEVER: dict[str, dict[str, Any]] = {
    "dead_retriever": {"failing": 1.0},
    "ailing_retriever": {"failing": 0.85},
    "empty_retriever": {"empty": True},
}
_SAMPLER: dict[str, dict[str, Any]] = {"hot_sampler": {"temperature": 1.5}, "truncated_sampler": {"top_k": 2}}


def record(planned: Planned, folder: Path) -> None:
    """Make the run, from the start, into `folder`: trainer_state.json and config.toml."""
    config = config_of(planned)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(planned.seed)
    model = _warm_started(planned, config, folder.parent)
    (folder / "config.toml").write_text(dump(config), encoding="utf-8")
    trainer = make_trainer(planned, config, model, folder)
    finish(planned, trainer, folder)


def finish(planned: Planned, trainer: Any, folder: Path) -> None:
    """Train and save the log; a run that dies leaves the log it has."""
    try:
        trainer.train()
    except (RuntimeError, ValueError, IndexError) as error:
        print(f"{planned.name}: ended after step {trainer.state.global_step}: {str(error)[:160]}", flush=True)
    trainer.state.save_to_json(str(folder / "trainer_state.json"))


def _warm_started(planned: Planned, config: Config, work: Path) -> Path:
    """The folder of the model that all runs of the testbed start from, warm-started by the local trainer."""
    folder = work / f"start-{planned.testbed.name}"
    if not (folder / "config.json").is_file():
        start = starting_policy(config, load_questions(config), load_retrievers(config).train)
        save_whole_model(folder, start)
    return folder


def make_trainer(planned: Planned, config: Config, model: Path, folder: Path) -> Any:
    """The trainer of a search agent."""
    k = config.train.optimizer_steps_per_rollout
    loaded = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(model)}), "warm_start": type(config.warm_start)()}
    )
    options = {option.name: option.value for option in plan("trl", loaded, Machines()).options}
    options |= SHORT
    options |= {"output_dir": str(folder / "checkpoints")} | _options_of(planned, options)
    functions, weights = reward_functions({n: w for n, w in config.reward.weights().items() if w})
    return trainer_class(planned, k)(
        model=str(model),
        reward_funcs=functions,
        args=GRPOConfig(**options, reward_weights=weights),
        train_dataset=question_dataset(_questions(planned, config)),
        rollout_func=Rollouts(planned, config, k),
        callbacks=giant_steps(planned, k),
    )


def _options_of(planned: Planned, options: dict[str, Any]) -> dict[str, Any]:
    """What a fault changes in GRPOConfig."""
    if planned.arm.fault == "one_step":  # one optimizer step on the whole rollout batch
        k = options["steps_per_generation"]
        return {"gradient_accumulation_steps": k, "logging_steps": 1, "max_steps": planned.length}
    if planned.arm.fault == "cosine":
        return {"lr_scheduler_type": "cosine"}
    if planned.arm.fault in ("other_questions", "easier_questions"):
        return {"shuffle_dataset": False}
    return {}


def _questions(planned: Planned, config: Config) -> list[Any]:
    """The training questions, in the order in which they are asked where a fault is about them."""
    asked = list(load_questions(config).train)
    if planned.arm.fault == "no_answers":
        return [replace(example, golden_answers=("-x-",)) for example in asked]
    if planned.arm.fault in ("other_questions", "easier_questions"):
        easy = {q.example.id for q in world_of(config.world).questions["train"] if len(q.hops) == 1}
        simple, first = [e for e in asked if e.id in easy], planned.arm.start * config.train.questions
        everything = asked[len(asked) // 4 :] + asked[: len(asked) // 4]
        before, after = (simple, everything) if planned.arm.fault == "other_questions" else (everything, simple)
        return [*itertools.islice(itertools.cycle(before), first), *after]
    return asked


class Rollouts:
    """`SearchRollouts` with a fault in what it searches, samples or masks, from a rollout batch on."""

    def __init__(self, planned: Planned, config: Config, k: int) -> None:
        self.fault, self.first = planned.arm.fault, planned.arm.start * k
        self.retriever = Broken(load_retrievers(config).train)
        self.inner = SearchRollouts(self.retriever, load_protocol(config), seed=planned.seed, max_failed=1.0)
        self.old: dict[str, torch.Tensor] | None = None

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, Any]:
        """What TRL asks of a `rollout_func`."""
        if trainer.state.global_step < self.first:
            return self.inner(prompts, trainer)
        if self.fault in _RETRIEVER:
            vars(self.retriever).update(_RETRIEVER[self.fault])
        if self.fault in _SAMPLER:
            return self._sampled_with(_SAMPLER[self.fault], prompts, trainer)
        if self.fault == "stale_sampler":
            return self._sampled_by_old(prompts, trainer)
        rollouts = self.inner(prompts, trainer)
        if self.fault == "masked_leak":
            rollouts["env_mask"] = [[1] * len(ids) for ids in rollouts["completion_ids"]]
        return rollouts

    def _sampled_with(self, values: dict[str, Any], prompts: Any, trainer: Any) -> dict[str, Any]:
        before = {name: getattr(trainer, name) for name in values}
        vars(trainer).update(values)
        try:
            return self.inner(prompts, trainer)
        finally:
            vars(trainer).update(before)

    def _sampled_by_old(self, prompts: Any, trainer: Any) -> dict[str, Any]:
        new = copy.deepcopy(trainer.model.state_dict())
        self.old = self.old or new
        trainer.model.load_state_dict(self.old)
        try:
            return self.inner(prompts, trainer)
        finally:
            trainer.model.load_state_dict(new)


def trainer_class(planned: Planned, k: int) -> Any:
    """GRPOTrainer with the fault and the observer; with a penalty where the fault is about one."""
    first = planned.arm.start * k

    class Faulty(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            if planned.arm.fault == "length_bonus" and self.state.global_step >= first:
                lengths = batch["completion_mask"].sum(-1).float()
                bonus = (lengths - lengths.mean()) / lengths.std().clamp(min=1e-3)
                batch["advantages"] = batch["advantages"] * 0.3 + bonus
            return batch

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
            return loss * float("nan") if planned.arm.fault == "poisoned" and self.state.global_step >= first else loss

    if planned.arm.fault != "one_step":
        return with_penalties(Faulty, displacement_every=1)
    adapter.check_config = lambda args, penalty: None  # it refuses this fault
    return with_penalties(Faulty, LLDS(coef=0.2, gate="action"), displacement_every=1)


def giant_steps(planned: Planned, k: int) -> list[TrainerCallback]:
    """For a run with this fault: the learning rate times 30 after `start` rollout batches."""
    first = planned.arm.start * k

    class GiantSteps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == first:
                scheduler = more["lr_scheduler"]
                scheduler.base_lrs = [rate * 30 for rate in scheduler.base_lrs]

    return [GiantSteps()] if planned.arm.fault == "giant_steps" else []
