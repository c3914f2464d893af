"""The sections of a recipe: settings, their meaning, their limits, and the errors of one section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal
from unicodedata import category

from pydantic import Field, field_validator, model_validator

from holdfast.agent.calling import problem_of
from holdfast.agent.judge import Judge
from holdfast.agent.rewards import JUDGE
from holdfast.agent.tools import PRESETS
from holdfast.base.errors import ConfigError
from holdfast.base.importing import is_import_path
from holdfast.base.section import Refusal, Section
from holdfast.diagnose.codes import chosen
from holdfast.methods.penalties import LLDS, AnyPenalty
from holdfast.methods.registry import Methods
from holdfast.retrieval.corpus import FIELDS as PASSAGE_FIELDS
from holdfast.retrieval.wire import retrieve_url

MAX_NAME_BYTES = 200
"""Bytes. File systems allow 255, and other names begin with this one."""
NAME_SIGNS = " ._-+=,@()"
"""What a name may have besides letters and digits: nothing that ends a quote, or begins a path or a reference."""


class Run(Section):
    """The run folder, the seed and the machine."""

    name: str = "quickstart"
    """The run folder is `dir/name`. If it exists and the name comes from the recipe, a number is appended."""
    dir: str = "runs"
    """Parent folder of the run folder, relative to the current folder."""
    code: str | None = None
    """Folder with the modules that `protocol.tools`, `reward.custom` and `loss.penalty.path` name. Unset: the folder of
    the recipe."""
    seed: int = 0
    """Seed of the data order and of the sampler. The warm start has its own seed, so runs with different seeds can
    share it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on. `auto`: a GPU if there is one."""
    threads: int = Field(0, ge=0, le=1024)
    """Number of CPU threads. 0: one for the tiny model, otherwise the fastest in a short trial. A resumed run keeps its
    number."""
    max_failed_fraction: float = Field(0.5, gt=0, le=1)
    """Stop the run if more than this fraction of a step's rollouts fails for reasons outside the policy."""

    def refusals(self) -> Iterator[Refusal | str]:
        name = self.name
        if not name[:1].isalnum() or any(category(c)[0] not in "LMN" and c not in NAME_SIGNS for c in name):
            yield (
                f"run.name = {name!r} is not a valid name for a folder, scripts and trackers. Begin with a letter or "
                f"a digit, use letters, digits, blanks and {NAME_SIGNS.strip()}, and set run.dir to choose the parent "
                "folder"
            )
        elif len(name.encode()) > MAX_NAME_BYTES:
            yield (
                f"run.name has {len(name.encode())} bytes, which is too long for a folder name; use at most "
                f"{MAX_NAME_BYTES}"
            )


WORLD, FACTBOOK = "world", "factbook"
"""Names of the task sets of the package, in `data.train`."""


class Data(Section):
    """The questions."""

    train: str = WORLD
    """Training questions: a JSONL file (`question`, `golden_answers`); `world`, the bundled task set; `factbook`
    (docs/reference/factbook.md); or a task set of your own by import path (docs/guide/own-tasks.md)."""
    dev: str | None = None
    """Questions to choose the best checkpoint. Unset: the task set's, or a tenth of `train`, at most 1000."""
    test: str | None = None
    """Questions for one evaluation at the end. Unset: the task set's, or none."""

    def files(self) -> tuple[tuple[str, str | None], ...]:
        """(split, path) of each split."""
        return ("train", self.train), ("dev", self.dev), ("test", self.test)


