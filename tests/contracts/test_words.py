"""One word for one idea, in names and texts of both packages. docs/contributing/architecture.md has the list."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

# A variable is named for what it is, not for its place in a sentence.
PLACEHOLDERS = frozenset(["own", "one", "told", "said", "made", "there", "found", "wanted", "heard", "another"])

# Part of a name -> the word for the idea.
NAMES = {
    "episode": "rollout or trajectory",
    "organism": "testbed",
    "keeper": "sampling mask",
    "protected": "preserved",
    "strength": "coefficient",
    "cure": "remedy",
    "engine": "host or local trainer",
}

# Text -> what to write.
TEXTS = {
    r"(?<!holdfast-)\bepisodes?\b": "rollout",  # the seed text of the scripts keeps it
    r"\borganisms?\b": "testbed",
    r"\b(disease|sick|dying|cures?|cured)\b": "failure mode, remedy, failing",
    r"(?<!there )\bis no (?!longer|more)": "is not a",
    r"(?<!there )\bare no (?!longer|more)": "are not",
    r"\b(right|wrong|good|bad) (rollouts?|responses?|ones)\b": "correct or incorrect, positive or negative",
    r"\b(held|holds|hold) (against|on to)\b": "compared with, keeps",
    r"\bgoes? on\b": "continues",
    r"\b(anew|whoever|put right)\b": "again, anyone who, fixed",
    r"\blocal engine\b": "local trainer",
    r"\bprotected tokens?\b": "preserved tokens",
}

# The same, in the library. Each of these once made readers of an error or a help read it twice.
LIBRARY_TEXTS = {
    r"(?:^[\W_]*f?[\W_]*|[.:] )(?-i:Of (?:a|an|the|each|this|every|all) )": "begin with the subject, not with `Of`",
    r"\bstands?\b(?!-)": "is",
    r"\b(nobody|seldom)\b": "no one, rarely",
    r"(?<!`)\bbeside\b": "next to, with, in addition to",
    r"\b(but for|nothing but)\b": "except, only",
    r"\bwhole checkpoints?\b": "complete checkpoint",
    r"\bgoes? with --": "needs --, or has no effect without it",
    r"\b(is|are) told\b": "gets, is called",
    r"\b(must be|is) a text\b": "a string",
}


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of everything that the module defines or binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every string and comment, one line each."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def strange_names(tree: ast.AST) -> Iterator[str]:
    for line, name in names_in(tree):
        if name in PLACEHOLDERS:
            yield f"{line}: `{name}` says nothing of the value; name the thing"
        words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
        for word in words:
            if (idea := NAMES.get(word) or NAMES.get(word.removesuffix("s"))) is not None:
                yield f"{line}: `{name}`: write {idea}"


def strange_texts(source: str, patterns: Mapping[str, str] = TEXTS) -> Iterator[str]:
    for line, text in texts_in(source):
        for pattern, idea in patterns.items():
            if match := re.search(pattern, text, re.IGNORECASE):
                yield f"{line}: {match[0]!r}: write {idea}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("own = 1", 1),
        ("def f(told): ...", 1),
        ("class EpisodeTurn: ...", 1),
        ("organisms = []", 1),
        ("owner = 1; preserved = 2; for_one = 3", 0),
    ],
)
def test_names_are_seen(source: str, count: int) -> None:
    assert len(list(strange_names(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""An episode."""', 1),
        ("x = 1  # is no folder", 1),
        ("f'{x} is no folder'", 1),
        ("x = 'is no longer'", 0),
        ("# there is no folder", 0),
    ],
)
def test_texts_are_seen(source: str, count: int) -> None:
    assert len(list(strange_texts(source))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Of a run, the peak."""', 1),
        ("x = f'{a}: b. Of the runs, two.'", 1),
        ("# the end of a run, of the two\n# of the file", 0),
        ("'it stands there'", 1),
        ("'a stand-in'", 0),
        ("'`beside` another'", 0),
        ("f'{x} goes with --server'", 1),
    ],
)
def test_texts_of_the_library_are_seen(source: str, count: int) -> None:
    assert len(list(strange_texts(source, LIBRARY_TEXTS))) == count


def test_one_word_for_one_idea(sources: Mapping[str, ast.Module], root: Path) -> None:
    wrong = []
    for path in sorted([*(root / "src").rglob("*.py"), *(root / "research" / "src").rglob("*.py")]):
        if path.name == "former_settings.py":  # settings by the names they had in recordings
            continue
        text = path.read_text(encoding="utf-8")
        patterns = TEXTS | (LIBRARY_TEXTS if path.is_relative_to(root / "src") else {})
        findings = [*strange_names(ast.parse(text)), *strange_texts(text, patterns)]
        wrong += [f"{path.relative_to(root)}:{finding}" for finding in findings]
    assert not wrong, "\n".join(wrong)


# ---- sentences


def sentence_lengths(text: str) -> list[int]:
    """Words of each sentence; a blank line ends one too."""
    plain = re.sub(r">>>.*", "", re.sub(r"\n\s*\n", ". ", text))
    sentences = re.split(r"(?<=[.!?;:])\s+", re.sub(r"\s+", " ", plain))
    return [count for sentence in sentences if (count := len(re.findall(r"[A-Za-z][\w'’-]*", sentence))) > 2]


def strings_in(node: ast.AST) -> Iterator[str]:
    """The texts of an expression; the values in an f-string count as a word each."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "value" for v in part.values)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
            yield part.value


def texts_for_people(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, text) of public docstrings, errors and helps."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if not getattr(node, "name", "").startswith("_") and (text := ast.get_docstring(node)):
                yield "docstring", text
        elif isinstance(node, ast.Raise | ast.Yield):
            yield from (("error", text) for text in strings_in(node))
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield from (("help", text) for text in strings_in(node.value))


def test_sentences_are_counted() -> None:
    assert sentence_lengths("One two three. Four five six seven.") == [3, 4]


def test_sentences_are_short(sources: Mapping[str, ast.Module]) -> None:
    lengths: dict[str, list[int]] = {"docstring": [], "error": [], "help": []}
    for tree in sources.values():
        for kind, text in texts_for_people(tree):
            lengths[kind] += sentence_lengths(text)
    means = {kind: sum(counts) / len(counts) for kind, counts in lengths.items()}
    assert all(mean <= 18 for mean in means.values()), means
