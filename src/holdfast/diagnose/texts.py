"""What the texts of rollouts show: kinds of rollouts to look at, and those that are frequent, each with an example."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from holdfast.base.thoughts import thoughts_in
from holdfast.diagnose.finding import TextFinding
from holdfast.diagnose.readers.rollouts import FAILURES, SampledRollout, SampledTurn
from holdfast.diagnose.readers.rollouts.conversation import CALL, called
from holdfast.diagnose.readers.text import clean
from holdfast.diagnose.text_groups import copies, mixed_groups

MIN_ROLLOUTS, MIN_FOUND = 8, 3
"""Fewest rollouts whose share is judged, and fewest of a kind that are a finding."""
_EXAMPLE = 160

_AROUND = re.compile(r"</?\w+>")
_ERROR = re.compile(
    r"\w+(?:Error|Exception)\b|(?:error|traceback|exception|failed to|unknown tool|too many requests|bad gateway)\b|"
    r"(?:connection refused|service unavailable|timed? ?out)\b|invalid (?:json|arguments?|action|tool)|"
    r"(?:tool|function) \S+ (?:not found|does not exist|failed)|http \d{3}\b|my (?:previous )?action is invalid",
    re.IGNORECASE,
)
_EMPTY = re.compile(
    r"(?:no (?:\w+ )?(?:results?|passages?|documents?|matches)\b.{0,60}|nothing found|none|null|results?)?",
    re.IGNORECASE | re.DOTALL,
)
_EXAMPLES = re.compile(r"<(answer|search)>([^<]*)</\1>")
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1cff\u2e80-\ud7ff\uf900-\ufaff]")
_SHORT = 300
"""Characters of an observation in which an error shows, or that nothing was found."""
_LONG, _COMPRESSED = 600, 0.15
"""Characters of a text that can repeat itself, and the share of them that remains when it is compressed. Prose keeps
.4 and lists of facts .25."""
_SWITCHED = 0.1
"""Share of the letters that are of another script than what the model was given."""


def tool_error(rollout: SampledRollout) -> str:
    """The observation that is an error."""
    return next((turn.observation for turn in rollout.turns if _ERROR.match(_said(turn.observation))), "")


def empty_result(rollout: SampledRollout) -> str:
    """The query of a search that found nothing."""
    return next((turn.query or "(no query)" for turn in rollout.turns if _is_empty(turn)), "")


def _is_empty(turn: SampledTurn) -> bool:
    if not turn.observation:
        return False
    if turn.hits is not None:
        return turn.query is not None and not turn.hits
    return len(turn.observation) < _SHORT and _EMPTY.fullmatch(_said(turn.observation)) is not None


def _said(observation: str) -> str:
    """The beginning of an observation, without tags and marks around its words."""
    return _AROUND.sub("", observation[:_SHORT]).strip(" \t\r\n.,:;!*#[]{}()\"'`-")


def malformed_call(rollout: SampledRollout) -> str:
    """What is wrong with a call, and the call."""
    for turn in rollout.turns[:-1] if rollout.status == "truncated" else rollout.turns:  # a last turn was cut off
        for body, end in CALL.findall(turn.text):
            if not end:
                return f"the closing tag is missing: {body.strip()[:_EXAMPLE]}"
            if called(body) is None and "<function=" not in body:
                return f"not a JSON object with a name: {body.strip()[:_EXAMPLE]}"
        if "<search>" in turn.text and "</search>" not in turn.text and not turn.observation:
            return f"the closing tag is missing: {turn.text[turn.text.rfind('<search>') :][:_EXAMPLE]}"
    return ""


def repeats(rollout: SampledRollout) -> str:
    """The span that a rollout repeats."""
    text = "\n".join(turn.text for turn in rollout.turns)
    if len(text) < _LONG or len(zlib.compress(text.encode("utf-8", "replace"), 1)) > _COMPRESSED * len(text):
        return ""
    half = text[len(text) // 2 :]
    again = half.find(half[:40], 1)
    return half[: again if 0 < again < _EXAMPLE else _EXAMPLE]


def copies_example(rollout: SampledRollout) -> str:
    """The example of the prompt that is the answer, or the query, of a rollout."""
    if rollout.correct:
        return ""
    for tag, inner in dict.fromkeys(_EXAMPLES.findall(rollout.prompt)):
        example = inner.strip()
        golden = {one.strip().lower() for one in rollout.golden_answers}
        if len(example) < 3 or example.lower() in golden:
            continue
        said = [rollout.answer] if tag == "answer" else [turn.query for turn in rollout.turns]
        if any(one is not None and one.strip().lower() == example.lower() for one in said):
            return f"<{tag}> {example} </{tag}>"
    return ""


def switches_language(rollout: SampledRollout) -> str:
    """Where a rollout leaves the script of what it was given."""
    written = "".join(turn.text for turn in rollout.turns)
    if written.isascii():
        return ""
    found = _OTHER_SCRIPT.findall(written)
    given = f"{rollout.question}{rollout.prompt}{''.join(turn.observation for turn in rollout.turns)}"
    if len(found) < max(8, _SWITCHED * len(written)) or len(_OTHER_SCRIPT.findall(given)) > 0.01 * len(given):
        return ""
    first = _OTHER_SCRIPT.search(written)
    return written[max(first.start() - 40, 0) :] if first else ""


def says_nothing(rollout: SampledRollout) -> str:
    """The only character that a rollout is made of."""
    written = "".join(turn.text for turn in rollout.turns).strip()
    return written if written and len(set(written)) == 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of rollout that the page can filter, and that is found if it is frequent."""

    title: str
    """What the rollouts do, as `12 of 64 rollouts …` continues."""
    share: float
    """The share of rollouts from which on it is a finding."""
    example: Callable[[SampledRollout], str]
    """What shows it in a rollout; empty where it does not."""
    advice: str


