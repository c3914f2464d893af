"""A PDF as a person reads it: columns one after the other, words whole, headings apart, no running heads.

pdfium finds the characters and their places. `in_reading_order` undoes what the order of drawing got wrong,
`without_running_heads` leaves out what the pages repeat, `paragraphs` joins lines and finds headings and rows of
tables, and `joined_across` makes a sentence over two pages whole.
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
"""A running head or foot is on so many pages (of two, on both), in one of the rows at the edge."""
_NEAR = 2
"""Pages. A running head stands also on one of the next: on left and right pages there may be two."""
_PARAGRAPH_GAP, _TITLE_SIZE = 1.3, 1.2
"""Beside the page's median: the distance of lines that begins a paragraph, the height of letters that are a title."""
_HEADING_SIZE, _HEADING_LETTERS = 1.15, 120
"""Beside the body's letters: the least height of a heading. And its most letters, in all its lines."""
_BOLD = re.compile(r"bold|black|heavy|cmbx", re.I)
"""In the name of a font."""
_SAME_EDGE = 2.0
"""Points, up to which cells of two rows stand below each other."""
_HYPHEN = re.compile(r"(\w+)[-\u00ad\u2010]$")
_SENTENCE = re.compile(r".*?(?:[.!?…][\"'”’»)\]]*(?:\s+|$)|[。！？][”」』）]*)")
_COMPOUND = re.compile(r"\w+(?:-\w+)+")
_LEADER = re.compile(r"(?: ?\.){5,}")
"""The dots of a table of contents."""
_NUMBER = re.compile(r"(?<!\d)\d{1,5}(?!\d)", re.ASCII)
_NUMBERS = 4
"""Of a line, that are tried as page numbers."""
_BREAKS = {2: "\u00ad", 0xFFFE: "\u00ad", 0xAD: "\u00ad"}
"""How pdfium writes a hyphen at the end of a line."""
_ERRORS = {
    3: "is damaged, or not a PDF: it has no table of objects. Download it again, or print it to a new PDF",
    4: "needs a password; save it without one, for example with `qpdf --decrypt --password=… in.pdf out.pdf`",
    5: "is encrypted in a way that pdfium does not support; decrypt it, for example with `qpdf --decrypt in.pdf "
    "out.pdf`",
}


OCR = "a PDF of scanned pages needs OCR first, for example with `ocrmypdf --skip-text in.pdf out.pdf`"


class UnreadablePdf(Exception):
    """Why a PDF is not read."""


class Paragraph(NamedTuple):
    """A paragraph, a heading, or a row of a table, `| cell | cell`."""

    text: str
    is_heading: bool = False


@dataclass(frozen=True, slots=True)
class Pdf:
    """The text of a PDF."""

    title: str | None
    """Its own: printed on the first page. It is not repeated as a heading there."""
    pages: list[list[Paragraph]]
    """Paragraphs of each page, some without. After a heading comes one that is none, on its page or the next."""
    pictures: Sequence[int] = ()
    """Numbers of the pages on which something is drawn, but no text; from 1."""


class Fragment(NamedTuple):
    """Characters that were drawn side by side. Places are points, from the lower left corner of the page."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    height: float
    """Of its letters, the mean."""
    is_bold: bool = False

    @property
    def style(self) -> tuple[float, bool]:
        """Height, rounded, and whether it is bold."""
        return round(self.height, 1), self.is_bold

    def is_beside(self, other: Fragment) -> bool:
        """Whether both are in one row."""
        overlap = min(self.top, other.top) - max(self.bottom, other.bottom)
        return overlap > min(self.height, other.height) / 2


Line = list[Fragment]
"""What stands in one row, from left to right: one, or the cells of a table's row."""


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
    title, pages, pictures = found
    pdf = Pdf(title, [[Paragraph(*parts) for parts in page] for page in pages], pictures)
    if not any(pdf.pages):
        raise UnreadablePdf(f"has no text: {OCR}")
    return pdf


