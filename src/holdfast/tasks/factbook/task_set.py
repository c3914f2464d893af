"""The World Factbook as a task set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.tasks import factbook
from holdfast.tasks.factbook.demonstrations import demonstrations_of
from holdfast.tasks.task_set import Questions, TaskSet

if TYPE_CHECKING:
    from holdfast.agent.protocol import SearchProtocol
    from holdfast.retrieval.types import Document, Retriever
    from holdfast.tasks.demonstrations import Text
    from holdfast.tasks.questions import Example


class FactbookTasks(TaskSet):
    """Questions over real prose, with demonstrations that often stop too early."""

    own_passages = True
    extras = ("factbook",)

    def questions(self) -> Questions:
        return factbook.load_questions()

    def passages(self) -> Sequence[Document]:
        return factbook.load_passages()

    def demonstrations(
        self, asked: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, *, seed: int, most: int
    ) -> Sequence[Text]:
        """Of every training question, with what the recipe's retriever finds."""
        return demonstrations_of(asked, retriever, protocol, seed)

    def fingerprint(self) -> Mapping[str, str]:
        """The digest of the code, which may change within a version."""
        code = b"".join(file.read_bytes() for file in sorted(Path(factbook.__file__).parent.glob("*.py")))
        return {"factbook": hashlib.sha256(code).hexdigest()}
