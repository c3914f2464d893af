"""`[loss.methods]`: the settings of every method that a recipe can switch on, in the order in which a step uses them.

What each does to a batch is in `operations.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from holdfast.base.section import Refusal, Section, field_values

Need = Literal[
    "rollout advantages",
    "group advantages",
    "negative rollouts",
    "drift",
    "all log-probs",
    "output layer",
    "sampler",
    "sampler's tokens",
    "sampler's distribution",
]
"""What a method cannot work without. `recipe/config.py` has the settings that take it away, and the sentences.

* rollout advantages: one advantage for each rollout, not for each token or action, as a critic and GiGPO give;
* group advantages: advantages that compare the rollouts of a question;
* negative rollouts: a weight above 0 of rollouts with A < 0;
* drift: more than one optimizer step per rollout batch, so that the policy differs from the old one;
* all log-probs: a loss over the whole vocabulary;
* output layer: a trained output layer;
* sampler: log-probs of the distribution that the tokens were drawn from;
* sampler's tokens: a loss over the tokens that the sampler draws from, so that its log-probs can be compared;
* sampler's distribution: a sampler that differs from the policy, and everything that it could draw at each token.
"""


class Method(Section):
    """A method against collapse, the table `[loss.methods.NAME]` of a recipe.

    It needs no torch. What the method does to a batch is in `operations.py`. To add one, write its settings here, and
    what it does there.
    """

    on: bool = False
    """Use the method. Any setting in its table switches it on, and so does an empty table."""

    name: ClassVar[str]
    """In recipes, errors and docs."""
    source: ClassVar[str]
    """Where it was published, as Markdown."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    acts_on: ClassVar[str] = "it needs one advantage for each rollout"
    """What it does, for the sentence that refuses it: "it compares the rollouts of a group"."""
    elsewhere: ClassVar[str] = "the host does not have this method"
    """Why other trainers do not have it. One that does, or has a reason of its own, says so in its module of
    `adapters/launch/`."""
    metrics: ClassVar[Mapping[str, str]] = {}
    """Name of each series that it logs -> meaning and unit."""

    @model_validator(mode="before")
    @classmethod
    def _on_by_its_table(cls, data: Any) -> Any:
        return {"on": True, **data} if isinstance(data, dict) else data

    @classmethod
    def table(cls) -> str:
        """Its table in a recipe: `loss.methods.NAME`."""
        return f"loss.methods.{cls.name}"


class DynamicSampling(Method):
    """Learn only from groups whose rewards differ, and sample other questions until there are `train.questions` of
    them. A step that finds none learns from all groups."""

    rounds: int = Field(9, ge=1)
    """Maximum number of further rounds of rollouts in a step."""

    name: ClassVar = "dynamic_sampling"
    source: ClassVar = "DAPO, [arXiv 2503.14476](https://arxiv.org/abs/2503.14476)"
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it replaces groups whose rewards are equal"
    elsewhere: ClassVar = "it trains on every group that it samples"
    metrics: ClassVar = {
        "rollout/extra_questions": "Number of questions that `dynamic_sampling` drew in addition to `train.questions`. "
        "Absent without it."
    }


class VarianceFilter(Method):
    """Learn only from the groups whose rewards vary most: the fewest groups that together have `share` of all groups'
    standard deviations (minus 0.01).

    No other questions are sampled in place of the rest.
    """

    share: float = Field(0.9, gt=0, le=1)
    """Share of the standard deviations of the reward, summed over groups. At 1, almost only groups without contrast are
    left out."""

    name: ClassVar = "variance_filter"
    source: ClassVar = (
        "RAGEN-2; RAGEN, [arXiv 2504.20073](https://arxiv.org/abs/2504.20073), keeps a share of the groups"
    )
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it compares the rewards within groups"
    elsewhere: ClassVar = "it trains on every group that it samples"


class GiGPO(Method):
    """Add an advantage per action to the rollout's advantage. It compares the action's return with the returns of other
    actions that rollouts of the same question took in the same state.

        A(action) = A(rollout) + weight · (R − mean R) / std R          R = gamma^(actions after it) · reward

    Two actions are in the same state if they are the first, or follow similar observations. An action that is alone in
    its state gets no credit of its own.
    """

    weight: float = Field(1.0, gt=0)
    """Weight of the advantages of actions, relative to the advantages of rollouts."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount for each later action. At 1, the first actions have the advantage of their rollouts."""
    similarity: float = Field(0.9, gt=0, le=1)
    """How similar an observation must be to the first observation in its state: twice the matching characters, divided
    by all characters. GiGPO's authors use 0.9 for their search agent; 1 means equal."""
    scale: bool = True
    """Divide by the standard deviation of the returns in a state."""

    name: ClassVar = "gigpo"
    source: ClassVar = "GiGPO, [arXiv 2505.10978](https://arxiv.org/abs/2505.10978)"
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it adds to advantages within groups"
    elsewhere: ClassVar = "its advantages are of whole rollouts"


