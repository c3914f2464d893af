"""The schema of a recipe: strict TOML, dotted overrides, and the one table of method defaults.

`load("recipe.toml", ["--loss.penalty.name", "none"])` reads the file, applies the overrides, and validates the
whole. An unknown key is an error that names the nearest match. `dump(config)` is the resolved recipe as TOML;
`holdfast train` writes it to the run folder, and reading it back gives an equal config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError, field_validator, model_validator

from holdfast import settings
from holdfast.contradictions import contradictions, unread
from holdfast.errors import ConfigError
from holdfast.settings import Section

# Published values: λ of LLDS v2, γ of SAPO v1, μ of NLL as methods that use it; the preserving rule of each paper.
METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "llds": {"coef": 0.2, "preserve": "nonnegative"},
    "sapo": {"coef": 0.1, "preserve": "positive"},
    "nll": {"coef": 0.1},
}
# Of `search.protocol.PRESETS`, where they differ in a limit; a test holds both together.
PRESET_DEFAULTS = {"clean": {"max_turns": 4}, "search-r1": {"max_turns": 5}, "r1": {"max_turns": 1}}


class Run(Section):
    name: str = "quickstart"
    """The run folder is `dir/name`; a name taken from the recipe gets a number behind it when that folder exists."""
    dir: str = "runs"
    """Folder that holds run folders."""
    seed: int = 0
    """Seed of the data order and of the sampler; the warm start has its own, so that seeds can share one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU if there is one."""
    threads: int = Field(0, ge=0)
    """CPU threads; 0: one for the tiny model, else PyTorch's choice. Equal metrics after a resume need equal ones."""


class World(Section):
    seed: int = 0
    """Seed of the bundled world; independent of the run's seed, so that seeds of a run share one world."""
    people: int = Field(420, ge=40)
    """Persons in the world: 60 % in the training region, 15 % in dev, 25 % in test."""
    train_questions: int = Field(4000, ge=1)
    """Questions of the training region."""
    dev_questions: int = Field(200, ge=1)
    """Questions of the dev region."""
    test_questions: int = Field(400, ge=1)
    """Questions of the test region."""
    two_hop: float = Field(0.5, ge=0, le=1)
    """Share of questions that need two searches."""
    mismatch: float = Field(0.25, ge=0, le=1)
    """Probability that a question names a relation otherwise than the passage does."""
    filler_words: int = Field(0, ge=0)
    """Words of the think text's filler language; 0 means no filler."""
    filler_length: tuple[int, int] = Field((4, 10), strict=False)
    """Shortest and longest filler in a thought, in words."""
    ramble_length: tuple[int, int] = Field((18, 30), strict=False)
    """Shortest and longest ramble, in words."""


class Data(Section):
    train: str = "world"
    """`world` for the bundled world, or a JSONL file of questions (`question`, `golden_answers`)."""
    dev: str | None = None
    """Questions that choose the best checkpoint. None: the world's, or a tenth of train, 1000 at most."""
    test: str | None = None
    """Questions read once, at the end. None: the world's, or no test."""


class Retrieval(Section):
    corpus: str = "world"
    """`world`, or a JSONL file of passages (`id`, `contents`)."""
    index: str | None = None
    """Folder of an index (`holdfast index`), BM25 or dense, that brings its own passages. With `corpus` set as well:
    must be of that corpus; a BM25 index is built and saved there when absent."""
    url: str | None = None
    """Address of a `/retrieve` server (Search-R1's protocol) that searches instead of an index of our own."""
    stem: bool = True
    """English stemming, of an index that is built."""
    cache_size: int = Field(100_000, ge=0)
    """Queries kept in the LRU cache."""
    max_failed: float = Field(0.5, gt=0, le=1)
    """The run stops when a larger share of a step's episodes ends as `retrieval_failed`."""
    drop: float = Field(0.0, ge=0, lt=1)
    """Probability that a search finds nothing, by bad luck alone, in training rollouts: a fault to study."""


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
    """LoRA updates are scaled by this divided by the rank."""
    autocast: Literal["auto", "bf16", "none"] = "auto"
    """bf16 autocast over fp32 weights; `auto` means on a GPU only."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    trust_remote_code: bool = False
    """Run the Python code that some models bring. It can do whatever you can: read it first."""
    chat_template: str = "auto"
    """`auto`: the tokenizer's template if it has one; `none`: plain text; otherwise a Jinja file."""


