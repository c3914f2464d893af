"""What the papers print on the seven sets, with how it was measured, to compare your rows with.

Exact match, and token F1 where a paper prints it. Numbers are fractions. A row that a paper gives by its average alone
has no sets; means over kinds of sets follow from the sets. Search-R1's numbers are those of its fifth version. LLDS
prints its baselines again; a row is stored twice only where the numbers differ. `docs/reference/scoring.md` says why
rows of different sources cannot be compared directly, and `docs/reference/tables.md`, which table is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
_BOTH = "printed for base and instruct together"
SEARCH_R1 = Source("arXiv 2503.09516", _SAMPLED, "4", _PROMPT_TOO)
SEARCH_R1_PPO = Source("arXiv 2503.09516", "one sample at T 1, top-p 1", "4", _PROMPT_TOO)
SEARCH_R1_AGENT = Source("arXiv 2503.09516", "not said", "not said", "EM", f"prompt not published; {_BOTH}")
SEARCH_R1_CLOSED = Source("arXiv 2503.09516", "not said", "none", "EM", f"prompt not published; {_BOTH}")
SEARCH_R1_RAG = Source("arXiv 2503.09516", "not said", "one, before the answer", "EM", _BOTH)
SEARCH_R1_TUNED = Source("arXiv 2503.09516", "not said", "none", "EM", _BOTH)
SEARCH_R1_R1 = Source("arXiv 2503.09516", "not said", "none", "EM")
SEARCH_R1_REJECTION = Source("arXiv 2503.09516", "not said", "not said", "EM", _BOTH)
_LAST_DROPPED = "Bamboogle without its last question"
LLDS_1 = Source("arXiv 2512.04220 v1", _SAMPLED, "4 in the paper, 3 or 4 in its scripts", _PROMPT_TOO, _LAST_DROPPED)
LLDS_2 = Source("arXiv 2512.04220 v2", _SAMPLED, "4 in the paper, 3 or 4 in its scripts", _PROMPT_TOO, _LAST_DROPPED)
QUOTED = Source("as arXiv 2512.04220 v2 quotes it", "not said", "not said", "EM")
SAPO_QUOTES = Source("as arXiv 2603.10069 quotes it", "not said", "not said", "EM", "base or instruct only where named")
SAPO = Source("arXiv 2603.10069", _SAMPLED, "5", _PROMPT_TOO, "F1 reward; checkpoint chosen on test questions")
SAPO_ABLATION = Source("arXiv 2603.10069", _SAMPLED, "5", _PROMPT_TOO, "F1 reward, 5 rollouts a question, 300 steps")
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
    f1: Mapping[str, float] = field(default_factory=dict)
    """Token F1 by set, where it is printed."""
    f1_average: float | None = None
    multi_hop: float | None = None
    """The printed mean of the multi-hop sets, where it is not that of the row's four numbers."""


def _by_set(numbers: str) -> dict[str, float]:
    """The sets' values from their thousandths, in the order of `SETS`; `-` for one that is not given."""
    return {name: int(word) / 1000 for name, word in zip(SETS, numbers.split(), strict=False) if word != "-"}


def _row(
    name: str,
    source: Source,
    numbers: str,
    average: float | None,
    against: str | None = None,
    printed: float | None = None,
) -> Published:
    values = _by_set(numbers)
    return Published(name=name, source=source, values=values, average=average, against=against, printed_gain=printed)


def _with_f1(row: Published, f1: str, f1_average: float) -> Published:
    """The row with the F1 that SAPO's table of model sizes prints."""
    return replace(row, f1=_by_set(f1), f1_average=f1_average)


GRPO, GRPO_NQ = "Search-R1 GRPO", "Search-R1 GRPO, NQ alone"
PPO = "Search-R1 PPO"

