"""Every page, snippet and remedy advises the coefficient of `holdfast.hosts.advice`."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.hosts import HOSTS, PENALTY, words
from holdfast.hosts.advice import ADVICE
from holdfast.hosts.host import COEF
from holdfast.methods.penalties import LLDS

ROOT = Path(__file__).parents[2]
GIVEN = re.compile(r"LLDS\(coef=([\d.]+)|penalty_coef=([\d.]+)|loss\.penalty\.coef(?: |=)+([\d.]+)")
ELSEWHERE = {
    "examples/trl_stabilised.py",  # the tiny testbed at four times its rate, which needs 1
    "docs/guide/real-model.md",  # a comparison of coefficients
    "docs/reference/papers.md",  # what was published
}


def test_the_default_is_what_is_advised() -> None:
    assert LLDS().coef == COEF
    for host in HOSTS:
        if named := words(host, PENALTY):
            assert f"{COEF}" in " ".join(named), host


def test_pages_and_snippets_advise_it() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md"), *ROOT.glob("examples/*.*")]
    sources = [*ROOT.glob("src/holdfast/adapters/**/*.py"), *ROOT.glob("src/holdfast/cli/*.py")]
    seen = 0
    for path in (*pages, *sources):
        name = str(path.relative_to(ROOT))
        if name in ELSEWHERE or path.suffix not in (".md", ".py", ".sh") or name.startswith("docs/decisions"):
            continue
        for found in GIVEN.finditer(path.read_text(encoding="utf-8")):
            value = next(filter(None, found.groups()))
            seen += 1
            assert float(value) in (COEF, 0.0), f"{name}: {found[0]}"
    assert seen > 10


def test_every_row_has_its_evidence() -> None:
    for row in ADVICE.values():
        assert (ROOT / "research" / "docs" / row.evidence).is_file(), row


def test_trainers_are_in_the_situation_that_their_old_policy_says() -> None:
    for host in HOSTS.values():
        assert host.trainers.keys() <= ADVICE.keys(), host.id
        if host.old_policy({}, {}) == "sampler":
            assert host.trainers.keys() == {"sampler"}, host.id
