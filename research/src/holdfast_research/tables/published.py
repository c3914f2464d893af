"""What the papers print: exact match on the seven sets, with how it was measured, to compare your rows with.

Numbers are fractions. A row that a paper gives by its average alone has no sets. `docs/evaluate.md` says why rows of
different sources cannot be compared directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


@dataclass(frozen=True, slots=True)
class Source:
    """A paper or report, and the protocol of its evaluation."""

    cites: str
    decoding: str
    searches: str
    scorer: str
    remark: str = ""


_SAMPLED = "one sample at T 1, top-p .95"
_PROMPT_TOO = "EM, last answer of prompt and response"
SEARCH_R1 = Source("arXiv 2503.09516", _SAMPLED, "4", _PROMPT_TOO)
SEARCH_R1_PPO = Source("arXiv 2503.09516", "one sample at T 1, top-p 1", "4", _PROMPT_TOO)
SEARCH_R1_IRCOT = Source("arXiv 2503.09516", "not said", "not said", "EM", "prompt not published")
SEARCH_R1_PROMPTING = Source("arXiv 2503.09516", "not said", "none", "EM", "prompt not published")
_LAST_DROPPED = "Bamboogle without its last question"
LLDS_1 = Source("arXiv 2512.04220 v1", _SAMPLED, "4 in the paper, 3 or 4 in its scripts", _PROMPT_TOO, _LAST_DROPPED)
LLDS_2 = Source("arXiv 2512.04220 v2", _SAMPLED, "4 in the paper, 3 or 4 in its scripts", _PROMPT_TOO, _LAST_DROPPED)
QUOTED = Source("as arXiv 2512.04220 v2 quotes it", "not said", "not said", "EM")
SAPO = Source("arXiv 2603.10069", _SAMPLED, "5", _PROMPT_TOO, "F1 reward; checkpoint chosen on test questions")
VERL_TOOL = Source("verl-tool's README, step 200", "not said", "not said", "EM", "plain GRPO, another's port")
SKYRL = tuple(
    Source("SkyRL's report, 330 steps", "greedy", str(searches), "EM", "plain GRPO, another's port")
    for searches in (1, 2, 3)
)
TINKER = Source("Tinker's cookbook", "not said", "not said", "EM", "plain GRPO, another's port; four sets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One row as it was printed."""

    name: str
    source: Source
    values: Mapping[str, float]
    average: float | None
    """As printed; None where the row has too few sets."""
    against: str | None = None
    """The row its gain is over, by name within its block."""
    printed_gain: float | None = None
    """Gain of the average in percent, as the paper has it."""


def _row(
    name: str,
    source: Source,
    numbers: str,
    average: float | None,
    against: str | None = None,
    printed: float | None = None,
) -> Published:
    """`numbers` are the sets' thousandths, in the order of `SETS`; `-` for one that is not given."""
    words = numbers.split()
    values = {name: int(word) / 1000 for name, word in zip(SETS, words, strict=False) if word != "-"}
    return Published(name=name, source=source, values=values, average=average, against=against, printed_gain=printed)


GRPO, GRPO_NQ = "Search-R1 GRPO", "Search-R1 GRPO, NQ alone"
_GRPO_3B = _row(GRPO, SEARCH_R1, "421 583 413 297 274 66 128", 0.312)
_GRPO_3I = _row(GRPO, SEARCH_R1, "397 565 391 331 310 124 232", 0.336)