class DropVoid(Method):
    """Leave rollouts with an invalid turn out of the loss. Their rewards still count in the group mean."""

    name: ClassVar = "drop_void"
    source: ClassVar = "SimpleTIR, [arXiv 2509.02479](https://arxiv.org/abs/2509.02479)"
    elsewhere: ClassVar = "its loss does not see which turns are invalid"


class DropFirstActions(Method):
    """Leave the first search of an incorrect rollout out of the loss if the first search of a correct rollout of the
    same question found the same passages."""

    name: ClassVar = "drop_first_actions"
    source: ClassVar = "proposed by LLDS, section 5.3, [arXiv 2512.04220](https://arxiv.org/abs/2512.04220)"
    needs: ClassVar = frozenset({"rollout advantages"})
    acts_on: ClassVar = "it compares the rollouts of a group"
    elsewhere: ClassVar = "its loss does not see which searches found the same passages"


class ClipCov(Method):
    """Leave tokens out of the policy loss whose log-prob and advantage have a large covariance over the micro-batch,
    drawn at random at every optimizer step."""

    share: float = Field(2e-4, gt=0, lt=1)
    """At most this share of the sampled tokens of a micro-batch is left out, but at least one token."""
    low: float = 1.0
    """Tokens with a smaller covariance stay."""
    high: float = 5.0
    """Tokens with a larger covariance stay too."""

    name: ClassVar = "clip_cov"
    source: ClassVar = "Clip-Cov, [arXiv 2505.22617](https://arxiv.org/abs/2505.22617)"

    def refusals(self) -> Iterator[Refusal | str]:
        """Bounds that leave nothing between them."""
        if not self.low < self.high:
            yield Refusal(
                {f"{self.table()}.low": self.low, f"{self.table()}.high": self.high},
                "nothing is left between them",
                "Set the first below the second",
            )


class SamplerWeights(Method):
    """Weight the policy loss by w = old policy / sampler (`holdfast.losses.sampler_weights`)."""

    level: Literal["token", "action", "sequence"] = "token"
    """Whether w is computed per token, action or sequence."""
    aggregate: Literal["product", "mean"] = "product"
    """How token ratios are combined into the w of an action or sequence: their product, or their geometric mean
    (Geo-RS)."""
    keep: Literal["truncate", "mask", "reject"] = "truncate"
    """Outside the bounds: `truncate` cuts w to the bounds (TIS); `mask` sets it to 0 (IcePop); `reject` leaves the
    tokens out of the loss and sets all other weights to 1 (Geo-RS)."""
    low: float = Field(0.0, ge=0)
    """Lower bound of w."""
    high: float = Field(2.0, gt=0)
    """Upper bound of w."""

    name: ClassVar = "sampler_weights"
    source: ClassVar = "TIS; IcePop, [arXiv 2510.18855](https://arxiv.org/abs/2510.18855); Geo-RS"
    needs: ClassVar = frozenset({"sampler"})
    metrics: ClassVar = {
        "sampler/weight_p05": "Fifth percentile, over sampled tokens, of the weights of `sampler_weights` before they "
        "are bounded. Absent without it.",
        "sampler/weight_p95": "The same, 95th percentile.",
    }

    def refusals(self) -> Iterator[Refusal | str]:
        """Bounds and levels that contradict each other."""
        table = self.table()
        if not self.low < self.high:
            yield Refusal(
                {f"{table}.low": self.low, f"{table}.high": self.high},
                "they are the bounds of the weights",
                "Set the first below the second",
            )
        if self.level == "token" and self.aggregate == "mean":
            yield Refusal(
                {f"{table}.aggregate": "mean", f"{table}.level": "token"},
                "a token has only one ratio, so there is nothing to average",
                f"Set {table}.level to 'action' or 'sequence'",
            )


class NegativeWeight(Method):
    """Multiply the policy loss of rollouts with A < 0 by `weight`. At 0, only rollouts with A > 0 train."""

    weight: float = Field(0.0, ge=0, le=1)
    """Weight of rollouts with A < 0 in the policy loss."""

    name: ClassVar = "negative_weight"
    source: ClassVar = "a control: positive rollouts alone"
    needs: ClassVar = frozenset({"rollout advantages"})
    acts_on: ClassVar = "it weights rollouts by the sign of their advantage"
    elsewhere: ClassVar = "its loss gives all rollouts the same weight"


class NTHR(Method):
    """Lower the weight of tokens in negative rollouts that hurt positive rollouts of the same question."""

    name: ClassVar = "nthr"
    source: ClassVar = "NTHR, [arXiv 2505.18830](https://arxiv.org/abs/2505.18830)"
    needs: ClassVar = frozenset({"group advantages", "negative rollouts", "all log-probs", "output layer"})
    acts_on: ClassVar = "it compares positive and negative rollouts of a group"
    elsewhere: ClassVar = "its loss gets only log-probs, but NTHR's scores need hidden states"


class OffPolicyMask(Method):
    """Leave rollouts with A < 0 out of the policy loss once their log-prob has fallen by more than `threshold`."""

    threshold: float = Field(0.5, gt=0)
    """Largest decrease of the mean log-prob since the rollout was sampled, in nats per token."""

    name: ClassVar = "off_policy_mask"
    source: ClassVar = "DeepSeek-V3.2, [arXiv 2512.02556](https://arxiv.org/abs/2512.02556)"
    needs: ClassVar = frozenset({"rollout advantages", "negative rollouts", "drift"})
    acts_on: ClassVar = "it leaves out rollouts by the sign of their advantage"


