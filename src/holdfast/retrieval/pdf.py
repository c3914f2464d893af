"""A PDF as a person reads it: columns one after the other, words whole, no running heads.

pdfium finds the characters and their places. `in_reading_order` undoes what the order of drawing got wrong,
`without_running_heads` leaves out what the pages repeat, and `paragraphs` joins lines.
"""

from __future__ import annotations

import ctypes
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from holdfast.base.apart import TooCostly, apart
from holdfast.base.files import size_text
from holdfast.base.scoring import UNSPACED

CPU_SECONDS, MORE_BYTES, MAX_PAGES = 120, 2**30, 20_000
"""What reading one file may take. A page of a book takes some 10 milliseconds."""
_COLUMN_ROWS = 4
"""Rows that a gap must divide to be looked at as the gap between two columns."""
_COLUMN_WORDS, _COLUMN_FILL = 3, 0.7
"""Prose has at least so many words in a line, and fills so much of its column; a table's cells do not. Medians."""
_RUNNING, _EDGE_ROWS = 3, 2
"""A running head or foot is on so many pages, in one of the rows at the edge."""
_NEAR = 2
"""Pages. A running head stands also on one of the next: on left and right pages there may be two."""
_PARAGRAPH_GAP, _TITLE_SIZE = 1.3, 1.2
"""Beside the page's median: the distance of lines that begins a paragraph, the height of letters that are a title."""
_HYPHEN = re.compile(r"(\w+)[-\u00ad\u2010]$")
_COMPOUND = re.compile(r"\w+(?:-\w+)+")
_LEADER = re.compile(r"(?: ?\.){5,}")
"""The dots of a table of contents."""
_NUMBER = re.compile(r"(?<!\d)\d{1,5}(?!\d)", re.ASCII)
_NUMBERS = 4
"""Of a line, that are tried as page numbers."""
_BREAKS = {2: "\u00ad", 0xFFFE: "\u00ad", 0xAD: "\u00ad"}
"""How pdfium writes a hyphen at the end of a line."""
_ERRORS = {
    3: "is damaged, or no PDF: no table of its objects was found. Get it again, or print it to a new PDF",
    4: "needs a password; save it without one, as by `qpdf --decrypt --password=… in.pdf out.pdf`",
    5: "is encrypted in a way that pdfium does not read; save it without, as by `qpdf --decrypt in.pdf out.pdf`",
}


class UnreadablePdf(Exception):
    """Why a PDF is not read."""


@dataclass(frozen=True, slots=True)
class Pdf:
    """The text of a PDF."""

    title: str | None
    """Its own: printed on the first page."""
    pages: list[list[str]]
    """Paragraphs of each page, some without."""


