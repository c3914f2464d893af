"""The arm of step_vs_trl.py that runs `Trainer.step`, with nothing replaced but when a turn ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from holdfast.agent.protocol import SearchProtocol
from holdfast.model.language_model import ready
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Completion, Request
from holdfast.recipe import validate
from holdfast.tasks.opening import load_protocol, make_agent
from holdfast.tasks.questions import Example
from holdfast.train.learner import make_learner
from holdfast.train.trainer import Trainer
from measuring import seconds_now
from step_task import Script, Task

GOLD, WRONG = "yes", "no"


def protocol_for(task: Task) -> SearchProtocol:
    """Limits that the script stays below, so that it alone decides."""
    return load_protocol(config_for(task))


def config_for(task: Task) -> Any:
    """The quickstart's loss with one update per `rows / updates` rollouts; LLDS at its published strength."""
    longest = (2 * task.turn_tokens + task.observation_tokens) * (task.turns + 1) + 200
    return validate(
        {
            "model": {"chat_template": "none", "autocast": task.autocast},  # the other arm uses no template either
            "protocol": {
                "prompt": "Question: {question}\n",
                "max_turns": task.turns + 1,
                "max_turn_tokens": 2 * task.turn_tokens,
                "max_observation_tokens": task.observation_tokens,
                "max_total_tokens": longest,
            },
            "loss": {"kl_coef": 0.0, "penalty": {"name": "llds", "gate": "action"}},
            "train": {
                "questions": task.questions,
                "group_size": task.group,
                "optimizer_steps_per_rollout": task.updates,
                "lr": 1e-6,
                "displacement_every": 0,
            },
            "run": {"seed": task.seed, "device": task.device},
        }
    )


def scripted(task: Task) -> type[HFPolicy]:
    """`HFPolicy` whose turns end after the script's number of tokens, with the action the script says."""

    class ScriptedPolicy(HFPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._turns: dict[str, int] = {}

        def submit(self, requests: Sequence[Request]) -> None:
            scripted = []
            for request in requests:
                turn = self._turns[request.id] = self._turns.get(request.id, -1) + 1
                scripted.append(replace(request, max_new_tokens=self._script(request.id).lengths[turn], stop=()))
            super().submit(scripted)

        def poll(self) -> list[Completion]:
            return [replace(c, text=action_text(self._script(c.id), self._turns[c.id])) for c in super().poll()]

        def release(self, ids: Iterable[str]) -> None:
            gone = list(ids)
            for id in gone:
                self._turns.pop(id, None)
            super().release(gone)

        def _script(self, id: str) -> Script:
            question, _, sample = id.rpartition("/")[2].partition("#")
            return task.script(int(question), int(sample))

    return ScriptedPolicy


def action_text(script: Script, turn: int) -> str:
    """What the turn says, whatever was sampled."""
    if turn < len(script.queries):
        return f"<search> {script.queries[turn]} </search>"
    return f"<answer> {GOLD if script.right else WRONG} </answer>"


def seconds_when_idle() -> float:
    """`seconds_now`, once a GPU has done all that it was told to."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return seconds_now()


class Stopwatch:
    """Seconds by part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Any:
        started = seconds_when_idle()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds_when_idle() - started

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self(name):
                return function(*args, **kwargs)

        return run


def start(task: Task) -> Callable[[], dict[str, Any]]:
    """Build everything; each call of what is returned runs one step and reports on it."""
    config = config_for(task)
    tokenizer = task.tokenizer(end_token=False)
    examples = tuple(
        Example(source="bench", split="train", index=i, question=text, golden_answers=(GOLD,))
        for i, text in enumerate(task.texts())
    )
    retriever = task.retriever()
    policy = ready(task.model(tokenizer), tokenizer, config.model, torch.device(task.device))
    with mock.patch("holdfast.model.sampler.hf.HFPolicy", scripted(task)):
        agent = make_agent(config, policy, retriever)
        trainer = Trainer(config, agent, make_learner(config, policy, None), examples, None)
    learner = trainer.learner

    def step() -> dict[str, Any]:
        watch = Stopwatch()
        with (
            watch("step"),
            mock.patch.object(trainer, "roll_out", watch.around("rollout", trainer.roll_out)),
            mock.patch.object(learner, "old_pass", watch.around("old log-probs", learner.old_pass)),
            mock.patch.object(learner, "step", watch.around("optimizer steps", learner.step)),
            mock.patch.object(retriever, "search", watch.around("search", retriever.search)),
        ):
            result = trainer.step()
        groups, metrics = result.groups, result.metrics
        rollouts = [t for group in groups for t in group.trajectories]
        return {
            "seconds": watch.seconds,
            "counts": {
                "rollouts": len(rollouts),
                "tokens": sum(len(t.token_ids) for t in rollouts),
                "sampled": sum(map(sum, (t.loss_mask for t in rollouts))),
                "updates": int(metrics["optimizer_steps_per_rollout"]),
                "mixed groups": sum(group.mixed for group in groups),
            },
        }

    return step
