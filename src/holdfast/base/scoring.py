"""Answer normalisation and three scores, once, for rewards and evaluations; each in the rule of one of eight modes.

`table`, the default, is what rewards and the papers' tables use on every data set: the normalisation of Search-R1,
which SQuAD 1.1 introduced. One deviation: a text of which normalisation leaves nothing (`the`, `A`, `?`) never scores,
neither as prediction nor as golden answer. The published code counts two empty texts as equal, and an empty golden
answer as contained in every prediction; a policy would find both.

`unicode` is for answers in any language, and imitates no published script.

The other modes carry the name of a data set and follow the script its authors published, empty texts included.
docs/reference/scoring.md shows with examples where they differ.
"""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.base.errors import ConfigError

Mode = Literal["table", "unicode", "nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"]
MODES: tuple[Mode, ...] = get_args(Mode)

UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan; Burmese; Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
"""Characters of scripts that put no blanks between words, for the inside of a set of a regular expression."""
HANGUL = "\uac00-\ud7a3"
"""Korean syllables, in the same way. A word has its particles behind it, without a blank."""
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACE_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "‘’´", " "))
_UNSPACED = re.compile(f"[{UNSPACED}]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, ASCII punctuation deleted (not spaced), words a, an, the dropped, blanks collapsed; in that order.

    >>> normalize_answer("The U.S.  Open, a tournament")
    'us open tournament'
    """
    text = text.lower().translate(_DELETE_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _normalize_nq(text: str) -> str:
    """Accents become separate characters first (NFD): two spellings of `é` are equal, and `à` is an article."""
    return normalize_answer(_decomposed(text))


def _decomposed(text: str, form: Literal["NFD", "NFKD"] = "NFD") -> str:
    """NFD or NFKD in n log n steps: `unicodedata.normalize` takes n² for n accents in a row, and a model can write
    those.

    Each character is decomposed; then each run of accents is sorted by combining class, equal classes as they were.
    """
    if len(text) < 1000:
        return unicodedata.normalize(form, text)
    characters = "".join(unicodedata.normalize(form, character) for character in text)
    runs = itertools.groupby(characters, key=lambda character: unicodedata.combining(character) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining) if accents else run) for accents, run in runs)


def _normalize_triviaqa(text: str) -> str:
    """Punctuation, `_` and curly quotes included, becomes a blank: `Jean-Luc` is two words."""
    text = text.lower().translate(_SPACE_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _normalize_unicode(text: str) -> str:
    """As `normalize_answer`, with punctuation and symbols of every script, wide letters as narrow ones, and two
    spellings of `é` equal. Characters of a script without blanks are words, so that F1 counts them."""
    text = _decomposed(text, "NFKD").casefold()
    text = "".join(character for character in text if unicodedata.category(character)[0] not in "PS")
    return " ".join(_ARTICLES.sub(" ", _UNSPACED.sub(r" \g<0> ", text)).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Where the scripts differ."""

    normalize: Callable[[str], str] = normalize_answer
    empty_scores: bool = True
    """May a text of which nothing is left score at all?"""
    empty_f1: bool = False
    """SQuAD 2.0's: where either side has no words, F1 is 1 if the other has none too, else 0."""
    yes_no: bool = False
    """HotpotQA's: yes, no and noanswer share words only with themselves."""


_RULES: dict[Mode, _Rule] = {
    "table": _Rule(empty_scores=False),
    "unicode": _Rule(normalize=_normalize_unicode, empty_scores=False),
    "nq": _Rule(normalize=_normalize_nq),
    "triviaqa": _Rule(normalize=_normalize_triviaqa),
    "popqa": _Rule(),
    "hotpotqa": _Rule(yes_no=True),
    "2wikimultihopqa": _Rule(yes_no=True),
    "musique": _Rule(empty_f1=True),
    "bamboogle": _Rule(),
}
_CLOSED = {"yes", "no", "noanswer"}


def exact_match(prediction: str | None, golds: Sequence[str], *, mode: Mode = "table") -> float:
    """1.0 if the prediction equals any golden answer after normalisation, else 0.0. `None` (no answer) is 0.0.

    Aliases count when they are among `golds`. Raises `TypeError` or `ValueError` as `normalized_golds` does, and
    `ConfigError` for a mode that does not exist.

    >>> exact_match("the Eiffel Tower", ["Eiffel tower."])
    1.0
    >>> exact_match("北京。", ["北京"]), exact_match("北京。", ["北京"], mode="unicode")
    (0.0, 1.0)
    >>> exact_match("Jean Luc", ["Jean-Luc"]), exact_match("Jean Luc", ["Jean-Luc"], mode="triviaqa")
    (0.0, 1.0)
    """
    rule = _rule(mode)
    _check(golds)
    if prediction is None:
        return 0.0
    text = rule.normalize(prediction)
    if not text and not rule.empty_scores:
        return 0.0
    return float(any(rule.normalize(gold) == text for gold in golds))


def f1(prediction: str | None, golds: Sequence[str], *, mode: Mode = "table") -> float:
    """Best F1 of the normalised words over the golden answers, repeated words counted: 2PR / (P + R).

    Raises as `exact_match`. NQ, PopQA and Bamboogle publish no F1: their modes apply SQuAD 1.1's to their words.

    The predicted words {red, eiffel, tower} and the golden {eiffel, tower} share 2: P = 2/3, R = 1, F1 = 0.8.

    >>> f1("red Eiffel tower", ["Eiffel tower"])
    0.8
    >>> f1("yes it is", ["yes"]), f1("yes it is", ["yes"], mode="hotpotqa")
    (0.5, 0.0)
    """
    rule = _rule(mode)
    _check(golds)
    if prediction is None:
        return 0.0
    text = rule.normalize(prediction)
    return max(_f1(text, rule.normalize(gold), rule) for gold in golds)


def sub_em(prediction: str | None, golds: Sequence[str], *, mode: Mode = "table") -> float:
    """1.0 if any golden answer occurs in the prediction, as characters: "us" is found in "russia", as published.

    Raises as `exact_match`. In mode `popqa` this is the data set's own accuracy, which normalises nothing: an answer
    occurs as it is, in lower case, or with a capital first letter and the rest in lower case. No other data set
    publishes such a score; their modes look in texts normalised their way.

    >>> sub_em("It is the Eiffel Tower in Paris", ["Eiffel tower"])
    1.0
    """
    rule = _rule(mode)
    _check(golds)
    if prediction is None:
        return 0.0
    if mode == "popqa":
        return float(any(form in prediction for g in golds for form in (g, g.lower(), g.capitalize())))
    text = rule.normalize(prediction)
    answers = map(rule.normalize, golds)
    return float(any(answer in text for answer in answers if answer or rule.empty_scores))


def in_passages(passages: Iterable[str], golds: Sequence[str]) -> float:
    """1.0 if any golden answer occurs in any passage, both normalised as in mode `table`, else 0.0.

    Raises `TypeError` or `ValueError` as `normalized_golds` does.
    """
    answers, texts = normalized_golds(golds), map(normalize_answer, passages)
    return float(any(answer in text for text in texts for answer in answers))


def normalized_golds(golds: Sequence[str]) -> list[str]:
    """The golden answers of which normalisation leaves something, normalised.

    Raises `TypeError` for anything but texts in a list, also for one text (its letters would be the answers), and
    `ValueError` for no answers.
    """
    _check(golds)
    return [answer for gold in golds if (answer := normalize_answer(gold))]


def _rule(mode: Mode) -> _Rule:
    try:
        return _RULES[mode]
    except KeyError:
        raise ConfigError(f"scoring mode {mode!r} does not exist; the modes are {', '.join(MODES)}") from None


def _check(golds: Sequence[str]) -> None:
    if isinstance(golds, str):
        raise TypeError(f"golden answers must be a list of strings, not the string {golds!r}; write [{golds!r}]")
    if isinstance(golds, Mapping):  # of which `in` and `for` would take the keys
        raise TypeError(
            f"golden answers must be a list of strings, not a dict with the keys {list(golds)}; pass the list in it, "
            "as golds['target'] of Search-R1's ground_truth"
        )
    if golds is None or not len(golds):
        raise ValueError("no golden answers are given, so there is nothing to score against")
    for gold in golds:
        if not isinstance(gold, str):
            raise TypeError(
                f"a golden answer must be a string, not {gold!r}; pass one flat list of texts, with "
                "numbers as text and without None"
            )


def _f1(text: str, gold: str, rule: _Rule) -> float:
    if rule.yes_no and text != gold and (text in _CLOSED or gold in _CLOSED):
        return 0.0
    predicted, golden = text.split(), gold.split()
    if not predicted or not golden:
        return float(rule.empty_f1 and predicted == golden)
    shared = sum((Counter(predicted) & Counter(golden)).values())
    # 2PR / (P + R) with P = shared / predicted and R = shared / golden, in one division: exact for whole counts.
    return 2 * shared / (len(predicted) + len(golden))
