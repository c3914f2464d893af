"""docs/reference/codes.md shows the rules' own texts: the table of what a log can decide, and a section per code.

Run as a script (`make docs`) this writes those parts of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.diagnose.codes import CODES
from holdfast.diagnose.diagnose import logged_by
from holdfast.diagnose.rules import RULES
from holdfast.hosts import HOSTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "codes.md"
MARK = "<!-- {} made from holdfast.diagnose by `make docs`; edit the texts there -->\n"
END = "<!-- end of {} -->\n"

OBSERVED = {
    "trl": "`with_penalties(GRPOTrainer)`, which leaves the loss as it is",
    "verl": "`actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_observe`, which leaves the loss as it is",
}
STOCK = {host: {row.ours for row in HOSTS[host].series} for host in ("trl", "verl")}


OF_OTHERS = {"rollout/failed_call_fraction", "rollout/staleness", "rollout/turns"}
"""What `holdfast train` does not log."""


def everything(name: str) -> bool:
    return name not in OF_OTHERS


def stock(host: str) -> Callable[[str], bool]:
    return lambda name: name in STOCK[host]


def observed(host: str) -> Callable[[str], bool]:
    return lambda name: name in STOCK[host] or logged_by(host, name) == OBSERVED[host]


def whole(host: str) -> Callable[[str], bool]:
    return lambda name: logged_by(host, name) is not None


COLUMNS: dict[str, Callable[[str], bool]] = {
    "holdfast": everything,
    "TRL, stock": stock("trl"),
    "TRL, observed": observed("trl"),
    "TRL, `SearchRollouts` too": whole("trl"),
    "verl, stock": stock("verl"),
    "verl, observed": observed("verl"),
}


def answer(code: str, logs: Callable[[str], bool]) -> str:
    """Whether a log with these series decides a code: by the rule's best evidence, by weaker one, or not."""
    if code == "PEN001" and logs is not everything:
        return "with a penalty" if logs("penalty/active_fraction") else "–"
    able = [all(logs(name) for name in names) for names in RULES[code].needs]
    if able[0] or (any(able) and RULES[code].equal_needs):
        return "yes"
    return "partly" if any(able) else "–"


def table() -> str:
    rows = [f"| code | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    for code in CODES:
        answers = [answer(code, logs) for logs in COLUMNS.values()]
        rows.append(f"| [{code}](#{anchor(code)}) | {' | '.join(answers)} |")
    return "\n".join(rows) + "\n"


def anchor(code: str) -> str:
    return re.sub(r"[^\w\- ]", "", title(code).lower()).replace(" ", "-")


def title(code: str) -> str:
    return f"{code}: {RULES[code].title}"


def section(code: str) -> str:
    rule = RULES[code]
    needs = "; or ".join(", ".join(f"`{name}`" for name in names) for names in rule.needs)
    figure = DOCS / "figures" / f"{code.lower()}.svg"
    lines = [f"### {title(code)}", "", f"{rule.meaning} {rule.impact}", ""]
    if figure.is_file():
        lines += [f"![{rule.title}, in a recorded run](../figures/{figure.name})", ""]
    lines += [f"* **Needs** {needs}."]
    lines += [f"* **Change.** {rule.remedy['unknown']}"]
    lines += [
        f"* **In {name}.** {', '.join(named)}"
        for name, host in (("holdfast", "holdfast"), ("TRL", "trl"), ("verl", "verl"))
        if (named := dict.fromkeys(re.findall(r"`[^`]+`", rule.remedy[host])))
    ]
    lines += [f"* **Known problems.** {rule.limitations}", ""]
    return "\n".join(lines)


def made() -> dict[str, str]:
    return {"table": table(), "codes": "\n".join(section(code) for code in CODES)}


def filled(page: str) -> str:
    """The page with its made parts as they should be."""
    for part, text in made().items():
        head, mark, rest = page.partition(MARK.format(part))
        _, end, tail = rest.partition(END.format(part))
        assert mark and end, f"the page has lost the marks of its {part}"
        page = head + mark + text + end + tail
    return page


def test_the_page_shows_the_rules() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "docs/reference/codes.md is behind the code: run `make docs`"


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_every_way_of_observing_is_one_the_table_knows(host: str) -> None:
    assert OBSERVED[host] in HOSTS[host].logged_by.values()


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
