"""The parts of pages in docs/reference that are made from code: `make docs` writes them, between their marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.adapters.launch.plan import launch_of
from holdfast.base.tested import TESTED
from holdfast.diagnose.diagnose import logged_by
from holdfast.diagnose.log import METRICS
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules.remedies import OUR_BUG, Remedy
from holdfast.hosts import HOSTS, advice
from holdfast.methods.registry import METHODS, Method, series
from holdfast.recipe import load

DOCS = Path(__file__).parents[1]
MARK, END = "<!-- {}: made by `make docs` -->\n", "<!-- end of {} -->\n"


# ---- codes.md

OBSERVED = {
    "trl": "`with_penalties(GRPOTrainer)`, which leaves the loss as it is",
    "verl": "`actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_observe`, which leaves the loss as it is",
}
STOCK = {host: {row.ours for row in HOSTS[host].series} for host in ("trl", "verl")}


OF_OTHERS = {"rollout/failed_call_fraction", "rollout/staleness", "rollout/turns"}
"""What `holdfast train` does not log."""


def _everything(name: str) -> bool:
    return name not in OF_OTHERS


def _stock(host: str) -> Callable[[str], bool]:
    return lambda name: name in STOCK[host]


def _observed(host: str) -> Callable[[str], bool]:
    assert OBSERVED[host] in HOSTS[host].logged_by.values()
    return lambda name: name in STOCK[host] or logged_by(host, name) == OBSERVED[host]


def _whole(host: str) -> Callable[[str], bool]:
    return lambda name: logged_by(host, name) is not None


COLUMNS: dict[str, Callable[[str], bool]] = {
    "holdfast": _everything,
    "TRL, stock": _stock("trl"),
    "TRL, observed": _observed("trl"),
    "TRL, `SearchRollouts` too": _whole("trl"),
    "verl, stock": _stock("verl"),
    "verl, observed": _observed("verl"),
}


def answer(code: str, logs: Callable[[str], bool]) -> str:
    """Whether a log with these series decides a code: by the rule's best evidence, by weaker one, or not."""
    if code == "PEN001" and logs is not _everything:
        return "with a penalty" if logs("penalty/active_fraction") else "–"
    able = [all(logs(name) for name in names) for names in RULES[code].needs]
    if able[0] or (any(able) and RULES[code].equal_needs):
        return "yes"
    return "partly" if any(able) else "–"


def decidable() -> str:
    """What a log can decide: a row for each code that not every log decides in full."""
    answers = {code: [answer(code, logs) for logs in COLUMNS.values()] for code in RULES}
    links = {code: f"[{code}](#{_anchor(code)})" for code in RULES}
    always = [links[code] for code, found in answers.items() if set(found) == {"yes"}]
    rows = [f"| code | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    rows += [f"| {links[code]} | {' | '.join(found)} |" for code, found in answers.items() if set(found) != {"yes"}]
    return "\n".join([*rows, "", f"Every log of these decides {', '.join(always)}."]) + "\n"


def _anchor(code: str) -> str:
    return re.sub(r"[^\w\- ]", "", _title(code).lower()).replace(" ", "-")


def _title(code: str) -> str:
    return f"{code}: {RULES[code].title}"


def section(code: str) -> str:
    """What a rule says of itself."""
    rule = RULES[code]
    needs = "; or ".join(", ".join(f"`{name}`" for name in names) for names in rule.needs)
    figure = DOCS / "figures" / f"{code.lower()}.svg"
    lines = [f"### {_title(code)}", "", f"{rule.meaning} {rule.impact}", ""]
    if figure.is_file():
        lines += [f"![{code}](../figures/{figure.name})", ""]
    first = next(other for other in RULES if RULES[other].remedy["unknown"] == rule.remedy["unknown"])
    change = rule.remedy["unknown"] if first == code else f"As for [{first}](#{_anchor(first)})."
    lines += [f"* **Needs** {needs}.", f"* **Change.** {change}"]
    if first == code:
        own = {name: only_for(rule.remedy, host) for name, host in NAMES.items()}
        lines += [f"* **In {name}.** {said}" for name, said in own.items() if said and said != OUR_BUG]
    lines += [f"* **Limitations.** {rule.limitations}", ""]
    return "\n".join(lines)


NAMES = {"holdfast": "holdfast", "TRL": "trl", "verl": "verl"}
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")
SETTINGS = re.compile(r" \((?:`[^`]+`(?:, )?)+\)")


def only_for(remedy: Remedy, host: str) -> str:
    """The sentences of a remedy that only one host has; others differ by names of settings, which `--explain` has."""
    common = remedy["unknown"]
    return " ".join(said for said in SENTENCE.split(remedy[host]) if SETTINGS.sub("", said) not in common)


# ---- methods.md and metrics.md


def methods() -> str:
    """What every method says of itself."""
    rows = ["| method | what it does | source | needs | in TRL | in verl |", "|---|---|---|---|---|---|"]
    return "\n".join([*rows, *map(method_row, METHODS.values())]) + "\n"


def method_row(kind: type[Method]) -> str:
    """A method's row."""
    what = " ".join((kind.__doc__ or "").split())
    needs = ", ".join(sorted(kind.needs)) or "–"
    trl, verl = ("; ".join(in_host(kind, host)) for host in ("trl", "verl"))
    return f"| `{kind.name}` | {what} | {kind.source} | {needs} | {trl} | {'the same' if verl == trl else verl} |"


def in_host(kind: type[Method], host: str) -> Iterator[str]:
    """The options of a host for the method's defaults, or why there are none."""
    made = launch_of(host).method(kind(), load())
    if made.absent:
        yield f"no: {made.absent}"
    elif not made.options:
        yield "yes"
    yield from (f"`{option.name}`" for option in made.options)


def glossary() -> str:
    """The metrics in their own order: some entries say "the same"."""
    rows = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |\n" for name, text in (METRICS | series()).items()]
    return "".join(["| metric | meaning |\n|---|---|\n", *rows])


# ---- hosts.md


def tested() -> str:
    """The oldest and the newest version of each package with which its adapter was tested."""
    rows = [f"| `{package}` | {versions.oldest} | {versions.newest} |\n" for package, versions in TESTED.items()]
    return "".join(["| package | oldest | newest |\n|---|---|---|\n", *rows])


# ---- all of them

PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "codes.md": {
        "table": decidable,
        "codes": lambda: "\n".join(map(section, RULES)),
    },
    "methods.md": {"methods": methods},
    "metrics.md": {"glossary": glossary},
    "hosts.md": {"tested": tested},
    "advice.md": {"advice": lambda: "\n".join([*advice.table(), ""])},
}
"""Page -> its parts."""


def page(name: str) -> str:
    """A page with its made parts as they should be."""
    text = (DOCS / "reference" / name).read_text(encoding="utf-8")
    for part, make in PARTS[name].items():
        head, mark, rest = text.partition(MARK.format(part))
        _, end, tail = rest.partition(END.format(part))
        assert mark and end, f"{name} has lost the marks of its {part}"
        text = f"{head}{mark}\n{make()}\n{end}{tail}"
    return text


if __name__ == "__main__":
    for name in PARTS:
        (DOCS / "reference" / name).write_text(page(name), encoding="utf-8")
