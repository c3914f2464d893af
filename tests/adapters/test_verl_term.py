"""What a loss's name and settings mean, and the series of micro-batches, where there is no verl."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.adapters import host_losses, verl_term
from holdfast.adapters.host_losses import PreservedShare, measure, preserved_counts
from holdfast.adapters.verl_losses import LOSSES, penalty_for
from holdfast.adapters.verl_term import Answers, Log, base_name, refuse_split_actions, stale_and_uncorrected
from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import LLDS, NLL, SAPO

LAST = {"penalty_answer": "last-action"}


@pytest.mark.parametrize(("name", "given", "penalty"), [
    ("holdfast_observe", {}, None),
    ("holdfast_llds", {}, LLDS(coef=0.2, gate="action", preserve="nonnegative")),
    ("holdfast_llds", {"penalty_coef": 0}, LLDS(coef=0)),  # zero means zero
    ("holdfast_llds_response", {}, LLDS(gate="response")),
    ("holdfast_lld", {"penalty_coef": 0.4, "penalty_preserve": "positive", "penalty_threshold": 0.01},
     LLDS(coef=0.4, gate="token", preserve="positive", threshold=0.01)),
    ("holdfast_search_sapo", {}, SAPO(coef=0.1, preserve="positive")),
    ("holdfast_search_sapo", {"penalty_preserve": "nonnegative", "penalty_tau": 0.9},
     SAPO(preserve="nonnegative", tau=0.9)),
    ("holdfast_nll", {}, NLL(coef=0.1)),
    ("holdfast_llds", {**LAST, "penalty_answer_weight": 0}, LLDS(answer_weight=0)),
    ("holdfast_llds_response",
     {**LAST, "penalty_answer_weight": "adaptive-paper", "penalty_answer_base": 0.8, "penalty_answer_target": 4},
     LLDS(gate="response", answer_weight="adaptive-paper", answer_base=0.8, answer_target=4)),
])  # fmt: skip
def test_a_name_and_its_settings_mean_a_penalty(name: str, given: dict[str, Any], penalty: Any) -> None:
    assert penalty_for(name, given) == penalty
    assert not any(loss.startswith("sapo") for loss in LOSSES), "verl has a `sapo` of its own"


@pytest.mark.parametrize(("name", "given", "said"), [
    ("holdfast_llds", {"penalty_tau": 0.9}, "penalty_tau = 0.9 with loss_mode = 'holdfast_llds', which does not"),
    ("holdfast_observe", {"penalty_coef": 0.1}, "set penalty_coef = 0"),
    ("holdfast_llds", {"penalty_path": "a:B"}, "penalty_path = a:B with loss_mode"),
    ("holdfast_llds", {"penalty_preserve": "correct"}, "not tell a loss which rollouts are correct; use 'positive'"),
    ("holdfast_llds", {"penalty_coef": -0.1}, r"^policy_loss\.penalty_coef = -0\.1 must be 0 or more$"),
    ("holdfast_llds", {"penalty_answer_weight": 0}, r"Set policy_loss\.penalty_answer = 'answer-span'"),
    ("holdfast_llds", LAST, r"penalty_answer = 'last-action' with a penalty that gives all tokens the same weight"),
    ("holdfast_llds", {"penalty_answer": "tag", "penalty_answer_weight": 0}, "'tag' does not exist"),
    ("holdfast_llds", {"penalty_answer_base": 0.5}, r"policy_loss\.penalty_answer_base = 0.5 with policy_loss"),
])  # fmt: skip
def test_what_is_refused(name: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        penalty_for(name, given)


def test_the_base_is_vanilla_unless_named() -> None:
    known = ["vanilla", "gspo", *LOSSES]
    assert base_name({}, known) == base_name({"base_loss_mode": None}, known) == "vanilla"
    assert base_name({"base_loss_mode": "gspo"}, known) == "gspo"
    for name, said in (
        ("gsp", "mean gspo"),
        ("xyz", "registered are gspo, v"),
        ("holdfast_lld", "cannot be stacked"),
    ):
        with pytest.raises(ConfigError, match=said):
            base_name({"base_loss_mode": name}, known)


@pytest.mark.parametrize(("penalty", "correction", "answer", "said"), [
    (LLDS(), None, None, None),
    (LLDS(), {"rollout_rs": None}, None, None),
    (LLDS(), {"rollout_rs": "seq_max_k2"}, None, None),
    (LLDS(), {"rollout_rs": "token_k1", "bypass_mode": True}, None, None),  # rejected inside the base, after us
    (SAPO(), {"rollout_rs": "token_k1"}, None, None),
    (LLDS(), {"rollout_rs": "seq_max_k2, token_k2"}, None, "rollout_rs = 'token_k2'.*gate of an action"),
    (LLDS(gate="response", answer_weight=0.0), {"rollout_rs": "token_k1"}, "answer-span", None),
    (LLDS(gate="response", answer_weight=0.0), {"rollout_rs": "token_k1"}, "last-action", r"= 'answer-span'"),
])  # fmt: skip
def test_rejected_tokens_must_not_split_actions(penalty: Any, correction: Any, answer: Any, said: str | None) -> None:
    if said is None:
        refuse_split_actions(penalty, correction, answer)
        return
    with pytest.raises(ConfigError, match=said):
        refuse_split_actions(penalty, correction, answer)


def test_the_share_of_preserved_tokens_is_of_the_last_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_losses, "WINDOW", 4)
    draw = torch.Generator().manual_seed(0)
    share, seen = PreservedShare(), list[tuple[int, int]]()
    nothing = torch.zeros(2, 5, dtype=torch.bool)
    assert float(share.update(preserved_counts(nothing, ~nothing))) == 1.0
    seen += [(0, 5), (0, 5)]
    for rows in (1, 3, 2, 6, 1):
        mask, preserved = (torch.rand(rows, 5, generator=draw) < 0.6 for _ in range(2))
        seen += zip((preserved & mask).sum(-1).tolist(), mask.sum(-1).tolist(), strict=True)
        last = seen[-max(4, rows) :]
        expected = sum(n for n, _ in last) / sum(n for _, n in last)
        assert float(share.update(preserved_counts(preserved, mask))) == pytest.approx(expected)


def numbers(log: Log, old: Tensor, new: Tensor, advantages: Tensor, mask: Tensor) -> dict[str, float]:
    penalty = LLDS()
    preserved = penalty.preserved(advantages, mask)
    term = penalty.per_token(new, old, advantages, mask, preserved=preserved)
    return log.numbers("holdfast_llds", measure(preserved, term, new, old, advantages, mask))


def test_what_has_nothing_to_count_repeats_what_was_seen_last() -> None:
    log = Log()
    ones = torch.ones(1, 2, dtype=torch.bool)
    old, new = torch.tensor([[-1.0, -3.0]]), torch.tensor([[-1.5, -3.5]])
    up, down = torch.ones(1, 2), -torch.ones(1, 2)
    first = numbers(log, old, new, down, ones)
    # nothing positive yet: all rollouts stand in for them, (-1 - 3) / 2
    assert (first["holdfast/likelihood/positive"], first["holdfast/likelihood/negative"]) == (-2.0, -2.0)
    assert (first["holdfast/penalty/mean_decrease"], first["holdfast/drift/positive"]) == (0.0, 0.0)
    second = numbers(log, old - 1, new, up, ones)
    assert (second["holdfast/likelihood/positive"], second["holdfast/likelihood/negative"]) == (-3.0, -2.0)
    assert second["holdfast/drift/positive"] == 0.5  # ((-1.5 + 2) + (-3.5 + 4)) / 2
    third = numbers(log, old, new, up, ones)
    assert (third["holdfast/penalty/mean_decrease"], third["holdfast/penalty/active_fraction"]) == (0.5, 1.0)
    empty = numbers(log, old, new, up, ~ones)
    assert empty == third and all(map(math.isfinite, empty.values()))


def test_an_inert_penalty_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(verl_term, "_PATIENCE", 2)
    ones, same = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[-1.0, -3.0]])
    up = torch.ones(1, 2)
    inert, live = Log(), Log()
    numbers(live, same, same - 1, up, ones)
    with caplog.at_level(logging.WARNING):
        numbers(inert, same, same, -up, ones)  # nothing to protect says nothing
        for _ in range(4):
            numbers(inert, same, same, up, ones)
            numbers(live, same, same, up, ones)
    (record,) = caplog.records
    assert record.getMessage().startswith("PEN001: holdfast_llds was zero in all of 2 micro-batches")


class _Stack:
    """As much of tensordict's NonTensorStack as is read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def tolist(self) -> list[Any]:
        return self.rows


