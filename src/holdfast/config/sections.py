"""The sections of a recipe: settings, their meaning, their limits, and the errors of one section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from holdfast.diagnostics.codes import chosen
from holdfast.errors import ConfigError
from holdfast.importing import is_import_path
from holdfast.penalties import LLDS, AnyPenalty
from holdfast.retrieval.wire import retrieve_url
from holdfast.section import Section

PRESET_TURNS = {"clean": 4, "search-r1": 5, "sapo": 6, "r1": 1}
"""`max_turns` of `search.protocol.PRESETS`; a test checks that both agree."""
LONGEST_NAME = 200
"""Bytes. File systems allow 255, and other names begin with this one."""


class Run(Section):
    """The run folder, the seed and the machine."""

    name: str = "quickstart"
    """The run folder is `dir/name`; a name taken from the recipe gets a number behind it when that folder exists."""
    dir: str = "runs"
    """Folder that holds run folders."""
    seed: int = 0
    """Seed of the data order and of the sampler; the warm start has its own, so that seeds can share one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU if there is one."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads; 0: one for the tiny model, else the fastest of a short trial. A resumed run keeps its number."""
    max_failed_fraction: float = Field(0.5, gt=0, le=1)
    """The run stops when a larger fraction of a step's rollouts fails for a reason that is not the policy's."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        name = self.name
        if not name.strip() or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
            yield (
                f"run.name = {name!r} is not a valid folder name. Use letters and digits, and set run.dir to choose "
                "the parent folder"
            )
        elif len(name.encode()) > LONGEST_NAME:
            yield (
                f"run.name has {len(name.encode())} bytes, which is too long for a folder name; use at most "
                f"{LONGEST_NAME}"
            )


class TinyModel(Section):
    """The size of the tiny model."""

    hidden: int = Field(96, ge=16, le=4096)
    """Width of the tiny model."""
    layers: int = Field(3, ge=1, le=64)
    """Layers of the tiny model."""
    heads: int = Field(4, ge=1)
    """Attention heads of the tiny model."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        if self.hidden % (2 * self.heads):
            yield (
                f"world.model.hidden = {self.hidden} with world.model.heads = {self.heads}: each head needs an even "
                f"share of the width. Set world.model.hidden to a multiple of {2 * self.heads}"
            )


Probability = Annotated[float, Field(ge=0, le=1)]


class Scripts(Section):
    """Scripted rollouts over the world's training questions, noisy on purpose: the demonstrations of a warm start."""

    plain_steps: int = Field(0, ge=0)
    """Supervised steps before `warm_start.steps`, on scripts without filler: the tiny model learns to read first."""
    count: int = Field(6000, ge=1)
    """Scripts; each is used many times, with other names put in."""
    skip_search: float = Field(0.08, ge=0, le=1)
    """Probability that a scripted demonstration guesses without a search."""
    vague_query: float = Field(0.25, ge=0, le=1)
    """Probability that a scripted demonstration searches for the person alone or the relation alone."""
    give_up: float = Field(0.5, ge=0, le=1)
    """Probability that a scripted demonstration guesses after a search that missed."""
    stop_early: Probability | Annotated[tuple[Probability, Probability], Field(strict=False)] = 0.55
    """Probability that a scripted demonstration answers a two-hop question with the first hop's value. Two of them: of
    the plain scripts and of those after, for a tiny model that can search twice and seldom does."""
    misread: float = Field(0.12, ge=0, le=1)
    """Probability that a scripted demonstration takes another passage's value."""
    malformed: float = Field(0.03, ge=0, le=1)
    """Probability that a scripted demonstration begins with an invalid turn."""
    ramble: float = Field(0.0, ge=0, le=1)
    """Probability that a scripted demonstration is a long thought, then a guess."""

    def habits(self, *, plain: bool) -> dict[str, float]:
        """The probabilities by name: of the plain scripts, or of those after them."""
        early = self.stop_early
        if isinstance(early, tuple):
            early = early[0] if plain else early[1]
        return {**self.model_dump(exclude={"plain_steps", "count"}), "stop_early": early}