class IPO(Method):
    """Leave tokens out of the policy loss if their probability differs from the sampler's by more than `eps`. The ratio
    is relative to the sampler, and at most 10,000.

    prime-rl has no other clip: set `loss.clip_low = 1` and `loss.clip_high = 1e4` for its loss.
    """

    eps: float = Field(0.3, gt=0, lt=1)
    """How far the probability of a token may move."""

    name: ClassVar = "ipo"
    source: ClassVar = "INTELLECT Policy Optimization, prime-rl's default loss"
    needs: ClassVar = frozenset({"sampler", "sampler's tokens"})


class M2PO(Method):
    """In every optimizer step, leave out of the policy loss the tokens whose ratio moved furthest in the direction of
    their advantage, until the mean of (log ratio)² over the rest of these is at most `bound`.

    It takes the place of the clip, and its ratio is to the sampler: set `loss.old_policy = "sampler"`,
    `loss.clip_low = 1` and `loss.clip_high = 1e4` for the paper's loss. It needs one more forward pass an update.
    """

    bound: float = Field(0.04, gt=0)
    """Largest mean of (log ratio)², in nats²."""

    name: ClassVar = "m2po"
    source: ClassVar = "M2PO, [arXiv 2510.01161](https://arxiv.org/abs/2510.01161)"
    needs: ClassVar = frozenset({"drift"})


class ScoreCentering(Method):
    """Subtract from the gradient of every token its expectation under a sampler that differs from the policy.

    With a truncated sampler, `sampling.mask_logprobs` removes the same at the first optimizer step, by another
    distribution in the loss. Here the loss stays over the whole vocabulary. PPO's clip is not in the expectation.
    """

    name: ClassVar = "score_centering"
    source: ClassVar = "Score centering, [arXiv 2609.20807](https://arxiv.org/abs/2609.20807)"
    needs: ClassVar = frozenset({"all log-probs", "sampler's distribution"})
    metrics: ClassVar = {
        "loss/score_centering": "Mean of A·Σ q·p / p_old, the term of `score_centering`, over what the sampler q can "
        "draw. Absent without it."
    }


class InterleavedSFT(Method):
    """After the update of every `every`-th step, take one optimizer step on the likelihood of its correct rollouts.

    It raises what the policy update may have lowered: tags, queries and answers of rollouts that were right. The
    published form learns from demonstrations, and generalises less than reinforcement learning alone.
    """

    every: int = Field(10, ge=1)
    """Steps from one supervised step to the next."""

    name: ClassVar = "interleaved_sft"
    source: ClassVar = "a control of [arXiv 2606.26027](https://arxiv.org/abs/2606.26027), there on demonstrations"
    elsewhere: ClassVar = "its trainer has no supervised steps"
    metrics: ClassVar = {
        "loss/supervised": "Mean negative log-prob of the tokens of correct rollouts, in nats, before a supervised "
        "step of `interleaved_sft`. Absent in steps without one."
    }


class Methods(Section):
    """Methods against collapse besides the penalty. Each has a table, `[loss.methods.NAME]`, which switches it on."""

    dynamic_sampling: DynamicSampling = DynamicSampling(on=False)
    variance_filter: VarianceFilter = VarianceFilter(on=False)
    gigpo: GiGPO = GiGPO(on=False)
    drop_void: DropVoid = DropVoid(on=False)
    drop_first_actions: DropFirstActions = DropFirstActions(on=False)
    clip_cov: ClipCov = ClipCov(on=False)
    sampler_weights: SamplerWeights = SamplerWeights(on=False)
    negative_weight: NegativeWeight = NegativeWeight(on=False)
    nthr: NTHR = NTHR(on=False)
    off_policy_mask: OffPolicyMask = OffPolicyMask(on=False)
    ipo: IPO = IPO(on=False)
    m2po: M2PO = M2PO(on=False)
    score_centering: ScoreCentering = ScoreCentering(on=False)
    interleaved_sft: InterleavedSFT = InterleavedSFT(on=False)

    def refusals(self) -> Iterator[Refusal | str]:
        """Methods that undo each other."""
        if self.variance_filter.on and self.dynamic_sampling.on:
            yield Refusal(
                {f"{method.table()}.on": True for method in (self.variance_filter, self.dynamic_sampling)},
                "one drops groups with contrast, and the other would sample new questions for them forever",
                "Leave one out",
            )

    @property
    def used(self) -> tuple[Method, ...]:
        """The methods that are on."""
        return tuple(method for method in field_values(self).values() if method.on)


METHODS: Mapping[str, type[Method]] = {name: type(method) for name, method in field_values(Methods()).items()}
"""Name -> class."""


def series() -> dict[str, str]:
    """Name and meaning of every series that a method logs."""
    return {name: text for method in METHODS.values() for name, text in method.metrics.items()}
