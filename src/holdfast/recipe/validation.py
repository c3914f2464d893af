"""What cannot be trained, beyond what no recipe may say: `holdfast train` and its dry run refuse the same."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.agent.calling import tools_named
from holdfast.agent.rewards import part
from holdfast.base.errors import ConfigError, raise_all
from holdfast.base.section import sentence
from holdfast.recipe.config import Config, inert_penalty


def check_training(config: Config, *, stage: str | None = None) -> None:
    """Refuse what cannot be trained, as far as the recipe and the code that it names show.

    `stage` is `warm-start` for `holdfast warm-start`, None for reinforcement learning. Raises `ConfigError`.
    """
    raise_all("this recipe cannot be trained", _training_errors(config, stage))


def _training_errors(config: Config, stage: str | None) -> Iterator[str]:
    warm_start = config.warm_start
    if stage == "warm-start" and not (warm_start.steps or config.world.scripts.plain_steps):
        yield "warm_start.steps = 0, so there is no warm start to make; set warm_start.steps"
    yield from code_errors(config)


def code_errors(config: Config) -> Iterator[str]:
    """A sentence for each import path of the recipe that cannot be imported or used."""
    try:
        penalty = config.loss.penalty.term
        if penalty is not None and penalty is not config.loss.penalty:
            yield from map(sentence, inert_penalty(config, penalty))
    except ConfigError as error:
        yield str(error)
    for setting, load, paths in (
        ("reward.custom", part, config.reward.custom),
        ("protocol.tools", tools_named, config.protocol.tools or ()),
    ):
        for path in paths:
            try:
                load(path)
            except ConfigError as error:
                yield f"{setting}: {error}"