BLOCKS: dict[str, tuple[Published, ...]] = {
    "qwen2.5-1.5b-instruct": (
        _with_f1(_row("SAPO", SAPO, "440 591 432 413 381 160 384", 0.400), "528 671 480 532 445 247 487", 0.484),
    ),
    "qwen2.5-3b": (
        _row("R1-base", SEARCH_R1_R1, "226 455 173 201 268 55 224", 0.229),
        _row(PPO, SEARCH_R1_PPO, "406 587 435 284 273 49 88", 0.303),
        _row(f"{PPO} without feedback mask", SEARCH_R1_PPO, "346 484 365 241 244 53 104", 0.262),
        _row(GRPO, SEARCH_R1, "421 583 413 297 274 66 128", 0.312),
        _row(GRPO_NQ, LLDS_1, "440 582 413 265 244 61 113", 0.303),
        _row("ReSearch", SAPO_QUOTES, "427 597 430 305 272 74 128", 0.319),
        _row("ZeroSearch", QUOTED, "430 616 414 338 346 130 139", 0.345),
        _row("StepSearch", QUOTED, "296 490 341 294 360 140 258", 0.311),
        _row("StepSearch of the SAPO paper", SAPO_QUOTES, "- - - 329 339 181 328", None),
        _row("EXSEARCH", SAPO_QUOTES, "368 - - 422 372 138 -", None),
        _row("O2-Searcher", SAPO_QUOTES, "444 597 429 388 374 160 344", 0.391),
        _row("AutoRefine", SAPO_QUOTES, "467 620 450 405 393 157 344", 0.405),
        _row("InForage", SAPO_QUOTES, "421 597 452 409 428 172 360", 0.405),
        _row("CriticSearch", QUOTED, "- - - 414 409 180 368", None),
        _row("SE-Search", SAPO_QUOTES, "475 624 423 450 361 183 424", 0.420),
        _row("Tree-GRPO", QUOTED, "468 597 436 424 437 178 432", 0.424),
        _row("+ LLD, NQ alone", LLDS_1, "462 609 464 286 248 63 113", 0.321, GRPO_NQ, 5.9),
        _row("+ LLDS-R, NQ alone", LLDS_1, "478 605 449 288 250 62 129", 0.323, GRPO_NQ, 6.6),
        _row("+ LLDS-A, NQ alone", LLDS_2, "491 615 450 306 275 67 121", 0.332, GRPO_NQ),
        _row("+ LLDS-R", LLDS_1, "479 634 462 350 308 86 201", 0.360, GRPO, 15.4),
        _row("+ LLDS-R, version 2", LLDS_2, "480 631 455 352 311 87 153", 0.353, GRPO),
        _row("+ LLDS-R-MA", LLDS_1, "486 632 462 444 430 183 371", 0.430, GRPO, 37.8),
        _row("+ LLDS-A", LLDS_2, "479 627 453 345 323 82 210", 0.360, GRPO, 15.4),
        _row("+ LLDS-A-MA", LLDS_2, "483 633 474 452 443 197 395", 0.440, GRPO, 45.2),
        _row("SAPO", SAPO, "474 630 449 449 412 196 424", 0.433, GRPO),
        _row("GRPO of verl-tool", VERL_TOOL, "", 0.410, GRPO),
    ),
    "qwen2.5-3b-instruct": (
        _row("Direct", SEARCH_R1_CLOSED, "106 288 108 149 244 20 24", 0.134),
        _row("CoT", SEARCH_R1_CLOSED, "23 32 5 21 21 2 0", 0.015),
        _row("IRCoT", SEARCH_R1_AGENT, "111 312 200 164 171 67 240", 0.181),
        _row("Search-o1", SEARCH_R1_AGENT, "238 472 262 221 218 54 320", 0.255),
        _row("RAG", SEARCH_R1_RAG, "348 544 387 255 226 47 80", 0.270),
        _row("SFT", SEARCH_R1_TUNED, "249 292 104 186 248 44 112", 0.176),
        _row("R1-instruct", SEARCH_R1_R1, "210 449 171 208 275 60 192", 0.224),
        _row("Rejection sampling", SEARCH_R1_REJECTION, "294 488 332 240 233 59 210", 0.265),
        _row(PPO, SEARCH_R1_PPO, "341 545 378 324 319 103 264", 0.325),
        _row(GRPO, SEARCH_R1, "397 565 391 331 310 124 232", 0.336),
        _row("ReSearch", SAPO_QUOTES, "365 571 395 351 272 95 266", 0.331),
        _row("ZeroSearch", QUOTED, "414 574 448 274 300 98 111", 0.317),
        _row("AutoRefine", SAPO_QUOTES, "436 597 447 404 380 169 336", 0.396),
        _row("+ LLD, NQ alone", LLDS_2, "469 609 457 291 250 57 97", 0.319),
        _row("+ LLDS-R, NQ alone", LLDS_1, "490 610 450 294 193 74 121", 0.319),
        _row("+ LLDS-R-MA, NQ alone", LLDS_1, "464 616 458 363 320 131 315", 0.381, GRPO, 13.4),
        _row("+ LLDS-A, NQ alone", LLDS_2, "485 614 455 299 266 62 129", 0.330),
        _row("+ LLDS-R", LLDS_1, "462 622 460 432 383 180 395", 0.419, GRPO, 24.7),
        _row("+ LLDS-A", LLDS_2, "462 627 468 443 447 197 444", 0.441, GRPO, 31.3),
        _row("GSPO", LLDS_2, "376 561 374 332 329 98 250", 0.331),
        _row("GSPO + LLDS-R", LLDS_2, "484 637 475 452 448 212 387", 0.442, "GSPO", 33.5),
        _row("GSPO + LLDS-A", LLDS_2, "489 640 483 466 456 215 403", 0.451, "GSPO", 36.3),
        _with_f1(
            _row("SAPO", SAPO, "469 629 457 456 448 203 432", 0.442, GRPO, 31.5), "562 708 504 581 517 299 553", 0.533
        ),
        _row("GRPO with F1 reward", SAPO_ABLATION, "402 662 436 374 376 134 333", 0.388),
        _row("+ KL to old, no condition", SAPO_ABLATION, "425 625 443 428 371 175 342", 0.398, "GRPO with F1 reward"),
        _row("+ KL to old, on r", SAPO_ABLATION, "439 660 456 457 369 169 369", 0.417, "GRPO with F1 reward"),
        _row("SAPO, like for like", SAPO_ABLATION, "442 673 474 433 415 181 382", 0.429, "GRPO with F1 reward", 10.6),
        _row("SAPO, τ 0.6", SAPO, "", 0.418),
        _row("SAPO, τ 0.8", SAPO, "", 0.425),
        _row("SAPO, τ 1.2", SAPO, "", 0.434),
        _row("GRPO of SkyRL, 2 turns", SKYRL[0], "", 0.356, GRPO),
        _row("GRPO of SkyRL, 3 turns", SKYRL[1], "", 0.421, GRPO),
        _row("GRPO of SkyRL, 4 turns", SKYRL[2], "", 0.403, GRPO),
    ),
    "qwen2.5-7b": (
        _row("R1-base", SEARCH_R1_R1, "297 539 202 242 273 83 296", 0.276),
        _row("R1-base as LLDS quotes it", QUOTED, "297 539 199 242 273 83 203", 0.262),
        _row(PPO, SEARCH_R1_PPO, "480 638 457 433 382 196 432", 0.431),
        _row(f"{PPO} without feedback mask", SEARCH_R1_PPO, "388 567 391 325 321 108 304", 0.343),
        _row(f"{PPO}, 1 passage a search", SEARCH_R1_PPO, "426 614 422 393 296 146 328", 0.375),
        _row(f"{PPO}, 5 passages a search", SEARCH_R1_PPO, "479 634 440 394 343 156 352", 0.400),
        _row(GRPO, SEARCH_R1, "395 560 388 326 297 125 360", 0.350),
        _row(f"{GRPO}, groups of 1", SEARCH_R1, "463 605 449 392 413 163 384", 0.410),
        _row(f"{GRPO}, groups of 3", SEARCH_R1, "385 580 396 329 333 117 400", 0.363),
        _row("ZeroSearch", QUOTED, "424 664 604 320 340 180 333", 0.409),
        _row("StepSearch", QUOTED, "364 565 390 346 394 183 444", 0.382),
        _row("CriticSearch", QUOTED, "- - - 442 428 194 472", None),
        _row("Tree-GRPO", QUOTED, "481 633 452 446 423 202 440", 0.439),
        _row("+ LLDS-R, NQ alone", LLDS_1, "514 666 470 403 368 151 347", 0.417, GRPO, 19.1),
        _row("+ LLDS-R", LLDS_1, "504 666 471 465 475 209 444", 0.462, GRPO, 32.0),
        _row("+ LLDS-A", LLDS_2, "512 672 480 486 469 232 508", 0.480, GRPO, 37.1),
    ),
    "qwen2.5-7b-instruct": (
        _row("Direct", SEARCH_R1_CLOSED, "134 408 140 183 250 31 120", 0.181),
        _row("CoT", SEARCH_R1_CLOSED, "48 185 54 92 111 22 232", 0.106),
        _row("IRCoT", SEARCH_R1_AGENT, "224 478 301 133 149 72 224", 0.239),
        _row("Search-o1", SEARCH_R1_AGENT, "151 443 131 187 176 58 296", 0.206),
        _row("Search-o1 as LLDS quotes it", QUOTED, "151 443 131 187 176 62 296", 0.206),
        _row("RAG", SEARCH_R1_RAG, "349 585 392 299 235 58 208", 0.304),
        _row("SFT", SEARCH_R1_TUNED, "318 354 121 217 259 66 112", 0.207),
        _row("R1-instruct", SEARCH_R1_R1, "270 537 199 237 292 72 293", 0.271),
        _row("Rejection sampling", SEARCH_R1_REJECTION, "360 592 380 331 296 123 355", 0.348),
        _row(PPO, SEARCH_R1_PPO, "393 610 397 370 414 146 368", 0.385),
        _row(GRPO, SEARCH_R1, "429 623 427 386 346 162 400", 0.396),
        _row("ZeroSearch", QUOTED, "436 652 488 346 352 184 278", 0.391),
        _row("+ LLDS-R, NQ alone", LLDS_1, "517 645 460 401 298 158 411", 0.413, GRPO, 4.3),
        replace(_row("+ LLDS-R", LLDS_1, "498 662 464 473 443 228 516", 0.469, GRPO, 18.4), multi_hop=0.428),
        _row("+ LLDS-A", LLDS_2, "518 676 486 492 490 228 492", 0.483, GRPO, 22.0),
        _with_f1(_row("SAPO", SAPO, "473 658 480 471 439 231 480", 0.462, GRPO), "572 741 527 603 518 335 587", 0.554),
        _row("GRPO of Tinker", TINKER, "516 673 - 497 428", None),
    ),
    "qwen2.5-14b": (
        _row("R1-base", SEARCH_R1_R1, "369 626 270 306 326 117 488", 0.357),
        _row(PPO, SEARCH_R1_PPO, "486 676 480 468 470 241 528", 0.479),
    ),
    "qwen2.5-14b-instruct": (
        _row("Direct", SEARCH_R1_CLOSED, "198 531 184 217 253 45 160", 0.227),
        _row("CoT", SEARCH_R1_CLOSED, "190 495 148 269 297 54 432", 0.269),
        _row("IRCoT", SEARCH_R1_AGENT, "114 375 166 230 248 102 312", 0.221),
        _row("Search-o1", SEARCH_R1_AGENT, "347 635 241 268 161 99 416", 0.310),
        _row("RAG", SEARCH_R1_RAG, "327 585 376 279 160 51 192", 0.281),
        _row("SFT", SEARCH_R1_TUNED, "361 467 150 248 278 89 160", 0.250),
        _row("R1-instruct", SEARCH_R1_R1, "334 628 253 294 325 108 432", 0.339),
        _row(PPO, SEARCH_R1_PPO, "424 660 442 436 379 210 480", 0.433),
        _with_f1(_row("SAPO", SAPO, "510 695 485 494 477 255 548", 0.495), "602 770 527 621 549 353 680", 0.586),
    ),
    "llama3.2-3b": (
        _row("GRPO", LLDS_2, "233 461 220 196 232 44 97", 0.212),
        _row("+ LLDS", LLDS_2, "486 643 467 366 298 113 242", 0.374, "GRPO"),
        _row("+ LLDS-MA", LLDS_2, "493 640 480 449 462 164 298", 0.427, "GRPO"),
        _row("GRPO of the SAPO paper", SAPO, "394 596 437 280 264 56 105", 0.305),
        _row("SAPO", SAPO, "471 630 452 355 301 102 248", 0.366, "GRPO of the SAPO paper"),
    ),
    "llama3.2-3b-instruct": (
        _row("GRPO of the SAPO paper", SAPO, "357 578 378 314 233 90 306", 0.322),
        _row("SAPO", SAPO, "475 634 446 444 386 187 384", 0.422, "GRPO of the SAPO paper"),
    ),
}
"""Model -> its rows, trained on NQ and HotpotQA unless said otherwise."""

