"""A pasted row or two: groups without contrast, a gradient of 0, and zeros that are normal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log

from .conftest import log_of

LEARNS = {"reward/mean": [0.71], "grad/norm": [0.4], "lr": [1e-6], "rollout/mixed_group_fraction": [0.5]}


def trl(series: dict[str, Any], **how: Any) -> Log:
    log: Log = log_of(series, host="trl", **how)
    return log


def noted(log: Log) -> dict[str, str]:
    """Code -> text of the notes; the log must have no finding."""
    diagnosis = diagnose(log)
    assert diagnosis.findings == ()
    return {note.code: note.summary for note in diagnosis.notes}


def found(log: Log) -> dict[str, int]:
    return {finding.code: finding.certain for finding in diagnose(log).findings if not finding.by_verdict}


# ---- zeros that are normal


SAID = {"loss": "A loss near 0", "clip/fraction": "A clip ratio of 0", "kl/reference": "A KL of 0"}


@pytest.mark.parametrize(
    ("zeros", "which"),
    [
        ({"loss": [-0.0011]}, {"loss"}),
        ({"loss": [0.12], "clip/fraction": [0.0]}, {"clip/fraction"}),
        ({"loss": [0.12], "kl/reference": [0.0]}, {"kl/reference"}),
        ({"loss": [0.0], "clip/fraction": [0.0], "kl/reference": [0.0]}, set(SAID)),
    ],
)
def test_each_zero_has_its_sentence(zeros: dict[str, list[float]], which: set[str]) -> None:
    (note,) = noted(trl(LEARNS | zeros)).values()
    assert {name for name, words in SAID.items() if words in note} == which


@pytest.mark.parametrize(
    "row",
    [
        {"loss": [0.4], "clip/fraction": [0.02], "kl/reference": [0.1]},
        {"loss": [0.0], "grad/norm": [0.0], "rollout/mixed_group_fraction": [0.5]},
        {"loss": [0.0], "rollout/mixed_group_fraction": [0.0]},
        {"loss": [np.nan]},
    ],
)
def test_no_zero_or_no_learning_and_nothing_is_called_normal(row: dict[str, list[float]]) -> None:
    assert "ZER001" not in {note.code for note in diagnose(trl(LEARNS | row)).notes}


def test_without_a_norm_a_kl_that_grows_shows_that_it_learns() -> None:
    series = {"reward/mean": [0.5, 0.4, 0.6], "loss": [0.0, 0.0, 1e-4], "kl/reference": [0.0, 1e-3, 3e-3]}
    assert "A loss near 0" in noted(trl(series))["ZER001"]
    assert noted(trl(series | {"kl/reference": [0.0] * 3})) == {}


def test_the_clip_ratio_counts_where_a_batch_begins() -> None:
    series = {
        "reward/mean": [0.5, None, 0.6],
        "grad/norm": [0.1, 0.1, 0.2],
        "clip/fraction": [0.0, 0.005, 0.0],
        "loss": [-0.1, 0.1, 0.1],
    }
    assert "A clip ratio of 0" in noted(trl(series))["ZER001"]


# ---- a gradient of 0


def test_one_row_with_many_groups_and_a_still_policy_is_enough() -> None:
    row = LEARNS | {"grad/norm": [0.0], "kl/reference": [0.0], "rollout/mixed_group_fraction": [29 / 64]}
    assert found(trl(row)) == {"GRD003": 1}
    assert found(trl({name: part for name, part in row.items() if name != "kl/reference"})) == {}
    assert found(trl(row | {"rollout/mixed_group_fraction": [0.75]})) == {}, "few groups prove nothing"
    assert found(trl(row | {"kl/reference": [0.01]}, settings={"logging_steps": 1})) == {"GRD003": 1}


def test_rows_add_up() -> None:
    """A chance of 0.5 a group, against one in a thousand for each row so far: 0.5 ** 14 < 0.001 / 14. A share of a half
    is of two groups at least; where rows are single steps, a row is two chances, after the first batch."""
    series = {"grad/norm": [0.0] * 40, "rollout/mixed_group_fraction": [0.5] * 40, "reward/mean": [0.4, 0.6] * 20}
    assert found(trl(series)) == {"GRD003": 7}
    assert found(trl(series, every=10)) == {"GRD003": 140}
    assert found(replace(trl(series), format="console")) == {"GRD003": 14}, "its steps may be rows"
    gaps = [0.0 if i % 10 else 0.2 for i in range(200)]
    log = trl(
        {"grad/norm": gaps, "rollout/mixed_group_fraction": [0.5] * 200, "reward/mean": [0.4, 0.6] * 100}, every=10
    )
    assert found(log) == {}


# ---- no contrast


@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize(
    "none",
    [
        {"rollout/mixed_group_fraction": 0.0},
        {"reward/group_std": 0.0},
        {"reward/std": 0.0},
        {"reward/max": 0.0, "reward/min": 0.0},
    ],
)
def test_a_few_rows_of_trl_without_contrast_are_a_note(none: dict[str, float], rows: int) -> None:
    log = trl({"reward/mean": [0.0] * rows} | {name: [value] * rows for name, value in none.items()})
    diagnosis = diagnose(log)
    (note,) = diagnosis.notes
    assert diagnosis.findings == () and note.code == "GRP001"
    assert "reward 0" in note.summary and note.remedy.startswith("First check the reward:")


def test_twenty_rows_are_a_finding_and_ask_for_the_reward_function_only_if_all_are_0() -> None:
    over_steps = trl({"reward/mean": [0.0] * 5, "rollout/mixed_group_fraction": [0.0] * 5}, every=10)
    assert found(over_steps) == {"GRP001": 50}, "five rows over many steps do as well"
    for reward, first in ((0.0, True), (0.3, False)):
        log = trl({"reward/mean": [reward] * 20, "rollout/mixed_group_fraction": [0.0] * 20})
        (finding,) = diagnose(log).findings
        assert (finding.code, finding.certain) == ("GRP001", 20)
        assert finding.remedy.startswith("First check the reward:") is first


def test_a_first_row_without_contrast_is_forgotten() -> None:
    log = trl({"reward/mean": [0.9, 0.7, 0.8], "reward/group_std": [0.0, 0.2, 0.0], "grad/norm": [0.0, 0.1, 0.0]})
    assert noted(log) == {}


# ---- remedies that leave nothing in the loss

GEO_RS = {f"loss.methods.sampler_weights.{key}": value for key, value in (("low", 0.99), ("high", 1.01))}
WEIGHTS = {"sampler/weight_p05": [0.82] * 4, "sampler/weight_p95": [0.9] * 4}


def emptied(series: dict[str, Any], settings: Any = None) -> Any:
    """The diagnosis of four batches with a gradient where tokens are left."""
    return diagnose(log_of({"reward/mean": [0.4, 0.5, 0.4, 0.5]} | series, settings=settings))


def test_bounds_that_no_weight_meets_are_told_at_the_first_batch() -> None:
    gone = {"loss/excluded_fraction": [1.0] * 4, "grad/norm": [0.0] * 4, "rollout/mixed_group_fraction": [0.5] * 4}
    (finding,) = emptied(gone | WEIGHTS, GEO_RS).findings
    assert (finding.code, finding.certain) == ("GRD003", 1)
    assert finding.evidence == {
        "loss/excluded_fraction": 1.0, "sampler/weight_p05": 0.82, "sampler/weight_p95": 0.9,
    }  # fmt: skip
    assert "between 0.82 and 0.9, outside the bounds of loss.methods.sampler_weights, 0.99 to 1.01." in finding.summary
    assert "`loss.methods.sampler_weights.low`" in finding.remedy
    (finding,) = emptied({"loss/mean_weight": [0.0] * 4} | WEIGHTS).findings
    assert (finding.code, finding.certain, finding.evidence["loss/mean_weight"]) == ("GRD003", 1, 0.0)


def test_a_batch_of_void_rollouts_is_a_note_once_others_have_tokens() -> None:
    void = {"loss/excluded_fraction": [0.2, 1.0, 1.0, 1.0]}
    (finding,) = emptied(void, {"loss.methods.drop_void.on": True}).findings
    assert (finding.code, finding.certain, finding.evidence) == ("GRD003", 2, {"loss/excluded_fraction": 1.0})
    assert "invalid turn" in finding.summary and "loss.methods.drop_void" in finding.summary
    diagnosis = emptied({"loss/excluded_fraction": [0.2, 1.0, 0.9, 0.8]}, {"loss.methods.drop_void.on": True})
    assert diagnosis.findings == () and [note.code for note in diagnosis.notes] == ["GRD003"]
    part = {"loss/excluded_fraction": [0.999] * 4, "loss/mean_weight": [0.01] * 4}
    assert emptied(part | WEIGHTS, GEO_RS).findings == ()


@pytest.mark.parametrize(
    ("zero", "codes"), [("0.000", set()), ("0.0", {"LRN001", "GRD003"}), ("0", {"LRN001", "GRD003"})]
)
def test_a_zero_with_more_decimals_may_be_a_small_number(tmp_path: Path, zero: str, codes: set[str]) -> None:
    row = "step:{i} - actor/lr:{0} - actor/grad_norm:{0} - critic/score/mean:0.{i} - critic/score/max:1\n"
    row += "step:{i} - critic/score/min:0\n"
    (tmp_path / "run.log").write_text("".join(row.format(zero, i=i) for i in range(10, 50)))
    assert set(found(read_log(tmp_path / "run.log"))) == codes
