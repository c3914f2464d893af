"""A search agent in TRL: holdfast's rollout loop as `rollout_func`, its rewards, and questions as a data set.

    rollouts = SearchRollouts(retriever, CLEAN)
    functions, weights = reward_functions({"em": 1.0})
    trainer = with_penalties(GRPOTrainer, LLDS(coef=0.2))(
        model,
        functions,
        args=GRPOConfig(reward_weights=weights, steps_per_generation=..., ...),
        train_dataset=question_dataset(questions),
        rollout_func=rollouts,
    )

Token in, token out: the ids TRL trains on are the sampled ones, with observations between them and masked by
`env_mask`. Without `use_vllm` the trainer's model samples, with a cache that lasts for a rollout; with it, TRL's vLLM
does, colocated or as a server. Temperature, top-p and top-k are the trainer's, and so is the longest completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from holdfast.adapters.trl.vllm import VLLMPolicy
from holdfast.agent.agent import Task, lose_searches, run_rollouts
from holdfast.agent.metrics.rollouts import retrieval_metrics, rollout_metrics
from holdfast.agent.protocol import CLEAN, SearchProtocol, render_prompt
from holdfast.agent.rewards import EM, check_weights, score_trajectory
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.base.errors import ConfigError, DataError, RolloutError
from holdfast.base.importing import optional
from holdfast.base.retries import PATIENCE, Retries
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Policy, rollout_seed
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.retrieval.types import NoPassages, Retriever
from holdfast.tasks.questions import Example

__all__ = ["SearchRollouts", "question_dataset", "reward_functions"]

_MASS = "sampler/mask_mass"


def question_dataset(examples: Sequence[Example]) -> Any:
    """A `datasets.Dataset` with `prompt` (the question), `golden_answers` and `example_id`."""
    return dataset_of(examples, lambda question: question)


def dataset_of(examples: Sequence[Example], prompt: Callable[[str], Any]) -> Any:
    """As `question_dataset`, with what `prompt` makes of the question."""
    for odd in (e for e in examples if not isinstance(e, Example)):
        raise DataError(
            f"{odd!r} is not a question of holdfast, an Example of holdfast.tasks.questions. If the rows are your own, "
            "make a Dataset of them with the columns `prompt` (the question) and `golden_answers` (a list of texts)"
        )
    return optional("datasets", "trl").Dataset.from_list(
        [{"prompt": prompt(e.question), "golden_answers": list(e.golden_answers), "example_id": e.id} for e in examples]
    )


def reward_functions(weights: Mapping[str, float] = EM) -> tuple[list[Callable[..., list[float | None]]], list[float]]:
    """TRL reward functions for the parts of `weights` (see `holdfast.agent.rewards`), and their `reward_weights`.

    They score the rollouts of `SearchRollouts` against the column `golden_answers`. A rollout that failed for reasons
    other than the policy gets None, which TRL leaves out of its group's mean. The first function also logs
    `holdfast/reward/em`, `holdfast/rollout/searches` and so on. What the rollouts do not hold is left out, such as
    `sampler/mask_mass` with vLLM.
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(f"reward_functions({weights!r}): give each part its weight, as in {{'em': 1.0}}")
    check_weights(weights)
    nonzero = {name: weight for name, weight in weights.items() if weight}

    def function(name: str, reports: bool) -> Callable[..., list[float | None]]:
        def reward(
            trajectory: Sequence[Trajectory] | None = None,
            golden_answers: Sequence[Sequence[str]] | None = None,
            **more: Any,
        ) -> list[float | None]:
            if trajectory is None:
                raise ConfigError(
                    f"the reward function {name!r} scores the rollouts of SearchRollouts, but these are not its own. "
                    "Pass rollout_func=SearchRollouts(retriever, protocol), or with environment_factory use the "
                    "functions of environment_rewards"
                )
            if golden_answers is None:
                raise DataError(
                    f"the reward function {name!r} needs the column `golden_answers` of the data set, a list of texts "
                    "for each question. question_dataset makes it"
                )
            scored = [score_trajectory(t, golds, nonzero) for t, golds in zip(trajectory, golden_answers, strict=True)]
            if reports:
                metrics = rollout_metrics(_groups(scored, more.get("example_id")))
                if not any(turn.mask_mass for t in scored for turn in t.turns):
                    metrics.pop(_MASS)  # unknown; TRL would average this 1 with what the trainer's log measures
                for key, value in metrics.items():
                    more["log_metric"](f"holdfast/{key}", value)
            return [t.reward_parts.get(name) for t in scored]

        reward.__name__ = name
        return reward

    return [function(name, reports=i == 0) for i, name in enumerate(nonzero)], list(nonzero.values())


