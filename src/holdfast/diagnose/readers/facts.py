"""The numbers that a printed line says, by name, and its step: `step 12 loss 0.3 reward 0.5`, or with other marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.diagnose.readers.axes import below_eval, is_evaluation
from holdfast.diagnose.readers.columns import number_in
from holdfast.diagnose.readers.names import snake

LINE = 1 << 14
"""Characters of a line that may be a row."""
CORE = re.compile(r"loss|reward|(?<![a-z])r(?:ew|m)(?![a-z])", re.IGNORECASE)
"""What a row says. OpenRLHF calls its reward `rm`."""

# Two parts of a pattern that could share characters, as in `\s*:?\s*`, would take quadratic time on a long line.
_DIGITS = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)"
_NUMBER = r"(?!\d+ ?\(\d[\d.]*%)" + _DIGITS + r"(?:%(?!\|))?(?![\w%:]|[.,]\d)"  # `44 (0.3%)` is a count, `44%|` a bar
_PAIR = re.compile(
    r"(?<![\w./:@-])((?:(?!INFO|DEBUG|WARN)[A-Za-z]\w* )?[A-Za-z][\w./-]*)(?:\s*[:=]\s*|\s+)(" + _NUMBER + ")",
    re.IGNORECASE,
)
_NAME = r"([A-Za-z][\w./-]*(?: [A-Za-z(][\w./()-]*)*)"
_CELL = re.compile(_NAME + r"(?:\s*[:=]\s*|\s+)(" + _DIGITS + r"%?)(?![\w:]|[.,]\d)[^\d|:=]*", re.IGNORECASE)
_WHOLE = re.compile(
    r"\W*" + _NAME + r"\s*[:=]\s*(" + _DIGITS + r"%?)\s*(?:(?:±|\+/?-)\s*" + _DIGITS + r")?(?:s|sec|seconds)?\s*",
    re.IGNORECASE,
)
"""A line, or a part between commas, that says one thing: `• Mean length: 117.1 ± 12`."""
_FACTS = re.compile(r"(?:[^\w=:+.-]*[A-Za-z][\w./-]*\s*[:=]\s*" + _DIGITS + r"%?(?![\w.:]))+\W*", re.IGNORECASE)
_PART = re.compile(r"(?:^|[\]:|]\s*)([A-Za-z]+(?: [A-Za-z]+)*) - (?=(?:mean|avg|average|min|max)\b)", re.IGNORECASE)
_GROUP = re.compile(
    r"(?<![\w/])([A-Za-z][\w/]*)\s*:\s*((?:(?:mean|avg|average|min|max|std|median)\s*[=:]\s*"
    + _DIGITS
    + r"(?:[ ,;/]+|(?=\W|$)))+)",
    re.IGNORECASE,
)
"""The statistics of one thing: `reward: mean=0.5 std=0.1`."""
_OF_PART = ("mean", "avg", "average", "min", "max", "std")
_LIST = re.compile(r"(?<=[:=])\s*\[([^\[\]]*)\]")
_CALL = re.compile(r"\b[A-Z]\w*\((?=\w+=)|\[(?=['\"][\w.+@/-]+=)")
"""Where a printed object or a list of overrides begins: `Config(a=1, …)`, `['a.b=1', …]`."""
_ASKED = re.compile(
    r"\b(?:prompt|question|query|problem)\s*[:=]\s*(?=['\"]?[A-Za-z])(?!\w+\s*[:=])"
    rf"(?:(?!{CORE.pattern}| \| ).)*",
    re.IGNORECASE,
)
"""The text of a question, up to a wall or what its completion got: `Prompt: What is 3+4? Reward 0.0`."""
_STEP = re.compile(r"(?<![A-Za-z./-])(?:step|iteration|iter)s?\s*(?:[:=#]\s*)?(\d{1,15})(?![\w.,]*?\d)", re.IGNORECASE)
_COUNTER = re.compile(
    r"(?<![A-Za-z./-])(?:update|batch|round|rollout)s?\s*(?:[:=#\[]\s*)?(\d{1,15})(?![\w.,]*?\d)", re.IGNORECASE
)
_EPOCH = re.compile(r"(?<![A-Za-z])ep(?:och|isode)s?\s*(?:[:=]\s*)?\[?(\d{1,9})(/\d+)?(?![.\d])\]?", re.IGNORECASE)
BAR = re.compile(r"%\|[^|]*\|\s*(\d{1,9})/(\d{1,9})\s*\[")
_COUNT = re.compile(r"(?:^|[\s\[(,])(\d{1,9})/(\d{1,9})(?=[\])\s|:,]|$)")
_COUNTS = re.compile(r"(?:^|[ _])(?:step|iteration|iter|epoch|ep|update|batch|round|rollout)s?$")
_REWARD = re.compile(r"(?:train(?:ing)?_)?(?:(?:mean|avg|average)_)?rewards?(?:_(?:mean|avg|average))?|rm")
_MEAN = re.compile(r"mean|avg|average")
_WORD = re.compile(r"(?<![\w/.])[A-Za-z]+(?![\w/.])")


@dataclass(frozen=True, slots=True)
class Core:
    """What a line says that makes it a row."""

    within: tuple[str, ...]
    """Parts of a line without which it says nothing of this; quicker than the pattern on the many lines that do not."""
    name: re.Pattern[str]

    def is_in(self, line: str) -> bool:
        """Whether a line may say it."""
        low = line.lower()
        return any(part in low for part in self.within)


LEARNT = Core(("loss", "rew", "rm="), CORE)
SCORED = Core(
    ("score", "return", "success", "acc"), re.compile(r"score|return|success|acc(?:uracy)?(?![a-z])", re.IGNORECASE)
)
"""What tells of learning where a log says neither a loss nor a reward."""


def says_core(line: str) -> bool:
    """Whether a line says something of a loss or a reward."""
    return LEARNT.is_in(line)


@dataclass(slots=True)
class Facts:
    """What a line says."""

    numbers: dict[str, float] = field(default_factory=dict)
    """By name; those of a mean reward by `reward`, and those of an evaluation below `eval/`."""
    twice: tuple[str, ...] = ()
    """Names under which the line has two numbers. The second is kept as `name_2`."""
    of_mean: bool = False
    """Whether its reward is said to be a mean."""


def row_in(line: str, core: Core = LEARNT) -> tuple[int, Facts] | None:
    """The step and the facts of a line that has a step and a loss or a reward; None for any other line.

    >>> step, facts = row_in("INFO step=12 | Loss: 0.5, mean reward = 0.25")
    >>> step, facts.numbers, row_in("the loss fell to 0.5")
    (12, {'loss': 0.5, 'reward': 0.25}, None)
    >>> row_in("Epoch:[2/3](5/100), Reward: 1.5")[0], row_in("Step 3 | rewards=['0.5', '1.0']")[1].numbers
    (105, {'reward': 0.75})
    """
    step = step_in(line) if len(line) <= LINE and core.is_in(line) else None
    if step is None:
        return None
    facts = facts_in(line)
    if facts.numbers and (epoch := _EPOCH.search(line)):
        facts.numbers["epoch"] = float(epoch[1])  # which shows that steps start again
    if is_of_evaluation(line):
        facts.numbers = below_eval(facts.numbers)
    return (step, facts) if any(map(core.name.search, facts.numbers)) else None


def facts_in(line: str) -> Facts:
    """The numbers of a line by name. A list of numbers counts as its mean; an object that was printed says nothing, and
    neither does the text of a question.

    >>> facts_in("Prompt: What is 3+4? Reward 0.5 | length 12").numbers, facts_in("prompt: 256, loss 0.5").numbers
    ({'length': 12.0, 'reward': 0.5}, {'prompt': 256.0, 'loss': 0.5})
    """
    if call := _CALL.search(line):
        line = line[: call.start()]
    line = _ASKED.sub("", line)
    if "[" in line:
        line = _LIST.sub(_mean_of, line)
    if "mean" in line or "avg" in line:
        line = _GROUP.sub(lambda found: _WORD.sub(rf"{found[1]}_\g<0>", found[2]), line)
    row: dict[str, float] = {}
    means: dict[str, float] = {}
    twice = []
    part = _PART.search(line) if " - " in line else None
    for name, number in _pairs(line):
        name = snake(name.strip()).lower()
        if name.endswith(".py") or _COUNTS.search(name):
            continue
        if part is not None and name in _OF_PART:
            name = f"{part[1].lower()}/{name}"
        name = name.replace(" ", "_")
        into = means if _REWARD.fullmatch(name) else row
        if into.get(name, number) != number:
            twice.append(name)
            name = f"{name}_2"
        into[name] = number
    if means:
        row["reward"] = means["reward"] if "reward" in means else next(iter(means.values()))
    return Facts(row, tuple(twice), bool(means) and all(map(_MEAN.search, means)))


def is_of_evaluation(line: str) -> bool:
    """Whether a line says before its step that it is of an evaluation.

    >>> is_of_evaluation("[Eval] step 3 reward 0.5"), is_of_evaluation("step 3 test reward 0.5")
    (True, False)
    """
    placed = _STEP.search(line) or _EPOCH.search(line) or _COUNT.search(line)
    return placed is not None and any(map(is_evaluation, _WORD.findall(line, 0, placed.start())))


def fact_in(line: str) -> dict[str, float]:
    """The one thing that a whole line says, such as `• Mean length: 117.1`; {} for any other line."""
    whole = _WHOLE.fullmatch(line) if len(line) <= LINE else None
    return {} if whole is None else {snake(whole[1]).lower().replace(" ", "_"): _number(whole[2])}


def says_only_facts(line: str) -> bool:
    """Whether a line has nothing but names and their numbers, with marks between.

    >>> says_only_facts("mean_length: 256   clipped_ratio: 1"), says_only_facts("it took 256 s: 1")
    (True, False)
    """
    return _FACTS.fullmatch(line) is not None


def names_step(line: str) -> bool:
    """Whether a line has a step in words."""
    return _STEP.search(line) is not None


def step_in(line: str) -> int | None:
    """The step in words, else a count such as `3/100` or that of a bar, which continues over epochs, else a count of
    updates or the like, else the epoch."""
    if named := _STEP.search(line):
        return int(named[1])
    epoch = _EPOCH.search(line)
    count = _count_in(line, epoch)
    last = _COUNTER.search(line) or epoch
    if count is None or (last is not None and _is_of_answers(line, count)):
        return int(last[1]) if last else None
    before = int(epoch[1]) - bool(epoch[2]) if epoch else 0  # `Epoch 0`, but `epoch [1/3]`
    return before * int(count[2]) + int(count[1])


def _count_in(line: str, epoch: re.Match[str] | None) -> re.Match[str] | None:
    count = BAR.search(line) or _COUNT.search(line, epoch.end() if epoch else 0)
    return None if count is None or int(count[1]) > int(count[2]) else count


def _is_of_answers(line: str, count: re.Match[str]) -> bool:
    """Whether a count stands behind a loss or a reward: `reward 0.5, correct 8/16`."""
    said = CORE.search(line)
    return said is not None and said.start() < count.start() and not BAR.match(line, count.start())


def has_epoch_alone(line: str) -> bool:
    """Whether a line with a step has that of its epoch and no finer one.

    >>> has_epoch_alone("Epoch 2 | mean reward 0.5"), has_epoch_alone("Epoch 2, 3/40 | mean reward 0.5")
    (True, False)
    """
    epoch = None if _STEP.search(line) or _COUNTER.search(line) else _EPOCH.search(line)
    count = _count_in(line, epoch)
    return epoch is not None and (count is None or _is_of_answers(line, count))


def _pairs(line: str) -> Iterator[tuple[str, float]]:
    """(name, number) of what a line says. In a part between bars or commas the name may have any number of words."""
    cells = line.split(" | ")
    for cell in cells:
        whole = _CELL.fullmatch(cell.strip()) if len(cells) > 1 else None
        if whole is not None:
            yield whole[1], _number(whole[2])
            continue
        for piece in cell.split(", "):
            if (alone := _WHOLE.fullmatch(piece)) is not None:
                yield alone[1], _number(alone[2])
            else:
                yield from ((name, _number(text)) for name, text in _PAIR.findall(piece))


def _mean_of(found: re.Match[str]) -> str:
    """The mean of the numbers of a list, as a text; the list itself if it has others."""
    items = found[1].split(",") if "," in found[1] else found[1].split()
    numbers = [number_in(item.strip().strip("'\"")) for item in items]
    known = [number for number in numbers if number is not None]
    return str(sum(known) / len(known)) if known and len(known) == len(numbers) else found[0]


def _number(text: str) -> float:
    """The number of a text that is one by the patterns above."""
    number = number_in(text)
    assert number is not None
    return number
