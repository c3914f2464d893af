"""verl 0.8 and 0.9: policy losses with a likelihood-preserving penalty, registered with verl.

    pip install 'holdfast-rl[verl]'          # verl 0.9 imports this module by itself: entry point group `verl.plugins`
    export VERL_USE_EXTERNAL_MODULES=holdfast.adapters.verl    # verl 0.8 has no plugins; for every process
    actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_llds

Each of `LOSSES` calls a registered base loss (`base_loss_mode`, by default `vanilla`) and adds coef × penalty, reduced
by verl's `agg_loss` with the same global denominators. It returns the base loss's metrics and `holdfast/…`, which verl
logs as `actor/holdfast/…`. `holdfast_observe`, and any of them with `penalty_coef=0`, leave loss and gradient as they
are, bit for bit. The hyper-parameters are fields of `HoldfastPolicyLossConfig`:

    actor_rollout_ref.actor.policy_loss._target_=holdfast.adapters.verl.HoldfastPolicyLossConfig
    +actor_rollout_ref.actor.policy_loss.penalty_coef=0.2

The old policy of a penalty is the one of verl's `old_log_probs`: the weights at the beginning of the rollout batch; in
the fully asynchronous trainer those of the last synchronisation; in bypass mode, which both asynchronous trainers have
by default, the sampler, each token under the weights that drew it.

A loss in verl cannot see token ids, which rollouts are correct, or how many optimizer steps a rollout batch is used
for. `holdfast doctor verl` reads the last one from the configuration. Nor can it see where the answer is, but verl's
`ppo_loss`, which calls it, can: it gets what the agent loop wrote into `extra_fields`. So `ppo_loss` is wrapped, to
remember its micro-batch for as long as it runs. `penalty_answer=answer-span` reads the answer there;
`penalty_answer=last-action` takes the last action of a rollout, which the mask shows.
"""

from holdfast.adapters.verl.plugin import HoldfastPolicyLossConfig
from holdfast.adapters.verl_losses import LOSSES

__all__ = ["LOSSES", "HoldfastPolicyLossConfig"]
