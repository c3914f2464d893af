"""PDF files as programs write them, made by hand: text at places of a page."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[float, float, float, str]
"""Left, bottom, size in points, and the text in Latin-1."""


def pdf(pages: Sequence[Sequence[Place] | bytes], *, title: str = "", content: bytes | None = None) -> bytes:
    """A file with these pages of A4, of texts or of what is drawn; or with one content for all of them."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    objects.append(b"<< /Title (%s) >>" % title.encode("latin-1"))
    kids = []
    for places in pages:
        drawn = (
            places
            if isinstance(places, bytes)
            else content
            or b"\n".join(
                b"BT /F %g Tf %g %g Td (%s) Tj ET"
                % (size, left, bottom, text.encode("latin-1").replace(b"(", b"\\(").replace(b")", b"\\)"))
                for left, bottom, size, text in places
            )
        )
        number = len(objects) + 1
        kids.append(b"%d 0 R" % number)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R /Resources "
            b"<< /Font << /F 3 0 R >> >> >>" % (number + 1)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    data, starts = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        starts.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    table += b"".join(b"%010d 00000 n \n" % start for start in starts)
    trailer = b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF"
    return data + table + trailer % (len(objects) + 1, len(data))
