"""What the rollout's key/value cache and its missing turn barrier are worth, in sampled tokens per second.

    python benchmarks/rollout.py
    python benchmarks/rollout.py --turns 3 4 5 6 --json rollout.json
    python benchmarks/rollout.py --model PATH --device cuda --autocast --questions 32 --group 8

Three arms run the same rollouts on the same model, interleaved: prompts of a few dozen tokens shared by a group, turns
of prescribed lengths, an observation after every turn but the last. No turn ends by itself, so all arms sample exactly
the same number of tokens.

    loop      holdfast's rollout loop
    forget    the same loop, with every cache dropped at the end of a turn: history is prefilled again
    generate  the usual turn-by-turn batch: pad on the left, `model.generate`, cut, append, next turn. It reports no
              log-probs (the other arms do), and its rows wait for the longest turn of the batch

What the cache can save is the history: with T turns, `loop` computes an observation once, `forget` up to T - 1 times.
The column "computed" counts tokens fed per token sampled, padding apart; its ratio bounds the speed-up where feeding
tokens dominates. With one thread (OMP_NUM_THREADS=1) on a CPU, seconds are the process's CPU seconds, which other jobs
on the machine hardly disturb; else they are wall-clock seconds. Needs no network. One free core needs about two minutes
for the defaults.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from holdfast.agent.agent import Task, run_rollouts
from holdfast.agent.protocol import CLEAN, SearchProtocol
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Completion, Request
from measuring import median_interval, table, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Rollouts whose lengths are all prescribed."""

    tasks: tuple[Task, ...]
    lengths: dict[str, tuple[int, ...]]
    """Task id -> sampled tokens of each turn."""
    protocol: SearchProtocol
    """Its note on invalid turns is the observation: a random model neither searches nor answers."""
    feedback: tuple[int, ...]

    @property
    def sampled(self) -> int:
        return sum(map(sum, self.lengths.values()))

    def computed(self, *, cached: bool) -> int:
        """Tokens that go through the model when each is computed once, or once a turn."""
        total = 0
        for task in self.tasks:
            context = len(task.prompt)
            for turn, new in enumerate(self.lengths[task.id]):
                fed = context if turn == 0 or not cached else len(self.feedback) + 1
                total += fed + new - 1
                context += new + len(self.feedback)
        return total


def make_work(options: argparse.Namespace, turns: int, tokenizer: Any) -> Work:
    rng = random.Random(f"{options.seed} {turns}")
    vocabulary = len(tokenizer)
    low, high = (round(options.turn_tokens * (1 + sign * options.spread)) for sign in (-1, 1))
    tasks, lengths = [], {}
    for question in range(options.questions):
        prompt = tuple(rng.randrange(2, vocabulary) for _ in range(rng.randint(30, 60)))
        for sample in range(options.group):
            task = Task(id=f"{question}/{sample}", example_id=str(question), prompt=prompt, seed=rng.randrange(2**32))
            tasks.append(task)
            lengths[task.id] = tuple(rng.randint(max(low, 1), high) for _ in range(turns))
    words = tokenizer.decode([rng.randrange(300, vocabulary) for _ in range(options.observation_tokens)])
    protocol = replace(
        CLEAN,
        invalid_note=" ".join([words] * 3),  # more than enough; cut to the observation's budget
        max_turns=turns,
        max_turn_tokens=high,
        max_observation_tokens=options.observation_tokens,
        max_total_tokens=60 + turns * (high + options.observation_tokens),
    )
    feedback = protocol.observe(None, tokenizer).token_ids
    assert len(feedback) == options.observation_tokens
    return Work(tasks=tuple(tasks), lengths=lengths, protocol=protocol, feedback=feedback)


class PrescribedLengths:
    """A policy whose turns are as long as the work says; with `forget`, a finished turn's cache is dropped."""

    def __init__(self, policy: HFPolicy, work: Work, *, forget: bool) -> None:
        self._policy, self._forget = policy, forget
        self._left = {id: list(lengths) for id, lengths in work.lengths.items()}

    def submit(self, requests: Sequence[Request]) -> None:
        self._policy.submit([replace(request, max_new_tokens=self._left[request.id].pop(0)) for request in requests])

    def poll(self) -> list[Completion]:
        completions = self._policy.poll()
        if self._forget:
            self._policy.release([completion.id for completion in completions])
        return completions

    def release(self, ids: Iterable[str]) -> None:
        self._policy.release(ids)


class NoSearch:
    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[list[Any]]:
        raise AssertionError(f"a random model closed a search tag: {queries}; take another --seed")


def run_loop(policy: HFPolicy, work: Work, tokenizer: Any, *, forget: bool) -> int:
    """Sampled tokens."""
    trajectories = run_rollouts(
        work.tasks,
        policy=PrescribedLengths(policy, work, forget=forget),
        retriever=NoSearch(),
        protocol=work.protocol,
        tokenizer=tokenizer,
    )
    return sum(len(turn.tokens or ()) for trajectory in trajectories for turn in trajectory.turns)


