"""What a loss's name and settings mean, and what a loss of verl cannot honour."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.adapters.verl_losses import LOSSES, penalty_for
from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import LLDS, NLL, SAPO

HINGE = """
from torch import where
from holdfast.methods.penalties import Penalty

class Hinge(Penalty):
    coef: float = 0.3
    margin: float = 0.1

    def per_token(self, logprobs, old_logprobs, advantages, loss_mask, *, preserved, **_):
        return where(preserved, (old_logprobs.detach() - logprobs - self.margin).clamp(min=0), 0.0)
"""


@pytest.fixture
def hinge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "code_for_verl.py").write_text(HINGE)
    monkeypatch.syspath_prepend(tmp_path)
    return "code_for_verl:Hinge"


def test_names_mean_the_papers_penalties() -> None:
    assert {name: penalty_for(name, {}) for name in LOSSES if name != "holdfast_custom"} == {
        "holdfast_observe": None,
        "holdfast_llds": LLDS(coef=0.2, gate="action", preserve="nonnegative"),
        "holdfast_llds_response": LLDS(gate="response"),
        "holdfast_lld": LLDS(gate="token"),
        "holdfast_search_sapo": SAPO(coef=0.1, preserve="positive"),
        "holdfast_nll": NLL(coef=0.1),
    }
    assert not any(name == "sapo" or name.startswith("sapo") for name in LOSSES)


def test_settings_reach_the_penalty() -> None:
    given = {"penalty_coef": 0.4, "penalty_preserve": "positive", "penalty_threshold": 0.01, "penalty_tau": None}
    assert penalty_for("holdfast_lld", given) == LLDS(coef=0.4, gate="token", preserve="positive", threshold=0.01)
    given = {"penalty_coef": 0.4, "penalty_preserve": "nonnegative", "penalty_tau": 0.9}
    assert penalty_for("holdfast_search_sapo", given) == SAPO(coef=0.4, preserve="nonnegative", tau=0.9)
    assert penalty_for("holdfast_llds", {"penalty_coef": 0}) == LLDS(coef=0)  # zero means zero
    assert penalty_for("holdfast_nll", {"penalty_coef": 0.5}) == NLL(coef=0.5)


LAST = {"penalty_answer": "last-action"}


def test_a_weight_of_the_answer_is_read_beside_what_counts_as_it() -> None:
    assert penalty_for("holdfast_llds", {**LAST, "penalty_answer_weight": 0}) == LLDS(answer_weight=0)
    given = {**LAST, "penalty_answer_weight": "adaptive-paper", "penalty_answer_base": 0.8, "penalty_answer_target": 4}
    expected = LLDS(gate="response", answer_weight="adaptive-paper", answer_base=0.8, answer_target=4)
    assert penalty_for("holdfast_llds_response", given) == expected


def test_a_class_of_ones_own_goes_by_its_path(hinge: str) -> None:
    penalty = penalty_for("holdfast_custom", {"penalty_path": hinge, "penalty_settings": {"margin": 0.5}})
    assert penalty is not None and (type(penalty).__name__, penalty.coef) == ("Hinge", 0.3)
    assert penalty.margin == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("holdfast_llds", {"penalty_tau": 0.9}, "penalty_tau = 0.9 with loss_mode = 'holdfast_llds', which does not"),
        (
            "holdfast_search_sapo",
            {"penalty_threshold": 0.1},
            "0.1 with .* = 'holdfast_search_sapo', which does not",
        ),
        ("holdfast_observe", {"penalty_coef": 0.1}, "set penalty_coef = 0"),
        ("holdfast_llds", {"penalty_path": "a:B"}, "penalty_path = a:B with loss_mode"),
        (
            "holdfast_llds",
            {"penalty_preserve": "correct"},
            "not tell a loss which rollouts are correct; use 'positive'",
        ),
        ("holdfast_llds", {"penalty_coef": -0.1}, r"LLDS\(coef=-0.1\) must be 0 or more"),
        ("holdfast_llds", {"penalty_answer_weight": 0}, r"Set policy_loss\.penalty_answer = 'answer-span'"),
        ("holdfast_llds", LAST, r"penalty_answer = 'last-action' with a penalty that gives all tokens the same weight"),
        ("holdfast_search_sapo", {"penalty_answer_weight": 0}, "penalty_answer_weight = 0 with loss_mode"),
        ("holdfast_observe", LAST, "gives all tokens the same weight"),
        ("holdfast_llds", {"penalty_answer": "tag", "penalty_answer_weight": 0}, "'tag' does not exist"),
        ("holdfast_llds", {"penalty_answer_base": 0.5}, r"policy_loss\.penalty_answer_base = 0.5 with policy_loss"),
        ("holdfast_nll", {"penalty_preserve": "positive"}, "penalty_preserve = positive with loss_mode"),
    ],
)
def test_what_is_refused(name: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        penalty_for(name, given)