def _groups(trajectories: Sequence[Trajectory], ids: Sequence[str] | None) -> list[Group]:
    """Neighbours with the same id: TRL keeps the rollouts of a question together."""
    names = ids or [t.example_id for t in trajectories]
    rows = groupby(zip(names, trajectories, strict=True), key=lambda row: row[0])
    return [Group(name, tuple(t for _, t in members)) for name, members in rows]


def check_agent(
    retriever: Any,
    protocol: Any,
    kind: type[SearchProtocol] = SearchProtocol,
    needs: tuple[str, ...] = ("search", "in_process"),
) -> None:
    """Raise `ConfigError` for a protocol that is not of this kind, and for a retriever that lacks what it needs."""
    if not isinstance(protocol, kind):
        raise ConfigError(
            f"protocol = {protocol!r}: pass a {kind.__name__}, such as "
            + ("CLEAN of holdfast.agent.protocol" if kind is SearchProtocol else "NATIVE of holdfast.agent.tools")
        )
    if retriever is None and not protocol.searches:
        return
    if missing := [name for name in needs if not hasattr(retriever, name)]:
        raise ConfigError(
            f"retriever = {retriever!r} has no {' and no '.join(missing)}, as holdfast.retrieval.types.Retriever asks. "
            "For the address of a server pass HTTPRetriever(address) of holdfast.retrieval.client"
        )