class Retrieval(Section):
    """The passages, and the index or the server that searches them."""

    corpus: str | None = None
    """Passages: a file of rows (`id`, `contents`), or a folder of documents (docs/guide/retrieval.md). Unset: the task
    set's."""
    index: str | None = None
    """Index folder of `holdfast index build`, BM25 or dense. It contains the passages. If `corpus` is also set, the
    index must be of that corpus; if the folder does not exist, a BM25 index is built and saved there."""
    url: str | None = None
    """Address of a `/retrieve` server (Search-R1's protocol), instead of a local index. To send a key in the query,
    write the name of an environment variable: `https://host/retrieve?api_key=$MY_KEY`."""
    fields: dict[str, str] = Field({})
    """Fields of the rows of `corpus` that hold `id`, `title` and `text`, if they have other names: `{ text = "body"
    }`."""
    stem: bool = True
    """Stem English words when an index is built."""
    cache_size: int = Field(100_000, ge=0)
    """Number of queries in the LRU cache."""

    def refusals(self) -> Iterator[Refusal | str]:
        if unknown := sorted(set(self.fields) - set(PASSAGE_FIELDS)):
            yield f"retrieval.fields has {unknown[0]!r}, but a passage has {', '.join(PASSAGE_FIELDS)}; leave it out"
        if self.url is None:
            return
        if not self.url:
            yield "retrieval.url is empty; give the address of a retriever, or leave it out"
            return
        try:
            retrieve_url(self.url)
        except ConfigError as error:
            yield f"retrieval.url: {error}"
        for key, value in (("corpus", self.corpus), ("index", self.index)):
            if value is not None:
                yield Refusal(
                    {"retrieval.url": self.url, f"retrieval.{key}": value},
                    "the server searches its own passages",
                    "Leave out the one you do not want",
                )


class Faults(Section):
    """Faults to inject on purpose."""

    search_failure_rate: float = Field(0.0, ge=0, lt=1)
    """Fault injection: probability that a search of a training rollout returns nothing."""
    sampler_8_bits: bool = False
    """Fault injection: training rollouts come from weights rounded to 8 bits (E4M3), as in an inference engine."""


class Protocol(Section):
    """Tags, prompt and limits of a rollout."""

    preset: Literal["clean", "search-r1", "sapo", "r1", "tools"] = "clean"
    """Tags, prompt and number of turns (docs/reference/papers.md). `r1` does not search. `tools` has no tags, but tool
    calls as the model's chat template writes them (docs/reference/tools.md)."""
    tools: tuple[str, ...] | None = Field(None, strict=False)
    """With `tools`, the tools of the model: `search`; `read`, which returns a passage from earlier results, whole, by
    its id; functions of your own by import path, such as `my_tools:calculator`; and MCP servers, such as `mcp:uvx
    their-server` (docs/guide/own-tools.md). Unset: `search` alone."""
    tool_timeout: float = Field(30.0, gt=0)
    """Seconds that a call of a function of your own, or of an MCP server, may take. The model is then told that it took
    too long."""
    prompt: str | None = None
    """Prompt that contains `{question}`. Unset: the preset's."""
    max_turns: int = Field(4, ge=1)
    """Maximum number of model turns in a rollout, including the answer. Default by preset: clean 4, search-r1 5, sapo
    6, r1 1, tools 4."""
    max_turn_tokens: int = Field(500, ge=1)
    """Maximum number of tokens that the model writes in a turn."""
    max_observation_tokens: int = Field(500, ge=16)
    """Maximum number of tokens in an observation. Longer passages are cut."""
    max_total_tokens: int = Field(4096, ge=32)
    """Maximum number of tokens in a rollout, including its prompt. A rollout that reaches it is truncated."""
    topk: int = Field(3, ge=1)
    """Number of passages that a search returns."""

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, data: Any) -> Any:
        preset = PRESETS.get(str(data.get("preset", "clean"))) if isinstance(data, dict) else None
        return data if preset is None else {"max_turns": preset.max_turns, **data}

    @property
    def searches(self) -> bool:
        """Whether the agent has a tool that searches; without it, it needs no passages."""
        return self.tools is None or "search" in self.tools

    @property
    def max_sampled_tokens(self) -> int:
        """Most tokens the model may write in a rollout: the constant of `seq-mean-token-sum-norm`."""
        return self.max_turns * self.max_turn_tokens

    def refusals(self) -> Iterator[Refusal | str]:
        if self.preset == "r1" and self.max_turns != 1:
            yield Refusal(
                {"protocol.preset": "r1", "protocol.max_turns": self.max_turns},
                "without search, a rollout has one turn",
                "Set protocol.max_turns = 1",
            )
        if self.tools is not None and self.preset != "tools":
            yield Refusal(
                {"protocol.tools": self.tools, "protocol.preset": self.preset},
                "a protocol of tags has no tools",
                "Set protocol.preset = 'tools', or leave protocol.tools out",
            )
        if self.tools is not None and (problem := problem_of(self.tools)):
            yield f"protocol.{problem}"
        if self.prompt is not None and "{question}" not in self.prompt:
            yield "protocol.prompt must contain {question}, which the question replaces"


