"""The result of a probe as lines for people and as JSON for programs."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Sequence
from importlib.metadata import version

from holdfast import __version__
from holdfast.evaluate.probes.cases import Case, Cases
from holdfast.evaluate.probes.influence import MEASURES, UNITS, Agreement, Influence
from holdfast.evaluate.probes.likelihood import BySearches, FirstAction, Level
from holdfast.evaluate.probes.subject import Subject
from holdfast.evaluate.probes.tail_leak import TailLeak, TurnLeak
from holdfast.evaluate.probes.updates import EPSILONS, KINDS, ArmChange, PerSample, RatioTail
from holdfast.recipe import dump

Result = PerSample | FirstAction | BySearches | RatioTail | TailLeak | Influence | Cases


def document(
    result: Result, subject: Subject, *, what: str, questions: int, seed: int, command: str
) -> dict[str, object]:
    """The result with everything that is needed to repeat the probe, for `json.dumps`."""
    return {
        "probe": what,
        "of": subject.name,
        "command": command,
        "questions": questions,
        "seed": seed,
        "optimizer_state": str(subject.optimizer_state) if subject.optimizer_state is not None else None,
        "versions": {
            "holdfast": __version__,
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        "device": subject.language_model.device.type,
        "config_hash": hashlib.sha256(dump(subject.config).encode()).hexdigest()[:16],
        "result": result.to_json(),
        "recipe": subject.config.model_dump(),
    }


def lines(result: Result) -> list[str]:
    """A short table under a sentence."""
    match result:
        case PerSample():
            return _per_sample(result)
        case FirstAction():
            return _first_action(result)
        case BySearches():
            return _by_searches(result)
        case RatioTail():
            return _ratio_tail(result)
        case TailLeak():
            return _tail_leak(result)
        case Influence():
            return _influence(result)
        case Cases():
            return _cases(result)


def _per_sample(result: PerSample) -> list[str]:
    used = len(result.arms[0].questions)
    rows = [["penalty", "questions displaced", "correct rollouts", "incorrect rollouts"]]
    for arm in result.arms:
        changes = [_change(arm, correct=kind) for kind in (True, False)]
        rows.append([arm.penalty, f"{arm.displaced} of {used} ({_percent(arm.displaced / used)})", *changes])
    steps = result.optimizer_steps
    return [
        f"{used} of {result.asked} questions have a correct rollout and one with another reward. Each got its own "
        f"update of {steps} optimizer step{'s' * (steps > 1)}.",
        "Change of log-likelihood, mean over rollouts: nats per rollout (per token)",
        *columns(rows),
    ]


def _first_action(result: FirstAction) -> list[str]:
    longest = max(len(result.correct), len(result.incorrect))
    rows = [["action", *map(str, range(1, longest + 1))]]
    for name, levels in (("correct rollouts", result.correct), ("incorrect rollouts", result.incorrect)):
        rows.append([name, *map(_level, levels)])
    rows.append(["incorrect, began as a correct one", _level(result.first_matching)])
    rows.append(["incorrect, began differently", _level(result.first_other)])
    return [
        f"{result.compared} incorrect rollouts belong to questions with a correct one. {result.matching} of them "
        f"({_percent(result.share)}) began with a search that returned the same passages.",
        "Log-prob per token, mean over rollouts (rollouts)",
        *columns(rows),
    ]


def _by_searches(result: BySearches) -> list[str]:
    rows = [["searches", "all", "correct", "incorrect"]]
    for row in result.rounds:
        rows.append([str(row.searches), _level(row.everyone), _level(row.correct), _level(row.incorrect)])
    return ["Log-prob per token, mean over rollouts (rollouts)", *columns(rows)]


def _ratio_tail(result: RatioTail) -> list[str]:
    rows = [["penalty", "rollouts", *(f"ε {_short(epsilon)}" for epsilon in EPSILONS)]]
    for arm in result.arms:
        last = arm.optimizer_steps
        for kind, title in KINDS.items():
            shares = [_percent(arm.share_below(epsilon, kind, last)) for epsilon in EPSILONS]
            rows.append([arm.penalty, f"{title} ({len(arm.of(kind, last))})", *shares])
    steps = result.arms[0].optimizer_steps
    text = [
        f"P(∏ r < ε): share of rollouts whose probability was multiplied by less than ε in {steps} optimizer "
        f"step{'s' * (steps > 1)} on them",
        *columns(rows),
    ]
    half = EPSILONS[1]
    if steps > 1:
        text += ["", f"The same for ε = {half:g} and A > 0, after each optimizer step"]
        for arm in result.arms:
            each = (_percent(arm.share_below(half, "positive", k)) for k in range(1, steps + 1))
            text.append(f"{arm.penalty}  {'  '.join(each)}")
    return text


def _tail_leak(result: TailLeak) -> list[str]:
    rows = [["turn", "rollouts", "correct", "tokens", "advantage", "mask mass", "advantage of the tail"]]
    rows += [_turn(str(k), turn) for k, turn in enumerate(result.turns, start=1)]
    rows.append(_turn("all", result.whole))
    return [_leak_sentence(result), *columns(rows)]


def _leak_sentence(result: TailLeak) -> str:
    if result.whole.tail_advantage is None:
        return "The sampler is not truncated, so nothing can leak. Advantages are means over sampled tokens."
    if result.mask_in_loss:
        return "The loss uses the sampling mask, so nothing leaks. Without the mask, these advantages would:"
    return (
        "Advantages are means over sampled tokens. In the last column, each token is weighted by the probability "
        "outside the sampling mask at its position. Below 0, the loss moves probability there."
    )


def _turn(name: str, turn: TurnLeak) -> list[str]:
    tail = "–" if turn.tail_advantage is None else f"{turn.tail_advantage:+.3f}"
    correct = _percent(turn.correct / turn.rollouts)
    return [
        name,
        str(turn.rollouts),
        correct,
        str(turn.tokens),
        f"{turn.advantage:+.3f}",
        f"{turn.mask_mass:.3f}",
        tail,
    ]


def _influence(result: Influence) -> list[str]:
    rollouts = result.rollouts
    lower = [sum(getattr(u, name) < 0 for u in rollouts) for name in ("predicted", "gradient", "optimizer")]
    rows = [["unit", "measured by", "count", "rank correlation", "overlap"]]
    for unit in UNITS:
        for agreement in (result.agreement(unit, measure) for measure in MEASURES):
            overlap = "–" if agreement.overlap is None else _percent(agreement.overlap)
            rows.append([unit, agreement.measure, str(agreement.count), _correlation(agreement), overlap])
    similar = [["action", "incorrect, correct", "correct, correct", "other questions"]]
    for s in (*result.similarity[1:], result.similarity[0]):
        cosines = (s.incorrect_correct, s.correct_correct, s.other_questions)
        similar.append([str(s.action or "all"), *("–" if c is None else f"{c:.3f}" for c in cosines)])
    return [
        f"{result.used} of {result.asked} questions have a correct and an incorrect rollout. Each got its own GRPO "
        f"step. Correct rollouts that become less likely: {lower[0]} of {len(rollouts)} as predicted, {lower[1]} by "
        f"the gradient, {lower[2]} by the recipe's optimizer.",
        "Rank correlation of predicted and measured change (95 % interval), and overlap of the lowest fifths",
        *columns(rows),
        "",
        "Mean cosine of two rollouts' hidden states, each a mean over an action's tokens",
        *columns(similar),
    ]


def _cases(result: Cases) -> list[str]:
    rows = [["question", "displacement", "push", "label"]]
    rows += [[case.id, f"{case.displacement:+.3f}", f"{case.push:+.3g}", label(case)] for case in result.shown]
    counts = [["label", "questions", "displaced"]]
    counts += [[name, str(every), str(displaced)] for name, (every, displaced) in result.label_counts.items()]
    return [cases_sentence(result), *columns(rows), "", *columns(counts)]


def cases_sentence(result: Cases) -> str:
    """What was rolled out and how many questions the step displaced."""
    used = len(result.every)
    return (
        f"{used} of {result.asked} questions have a correct and an incorrect rollout. Each got its own GRPO "
        f"step, which made the correct rollouts of {result.displaced} less likely. The "
        f"{len(result.shown)} most displaced:"
    )


def label(case: Case) -> str:
    """The labels of a case in words."""
    return ", ".join(case.labels) or "none"


def _correlation(agreement: Agreement) -> str:
    if agreement.correlation is None:
        return "–"
    if agreement.low is None or agreement.high is None:
        return f"{agreement.correlation:+.2f}"
    return f"{agreement.correlation:+.2f} ({agreement.low:+.2f} to {agreement.high:+.2f})"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Text in columns: the first aligned left, the others right.

    >>> columns([["searches", "all"], ["1", "-0.25 (3)"]])
    ['searches        all', '1         -0.25 (3)']
    """
    count = max(map(len, rows))
    widths = [max(len(row[k]) for row in rows if len(row) > k) for k in range(count)]
    padded = (
        [
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        for row in rows
    )
    return ["  ".join(cells).rstrip() for cells in padded]


def _change(arm: ArmChange, *, correct: bool) -> str:
    whole, token = (arm.mean_change(correct=correct, per_token=per_token) for per_token in (False, True))
    return "–" if math.isnan(whole) else f"{whole:+.3f} ({token:+.4f})"


def _level(level: Level) -> str:
    return "–" if level.logprob is None else f"{level.logprob:.3f} ({level.rollouts})"


def _short(epsilon: float) -> str:
    return f"{epsilon:g}" if epsilon >= 0.01 else f"{epsilon:.0e}".replace("e-0", "e-")


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"