class SearchRollouts:
    """`rollout_func` of a search agent: `(prompts, trainer) -> dict` of token ids, masks and trajectories.

    Args:
        retriever: answers the searches; see `holdfast.retrieval.types.Retriever`. None for tools without `search`.
        protocol: tags, prompt and limits; `holdfast.agent.tools.NATIVE` for tool calls. A prompt of the data set is a
            question; the protocol's prompt goes around it. `GRPOConfig.max_completion_length` is a limit as well, on
            the tokens after the prompt; see `completion_limit`.
        chat_template: `auto`, `none`, or a Jinja file; see `ChatTemplate`. Its variables are the `chat_template_kwargs`
            of the `GRPOConfig`.
        seed: of the sampler when the trainer's model samples. vLLM has its own seed.
        max_failed: stop the run when a larger fraction of a batch's rollouts fails.
        eval_retriever: the retriever in evaluation; None is the same one.
        search_failure_rate: fault injection: probability that a search of a training rollout returns nothing.

    The dict holds what TRL requires, and `env_mask` (1 on sampled tokens), `action_ids`, `answer_mask`, `searches`
    and `trajectory`. A failed rollout has an all-zero mask: nothing is learned from it.

    Raises `ConfigError` for a retriever or a protocol that is none, and when called:
        ConfigError: with tags, `mask_truncated_completions`, which would treat every rollout as truncated; without
            vLLM, min_p, a sampler set in `generation_kwargs`, or weights that stay in shards while they sample; a chat
            template that lacks the tools of the protocol.
        DataError: a prompt that is not a question.
        RolloutError: too many rollouts failed.
    """

    def __init__(
        self,
        retriever: Retriever | None,
        protocol: SearchProtocol = CLEAN,
        *,
        chat_template: str | Path = "auto",
        seed: int = 0,
        max_failed: float = 0.5,
        eval_retriever: Retriever | None = None,
        search_failure_rate: float = 0.0,
    ) -> None:
        check_agent(retriever, protocol)
        self.retriever: Retriever = NoPassages() if retriever is None else retriever
        self.eval_retriever = self.retriever if eval_retriever is None else eval_retriever
        self.protocol = replace(protocol, template=ChatTemplate(chat_template))
        self.seed, self.max_failed = seed, max_failed
        self.search_failure_rate = search_failure_rate
        self._retries = Retries(patience=PATIENCE)
        self._policy: HFPolicy | None = None
        self._last_step: tuple[Any, ...] = ()
        self._calls = 0
        """In `_last_step` before the current one."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Roll out every prompt with the trainer's model: TRL's `rollout_func`. Raises `ConfigError`, `DataError`."""
        if trainer.args.mask_truncated_completions and self.protocol.stop:
            raise ConfigError(
                "mask_truncated_completions=True: TRL treats a completion as truncated if it does not end with the "
                "end-of-sequence token. Rollouts end with a closing tag, so all of them would be masked. Set it to "
                "False"
            )
        tokenizer, training = trainer.processing_class, trainer.model.training
        template = replace(self.protocol.template, variables=trainer.chat_template_kwargs)
        protocol = replace(self.protocol, template=template)
        protocol.check_template(tokenizer, trainer.eos_token_ids)
        limit = completion_limit(trainer.args)
        step = self._seed_of_call("train" if training else "eval", trainer.state.global_step)
        faulty = training and self.search_failure_rate
        tasks = [
            Task(
                id=f"{i}",
                example_id=f"{i}",
                prompt=tuple(render_prompt(_question(prompt), protocol, tokenizer)),
                seed=rollout_seed(*step, trainer.accelerator.process_index, i),
                max_completion_tokens=limit,
            )
            for i, prompt in enumerate(prompts)
        ]
        stats = RolloutStats()
        with self._policy_of(trainer, tokenizer) as policy:
            trajectories = run_rollouts(
                tasks,
                policy=policy,
                retriever=self.retriever if training else self.eval_retriever,
                protocol=protocol,
                tokenizer=tokenizer,
                retries=self._retries,
                wrap=partial(lose_searches, probability=self.search_failure_rate) if faulty else None,
                stats=stats,
            )
        failed = [t for t in trajectories if t.status.is_failure]
        if len(failed) > self.max_failed * len(trajectories):
            raise RolloutError(
                f"{len(failed)} of {len(trajectories)} rollouts failed, more than max_failed = {self.max_failed} "
                f"allows. The first error: {failed[0].error}. Fix it, then continue from the last checkpoint with "
                "resume_from_checkpoint"
            )
        for name, value in retrieval_metrics(stats).items():
            trainer._log_metric(f"holdfast/{name}", value)
        return columns(trajectories, tokenizer.eos_token_id or 0)

    def _seed_of_call(self, mode: str, global_step: int) -> tuple[Any, ...]:
        """What its seeds depend on. An evaluation has many batches at one step, and a step can have several too."""
        step = (self.seed, mode, global_step)
        self._calls = self._calls + 1 if step == self._last_step else 0
        self._last_step = step
        return (*step, f"call {self._calls}") if self._calls else step

    @contextmanager
    def _policy_of(self, trainer: Any, tokenizer: Any) -> Iterator[Policy]:
        """The policy: TRL's vLLM, or the trainer's model, gathered as TRL gathers it to generate."""
        if trainer.use_vllm:
            vllm = VLLMPolicy(trainer.vllm_generation, trainer.accelerator, tokenizer, trainer.eos_token_ids)
            yield vllm
            vllm.join()
            return
        from trl.models import unwrap_model_for_generation

        args = trainer.args
        check_sharding(trainer)
        name = "gradient_checkpointing_kwargs"  # TRL 1.15 has no such argument
        since = {name: getattr(args, name)} if name in signature(unwrap_model_for_generation).parameters else {}
        sampling = {"temperature": trainer.temperature, "top_p": trainer.top_p, "top_k": trainer.top_k or 0}
        unused = sorted({"min_p", *sampling} & set(args.generation_kwargs or {}))
        if trainer.min_p or unused:
            raise ConfigError(
                f"{' and '.join(['min_p'] * bool(trainer.min_p) + [f'generation_kwargs[{n!r}]' for n in unused])}: "
                "without use_vllm, SearchRollouts supports only temperature, top_p and top_k of the GRPOConfig. Set "
                "those, or use_vllm=True"
            )
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=args.ds3_gather_for_generation,
                **since,
            ) as model,
            torch.no_grad(),
            trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
        ):
            if self._policy is None or self._policy.model is not model:  # its checks are paid once in a training
                self._policy = HFPolicy(
                    model,
                    tokenizer,
                    autocast_dtype=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None,
                    max_tokens=self.protocol.max_total_tokens,
                )
            yield self._policy.with_sampling(**sampling)


