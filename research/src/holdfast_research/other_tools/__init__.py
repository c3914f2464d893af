"""Other programs that judge logs, each run by a Python of its own: `drive_*.py` are scripts and never imported.

`feeding` is what they share. Here is how each is installed, what it calls our series, and what its alarms say.
"""

from __future__ import annotations

from collections.abc import Mapping

TOOLKIT, RLDK, OURS = "post-training-toolkit", "rldk", "holdfast"
RLDOCTOR, RLPROBE, RLWATCH = "rldoctor", "rlprobe", "rlwatch"
SHORT = {TOOLKIT: "toolkit", RLDK: "rldk", RLDOCTOR: "rldoctor", RLPROBE: "rlprobe", RLWATCH: "rlwatch"}
"""Tool -> the name of its environment and of its driver."""
INSTALL = {
    TOOLKIT: "git clone https://github.com/microsoft/post-training-toolkit && cd post-training-toolkit && "
    "git checkout 7ab9855 && python -m venv DIR/toolkit && DIR/toolkit/bin/pip install . torch transformers trl",
    RLDK: "git clone https://github.com/adityachallapally/rldk && cd rldk && git checkout de64283 && "
    "python -m venv DIR/rldk && DIR/rldk/bin/pip install . torch transformers trl pandas scipy matplotlib",
    RLDOCTOR: "python -m venv DIR/rldoctor && DIR/rldoctor/bin/pip install rldoctor==0.2.0",
    RLPROBE: "python -m venv DIR/rlprobe && DIR/rlprobe/bin/pip install rlprobe==0.1.0",
    RLWATCH: "python -m venv DIR/rlwatch && DIR/rlwatch/bin/pip install rlwatch==0.5.1",
}
COMMITS = {TOOLKIT: "7ab9855 (2026-01-28)", RLDK: "de64283 (2025-10-08)"}
"""Of the tools that were installed from a repository: their versions do not say which code ran."""
DRIVERS = {tool: f"drive_{short}.py" for tool, short in SHORT.items()}

NAMES: Mapping[str, Mapping[str, str]] = {
    # the tool's name: ours
    TOOLKIT: {
        "reward_mean": "reward/mean",
        "group_reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "group_reward_std": "reward/group_std",
        "kl": "kl/reference",
        "entropy": "entropy/mean",
        "completion_length": "rollout/length",
        "output_length_mean": "rollout/length",
        "clip_fraction": "clip/fraction",
        "grad_norm": "grad/norm",
        "grpo_loss": "loss",
        "truncation_rate": "rollout/truncated_fraction",
        "importance_sampling_ratio": "sampler/importance_ratio",
    },
    RLDK: {
        "reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "kl": "kl/reference",
        "entropy": "entropy/mean",
        "grad_norm_policy": "grad/norm",
    },
    RLDOCTOR: {
        "reward_mean": "reward/mean",
        "eval_score": "eval/reward/mean",
        "frac_reward_zero_std": "frac_reward_zero_std",
        "entropy": "entropy/mean",
        "kl": "kl/reference",
        "clip_ratio/region_mean": "clip/fraction",
        "clip_ratio/low_mean": "clip_ratio/low_mean",
        "clip_ratio/high_mean": "clip_ratio/high_mean",
        "grad_norm": "grad/norm",
        "policy_loss": "loss",
        "completions/mean_length": "rollout/length",
        "completions/clipped_ratio": "rollout/truncated_fraction",
        "step_time": "time/step_s",
    },
    RLPROBE: {
        "reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "kl_mean": "kl/reference",
        "entropy_mean": "entropy/mean",
        "clip_fraction": "clip/fraction",
        "zero_variance_group_frac": "frac_reward_zero_std",
        "grad_norm": "grad/norm",
        "completion_len_mean": "rollout/length",
        "truncation_rate": "rollout/truncated_fraction",
        "step_time_s": "time/step_s",
    },
    RLWATCH: {
        "reward_mean": "reward/mean",
        "reward_std": "reward/group_std",
        "kl_divergence": "kl/reference",
        "entropy": "entropy/mean",
        "loss": "loss",
        "grad_norm": "grad/norm",
    },
}
"""Columns that the rules of a tool read -> the series of ours that is the same. The tools' other columns (advantages,
values, diversity, refusals) no stock log has; the coefficient of KL is left out because it is always constant, and the
parts of a reward because a tool has no fixed names for them."""

