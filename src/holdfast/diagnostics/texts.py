"""What each code is called, means and asks to be changed: for `--explain`, for findings, and for docs/diagnose.md.

Names of settings in `change` are those of the host, in backticks: holdfast's dotted ones, fields of TRL's GRPOConfig,
verl's hydra paths. Tests hold them against the schema of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.diagnostics.log import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One code in words."""

    name: str
    means: str
    """One sentence."""
    bad: str
    """Why it matters."""
    change: Mapping[Host, str]
    """By host; `unknown` names no setting."""
    problems: str
    """When the rule is wrong, or silent."""


PENALTY: Mapping[Host, str] = {
    "holdfast": 'Protect correct rollouts: `loss.penalty.name = "llds"` or `"sapo"`, with '
    "`train.optimizer_steps_per_rollout` of 2 or more; raise `loss.penalty.coef` if it is on. A smaller `train.lr` "
    "helps as well. Where `sampling.top_p` or `sampling.top_k` cut the sampler, turn on `sampling.keep_mask` first.",
    "trl": "Protect correct rollouts: `with_penalties(GRPOTrainer, LLDS(coef=0.2))`, with `steps_per_generation` at "
    "least twice `gradient_accumulation_steps`. A smaller `learning_rate` helps as well. Where `top_p` or `top_k` cut "
    "the sampler, undo that first.",
    "verl": "Protect good rollouts: `actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_llds`, with "
    "`actor_rollout_ref.actor.ppo_mini_batch_size` at most half of `data.train_batch_size`. A smaller "
    "`actor_rollout_ref.actor.optim.lr` helps as well. Where `actor_rollout_ref.rollout.top_p` cuts the sampler, undo "
    "that first.",
    "unknown": "Protect correct rollouts with a likelihood-preserving penalty (LLDS, Search Agent Policy "
    "Optimization), or lower the learning rate or the number of optimizer steps per rollout batch. "
    "Where top-p or top-k cut the sampler, undo that first.",
}

SMALLER: Mapping[Host, str] = {
    "holdfast": "Lower `train.lr` by five or more, or lengthen `train.warmup`; fewer "
    "`train.optimizer_steps_per_rollout` and larger batches (`train.questions`) make a step smaller too.",
    "trl": "Lower `learning_rate` by five or more, or raise `warmup_steps`; a smaller `steps_per_generation` or "
    "`num_iterations` moves the policy less per rollout batch.",
    "verl": "Lower `actor_rollout_ref.actor.optim.lr` by five or more, or raise "
    "`actor_rollout_ref.actor.optim.lr_warmup_steps`; a larger `actor_rollout_ref.actor.ppo_mini_batch_size` moves the "
    "policy less per rollout batch.",
    "unknown": "Lower the learning rate by five or more, warm it up for longer, or take fewer optimizer steps per "
    "rollout batch.",
}

SHUT: Mapping[Host, str] = {
    "holdfast": "Lower `loss.penalty.threshold` (LLDS) or raise `loss.penalty.tau` (SAPO), or let "
    "`loss.penalty.preserve` protect more rollouts.",
    "trl": "Lower `threshold` of LLDS or raise `tau` of SAPO, or let `preserve` protect more rollouts.",
    "verl": "Lower `actor_rollout_ref.actor.policy_loss.penalty_threshold` (LLDS) or raise "
    "`actor_rollout_ref.actor.policy_loss.penalty_tau` (SAPO), or let "
    "`actor_rollout_ref.actor.policy_loss.penalty_preserve` protect more rollouts.",
    "unknown": "Lower the penalty's threshold, or let it protect more rollouts.",
}
"""A penalty that is 0 although the policy moves: its schedule is not the cause."""

