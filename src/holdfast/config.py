"""The schema of a recipe: strict TOML, dotted overrides, and the one table of method defaults.

`load("recipe.toml", ["--loss.penalty.name", "none"])` reads the file, applies the overrides, and validates the whole. An
unknown key is an error that names the nearest match. `dump(config)` is the resolved recipe as TOML; `holdfast train`
writes it to the run folder, and reading it back gives an equal config.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from holdfast.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Run(Section):
    name: str = "quickstart"
    """Name of the run; the run folder is `dir/name`, with a number behind it when that exists and you gave no name."""
    dir: str = "runs"
    """Folder that holds run folders."""
    seed: int = 0
    """Seed of the data order and of the sampler; the warm start has its own, so that seeds can share one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU if there is one."""
    threads: int = Field(0, ge=0)
    """CPU threads; 0 leaves PyTorch's choice. Identical metrics after a resume need equal threads."""


class World(Section):
    seed: int = 0
    """Seed of the bundled world; independent of the run's seed, so that seeds of a run share one world."""
    people: int = Field(420, ge=40)
    """Persons in the world: 60 % in the training region, 15 % in dev, 25 % in test."""
    train_questions: int = Field(4000, ge=1)
    dev_questions: int = Field(200, ge=1)
    test_questions: int = Field(400, ge=1)
    two_hop: float = Field(0.5, ge=0, le=1)
    """Share of questions that need two searches."""
    mismatch: float = Field(0.25, ge=0, le=1)
    """Probability that a question names a relation otherwise than the passage does."""
    filler_words: int = Field(0, ge=0)
    """Words of the think text's filler language; 0 means no filler."""
    filler_length: tuple[int, int] = (4, 10)
    """Shortest and longest filler in a thought, in words."""
    ramble_length: tuple[int, int] = (18, 30)
    """Shortest and longest ramble, in words."""


class Data(Section):
    train: str = "world"
    """`world` for the bundled world, or a JSONL file of questions (`question`, `golden_answers`)."""
    dev: str | None = None
    """Questions for evaluation while training, early choice of the best checkpoint. None: the world's, or 10 % of train held out."""
    test: str | None = None
    """Questions read once, at the end. None: the world's, or no test."""


class Retrieval(Section):
    corpus: str = "world"
    """`world`, or a JSONL file of passages (`id`, `contents`)."""
    index: str | None = None
    """Folder of a saved BM25 index; built and saved beside the run's cache when absent."""
    stem: bool = True
    """English stemming."""
    cache_size: int = Field(100_000, ge=0)
    """Queries kept in the LRU cache."""
    max_failed: float = Field(0.5, gt=0, le=1)
    """The run stops when a larger share of a step's episodes ends as `retrieval_failed`."""


class Model(Section):
    path: str = "tiny"
    """`tiny` for the model made on the spot, a directory, or a hub id of any causal LM that transformers loads."""
    hidden: int = Field(96, ge=16)
    """Width of the tiny model."""
    layers: int = Field(3, ge=1)
    """Layers of the tiny model."""
    heads: int = Field(4, ge=1)
    """Attention heads of the tiny model."""
    lora_rank: int = Field(0, ge=0)
    """0 trains all weights; otherwise LoRA of this rank on all linear layers (needs peft)."""
    lora_alpha: int = Field(32, ge=1)
    autocast: Literal["auto", "bf16", "none"] = "auto"
    """bf16 autocast over fp32 weights; `auto` means on a GPU only."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    chat_template: str = "auto"
    """`auto`: the tokenizer's template if it has one; `none`: plain text; otherwise a Jinja file."""


class Protocol(Section):
    preset: Literal["clean", "search-r1"] = "clean"
    """Tags, prompt and limits; see docs/data-model.md."""
    prompt: str | None = None
    """Prompt text holding `{question}`; None is the preset's."""
    max_turns: int = Field(4, ge=1)
    """Model turns in an episode, the answer included."""
    max_turn_tokens: int = Field(500, ge=1)
    max_observation_tokens: int = Field(500, ge=16)
    max_total_tokens: int = Field(4096, ge=32)
    topk: int = Field(3, ge=1)
    """Passages a search returns."""


