"""docs/reference/papers.md: the settings in a method's row give that method, and nothing else beside it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.methods.penalties import LLDS, NLL, SAPO, Penalty
from holdfast.recipe import setting_values, validate

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "papers.md"
PLAIN = {"loss": {"penalty": {"name": "none"}}}
"""GRPO with a KL of 0.001 and without a penalty: what every method of the page is a change of."""


def llds(**others: Any) -> dict[str, Any]:
    """What sets LLDS apart from plain GRPO, in keys of `loss.penalty`."""
    return penalty(LLDS(**{"coef": 0.2, "preserve": "nonnegative", **others}))


def penalty(value: Penalty) -> dict[str, Any]:
    """A penalty in keys of `loss.penalty`."""
    return {f"loss.penalty.{key}": setting for key, setting in value.model_dump().items()}


F1 = {"reward.em": 0.0, "reward.f1": 1.0}
BY_SEQUENCE = {"loss.reduction": "seq-mean-token-mean"}
SAPO_RUNS = {
    "loss.entropy_coef": 0.001,
    "train.group_size": 10,
    "sampling.top_p": 0.95,
    "protocol.preset": "sapo",
    "protocol.max_turns": 6,
}


def sampler_weights(**values: Any) -> dict[str, Any]:
    """Keys of `loss.methods.sampler_weights` that differ from its defaults."""
    return {f"loss.methods.sampler_weights.{key}": value for key, value in {"on": True, **values}.items()}


METHODS: dict[str, dict[str, Any]] = {
    # beginning of the row: every setting in which it differs from plain GRPO
    "LLDS, action gate (v2, the default)": llds(),
    "LLDS-R, response gate (v1)": llds(gate="response", coef=0.1),
    "LLD, no gate (v1)": llds(gate="token", coef=0.1),
    "LLDS-MA, answers masked (v1)": llds(gate="response", coef=0.1, answer_weight=0.0),
    "LLDS-MA, adaptive (v2)": llds(answer_weight="adaptive-paper"),
    "SAPO, as in the paper": penalty(SAPO(normalizer="policy")) | F1 | SAPO_RUNS | BY_SEQUENCE,
    "SAPO, as in its code": penalty(SAPO(preserve="nonnegative")) | F1 | SAPO_RUNS,
    "KL to the old policy on r alone": penalty(SAPO(preserve="all", normalizer="policy")) | F1 | BY_SEQUENCE,
    "KL to the old policy, no condition": penalty(SAPO(preserve="all", normalizer="policy", tau=1e6))
    | F1
    | BY_SEQUENCE,
    "GRPO,": {"loss.entropy_coef": 0.001},
    "Dr.GRPO": {"loss.advantage": "dr_grpo", "loss.reduction": "seq-mean-token-sum-norm", "loss.kl_coef": 0.0},
    "OPO": {
        "loss.advantage": "dr_grpo",
        "loss.baseline": "length",
        "loss.kl_coef": 0.0,
        "train.optimizer_steps_per_rollout": 1,
    },
    "REINFORCE": {"loss.advantage": "reinforce"},
    "clip-higher of DAPO": {"loss.clip_high": 0.28},
    "dual clip": {"loss.dual_clip": 3.0},
    "GSPO": {
        "loss.ratio": "sequence",
        "loss.reduction": "seq-mean-token-mean",
        "loss.clip_low": 3e-4,
        "loss.clip_high": 4e-4,
    },
    "likelihood of positives": penalty(NLL(coef=0.1)),
    "CISPO": {"loss.surrogate": "cispo", "loss.clip_low": 1.0, "loss.clip_high": 4.0},
    "DPPO": {"loss.surrogate": "dppo"},
    "ratio of an action": {"loss.ratio": "action"},
    "GiGPO": {"loss.methods.gigpo.on": True},
    "supervised steps": {"loss.methods.interleaved_sft.on": True},
    "IGPO": {"loss.methods.igpo.on": True},
    "IPO": {"loss.methods.ipo.on": True, "loss.clip_low": 1.0, "loss.clip_high": 1e4},
    "score centering": {"sampling.top_k": 64, "loss.methods.score_centering.on": True},
    "Clip-Cov": {"loss.methods.clip_cov.on": True},
    "filter by reward variance": {"loss.methods.variance_filter.on": True},
    "off-policy sequence mask": {"loss.methods.off_policy_mask.on": True},
    "positive rollouts alone": {"loss.methods.negative_weight.on": True},
    "NTHR": {"loss.methods.nthr.on": True, "loss.kl_coef": 1e-4},
    "SimpleTIR": {"loss.methods.drop_void.on": True},
    "first actions left out": {"loss.methods.drop_first_actions.on": True},
    "dynamic sampling": {"loss.methods.dynamic_sampling.on": True},
    "TIS": sampler_weights(),
    "IcePop": sampler_weights(keep="mask", low=0.5, high=5.0),
    "Geo-RS": sampler_weights(level="sequence", aggregate="mean", keep="reject", low=0.99, high=1.01),
}


def read_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """The first cell of each table row that has settings, and in what they differ from plain GRPO."""
    plain = setting_values(validate(PLAIN))
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        settings = re.findall(r"`([a-z0-9_.]+ = [^`]+)`", line)
        if line.startswith("| ") and settings:
            made = setting_values(validate(tomllib.loads("\n".join(settings)), where=line))
            yield line.split(" | ")[0].removeprefix("| "), {k: v for k, v in made.items() if v != plain.get(k)}


ROWS = list(read_rows())


@pytest.mark.parametrize(("method", "changes"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_row_is_its_method(method: str, changes: dict[str, Any]) -> None:
    (expected,) = [settings for name, settings in METHODS.items() if method.startswith(name)]
    assert changes == expected


def test_every_method_of_the_table_has_a_row() -> None:
    found = [method for method, _ in ROWS]
    assert len(found) == len(METHODS) and all(any(m.startswith(name) for m in found) for name in METHODS)