KINDS: Mapping[str, Kind] = {
    "tool_error": Kind(
        title="get an error from a tool",
        share=0.1,
        example=tool_error,
        advice="Call the tool by hand with these arguments. While it fails, rewards say nothing about the policy.",
    ),
    "empty": Kind(
        title="search and find nothing",
        share=0.35,
        example=empty_result,
        advice="Send these queries to the search server by hand: the index, its language or a filter may not fit the "
        "questions.",
    ),
    "malformed": Kind(
        title="write a tool call that cannot be read",
        share=0.1,
        example=malformed_call,
        advice="Compare the call with the format that the prompt asks for and the parser reads. Without an example "
        "in the prompt or a warm start, a small model rarely learns the format.",
    ),
    "repeats": Kind(
        title="repeat the same span over and over",
        share=0.05,
        example=repeats,
        advice="Go back to a checkpoint from before this, and lower the learning rate. A repetition penalty in the "
        "sampler hides the loops, but the model keeps them.",
    ),
    "blank": Kind(
        title="write nothing but one character",
        share=0.05,
        example=says_nothing,
        advice="Check the chat template, the stop strings, and that the sampler loads its weights in `bf16` or full "
        "precision. If this began during the run, go back to an earlier checkpoint.",
    ),
    "copied": Kind(
        title="copy the example of the prompt",
        share=0.05,
        example=copies_example,
        advice="Choose an example that cannot be an answer, or remove it.",
    ),
    "language": Kind(
        title="switch to a different script from the question",
        share=0.05,
        example=switches_language,
        advice="A reward that only checks the answer does not notice this. Reward the language, or add a KL penalty "
        "towards the initial checkpoint.",
    ),
}
"""Kinds that a rollout shows alone, by the name of the page's filter."""


def outcomes_of(rollout: SampledRollout) -> list[str]:
    """`correct` or `incorrect` where it is known, and what else can be said of it: `truncated`, `failed` (not the
    policy's fault), `held_out`, `unanswered`, `invalid` (a turn that neither searched nor answered), and `KINDS`."""
    failed = rollout.status in FAILURES
    ours = all(turn.hits is not None for turn in rollout.turns)
    searched = [turn.query is not None or bool(turn.hits) for turn in rollout.turns]
    ends = rollout.answer is not None or rollout.status != "ok"  # the last turn answered, or was cut off
    also = {
        "truncated": rollout.status == "truncated",
        "failed": failed,
        "unanswered": ours and rollout.answer is None and not failed,
        "invalid": ours and not all(searched[:-1] if ends else searched),
        "held_out": rollout.held_out,
        **{name: bool(kind.example(rollout)) for name, kind in KINDS.items()},
    }
    result = [] if rollout.correct is None else ["correct" if rollout.correct else "incorrect"]
    return result + [name for name, holds in also.items() if holds]


# ---- findings


def text_findings(rollouts: Sequence[SampledRollout]) -> tuple[TextFinding, ...]:
    """What the texts of a run show, by step."""
    judged = [rollout for rollout in rollouts if rollout.turns and rollout.status not in FAILURES[1:]]
    if len(judged) < MIN_ROLLOUTS:
        return ()
    found = [_frequent(judged, name, kind) for name, kind in KINDS.items()]
    found += [_same_result(judged), _unsearched(judged), _noisy_reward(judged), _dying_thought(judged)]
    found += [copies(judged), mixed_groups(judged), _parted_judge(judged)]
    return tuple(sorted(filter(None, found), key=lambda one: one.step))