class Sampling(Section):
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1 the sampler is truncated while log-probs are not: a disease of its own (docs/results.md). Warns."""
    top_k: int = Field(0, ge=0)
    """Above 0: as top_p."""


class WarmStart(Section):
    steps: int = Field(0, ge=0)
    """Supervised steps before reinforcement learning; 0 for none. The result is cached."""
    data: str | None = None
    """JSONL of episodes (`question`, `turns` of `text` and `observation`); None: the world's scripts, or no warm start."""
    batch: int = Field(48, ge=1)
    """Episodes per step."""
    lr: float = Field(3e-3, gt=0)
    seed: int = 0
    """Seed of the scripts, the order, and the initial weights of the tiny model."""
    episodes: int = Field(6000, ge=1)
    """Scripted episodes; each is used with many disguises, its names exchanged for others."""
    skip_search: float = Field(0.08, ge=0, le=1)
    """Script habit: guess without a search."""
    vague_query: float = Field(0.25, ge=0, le=1)
    """Script habit: ask for the person alone or the relation alone."""
    give_up: float = Field(0.5, ge=0, le=1)
    """Script habit: after a search that missed, guess."""
    stop_early: float = Field(0.55, ge=0, le=1)
    """Script habit: answer a two-hop question with the first hop's value."""
    misread: float = Field(0.12, ge=0, le=1)
    """Script habit: take another passage's value."""
    malformed: float = Field(0.03, ge=0, le=1)
    """Script habit: an invalid turn first."""
    ramble: float = Field(0.0, ge=0, le=1)
    """Script habit: a long thought, then a guess."""


class Reward(Section):
    em: float = 1.0
    """Weight of exact match."""
    f1: float = 0.0
    """Weight of token F1."""
    format: float = 0.0
    """Weight of 1 for an episode whose every turn is valid and which ends in an answer."""
    retrieval: float = 0.0
    """Weight of 1 for an episode in which a search returned a golden answer."""


class Penalty(Section):
    """The likelihood-preserving term. `None` means the method's published value, from `METHOD_DEFAULTS`."""

    name: Literal["none", "llds", "sapo", "nll"] = "llds"
    """`llds` (arXiv 2512.04220; gate `token` is LLD), `sapo` (Search Agent Policy Optimization, arXiv 2603.10069), `nll`."""
    coef: float | None = Field(None, ge=0)
    """λ of LLDS, γ of SAPO, μ of NLL."""
    gate: Literal["action", "response", "token"] = "action"
    """LLDS: the unit whose summed drop opens the penalty."""
    preserve: Literal["nonnegative", "positive", "correct"] | None = None
    """Rollouts the penalty protects: A ≥ 0, A > 0, or right ones (all-right groups too, all-wrong ones not)."""
    normalizer: Literal["policy", "paper"] = "policy"
    """`policy`: the policy loss's own denominator (authors' code); `paper`: the tokens of protected rollouts."""
    threshold: float = Field(0.0, ge=0)
    """LLDS: nats per token a drop must exceed to count."""
    answer_weight: float | Literal["adaptive-paper", "adaptive-code"] = 1.0
    """LLDS-MA: weight of answer tokens, fixed or by the schedule of the paper or of the authors' code."""
    tau: float = Field(1.0, gt=0)
    """SAPO: a token counts when its ratio is below this."""