class World(Section):
    """The bundled world."""

    seed: int = 0
    """Seed of the bundled world; independent of the run's seed, so that seeds of a run share one world."""
    people: int = Field(420, ge=40, le=2304)
    """Persons in the world, at most as many as there are names: 60 % in the training split, 15 % in dev, 25 % in
    test. No person is in two splits."""
    train_questions: int = Field(4000, ge=1)
    """Questions of the training split."""
    dev_questions: int = Field(200, ge=1)
    """Questions of the dev split."""
    test_questions: int = Field(400, ge=1)
    """Questions of the test split."""
    two_hop: float = Field(0.5, ge=0, le=1)
    """Fraction of questions that need two searches."""
    mismatch: float = Field(0.25, ge=0, le=1)
    """Probability that a question uses the other name of a relation than the passage does."""
    filler_words: int = Field(0, ge=0, le=41_472)
    """Words of the think text's filler language; 0 means no filler."""
    filler_length: tuple[int, int] = Field((4, 10), strict=False)
    """Shortest and longest filler in a thought, in words."""
    ramble_length: tuple[int, int] = Field((18, 30), strict=False)
    """Shortest and longest ramble, in words."""
    model: TinyModel = TinyModel()
    """The tiny model's size."""
    scripts: Scripts = Scripts()
    """What a warm start learns from."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        for key, (shortest, longest) in (("filler_length", self.filler_length), ("ramble_length", self.ramble_length)):
            if not 1 <= shortest <= longest:
                yield (
                    f"world.{key} = [{shortest}, {longest}]: give the shortest length first, 1 or more, then the "
                    "longest"
                )
        if 0 < self.filler_words < 11:
            yield (
                f"world.filler_words = {self.filler_words}: each word needs ten others that can follow it; set 11 or "
                "more, or 0 for no filler"
            )


class Data(Section):
    """The questions."""

    train: str = "world"
    """`world` for the bundled world, or a JSONL file of questions (`question`, `golden_answers`)."""
    dev: str | None = None
    """Questions that choose the best checkpoint. Unset: the world's, or a tenth of train, 1000 at most."""
    test: str | None = None
    """Questions read once, at the end. Unset: the world's, or no test."""


class Retrieval(Section):
    """The passages, and the index or the server that searches them."""

    corpus: str = "world"
    """`world`, or a JSONL file of passages (`id`, `contents`)."""
    index: str | None = None
    """Folder that `holdfast index build` wrote, BM25 or dense, with its own passages. With `corpus` set as well:
    must be of that corpus; a BM25 index is built and saved there when absent."""
    url: str | None = None
    """Address of a `/retrieve` server (Search-R1's protocol) that searches instead of a local index."""
    stem: bool = True
    """English stemming in an index that is built."""
    cache_size: int = Field(100_000, ge=0)
    """Queries kept in the LRU cache."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        if self.url is None:
            return
        try:
            retrieve_url(self.url)
        except ConfigError as error:
            yield f"retrieval.url: {error}"
        for key, value, unset in (("corpus", self.corpus, "world"), ("index", self.index, None)):
            if value != unset:
                yield (
                    f"retrieval.url = {self.url!r} with retrieval.{key} = {value!r}: the server searches its own "
                    "passages. Leave out the one you do not want"
                )


class Faults(Section):
    """Faults injected on purpose."""

    search_failure_rate: float = Field(0.0, ge=0, lt=1)
    """Fault injection: probability that a search of a training rollout returns nothing."""


class Model(Section):
    """The model and how it is trained."""

    path: str = "tiny"
    """`tiny` for a model built from the bundled world, a directory, or a hub id of any causal LM that transformers
    loads."""
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

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        if self.path == "tiny" and self.lora_rank:
            yield (
                f"model.lora_rank = {self.lora_rank} with model.path = 'tiny': the tiny model is too small for LoRA. "
                "Set model.lora_rank = 0, or model.path to a model of yours"
            )


class Protocol(Section):
    """Tags, prompt and limits of a rollout."""

    preset: Literal["clean", "search-r1", "sapo", "r1"] = "clean"
    """Tags, prompt and turns; see docs/reference/papers.md. `r1` is without search."""
    prompt: str | None = None
    """Prompt text holding `{question}`; unset: the preset's."""
    max_turns: int = Field(4, ge=1)
    """Model turns in a rollout, the answer included. Default by preset: clean 4, search-r1 5, sapo 6, r1 1."""
    max_turn_tokens: int = Field(500, ge=1)
    """Most tokens the model may write in a turn."""
    max_observation_tokens: int = Field(500, ge=16)
    """Most tokens of an observation; longer passages are cut."""
    max_total_tokens: int = Field(4096, ge=32)
    """Most tokens of a rollout, its prompt included; a rollout that reaches them ends as truncated."""
    topk: int = Field(3, ge=1)
    """Passages a search returns."""

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, data: Any) -> Any:
        turns = PRESET_TURNS.get(str(data.get("preset", "clean"))) if isinstance(data, dict) else None
        return data if turns is None else {"max_turns": turns, **data}

    @property
    def max_sampled_tokens(self) -> int:
        """Most tokens the model may write in a rollout: the constant of `seq-mean-token-sum-norm`."""
        return self.max_turns * self.max_turn_tokens

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        if self.preset == "r1" and self.max_turns != 1:
            yield (
                f"protocol.preset = 'r1' with protocol.max_turns = {self.max_turns}: without search, a rollout has "
                "one turn. Set protocol.max_turns = 1"
            )
        if self.prompt is not None and "{question}" not in self.prompt:
            yield "protocol.prompt must contain {question}, which the question replaces"


