"""Which penalty to begin with, and how strong: by what the trainer's ratio compares with, and how old its rollouts are.

The one table that says it; `Host.trainers` has which trainers are in each situation. Snippets, remedies and pages
follow it (tests/contracts/test_advice.py). The numbers are test scores of research/docs: exact match, sampled and
greedy, means of three seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.hosts import HOSTS
from holdfast.hosts.host import COEF

WITH, WITHOUT = f"begin with LLDS at {COEF}", "begin without a penalty"
"""What pages, remedies and the doctor say where rollouts are stale: with a recomputed old policy, and with the
sampler's."""


class Advice(NamedTuple):
    """What to do under one old policy."""

    old_policy: str
    rollouts: str
    begin: str
    stronger: str
    cost: str
    evidence: str
    """Page of the study, in `research/docs`."""


ADVICE: Mapping[str, Advice] = {
    "fresh": Advice(
        old_policy="recomputed",
        rollouts="fresh",
        begin=f"no penalty; LLDS at {COEF} if likelihood of correct rollouts decays (`LLD001`, `LLD003`)",
        stronger="1 at a learning rate that is too high and cannot be lowered",
        cost=f"at {COEF}: sampled .79 for .80, greedy .90 for .89; at 1: sampled .69, greedy .91 (pretrained model, 24 "
        "batches)",
        evidence="factbook.md",
    ),
    "stale": Advice(
        old_policy="recomputed",
        rollouts="stale, by four optimizer steps or more",
        begin=f"LLDS at {COEF}; better, fresher rollouts",
        stronger="1 if it still falls, or at a high learning rate",
        cost="eight batches old: none ends at .27 sampled, .27 greedy (0 to .84 on eight seeds); "
        f"{COEF} at .77, .86; 1 at .74, .87; fresh without a penalty .82, .89",
        evidence="real-age.md",
    ),
    "sampler": Advice(
        old_policy="the sampler's",
        rollouts="stale",
        begin="no penalty",
        stronger="nowhere: LLDS at 1 on top cost 9 and 31 points sampled, 16 and 80 greedy",
        cost="pretrained model, eight batches old: .76 sampled, .92 greedy, for .33, .34 recomputed; on a second seed "
        ".78, .90 for .84, .86; tiny model: one batch old .76, .86; four .72, .85; sixteen .66, .43",
        evidence="old-policy.md",
    ),
}


def table() -> list[str]:
    """The table in Markdown, for docs/reference/advice.md."""
    rows = ["| old policy | rollouts | trainers | begin with | stronger | what it costs |", "|---|---|---|---|---|---|"]
    for situation, row in ADVICE.items():
        known = [host.trainers[situation] for host in HOSTS.values() if situation in host.trainers]
        page = f"[{row.evidence.removesuffix('.md')}](../../research/docs/{row.evidence})"
        trainers = ", ".join(known)
        cells = (row.old_policy, row.rollouts, trainers, row.begin, row.stronger, f"{row.cost} ({page})")
        rows.append(f"| {' | '.join(cells)} |")
    return rows
