#!/usr/bin/env bash
# A verl run with LLDS (arXiv 2512.04220), and what a verl user changes for it.
#
#   pip install 'holdfast-rl[verl]'         in the environment of verl, on every node
#   holdfast doctor verl                     is it found? what does it need?
#   examples/verl_llds.sh trainer.n_gpus_per_node=8
#
# Print the check instead of starting: CHECK=1 examples/verl_llds.sh
set -euo pipefail

# Your run, as it was. One thing to look at: train_batch_size / ppo_mini_batch_size × ppo_epochs is the number of
# optimizer steps per rollout batch. On the first of them the policy equals the old one, so a penalty needs two or more;
# the published runs took 10.
grpo=(
  algorithm.adv_estimator=grpo
  data.train_files="${TRAIN:-data/train.parquet}"
  data.val_files="${DEV:-data/dev.parquet}"
  data.train_batch_size=500
  data.max_prompt_length=512
  data.max_response_length=3584
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-3B}"
  actor_rollout_ref.actor.ppo_mini_batch_size=50
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=5
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
)

# All that the penalty needs. loss_mode=holdfast_observe changes nothing but the log: begin with it when a run dies and
# nobody knows why, and look at actor/holdfast/likelihood/positive and actor/holdfast/drift/positive.
policy_loss=actor_rollout_ref.actor.policy_loss
penalty=(
  "$policy_loss.loss_mode=holdfast_llds"
  # The rest is optional: the paper's values, and what else could be set.
  "$policy_loss._target_=holdfast.adapters.verl.HoldfastPolicyLossConfig"
  "+$policy_loss.base_loss_mode=vanilla"  # any registered loss: gspo, cispo …
  "+$policy_loss.penalty_coef=0.2"        # 0 is a control with everything else in place
  "+$policy_loss.rollout_correction=\${algorithm.rollout_correction}"  # lets the loss refuse a mask cut by rejection
)

# Searching, against any server that speaks Search-R1's /retrieve: see examples/verl_search_agent.yaml.
agent=(
  actor_rollout_ref.rollout.agent.default_agent_loop=holdfast_search
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$(cd "$(dirname "$0")" && pwd)/verl_search_agent.yaml"
)

if [[ -n "${CHECK:-}" ]]; then
  exec holdfast doctor verl "${grpo[@]}" "${penalty[@]}" "${agent[@]}" "$@"
fi
exec python3 -m verl.trainer.main_ppo "${grpo[@]}" "${penalty[@]}" "${agent[@]}" "$@"