@torch.inference_mode()
def run_generate(policy: HFPolicy, work: Work, tokenizer: Any) -> int:
    """Sampled tokens that are kept. The model, its device and its dtype are the policy's."""
    contexts = {task.id: list(task.prompt) for task in work.tasks}
    kept = 0
    for turn in range(work.protocol.max_turns):
        width, longest = max(map(len, contexts.values())), max(lengths[turn] for lengths in work.lengths.values())
        ids = [[0] * (width - len(context)) + context for context in contexts.values()]
        mask = [[0] * (width - len(context)) + [1] * len(context) for context in contexts.values()]
        with torch.autocast(policy.device.type, policy.autocast_dtype, enabled=policy.autocast_dtype is not None):
            generated = policy.model.generate(
                input_ids=torch.tensor(ids, device=policy.device),
                attention_mask=torch.tensor(mask, device=policy.device),
                max_new_tokens=longest,
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                pad_token_id=0,
                eos_token_id=None,
            )
        for (id, context), row in zip(contexts.items(), generated[:, width:].tolist(), strict=True):
            new = row[: work.lengths[id][turn]]
            context += [*new, *work.feedback]
            kept += len(new)
    return kept


def words() -> tuple[str, ...]:
    """Made-up ones, always the same."""
    rng = random.Random("lexicon")
    return tuple("".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3)) for _ in range(700))


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """A model and its tokenizer, neither of which knows an end-of-sequence token."""
    if options.model:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
        )
    else:
        from holdfast.tasks.world.model import build_model, build_tokenizer

        tokenizer = build_tokenizer([" ".join(words())], words())
        model = build_model(tokenizer, hidden=options.hidden, layers=options.layers)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = model.generation_config.eos_token_id = model.config.eos_token_id = None
    return model.eval(), tokenizer


def seconds_of(arm: Callable[[], int], expected: int, clock: Callable[[], float]) -> float:
    started = clock()
    sampled = arm()
    elapsed = clock() - started
    assert sampled == expected, f"{sampled} tokens instead of {expected}"
    return elapsed


def compare(policy: HFPolicy, tokenizer: Any, work: Work, repeats: int) -> dict[str, list[float]]:
    """Seconds of every repeat of each arm; the arms take turns, each first as often as the others."""
    arms: dict[str, Callable[[], int]] = {
        "loop": lambda: run_loop(policy, work, tokenizer, forget=False),
        "forget": lambda: run_loop(policy, work, tokenizer, forget=True),
        "generate": lambda: run_generate(policy, work, tokenizer),
    }
    alone = policy.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for name in arms:
        seconds_of(arms[name], work.sampled, clock)  # warm-up
    for repeat in range(repeats):
        for name in [*arms, *arms][repeat % 3 : repeat % 3 + 3]:
            seconds[name].append(seconds_of(arms[name], work.sampled, clock))
    return seconds


def report(work: Work, seconds: dict[str, list[float]]) -> tuple[str, dict[str, Any]]:
    rows, results = [], {}
    for name, times in seconds.items():
        speed = work.sampled / median_interval(times)[0]
        ratio, low, high = median_interval([t / ours for t, ours in zip(times, seconds["loop"], strict=True)])
        computed = work.computed(cached=name == "loop") / work.sampled
        rows.append([name, f"{speed:.0f}", f"{computed:.1f}", f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"])
        results[name] = {
            "tokens_per_second": speed,
            "computed_per_sampled": computed,
            "loop_is_faster_by": ratio,
            "interval": [low, high],
            "seconds": times,
        }
    return table(["arm", "tokens/s", "computed", "loop is faster by", "interval"], rows), results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[3, 5], help="model turns of a rollout; one table each")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--group", type=int, default=4, help="rollouts per question")
    parser.add_argument("--turn-tokens", type=int, default=32, help="sampled tokens of a turn, on average")
    parser.add_argument("--spread", type=float, default=0.5, help="a turn has 1 ± SPREAD times as many; 0: all equal")
    parser.add_argument("--observation-tokens", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--model", help="a directory or hub id instead of a random tiny model")
    parser.add_argument("--device", help="where the model goes; default: the CPU")
    parser.add_argument("--autocast", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write the raw numbers there")
    options = parser.parse_args()

    model, tokenizer = load(options)
    dtype = torch.bfloat16 if options.autocast else None
    policy = HFPolicy(model.to(options.device), tokenizer, autocast_dtype=dtype)
    results: dict[str, Any] = {"options": vars(options), "threads": torch.get_num_threads()}
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.2f}M parameters on {policy.device}, {torch.get_num_threads()} thread(s)")
    for turns in options.turns:
        work = make_work(options, turns, tokenizer)
        print(
            f"\n{len(work.tasks)} rollouts of {turns} turns, {work.sampled} sampled tokens, observations of "
            f"{len(work.feedback)}; median of {options.repeats}"
        )
        text, results[f"{turns} turns"] = report(work, compare(policy, tokenizer, work, options.repeats))
        print(text, flush=True)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