def _read(data: bytes) -> list[Any] | str:
    """The parts of a `Pdf`, or why there are none."""
    from pypdfium2 import PdfDocument, PdfiumError

    drawn: list[list[Fragment]] = []
    pictures: list[int] = []
    try:
        document = PdfDocument(data)  # opens what is encrypted with an empty password
        if len(document) > MAX_PAGES:
            return f"has {len(document):,} pages; a file may have {MAX_PAGES:,}: split it"
        for page in map(document.__getitem__, range(len(document))):
            drawn.append(_fragments(page))
            if not drawn[-1] and any(page.get_objects(max_depth=1)):
                pictures.append(len(drawn))
            page.close()
        named = _plain(document.get_metadata_value("Title"))
    except PdfiumError as error:
        if drawn:
            return f"is damaged at page {len(drawn) + 1}; get it again, or print its other pages to a new PDF"
        return _ERRORS.get(error.err_code or 3, _ERRORS[3])
    body = _body(drawn)
    pages = [merged(in_reading_order(page)) for page in without_running_heads(drawn)]
    words = (cell.text for page in pages for line in page for cell in line)
    compounds = {word.casefold() for text in words for word in _COMPOUND.findall(text)}
    title = own_title(named, drawn)
    joined = joined_across([paragraphs(page, compounds, body) for page in pages], compounds)
    return [title, with_text_below([[part for part in page if not _repeats(part, title)] for page in joined]), pictures]


def _body(pages: Sequence[Sequence[Fragment]]) -> tuple[float, bool]:
    """The style of most letters."""
    count: Counter[tuple[float, bool]] = Counter()
    for page in pages:
        for part in page:
            count[part.style] += len(part.text)
    return max(count, key=lambda style: count[style], default=(0.0, False))


def _repeats(part: Paragraph, title: str | None) -> bool:
    return part.is_heading and title is not None and _letters(part.text) == _letters(title)


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
    cluster = count = first = last = 0

    def is_bold(index: int) -> bool:
        name, flags = ctypes.create_string_buffer(200), ctypes.c_int()
        pdfium.FPDFText_GetFontInfo(text.raw, index, name, 200, ctypes.byref(flags))
        return bool(_BOLD.search(name.value.decode(errors="replace")))

    def end() -> None:
        nonlocal letters, count
        if count and (words := _plain("".join(letters))):
            bold = is_bold(first) and is_bold(last)
            fragments.append(Fragment(words, left, right, bottom, top, heights / count, bold))
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
            heights, first = 0.0, index
        else:
            left, bottom, right, top = min(left, box[0]), min(bottom, box[1]), max(right, box[2]), max(top, box[3])
        heights, count, last = heights + height, count + 1, index
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
    enough = max(2, min(_RUNNING, len(pages)))
    kept = []
    for number, page in enumerate(pages):
        near = set().union(*keys[max(0, number - _NEAR) : number], *keys[number + 1 : number + 1 + _NEAR])
        running = {part for part, own in edges[number].items() if any(count[key] >= enough for key in own & near)}
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


def merged(parts: Sequence[Fragment]) -> list[Line]:
    """Lines: the neighbours in one row. What is further apart than a letter is high is two cells."""
    lines: list[Line] = []
    for part in parts:
        last = lines[-1][-1] if lines else None
        if last is None or part.left < lines[-1][0].left or not part.is_beside(last):
            lines.append([part])
        elif part.left - last.right > last.height:
            lines[-1].append(part)
        else:
            text = f"{last.text} {part.text}" if not last.text.endswith("\u00ad") else last.text[:-1] + part.text
            box = max(last.right, part.right), min(last.bottom, part.bottom), max(last.top, part.top)
            lines[-1][-1] = Fragment(text, last.left, *box, last.height, last.is_bold and part.is_bold)
    return lines