class Protocol(Section):
    preset: Literal["clean", "search-r1", "r1"] = "clean"
    """Tags, prompt and turns; see docs/data-model.md. `r1` is without search."""
    prompt: str | None = None
    """Prompt text holding `{question}`; None is the preset's."""
    max_turns: int = Field(4, ge=1)
    """Model turns in an episode, the answer included; what is not set is the preset's: search-r1 5, r1 1."""
    max_turn_tokens: int = Field(500, ge=1)
    """Tokens the model may say in a turn."""
    max_observation_tokens: int = Field(500, ge=16)
    """Tokens of what comes back after a turn; longer passages are cut."""
    max_total_tokens: int = Field(4096, ge=32)
    """Tokens of an episode, its prompt included; one that reaches them ends as truncated."""
    topk: int = Field(3, ge=1)
    """Passages a search returns."""

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, data: Any) -> Any:
        return settings.implied(data, "preset", "clean", PRESET_DEFAULTS)


class Sampling(Section):
    temperature: float = Field(1.0, gt=0)
    """Divides the logits, of the sampler and of every log-prob alike."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1 the sampler is truncated while log-probs are not: a disease of its own (docs/results.md). Warns."""
    top_k: int = Field(0, ge=0)
    """Above 0 the sampler is truncated to the k most likely tokens: as top_p."""
    keep_mask: bool = False
    """Log-probs of the loss over the tokens the sampler kept, so that both agree (arXiv 2512.02556). Needs top_k."""


class WarmStart(Section):
    steps: int = Field(0, ge=0)
    """Supervised steps before reinforcement learning; 0 for none. The result is cached."""
    plain_steps: int = Field(0, ge=0)
    """Steps before them on scripts without filler: a tiny model learns to read first, to ramble then."""
    data: str | None = None
    """JSONL of episodes (`question`, `turns` of `text` and `observation`). None: the world's scripts, or no start."""
    teaches: Literal["search", "direct", "rag"] = "search"
    """`search`: episodes. `direct`: training questions and their short answers. `rag`: the same behind passages."""
    batch: int = Field(48, ge=1)
    """Episodes per step."""
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate."""
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
    """`llds` (arXiv 2512.04220), `sapo` (Search Agent Policy Optimization, arXiv 2603.10069), `nll`, `none`."""
    coef: float | None = Field(None, ge=0)
    """λ of LLDS, γ of SAPO, μ of NLL."""
    gate: Literal["action", "response", "token"] = "action"
    """LLDS: the unit whose summed drop opens the penalty. `token` is LLD."""
    preserve: Literal["nonnegative", "positive", "correct", "all"] | None = None
    """Rollouts the penalty protects: A ≥ 0, A > 0, right ones (all-right groups too, all-wrong ones not), or all."""
    normalizer: Literal["policy", "preserved"] = "policy"
    """What it is divided by: the policy loss's denominator, or the tokens of preserved rollouts (docs/papers.md)."""
    threshold: float = Field(0.0, ge=0)
    """LLDS: nats per token a drop must exceed to count."""
    answer_weight: float | Literal["adaptive-paper", "adaptive-code"] = 1.0
    """LLDS-MA: weight of answer tokens, fixed or by the schedule of the paper or of the authors' code."""
    tau: float = Field(1.0, gt=0)
    """SAPO: a token counts when its ratio is below this."""

    @model_validator(mode="before")
    @classmethod
    def _published(cls, data: Any) -> Any:
        """What is not set, or none, gets the method's published value."""
        return settings.implied(data, "name", "llds", METHOD_DEFAULTS)


