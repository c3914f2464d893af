"""Rollouts of two arms side by side, question by question, as the papers' case studies: research/docs/NAME-cases.md.

    python -m holdfast_research.pages.cases runs/lab/real-fall GRPO 'LLDS action' --at 13:4 13:13 14:22

`--at` has seeds and steps. The runs of a seed meet the same questions at the same step. Of each step it shows the first
question that both logged.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.base.files import write_whole
from holdfast_research.jobs import slug
from holdfast_research.paths import DOCS

LONGEST = 160
"""Characters of a passage that are shown."""

Rollout = Mapping[str, Any]


def rollouts(out: Path, arm: str, seed: int, step: int) -> dict[str, Rollout]:
    """The logged rollouts of a step by question; the first of each question."""
    path = out / "runs" / f"{slug(arm)}-s{seed}" / "trajectories.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row for row in reversed(rows) if row["step"] == step}


def shown(rollout: Rollout) -> Iterator[str]:
    """A rollout in lines: what the model wrote, and what a search brought."""
    for turn in rollout["turns"]:
        yield " ".join(turn["text"].split())
        if passage := " ".join(turn["observation"].split()):
            found = passage.removeprefix("<information>").removesuffix("</information>")
            yield f"    → {found[:LONGEST]}{'…' if len(found) > LONGEST else ''}"
    answer, match = rollout["answer"] or "none", rollout["reward_parts"]["em"]
    yield f"[answer: {answer}; {rollout['status']}; exact match {match:.0f}]"


def case(out: Path, arms: list[str], seed: int, step: int) -> Iterator[str]:
    """The Markdown of a step."""
    found = {arm: rollouts(out, arm, seed, step) for arm in arms}
    first = next(key for key in found[arms[0]] if all(key in by_id for by_id in found.values()))
    question = found[arms[0]][first]
    yield from (
        f"## Seed {seed}, step {step}",
        "",
        f"{question['question']} **{' / '.join(question['golden_answers'])}**",
        "",
    )
    for arm in arms:
        yield from (f"{arm}:", "", "```text", *shown(found[arm][first]), "```", "")


def page(out: Path, arms: list[str], places: list[tuple[int, int]]) -> str:
    """The page."""
    name = out.name
    lines = [
        f"# Cases of {name}",
        "",
        f"What the agents of [{name}]({name}.md) wrote in training. The runs of a seed meet the same questions at the "
        "same step. Of each step this is the first question of which both logged a rollout, and its first rollout. An "
        "arrow is what the search brought, shortened.",
        "",
        *(line for seed, step in places for line in case(out, arms, seed, step)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of `holdfast reproduce run`, named as the experiment")
    parser.add_argument("arms", nargs=2)
    parser.add_argument("--at", nargs="+", required=True, metavar="SEED:STEP")
    options = parser.parse_args()
    places = [(int(seed), int(step)) for seed, _, step in (place.partition(":") for place in options.at)]
    target = DOCS / f"{options.folder.name}-cases.md"
    write_whole(target, page(options.folder, options.arms, places))
    print(target)


if __name__ == "__main__":
    main()
