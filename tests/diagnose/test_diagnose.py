"""The diagnosis as a whole: order, exclusions, leads, units, and logs that say little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import ConfigError
from holdfast.diagnose.codes import CODES, chosen
from holdfast.diagnose.diagnose import cannot_tell, causes_first, diagnose, hits_of
from holdfast.diagnose.finding import headline
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules.rule import Hit, without_suppressed

MakeLog = Callable[..., Log]
FINITE = ("grad/", "loss/", "entropy/")  # where a NaN is a finding
LEAVES = {"kl__reference": [0.1] * 8 + [4.0] * 52}
FALLEN = [0.4] * 5 + [0.8] * 25 + [0.7, 0.6, 0.5, 0.4, 0.3, 0.2] + [0.1] * 24


def hit(step: int) -> Hit:
    return Hit(step, "", {}, (), spans=((step, None),))


def remaining(**steps: int) -> set[str]:
    """The codes that remain of hits at these steps."""
    return set(without_suppressed({code: hit(step) for code, step in steps.items()}, RULES))


def codes(log: Log) -> list[tuple[str, int]]:
    return [(finding.code, finding.certain) for finding in diagnose(log).findings]


# ---- how the reward fell


@pytest.mark.parametrize(("value", "found"), [(np.nan, []), (np.inf, ["GRD002"]), (-np.inf, ["GRD002"])])
def test_an_infinite_reward_is_found_and_a_batch_without_any_is_not(
    make_log: MakeLog, value: float, found: list[str]
) -> None:
    log = make_log(reward__mean=lambda v: np.where(np.arange(len(v)) == 30, value, v))
    assert [code for code, _ in codes(log)] == found


def test_a_log_of_evaluations_alone_has_a_curve(make_log: MakeLog) -> None:
    assert [code for code, _ in codes(make_log(eval__em=FALLEN, only=("eval/em",), every=10))] == ["RWD001"]


def test_leads_are_counted_to_half_of_the_peak(make_log: MakeLog) -> None:
    log = make_log(reward__mean=FALLEN, retrieval__error_fraction=[0.0] * 29 + [0.9] * 31)
    diagnosis = diagnose(log)
    leads = {finding.code: finding.lead for finding in diagnosis.findings}
    assert diagnosis.course.half is not None and diagnosis.course.half.step == 36 and leads["RET001"] == 6
    well = diagnose(make_log(retrieval__error_fraction=[0.0] * 29 + [0.9] * 31))
    assert [finding.lead for finding in well.findings] == [None]


# ---- which of several


def test_one_cause_one_code() -> None:
    """What came first decides between a slow decay and one jump. What is suppressed suppresses nothing: where long
    rollouts are preferred, the jump is not one, and the decay after it is not its consequence."""
    assert remaining(LLD002=10, STP001=20) == {"LLD002"}
    assert remaining(LLD001=30, LLD002=30, LLD003=30, STP001=20) == {"STP001"}
    assert remaining(ENT001=10, STP001=20) == {"ENT001"}
    assert remaining(ENT001=20, STP001=20) == {"ENT001", "STP001"}
    assert remaining(TRN001=20, STP001=20, LLD002=25) == {"TRN001", "LLD002"}
    assert remaining(TRN001=21, STP001=20, LLD002=25) == {"TRN001", "STP001"}
    assert remaining(LLD001=10, LLD002=20, LLD003=30) == {"LLD001", "LLD002", "LLD003"}
    assert remaining(LLD001=25, LLD002=20, LLD003=20) == {"LLD003"}
    assert remaining(MSK001=5, SMP001=5) == {"MSK001"}
    assert remaining(MSK001=9, SMP001=5) == {"MSK001", "SMP001"}


def test_what_has_passed_hides_only_what_began_while_it_held() -> None:
    drift = Hit(10, "", {}, (), level="note", spans=((10, 20),))
    assert set(without_suppressed({"ISD001": drift, "STP001": hit(15)}, RULES)) == {"ISD001"}
    assert set(without_suppressed({"ISD001": drift, "STP001": hit(25)}, RULES)) == {"ISD001", "STP001"}


@pytest.mark.parametrize("invalid", [0.1, 0.6])
def test_a_reason_does_not_uncover_what_passed_findings_hid(make_log: MakeLog, invalid: float) -> None:
    """The agent leaves a tool that fails from row 31 to 50. That most turns have no form is TOL002 too, as a reason."""
    series = {
        "rollout__failed_call_fraction": [0.05] * 30 + [0.9] * 20 + [0.05] * 30,
        "rollout__searches": [2.0] * 38 + [0.02] * 42,
        "rollout__invalid_fraction": [invalid] * 80,
    }
    rewards = {"learns": np.linspace(0.2, 0.6, 80), "flat": 0.3 + 0.02 * np.sin(9 * np.arange(80))}
    only = ("reward/mean", *(name.replace("__", "/") for name in series))
    logs = {word: make_log(only=only, reward__mean=reward, **series) for word, reward in rewards.items()}
    found = hits_of(logs["learns"], logs["learns"])
    assert found["TOL002"].spans == ((32, 56),) and found["TOL001"].step == 43
    assert "TOL001" not in without_suppressed(found, RULES)
    # The verdict of a run that does not learn names what only passed findings hid.
    diagnosis = diagnose(logs["flat"])
    assert diagnosis.verdict.word == "flat"
    assert [(one.step, one.by_verdict) for one in diagnosis.findings if one.code == "TOL001"] == [(39, True)]


def test_a_cause_that_shows_within_five_rows_comes_first(make_log: MakeLog) -> None:
    log = make_log()
    order = partial(causes_first, log)
    assert order({"ENT001": hit(20), "STP001": hit(25), "MSK001": hit(24)}) == ["MSK001", "STP001", "ENT001"]
    assert order({"ENT001": hit(20), "STP001": hit(26)}) == ["ENT001", "STP001"]
    assert order({"STP001": hit(20), "ENT001": hit(21)}) == ["STP001", "ENT001"]
    assert order({"RET001": hit(20), "GRD002": hit(20)}) == ["GRD002", "RET001"]
    # What was so from the start explains no change.
    assert order({"TRN001": hit(10), "KLD001": hit(10)}) == ["TRN001", "KLD001"]
    at_first = {"rollout__truncated_fraction": [1.0] * 60, "reward__mean": [0.4] * 60}
    moved = codes(make_log(only=("reward/mean", "rollout/truncated_fraction", "kl/reference"), **at_first, **LEAVES))
    assert moved == [("KLD001", 12), ("TRN001", 10)]


def test_an_entropy_bonus_in_the_settings_is_named_before_a_penalty(make_log: MakeLog) -> None:
    surge = np.linspace(1.0, 3.0, 60).tolist()
    with_bonus, without = (
        diagnose(make_log(host="trl", entropy__mean=surge, settings=settings)).findings[0]
        for settings in ({"entropy_coef": 0.3}, {"entropy_coef": 0.0})
    )
    assert with_bonus.code == without.code == "ENT001"
    assert "entropy bonus (`entropy_coef`) of 0.3: set it to 0" in with_bonus.remedy
    assert "entropy_coef" not in without.remedy


def test_a_reward_lost_at_once_by_unchanged_rollouts_is_not_the_policys(make_log: MakeLog) -> None:
    """RWD001 says where to go back to, and what the finding before it says; alone it decides."""
    lost = [0.8] * 30 + [0.2] * 30
    (alone,) = diagnose(make_log(reward__mean=lost)).findings
    assert "Most of this happened suddenly, by step 33" in alone.summary and "Compare the questions" in alone.remedy
    (slow,) = diagnose(make_log(reward__mean=[0.8] * 30 + np.linspace(0.8, 0.2, 30).tolist())).findings
    assert slow.remedy.startswith("Go back to a checkpoint from step 36 or before, and lower the learning rate")
    first, last = diagnose(make_log(reward__mean=lost, retrieval__error_fraction=[0.0] * 29 + [0.9] * 31)).findings
    assert (first.code, last.code) == ("RET001", "RWD001") and "do what RET001 advises" in last.remedy


def test_the_checkpoint_is_from_when_the_reward_was_good(make_log: MakeLog) -> None:
    rising = [*np.linspace(0.2, 0.8, 40), *np.linspace(0.8, 0.1, 20)]
    (finding,) = diagnose(make_log(reward__mean=rising)).findings
    assert finding.evidence["last good step"] == 45 and "from step 45 or before" in finding.remedy


def test_at_one_step_suppression_has_no_cycle() -> None:
    """`without_suppressed` follows `suppressed_by` at equal steps, and would not end."""
    for code in RULES:
        above, queue = set(), [*RULES[code].suppressed_by]
        while queue:
            other = queue.pop()
            if other not in above:
                above.add(other)
                queue += RULES[other].suppressed_by
        assert code not in above
        assert {*RULES[code].suppressed_by, *RULES[code].suppressed_by_earlier} <= set(RULES)


# ---- logs that say little


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_few_rows_are_no_evidence_and_no_error(make_log: MakeLog, rows: int) -> None:
    log = make_log(rows=60).until(rows)
    assert codes(log) == []
    text = headline(log, diagnose(log))
    assert text.endswith(".")


def test_a_few_rewards_in_a_long_log_are_not_judged(make_log: MakeLog) -> None:
    log = make_log(only=("grad/norm", "eval/em"), eval__em=[0.5] * 2 + [np.nan] * 58)
    diagnosis = diagnose(log)
    assert diagnosis.facts["rewards"] == 2 and diagnosis.course.fall is None
    assert "2 rewards are too few to tell whether it rises or falls." in headline(log, diagnosis)


def test_a_fall_is_measured_by_what_was_known_at_its_step(make_log: MakeLog) -> None:
    rewards = [0.8] * 20 + [0.2] * 20
    for later, measure in ((0.2, "peak"), (-1.0, "peak")):  # below 0 only long after the fall
        log = make_log(only=("reward/mean",), reward__mean=[*rewards, *[later] * 20])
        diagnosis = diagnose(log)
        assert diagnosis.course.fall is not None and diagnosis.course.fall.measure == measure
        assert f"of its {measure} " in headline(log, diagnosis)
    below = diagnose(make_log(only=("reward/mean",), reward__mean=[-0.5] * 5 + [0.8] * 20 + [-0.6] * 35)).course.fall
    assert below is not None and below.measure == "range"


def test_holes_in_the_series_change_little(make_log: MakeLog) -> None:
    def holes(values: np.ndarray) -> list[Any]:
        return [None if i % 4 == 1 else np.nan if i % 7 == 3 else v for i, v in enumerate(values)]

    sick = {"retrieval__error_fraction": lambda v: holes(np.where(np.arange(60) < 30, 0.0, 0.9))}
    assert [code for code, _ in codes(make_log(**sick))] == ["RET001"]
    well = {name.replace("/", "__"): holes for name in make_log().series if not name.startswith(FINITE)}
    assert codes(make_log(**well)) == []


@pytest.mark.parametrize("every", [5, 250])
def test_rows_count_and_not_steps(make_log: MakeLog, every: int) -> None:
    """TRL numbers optimizer steps, ten to a rollout batch."""
    ill = {"entropy__mean": lambda v: v * np.where(np.arange(60) < 30, 1, 1 + 0.1 * (np.arange(60) - 30))}
    (code, step), *_ = codes(make_log(**ill))
    assert codes(make_log(every=every, **ill))[0] == (code, step * every)


# ---- what cannot be told


def test_what_a_stock_log_of_trl_leaves_open(make_log: MakeLog) -> None:
    stock = (
        "reward/mean",
        "entropy/mean",
        "rollout/length",
        "clip/fraction",
        "grad/norm",
        "rollout/mixed_group_fraction",
    )
    open_ = {one.code: one for one in cannot_tell(make_log(only=stock, host="trl"))}
    assert {"LLD001", "LLD002", "LLD003", "LLD004", "ISD001", "MSK001", "RWD002"} <= set(open_)
    assert not {"STP001", "ENT001", "ENT002", "GRD001", "GRD002", "RWD001", "GRP001"} & set(open_)
    assert open_["LLD002"].missing == ("displacement/correct", "displacement/fraction", "likelihood/correct")
    assert "with_penalties(GRPOTrainer)" in open_["LLD002"].remedy


def test_a_baseline_of_its_own_needs_no_contrast(make_log: MakeLog) -> None:
    flat = {"rollout__mixed_group_fraction": [0.0] * 60}
    assert "GRP001" in dict(codes(make_log(**flat)))
    assert "GRP001" not in dict(codes(make_log(**flat, settings={"loss.advantage": "reinforce"})))


# ---- choosing and showing


def test_codes_are_chosen_by_their_beginnings() -> None:
    assert chosen("", where="x") == set(CODES)
    with pytest.raises(ConfigError, match=r"--select: no code begins with 'LLX'"):
        chosen("LLD,LLX", where="--select")


def test_the_headline_says_why_a_loss_is_no_fall_and_that_a_reward_came_back(make_log: MakeLog) -> None:
    def said(values: list[float]) -> str:
        log = make_log(reward__mean=values)
        return headline(log, diagnose(log))

    assert "6 rewards are too few to tell whether it rises or falls. A fall is visible after 10 rows." in said(
        [0.5] * 6
    )
    assert said([0.3] * 15 + [0.5] * 15).startswith("Learns. The last ten rewards are above the first ten.")
    noisy = [0.0, 0.4, 0.9, 0.0, 0.2] * 8 + [1.0, 0.9, 0.7, 0.1, 0.3] + [0.2, 0.0, 0.6, 0.1, 0.2] * 2
    assert said(noisy).startswith("Cannot tell. The reward may be rising: it changed by +0.0097")
    back = said([0.8] * 20 + [0.2] * 25 + [0.8] * 25)
    assert back.startswith("Cannot tell. The reward fell near step 21: "), "the rollouts stayed as they were"
    assert " It had recovered by step 53. " in back
    assert "recovered" not in said([0.8] * 20 + [0.1] * 25 + [0.3] * 25)  # at a third of its peak
    lost = "Fell. In the last rows, the reward lost 50% of its best value. It may still recover."
    assert said([0.8] * 20 + [0.3] * 4).startswith(lost)


# ---- what logs the missing series, or why an observer that was on did not


DISPLACED = ("displacement/correct", "displacement/fraction")
RIGHT = ("likelihood/correct", "likelihood/correct/action_1", "likelihood/correct/action_2")
LLD = ("LLD001", "LLD002", "LLD003", "LLD004")


def remedies_of(log: Log, *codes: str) -> set[str]:
    """The remedies for these undecided codes."""
    remedies = {question.code: question.remedy for question in diagnose(log).cannot_tell}
    return {remedies[code] for code in codes}


@pytest.mark.parametrize(
    ("change", "said", "left_out"),
    [
        ({"drop": ("optimizer_steps_per_rollout",)}, ("with_penalties(GRPOTrainer)",), ("logging_steps", "save_state")),
        ({"every": 10}, ("logging_steps=1",), ("with_penalties",)),
        ({"every": 10, "drop": ("optimizer_steps_per_rollout",)}, ("logging_steps=1", "with_penalties"), ()),
    ],
)
def test_what_to_log_is_said_once_and_only_what_is_missing(
    make_log: MakeLog, change: dict[str, Any], said: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    text = diagnose(make_log(host="trl", **change)).what_to_log
    assert all(part in text for part in said) and not any(part in text for part in left_out), text


def test_a_log_that_has_it_all_asks_for_nothing(make_log: MakeLog) -> None:
    assert diagnose(make_log(host="trl")).what_to_log == diagnose(make_log(host="holdfast")).what_to_log == ""
    assert "save_state" in diagnose(replace(make_log(host="trl"), format="console")).what_to_log


def test_codes_that_make_no_sense_are_not_listed(make_log: MakeLog) -> None:
    """A run without searches has no retriever, one without a second action none that decays slower, and one without a
    penalty none that is inert."""
    retrieval = ("retrieval/error_fraction", "retrieval/empty_fraction", "rollout/failed_fraction")
    gone = (*retrieval, *RIGHT[2:], "penalty/active_fraction", "penalty/preserved_fraction")
    plain = {question.code for question in diagnose(make_log(host="trl", drop=gone)).cannot_tell}
    assert not plain & {"RET001", "RET002", "LLD004", "PEN001"}
    searches = make_log(host="trl", drop=retrieval, rollout__searches=[2.0] * 60)
    assert {"RET001", "RET002"} <= {question.code for question in diagnose(searches).cannot_tell}


@pytest.mark.parametrize(
    ("drop", "reason"),
    [
        ((*RIGHT, *DISPLACED), "correct_above"),
        (DISPLACED, "did not measure displacement"),
        ((*RIGHT, *DISPLACED, "likelihood/incorrect", "optimizer_steps_per_rollout"), "Logged by `with_penalties("),
    ],
)
def test_a_log_is_told_of_the_observer_or_why_it_does_not_help(
    make_log: MakeLog, drop: tuple[str, ...], reason: str
) -> None:
    (remedy,) = remedies_of(make_log(host="trl", drop=drop), *LLD)
    assert reason in remedy and ("Logged by" in remedy) is ("Logged by" in reason)
    for host in ("verl", "unknown", "holdfast"):
        questions = diagnose(make_log(host=host, drop=drop)).cannot_tell
        assert questions and not any("with_penalties`" in q.remedy or "logging_steps" in q.remedy for q in questions)


@pytest.mark.parametrize(
    ("missing", "which"), [("likelihood/incorrect", "correct"), ("likelihood/correct", "incorrect")]
)
def test_rewards_that_the_threshold_does_not_part_get_a_note(make_log: MakeLog, missing: str, which: str) -> None:
    """Rewards of 0 to 10, or of -1 to 0, with a threshold of 0.5."""
    log = make_log(host="trl", drop=(missing, *DISPLACED))
    (note,) = (note for note in diagnose(log).notes if note.code == "OBS001")
    assert note.summary.endswith(f"count as {which}.") and "correct_above" in note.remedy
    assert "OBS001" not in {note.code for note in diagnose(make_log(host="trl")).notes}
    solved = make_log(host="trl", drop=(missing, *DISPLACED), rollout__mixed_group_fraction=[0.0] * 60)
    assert "OBS001" not in {note.code for note in diagnose(solved).notes}
