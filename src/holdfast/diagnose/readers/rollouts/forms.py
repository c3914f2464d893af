"""How trainers write rollouts: a row of one table each, from their fields to a `SampledRollout`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from holdfast.base.jsonl import BadField
from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.rollouts import SampledRollout, SampledTurn
from holdfast.diagnose.readers.rollouts.conversation import answer_of, conversation_of, cut

Row = Mapping[str, Any]

FIELDS: Mapping[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "gen_step", "training_step", "rollout_id"),
    "prompt": ("prompt", "input", "input_prompt", "question", "problem"),
    "completion": ("completion", "response", "output", "output_response"),
    "messages": ("messages", "messages_and_choices", "chat_completions", "conversation", "content"),
    "reward": ("reward", "score", "rewards", "total_reward", "metadata.total_reward", "em"),
    "advantage": ("advantage", "advantages"),
    "truncated": (
        *("is_truncated", "truncated", "status", "stop_reason", "stop_condition", "finish_reason"),
        "termination_reason",
    ),
    "correct": ("is_correct", "correct", "acc", "em"),
    "expected": ("golden_answers", "gts", "ground_truth", "label", "answer", "target"),
}
"""What a rollout is made of -> its names, the first that a row has. A name with dots is in objects of the row."""

_PLACES = frozenset(
    (
        *FIELDS["step"],
        *FIELDS["advantage"],
        *("index", "group_index", "sample_index", "group_idx", "traj_idx", "idx", "epoch", "seed", "example_id"),
        *("eval_step", "policy_version", "entropy", "num_turns", "input_lengths", "response_length"),
    )
)
"""Numbers of a row that do not belong to its reward."""
_TOTALS = frozenset(("reward", "rewards", "score", "total_reward"))
_CUT_SHORT = re.compile(r"trunc|length|max_|overlong", re.IGNORECASE)
_FAILED = re.compile(r"\A(?:aborted|failed|error)", re.IGNORECASE)
_IN_PATH = re.compile(r"(?:step|iteration|completions|epoch|rollout|trajector\w*|data)[_-]?(?:step[_-]?)?(\d+)|^(\d+)$")
_HELD_OUT = re.compile(
    r"^(?:eval|val|validation|test)(?:[_-]?(?:data|step|rollout|logtree|\d).*)?$|_evals?$|^dumped_evals$|^eval_",
    re.IGNORECASE,
)


def _one(row: Row) -> Iterator[Row]:
    yield row


def _columns(row: Row) -> Iterator[Row]:
    """A row whose values are lists with an element a rollout."""
    lists = {name: value for name, value in row.items() if isinstance(value, list)}
    for k in range(next((len(lists[name]) for name in ("completion", "rewards", "content") if name in lists), 0)):
        yield {**row, **{name: value[k] for name, value in lists.items() if k < len(value)}}


def _traces(row: Row) -> Iterator[Row]:
    """verifiers' Episode, with a trace for each agent, or a trace alone."""
    for trace in row.get("traces") or [row]:
        nodes = trace["nodes"]
        parents = [node.get("parent") for node in nodes]
        at, path = len(nodes) - 1, dict[int, None]()
        while isinstance(at, int) and 0 <= at < len(nodes) and at not in path:
            path[at] = None
            at = parents[at]
        own = [nodes[k] for k in reversed(path)]
        sampled = [value for node in own for value in node.get("advantages") or () if isinstance(value, int | float)]
        rewards = trace.get("rewards") or {}
        parts = {name: part["score"] * part.get("weight", 1.0) for name, part in rewards.items()}
        yield {
            **{name: value for name, value in row.items() if name != "traces"},
            **{f"reward/{name}": value for name, value in parts.items()},
            "messages": [node.get("message") for node in own],
            "reward": sum(parts.values()) if parts else trace.get("reward"),
            "advantage": sum(sampled) / len(sampled) if sampled else trace.get("advantage"),
            "stop_condition": trace.get("stop_condition"),
        }


def _trajectories(row: Row) -> Iterator[Row]:
    """A group of trajectories, whose last step may have the whole conversation."""
    for one in row["trajectories"]:
        steps = one.get("steps") or []
        last: Row = steps[-1] if steps else {}
        chat = list(last.get("chat_completions") or [])
        if chat and last.get("model_response") and chat[-1].get("role") != "assistant":
            chat.append({"role": "assistant", "content": last["model_response"]})
        outer = {name: value for name, value in row.items() if name != "trajectories"}
        yield {**outer, **one, **({"messages": chat} if chat else {})}