class Sampling(Section):
    """The token sampler of training rollouts."""

    temperature: float = Field(1.0, gt=0)
    """Divides the logits, of the sampler and of every log-prob alike."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1 the sampler is truncated while log-probs are not: this mismatch alone can make a run collapse
    (docs/reference/results.md). Warns."""
    top_k: int = Field(0, ge=0)
    """Above 0 the sampler is truncated to the k most likely tokens: as top_p."""
    mask_logprobs: bool = False
    """Log-probs of the loss over the tokens the sampler can draw, so that both agree (arXiv 2512.02556). Needs
    top_k."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        if self.mask_logprobs and not self.top_k:
            yield (
                "sampling.mask_logprobs = true with sampling.top_k = 0: the sampling mask of every token is kept in "
                "memory, and top_k limits its size. Set sampling.top_k = 512, which rarely removes more than top_p "
                "does. A sampler that is not truncated needs no mask"
            )


class WarmStart(Section):
    """Supervised learning before reinforcement learning."""

    steps: int = Field(0, ge=0)
    """Supervised steps before reinforcement learning; 0 for none. The result is cached."""
    data: str | None = None
    """JSONL of demonstrations (`question`, `turns` of `text` and `observation`). Unset: the world's scripts, if any."""
    batch_size: int = Field(48, ge=1)
    """Demonstrations per step."""
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate: linear warm-up over the first twentieth of the steps, then a cosine to a tenth of the peak.
    3e-3 suits the tiny model; a pretrained model needs about 1e-5."""
    seed: int = Field(0, ge=0)
    """Seed of the scripts, the order, and the initial weights of the tiny model."""


class Reward(Section):
    """Weights of the parts of a reward."""

    em: float = 1.0
    """Weight of exact match."""
    f1: float = 0.0
    """Weight of token F1."""
    format: float = 0.0
    """Weight of 1 for a rollout whose turns are all valid and which ends in an answer."""
    retrieval: float = 0.0
    """Weight of 1 for a rollout in which a search returned a golden answer."""
    kl: float = Field(0.0, ge=0)
    """Subtracted from the reward of each sampled token, times its log-prob under the old policy minus that under the
    starting one. Needs `loss.advantage = "gae"`; in place of `loss.kl_coef`."""
    custom: dict[str, float] = Field({})
    """Import path of a function of yours -> its weight: `{ "my_code:brevity" = 0.2 }`; see docs/reference/losses.md."""

    def weights(self) -> dict[str, float]:
        """Weight by name of the part, or by its import path."""
        return {"em": self.em, "f1": self.f1, "format": self.format, "retrieval": self.retrieval, **self.custom}

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        for path in self.custom:
            if not is_import_path(path):
                yield (
                    f"reward.custom names {path!r}, which is not an import path; write module:function, such as "
                    "my_code:brevity"
                )
        if not any(self.weights().values()):
            yield "all weights in [reward] are 0, so there is nothing to learn; set reward.em = 1.0"


class SamplerWeights(Section):
    """Weights for a sampler that is not the old policy; see `holdfast.losses.sampler_weights`."""

    level: Literal["none", "token", "action", "sequence"] = "none"
    """Whose ratio w of old policy and sampler weighs the policy loss; `none`: no weights."""
    aggregate: Literal["product", "mean"] = "product"
    """Of the ratios of a unit's tokens: their product, or their geometric mean (Geo-RS)."""
    keep: Literal["truncate", "mask", "reject"] = "truncate"
    """`truncate`: w cut to the bounds (TIS); `mask`: 0 outside them (IcePop); `reject`: tokens outside them are left
    out of the loss, others weigh 1 (Geo-RS)."""
    low: float = Field(0.0, ge=0)
    """Lower bound of w."""
    high: float = Field(2.0, gt=0)
    """Upper bound of w."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        name = "loss.sampler_weights"
        default = {"aggregate": "product", "keep": "truncate", "low": 0.0, "high": 2.0}
        changed = [key for key, value in default.items() if getattr(self, key) != value]
        if self.level == "none" and changed:
            yield (
                f"{name}.{changed[0]} = {getattr(self, changed[0])!r} with {name}.level = 'none': without weights "
                f"this setting has no effect. Set {name}.level to 'token', 'action' or 'sequence'"
            )
        if not self.low < self.high:
            yield (
                f"{name}.low = {self.low:g} must be below {name}.high = {self.high:g}: they are the bounds of the "
                "weights"
            )
        if self.level == "token" and self.aggregate == "mean":
            yield (
                f"{name}.aggregate = 'mean' with {name}.level = 'token': a token has only one ratio, so there is "
                f"nothing to average. Set {name}.level to 'action' or 'sequence'"
            )


class Loss(Section):
    """The loss and its penalty."""

    advantage: Literal["grpo", "dr_grpo", "reinforce", "gae"] = "grpo"
    """With reward r: `grpo`: (r − group mean) / std; `dr_grpo`: r − group mean; `reinforce`: r; `gae`: of each token,
    from the values of a critic (PPO; see `[critic]`)."""
    baseline: Literal["mean", "length"] = "mean"
    """How rollouts count in the group mean. `mean`: each alike; `length`: by its length in tokens, so that a group's
    advantages sum to 0 over tokens. `length` with `advantage = "dr_grpo"` is OPO (arXiv 2505.23585)."""
    surrogate: Literal["clip", "cispo", "dppo"] = "clip"
    """`clip` is PPO's; `cispo` (arXiv 2506.13585) clips the ratio as a weight, so that no token loses its gradient;
    `dppo` (2602.04879) leaves out tokens whose probability has moved too far."""
    ratio: Literal["token", "action", "sequence"] = "token"
    """`sequence` is GSPO's; `action` has one ratio per model turn."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """Lower PPO clip: for A < 0, no gradient once the ratio is below 1 − clip_low. `cispo`: the lowest weight is
    1 − clip_low. `dppo`: how far a probability may fall."""
    clip_high: float = Field(0.2, ge=0)
    """Upper PPO clip: for A > 0, no gradient once the ratio is above 1 + clip_high.
    Above clip_low: DAPO's clip-higher. `cispo`: the highest weight is 1 + clip_high. `dppo`: how far a probability may
    rise."""
    dual_clip: float | None = Field(None, gt=1)
    """Dual-clip constant for tokens with A < 0 (verl clip_ratio_c); unset: off, as in the published runs."""
    reduction: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    """How the losses of tokens become one number; the names are verl's."""
    kl_coef: float = Field(0.001, ge=0)
    """KL coefficient (to the starting model); 0 saves the forward pass of that model."""
    kl_estimator: Literal["k3", "k2"] = "k3"
    """`k3` is an unbiased estimate of the KL; `k2` has its unbiased gradient."""
    entropy_coef: float = 0.0
    """Positive rewards entropy. The published runs used 0.001."""
    negative_weight: float = Field(1.0, ge=0, le=1)
    """Weight of rollouts with A < 0 in the policy loss; 0 trains on positive ones alone."""
    off_policy_threshold: float | None = Field(None, gt=0)
    """Nats per token: rollouts with A < 0 that became less likely by more than this are left out of the policy loss
    (DeepSeek-V3.2, arXiv 2512.02556); unset: none."""
    drop_void: bool = False
    """Leave rollouts with an invalid turn out of the loss, while their rewards count in their group (SimpleTIR,
    arXiv 2509.02479)."""
    drop_first_actions: bool = False
    """Leave the first search of an incorrect rollout out of the loss if it found the passages that a correct rollout of
    the question found first."""
    nthr: bool = False
    """Weigh down tokens of negative rollouts whose gradient is tied to that of positive ones (NTHR, arXiv 2505.18830).
    """
    sampler_weights: SamplerWeights = SamplerWeights()
    """Weights for a sampler that is not the old policy."""
    penalty: AnyPenalty = LLDS()
    """The likelihood-preserving term."""

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        yield from self._surrogate_problems()
        if self.negative_weight == 0:
            for key, value in (("nthr", self.nthr or None), ("off_policy_threshold", self.off_policy_threshold)):
                if value is not None:
                    yield (
                        f"loss.{key} = {value} with loss.negative_weight = 0: it acts on rollouts with A < 0, whose "
                        "weight is 0. Leave one of them out"
                    )
        if self.nthr and self.advantage == "reinforce":
            yield (
                "loss.nthr = true with loss.advantage = 'reinforce': NTHR compares positive and negative rollouts of "
                "a group, but this advantage is the reward itself. Set loss.advantage = 'grpo'"
            )
        if self.baseline == "length" and self.advantage == "reinforce":
            yield (
                "loss.baseline = 'length' with loss.advantage = 'reinforce': this advantage is the reward itself, "
                "without a baseline. Set loss.advantage = 'dr_grpo', which makes it OPO, or leave loss.baseline at "
                "'mean'"
            )

    def _surrogate_problems(self) -> Iterator[str]:
        """Settings of PPO's clip beside another surrogate."""
        if self.surrogate == "clip":
            return
        where = f"with loss.surrogate = {self.surrogate!r}"
        if self.dual_clip is not None:
            yield f"loss.dual_clip = {self.dual_clip} {where}: only PPO's clip has a second bound. Leave it out"
        if self.ratio != "token":
            yield (
                f"loss.ratio = {self.ratio!r} {where}: this surrogate uses the ratio of single tokens. Leave "
                "loss.ratio at 'token'"
            )
        for key, bound in (("clip_low", self.clip_low), ("clip_high", self.clip_high)):
            if self.surrogate == "dppo" and bound >= 1:
                yield (
                    f"loss.{key} = {bound:g} {where}: a probability cannot change by 1 or more, so no token would be "
                    f"left out. Set loss.{key} below 1, for example 0.2"
                )