BLOCKS: dict[str, tuple[Published, ...]] = {
    "qwen2.5-3b": (
        _row("Search-R1 PPO", SEARCH_R1_PPO, "", 0.303),
        _GRPO_3B,
        _row(GRPO_NQ, LLDS_1, "440 582 413 265 244 61 113", 0.303),
        _row("ZeroSearch", QUOTED, "", 0.345),
        _row("StepSearch", QUOTED, "", 0.311),
        _row("Tree-GRPO", QUOTED, "", 0.424),
        _row("+ LLD, NQ alone", LLDS_1, "462 609 464 286 248 63 113", 0.321, GRPO_NQ),
        _row("+ LLDS-R, NQ alone", LLDS_1, "478 605 449 288 250 62 129", 0.323, GRPO_NQ),
        _row("+ LLDS-A, NQ alone", LLDS_2, "491 615 450 306 275 67 121", 0.332, GRPO_NQ),
        _row("+ LLDS-R", LLDS_1, "479 634 462 350 308 86 201", 0.360, GRPO, 15.4),
        _row("+ LLDS-R, version 2", LLDS_2, "480 631 455 352 311 87 153", 0.353, GRPO),
        _row("+ LLDS-R-MA", LLDS_1, "486 632 462 444 430 183 371", 0.430, GRPO, 37.8),
        _row("+ LLDS-A", LLDS_2, "479 627 453 345 323 82 210", 0.360, GRPO),
        _row("+ LLDS-A-MA", LLDS_2, "483 633 474 452 443 197 395", 0.440, GRPO, 45.2),
        _row("SAPO", SAPO, "474 630 449 449 412 196 424", 0.433, GRPO),
        _row("GRPO of verl-tool", VERL_TOOL, "", 0.410, GRPO),
    ),
    "qwen2.5-3b-instruct": (
        _row("Direct", SEARCH_R1_PROMPTING, "106", None),
        _row("CoT", SEARCH_R1_PROMPTING, "23", None),
        _row("Search-R1 PPO", SEARCH_R1_PPO, "", 0.325),
        _GRPO_3I,
        _row("+ LLDS-R", LLDS_1, "462 622 460 432 383 180 395", 0.419, GRPO, 24.7),
        _row("+ LLDS-A", LLDS_2, "462 627 468 443 447 197 444", 0.441, GRPO, 31.3),
        _row("GSPO", LLDS_2, "376 561 374 332 329 98 250", 0.331),
        _row("GSPO + LLDS-R", LLDS_2, "484 637 475 452 448 212 387", 0.442, "GSPO"),
        _row("GSPO + LLDS-A", LLDS_2, "489 640 483 466 456 215 403", 0.451, "GSPO", 36.3),
        _row("SAPO", SAPO, "469 629 457 456 448 203 432", 0.442, GRPO, 31.5),
        _row("GRPO with F1 reward", SAPO, "402 662 436 374 376 134 333", 0.388),
        _row("SAPO, like for like", SAPO, "442 673 474 433 415 181 382", 0.429, "GRPO with F1 reward"),
        _row("GRPO of SkyRL, 2 turns", SKYRL[0], "", 0.356, GRPO),
        _row("GRPO of SkyRL, 3 turns", SKYRL[1], "", 0.421, GRPO),
        _row("GRPO of SkyRL, 4 turns", SKYRL[2], "", 0.403, GRPO),
    ),
    "qwen2.5-7b": (
        _row("Search-R1 PPO", SEARCH_R1_PPO, "", 0.431),
        _row(GRPO, SEARCH_R1, "395 560 388 326 297 125 360", 0.350),
        _row("ZeroSearch", QUOTED, "", 0.409),
        _row("StepSearch", QUOTED, "", 0.382),
        _row("Tree-GRPO", QUOTED, "", 0.439),
        _row("+ LLDS-R, NQ alone", LLDS_1, "514 666 470 403 368 151 347", 0.417),
        _row("+ LLDS-R", LLDS_1, "504 666 471 465 475 209 444", 0.462, GRPO, 32.0),
        _row("+ LLDS-A", LLDS_2, "512 672 480 486 469 232 508", 0.480, GRPO, 37.1),
    ),
    "qwen2.5-7b-instruct": (
        _row("Direct", SEARCH_R1_PROMPTING, "134", None),
        _row("CoT", SEARCH_R1_PROMPTING, "48", None),
        _row("IRCoT", SEARCH_R1_IRCOT, "224 478 301 133 149 72 224", 0.239),
        _row("Search-R1 PPO", SEARCH_R1_PPO, "", 0.385),
        _row(GRPO, SEARCH_R1, "429 623 427 386 346 162 400", 0.396),
        _row("+ LLDS-R, NQ alone", LLDS_1, "517 645 460 401 298 158 411", 0.413),
        _row("+ LLDS-R", LLDS_1, "498 662 464 473 443 228 516", 0.469, GRPO, 18.4),
        _row("+ LLDS-A", LLDS_2, "518 676 486 492 490 228 492", 0.483, GRPO, 22.0),
        _row("SAPO", SAPO, "473 658 480 471 439 231 480", 0.462, GRPO),
        _row("GRPO of Tinker", TINKER, "516 673 - 497 428", None),
    ),
    "llama3.2-3b": (
        _row("GRPO", LLDS_2, "233 461 220 196 232 44 97", 0.212),
        _row("+ LLDS", LLDS_2, "486 643 467 366 298 113 242", 0.374, "GRPO"),
        _row("+ LLDS-MA", LLDS_2, "493 640 480 449 462 164 298", 0.427, "GRPO"),
        _row("GRPO of the SAPO paper", SAPO, "394 596 437 280 264 56 105", 0.305),
        _row("SAPO", SAPO, "471 630 452 355 301 102 248", 0.366, "GRPO of the SAPO paper"),
    ),
}
"""Model -> its rows, trained on NQ and HotpotQA unless said otherwise."""

DISPUTED: dict[tuple[str, str], str] = {
    ("qwen2.5-3b", "+ LLDS-A-MA"): (
        "printed +45.2 % is next to GRPO's .312, over which it is +41.0 %; it is the gain over .303, the average of "
        "GRPO on NQ alone and of PPO"
    ),
    ("qwen2.5-7b-instruct", "IRCoT"): "printed average .239, in Search-R1 and in LLDS; its seven numbers have .226",
}
"""Gains and averages that the printed numbers do not give, and what they seem to be."""