class Loss(Section):
    advantage: Literal["grpo", "dr_grpo", "reinforce"] = "grpo"
    """Group mean and std; group mean alone; the reward itself."""
    ratio: Literal["token", "sequence"] = "token"
    """`sequence` is GSPO's."""
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    """Above clip_low: DAPO's clip-higher."""
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of negative tokens whose ratio exploded; None as in the published runs."""
    reduction: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    kl_coef: float = Field(0.001, ge=0)
    """KL to the frozen reference; 0 saves its forward pass."""
    kl_estimator: Literal["k3", "k2"] = "k3"
    entropy_coef: float = 0.0
    """Positive rewards entropy. The published runs used 0.001."""
    penalty: Penalty = Penalty()


class Train(Section):
    steps: int = Field(60, ge=1)
    """Rollout batches. Learning rate, evaluation and checkpoints count them too."""
    questions: int = Field(32, ge=1)
    """Questions per rollout batch."""
    group_size: int = Field(5, ge=1)
    """Rollouts per question."""
    optimizer_steps_per_rollout: int = Field(10, ge=1)
    """K. The penalties see a change of policy from the second on: K = 1 makes them inert."""
    lr: float = Field(1e-6, gt=0)
    warmup: int = Field(0, ge=0)
    """Rollout batches of linear warm-up."""
    weight_decay: float = Field(0.01, ge=0)
    grad_clip: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16_384, ge=64)
    """Most tokens, padding included, in one forward pass."""
    displacement_every: int = Field(1, ge=0)
    """Measure displacement every n steps; 0 never."""
    displacement_rows: int = Field(64, ge=1)
    """Rollouts it is measured on."""


class Eval(Section):
    every: int = Field(10, ge=0)
    """Evaluate on dev every n steps; 0 only at the end."""
    questions: int = Field(100, ge=1)
    """Dev questions read while training."""
    samples: int = Field(1, ge=1)
    """Samples per question at the training temperature; greedy is always reported beside."""


class Checkpoint(Section):
    every: int = Field(20, ge=0)
    """Save every n steps; 0 only at the end."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints kept, the best on dev besides."""


class Track(Section):
    wandb: str | None = None
    """W&B project; None for none."""
    tensorboard: bool = False
    trajectories: int = Field(4, ge=0)
    """Sampled episodes written to trajectories.jsonl per step."""


class Config(Section):
    """A whole run."""

    run: Run = Run()
    world: World = World()
    data: Data = Data()
    retrieval: Retrieval = Retrieval()
    model: Model = Model()
    protocol: Protocol = Protocol()
    sampling: Sampling = Sampling()
    warm_start: WarmStart = WarmStart()
    reward: Reward = Reward()
    loss: Loss = Loss()
    train: Train = Train()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    track: Track = Track()

    @model_validator(mode="after")
    def _can_work(self) -> Config:
        penalty, train = self.loss.penalty, self.train
        if penalty.name in ("llds", "sapo") and train.optimizer_steps_per_rollout == 1:
            raise ValueError(
                f"loss.penalty.name = {penalty.name!r} with train.optimizer_steps_per_rollout = 1: on the first optimizer "
                "step after a rollout the policy equals the old one, so this penalty is always zero. Set "
                "train.optimizer_steps_per_rollout to 2 or more (published runs: 10), or loss.penalty.name = 'none'"
            )
        if train.optimizer_steps_per_rollout > train.questions * train.group_size:
            raise ValueError(
                f"train.optimizer_steps_per_rollout = {train.optimizer_steps_per_rollout} but a rollout batch has only "
                f"{train.questions} × {train.group_size} = {train.questions * train.group_size} rollouts; every optimizer "
                "step needs at least one. Lower it, or raise train.questions or train.group_size"
            )
        if self.loss.advantage != "reinforce" and train.group_size == 1:
            raise ValueError(
                f"train.group_size = 1 with loss.advantage = {self.loss.advantage!r}: a group of one has no contrast. Raise "
                "train.group_size (published runs: 5), or set loss.advantage = 'reinforce'"
            )
        if (self.data.train == "world") != (self.retrieval.corpus == "world"):
            raise ValueError(
                f"data.train = {self.data.train!r} with retrieval.corpus = {self.retrieval.corpus!r}: the bundled world's "
                "questions are answered by its own corpus only. Set both to your files, or neither"
            )
        if self.protocol.prompt is not None and "{question}" not in self.protocol.prompt:
            raise ValueError("protocol.prompt must hold {question}, where the question goes")
        return self


