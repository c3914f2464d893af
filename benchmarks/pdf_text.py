"""How much of the true text of PDFs each reader finds, and its CPU time.

python benchmarks/pdf_text.py FOLDER pypdf pdftext

FOLDER holds NAME.pdf with its true text in NAME.txt, a paragraph a line. Lines that begin with `| ` are rows of tables.
A score is the share of runs of five words (of rows: two) of the text that the reader has, with hyphens joined for all.
"""

from __future__ import annotations

import argparse
import re
import resource
import unicodedata
from collections.abc import Callable
from pathlib import Path

from holdfast.retrieval.pdf import read_pdf


def ours(path: Path) -> str:
    read = read_pdf(path.read_bytes())
    return "\n".join([read.title or "", *(part.text for page in read.pages for part in page)])


def pypdf(path: Path) -> str:
    from pypdf import PdfReader

    return "\n".join(page.extract_text() for page in PdfReader(path).pages)


def pypdfium2(path: Path) -> str:
    from pypdfium2 import PdfDocument

    return "\n".join(page.get_textpage().get_text_range() for page in PdfDocument(path))


def pdftext(path: Path) -> str:
    from pdftext.extraction import plain_text_output

    return str(plain_text_output(str(path)))


def pdfplumber(path: Path) -> str:
    import pdfplumber

    with pdfplumber.open(path) as document:
        return "\n".join(page.extract_text() or "" for page in document.pages)


def pdfminer(path: Path) -> str:
    from pdfminer.high_level import extract_text

    return extract_text(path)


READERS: dict[str, Callable[[Path], str]] = {
    read.__name__: read for read in (ours, pypdf, pypdfium2, pdftext, pdfplumber, pdfminer)
}


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    text = re.sub(r"<!--.*?-->|&amp;|[|*#_]", " ", unicodedata.normalize("NFKC", text))
    text = re.sub(r"(\w)(?:[-\u00ad\u2010]\s*\n\s*|[\ufffe\x02]\s*)(?=[a-z])", r"\1", text).replace("\u00ad", "")
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def found(text: str, lines: list[str], length: int) -> str:
    true = set().union(*(runs(line, length) for line in lines))
    return f"{len(true & runs(text, length)) / len(true):.2f}" if true else "-"


def cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("readers", nargs="*", default=["ours"], metavar="READER", help=", ".join(READERS))
    options = parser.parse_args()
    if unknown := [name for name in options.readers if name not in READERS]:
        parser.error(f"there is no reader {unknown[0]}; there are {', '.join(READERS)}")
    print(f"{'':24}" + "".join(f"{name:>22}" for name in options.readers))
    for path in sorted(options.folder.glob("*.pdf")):
        truth = path.with_suffix(".txt")
        lines = truth.read_text(encoding="utf-8").splitlines() if truth.exists() else []
        prose = [line for line in lines if not line.startswith("|")]
        rows = [line for line in lines if line.startswith("| ")]
        cells = []
        for name in options.readers:
            began = cpu_seconds()
            try:
                text = READERS[name](path)
            except Exception as error:  # each library has its own
                cells.append(f"{type(error).__name__[:20]:>22}")
                continue
            seconds = cpu_seconds() - began
            cells.append(f"{found(text, prose, 5):>8}{found(text, rows, 2):>6}{seconds:7.2f}s")
        print(f"{path.stem[:22]:24}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
