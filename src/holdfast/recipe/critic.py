"""The `[critic]` section, and what cannot work with a critic, or without one."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from holdfast.base.section import Section, as_toml, setting_values
from holdfast.recipe.sections import Loss, Reward


class Critic(Section):
    """The critic of `loss.advantage = "gae"`, a copy of the starting policy that predicts the return."""

    path: str | None = None
    """Checkpoint of a run with a critic, to start from that critic. Unset: start from a copy of the policy with a value
    head of zeros."""
    lr: float = Field(1e-5, gt=0)
    """Learning rate of AdamW. Weight decay and gradient clipping are those of `[train]`."""
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


def critic_errors(critic: Critic, loss: Loss, reward: Reward) -> Iterator[str]:
    """A sentence for each setting that needs a critic and has none, or that a critic's advantages leave no meaning."""
    if loss.advantage != "gae":
        default = setting_values(Critic(), "critic.") | {"reward.kl": 0.0}
        values = setting_values(critic, "critic.") | {"reward.kl": reward.kl}
        for name, value in values.items():
            if value != default[name]:
                yield (
                    f"{name} = {as_toml(value)} with loss.advantage = {loss.advantage!r}: only a critic uses this "
                    "setting. Set loss.advantage = 'gae', or leave it out"
                )
        return
    if reward.kl and loss.kl_coef:
        yield (
            f"reward.kl = {reward.kl:g} with loss.kl_coef = {loss.kl_coef:g}: the same KL would count twice. "
            "Set loss.kl_coef = 0, as PPO does, or leave reward.kl out"
        )
    if loss.penalty.name in ("llds", "sapo", "nll") and getattr(loss.penalty, "preserve", "") != "all":
        other = "" if loss.penalty.name == "nll" else ", or loss.penalty.preserve = 'all'"
        yield (
            f"loss.penalty.name = {loss.penalty.name!r} with loss.advantage = 'gae': the penalty preserves rollouts "
            "by their group-relative advantage, but a critic gives each token its own advantage. Set "
            f"loss.penalty.name = 'none'{other}"
        )
    if loss.baseline != "mean":
        yield (
            f"loss.baseline = {as_toml(loss.baseline)} with loss.advantage = 'gae': it weights the rollouts of a "
            "group, but a critic gives each token its own advantage. Leave it out, or set loss.advantage = 'grpo'"
        )