class Train(Section):
    """Rollout batches and optimizer steps."""

    steps: int = Field(60, ge=1)
    """Rollout batches. Learning rate, evaluation and checkpoints count them too."""
    questions: int = Field(32, ge=1)
    """Questions per rollout batch."""
    group_size: int = Field(5, ge=1)
    """Rollouts per question."""
    resample: int = Field(0, ge=0)
    """Rounds of rollouts on further questions, at most, until `questions` groups have different rewards; only those are
    learned from (dynamic sampling of DAPO, arXiv 2503.14476). 0: learn from every group."""
    optimizer_steps_per_rollout: int = Field(10, ge=1)
    """K: optimizer steps (mini-batches) per rollout batch. verl: train_batch_size / ppo_mini_batch_size × ppo_epochs.
    TRL: steps_per_generation × num_iterations / gradient_accumulation_steps. With K = 1 LLDS is always 0, and so is
    SAPO with tau up to 1: they see a change of policy from the second step on."""
    minibatches: Literal["shuffled", "in-order"] = "shuffled"
    """Which rollouts one optimizer step learns from: drawn at random, or consecutive, so that rollouts of one question
    meet in the same step or in the next. The codes of Search-R1, LLDS and SAPO have `in-order`."""
    anchor_every: int = Field(0, ge=0)
    """Every n rollout batches, keep the policy before the update as the anchor: the older policy that the penalty
    compares with, 1 to n batches old. So a penalty acts with one optimizer step per rollout batch too. 0: the penalty
    compares with the policy that made the batch. Costs a copy of the trained weights, and a forward pass per batch."""
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
    """Measure displacement every n steps; 0 never. Displacement: log-prob after the update − before, on the same
    rollouts."""
    displacement_rows: int = Field(64, ge=1)
    """Rollouts that displacement is measured on."""