_STEPS = frozenset({"step-too-large", "displacement", "kl-exploded"})
_LOOSE = frozenset({"hacking", "answer-avoidance", "truncation"})
_ENTROPY = frozenset({"entropy-exhausted"})
_CONTRAST = frozenset({"no-contrast", "broken-reward", "entropy-exhausted"})
_NO_GRADIENT = _CONTRAST | {"cut-gradient", "inert-penalty"}
_STALE = _STEPS | {"sampler-mismatch"}
SAYS: Mapping[str, Mapping[str, frozenset[str]]] = {
    TOOLKIT: {
        "critical_failure": frozenset({"non-finite", "step-too-large"}),
        "kl_instability": _STEPS,
        "kl_above_target": _STEPS,
        "kl_volatility": _STEPS,
        "grpo_kl_divergence": _STEPS,
        "yaml_kl_divergence_high": _STEPS,
        "gradient_explosion": _STEPS,
        "gradient_instability": _STEPS,
        "gradient_vanishing": frozenset({"no-contrast", "cut-gradient", "inert-penalty", "entropy-exhausted"}),
        "grpo_clip_ratio_high": _STEPS,
        "yaml_clip_fraction_high": _STEPS,
        "grpo_loss_divergence": _STEPS,
        "grpo_importance_sampling_ratio_anomaly": frozenset({"sampler-mismatch"}) | _STEPS,
        "reward_hacking_suspected": _LOOSE,
        "reward_model_imbalance": _LOOSE,
        "grpo_reward_length_correlation": _LOOSE,
        "grpo_length_drift": _LOOSE,
        "length_collapse": _LOOSE,
        "response_truncation_rate_high": frozenset({"truncation"}),
        "mode_collapse_entropy": _ENTROPY,
        "mode_collapse_length_variance": _ENTROPY,
        "grpo_entropy_collapse": _ENTROPY,
        "grpo_entropy_drop": _ENTROPY,
        "yaml_entropy_collapse": _ENTROPY,
        "grpo_reward_collapse": _CONTRAST,
        "yaml_grpo_group_reward_collapse": _CONTRAST,
    },
    RLDK: {
        "grpo_safe_kl_spike": _STEPS,
        "grpo_safe_policy_grad_spike": _STEPS,
        "grpo_safe_entropy_floor": _ENTROPY,
        "grpo_safe_advantage_collapse": _CONTRAST,
        "grpo_safe_reward_saturation": _CONTRAST,
    },
    RLDOCTOR: {
        "advantage_collapse": _CONTRAST,
        "entropy_collapse": _ENTROPY,
        "reward_hacking": _LOOSE,
        "length_pathology: truncated": frozenset({"truncation"}),
        "length_pathology: grew": _LOOSE,
        "clip_saturation: clipped": _STALE,
        "clip_saturation: discarded": _STALE,
        "clip_saturation: high side": _STALE,
        "clip_saturation: Lower-bound": _ENTROPY,
        "kl_drift": _STEPS,
        "gradient_pathology: non-finite": frozenset({"non-finite"}),
        "gradient_pathology: exactly zero": _NO_GRADIENT,
        "gradient_pathology: has fallen": _NO_GRADIENT,
        "gradient_pathology: spike": _STEPS,
        "reward_composition: carries": _LOOSE,
        "reward_composition: constants": _CONTRAST,
    },
    RLPROBE: {
        "KL_BLOWUP": _STEPS,
        "ENTROPY_COLLAPSE": _ENTROPY,
        "REWARD_HACK_LENGTH": _LOOSE,
        "FORMAT_GAMING": _LOOSE,
        "CLIP_SATURATION": _STALE,
        "DEGENERATE_GROUPS": _CONTRAST,
        "GRAD_PATHOLOGY": _STEPS | {"non-finite"},
        "TRUNCATION_STARVE": frozenset({"truncation"}),
        "REWARD_STD_DEATH": _CONTRAST,
    },
    RLWATCH: {
        "entropy_collapse": _ENTROPY,
        "kl_explosion": _STEPS,
        "reward_hacking": _LOOSE,
        "loss_nan": frozenset({"non-finite"}),
        "gradient_norm_spike": _STEPS | {"non-finite"},
        "reward_mean_drift": _LOOSE,
    },
}
"""Kind of alarm -> the causes it names; other kinds (a spike of the reward's variance, instability) name none."""
SEVERE = {
    TOOLKIT: ("high", "critical"),
    RLDK: ("stop",),
    RLDOCTOR: ("CRITICAL",),
    RLPROBE: ("critical",),
    RLWATCH: ("critical",),
    OURS: ("finding",),
}
"""What each tool itself calls serious: it would stop the run."""
