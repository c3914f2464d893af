"""`[loss.methods]`: every method that a recipe can switch on, in the order in which a step calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.base.section import Section, field_values
from holdfast.methods.clip_cov import ClipCov
from holdfast.methods.drop_first_actions import DropFirstActions
from holdfast.methods.drop_void import DropVoid
from holdfast.methods.dynamic_sampling import DynamicSampling
from holdfast.methods.gigpo import GiGPO
from holdfast.methods.interleaved_sft import InterleavedSFT
from holdfast.methods.ipo import IPO
from holdfast.methods.method import Method
from holdfast.methods.negative_weight import NegativeWeight
from holdfast.methods.nthr import NTHR
from holdfast.methods.off_policy_mask import OffPolicyMask
from holdfast.methods.sampler_weights import SamplerWeights
from holdfast.methods.score_centering import ScoreCentering
from holdfast.methods.variance_filter import VarianceFilter


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
    score_centering: ScoreCentering = ScoreCentering(on=False)
    interleaved_sft: InterleavedSFT = InterleavedSFT(on=False)

    def problems(self) -> Iterator[str]:
        """Methods that undo each other."""
        if self.variance_filter.on and self.dynamic_sampling.on:
            yield (
                "[loss.methods.variance_filter] with [loss.methods.dynamic_sampling]: one leaves out groups with "
                "contrast, and the other would sample questions in their place without end. Leave one out"
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
