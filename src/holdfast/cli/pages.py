"""The pages that commands write: which file may be one, and a page that is kept up to date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.errors import ConfigError
from holdfast.cli.sources import path_of
from holdfast.cli.terminal import err

if TYPE_CHECKING:
    from holdfast.diagnose.finding import Diagnosis
    from holdfast.diagnose.log import Log


def check_page(page: Path, sources: Sequence[str] | None, option: str) -> None:
    """Raises `ConfigError` if the page would replace a log or another file."""
    from holdfast.diagnose.report import is_replaceable

    paths = [path for source in sources or () if (path := path_of(source)) is not None]
    if any(path.resolve() == page.resolve() for path in paths):
        raise ConfigError(f"{option} {page}: the page would replace the log that it reports on; give another name")
    if not is_replaceable(page):
        raise ConfigError(f"{option} {page}: this file exists and is not a holdfast report; give another name")


class LivePage:
    """A report that is written again at every look at a log, and a last time as final.

    Args:
        page: the file. Raises `ConfigError` if the log or another file is there.
        source: the log, as the user named it.
    """

    def __init__(self, page: Path, source: str) -> None:
        check_page(page, [source], "--html")
        self.path, self._folder = page, path_of(source)
        self._last: tuple[Log, Diagnosis] | None = None
        self._noted: set[str] = set()

    def show(self, log: Log, diagnosis: Diagnosis) -> None:
        """Write the page."""
        self._last = log, diagnosis
        self._write(live=True)

    def finish(self) -> None:
        """Write the page as final. Without a row there is none."""
        if self._last is not None:
            self._write(live=False)

    def _write(self, *, live: bool) -> None:
        from holdfast.diagnose.report import reported, write_report

        assert self._last is not None
        log, diagnosis = self._last
        try:
            write_report(self.path, [reported(log, diagnosis, self._folder)], live=live)
        except Exception as error:  # a page must not stop the pipe that a trainer writes to
            if str(error) not in self._noted:
                err().print(f"holdfast: {self.path} was not written: {error}", soft_wrap=True)
            self._noted.add(str(error))