_R1_QUOTED = "Search-R1 prints .202, .296 and an average of .276; LLDS v2 quotes the row with .199, .203 and .262"
DISPUTED: dict[tuple[str, str, str], str] = {
    ("qwen2.5-3b", "+ LLDS-A-MA", "gain"): (
        "printed +45.2 % is next to GRPO's .312, over which it is +41.0 %; it is the gain over .303, the average of "
        "GRPO on NQ alone and of PPO. The text of v2 also has .430 for this row"
    ),
    ("qwen2.5-3b-instruct", "+ KL to old, no condition", "average"): "printed .398; its seven numbers have .401",
    ("qwen2.5-7b", "R1-base", "popqa"): _R1_QUOTED,
    ("qwen2.5-7b", "R1-base", "bamboogle"): _R1_QUOTED,
    ("qwen2.5-7b", "R1-base", "average"): _R1_QUOTED,
    ("qwen2.5-7b", "StepSearch", "average"): "printed .382; its seven numbers have .384",
    ("qwen2.5-7b-instruct", "IRCoT", "average"): (
        "printed .239, in Search-R1 and in LLDS v1; its seven numbers have .226"
    ),
    ("qwen2.5-7b-instruct", "+ LLDS-R", "multi-hop"): "printed .428, in LLDS v1; its four numbers have .415",
    ("qwen2.5-7b-instruct", "Search-o1", "musique"): "Search-R1 prints .058; LLDS v2 quotes the row with .062",
}
"""(block, row, cell) -> what printed numbers do not agree on, and what it seems to be. A cell is a set, `average`,
`multi-hop` or `gain`."""
