"""Trajectories, batches of them, and rewards: the flat arrays say exactly what the model saw."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.rewards import PARTS, score_trajectory
from holdfast.agent.trajectory import Answer, Group, Invalid, Search, Status, Trajectory, Turn
from holdfast.base.errors import ConfigError
from holdfast.model.sampler.sampling import SamplingMask


def turn(n=2, observation=(), action=None, **fields):
    return Turn(
        tokens=tuple(range(100, 100 + n)),
        logprobs=tuple(-0.5 * (k + 1) for k in range(n)),
        observation=observation,
        action=action or Search("q"),
        **fields,
    )


def trajectory(*turns, **fields):
    return Trajectory(**{"example_id": "world/train/7", "prompt": (1, 2)} | fields, turns=turns)


# prompt 1 2 | search of 2, feedback 5 6 | search of 1, no feedback | answer of 3, its last two the answer span
GOLDEN = trajectory(turn(2, observation=(5, 6)), turn(1), turn(3, action=Answer("x"), answer_span=(1, 3)))


@pytest.mark.parametrize("seed", range(20))
def test_flat_arrays_agree_with_a_walk_over_the_turns(seed):
    rng = random.Random(seed)
    turns = []
    for _ in range(rng.randint(0, 5)):
        n = rng.randint(1, 4)
        start = rng.randint(0, n)
        span = rng.choice((None, (start, rng.randint(start, n))))
        turns.append(turn(n, observation=tuple(range(rng.randint(0, 3))), answer_span=span))
    t = trajectory(*turns)

    seen = [(i, False, 0, False, 0.0) for i in t.prompt]
    for k, step in enumerate(turns, start=1):
        for j in range(len(step.tokens)):
            in_answer = step.answer_span is not None and step.answer_span[0] <= j < step.answer_span[1]
            seen.append((step.tokens[j], True, k, in_answer, step.logprobs[j]))
        seen += [(i, False, 0, False, 0.0) for i in step.observation]
    flat = list(zip(t.token_ids, t.loss_mask, t.action_ids, t.answer_mask, t.rollout_logprobs, strict=True))
    assert flat == seen
    assert len(t.token_ids) == len(t.prompt) + sum(map(len, turns))


@pytest.mark.parametrize("status", Status)
def test_only_episodes_that_say_something_about_the_policy_are_trained_on(status):
    t = dataclasses.replace(GOLDEN, status=status)
    failed = status in (Status.RETRIEVAL_FAILED, Status.ERROR)
    assert status.is_failure == failed
    assert any(t.loss_mask) != failed
    assert t.action_ids == GOLDEN.action_ids and t.token_ids == GOLDEN.token_ids


def test_answer_searches_and_correct():
    assert (GOLDEN.answer, GOLDEN.searches) == ("x", 2)
    assert trajectory(turn(1), turn(1, action=Invalid("no tag"))).answer is None
    assert trajectory().answer is None and trajectory().searches == 0
    assert trajectory(reward_parts={"em": 1.0}).correct
    assert not trajectory(reward=1.0, reward_parts={"em": 0.0, "f1": 0.9}).correct  # positive is not correct
    assert not trajectory().correct


def test_a_turn_without_token_ids_cannot_be_flattened():
    text_only = dataclasses.replace(turn(1), tokens=None, logprobs=None)
    t = trajectory(turn(1), text_only)
    with pytest.raises(ValueError, match=r"world/train/7 has turns without token ids.*cannot be trained on"):
        t.token_ids  # noqa: B018
    assert len(text_only) == 0


def test_mixed_groups_have_a_contrast_and_failures_are_none():
    def group(*rewards, failed=()):
        rows = [trajectory(reward=r) for r in rewards]
        rows += [trajectory(reward=r, status=Status.RETRIEVAL_FAILED) for r in failed]
        return Group("g", tuple(rows))

    assert group(1.0, 0.0).mixed
    assert not group(1.0, 1.0).mixed
    assert not group(1.0, failed=(0.0, None)).mixed
    assert not group().mixed


# ---- batches


PER_TOKEN = ("token_ids", "loss_mask", "action_ids", "answer_mask", "query_mask", "rollout_logprobs")
OPTIONAL = (
    *("old_logprobs", "old_entropy", "ref_logprobs", "anchor_logprobs", "sampler_logprobs"),
    *("policy_weights", "log_mass", "old_log_mass", "misplaced"),
)


ENDED = {"action": Answer("x"), "answer_span": (0, 1)}
LONG = trajectory(turn(2, (7, 8, 9)), turn(1), turn(3, **ENDED), reward=1.0, reward_parts={"em": 1.0})
SHORT = trajectory(turn(1, **ENDED), reward=0.5)
FAILED = trajectory(turn(2, **ENDED), status=Status.RETRIEVAL_FAILED)
GROUPS = [Group("world/train/1", (LONG, SHORT)), Group("other/train/1", (FAILED,))]


@pytest.fixture
def batch():
    made = TokenBatch.from_trajectories(GROUPS, pad_token_id=99)
    width = made.token_ids.shape[1]
    optional = {name: torch.randn(3, width) for name in OPTIONAL}
    ids = torch.arange(2 * int(made.loss_mask.sum()), dtype=torch.int32).view(-1, 2)
    optional["excluded"] = made.loss_mask & (torch.arange(width) % 2 == 0)
    optional["sampling_mask"] = SamplingMask(ids.split(made.loss_mask.sum(-1).tolist()))
    return dataclasses.replace(made, advantages=torch.tensor([[1.0], [-1.0], [0.0]]), **optional)


def test_rows_are_the_trajectories_padded_on_the_right():
    batch = TokenBatch.from_trajectories(GROUPS, pad_token_id=99)
    rows = [LONG, SHORT, FAILED]
    assert len(batch) == 3 and batch.lengths.tolist() == [11, 3, 4]
    fill = {"token_ids": 99}
    for name in PER_TOKEN:
        got = getattr(batch, name)
        for row, t in zip(got.tolist(), rows, strict=True):
            want = list(getattr(t, name))
            assert row == want + [fill.get(name, 0)] * (11 - len(want)), name
    assert batch.advantages.tolist() == [[0.0], [0.0], [0.0]]
    assert batch.correct.tolist() == [True, False, False]
    assert batch.group_ids.tolist() == [0, 0, 1]
    assert all(getattr(batch, name) is None for name in OPTIONAL)


def test_an_outage_is_not_a_wrong_answer():
    batch = TokenBatch.from_trajectories(GROUPS, pad_token_id=0)
    assert batch.valid.tolist() == [True, True, False]
    assert batch.rewards.tolist()[:2] == [1.0, 0.5] and math.isnan(batch.rewards[2])
    assert not batch.loss_mask[2].any() and batch.action_ids[2].any()


def test_a_question_drawn_twice_is_one_group_and_equal_indices_of_two_data_sets_are_two():
    groups = [Group(name, (SHORT,)) for name in ("nq/train/7", "hotpotqa/train/7", "nq/train/7")]
    assert TokenBatch.from_trajectories(groups, pad_token_id=0).group_ids.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dataclasses.replace(SHORT, reward=None), "has no reward; score it before batching"),
        (trajectory(turn(1), prompt=(), reward=0.0), "empty prompt"),
        (trajectory(dataclasses.replace(turn(1), logprobs=(-1.0, -1.0)), reward=0.0), "1 tokens but 2 log-probs"),
        (trajectory(dataclasses.replace(turn(1), tokens=None, logprobs=None), reward=0.0), "turns without token ids"),
        (None, "no trajectories"),
    ],
)
def test_trajectories_that_cannot_be_trained_on_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        TokenBatch.from_trajectories([] if bad is None else [Group("g", (LONG, bad))], pad_token_id=0)


def assert_rows(part, whole, rows):
    for f in dataclasses.fields(TokenBatch):
        got, want = getattr(part, f.name), getattr(whole, f.name)
        if f.name == "sampling_mask":
            assert [row.tolist() for row in got.rows] == [want.rows[row].tolist() for row in rows]
            continue
        assert torch.equal(got.nan_to_num(-7), want[rows].nan_to_num(-7)), f.name


def test_every_field_travels_through_select_trim_and_to(batch):
    assert_rows(batch.select([2, 0]), batch, [2, 0])
    assert_rows(batch.select(torch.tensor([True, False, True])), batch, [0, 2])
    assert_rows(batch.select([]), batch, [])
    assert_rows(batch.to("cpu"), batch, [0, 1, 2])
    moved = batch.to("meta")
    tensors = [getattr(moved, f.name) for f in dataclasses.fields(TokenBatch) if f.name != "sampling_mask"]
    assert all(tensor.device.type == "meta" for tensor in (*tensors, *moved.sampling_mask.rows))


def test_the_loss_reads_sampled_tokens_that_are_not_excluded(batch):
    assert torch.equal(batch.learned_mask, batch.loss_mask & ~batch.excluded)
    assert 0 < batch.learned_mask.sum() < batch.loss_mask.sum()
    assert torch.equal(dataclasses.replace(batch, excluded=None).learned_mask, batch.loss_mask)


def test_trim_drops_columns_that_are_padding_everywhere(batch):
    part = batch.select([1, 2]).trim()
    assert part.token_ids.shape == (2, 4) and part.advantages.shape == (2, 1)
    assert torch.equal(part.token_ids, batch.token_ids[1:, :4])
    assert torch.equal(part.old_logprobs, batch.old_logprobs[1:, :4])
    assert batch.trim() is batch
    per_token = dataclasses.replace(batch, advantages=torch.randn(3, 11))
    assert torch.equal(per_token.select([1]).trim().advantages, per_token.advantages[1:2, :3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": torch.zeros(3, 4).bool()}, r"loss_mask has shape \[3, 4\]"),
        ({"advantages": torch.zeros(3)}, r"advantages has shape \[3\].*\[3, 1\] or \[3, 11\]"),
        ({"sampling_mask": SamplingMask(())}, "sampling_mask has 0 rows, but this batch needs 3"),
    ],
)
def test_fields_that_do_not_fit_are_refused(batch, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(batch, **change)


# ---- reward parts of hand-made episodes


GOLDS = ("Lake Orsa", "Orsa")
ALL = {"em": 1.0, "f1": 0.5, "format": 0.25, "retrieval": 0.125}


FOUND = turn(
    action=Search("lake"), observation_text="<information>Doc 1(Title: X) The lake, Orsa.</information>", hits=("d1",)
)
MISSED = turn(action=Search("lake"), observation_text="<information>Doc 1(Title: X) Mora.</information>", hits=("d2",))


def test_parts_and_their_weighted_sum():
    # em 1, f1 1, format 1, retrieval 1: 1 + .5 + .25 + .125
    scored = score_trajectory(trajectory(FOUND, turn(action=Answer("the orsa"))), GOLDS, ALL)
    assert scored.reward_parts == {"em": 1.0, "f1": 1.0, "format": 1.0, "retrieval": 1.0}
    assert scored.reward == 1.875
    assert scored.correct
    # "Orsa town": em 0; f1 against "Orsa" 2·1/(2+1) = 2/3, against "Lake Orsa" 2·1/(2+2) = 1/2; nothing retrieved
    scored = score_trajectory(trajectory(MISSED, turn(action=Answer("Orsa town"))), GOLDS, ALL)
    assert scored.reward == pytest.approx(0.5 * 2 / 3 + 0.25)
    assert not scored.correct

    # em and f1 are recorded whatever the weights, and the default is EM
    scored = score_trajectory(trajectory(turn(action=Answer("Orsa"))), GOLDS, {"format": 0.5})
    assert scored.reward_parts == {"em": 1.0, "f1": 1.0, "format": 1.0} and scored.reward == 0.5
    assert score_trajectory(trajectory(turn(action=Answer("Orsa"))), GOLDS).reward == 1.0


def test_format_wants_every_turn_valid_and_an_answer_at_the_end():
    bad = turn(action=Invalid("neither a search nor an answer"))
    answer = turn(action=Answer("Orsa"))
    for rollout, value in [
        (trajectory(answer), 1.0),
        (trajectory(FOUND, MISSED, answer), 1.0),
        (trajectory(bad, answer), 0.0),
        (trajectory(FOUND, status=Status.TRUNCATED), 0.0),
        (trajectory(FOUND, bad, status=Status.TRUNCATED), 0.0),
        (trajectory(), 0.0),
    ]:
        assert score_trajectory(rollout, GOLDS, {"format": 1.0}).reward_parts["format"] == value


def test_thrift_is_for_correct_answers_alone():
    right, wrong = turn(action=Answer("Orsa")), turn(action=Answer("Mora"))
    for rollout, value in [
        (trajectory(right), 1.0),
        (trajectory(FOUND, right), 1.0),
        (trajectory(MISSED, MISSED, FOUND, right), 1 / 3),
        (trajectory(wrong), 0.0),
        (trajectory(FOUND, wrong), 0.0),
        (trajectory(FOUND, status=Status.TRUNCATED), 0.0),
    ]:
        assert score_trajectory(rollout, GOLDS, {"thrift": 0.1}).reward == pytest.approx(0.1 * value)


def test_only_what_the_model_answered_is_scored():
    # An answer tag in a passage, in the note after an invalid turn, or in an unfinished thought is no answer.
    quoting = turn(
        action=Search("x"), observation_text="<information><answer> Orsa </answer></information>", hits=("d",)
    )
    note = turn(action=Invalid("neither"), text="Orsa", observation_text="write <answer> Orsa </answer>")
    for turns in [(quoting,), (note,), (quoting, note)]:
        scored = score_trajectory(trajectory(*turns, status=Status.TRUNCATED), GOLDS, ALL)
        assert scored.reward_parts["em"] == scored.reward_parts["f1"] == 0.0


def test_retrieval_reads_what_the_model_saw_of_its_searches():
    weights = {"retrieval": 1.0}
    assert score_trajectory(trajectory(MISSED, FOUND), GOLDS, weights).reward == 1.0
    assert score_trajectory(trajectory(MISSED), GOLDS, weights).reward == 0.0
    # the note after an invalid turn, and the text of a search without hits, are no retrieval
    note = turn(action=Invalid("x"), observation_text="Orsa")
    nothing = turn(observation_text="<information>Orsa was not found</information>")
    assert score_trajectory(trajectory(note, nothing), GOLDS, weights).reward == 0.0
    # a golden answer of which nothing is left is not found in every passage
    assert score_trajectory(trajectory(MISSED), ("The", "Orsa"), weights).reward == 0.0


@pytest.mark.parametrize("status", [Status.RETRIEVAL_FAILED, Status.ERROR])
def test_an_outage_is_no_wrong_answer(status):
    scored = score_trajectory(trajectory(turn(action=Answer("Orsa")), status=status), GOLDS, ALL)
    assert scored.reward is None
    assert scored.reward_parts == {}
    # while a rollout that ran out of turns earns its zero
    assert score_trajectory(trajectory(MISSED, status=Status.TRUNCATED), GOLDS).reward == 0.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"fromat": 1.0}, "did you mean format"),
        ({"bleu!": 1.0}, f"the parts are {', '.join(PARTS)}"),
        ({"em": float("nan")}, "finite"),
        ({"em": 1.1e15}, r"weight em = 11\d+\.0; a weight must be a finite number, at most"),
        ({"em": 1e15, "f1": 1e15}, r"the reward of a rollout is 2e\+15"),  # advantages square it
        ({"em": 0.0, "f1": 0.0}, "every reward weight is 0"),
    ],
)
def test_weights_that_cannot_work(weights, message):
    with pytest.raises(ConfigError, match=message):
        score_trajectory(trajectory(turn(action=Answer("Orsa"))), GOLDS, weights)