class Loss(Section):
    advantage: Literal["grpo", "dr_grpo", "reinforce"] = "grpo"
    """Group mean and std; group mean alone; the reward itself."""
    baseline: Literal["mean", "length"] = "mean"
    """The group mean: each rollout counts alike, or by its length in tokens, so that a group's advantages sum to 0 over
    tokens. `length` with `advantage = "dr_grpo"` is OPO (arXiv 2505.23585)."""
    ratio: Literal["token", "sequence"] = "token"
    """`sequence` is GSPO's."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """A ratio below 1 - clip_low moves a token no further down."""
    clip_high: float = Field(0.2, ge=0)
    """A ratio above 1 + clip_high moves a token no further up. Above clip_low: DAPO's clip-higher."""
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of negative tokens whose ratio exploded; None as in the published runs."""
    reduction: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    """How the losses of tokens become one number; the names are verl's."""
    kl_coef: float = Field(0.001, ge=0)
    """KL to the frozen reference; 0 saves its forward pass."""
    kl_estimator: Literal["k3", "k2"] = "k3"
    """`k3` is an unbiased estimate of the KL; `k2` has its unbiased gradient."""
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
    """K, the optimizer steps a rollout batch is used for. The penalties see a change of policy from the second on, so
    K = 1 makes them inert."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW."""
    warmup: int = Field(0, ge=0)
    """Rollout batches of linear warm-up."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest norm of the gradient of an optimizer step."""
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
    """Write event files to RUN/tensorboard."""
    trajectories: int = Field(4, ge=0)
    """Sampled episodes written to trajectories.jsonl per step."""


class Guard(Section):
    on: str = ""
    """Codes of findings it acts on, or their beginnings, with commas between: `LLD003`, `LLD,ENT001`. Empty: all."""
    action: Literal["warn", "stop"] = "warn"
    """`warn` tells on the console; `stop` also saves a checkpoint and ends the run. All go into `findings.json`."""

    @field_validator("on", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """A list of codes will do as well."""
        listed = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
        return ",".join(value) if listed else value


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
    guard: Guard = Guard()

    def start_parts(self) -> dict[str, Any]:
        """The settings that a starting policy depends on, by section."""
        faults = {"retrieval": {"drop"}}  # of training rollouts, which come later
        parts = ("world", "model", "protocol", "retrieval", "warm_start")
        return {part: getattr(self, part).model_dump(exclude=faults.get(part)) for part in parts}

    @model_validator(mode="after")
    def _can_work(self) -> Config:
        if problems := list(contradictions(self)):
            raise ValueError("\n  ".join(problems))
        return self


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config of a TOML file (None: all defaults) with `overrides` such as `["--train.steps", "50"]` applied.

    >>> load(overrides=["--train.steps", "50", "--loss.penalty.name=none", "--track.tensorboard"]).train.steps
    50

    Raises `ConfigError`, which names every problem at once.
    """
    data: dict[str, Any] = {} if path is None else settings.read_toml(Path(path))
    values = settings.parse_overrides(overrides, Config)
    if "loss.penalty.name" in values:
        settings.forget_implied(data, "loss.penalty", "name", "llds", METHOD_DEFAULTS)
        settings.forget(data, "loss.penalty", unread(str(values["loss.penalty.name"])))
    if "protocol.preset" in values:
        settings.forget_implied(data, "protocol", "preset", "clean", PRESET_DEFAULTS)
    for dotted, value in values.items():
        settings.assign(data, dotted, value)
    return validate(data, where="" if path is None else str(path), overridden=tuple(values))


def validate(data: Mapping[str, Any], *, where: str = "", overridden: Sequence[str] = ()) -> Config:
    """`data` as a `Config`. Raises one `ConfigError` for all problems, unknown names with the nearest match.

    `where` is the file they are in; settings in `overridden` came from the command line and are named as such.
    """
    try:
        return Config.model_validate(dict(data))
    except ValidationError as error:
        problems = settings.explain(error.errors(include_url=False), Config, dict.fromkeys(overridden, "--"))
    prefix = f"{where}: " if where else ""
    if len(problems) == 1 and "\n" not in problems[0]:
        raise ConfigError(prefix + problems[0])
    raise ConfigError("\n  ".join([f"{prefix}these settings cannot work", *problems]))


def dump(config: Config) -> str:
    """The config as TOML, without keys that are None, which reads back as None, and those its penalty does not read."""
    unused = unread(config.loss.penalty.name)
    return tomli_w.dumps(config.model_dump(exclude_none=True, exclude={"loss": {"penalty": unused}}))


def setting_names() -> list[str]:
    """All dotted names a recipe may set."""
    return settings.setting_names(Config)


def setting_values(config: Config) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return settings.setting_values(config)