class Eval(Section):
    """Evaluation on dev while training."""

    every: int = Field(10, ge=0)
    """Evaluate on dev every n steps; 0 only at the end."""
    questions: int = Field(100, ge=1)
    """Dev questions read while training."""
    samples: int = Field(1, ge=1)
    """Samples per question at the training temperature; greedy scores are always reported too."""


class Checkpoint(Section):
    """When checkpoints are written, and how many stay."""

    every: int = Field(20, ge=0)
    """Save every n steps; 0 only at the end."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints that stay, in addition to the best on dev."""


class Track(Section):
    """Trackers and sampled rollouts."""

    wandb: str | None = None
    """W&B project; unset: no W&B."""
    tensorboard: bool = False
    """Write event files to RUN/tensorboard."""
    trajectories: int = Field(4, ge=0)
    """Sampled rollouts written to trajectories.jsonl per step."""


class Guard(Section):
    """What a run does about findings while it trains."""

    codes: str = ""
    """Diagnose codes to act on, or their beginnings, with commas: `LLD003`, `LLD,ENT001`. Empty: all."""
    action: Literal["warn", "stop"] = "warn"
    """`warn` prints them; `stop` also saves a checkpoint and ends the run. All findings go into `findings.json`."""

    @field_validator("codes", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Accept a list of codes too."""
        listed = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
        return ",".join(value) if listed else value

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        try:
            chosen(self.codes, where="guard.codes")
        except ConfigError as error:
            yield str(error)