def paragraphs(lines: Sequence[Line], compounds: set[str], body: tuple[float, bool]) -> list[Paragraph]:
    """The text of a page; `body` is the style of the document's most letters. A paragraph begins after a larger
    distance or larger letters; the next column begins none. Each row of a table is one."""
    steps = [first[0].bottom - second[0].bottom for first, second in pairwise(lines)]
    usual = median([step for step in steps if step > 0] or [0])
    found: list[Paragraph] = []
    words: list[str] = []
    was_row = was_heading = False
    for at, line in enumerate(lines):
        step = steps[at - 1] if at else 0.0
        is_row = len(line) > 1 and any(
            _are_aligned(line, lines[other]) for other in range(max(0, at - 2), min(len(lines), at + 3)) if other != at
        )
        may_begin = not at or was_heading or step < 0 or step > usual * _PARAGRAPH_GAP
        is_heading = _is_emphasised(line, body) and (not was_row if is_row else may_begin)
        is_smaller = at and lines[at - 1][0].height > line[0].height * _TITLE_SIZE
        if at and (step > usual * _PARAGRAPH_GAP or is_smaller or is_row or is_heading != was_heading):
            found.append(Paragraph("".join(words), was_heading))
            words = []
        text = (" | " if is_row else " ").join(cell.text for cell in line)
        if is_row and not is_heading:
            text = f"| {text}"
        if words:
            words[-1], glue = _glue(words[-1], text, compounds)
            words.append(glue)
        words.append(text)
        was_row, was_heading = is_row, is_heading
    return [*found, Paragraph("".join(words), was_heading)] if words else found


def _are_aligned(line: Line, other: Line) -> bool:
    """Whether each cell begins or ends below one of the other row, or is centred there."""
    return len(line) == len(other) and all(
        min(abs(a.left - b.left), abs(a.right - b.right), abs(a.left + a.right - b.left - b.right) / 2) < _SAME_EDGE
        for a, b in zip(line, other, strict=True)
    )


def _is_emphasised(line: Line, body: tuple[float, bool]) -> bool:
    height, is_bold = body
    letters = sum(sum(map(str.isalpha, cell.text)) for cell in line)
    return 2 <= letters <= _HEADING_LETTERS and all(
        cell.height >= height * _HEADING_SIZE or (cell.is_bold and not is_bold) for cell in line
    )


def joined_across(pages: Sequence[Sequence[Paragraph]], compounds: set[str]) -> list[list[Paragraph]]:
    """The pages, a sentence that goes over two of them whole on the first."""
    whole = [list(page) for page in pages]
    for page, following in pairwise(whole):
        if not page or not following or page[-1].is_heading or following[0].is_heading:
            continue
        before, after = page[-1].text, following[0].text
        if _SENTENCE.fullmatch(before) or not (after[0].islower() or re.match(f"[{UNSPACED}]", after)):
            continue
        end = sentence.end() if (sentence := _SENTENCE.match(after)) else len(after)
        page[-1] = Paragraph("".join((*_glue(before, after, compounds), after[:end].rstrip())))
        following[:1] = [Paragraph(after[end:])] if after[end:] else []
    return whole


def with_text_below(pages: Sequence[Sequence[Paragraph]]) -> list[list[Paragraph]]:
    """Each heading with a paragraph to head: two on a page become one, and one with nothing below a paragraph. Without
    soft hyphens."""
    kept: list[list[Paragraph]] = []
    below = None
    for page in reversed(pages):
        parts: list[Paragraph] = []
        for text, is_heading in reversed(page):
            text = text.replace("\u00ad", "")
            if is_heading and below and below.is_heading and parts and len(text + below.text) < _HEADING_LETTERS:
                text = f"{text} {parts.pop().text}"
            elif is_heading and (below is None or below.is_heading):
                is_heading = False
            below = Paragraph(text, is_heading)
            parts.append(below)
        kept.append(parts[::-1])
    return kept[::-1]


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