class WarmStart(Section):
    """Supervised learning before reinforcement learning."""

    steps: int = Field(0, ge=0)
    """Supervised steps before reinforcement learning. The result is cached. 0: no warm start."""
    data: str | None = None
    """JSONL file of demonstrations (`question`, `turns` of `text` and `observation`; docs/guide/quickstart.md), as
    `holdfast data demonstrate` writes them. Unset: the task set's; for your own questions, demonstrations made in this
    way."""
    batch_size: int = Field(48, ge=1)
    """Demonstrations per step."""
    batches: Literal["mixed", "by-length"] = "mixed"
    """Demonstrations of a step: drawn at random, or of similar length. The latter saves padding, but small batches then
    hold demonstrations with equally many searches, and a short warm start ends with the habits of its last batches."""
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate, after a linear warm-up over the first 5 % of the steps. A cosine then lowers it to a
    tenth. 3e-3 suits the tiny model, 3e-4 a model of 135 million parameters (the factbook recipe), and 1e-5 one of 3
    billion."""
    seed: int = Field(0, ge=0)
    """Seed of the scripts, the order, and the initial weights of the tiny model."""


class Reward(Section):
    """Weights of the parts of the reward."""

    em: float = 1.0
    """Weight of exact match."""
    f1: float = 0.0
    """Weight of token F1."""
    format: float = 0.0
    """Weight of the format reward: 1 for a rollout with only valid turns that ends with an answer."""
    retrieval: float = 0.0
    """Weight of the retrieval reward: 1 for a rollout in which a search returned a golden answer."""
    thrift: float = 0.0
    """Weight of the thrift reward: 1 / n for a correct answer after n searches. Needless searches then cost
    something."""
    kl: float = Field(0.0, ge=0)
    """KL coefficient in the reward: each sampled token loses `kl` × (log-prob under the old policy − log-prob under the
    initial model). Needs `loss.advantage = "gae"`, and replaces `loss.kl_coef`."""
    custom: dict[str, float] = Field({})
    """Reward functions of your own, by import path, with their weights: `{ "my_code:brevity" = 0.2 }`
    (docs/reference/losses.md)."""
    judge: Judge = Judge()

    def weights(self) -> dict[str, float]:
        """Weight by name of the part, or by its import path."""
        parts = {name: getattr(self, name) for name in ("em", "f1", "format", "retrieval", "thrift")}
        return parts | self.custom | ({JUDGE: self.judge.weight} if self.judge.weight else {})

    def refusals(self) -> Iterator[Refusal | str]:
        for path in self.custom:
            if not is_import_path(path):
                yield (
                    f"reward.custom names {path!r}, which is not an import path; write module:function, such as "
                    "my_code:brevity"
                )
        if not any(self.weights().values()):
            yield "all weights in [reward] are 0, so there is nothing to learn; set reward.em = 1.0"


class Loss(Section):
    """The loss and its penalty."""

    advantage: Literal["grpo", "dr_grpo", "reinforce", "gae"] = "grpo"
    """Advantage of a rollout with reward r. `grpo`: (r − group mean) / std; `dr_grpo`: r − group mean; `reinforce`: r;
    `gae`: one per token, from the values of a critic (PPO; see `[critic]`)."""
    baseline: Literal["mean", "length"] = "mean"
    """Weights of rollouts in the group mean. `mean`: equal; `length`: by length in tokens, so that advantages sum to 0
    over the tokens of a group. `length` with `advantage = "dr_grpo"` is OPO (arXiv 2505.23585)."""
    surrogate: Literal["clip", "cispo", "dppo"] = "clip"
    """`clip`: the clipped objective of PPO. `cispo` (arXiv 2506.13585): the clipped ratio is a weight, so no token
    loses its gradient. `dppo` (arXiv 2602.04879): leaves out tokens whose probability has changed too much."""
    old_policy: Literal["recomputed", "sampler"] = "recomputed"
    """What ratios, clips and penalties compare the policy with. `recomputed`: the weights before the update, as in
    TRL's GRPOTrainer and in verl. `sampler`: the log-probs that the sampler recorded, as in TRL's AsyncGRPOTrainer and
    in verl's bypass mode. They differ for stale rollouts (`train.staleness`)."""
    ratio: Literal["token", "action", "sequence"] = "token"
    """Importance ratio per token, per action (model turn), or per sequence (GSPO)."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """Lower clip: for A < 0, no gradient once the ratio is below 1 − clip_low. `cispo`: the lowest weight is 1 −
    clip_low. `dppo`: how far a probability may fall."""
    clip_high: float = Field(0.2, ge=0)
    """Upper clip: for A > 0, no gradient once the ratio is above 1 + clip_high. A value above clip_low is DAPO's
    clip-higher. `cispo`: the highest weight is 1 + clip_high. `dppo`: how far a probability may rise."""
    dual_clip: float | None = Field(None, gt=1)
    """Dual clip: upper bound of the ratio for tokens with A < 0 (verl's clip_ratio_c). Unset: none, as in the published
    runs."""
    reduction: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    """How token losses become one number, in verl's names."""
    kl_coef: float = Field(0.001, ge=0)
    """Coefficient of the KL to the initial model. 0 saves the forward pass of that model."""
    kl_estimator: Literal["k3", "k2"] = "k3"
    """`k3`: unbiased estimate of the KL. `k2`: its gradient is unbiased."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus. The published runs used 0.001."""
    penalty: AnyPenalty = LLDS()
    """The likelihood-preserving penalty."""
    methods: Methods = Methods()
    """Other methods against collapse, each switched on by its table (docs/reference/methods.md)."""

    def refusals(self) -> Iterator[Refusal | str]:
        surrogate = {"loss.surrogate": self.surrogate}
        if self.surrogate != "clip" and self.dual_clip is not None:
            yield Refusal(
                {"loss.dual_clip": self.dual_clip, **surrogate}, "only PPO's clip has a second bound", "Leave it out"
            )
        if self.surrogate != "clip" and self.ratio != "token":
            yield Refusal(
                {"loss.ratio": self.ratio, **surrogate},
                "this surrogate uses the ratio of single tokens",
                "Leave loss.ratio at 'token'",
            )
        for key, bound in (("clip_low", self.clip_low), ("clip_high", self.clip_high)):
            if self.surrogate == "dppo" and bound >= 1:
                yield Refusal(
                    {f"loss.{key}": bound, **surrogate},
                    "a probability cannot change by 1 or more, so no token would be left out",
                    f"Set loss.{key} below 1, for example 0.2",
                )
        if self.baseline == "length" and self.advantage == "reinforce":
            yield Refusal(
                {"loss.baseline": "length", "loss.advantage": "reinforce"},
                "this advantage is the reward itself, without a baseline",
                "Set loss.advantage = 'dr_grpo', which makes it OPO, or leave loss.baseline at 'mean'",
            )


class Critic(Section):
    """The critic of `loss.advantage = "gae"`, a copy of the initial policy that predicts the return."""

    path: str | None = None
    """Checkpoint of a run with a critic, to start from that critic. Unset: start from a copy of the policy with a value
    head of zeros."""
    lr: float = Field(1e-5, gt=0)
    """Learning rate of AdamW. Weight decay and gradient clipping are as in `[train]`."""
    warmup: int = Field(0, ge=0)
    """Steps of linear warm-up."""
    clip: float = Field(0.5, ge=0)
    """Value clipping: how far a value may change in one update before its gradient becomes 0, in units of the reward.
    0: no limit."""
    gamma: float = Field(1.0, ge=0, le=1)
    """γ, the discount for each sampled token."""
    lam: float = Field(1.0, ge=0, le=1)
    """λ of GAE. At 1, an advantage is the return minus the value. Lower values rely more on later values of the
    critic."""
    whiten: bool = True
    """Normalise advantages to mean 0 and variance 1 over the sampled tokens of a rollout batch, as verl does."""


class Train(Section):
    """Rollout batches and optimizer steps."""

    steps: int = Field(60, ge=1)
    """Number of steps. A step is one rollout batch and its update. Learning rate, evaluation and checkpoints count
    steps too."""
    questions: int = Field(32, ge=1)
    """Questions per rollout batch."""
    group_size: int = Field(5, ge=1)
    """Rollouts per question."""
    optimizer_steps_per_rollout: int = Field(10, ge=1)
    """K: optimizer steps (mini-batches) per rollout batch. verl: train_batch_size / ppo_mini_batch_size × ppo_epochs.
    TRL: steps_per_generation × num_iterations / gradient_accumulation_steps. With K = 1, LLDS is always 0, and so is
    SAPO with tau up to 1, because the policy first differs from the old policy in the second step."""
    staleness: int = Field(0, ge=0)
    """Stale rollouts: they come from the weights of this many rollout batches ago, as in an asynchronous trainer at its
    limit. That is `staleness` × `optimizer_steps_per_rollout` optimizer steps. Evaluation uses the current weights. The
    first rollouts after a resume are less stale."""
    minibatches: Literal["shuffled", "in-order"] = "shuffled"
    """Rollouts of one optimizer step: drawn at random, or consecutive, so that the rollouts of a question are in the
    same step or the next. The published code of Search-R1, LLDS and SAPO does the latter."""
    anchor_every: int = Field(0, ge=0)
    """Every n steps, keep the policy before the update as the anchor. The penalty then compares with the anchor, which
    is 1 to n steps old, so it acts even with one optimizer step per rollout batch. Costs a copy of the trained weights
    and a forward pass per batch. 0: the penalty compares with the policy that generated the batch."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW."""
    warmup: int = Field(0, ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    grad_clip: float = Field(1.0, gt=0)
    """Maximum gradient norm. Larger gradients are scaled down to it."""
    micro_batch_tokens: int = Field(16_384, ge=64)
    """Maximum number of tokens in one forward pass, including padding. On a CPU, a prefix that rollouts share is
    computed once, and counts a quarter in each further rollout."""
    displacement_every: int = Field(1, ge=0)
    """Measure displacement every n steps: log-prob after the update minus before, on the same rollouts. 0: never."""
    displacement_rows: int = Field(64, ge=1)
    """Number of rollouts on which displacement is measured."""


class Eval(Section):
    """Evaluation on dev while training."""

    every: int = Field(10, ge=0)
    """Evaluate on dev every n steps. 0: only at the end."""
    questions: int = Field(100, ge=1)
    """Number of dev questions during training."""
    samples: int = Field(1, ge=1)
    """Samples per question at the training temperature. Greedy scores are always reported too."""
    start: bool = False
    """At the end, also evaluate the policy that the run started from. This takes as long as evaluating the trained
    policy."""


class Checkpoint(Section):
    """When checkpoints are saved, and how many are kept."""

    every: int = Field(20, ge=0)
    """Save every n steps. 0: only at the end."""
    keep: int = Field(2, ge=1)
    """Number of newest checkpoints to keep, in addition to the best on dev."""


class Track(Section):
    """Trackers and sampled rollouts."""

    wandb: str | None = None
    """W&B project. Unset: no W&B."""
    tensorboard: bool = False
    """Write TensorBoard event files to RUN/tensorboard."""
    trajectories: int = Field(4, ge=0)
    """Number of sampled rollouts per step to write to trajectories.jsonl."""


class Guard(Section):
    """What a run does about findings while it trains."""

    codes: str = ""
    """Codes of `holdfast diagnose` to act on, separated by commas. `LLD` means all codes that begin with it:
    `LLD,ENT001`. Empty: all codes."""
    action: Literal["warn", "stop"] = "warn"
    """On a finding, `warn` prints it; `stop` also saves a checkpoint and ends the run. `findings.json` gets all
    findings."""

    @field_validator("codes", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Accept a list of codes too."""
        listed = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
        return ",".join(value) if listed else value

    def refusals(self) -> Iterator[Refusal | str]:
        try:
            chosen(self.codes, where="guard.codes")
        except ConfigError as error:
            yield str(error)
