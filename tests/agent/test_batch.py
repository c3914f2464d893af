from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Status, Trajectory, Turn
from holdfast.model.sampling import SamplingMask

PER_TOKEN = ("token_ids", "attention_mask", "loss_mask", "action_ids", "answer_mask", "query_mask", "rollout_logprobs")
OPTIONAL = (
    *("old_logprobs", "old_entropy", "ref_logprobs", "anchor_logprobs", "sampler_logprobs"),
    *("policy_weights", "log_mass", "old_log_mass"),
)


def episode(*lengths, reward=0.0, em=0.0, status=Status.OK, prompt=(1, 2), first=10):
    """One turn for each (tokens, observation) pair of lengths; the last token of the last turn is the answer."""
    turns, token = [], first
    for k, (n, observed) in enumerate(lengths):
        last = k == len(lengths) - 1
        turns.append(
            Turn(
                tokens=tuple(range(token, token + n)),
                logprobs=tuple(-0.5 * (j + 1) for j in range(n)),
                observation=tuple(range(token + n, token + n + observed)),
                action=Answer("x") if last else Search("q"),
                answer_span=(n - 1, n) if last else None,
            )
        )
        token += n + observed
    return Trajectory(
        example_id="world/train/1",
        prompt=prompt,
        turns=tuple(turns),
        reward=reward,
        reward_parts={"em": em},
        status=status,
    )


LONG = episode((2, 3), (1, 0), (3, 0), reward=1.0, em=1.0)
SHORT = episode((1, 0), reward=0.5, first=50)
FAILED = episode((2, 0), reward=None, status=Status.RETRIEVAL_FAILED, first=70)
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
            want = [1] * len(t.token_ids) if name == "attention_mask" else list(getattr(t, name))
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
        (episode((1, 0), prompt=()), "empty prompt"),
        (
            dataclasses.replace(SHORT, turns=(dataclasses.replace(SHORT.turns[0], logprobs=(-1.0, -1.0)),)),
            "turn 1: 1 tokens but 2 log-probs",
        ),
        (
            dataclasses.replace(SHORT, turns=(dataclasses.replace(SHORT.turns[0], tokens=None, logprobs=None),)),
            "turns without token ids",
        ),
    ],
)
def test_trajectories_that_cannot_be_trained_on_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        TokenBatch.from_trajectories([Group("g", (LONG, bad))], pad_token_id=0)


@pytest.mark.parametrize("groups", [[], [Group("g", ())]])
def test_nothing_to_batch_is_refused(groups):
    with pytest.raises(ValueError, match="no trajectories"):
        TokenBatch.from_trajectories(groups, pad_token_id=0)


def assert_rows(part, whole, rows):
    for f in dataclasses.fields(TokenBatch):
        got, want = getattr(part, f.name), getattr(whole, f.name)
        if f.name == "sampling_mask":
            assert [row.tolist() for row in got.rows] == [want.rows[row].tolist() for row in rows]
            continue
        assert torch.equal(got.nan_to_num(-7), want[rows].nan_to_num(-7)), f.name


def test_every_field_travels_through_select_split_trim_and_to(batch):
    assert_rows(batch.select([2, 0]), batch, [2, 0])
    assert_rows(batch.select(torch.tensor([True, False, True])), batch, [0, 2])
    assert_rows(batch.select([]), batch, [])
    assert [len(part) for part in batch.split(2)] == [2, 1]
    assert_rows(batch.split(2)[1], batch, [2])
    assert_rows(batch.split([[2, 0], [1]])[0], batch, [2, 0])
    assert_rows(batch.to("cpu"), batch, [0, 1, 2])
    moved = batch.to("meta")
    tensors = [getattr(moved, f.name) for f in dataclasses.fields(TokenBatch) if f.name != "sampling_mask"]
    assert all(tensor.device.type == "meta" for tensor in (*tensors, *moved.sampling_mask.rows))


def test_absent_fields_stay_absent(batch):
    bare = dataclasses.replace(batch, old_logprobs=None)
    assert bare.select([0]).old_logprobs is None and bare.split(1)[0].ref_logprobs is not None


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


@pytest.mark.parametrize("parts", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], [0]], [[0, 1, 3]]])
def test_split_refuses_to_skip_or_repeat_rows(batch, parts):
    with pytest.raises(ValueError, match="each of the 3 rows once"):
        batch.split(parts)


def test_split_refuses_an_empty_size(batch):
    with pytest.raises(ValueError, match="at least one row"):
        batch.split(0)


def test_the_mask_cannot_be_left_out(batch):
    values = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.name != "loss_mask"}
    with pytest.raises(TypeError, match="loss_mask"):
        TokenBatch(**values)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"loss_mask": torch.zeros(3, 11)}, TypeError, "loss_mask must be bool"),
        ({"loss_mask": torch.zeros(3, 4).bool()}, ValueError, r"loss_mask has shape \[3, 4\]"),
        ({"advantages": torch.zeros(3)}, ValueError, r"advantages has shape \[3\].*\[3, 1\] or \[3, 11\]"),
        ({"rewards": torch.zeros(3, 1)}, ValueError, r"rewards has shape \[3, 1\]"),
        ({"rewards": torch.tensor(1.0)}, ValueError, r"rewards has shape \[\]"),
        ({"old_logprobs": torch.zeros(3, 1)}, ValueError, "old_logprobs has shape"),
        ({"group_ids": torch.zeros(3)}, TypeError, "group_ids must be integer"),
        ({"rollout_logprobs": torch.zeros(3, 11).long()}, TypeError, "rollout_logprobs must be floating point"),
        ({"sampling_mask": SamplingMask(())}, ValueError, "sampling_mask has 0 rows, but this batch needs 3"),
        ({"token_ids": torch.zeros(11).long()}, ValueError, r"token_ids must have shape \[B, T\]"),
    ],
)
def test_fields_that_do_not_fit_are_refused(batch, change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(batch, **change)
