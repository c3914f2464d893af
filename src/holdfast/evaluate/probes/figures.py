"""The result of a probe as one SVG. Only this module imports matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import MissingExtra
from holdfast.evaluate.probes.cases import Cases
from holdfast.evaluate.probes.influence import Influence
from holdfast.evaluate.probes.likelihood import BySearches, FirstAction, Level
from holdfast.evaluate.probes.report import Result
from holdfast.evaluate.probes.tail_leak import TailLeak
from holdfast.evaluate.probes.updates import EPSILONS, KINDS, ArmRatios, PerSample, RatioTail

# Colours of Okabe and Ito: colour-blind readers can distinguish them, on dark and light ground.
_CORRECT, _INCORRECT, _ALL = "#0072B2", "#D55E00", "#555555"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",  # equal numbers, equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def draw(result: Result, title: str, path: Path) -> None:
    """Write the figure of a result. Raises `MissingExtra` without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "figures") from None
    with matplotlib.rc_context(_STYLE):
        panels = _panels(result)
        figure = Figure(figsize=(6.4, 0.6 + 3.2 * panels), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold", wrap=True)
        axes = list(figure.subplots(panels, 1, sharex=True, sharey=True, squeeze=False)[:, 0])
        match result:
            case PerSample():
                _per_sample(result, axes)
            case FirstAction():
                _first_action(result, axes[0])
            case BySearches():
                _by_searches(result, axes[0])
            case RatioTail():
                _ratio_tail(result, axes)
            case TailLeak():
                _tail_leak(result, axes[0])
            case Influence():
                _influence(result, axes[0])
            case Cases():
                _cases(result, axes)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _panels(result: Result) -> int:
    match result:
        case PerSample() | RatioTail():
            return len(result.arms)
        case Cases():
            return len(result.shown)
    return 1


def _per_sample(result: PerSample, axes: Sequence[Any]) -> None:
    """Figure 3 of the paper: a bar for each question, sorted."""
    for axis, arm in zip(axes, result.arms, strict=True):
        values = sorted(q.displacement for q in arm.questions)
        axis.bar(range(1, len(values) + 1), values, color=[_INCORRECT if v < 0 else _CORRECT for v in values])
        axis.axhline(0, color=_ALL, linewidth=0.8)
        share = 100 * arm.displaced / len(values)
        axis.set_title(f"{arm.penalty}: {arm.displaced} of {len(values)} questions displaced ({share:.0f} %)")
        axis.set_ylabel("change of correct rollouts, nats")
    axes[-1].set_xlabel("questions, sorted")


def _first_action(result: FirstAction, axis: Any) -> None:
    """Figure 5 of the paper: likelihood by action, and how incorrect rollouts begin."""
    for name, levels, colour in (("correct", result.correct, _CORRECT), ("incorrect", result.incorrect, _INCORRECT)):
        _line(axis, range(1, len(levels) + 1), levels, name, colour)
    for name, level, marker in (
        ("incorrect, began as a correct one", result.first_matching, "^"),
        ("incorrect, began differently", result.first_other, "v"),
    ):
        if level.logprob is not None:
            axis.plot([1], [level.logprob], marker, color=_INCORRECT, markerfacecolor="white", label=name)
    axis.set_title(
        f"{result.matching} of {result.compared} incorrect rollouts ({100 * result.share:.0f} %) began as a correct one"
    )
    axis.set_xlabel("action")
    _likelihood_axis(axis, max(len(result.correct), len(result.incorrect)))


def _by_searches(result: BySearches, axis: Any) -> None:
    searches = [row.searches for row in result.rounds]
    _line(axis, searches, [row.everyone for row in result.rounds], "all", _ALL)
    _line(axis, searches, [row.correct for row in result.rounds], "correct", _CORRECT)
    _line(axis, searches, [row.incorrect for row in result.rounds], "incorrect", _INCORRECT)
    axis.set_xlabel("searches")
    _likelihood_axis(axis, searches[-1], searches[0])


def _line(axis: Any, places: Sequence[int], levels: Sequence[Level], name: str, colour: str) -> None:
    points = [(x, level) for x, level in zip(places, levels, strict=True) if level.logprob is not None]
    axis.plot([x for x, _ in points], [level.logprob for _, level in points], "o-", color=colour, label=name)
    for x, level in points:
        axis.annotate(
            f"{level.rollouts}",
            (x, level.logprob),
            xytext=(5, 5),
            textcoords="offset points",
            color=colour,
            fontsize="small",
        )


def _likelihood_axis(axis: Any, last: int, first: int = 1) -> None:
    axis.set_xticks(range(first, last + 1))
    axis.set_ylabel("log-prob per token, nats")
    axis.legend(title="numbers: rollouts", title_fontsize="small", fontsize="small")


def _ratio_tail(result: RatioTail, axes: Sequence[Any]) -> None:
    """P(∏ r < ε) over ε: after the last optimizer step, and for A > 0 after the earlier ones too."""
    colours = {"all": _ALL, "positive": _CORRECT, "negative": _INCORRECT}
    for axis, arm in zip(axes, result.arms, strict=True):
        last = arm.optimizer_steps
        for step in range(1, last):
            axis.plot(
                *_distribution(arm, "positive", step), color=_CORRECT, alpha=0.15 + 0.35 * step / last, linewidth=0.8
            )
        for kind, title in KINDS.items():
            if count := len(arm.of(kind, last)):
                axis.plot(*_distribution(arm, kind, last), color=colours[kind], label=f"{title} ({count} rollouts)")
        axis.set_title(f"{arm.penalty}: after {last} optimizer steps (thin: A > 0, earlier steps)")
        axis.set_xscale("log")
        axis.set_xlim(EPSILONS[-1], 1)
        axis.set_ylim(0, 1)
        axis.set_ylabel("P(∏ r < ε)")
        axis.legend(fontsize="small")
    axes[-1].set_xlabel("ε")


def _tail_leak(result: TailLeak, axis: Any) -> None:
    """A bar for each turn: the advantage of the tail, or of all tokens if the sampler is not truncated."""
    truncated = result.whole.tail_advantage is not None
    values = [turn.tail_advantage or 0.0 if truncated else turn.advantage for turn in result.turns]
    places = range(1, len(values) + 1)
    axis.bar(places, values, color=[_INCORRECT if value < 0 else _CORRECT for value in values])
    for place, value, turn in zip(places, values, result.turns, strict=True):
        correct = f"{100 * turn.correct / turn.rollouts:.0f} % correct"
        text = f"{turn.rollouts} rollouts\n{correct}\nmask mass {turn.mask_mass:.2f}"
        above = value >= 0
        axis.annotate(
            text,
            (place, value),
            xytext=(0, 4 if above else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize="small",
        )
    axis.axhline(0, color=_ALL, linewidth=0.8)
    axis.margins(y=0.3)
    axis.set_xticks(places)
    axis.set_xlabel("turn")
    axis.set_ylabel("advantage of the tail" if truncated else "advantage per token")


def _influence(result: Influence, axis: Any) -> None:
    """Predicted against measured change, of whole rollouts and of first actions."""
    for unit, colour in (("rollout", _ALL), ("first action", _CORRECT)):
        points = [(u.predicted, u.gradient) for u in result.units if u.unit == unit]
        correlation = result.agreement(unit, "gradient").correlation
        name = f"{unit}s ({len(points)}" + (")" if correlation is None else f", rank correlation {correlation:+.2f})")
        axis.scatter(*zip(*points, strict=True), s=12, color=colour, alpha=0.6, label=name)
    axis.axhline(0, color=_ALL, linewidth=0.8)
    axis.axvline(0, color=_ALL, linewidth=0.8)
    axis.set_xlabel("predicted change of correct rollouts, −GWHES / Z")
    axis.set_ylabel("measured, by the gradient")
    axis.legend(fontsize="small")


def _cases(result: Cases, axes: Sequence[Any]) -> None:
    """Change of each pair's log-likelihood, from the first token up to each one."""
    for axis, case in zip(axes, result.shown, strict=True):
        for rollout, colour in ((case.correct, _CORRECT), (case.incorrect, _INCORRECT)):
            sums = list(itertools.accumulate((t.after - t.before for t in rollout.tokens), initial=0.0))
            axis.plot(range(len(sums)), sums, color=colour, label="correct" if rollout.correct else "incorrect")
        axis.axvspan(0, case.shared_tokens, color=_ALL, alpha=0.12, linewidth=0, label="the same tokens")
        axis.axhline(0, color=_ALL, linewidth=0.8)
        axis.set_title(f"{case.id}: {', '.join(case.labels) or 'no label'}")
        axis.set_ylabel("change up to there, nats")
        axis.legend(fontsize="small")
    axes[-1].set_xlabel("sampled token")


def _distribution(arm: ArmRatios, kind: Any, step: int) -> tuple[list[float], list[float]]:
    grid = [10 ** (math.log10(EPSILONS[-1]) * (1 - i / 200)) for i in range(201)]
    return grid, [arm.share_below(epsilon, kind, step) for epsilon in grid]