def _conversations(row: Row) -> Iterator[Row]:
    """The conversations in tinker-cookbook's tree of scopes, as deep as they are."""
    data = row.get("data")
    if isinstance(data, dict) and data.get("type") == "conversation":
        yield {"messages": data["messages"], "reward": data.get("reward", row.get("reward"))}
    for inner in row.get("children") or row.get("root", {}).get("children") or ():
        if isinstance(inner, dict):
            yield from _conversations(inner)


def _text_json(row: Row) -> Iterator[Row]:
    inner = bounded_json(row["trajectory_json"])
    yield {**row, **inner}


def _summed(row: Row) -> Iterator[Row]:
    """The row with the sum of its reward functions, which TRL's loss takes without weights of one's own."""
    numbers = {name: value for name, value in row.items() if type(value) in (int, float) and name not in _PLACES}
    named = {name: value for name, value in numbers.items() if "reward" in name.lower()} or numbers
    yield {**row, "reward": sum(named.values())} if named and "reward" not in row else row


def _swift(row: Row) -> Iterator[Row]:
    for one in _columns(row):
        yield from _summed(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to write rollouts."""

    title: str
    host: str
    marks: tuple[str, ...]
    """What each of its rows has: names, or alternatives with `|`."""
    unpacked: Callable[[Row], Iterator[Row]] = _one
    """The rollouts of a row, as rows."""
    lists: bool = False
    """Whether values are lists."""

    def fits(self, row: Row) -> bool:
        """Whether a row has this form."""
        return all(any(name in row for name in mark.split("|")) for mark in self.marks) and (
            not self.lists or any(isinstance(row.get(name), list) for name in ("completion", "rewards"))
        )


FORMS: tuple[Form, ...] = (
    Form(title="holdfast's trajectories.jsonl", host="holdfast", marks=("turns", "question")),
    Form(
        title="ms-swift's completions.jsonl",
        host="trl",
        marks=("prompt", "completion", "advantages"),
        unpacked=_swift,
        lists=True,
    ),
    Form(title="TRL's completions", host="trl", marks=("prompt", "completion", "advantage", "step"), unpacked=_summed),
    Form(title="verl's rollout_data_dir", host="verl", marks=("input", "output", "score")),
    Form(title="SkyRL's dumped_evals", host="skyrl", marks=("input_prompt", "output_response")),
    Form(title="verifiers' and prime-rl's traces", host="prime-rl", marks=("traces",), unpacked=_traces),
    Form(title="verifiers' and prime-rl's traces", host="prime-rl", marks=("nodes", "rewards"), unpacked=_traces),
    Form(title="verifiers' results.jsonl", host="prime-rl", marks=("example_id", "prompt", "completion", "reward")),
    Form(title="rLLM's episodes", host="verl", marks=("episode_id", "trajectories"), unpacked=_trajectories),
    Form(title="ART's groups", host="unknown", marks=("trajectories",), unpacked=_trajectories),
    Form(title="ART's trajectories", host="unknown", marks=("trajectory_json",), unpacked=_text_json),
    Form(title="NeMo-RL's train_data", host="unknown", marks=("content", "rewards"), unpacked=_columns, lists=True),
    Form(title="slime's samples", host="slime", marks=("group_index", "prompt", "response|messages", "reward")),
    Form(title="tinker-cookbook's rollout summaries", host="tinker", marks=("total_reward", "traj_idx", "steps")),
    Form(title="tinker-cookbook's logtree", host="tinker", marks=("root|children",), unpacked=_conversations),
    Form(
        title="messages with a reward",
        host="unknown",
        marks=("messages|messages_and_choices|chat_completions", "reward|rewards|score|total_reward|metadata"),
    ),
    Form(
        title="prompt, completion and reward",
        host="unknown",
        marks=("prompt|question|problem|input", "completion|response|output|output_response"),
    ),
)
"""Every form, the more particular ones first: the first that fits a row reads it."""

PANELS = Form(title="TRL's printed completions", host="trl", marks=("prompt", "completion"), unpacked=_summed)
"""The tables in the output of TRL."""


def form_of(row: Row, given: Mapping[str, str]) -> Form | None:
    """The form of a row; None for a row that is not a rollout. `given` has what names the user gave to parts of it."""
    if given and any(name in row for name in given.values()):
        return Form(title="rows with the names given", host="unknown", marks=tuple(given.values()))
    return next((form for form in FORMS if form.fits(row)), None)


def rollouts_of(row: Row, form: Form, path: Path, given: Mapping[str, str]) -> Iterator[SampledRollout]:
    """The rollouts of a row. `path` is that of its file, from the folder that the user named. Raises `BadField` for a
    row that cannot be read."""
    try:
        if form is FORMS[0]:
            yield _ours(row)
            return
        fields = {**FIELDS, **{part: (name,) for part, name in given.items()}}
        for one in form.unpacked(row):
            yield _rollout(one, fields, path)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise BadField("row", f"is not one of {form.title} ({type(error).__name__})") from None


def _rollout(row: Row, fields: Mapping[str, tuple[str, ...]], path: Path) -> SampledRollout:
    def of(part: str) -> Any:
        return next((value for name in fields[part] if (value := _at(row, name)) is not None), None)

    completion = of("completion")
    prompt, question, turns = conversation_of(
        of("prompt") if completion is not None else None, of("messages") if completion is None else completion
    )
    expected, correct = of("expected"), _number(of("correct"))
    golden = expected if isinstance(expected, list) else _golden(expected)
    held_out = any(_HELD_OUT.search(part) for part in (*path.parts[:-1], path.name.split(".")[0]))
    return SampledRollout(
        step=_step(of("step"), path),
        question=question or cut(str(_at(row, "question") or ""), 1000),
        prompt="" if prompt.strip() == question else prompt,
        golden_answers=tuple(str(one) for one in golden)[:20],
        turns=turns,
        answer=answer_of(turns),
        correct=None if correct is None else correct == 1.0,
        reward=_number(of("reward")),
        advantage=_number(of("advantage")),
        status=_status([row.get(name) for name in fields["truncated"]], row.get("error")),
        held_out=held_out,
        numbers={k: float(v) for k, v in row.items() if type(v) in (int, float, bool) and k not in _PLACES | _TOTALS},
    )


def _at(row: Row, name: str) -> Any:
    """The value of a name, which may lead into objects."""
    if name in row or "." not in name:
        return row.get(name)
    outer, _, inner = name.partition(".")
    part = row.get(outer)
    return _at(part, inner) if isinstance(part, Mapping) else None


def _golden(expected: Any) -> list[Any]:
    """Right answers, which verl and others put into an object as `target`."""
    inner = expected.get("target", expected.get("ground_truth")) if isinstance(expected, Mapping) else expected
    return [] if inner is None else inner if isinstance(inner, list) else [inner]


def _step(value: Any, path: Path) -> int:
    """The step of a row, or the number in the nearest part of its path that has one; 0 without any."""
    if isinstance(value, list):
        value = value[0] if value else None
    if value is not None and (found := re.match(r"\s*(\d+)", str(value))):
        return int(found[1])
    for part in (path.name.split(".")[0], *reversed(path.parts[:-1])):
        if found := _IN_PATH.search(part):
            return int(found[1] or found[2])
    return 0


def _status(said: list[Any], error: Any) -> str:
    """`truncated` or `error` if the row says so in any of its words for how it ended."""
    words = [value for value in said if isinstance(value, str)]
    if any(value is True for value in said) or any(map(_CUT_SHORT.search, words)):
        return "truncated"
    return "error" if error or any(map(_FAILED.search, words)) else "ok"


def _number(value: Any) -> float | None:
    """A number, also one in a list or in an object of weighted parts; None for anything else."""
    if isinstance(value, list):
        numbers = [inner for part in value if (inner := _number(part)) is not None]
        return sum(numbers) / len(numbers) if numbers else None
    if isinstance(value, Mapping):
        return _number(value.get("total", value.get("score")))
    try:
        number = float("nan" if value is None else value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# ---- our own


def _ours(row: Row) -> SampledRollout:
    parts = row.get("reward_parts") or {}
    return SampledRollout(
        step=int(row["step"]),
        question=str(row["question"]),
        golden_answers=tuple(map(str, row.get("golden_answers") or ())),
        turns=tuple(map(_parse_turn, row["turns"])),
        answer=None if row.get("answer") is None else str(row["answer"]),
        correct=float(parts.get("em", 0.0)) == 1.0,
        reward=_number(row.get("reward")),
        status=str(row.get("status", "ok")),
        numbers={f"reward/{name}": float(value) for name, value in parts.items()},
    )


def _parse_turn(row: Row) -> SampledTurn:
    text, query = str(row["text"]), row.get("query")
    return SampledTurn(
        text=text,
        observation=str(row.get("observation") or ""),
        query=None if query is None else str(query),
        hits=tuple(map(str, row.get("hits") or ())),
        tokens=_tokens(text, row.get("token_chars"), row.get("token_changes")),
    )


def _tokens(text: str, chars: Any, changes: Any) -> tuple[tuple[str, float], ...] | None:
    """Pieces of the text with their changes; None if not measured, or if they do not fit the text."""
    if not chars or not changes or len(chars) != len(changes) or min(chars) < 0 or sum(chars) != len(text):
        return None
    ends = accumulate(chars, initial=0)
    return tuple((text[a:b], number_or_nan(change)) for (a, b), change in zip(pairwise(ends), changes, strict=True))


def number_or_nan(value: Any) -> float:
    """NaN for null, which JSON has in place of NaN."""
    return float("nan" if value is None else value)