# Published values: λ of LLDS v2, γ of SAPO v1, μ of NLL as methods that use it; the preserving rule of each paper.
METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    "none": {"coef": 0.0, "preserve": "nonnegative"},
    "llds": {"coef": 0.2, "preserve": "nonnegative"},
    "sapo": {"coef": 0.1, "preserve": "positive"},
    "nll": {"coef": 0.1, "preserve": "positive"},
}


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config of a TOML file (None: all defaults) with `overrides` such as `["--train.steps", "50"]` applied."""
    data: dict[str, Any] = {}
    if path is not None:
        data = read_toml(Path(path))
    for dotted, text in parse_overrides(overrides):
        _assign(data, dotted, text)
    return validate(data, where=str(path) if path is not None else "command line")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe {path}; give the path of a TOML file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a TOML file, or --resume {path} to continue a run") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def validate(data: Mapping[str, Any], *, where: str) -> Config:
    """`data` as a `Config`; every problem in one `ConfigError`, unknown keys with the nearest match. Fills method defaults."""
    try:
        config = Config.model_validate(_fill_method_defaults(data))
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(e)}" for e in error.errors(include_url=False))
        raise ConfigError(f"{where}: this recipe cannot work\n{problems}") from None
    return config


def dump(config: Config) -> str:
    """The config as TOML. Keys that are None are left out, which reads back as None."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """`--a.b value` and `--a.b=value` pairs; `--a.flag` alone is true.

    >>> parse_overrides(["--train.steps", "50", "--loss.penalty.name=none", "--track.tensorboard"])
    [('train.steps', '50'), ('loss.penalty.name', 'none'), ('track.tensorboard', 'true')]
    """
    pairs: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"cannot read the argument {argument!r}; settings are written --section.key value")
        name, equals, value = argument[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        pairs.append((name, value))
    return pairs


def setting_names(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """All dotted names a recipe may set."""
    names = []
    for key, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += setting_names(kind, f"{prefix}{key}.")
        else:
            names.append(prefix + key)
    return names


def _assign(data: dict[str, Any], dotted: str, text: str) -> None:
    *sections, key = dotted.split(".")
    if dotted not in setting_names():
        raise ConfigError(f"--{dotted}: {_unknown(dotted)}")
    for section in sections:
        data = data.setdefault(section, {})
    data[key] = _parse(text, _annotation(dotted))


def _annotation(dotted: str) -> Any:
    model: Any = Config
    for part in dotted.split("."):
        model = model.model_fields[part].annotation
    return model


def _parse(text: str, annotation: Any) -> Any:
    """An override's text as TOML would read it, where the setting is no string; `none` clears an optional one."""
    options = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    if type(None) in options and text.lower() in ("none", "null"):
        return None
    kinds = [k for k in (options or (annotation,)) if k is not type(None)]
    if kinds == [str] or all(typing.get_origin(k) is Literal for k in kinds):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _fill_method_defaults(data: Mapping[str, Any]) -> dict[str, Any]:
    filled = json.loads(json.dumps(data)) if not isinstance(data, dict) else _copy(data)
    loss = filled.get("loss", {})
    penalty = loss.get("penalty", {}) if isinstance(loss, dict) else {}
    defaults = METHOD_DEFAULTS.get(penalty.get("name", "llds")) if isinstance(penalty, dict) else None
    if defaults is not None:
        filled.setdefault("loss", {}).setdefault("penalty", {})
        for key, value in defaults.items():
            if filled["loss"]["penalty"].get(key) is None:
                filled["loss"]["penalty"][key] = value
    return filled


def _copy(data: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in data.items()}


def _explain(error: Any) -> str:
    dotted = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("literal[", "float", "int")))
    if error["type"] == "extra_forbidden":
        return f"{dotted}: {_unknown(dotted)}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not dotted:
        return message
    return f"{dotted} = {error.get('input')!r}: {message[0].lower()}{message[1:]}"


def _unknown(dotted: str) -> str:
    names = setting_names()
    sections = sorted({name.rpartition(".")[0] for name in names})
    near = difflib.get_close_matches(dotted, names + sections, n=1, cutoff=0.5)
    # A key put into the wrong section is nearest by its last part.
    same_key = [name for name in names if name.rpartition(".")[2] == dotted.rpartition(".")[2]]
    best = same_key or near
    return "there is no such setting" + (f"; did you mean {best[0]}?" if best else "; `holdfast train --dry-run` prints all")