TEXTS: Mapping[str, Text] = {
    "GRD002": Text(
        name="non-finite gradient, loss or reward",
        means="A loss or gradient is NaN or infinite, or a reward is infinite, so that the update was skipped or has "
        "poisoned the weights.",
        bad="One NaN in a gradient makes every weight NaN unless the step is skipped. A skipped step hides the cause: "
        "often the exponential of an unbounded log-ratio, half precision, or arithmetic on masked tokens (0 · ∞).",
        change={
            "holdfast": 'Lower `train.lr`; on a GPU try `model.autocast = "none"`; bound the ratio of negative tokens '
            "with `loss.dual_clip = 3.0`.",
            "trl": "Lower `learning_rate`, set `bf16=False`, bound the ratio with `delta=3.0`; "
            "`with_penalties(GRPOTrainer)` keeps masked tokens out of the arithmetic.",
            "verl": "Lower `actor_rollout_ref.actor.optim.lr`, set `actor_rollout_ref.actor.optim.clip_grad` to 1 or "
            "less, and keep `actor_rollout_ref.actor.clip_ratio_c` at 3.",
            "unknown": "Lower the learning rate, train in full precision, bound the importance ratio, and mask before "
            "the arithmetic.",
        },
        problems="A trainer that leaves NaN out of its log, or writes 0 instead, cannot be seen through. Where it is "
        "the reward, none of these settings helps: look for a division by 0 in the reward function.",
    ),
    "MSK001": Text(
        name="observation tokens trained on",
        means="Tokens that the model did not sample, such as retrieved passages, are in the loss.",
        bad="The policy is rewarded for the search engine's words. It learns to write passages itself, its ratios and "
        "its entropy are those of foreign text, and training breaks early.",
        change={
            "holdfast": "Nothing in a recipe can cause this: report it, with the code that makes your `TokenBatch`.",
            "trl": "Return `env_mask` from your `rollout_func` with 0 on everything the model did not sample, as "
            "`SearchRollouts` does, and make sure the trainer applies it (`tool_mask`).",
            "verl": "Set `response_mask` to 0 on observations in your agent loop, as "
            "`actor_rollout_ref.rollout.agent.default_agent_loop=holdfast_search` does.",
            "unknown": "Mask everything the model did not sample out of the loss.",
        },
        problems="Certain where tokens in the loss and sampled tokens are both counted (`loss/tokens`, "
        "`rollout/length`). Otherwise it is inferred: sampled tokens surprise a policy by its entropy on average, and "
        "text it was given surprises it by more. A stale sampler looks alike; a model that knows the passages by heart "
        "hides it. verl's log and TRL's own cannot tell.",
    ),
    "SMP001": Text(
        name="sampler and trainer disagree",
        means="Rollouts are not drawn from the policy that is trained: the sampler has other weights, another "
        "temperature, or a truncated distribution.",
        bad="Every ratio is wrong by the difference. With a sampler truncated by top-p or top-k and log-probs over the "
        "whole vocabulary, probability flows into tokens that are never sampled.",
        change={
            "holdfast": "Sample untruncated: `sampling.top_p = 1.0` and `sampling.top_k = 0`; or turn "
            "on `sampling.keep_mask`, for log-probs over what is kept.",
            "trl": "Set `top_p=1.0`, `top_k=0` and `min_p=None`; with `use_vllm=True` keep "
            "`vllm_importance_sampling_correction=True`.",
            "verl": "Set `actor_rollout_ref.rollout.top_p=1` and `actor_rollout_ref.rollout.top_k=-1`, keep "
            "`actor_rollout_ref.rollout.calculate_log_probs=True`, and use `algorithm.rollout_correction`.",
            "unknown": "Sample at the training temperature without top-p and top-k, and check that the sampler gets "
            "the new weights after every update.",
        },
        problems="Mild truncation (0.95, or 0.9) is no finding by itself: most such runs hold for long. It becomes one "
        "when a quarter of the mass is cut, or when advantages are negative where the sampler cuts and the mass that "
        "is kept shrinks; the latter is asked where `advantage/cut_mean` is logged. A difference that is only "
        "numerical, 0.01 nats or less, is ignored.",
    ),
    "PEN001": Text(
        name="penalty inert",
        means="The likelihood-preserving penalty has been exactly 0 since the start.",
        bad="Such a penalty compares the policy with the one that made the rollouts. With one optimizer step per "
        "rollout batch they are always equal: the run is plain GRPO under another name.",
        change={
            "holdfast": "Set `train.optimizer_steps_per_rollout` to 2 or more; the published runs took 10.",
            "trl": "Set `steps_per_generation` to at least twice `gradient_accumulation_steps`, or `num_iterations` "
            "to 2 or more.",
            "verl": "Set `actor_rollout_ref.actor.ppo_mini_batch_size` to at most half of `data.train_batch_size`, or "
            "`actor_rollout_ref.actor.ppo_epochs` to 2 or more.",
            "unknown": "Take two or more optimizer steps per rollout batch.",
        },
        problems="With recomputed log-probs in half precision old and new differ by rounding, and the penalty acts on "
        "noise: it is then not exactly 0, and this rule is silent. With several optimizer steps per rollout batch it "
        "takes ten batches in which the policy moved, and the advice is another: a threshold that nothing passes, or "
        "nothing to protect.",
    ),
    "RET001": Text(
        name="retriever failing",
        means="Searches fail, or rollouts end for reasons that are not the policy's.",
        bad="What is left is a biased sample, or, where the trainer counts an outage as a wrong answer, a lesson not "
        "to search.",
        change={
            "holdfast": "Look after the server behind `retrieval.url`; `retrieval.max_failed` says when a run stops.",
            "trl": "Look after the retriever; `SearchRollouts` keeps failed episodes out of the loss.",
            "verl": "Look after the retriever named in `actor_rollout_ref.rollout.agent.agent_loop_config_path`.",
            "unknown": "Look after the retriever, and keep episodes whose search failed out of the loss.",
        },
        problems="A single bad step of 30 % or more is reported too. A retriever that answers with nonsense fails "
        "nothing.",
    ),
    "RET002": Text(
        name="searches return nothing",
        means="Searches succeed and find no passage.",
        bad="The agent learns that searching does not pay, and answers from memory or not at all.",
        change={
            "holdfast": "Check `retrieval.corpus`, `retrieval.index` or the server behind `retrieval.url`, and "
            "`protocol.topk`.",
            "trl": "Check the index behind your retriever, and that queries reach it as the model wrote them.",
            "verl": "Check the index behind your retriever, and that queries reach it as the model wrote them.",
            "unknown": "Check the index, and that queries reach it as the model wrote them.",
        },
        problems="Needs a count of empty results, which only holdfast's rollouts log. A retriever that returns the "
        "same passage to everything is not empty.",
    ),
    "GRP001": Text(
        name="groups without contrast",
        means="Almost all groups have one and the same reward for all their rollouts, and have had since the start.",
        bad="A group-relative advantage is 0 there, so nothing is learned: the task is too hard, too easy, or the "
        "reward function does not tell rollouts apart.",
        change={
            "holdfast": "Start from a better policy (`warm_start.steps`), add a denser part to `[reward]` such as "
            "`reward.f1 = 1.0`, or raise `train.group_size`.",
            "trl": "Raise `num_generations`, use easier or harder questions, or a denser reward function; look at what "
            "your reward functions return.",
            "verl": "Raise `actor_rollout_ref.rollout.n`, use easier or harder questions, or a denser reward.",
            "unknown": "Raise the group size, use easier or harder questions, or a denser reward.",
        },
        problems="Groups that become all right at the end of learning are no finding. A reward with a small random "
        "part has contrast without meaning.",
    ),
    "STP001": Text(
        name="step too large",
        means="One update moves the policy so far that the reward falls within a few steps, without a decay before.",
        bad="This is the other disease: not a slow loss of likelihood but an optimizer that overshoots. Penalties "
        "delay it and do not cure it.",
        change=SMALLER,
        problems="From a stock log it is inferred from an update that clips more than a tenth of the tokens, and twice "
        "as many as any before or while the reward falls. A clip range per sequence clips as many by design: there a "
        "fall of the reward is enough. In a run already decaying (LLD001 to LLD003 before) a jump is the end of that "
        "decay, and this rule is silent.",
    ),
    "LLD001": Text(
        name="likelihood of correct rollouts stagnates",
        means="The run's own updates take likelihood from most correct rollouts, and the likelihood of what is correct "
        "no longer rises.",
        bad="Lazy likelihood displacement (arXiv 2512.04220) begins so, while the reward still rises.",
        change=PENALTY,
        problems="The weakest of the four: a plateau can look like this for a while and hold.",
    ),
    "LLD002": Text(
        name="likelihood of correct rollouts decays",
        means="Most correct rollouts lose likelihood in every update, and the correct set has become less likely than "
        "it was.",
        bad="What is right becomes improbable. Low-confidence rollouts make the next updates noisier: in the published "
        "runs the reward falls dozens of steps later.",
        change=PENALTY,
        problems="Runs with a weak penalty can live in this state for long. `likelihood/correct` alone is not "
        "believed: as accuracy changes, so does which rollouts are correct. The loss per update has to stand out of "
        "its own scatter, so one bad update is none, and so has what was lost since the best.",
    ),
    "LLD003": Text(
        name="death spiral",
        means="The decay of correct rollouts accelerates: each update takes more of their likelihood than the one "
        "before.",
        bad="Low likelihood makes displacement worse, which makes likelihood lower. The reward falls at about this "
        "time.",
        change=PENALTY,
        problems="Late by nature: in fast collapses it comes with the fall of the reward, not before it.",
    ),
    "LLD004": Text(
        name="first action decays faster",
        means="The first action of correct rollouts loses likelihood faster than the second.",
        bad="Wrong rollouts share their first search with right ones, and are pushed down together with it.",
        change=PENALTY,
        problems="Rollouts with one search and with two are different questions; their mix moves both curves.",
    ),
    "ISD001": Text(
        name="importance ratios drift",
        means="The product of a rollout's importance ratios sinks far below 1 before its batch is used up.",
        bad="The gradient of a good token is scaled by its ratio: where that is near 0 the token cannot be learned "
        "back (importance-sampling distribution drift, arXiv 2603.10069).",
        change=PENALTY,
        problems="The mean is over all rollouts, wrong ones included, which are meant to lose likelihood. It is a sum "
        "over tokens: long rollouts drift sooner. While the reward falls, half of the usual drift is enough.",
    ),
    "ENT001": Text(
        name="entropy surge",
        means="Entropy climbs from its lowest value while rollouts keep their length and number of searches.",
        bad="The policy becomes uncertain without doing anything new: probability flows to tokens it does not sample. "
        "In the published collapses this goes before the fall of the reward.",
        change=PENALTY,
        problems="A change of data or temperature raises entropy too. Runs trained for exploration, with an entropy "
        "bonus, are meant to. It has to rise by a quarter and by 0.35 nats a token, 1.4 times as many likely tokens: a "
        "policy so sharp that its entropy doubles with less is left alone.",
    ),
    "ENT002": Text(
        name="entropy exhausted",
        means="Entropy is so low that the rollouts of a question are nearly identical.",
        bad="Without variety groups lose their contrast and learning stops, whatever the reward is.",
        change={
            "holdfast": "Stop here and take the best checkpoint, or raise `loss.entropy_coef`, `loss.kl_coef` or "
            "`loss.clip_high`.",
            "trl": "Stop here, or raise `entropy_coef`, `beta` or `epsilon_high`.",
            "verl": "Stop here, or raise `actor_rollout_ref.actor.entropy_coeff`, "
            "`actor_rollout_ref.actor.kl_loss_coef` or `actor_rollout_ref.actor.clip_ratio_high`.",
            "unknown": "Stop here, or add an entropy bonus, a KL to the reference, or a higher upper clip.",
        },
        problems="A task that is solved looks the same, and is no disease.",
    ),
    "GRD001": Text(
        name="gradient explosion",
        means="The gradient norm stays more than ten times above its usual value.",
        bad="With norm clipping the step has a bounded size but a random direction; without, the weights are lost.",
        change=SMALLER,
        problems="Single spikes are ignored. A norm logged after clipping cannot explode.",
    ),
    "TRN001": Text(
        name="truncation",
        means="More and more episodes run out of turns or tokens, or all of them do from the start, or they grow "
        "towards that because advantages prefer long ones, and the reward does not rise with it.",
        bad="A truncated episode has no answer and no reward, so the longer ones are unlearned whatever they contain; "
        "or the agent has lost the habit of ending.",
        change={
            "holdfast": "Raise `protocol.max_total_tokens`, `protocol.max_turn_tokens` or `protocol.max_turns` if the "
            "episodes are sound; look at `trajectories.jsonl` to see.",
            "trl": "Raise `max_completion_length` if the completions are sound; `log_completions=True` shows them. "
            "Episodes of SearchRollouts are bounded by its protocol alone: raise its turns or tokens instead.",
            "verl": "Raise `data.max_response_length` or `actor_rollout_ref.rollout.multi_turn.max_assistant_turns` if "
            "the responses are sound; for the agent loop holdfast_search raise max_turns in the file that "
            "`actor_rollout_ref.rollout.agent.agent_loop_config_path` names.",
            "unknown": "Raise the budget of tokens and turns if the episodes are sound; read some.",
        },
        problems="Late in other collapses episodes ramble and this is a symptom: look at what was found before it. "
        "Long rollouts are left alone while the reward rises with them.",
    ),
    "RWD002": Text(
        name="answers avoided",
        means="The agent gives fewer answers, or fewer right ones, while its reward holds.",
        bad="The reward pays for silence or for form. The score that matters falls while the curve looks well.",
        change={
            "holdfast": "Weigh correctness more: `reward.em` or `reward.f1` up, `reward.format` and "
            "`reward.retrieval` down; no reward without an answer.",
            "trl": "Change `reward_weights` or the reward functions, so that no answer is worth less than a wrong one.",
            "verl": "Change the reward function, so that no answer is worth less than a wrong one.",
            "unknown": "Change the reward, so that no answer is worth less than a wrong one.",
        },
        problems="Where the log has neither the share of answers nor a score beside the reward, it cannot be told.",
    ),
    "RWD001": Text(
        name="reward collapse",
        means="The reward has lost 40 % of its peak, or a third of it over ten rows; where rewards fall below 0, of "
        "their range so far, 0 included.",
        bad="This is the event, not the cause. What was found before it says why.",
        change={
            "holdfast": "Go back to a checkpoint from before the first finding, and change what that one says; "
            "without one, lower `train.lr`.",
            "trl": "Go back to a checkpoint from before the first finding, and change what that one says; without "
            "one, lower `learning_rate`.",
            "verl": "Go back to a checkpoint from before the first finding, and change what that one says; without "
            "one, lower `actor_rollout_ref.actor.optim.lr`.",
            "unknown": "Go back to a checkpoint from before the first finding, and change what that one says; without "
            "one, lower the learning rate.",
        },
        problems="Harder questions from some step on lower the reward without any disease.",
    ),
}
"""By code."""
