"""What every metric means, of this trainer and of others."""

from __future__ import annotations

METRICS: dict[str, str] = {
    "reward/mean": "Mean reward of the rollout batch.",
    "reward/em": "Mean exact match (0 or 1).",
    "reward/f1": "Mean token F1.",
    "reward/min": "Smallest reward of the rollout batch, from verl.",
    "reward/max": "Largest reward of the rollout batch, from verl.",
    "reward/std": "Standard deviation of the rewards of the rollout batch, from TRL.",
    "reward/group_std": "Standard deviation of the rewards within a group, mean over groups, from TRL before 0.27.",
    "eval/em": "Exact match on dev, sampled at the training temperature without truncation.",
    "eval/em_greedy": "Exact match on dev, greedy.",
    "eval/f1": "Token F1 on dev, sampled.",
    "eval/f1_greedy": "Token F1 on dev, greedy.",
    "eval/<dataset>/score": "Mean score on a held-out dataset, from other trainers.",
    "eval/searches": "Searches per question on dev, sampled.",
    "eval/failed_fraction": "Share of dev questions whose rollout failed. Scores leave them out. Absent if none "
    "failed.",
    "loss/host": "TRL's or verl's own loss, before the penalty.",
    "loss/tokens": "Tokens in the loss per rollout. If there are more than `rollout/length`, the loss includes "
    "observations.",
    "loss/policy": "Clipped policy loss. Like all losses here, a mean over the optimizer steps.",
    "loss/penalty": "Likelihood-preserving penalty, times its coefficient.",
    "loss/kl": "KL to the frozen reference, times its coefficient.",
    "loss/excluded_fraction": "Share of sampled tokens that methods leave out of the loss. Absent without such a "
    "method.",
    "loss/mean_weight": "Mean weight of a token in the policy loss. Absent without a method that weights tokens.",
    "loss/dropped_fraction": "Share of tokens whose policy gradient is 0 because of a mask that follows the policy, "
    "such as DPPO's or `off_policy_mask`. Absent without one.",
    "kl/reference": "KL to the frozen reference per token, in nats, without its coefficient. From TRL, verl and "
    "`reward.kl`.",
    "loss/entropy": "Entropy bonus: minus the entropy, times its coefficient.",
    "penalty/active_fraction": "Share of preserved tokens whose penalty is not 0. If it is always 0, the penalty has "
    "no effect.",
    "penalty/preserved_fraction": "Preserved tokens / tokens in the loss. Converts a coefficient from one "
    "`loss.penalty.normalizer` to the other.",
    "penalty/mean_decrease": "Mean over preserved tokens of max(0, old − new log-prob), in nats.",
    "penalty/noise_floor": "Largest |new − old| log-prob in the first optimizer step, where the policy has not "
    "changed yet. This is numerical noise; with `loss.old_policy` at `sampler`, what the policy has changed since "
    "the rollouts.",
    "penalty/answer_weight": "Weight of answer tokens in the penalty.",
    "likelihood/correct": "Mean log-prob per sampled token, mean over correct rollouts. Under the old policy: the "
    "weights before this step's update, with log-probs recomputed by the trainer over the full "
    "vocabulary.",
    "likelihood/incorrect": "Mean log-prob per sampled token under the old policy, mean over incorrect rollouts.",
    "likelihood/correct/action_<k>": "Mean log-prob per token of the k-th action under the old policy, mean over "
    "correct rollouts.",
    "likelihood/incorrect/action_<k>": "Mean log-prob per token of the k-th action under the old policy, mean over "
    "incorrect rollouts.",
    "likelihood/before_observation": "Mean log-prob under the old policy of the tokens of first actions, which precede "
    "every observation.",
    "likelihood/after_observation": "The same of the tokens of later actions. Absent without any.",
    "likelihood/positive": "In verl, whose loss does not know which rollouts are correct: mean log-prob per sampled "
    "token under the old policy, mean over rollouts with A > 0.",
    "likelihood/negative": "In verl: mean log-prob per sampled token under the old policy, mean over rollouts with A "
    "< 0.",
    "drift/positive": "New − old log-prob per sampled token, mean over rollouts with A > 0. Measured at the start of "
    "each optimizer step, on its rollouts. Below 0: positive rollouts become less likely.",
    "drift/negative": "New − old log-prob per sampled token, mean over rollouts with A < 0. Measured at the start of "
    "each optimizer step, on its rollouts.",
    **{
        f"drift/{sign}/{kind}": f"New − old log-prob, mean over tokens of {tokens}, in rollouts with A {op} 0. "
        "Measured at the start of each optimizer step, on its rollouts (arXiv 2603.10069, "
        "Proposition 1)."
        for sign, op in (("positive", ">"), ("negative", "<"))
        for kind, tokens in (
            ("thought", "thoughts (all but queries and answers)"),
            ("query", "queries (with their tags)"),
            ("answer", "answers (with their tags)"),
        )
    },
    "displacement/correct": "Displacement: log-prob after the whole update − before, on the same rollouts. Mean over "
    "this step's correct rollouts, in nats per sampled token. Below 0, this is lazy "
    "likelihood displacement (arXiv 2512.04220, Def. 4.1).",
    "displacement/incorrect": "The same for this step's incorrect rollouts.",
    "displacement/fraction": "Share of correct rollouts that the update made less likely.",
    "displacement/correct/action_<k>": "Displacement of the k-th action, in nats per token of that action, mean over "
    "correct rollouts (arXiv 2512.04220, Def. 4.1, divided by the action's "
    "tokens).",
    "displacement/incorrect/action_<k>": "Displacement of the k-th action, in nats per token of that action, mean "
    "over incorrect rollouts.",
    "displacement/action_fraction": "Share of the actions of correct rollouts that the update made less likely. This "
    "is lazy likelihood displacement by Def. 4.1 with ε = 0.",
    "displacement/rollouts": "Number of rollouts on which displacement was measured.",
    "entropy/mean": "Mean entropy per sampled token, in nats, of the policy without truncation.",
    "entropy/before_observation": "The same over the tokens of first actions, which precede every observation.",
    "entropy/after_observation": "The same over the tokens of later actions. Absent without any.",
    "ratio/mean": "Mean importance ratio π / π_old, over the optimizer steps of the step.",
    "ratio/max": "Largest importance ratio.",
    "ratio/p01": "First percentile of the importance ratios of tokens.",
    "ratio/log_product": "Log of the product of a rollout's token ratios, mean over rollouts.",
    "ratio/log_product/positive": "The same, over rollouts with A > 0. Measured at the start of each optimizer step.",
    "ratio/log_product/negative": "The same, over rollouts with A < 0.",
    **{
        f"isdd/{sign}/below_{name}": f"Share of rollouts with A {op} 0 whose token ratios multiply to less than "
        f"{epsilon}, at the start of each optimizer step. This is P(∏ r < ε) of "
        "importance-sampling distribution drift (arXiv 2603.10069, Def. 1)."
        for sign, op in (("positive", ">"), ("negative", "<"))
        for name, epsilon in (("half", "1/2"), ("tenth", "1/10"), ("hundredth", "1/100"))
    },
    "critic/value_loss": "Loss of the critic: half the clipped squared error of its values, mean over the optimizer "
    'steps. All `critic/` metrics need `loss.advantage = "gae"`.',
    "critic/explained_variance": "1 − Var(return − value) / Var(return) over sampled tokens, before the update. 1: "
    "perfect values; 0 or below: no better than a constant. Absent if all returns are "
    "equal.",
    "critic/value_mean": "Mean value of sampled tokens, before the update.",
    "critic/return_mean": "Mean return of sampled tokens: advantage + value.",
    "critic/clip_fraction": "Share of tokens whose value has no gradient because it changed by more than "
    "`critic.clip`.",
    "critic/grad_norm": "Gradient norm of the critic before clipping, mean over optimizer steps with a finite norm.",
    "critic/skipped_steps": "Number of the critic's optimizer steps that were skipped because the gradient norm was "
    "not finite.",
    "critic/lr": "Learning rate of the critic.",
    "clip/fraction": "Share of tokens whose gradient is 0 because their ratio is clipped.",
    "grad/norm": "Gradient norm before clipping, mean over optimizer steps with a finite norm.",
    "grad/norm_max": "The largest gradient norm.",
    "grad/skipped_steps": "Optimizer steps skipped because the gradient norm was not finite.",
    "rollout/length": "Sampled tokens per rollout.",
    "rollout/min_length": "Tokens of the shortest rollout, from TRL and verl.",
    "rollout/max_length": "Tokens of the longest rollout, from TRL and verl.",
    "rollout/searches": "Searches per rollout. From other trainers: calls of tools.",
    "rollout/failed_call_fraction": "Share of the tool calls that failed or were malformed, from TRL; 0 without calls.",
    "rollout/turns": "Turns per rollout, as the trainer counts them.",
    "rollout/staleness": "Updates between sampling a rollout and training on it, mean over rollouts, from asynchronous "
    "trainers.",
    "rollout/invalid_fraction": "Share of turns that were neither a search nor an answer.",
    "rollout/repetition": "Share of the sequences of 12 sampled tokens that occurred before in the same rollout, in "
    "the same action or an earlier one: mean over rollouts. Near 0 in sound text, near 1 in a rollout that only "
    "repeats itself. Absent if no action has 12 tokens.",
    "rollout/looping_fraction": "Share of rollouts that mostly repeat themselves, from slime: they have more than "
    "10,000 characters, and the last 10,000 compress to less than a tenth.",
    "rollout/truncated_fraction": "Share of rollouts that ran out of turns or tokens.",
    "rollout/answered_fraction": "Share of rollouts that end with an answer.",
    "rollout/failed_fraction": "Share of rollouts that failed for reasons outside the policy.",
    "rollout/truncated_observation_fraction": "Share of observations cut to their token limit.",
    "rollout/first_action_match_fraction": "Share of incorrect rollouts whose first search returned the same "
    "passages as the first search of a correct rollout of the same question.",
    "rollout/mixed_group_fraction": "Share of groups in which rewards differ. In the others, all group-relative "
    "advantages are 0.",
    "rollout/all_correct_fraction": "Share of groups whose rollouts all have the highest reward, from prime-rl and "
    "tinker-cookbook.",
    "rollout/all_wrong_fraction": "Share of groups whose rollouts all have the lowest reward, from prime-rl and "
    "tinker-cookbook.",
    "control/misplaced_mean": "Probability, under the old policy, of control tokens where they do not belong: mean "
    "over sampled tokens. They are the first tokens of opening tags inside a pair of tags, those of closing tags "
    "outside, and the end of the sequence where it cuts a turn short. A token that can also begin a tag that belongs "
    "there does not count.",
    "control/misplaced_p99": "The same, 99th percentile.",
    "sampler/logprob_gap": "Sampler's log-prob minus old log-prob, mean over sampled tokens. If it is not 0, the "
    "sampler is truncated, or is not the model that is trained.",
    "sampler/logprob_abs_gap": "|sampler's log-prob − trainer's log-prob| in nats, mean over tokens, from other "
    "trainers.",
    "sampler/prob_abs_gap": "|sampler's probability − trainer's probability|, mean over tokens, from verl.",
    "sampler/mismatch_kl": "KL between sampler and trainer per token, in nats, from prime-rl.",
    "sampler/importance_ratio": "Trainer's probability / sampler's probability, mean over rollouts or over tokens, as "
    "the trainer is set (TRL's default: rollouts). Truncated as in the loss. Near 1 if both are the same policy.",
    "sampler/ess": "Effective sample size of the rollouts' tokens, as a share: (Σ w)² / (n Σ w²) with w = old policy / "
    "sampler, both over the whole vocabulary. 1: they agree. Stale rollouts lower it.",
    "sampler/mask_mass": "Mean probability of the tokens inside top-p/top-k (1: no truncation).",
    "sampler/mask_in_loss": "1 if the log-probs in the loss are over the tokens inside top-p/top-k. Absent otherwise.",
    "advantage/token_mean": "Mean advantage over sampled tokens. Below 0: incorrect rollouts are longer.",
    "advantage/tail_mean": "Mean advantage over sampled tokens, weighted by the probability outside top-p/top-k. "
    "Below 0: the loss moves probability there. Absent if the sampler is not truncated.",
    "centering/drift": "Size of the part of the expected update that only moves probability between the sampler's "
    "tokens S and the others: mean over sampled tokens of |E[A]|·2(1 − P(S)), the L1 norm by the logits (theory.md, "
    "step 10). E[A] at a prefix is estimated by the mean advantage of the same action of the same question. Of a "
    "sampler q with other weights: |E[A]|·|p(y) / q(y) − 1|. 0 if the sampler is neither. A sampling mask and score "
    "centering take this part out of the loss; the series shows what it would be.",
    "centering/covariance": "Size of the part that tells better tokens from worse ones: mean over sampled tokens y of "
    "|A − E[A]|·2(1 − q(y)), with q = π / P(S) and the same estimate of E[A]. An upper bound, because each prefix has "
    "one draw. Compare `centering/drift` with it.",
    "negative/long_unlikely_share": "Share of the push on rollouts with A < 0 that lies on long, unlikely, incorrect "
    "ones: longer than the median of the batch, and with a mean log-prob below the median. Push: |A| times the weight "
    "of the token in the policy loss, with the divisor of `loss.reduction`, as if the batch were one optimizer step.",
    "negative/long_unlikely_share_by_response": "The same if the loss were a mean per response "
    "(`seq-mean-token-mean`). Far below `negative/long_unlikely_share`: that reduction would weaken these rollouts.",
    "negative/long_unlikely_rollouts": "Share of the rollouts with A < 0 that are long, unlikely and incorrect.",
    "retrieval/latency_ms": "Milliseconds per call of the retriever.",
    "retrieval/error_fraction": "Share of searches that failed after all retries.",
    "retrieval/empty_fraction": "Share of searches that found nothing.",
    "retrieval/duplicate_fraction": "Share of searches that repeat a query of the same step.",
    "tools/<name>/calls": "Calls of this tool of your own per rollout. Absent in a step without a call.",
    "tools/<name>/errors": "Share of its calls that failed or took too long. The model was told why.",
    "tools/<name>/seconds": "Seconds that a call of it took, on average.",
    "optimizer_steps_per_rollout": "Optimizer steps per rollout batch (K).",
    "lr": "Learning rate.",
    "time/rollout_s": "Seconds for rollouts.",
    "time/update_s": "Seconds for old log-probs and the update.",
    "time/displacement_s": "Seconds for measuring displacement.",
    "time/step_s": "Seconds for the whole step, without evaluation.",
    "tokens_per_s": "Tokens of the rollout batch per second of the step, including prompts and observations.",
}
"""Every metric that a run may log, with its meaning. docs/reference/metrics.md is made from this."""


def glossary_entry(name: str) -> str | None:
    """The text of the glossary for a metric, including those of a numbered action or of a dataset.

    >>> glossary_entry("likelihood/correct/action_2") == METRICS["likelihood/correct/action_<k>"]
    True
    """
    if name.startswith("eval/") and name.endswith("/score"):
        return METRICS.get("eval/<dataset>/score")
    if name.startswith("tools/"):
        return METRICS.get(f"tools/<name>/{name.rpartition('/')[2]}")
    head, _, number = name.rpartition("action_")
    return METRICS.get(f"{head}action_<k>" if head and number.isdigit() else name)