def completion_limit(args: Any) -> int | None:
    """Tokens after the prompt that a `GRPOConfig` allows; None leaves it to the protocol.

    TRL's default of `max_completion_length` is meant for one turn, so it counts as not given. Under `dr_grpo` the
    setting is the loss's divisor, and no limit.
    """
    given: int | None = args.max_completion_length
    default = type(args).__dataclass_fields__["max_completion_length"].default
    return None if given == default or args.loss_type == "dr_grpo" else given


def check_sharding(trainer: Any) -> None:
    """Raise `ConfigError` where the trainer's model is in shards while it samples: each forward pass then needs all
    processes, whose rollouts take different numbers of them, and the run would wait forever."""
    backend, whole = trainer._dist, trainer.args.ds3_gather_for_generation
    if trainer.accelerator.num_processes == 1 or not (backend.is_fsdp or (backend.is_zero3 and not whole)):
        return
    how = "FSDP" if backend.is_fsdp else "DeepSpeed ZeRO-3 with ds3_gather_for_generation=False"
    instead = "ZeRO-3, ZeRO-2 or DDP" if backend.is_fsdp else "ds3_gather_for_generation=True"
    raise ConfigError(
        f"{how} without use_vllm: each process has a part of the weights, and the rollouts of different processes take "
        f"different numbers of forward passes, so they would wait for each other forever. Set use_vllm=True, or use "
        f"{instead}"
    )


def columns(trajectories: Sequence[Trajectory], filler: int) -> dict[str, Any]:
    """Trajectories as the dict that TRL expects from a `rollout_func`, one list entry per rollout.

    TRL needs a token in every completion: a rollout without one gets `filler`, masked.
    """

    def completion(trajectory: Trajectory, name: str, fill: Any, kind: type) -> list[Any]:
        return [kind(x) for x in getattr(trajectory, name)[len(trajectory.prompt) :]] or [fill]

    return {
        "prompt_ids": [list(t.prompt) for t in trajectories],
        "completion_ids": [completion(t, "token_ids", filler, int) for t in trajectories],
        "logprobs": [completion(t, "rollout_logprobs", 0.0, float) for t in trajectories],
        "env_mask": [completion(t, "loss_mask", 0, int) for t in trajectories],
        "action_ids": [completion(t, "action_ids", 0, int) for t in trajectories],
        "answer_mask": [completion(t, "answer_mask", 0, int) for t in trajectories],
        "searches": [t.searches for t in trajectories],
        "trajectory": list(trajectories),
    }


def _question(prompt: Any) -> str:
    """The question of a prompt, which is a string or a conversation of one user message."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0].get("content"), str):
        return prompt[0]["content"]
    raise DataError(
        f"a prompt of the data set is {str(prompt)[:80]!r}, but SearchRollouts needs the question: a string, or a "
        "list of one message with a string. It adds the prompt of the protocol itself; `question_dataset` makes such "
        "rows"
    )
