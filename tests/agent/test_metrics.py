"""Metrics of a step against numbers worked out by hand, and what is absent when there is nothing to say."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics.control import ControlTokens, control_metrics
from holdfast.agent.metrics.explanations import (
    centering_metrics,
    mean_advantages,
    negative_metrics,
    observation_metrics,
)
from holdfast.agent.metrics.rollouts import (
    displacement_metrics,
    likelihood_metrics,
    likelihood_rows,
    repetition,
    rollout_metrics,
    sampler_metrics,
)
from holdfast.agent.protocol import CLEAN, parse_action
from holdfast.agent.trajectory import Action, Answer, Group, Invalid, Search, Status, Trajectory, Turn
from holdfast.model.sampler.sampling import SamplingMask
from holdfast.model.text.tokens import decode, encode
from holdfast.tasks.world.model import build_tokenizer


def turn(action: Action, said: int, heard: int = 0, **more: object) -> Turn:
    return Turn(
        tokens=tuple(range(2, 2 + said)),
        logprobs=(-1.0,) * said,
        observation=(9,) * heard,
        action=action,
        **more,  # type: ignore[arg-type]
    )


def rollout(*turns: Turn, reward: float | None = 0.0, em: float = 0.0, f1: float = 0.0, **more: object) -> Trajectory:
    parts = {} if reward is None else {"em": em, "f1": f1}
    return Trajectory(example_id="q", prompt=(1,), turns=turns, reward=reward, reward_parts=parts, **more)  # type: ignore[arg-type]


RIGHT = rollout(turn(Search("a"), 3, 2, hits=("d1",)), turn(Answer("x"), 2), reward=1.0, em=1.0, f1=1.0)
WRONG_LATER = rollout(
    turn(Search("a"), 1, 2, hits=("d1",), observation_truncated=True),
    turn(Invalid("neither"), 5, 1),
    turn(Search("b"), 1),
    status=Status.TRUNCATED,
    f1=0.5,
)
OUTAGE = rollout(turn(Search("c"), 7), reward=None, status=Status.RETRIEVAL_FAILED)
WRONG_AT_ONCE = rollout(turn(Answer("y"), 4))
FOUND_NOTHING = rollout(turn(Search("a"), 2, 1), turn(Answer("z"), 1))
GROUPS = [Group("q1", (RIGHT, WRONG_LATER, OUTAGE)), Group("q2", (WRONG_AT_ONCE, FOUND_NOTHING))]


def test_rollout_metrics() -> None:
    assert rollout_metrics(GROUPS) == pytest.approx(
        {
            "reward/mean": 1 / 4,  # the outage is in no mean
            "reward/em": 1 / 4,
            "reward/f1": 1.5 / 4,
            "rollout/length": (5 + 7 + 4 + 3) / 4,
            "rollout/searches": (1 + 2 + 0 + 1) / 4,
            "rollout/invalid_fraction": 1 / 8,  # of 2 + 3 + 1 + 2 turns
            "rollout/truncated_fraction": 1 / 4,
            "rollout/failed_fraction": 1 / 5,
            "rollout/answered_fraction": 3 / 4,
            "retrieval/empty_fraction": 1 / 3,  # of the searches that came back: a with d1 twice, a with nothing
            "rollout/truncated_observation_fraction": 1 / 4,  # of the turns that heard something
            "rollout/first_action_match_fraction": 1.0,  # q1: they began alike; q2 has none correct
            "rollout/mixed_group_fraction": 1 / 2,
            "sampler/mask_mass": 1.0,
            "retrieval/duplicate_fraction": 1 - 2 / 4,  # a, a, b, a
        }
    )


def repeated_by_pairs(actions: list[tuple[int, ...]], length: int) -> float | None:
    """Each place beside every earlier place, token by token."""
    places = [(k, i) for k, ids in enumerate(actions) for i in range(len(ids) - length + 1)]
    repeats = sum(
        any(all(actions[k][i + d] == actions[j][h + d] for d in range(length)) for j, h in places[:n])
        for n, (k, i) in enumerate(places)
    )
    return repeats / len(places) if places else None


@pytest.mark.parametrize("seed", range(8))
def test_repetition(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    actions = [tuple(torch.randint(2, (9,), generator=draw).tolist()) for _ in range(3)]
    for length in (1, 2, 3, 5, 9, 10):
        assert repetition(actions, length) == repeated_by_pairs(actions, length)


def test_repetition_is_of_sampled_tokens_within_an_action() -> None:
    """Observations do not count, nor what spans one; a repeated search does, and failed rollouts do not."""
    search = Turn(tokens=tuple(range(12)), logprobs=(-1.0,) * 12, observation=(9,) * 50, action=Search("a"))
    half = Turn(tokens=tuple(range(6)), logprobs=(-1.0,) * 6, observation=(9,) * 50, action=Search("a"))

    def of(*rollouts: Trajectory) -> float | None:
        return rollout_metrics([Group("q", rollouts)]).get("rollout/repetition")

    assert of(rollout(search, search, search)) == 2 / 3
    assert of(rollout(search)) == 0.0
    assert of(rollout(half, half, half, half)) is None  # no action has an n-gram
    failed = rollout(search, search, status=Status.RETRIEVAL_FAILED)
    assert of(rollout(search, search), rollout(search), rollout(half), failed) == (1 / 2 + 0) / 2


def test_a_first_search_that_found_nothing_matches_nothing() -> None:
    lucky = replace(FOUND_NOTHING, reward=1.0, reward_parts={"em": 1.0, "f1": 1.0})
    assert "rollout/first_action_match_fraction" not in rollout_metrics([Group("q", (lucky, FOUND_NOTHING))])
    metrics = rollout_metrics([Group("q", (RIGHT, FOUND_NOTHING, WRONG_LATER))])
    assert metrics["rollout/first_action_match_fraction"] == 1 / 2


def test_an_outage_has_no_reward() -> None:
    """Absent, not 0: nobody may take it for a collapse."""
    metrics = rollout_metrics([Group("q", (OUTAGE, OUTAGE))])
    assert metrics == {"rollout/failed_fraction": 1.0, "sampler/mask_mass": 1.0}
    mixed = rollout_metrics([Group("q", (RIGHT, WRONG_AT_ONCE)), Group("p", (OUTAGE, OUTAGE))])
    assert mixed["rollout/mixed_group_fraction"] == 1.0


def a_batch() -> TokenBatch:
    batch = TokenBatch.from_trajectories([Group("q", (RIGHT, WRONG_LATER, OUTAGE))], pad_token_id=0)
    old = torch.zeros_like(batch.rollout_logprobs)
    old[0][batch.action_ids[0] == 1] = torch.tensor([-1.0, -2.0, -3.0])
    old[0][batch.action_ids[0] == 2] = torch.tensor([-4.0, -5.0])
    old[1][batch.action_ids[1] == 1] = -0.5
    old[1][batch.action_ids[1] == 2] = -1.5
    old[1][batch.action_ids[1] == 3] = -2.5
    return replace(batch, old_logprobs=old, advantages=torch.tensor([[1.0], [-0.5], [0.0]]))


def likelihoods(batch: TokenBatch) -> dict[str, float]:
    assert batch.old_logprobs is not None
    rows = likelihood_rows(batch.old_logprobs, batch.loss_mask, batch.action_ids)
    return likelihood_metrics(rows, batch.correct)


def test_likelihood_metrics() -> None:
    assert likelihoods(a_batch()) == pytest.approx(
        {
            "likelihood/correct": -(1 + 2 + 3 + 4 + 5) / 5,
            "likelihood/correct/action_1": -2.0,
            "likelihood/correct/action_2": -4.5,
            "likelihood/incorrect": -(0.5 + 5 * 1.5 + 2.5) / 7,
            "likelihood/incorrect/action_1": -0.5,
            "likelihood/incorrect/action_2": -1.5,
            "likelihood/incorrect/action_3": -2.5,
        }
    )


def test_likelihood_is_a_mean_of_rollouts_not_of_tokens() -> None:
    short = rollout(turn(Answer("x"), 1), reward=1.0, em=1.0, f1=1.0)
    batch = TokenBatch.from_trajectories([Group("q", (RIGHT, short))], pad_token_id=0)
    old = torch.where(batch.loss_mask, torch.tensor([[-1.0], [-3.0]]), 0.0)
    assert likelihoods(replace(batch, old_logprobs=old))["likelihood/correct"] == -2.0
    assert "likelihood/incorrect" not in likelihoods(replace(batch, old_logprobs=old))


def test_sampler_gap_of_a_truncated_sampler_counts_the_mass_it_kept() -> None:
    """log q = log π − log mass: with log-probs that agree the gap is −log(0.8) on two of the three tokens."""
    cut = turn(Answer("x"), 3, mask_mass=(0.8, 1.0, 0.8))
    group = Group("q", (rollout(cut),))
    batch = TokenBatch.from_trajectories([group], pad_token_id=0)
    batch = replace(batch, old_logprobs=batch.rollout_logprobs)
    assert sampler_metrics([batch], [group]) == {"sampler/logprob_gap": pytest.approx(-2 * math.log(0.8) / 3)}
    # Where the old log-probs of the loss are over what was kept, the two agree.
    kept = batch.rollout_logprobs.clone()
    kept[batch.loss_mask] -= torch.tensor(cut.mask_mass).log()
    masked = replace(batch, old_logprobs=kept, sampling_mask=SamplingMask((torch.zeros(3, 5, dtype=torch.int32),)))
    found = sampler_metrics([masked], [group])
    assert found == {"sampler/logprob_gap": pytest.approx(0.0, abs=1e-6), "sampler/mask_in_loss": 1.0}
    assert rollout_metrics([group])["sampler/mask_mass"] == pytest.approx(2.6 / 3)


def test_displacement_metrics() -> None:
    nan = float("nan")  # a rollout without a second action
    rows = [[0.2, 0.3, 0.1], [-0.1, -0.1, nan], [0.5, 0.6, -0.2], [-0.3, -0.3, nan]]
    metrics = displacement_metrics(torch.tensor(rows), torch.tensor([True, True, True, False]))
    assert metrics == pytest.approx(
        {
            "displacement/rollouts": 4,
            "displacement/correct": 0.2,
            "displacement/correct/action_1": 0.8 / 3,
            "displacement/correct/action_2": -0.05,
            "displacement/fraction": 1 / 3,
            "displacement/action_fraction": 2 / 5,
            "displacement/incorrect": -0.3,
            "displacement/incorrect/action_1": -0.3,
        }
    )


# ---- measures of the rival explanations against loops over plain numbers


def a_group(seed: int, *, cut: bool) -> tuple[list[Group], TokenBatch]:
    """Three questions of four rollouts of one to three actions, one of which failed; and their batch."""
    g = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def turn(*, last: bool) -> Turn:
        n = number(1, 5)
        masses = tuple((0.5 + torch.rand(n, generator=g) / 2).tolist()) if cut else None
        return Turn(
            tokens=(7,) * n,
            logprobs=(-1.0,) * n,
            observation=() if last else (9,) * number(1, 3),
            action=Answer("x") if last else Search("q"),
            mask_mass=masses,
        )

    def rollout(failed: bool) -> Trajectory:
        actions, right = number(1, 3), float(number(0, 1))
        turns = tuple(turn(last=k == actions - 1) for k in range(actions))
        status, reward = (Status.ERROR, None) if failed else (Status.OK, right)
        return Trajectory(
            example_id="q", prompt=(1, 2), turns=turns, status=status, reward=reward, reward_parts={"em": right}
        )

    groups = [Group(f"q{k}", tuple(rollout(failed=k == 1 and n == 2) for n in range(4))) for k in range(3)]
    batch = TokenBatch.from_trajectories(groups, pad_token_id=0)
    batch = batch.select(batch.loss_mask.any(-1))
    shape = batch.loss_mask.shape
    return groups, replace(
        batch,
        advantages=torch.randn(shape[0], 1, generator=g, dtype=torch.float64),
        old_logprobs=-0.7 - torch.rand(shape, generator=g, dtype=torch.float64),
        old_entropy=torch.rand(shape, generator=g, dtype=torch.float64),
    )


def sampled_places(batch: TokenBatch, row: int) -> list[int]:
    return [t for t in range(batch.loss_mask.shape[1]) if batch.loss_mask[row, t]]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cut", [True, False])
def test_centering_against_loops(seed: int, cut: bool) -> None:
    groups, batch = a_group(seed, cut=cut)
    learned = [t for group in groups for t in group.trajectories if not t.status.is_failure]
    cells: dict[tuple[int, int], list[float]] = {}
    tokens = []
    for row, trajectory in enumerate(learned):
        masses = [mass for turn in trajectory.turns for mass in turn.mask_mass or [1.0] * len(turn.tokens or ())]
        for t, mass in zip(sampled_places(batch, row), masses, strict=True):
            cell = (int(batch.group_ids[row]), int(batch.action_ids[row, t]))
            cells.setdefault(cell, []).append(float(batch.advantages[row]))
            assert batch.old_logprobs is not None
            tokens.append((cell, float(batch.advantages[row]), mass, math.exp(float(batch.old_logprobs[row, t]))))
    drift = [2 * abs(fmean(cells[cell])) * (1 - mass) for cell, _, mass, _ in tokens]
    covariance = [2 * abs(a - fmean(cells[cell])) * (1 - min(p / mass, 1)) for cell, a, mass, p in tokens]
    found = centering_metrics(batch, groups)
    assert found["centering/drift"] == pytest.approx(fmean(drift), abs=1e-6)
    assert found["centering/covariance"] == pytest.approx(fmean(covariance), abs=1e-6)
    assert (found["centering/drift"] > 0) is cut
    by_token = replace(batch, advantages=batch.advantages.expand(batch.loss_mask.shape))
    assert centering_metrics(by_token, groups) == pytest.approx(found, abs=1e-12)
    means = mean_advantages(batch.advantages, batch.group_ids, batch.action_ids, batch.loss_mask)
    assert means[0, sampled_places(batch, 0)[0]].item() == pytest.approx(fmean(cells[0, 1]), abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_before_and_after_the_first_observation_against_loops(seed: int) -> None:
    _, batch = a_group(seed, cut=False)
    assert batch.old_logprobs is not None and batch.old_entropy is not None
    expected = {}
    for name, values in (("entropy", batch.old_entropy), ("likelihood", batch.old_logprobs)):
        for part, first in (("before", True), ("after", False)):
            expected[f"{name}/{part}_observation"] = fmean(
                float(values[row, t])
                for row in range(len(batch))
                for t in sampled_places(batch, row)
                if (int(batch.action_ids[row, t]) == 1) is first
            )
    assert observation_metrics(batch) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean"])
def test_the_push_on_long_unlikely_rollouts_against_loops(seed: int, weighted: bool, reduction: str) -> None:
    _, batch = a_group(seed, cut=False)
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch.loss_mask.shape, generator=g, dtype=torch.float64) if weighted else None
    excluded = torch.rand(batch.loss_mask.shape, generator=g) < 0.1
    batch = replace(batch, policy_weights=weights, excluded=excluded, correct=torch.arange(len(batch)) % 3 == 0)
    assert batch.old_logprobs is not None
    lengths, logprobs, push = [], [], []
    for row in range(len(batch)):
        places = [t for t in sampled_places(batch, row) if not excluded[row, t]]
        values = [float(batch.old_logprobs[row, t]) for t in places]
        lengths.append(len(places))
        logprobs.append(fmean(values) if values else 0.0)
        push.append(
            sum(
                max(-float(batch.advantages[row]), 0) * (1 if weights is None else float(weights[row, t]))
                for t in places
            )
        )
    here = [
        not batch.correct[row] and lengths[row] > median(lengths) and logprobs[row] < median(logprobs)
        for row in range(len(batch))
    ]
    per = [x / max(n, 1) for x, n in zip(push, lengths, strict=True)]
    own = per if reduction == "seq-mean-token-mean" else push

    def share(values: list[float]) -> float:
        return sum(x for x, mine in zip(values, here, strict=True) if mine) / sum(values)

    parts = [range(start, min(start + 4, len(batch))) for start in range(0, len(batch), 4)]
    found = negative_metrics([batch.select(part).trim() for part in parts], reduction=reduction)
    assert found == pytest.approx(
        {
            "negative/long_unlikely_share": share(own),
            "negative/long_unlikely_share_by_response": share(per),
            "negative/long_unlikely_rollouts": share([float(x > 0) for x in push]),
        },
        abs=1e-6,
    )


# ---- control tokens out of place


CONTROL_TEXTS = [
    "<think> Who? </think>\n<search> lake </search>\n\n",
    "<answer> town </answer>\n",
    "<documents> lake",
] * 20
TAGS = CLEAN.control_tags(None)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(CONTROL_TEXTS)


def said(text: str, tokenizer: Any) -> Turn:
    ids = tuple(encode(tokenizer, text))
    return Turn(tokens=ids, logprobs=(-1.0,) * len(ids), action=parse_action(text, CLEAN), text=text)


@pytest.mark.parametrize("seed", range(5))
def test_probabilities_against_loops(tokenizer: Any, seed: int) -> None:
    end = tokenizer.eos_token_id
    texts = ("Who? <think> lake </think>\n<search> lake town </search>\n\n", "so <answer> town", "lake town")
    rollouts = [Trajectory(example_id="q", prompt=(1,), turns=(said(text, tokenizer),)) for text in texts]
    mask = ControlTokens(TAGS, tokenizer, [end]).misplaced(rollouts)
    g = torch.Generator().manual_seed(seed)
    for text, rollout, row in zip(texts, rollouts, mask.rows, strict=True):
        tokens = rollout.turns[0].tokens or ()
        logits = torch.randn(len(tokens), len(tokenizer), generator=g, dtype=torch.float64)
        got = (SamplingMask((row,)).logsumexp(logits) - logits.logsumexp(-1)).exp()
        for place in range(len(tokens)):
            before = decode(tokenizer, tokens[:place])
            inside = any(before.count(f"<{tag}>") > before.count(f"</{tag}>") for tag in ("think", "search", "answer"))
            opening, closing = ("<search>", "<answer>", "<think>"), ("</search>", "</answer>", "</think>")
            wrong, right = (opening, closing) if inside else (closing, opening)
            wrong += ("<information>", "</information>")
            first = [{begin(tokenizer, x) for tag in tags for x in (tag, f" {tag}")} for tags in (wrong, right)]
            total = sum(math.exp(float(logits[place, v])) for v in range(len(tokenizer)))
            expected = sum(math.exp(float(logits[place, v])) for v in {*(first[0] - first[1]), end}) / total
            assert got[place].item() == pytest.approx(expected, abs=1e-6), (text, before)


def begin(tokenizer: Any, tag: str) -> int:
    """The first token that is not a space."""
    ids = encode(tokenizer, tag)
    return ids[1] if decode(tokenizer, ids[:1]) == " " else ids[0]


def test_mean_and_percentile() -> None:
    g = torch.Generator().manual_seed(0)
    values, mask = torch.rand(6, 50, generator=g, dtype=torch.float64), torch.rand(6, 50, generator=g) < 0.9
    kept = sorted(float(values[i, j]) for i in range(6) for j in range(50) if mask[i, j])
    found = control_metrics(values.log(), mask)
    assert found["control/misplaced_mean"] == pytest.approx(sum(kept) / len(kept), abs=1e-6)
    assert found["control/misplaced_p99"] == pytest.approx(kept[math.ceil(0.99 * len(kept)) - 1], abs=1e-6)
    assert control_metrics(values.log(), torch.zeros_like(mask)) == {}
