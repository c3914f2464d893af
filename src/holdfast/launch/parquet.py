"""Questions as the parquet files that Search-R1 made the habit and verl reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.config import Config
from holdfast.data import MOST_HELD_OUT, Example, dev_questions, read_questions
from holdfast.errors import MissingExtra
from holdfast.launch.questions import train_and_dev
from holdfast.search.protocol import PRESETS, SearchProtocol, prompt_text

AGENT = "holdfast_search"
"""The agent loop that a row asks for."""


def read_splits(config: Config) -> dict[str, list[Example]]:
    """train, dev and, if the recipe names one, test. dev holds the questions that are read while training.

    Raises `DataError` for a file that is missing or cannot be used, and for fewer questions than a rollout batch has.
    """
    train, dev = train_and_dev(config, "verl")
    splits = {"train": list(train), "dev": dev_questions(dev, config.eval.questions)}
    if config.data.test is not None:
        splits["test"] = list(read_questions(config.data.test, split="test").examples)
    return splits


def asking(config: Config) -> SearchProtocol:
    """The protocol as far as it words a question."""
    preset = PRESETS[config.protocol.preset]
    return replace(preset, prompt=config.protocol.prompt or preset.prompt)


def rows(examples: Iterable[Example], protocol: SearchProtocol) -> list[dict[str, Any]]:
    """Search-R1's columns, and `agent_name`, by which verl picks the agent loop.

    `prompt` is the question in the protocol's words, so that the file also serves trainers that know no protocol.
    """
    return [
        {
            "id": example.id,
            "data_source": example.source,
            "agent_name": AGENT,
            "prompt": [{"role": "user", "content": prompt_text(example.question, protocol)}],
            "question": example.question,
            "golden_answers": list(example.golden_answers),
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": list(example.golden_answers)}},
            "extra_info": {"split": example.split, "index": example.index, "question": example.question},
        }
        for example in examples
    ]


def write_splits(config: Config, folder: Path) -> None:
    """`train.parquet`, `dev.parquet` and perhaps `test.parquet`. Raises `DataError`, or `MissingExtra` for pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtra("pyarrow", "data") from None
    protocol = asking(config)
    for split, examples in read_splits(config).items():
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows(examples, protocol)), folder / f"{split}.parquet")


def files(config: Config) -> dict[str, str]:
    """What `write_splits` writes, and where it comes from."""
    data = config.data
    held_out = f"a tenth of {data.train}, {MOST_HELD_OUT} questions at most"
    splits: dict[str, str | None] = {
        "train": data.train if data.dev else f"{data.train}, without what is held out",
        "dev": f"{data.dev or held_out}, {config.eval.questions} of them at most",
        "test": data.test,
    }
    return {f"{split}.parquet": origin for split, origin in splits.items() if origin}