class Fragment(NamedTuple):
    """Characters that were drawn side by side. Places are points, from the lower left corner of the page."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    height: float
    """Of its letters, the mean."""

    def is_beside(self, other: Fragment) -> bool:
        """Whether both are in one row."""
        overlap = min(self.top, other.top) - max(self.bottom, other.bottom)
        return overlap > min(self.height, other.height) / 2


def read_pdf(data: bytes) -> Pdf:
    """The text of a file, read in a process of its own: pdfium is C, and may crash or run for hours on a hostile file.

    Raises `ModuleNotFoundError` without pypdfium2, `UnreadablePdf`.
    """
    import pypdfium2  # noqa: F401  before the copy of this process: the next file finds it imported

    try:
        found = json.loads(apart(lambda: json.dumps(_read(data)).encode(), CPU_SECONDS, MORE_BYTES))
    except TooCostly as cost:
        limit = f"{CPU_SECONDS} seconds" if cost.is_time else f"{size_text(MORE_BYTES)} of memory, or breaks pdfium"
        raise UnreadablePdf(f"needs more than {limit}; split it, or print it to a new PDF") from None
    if isinstance(found, str):
        raise UnreadablePdf(found)
    pdf = Pdf(*found)
    if not any(pdf.pages):
        raise UnreadablePdf("has no text: a PDF of scanned pages needs OCR first, as by `ocrmypdf in.pdf out.pdf`")
    return pdf


def _read(data: bytes) -> list[Any] | str:
    """Title and pages, or why there are none."""
    from pypdfium2 import PdfDocument, PdfiumError

    drawn: list[list[Fragment]] = []
    try:
        document = PdfDocument(data)  # opens what is encrypted with an empty password
        if len(document) > MAX_PAGES:
            return f"has {len(document):,} pages; a file may have {MAX_PAGES:,}: split it"
        for page in map(document.__getitem__, range(len(document))):
            drawn.append(_fragments(page))
            page.close()
        title = _plain(document.get_metadata_value("Title"))
    except PdfiumError as error:
        if drawn:
            return f"is damaged at page {len(drawn) + 1}; get it again, or print its other pages to a new PDF"
        return _ERRORS.get(error.err_code or 3, _ERRORS[3])
    pages = [merged(in_reading_order(page)) for page in without_running_heads(drawn)]
    compounds = {word.casefold() for page in pages for line in page for word in _COMPOUND.findall(line.text)}
    return [own_title(title, drawn), [paragraphs(page, compounds) for page in joined_across(pages)]]


# ---- characters


def _fragments(page: Any) -> list[Fragment]:
    """In the order of drawing. A line ends where pdfium ends it, and where the next letter is further away than one."""
    import pypdfium2.raw as pdfium

    text = page.get_textpage()
    place, box = pdfium.FS_RECTF(), None
    reference = ctypes.byref(place)
    fragments: list[Fragment] = []
    letters: list[str] = []
    left = right = bottom = top = heights = 0.0
    cluster = count = 0

    def end() -> None:
        nonlocal letters, count
        if count and (words := _plain("".join(letters))):
            fragments.append(Fragment(words, left, right, bottom, top, heights / count))
        letters, count = [], 0

    for index in range(pdfium.FPDFText_CountChars(text.raw)):
        code = pdfium.FPDFText_GetUnicode(text.raw, index)
        if code in (10, 13):
            end()
            continue
        letter = _BREAKS.get(code) or chr(code)
        if letter.isspace():
            letters.append(" ")
            continue
        pdfium.FPDFText_GetLooseCharBox(text.raw, index, reference)
        before, box = box, (place.left, place.bottom, place.right, place.top)
        height = place.top - place.bottom
        if count and max(box[0] - before[2], before[0] - box[2]) > height:  # type: ignore[index]
            end()
        if not count:
            left, bottom, right, top = box
            heights = 0.0
        else:
            left, bottom, right, top = min(left, box[0]), min(bottom, box[1]), max(right, box[2]), max(top, box[3])
        heights, count = heights + height, count + 1
        if box == before and unicodedata.bidirectional(letter) in ("R", "AL"):
            letters.insert(cluster, letter)  # a ligature, whose letters pdfium gives from left to right
        else:
            cluster = len(letters)
            letters.append(letter)
        if letter == "\u00ad":
            end()
    end()
    return fragments


def _plain(text: str) -> str:
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pdfium gives pairs apart
    text = _LEADER.sub(" … ", unicodedata.normalize("NFKC", text))
    return " ".join("".join(letter for letter in text if letter.isprintable() or letter in " \u00ad").split())


# ---- order


def in_reading_order(drawn: Sequence[Fragment]) -> list[Fragment]:
    """Columns one after the other where they were drawn row by row. Whatever else is drawn in turn stays so: most
    programs draw in the order of reading, and a table is read by rows."""
    beside = [
        (first, second)
        for first, second in pairwise(drawn)
        if second.left - first.right > min(first.height, second.height) / 2 and first.is_beside(second)
    ]
    middle = _deepest([(first.right, second.left) for first, second in beside])
    beside = [(first, second) for first, second in beside if first.right <= middle <= second.left]
    if len(beside) < _COLUMN_ROWS or not all(map(_is_prose, zip(*beside, strict=True))):
        return list(drawn)
    ordered: list[Fragment] = []
    sides: tuple[list[Fragment], list[Fragment]] = [], []
    for fragment in drawn:
        if fragment.left < middle < fragment.right:  # what goes across both columns ends them
            ordered += [*in_reading_order(sides[0]), *in_reading_order(sides[1]), fragment]
            sides = [], []
        else:
            sides[fragment.left >= middle].append(fragment)
    return [*ordered, *in_reading_order(sides[0]), *in_reading_order(sides[1])]


def _deepest(intervals: Sequence[tuple[float, float]]) -> float:
    """Where most intervals overlap; 0 without any."""
    ends = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    depth, best, at = 0, 0, 0.0
    for (place, change), (following, _) in pairwise(ends):
        depth += change
        if depth > best:
            best, at = depth, (place + following) / 2
    return at


def _is_prose(column: Sequence[Fragment]) -> bool:
    width = max(part.right for part in column) - min(part.left for part in column)
    filled = median((part.right - part.left) / (width or 1) for part in column)
    return median(part.text.count(" ") + 1 for part in column) >= _COLUMN_WORDS and filled >= _COLUMN_FILL


def without_running_heads(pages: Sequence[Sequence[Fragment]]) -> list[list[Fragment]]:
    """Without what the first or last rows of several pages repeat, page numbers apart. A page of nothing else stays."""
    edges = [
        {part: {(side, key) for key in _keys(part.text, number)} for side in (1, -1) for part in _edge(page, side)}
        for number, page in enumerate(pages)
    ]
    keys = [set().union(*edge.values()) for edge in edges]
    count = Counter(key for page in keys for key in page)
    kept = []
    for number, page in enumerate(pages):
        near = set().union(*keys[max(0, number - _NEAR) : number], *keys[number + 1 : number + 1 + _NEAR])
        running = {part for part, own in edges[number].items() if any(count[key] >= _RUNNING for key in own & near)}
        kept.append([part for part in page if part not in running] or list(page))
    return kept


def _keys(text: str, page: int) -> set[str]:
    """The text, and the text with one of its numbers counted from the page: what a page number leaves the same."""
    numbers = list(_NUMBER.finditer(text))[:_NUMBERS]
    return {text, *(f"{text[: at.start()]}\0{int(at[0]) - page}\0{text[at.end() :]}" for at in numbers)}


def _edge(page: Sequence[Fragment], side: int) -> list[Fragment]:
    """The fragments in the rows at the top (1) or at the bottom (-1)."""
    edge: list[Fragment] = []
    rows = 0
    for part in sorted(page, key=lambda part: -side * (part.top + part.bottom)):
        rows += not (edge and part.is_beside(edge[-1]))
        if rows > _EDGE_ROWS:
            break
        edge.append(part)
    return edge


# ---- words


def merged(parts: Sequence[Fragment]) -> list[Fragment]:
    """Lines: the neighbours in one row, which a table's cells are, as one."""
    lines: list[Fragment] = []
    for part in parts:
        if lines and part.left >= lines[-1].left and part.is_beside(last := lines[-1]):
            text = f"{last.text} {part.text}" if not last.text.endswith("\u00ad") else last.text[:-1] + part.text
            box = max(last.right, part.right), min(last.bottom, part.bottom), max(last.top, part.top)
            lines[-1] = Fragment(text, last.left, *box, last.height)
        else:
            lines.append(part)
    return lines


