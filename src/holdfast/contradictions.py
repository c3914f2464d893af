"""Settings that are each fine and cannot work together. `config.py` asks here; a combination is listed nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.diagnostics.codes import chosen
from holdfast.errors import ConfigError

METHOD_SETTINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "llds": ("coef", "gate", "preserve", "normalizer", "threshold", "answer_weight"),
    "sapo": ("coef", "preserve", "normalizer", "tau"),
    "nll": ("coef", "normalizer"),
}
"""What each penalty reads of `[loss.penalty]`."""


def unread(method: str) -> set[str]:
    """The settings of `[loss.penalty]` that a penalty has no use for; of a name that is none, nothing is known.

    >>> sorted(unread("llds")), sorted(unread("nll"))
    (['tau'], ['answer_weight', 'gate', 'preserve', 'tau', 'threshold'])
    """
    known = {key for keys in METHOD_SETTINGS.values() for key in keys}
    return known - set(METHOD_SETTINGS.get(method, known))


def needs_drift(penalty: Any) -> bool:
    """Whether a penalty is zero while the policy equals the old one, r = 1. SAPO counts tokens with r < τ, so with
    τ > 1 it acts from the first optimizer step on.

    >>> from holdfast.config import Penalty
    >>> [needs_drift(Penalty(name="sapo", tau=tau)) for tau in (1.0, 1.2)]
    [True, False]
    """
    return penalty.name == "llds" or (penalty.name == "sapo" and penalty.tau <= 1)


LONGEST_NAME = 200
"""Bytes. File systems take 255, and names are made from this one by adding to it."""
MOST_ROLLOUTS = 1_000_000
"""Of a rollout batch, which is held in memory."""


def contradictions(config: Any) -> Iterator[str]:
    """A sentence for each combination of a `Config` that cannot work: what you set, why it fails, what to do."""
    train, world, model = config.train, config.world, config.model
    name = config.run.name
    if not name.strip() or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        yield f"run.name = {name!r} is no name for a folder; use letters and digits, and set run.dir for where it lies"
    elif len(name.encode()) > LONGEST_NAME:
        yield f"run.name has {len(name.encode())} bytes, more than a folder's name can have; use at most {LONGEST_NAME}"
    yield from _penalty_contradictions(config)
    if train.optimizer_steps_per_rollout > train.questions * train.group_size:
        yield (
            f"train.optimizer_steps_per_rollout = {train.optimizer_steps_per_rollout} but a rollout batch has only "
            f"{train.questions} × {train.group_size} = {train.questions * train.group_size} rollouts; every optimizer "
            "step needs at least one. Lower it, or raise train.questions or train.group_size"
        )
    if train.questions * train.group_size > MOST_ROLLOUTS:
        yield (
            f"train.questions = {train.questions} times train.group_size = {train.group_size} is more than "
            f"{MOST_ROLLOUTS:,} rollouts in a batch; lower one of them"
        )
    if config.loss.advantage != "reinforce" and train.group_size == 1:
        yield (
            f"train.group_size = 1 with loss.advantage = {config.loss.advantage!r}: a group of one has no contrast. "
            "Raise train.group_size (published runs: 5), or set loss.advantage = 'reinforce'"
        )
    if config.loss.baseline == "length" and config.loss.advantage == "reinforce":
        yield (
            "loss.baseline = 'length' with loss.advantage = 'reinforce': that advantage is the reward itself, with "
            "nothing subtracted. Set loss.advantage = 'dr_grpo', which makes it OPO, or leave loss.baseline at 'mean'"
        )
    if config.sampling.keep_mask and not config.sampling.top_k:
        yield (
            "sampling.keep_mask = true with sampling.top_k = 0: the tokens kept at every position are held in memory, "
            "and top_k bounds their number. Set sampling.top_k, 512 say, which rarely cuts more than top_p does; a "
            "sampler that is not truncated needs no mask"
        )
    if not any(config.reward.model_dump().values()):
        yield "all weights in [reward] are 0, so there is nothing to learn; set reward.em = 1.0"
    try:
        chosen(config.guard.on, where="guard.on")
    except ConfigError as error:
        yield str(error)
    yield from _retrieval_contradictions(config)
    yield from _method_contradictions(config)
    in_world = config.data.train == "world"
    searches_world = config.retrieval.corpus == "world" and (in_world or config.retrieval.index is None)
    if config.retrieval.url is None and in_world != searches_world:
        yield (
            f"data.train = {config.data.train!r} with retrieval.corpus = {config.retrieval.corpus!r}: the bundled "
            "world's questions are answered by its own corpus only. Set both to your files, or neither"
        )
    for split in ("dev", "test"):
        path = getattr(config.data, split)
        if path is not None and config.data.train == "world":
            yield (
                f"data.{split} = {path!r} with data.train = 'world': the bundled world brings its own {split} "
                f"questions. Set data.train and retrieval.corpus to your files too, or leave data.{split} out"
            )
    if config.protocol.prompt is not None and "{question}" not in config.protocol.prompt:
        yield "protocol.prompt must hold {question}, where the question goes"
    for key in ("filler_length", "ramble_length"):
        shortest, longest = getattr(world, key)
        if not 1 <= shortest <= longest:
            yield f"world.{key} = [{shortest}, {longest}]: give the shortest length first, 1 or more, then the longest"
    if 0 < world.filler_words < 11:
        yield (
            f"world.filler_words = {world.filler_words}: each word needs ten others that may follow it; set 11 or "
            "more, or 0 for no filler"
        )
    if model.path == "tiny" and model.hidden % (2 * model.heads):
        yield (
            f"model.hidden = {model.hidden} with model.heads = {model.heads}: each head needs an even share of the "
            f"width. Set model.hidden to a multiple of {2 * model.heads}"
        )


def _penalty_contradictions(config: Any) -> Iterator[str]:
    penalty = config.loss.penalty
    for key in sorted(unread(penalty.name) & penalty.model_fields_set):
        if (value := getattr(penalty, key)) is not None:
            readers = " or ".join(repr(name) for name, keys in METHOD_SETTINGS.items() if key in keys)
            yield (
                f"loss.penalty.{key} = {value!r} with loss.penalty.name = {penalty.name!r}, which does not read it. "
                f"Leave it out, or set loss.penalty.name = {readers}"
            )
    if needs_drift(penalty) and config.train.optimizer_steps_per_rollout == 1:
        yield (
            f"loss.penalty.name = {penalty.name!r} with train.optimizer_steps_per_rollout = 1: on the first optimizer "
            "step after a rollout the policy equals the old one, so this penalty is always zero. Set "
            "train.optimizer_steps_per_rollout to 2 or more (published runs: 10), or loss.penalty.name = 'none'"
        )
    if not isinstance(penalty.answer_weight, str) and not 0 <= penalty.answer_weight <= 1:
        yield (
            f"loss.penalty.answer_weight = {penalty.answer_weight} must be between 0, answers left free, and 1, as "
            "other tokens; or 'adaptive-paper' or 'adaptive-code'"
        )


def _method_contradictions(config: Any) -> Iterator[str]:
    own, limits = config.warm_start, config.protocol
    if limits.preset == "r1" and limits.max_turns != 1:
        yield (
            f"protocol.preset = 'r1' with protocol.max_turns = {limits.max_turns}: without search there is one turn, "
            "and a second would only follow an invalid one. Set protocol.max_turns = 1"
        )
    for name, useless in (("data", own.data), ("plain_steps", own.plain_steps)):
        if own.teaches != "search" and useless:
            yield (
                f"warm_start.teaches = {own.teaches!r} with warm_start.{name} = {useless!r}: it is taught on the "
                f"training questions and their golden answers, not on episodes. Leave warm_start.{name} out"
            )


def _retrieval_contradictions(config: Any) -> Iterator[str]:
    own = config.retrieval
    if own.url is None:
        return
    if config.data.train == "world":
        yield (
            f"retrieval.url = {own.url!r} with data.train = 'world': the bundled world's questions are answered by its "
            "own corpus only. Set data.train to your questions, or leave retrieval.url out"
        )
    for key, unset in (("corpus", "world"), ("index", None)):
        if (value := getattr(own, key)) != unset:
            yield (
                f"retrieval.url = {own.url!r} with retrieval.{key} = {value!r}: the server searches its own passages. "
                f"Leave out the one you do not want"
            )
