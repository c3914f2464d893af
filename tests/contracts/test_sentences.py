"""Sentences of docstrings, errors and helps are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping


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
