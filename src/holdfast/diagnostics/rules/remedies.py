"""What to change, where several codes ask for the same."""

from __future__ import annotations

from holdfast.diagnostics.rules.rule import Remedy

PRESERVE_LIKELIHOOD: Remedy = {
    "holdfast": 'Preserve correct rollouts: `loss.penalty.name = "llds"` or `"sapo"`, with '
    "`train.optimizer_steps_per_rollout` of 2 or more; raise `loss.penalty.coef` if it is on. A smaller `train.lr` "
    "helps as well. Where `sampling.top_p` or `sampling.top_k` truncate the sampler, turn on `sampling.mask_logprobs` "
    "first.",
    "trl": "Preserve correct rollouts: `with_penalties(GRPOTrainer, LLDS(coef=0.2))`, with `steps_per_generation` at "
    "least twice `gradient_accumulation_steps`. A smaller `learning_rate` helps as well. Where `top_p` or `top_k` "
    "truncate the sampler, undo that first.",
    "verl": "Preserve correct rollouts: `actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_llds`, with "
    "`actor_rollout_ref.actor.ppo_mini_batch_size` at most half of `data.train_batch_size`. A smaller "
    "`actor_rollout_ref.actor.optim.lr` helps as well. Where `actor_rollout_ref.rollout.top_p` truncates the sampler, "
    "undo that first.",
    "unknown": "Preserve correct rollouts with a penalty on lost likelihood (LLDS, Search Agent Policy Optimization), "
    "or lower the learning rate or the number of optimizer steps per rollout batch. Where top-p or top-k truncate the "
    "sampler, undo that first.",
}

SMALLER_STEPS: Remedy = {
    "holdfast": "Divide `train.lr` by five or more, or lengthen `train.warmup`; fewer "
    "`train.optimizer_steps_per_rollout` and larger batches (`train.questions`) make a step smaller too.",
    "trl": "Divide `learning_rate` by five or more, or raise `warmup_steps`; a smaller `steps_per_generation` or "
    "`num_iterations` moves the policy less per rollout batch.",
    "verl": "Divide `actor_rollout_ref.actor.optim.lr` by five or more, or raise "
    "`actor_rollout_ref.actor.optim.lr_warmup_steps`; a larger `actor_rollout_ref.actor.ppo_mini_batch_size` moves the "
    "policy less per rollout batch.",
    "unknown": "Divide the learning rate by five or more, warm it up for longer, or take fewer optimizer steps per "
    "rollout batch.",
}