def _frequent(rollouts: Sequence[SampledRollout], name: str, kind: Kind) -> TextFinding | None:
    flagged = {id(rollout): example for rollout in rollouts if (example := kind.example(rollout))}
    if len(flagged) < max(MIN_FOUND, kind.share * len(rollouts)) and not _ends_with(rollouts, flagged, kind.share):
        return None
    steps = _by_step(rollouts)
    step = next(s for s, rows in steps.items() if sum(id(row) in flagged for row in rows) >= kind.share * len(rows))
    example = next((flagged[id(row)] for row in steps[step] if id(row) in flagged), next(iter(flagged.values())))
    summary = f"{len(flagged):,} of {len(rollouts):,} rollouts {kind.title}."
    return TextFinding(kind=name, step=step, summary=summary, example=clean(example, _EXAMPLE), advice=kind.advice)


def _ends_with(rollouts: Sequence[SampledRollout], flagged: Mapping[int, str], share: float) -> bool:
    """Whether twice the share of the last fifth of the rollouts is flagged: what begins late is still found."""
    last = rollouts[-max(MIN_ROLLOUTS, len(rollouts) // 5) :]
    return sum(id(rollout) in flagged for rollout in last) >= max(MIN_FOUND, 2 * share * len(last))


def _by_step(rollouts: Iterable[SampledRollout]) -> dict[int, list[SampledRollout]]:
    steps: dict[int, list[SampledRollout]] = defaultdict(list)
    for rollout in rollouts:
        steps[rollout.step].append(rollout)
    return dict(sorted(steps.items()))


_SAME_QUERIES, _SAME_SHARE = 5, 0.2
"""Different queries with one result, and their share of all queries: a search that does not look at the query."""


def _same_result(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """The same result for many different queries."""
    queries: dict[str, dict[str, SampledRollout]] = defaultdict(dict)
    for rollout in rollouts:
        for turn in rollout.turns:
            if (
                turn.query
                and turn.observation.strip()
                and not _is_empty(turn)
                and not _ERROR.match(_said(turn.observation))
            ):
                queries[turn.observation].setdefault(turn.query, rollout)
    asked = {query for of_result in queries.values() for query in of_result}
    result = max(queries, key=lambda text: len(queries[text]), default="")
    same = queries.get(result, {})
    if len(same) < max(_SAME_QUERIES, _SAME_SHARE * len(asked)):
        return None
    step = min(rollout.step for rollout in same.values())
    return TextFinding(
        kind="same",
        step=step,
        summary=f"{len(same):,} of {len(asked):,} different queries get the same result.",
        example=clean(result, _EXAMPLE),
        advice="Send two of these queries to the tool by hand. It may have failed, or ignore the query. While it does, "
        "rewards say nothing about the policy.",
    )


_USED, _UNSEARCHED = 0.3, 0.2
_ERRORS = 4.0


def _unsearched(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """Rollouts that answer without a call, though others call, and earn clearly less."""
    scored = [(rollout, rollout.reward) for rollout in rollouts if rollout.reward is not None]
    without = [(rollout, reward) for rollout, reward in scored if not searches(rollout)]
    called_one = [reward for rollout, reward in scored if searches(rollout)]
    if len(without) < max(MIN_FOUND, _UNSEARCHED * len(scored)) or len(called_one) < _USED * len(scored):
        return None
    rewards = [reward for _, reward in without]
    error = (pstdev(rewards) ** 2 / len(rewards) + pstdev(called_one) ** 2 / len(called_one)) ** 0.5
    if fmean(called_one) - fmean(rewards) <= _ERRORS * error or not called_one:
        return None
    first = without[0][0]
    return TextFinding(
        kind="unsearched",
        step=first.step,
        summary=f"{len(without):,} of {len(scored):,} rollouts answer without a search. Their mean reward is "
        f"{fmean(rewards):.2g}, compared with {fmean(called_one):.2g} for the others.",
        example=clean(first.turns[-1].text, _EXAMPLE),
        advice="If the reward does not require evidence, guessing is cheaper. Lower the learning rate, or reward "
        "answers that the retrieved text supports.",
    )


def searches(rollout: SampledRollout) -> bool:
    """Whether a rollout calls a tool."""
    return any(turn.query is not None or turn.observation or turn.hits for turn in rollout.turns)


def _noisy_reward(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """The same text for the same question at the same step, and different rewards."""
    twins: dict[object, list[SampledRollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is not None:
            texts = tuple((turn.text, turn.observation) for turn in rollout.turns)
            twins[rollout.step, rollout.prompt, rollout.question, rollout.golden_answers, rollout.status, texts].append(
                rollout
            )
    groups = [group for group in twins.values() if len(group) > 1]
    noisy = [group for group in groups if len({round(row.reward or 0.0, 6) for row in group}) > 1]
    if len(noisy) < max(MIN_FOUND, 0.05 * len(groups)):
        return None
    first = min(noisy, key=lambda group: group[0].step)
    rewards = sorted({row.reward or 0.0 for row in first})
    return TextFinding(
        kind="noisy",
        step=first[0].step,
        summary=f"{len(noisy):,} of {len(groups):,} sets of identical rollouts have different rewards, such as "
        f"{rewards[0]:.3g} and {rewards[-1]:.3g}.",
        example=clean(first[0].turns[-1].text, _EXAMPLE),
        advice="The reward depends on something other than the rollout. Ask the judge at temperature 0, or find what "
        "else the reward function reads.",
    )


_STEPS, _THOUGHT_BEFORE, _THOUGHT_LEFT = 8, 80.0, 1 / 3


def thought_of(rollout: SampledRollout) -> int:
    """Characters of thought: between its tags, or, without tags, before calls and answers."""
    texts = [turn.text for turn in rollout.turns]
    tagged = [thought for text in texts for thought in thoughts_in(text)]
    return sum(map(len, tagged)) if tagged else sum(len(text.split("<", 1)[0]) for text in texts)


def _dying_thought(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """Thought that is a third as long as in the first quarter of the steps, or less, to the end."""
    steps = _by_step(rollouts)
    if len(steps) < _STEPS:
        return None
    means = {step: fmean(map(thought_of, rows)) for step, rows in steps.items()}
    quarter = max(2, len(steps) // 4)
    before = fmean([*means.values()][:quarter])
    if before < _THOUGHT_BEFORE or fmean([*means.values()][-quarter:]) > _THOUGHT_LEFT * before:
        return None
    above = [k for k, mean in enumerate(means.values()) if mean > _THOUGHT_LEFT * before]
    step = [*steps][min(max(above) + 1, len(steps) - 1)]
    was, now = (_mean_reward(steps[one] for one in part) for part in ([*steps][:quarter], [*steps][-quarter:]))
    said = "" if was is None or now is None else f" The reward was {was:.2g} then and is now {now:.2g}."
    return TextFinding(
        kind="thought",
        step=step,
        summary=f"The rollouts no longer contain reasoning: it shrank from {before:,.0f} characters per rollout in "
        f"the first steps to {means[step]:,.0f} at step {step}.{said}",
        example=clean(min(steps[step], key=thought_of).turns[0].text, _EXAMPLE),
        advice="If the reward has not fallen yet, it may fall next: short answers that earned rewards early displace "
        "the reasoning. Lower the learning rate, or start from an earlier checkpoint.",
    )


_JUDGE, _PARTED = ("reward/judge", "reward/em"), 0.2


def _parted_judge(rollouts: Sequence[SampledRollout]) -> TextFinding | None:
    """Answers that a judge accepts and exact match does not, or the other way round, a fifth or more."""
    both = [rollout for rollout in rollouts if all(name in rollout.numbers for name in _JUDGE)]
    verdicts = [tuple(rollout.numbers[name] >= 0.5 for name in _JUDGE) for rollout in both]
    parted = [rollout for rollout, (judge, em) in zip(both, verdicts, strict=True) if judge != em]
    if len(parted) < max(MIN_FOUND, _PARTED * len(both)):
        return None
    more = sum(judge and not em for judge, em in verdicts)
    first = parted[0]
    return TextFinding(
        kind="judge",
        step=first.step,
        summary=f"The judge and exact match disagree on {len(parted):,} of {len(both):,} rollouts: only the judge "
        f"accepts {more:,} of them, and only exact match accepts {len(parted) - more:,}.",
        example=clean(f"{first.question} {first.answer} (golden: {', '.join(first.golden_answers)})", _EXAMPLE),
        advice="Read some of them. If the judge is right, the golden answers lack aliases. If not, make "
        "reward.judge.rubric stricter or use a stronger judge, before the policy learns to exploit it.",
    )


def _mean_reward(rows: Iterable[Sequence[SampledRollout]]) -> float | None:
    rewards = [rollout.reward for part in rows for rollout in part if rollout.reward is not None]
    return fmean(rewards) if rewards else None
