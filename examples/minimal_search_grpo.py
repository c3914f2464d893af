"""GRPO with LLDS on a search agent, top to bottom in one file: no config, no command line, no checkpoints.

holdfast warm-start --run.name start    # a tiny model that can search: a few minutes, once
python examples/minimal_search_grpo.py runs/start/model

It is the method of `holdfast.train` on the library's own parts: the bundled world, the rollout loop, the batch and the
losses. To read the method, read this first; `holdfast/train/trainer.py` is the same loop with everything around it.

What `holdfast train` has and this leaves out:
1) Micro-batches. Here a mini-batch is one forward pass, padded to its longest rollout, whatever memory that takes.
2) The rest of the loss: KL to a reference, entropy, GSPO's ratio, other penalties, the mask of a truncated sampler.
3) Care of failures: this continues after many failed searches, and applies a gradient that is not finite.
4) What tells whether a run fails: evaluation on dev and test, displacement, findings, samples, a report.
5) An exact resume.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from holdfast.agent.agent import Task, run_rollouts
from holdfast.agent.batch import TokenBatch
from holdfast.agent.protocol import CLEAN, render_prompt
from holdfast.agent.rewards import score_trajectory
from holdfast.agent.trajectory import Group
from holdfast.losses import clipped_policy_loss, group_advantages, llds_penalty, preserved_mask, reduce_loss
from holdfast.model.passes.logprobs import token_logprobs
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import rollout_seed
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.tasks.questions import Example, QuestionOrder
from holdfast.tasks.world.facts import World, build_world

# ---- the settings of the recipe quickstart

QUESTIONS = 32  # in a rollout batch
GROUP = 5  # rollouts of each question
OPTIMIZER_STEPS = 10  # on each rollout batch; with one of them the penalty is always zero
LEARNING_RATE = 3e-4
WARMUP = 5
COEF = 0.2  # LLDS's λ
PROTOCOL = replace(
    CLEAN,
    prompt="Question: {question}\n",
    max_turns=5,
    max_turn_tokens=64,
    max_observation_tokens=120,
    max_total_tokens=512,
)


# ---- rollouts: questions in, scored groups out


class Rollouts:
    """The agent: a policy that samples turns, a retriever that answers its searches, the protocol between the two."""

    def __init__(self, model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, world: World) -> None:
        self.tokenizer = tokenizer
        self.policy = HFPolicy(model, tokenizer, temperature=1.0)
        self.retriever = BM25Retriever.build(world.documents("train"))  # of the training split alone

    def sample(self, examples: list[Example], group: int, seed: int) -> list[Group]:
        tasks = [
            Task(
                id=f"{example.id}#{k}",
                example_id=example.id,
                prompt=tuple(render_prompt(example.question, PROTOCOL, self.tokenizer)),
                seed=rollout_seed(seed, example.id, k),
            )
            for example in examples
            for k in range(group)
        ]
        trajectories = run_rollouts(
            tasks, policy=self.policy, retriever=self.retriever, protocol=PROTOCOL, tokenizer=self.tokenizer
        )
        # The reward is exact match with a golden answer, 1 or 0.
        answers = {example.id: example.golden_answers for example in examples}
        scored = [score_trajectory(t, answers[t.example_id]) for t in trajectories]
        return [Group(e.id, tuple(scored[i * group : (i + 1) * group])) for i, e in enumerate(examples)]


# ---- the update: a batch in, new weights out


def make_minibatches(model: torch.nn.Module, groups: list[Group]) -> list[TokenBatch]:
    """The rollouts with their advantages, dealt to the optimizer steps, with log-probs under the policy as it is now.

    These old log-probs are computed on the very tensors of the update. On other shapes they would be rounded otherwise,
    and the penalty would see displacement where there is none.
    """
    batch = TokenBatch.from_trajectories(groups, pad_token_id=0)
    advantages = group_advantages(batch.rewards, batch.group_ids, valid=batch.valid)  # (r - mean) / std of the group
    batch = replace(batch, advantages=advantages)
    batch = batch.select(batch.loss_mask.any(-1))  # a rollout whose searches failed has nothing to learn from
    minibatches = [batch.select(rows).trim() for rows in torch.randperm(len(batch)).chunk(OPTIMIZER_STEPS)]
    with torch.no_grad():
        return [
            replace(mini, old_logprobs=token_logprobs(model, mini.token_ids, mini.loss_mask)[0]) for mini in minibatches
        ]


def loss_of(model: torch.nn.Module, mini: TokenBatch) -> tuple[torch.Tensor, float]:
    """The loss of a mini-batch; and the share of the tokens to be preserved that have become less likely."""
    logprobs = token_logprobs(model, mini.token_ids, mini.loss_mask).logprobs  # [B, T], 0 outside the loss mask
    arguments = (logprobs, mini.old_logprobs, mini.advantages, mini.loss_mask)
    policy = clipped_policy_loss(*arguments)
    penalty = llds_penalty(*arguments, action_ids=mini.action_ids, gate="action")
    preserved = preserved_mask(mini.advantages, mini.loss_mask)
    active = (penalty > 0)[preserved].float().mean().item() if preserved.any() else 0.0
    return reduce_loss(policy + COEF * penalty, mini.loss_mask, mode="token-mean"), active


# ---- the loop


def train(path: str, *, steps: int = 40, questions: int = QUESTIONS, world: World | None = None) -> Iterator[float]:
    """Yields the mean reward of each rollout batch. `world` is the one the model was warm-started in."""
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)
    model.eval()  # no dropout: old equals new
    world = world or build_world()
    rollouts = Rollouts(model, tokenizer, world)
    sampler = QuestionOrder([question.example for question in world.questions["train"]], seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(steps):
        for parameters in optimizer.param_groups:
            parameters["lr"] = LEARNING_RATE * min(1.0, (step + 1) / (WARMUP + 1))
        groups = rollouts.sample(sampler.next(questions), GROUP, seed=step)
        everyone = [t for group in groups for t in group.trajectories]
        active = []
        for mini in make_minibatches(model, groups):
            loss, share = loss_of(model, mini)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            active.append(share)
        reward = sum(t.reward or 0.0 for t in everyone) / len(everyone)
        print(
            f"step {step + 1:3d}  reward {reward:.3f}  searches {sum(t.searches for t in everyone) / len(everyone):.2f}"
            f"  mixed groups {sum(group.mixed for group in groups) / len(groups):.2f}"
            f"  preserved tokens less likely: first mini-batch {active[0]:.2f}, last {active[-1]:.2f}"
        )
        yield reward


if __name__ == "__main__":
    torch.set_num_threads(1)
    for _ in train(sys.argv[1]):
        pass