@pytest.mark.parametrize("nested", [True, False], ids=["current trainer", "older trainers"])
def test_the_answer_is_the_span_of_the_agent_loop(nested: bool) -> None:
    spans, searches = [[3, 5], None, [0, 2], [1, 2]], [1, 2, 0, 7]
    mask = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    rows = [{"answer_span": s, "searches": n, "status": "ok"} for s, n in zip(spans, searches, strict=True)]
    fields = {"answer_span": _Stack(spans), "searches": _Stack(searches)}
    answers = Answers.of_agent({"extra_fields": _Stack(rows)} if nested else fields, mask)
    assert answers.mask.int().tolist() == [[0, 0, 0, 1, 1], [0] * 5, [0, 1, 0, 0, 0], [0] * 5]
    assert answers.searches == [1, 2, 0], "a row without a sampled token has no part in the loss"
    for data in (None, {}, {"extra_fields": _Stack([{"searches": 1}] * 4)}, {"answer_span": _Stack(spans)}):
        with pytest.raises(ConfigError, match="'answer-span', but these rollouts have no answer_span and searches"):
            Answers.of_agent(data, mask)


def test_stale_rollouts_that_no_ratio_sees_get_a_note() -> None:
    """In an asynchronous trainer whose old policy is recomputed; a limit of null is none."""
    v1 = {"trainer_mode": "separate_async", "sampler": {"max_off_policy_threshold": 6}}
    config: dict[str, Any] = {"trainer": {"v1": v1}, "algorithm": {"rollout_correction": {"bypass_mode": False}}}
    fully = {"async_training": {"staleness_threshold": 0.5}}
    for changed, steps, age in (
        ({}, 4, "up to 6 versions × 4 = 24 optimizer steps"),
        ({"trainer": {"v1": v1 | {"trainer_mode": "colocate_async"}}}, 2, "6 versions × 2 = 12"),
        ({"trainer": {"v1": v1 | {"sampler": {"max_off_policy_threshold": None}}}}, 4, "without a limit"),
        (fully, 4, "up to 1.5 versions × 4 = 6 optimizer steps (async_training.staleness_threshold)"),
    ):
        assert age in str(stale_and_uncorrected(config | changed, steps))
    for correction in ({"bypass_mode": True}, {"rollout_is": "token"}, {"rollout_rs": "seq_mean_k1"}):
        assert stale_and_uncorrected(config | fully | {"algorithm": {"rollout_correction": correction}}, 4) is None
    for trainer in ({"v1": {"trainer_mode": "sync"}}, {}, {"use_v1": False, "v1": v1}):
        assert stale_and_uncorrected(config | {"trainer": trainer}, 4) is None