def joined_across(pages: Sequence[Sequence[Fragment]]) -> list[list[Fragment]]:
    """The pages, a word that goes over two of them whole on the first."""
    whole = [list(page) for page in pages]
    for page, following in pairwise(whole):
        if page and following and _HYPHEN.search(page[-1].text):
            word, _, rest = following[0].text.partition(" ")
            page.append(following[0]._replace(text=word))
            following[:1] = [following[0]._replace(text=rest)] if rest else []
    return whole


def paragraphs(lines: Sequence[Fragment], compounds: set[str]) -> list[str]:
    """The text of a page. A paragraph begins after a larger distance or larger letters; the next column begins none."""
    steps = [first.bottom - second.bottom for first, second in pairwise(lines)]
    usual = median([step for step in steps if step > 0] or [0])
    texts: list[str] = []
    words: list[str] = []
    for before, step, line in zip([None, *lines], [0, *steps], lines, strict=False):
        if before and (step > usual * _PARAGRAPH_GAP or before.height > line.height * _TITLE_SIZE):
            texts.append("".join(words))
            words = []
        if words:
            words[-1], glue = _glue(words[-1], line.text, compounds)
            words.append(glue)
        words.append(line.text)
    return [text.replace("\u00ad", "") for text in [*texts, "".join(words)] if text]


def _glue(line: str, following: str, compounds: set[str]) -> tuple[str, str]:
    """A line, and what joins it to the next. A hyphen goes where it only divides a word: before a small letter, unless
    the document has the word with its hyphen elsewhere."""
    if not (hyphen := _HYPHEN.search(line)):
        unspaced = re.match(f"[{UNSPACED}]", line[-1:]) and re.match(f"[{UNSPACED}]", following)
        return line, "" if unspaced else " "
    rest = re.match(r"\w+", following)
    divides = rest and rest[0][0].islower() and hyphen[1][-1].isalpha()
    if divides and f"{hyphen[1]}-{rest[0]}".casefold() not in compounds:  # type: ignore[index]
        return line[:-1], ""
    return line[:-1], "-"


def own_title(named: str, pages: Sequence[Sequence[Fragment]]) -> str | None:
    """The title that a person sees: the one in the file's properties if the first page prints it, or else the largest
    letters there. None if all are of one size."""
    first = next(filter(None, pages), [])
    if _letters(named) and _letters(named) in _letters("".join(part.text for part in first)):
        return named
    tallest = max((part.height for part in first if len(_letters(part.text)) > 2), default=0)
    if not first or tallest < _TITLE_SIZE * median(part.height for part in first):
        return None
    return " ".join(part.text for part in first if part.height > 0.95 * tallest)


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())
