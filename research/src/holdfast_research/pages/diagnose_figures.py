"""The plots of docs/reference/codes.md, one for each code, from a recorded run that shows it.

    python -m holdfast_research.pages.diagnose_figures

A dashed line marks the step of the finding, a dotted one where the reward had lost half of its peak.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log
from holdfast_research.paths import REPOSITORY
from holdfast_research.recordings.library import load, read_manifest

FIGURES = REPOSITORY / "docs" / "figures"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#555555"  # distinct to any colour vision

SHOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    # code: the recording, and the series below the reward
    "GRD002": ("rambler-overflow-s1", ("grad/skipped_steps",)),
    "MSK001": ("rambler-leak-s1", ("loss/tokens", "rollout/length")),
    "SMP001": ("rambler-hot-s1", ("sampler/logprob_gap",)),
    "PEN001": ("echo-inert-s1", ("penalty/active_fraction",)),
    "RET001": ("rambler-dead-s1", ("retrieval/error_fraction",)),
    "RET002": ("rambler-empty-s1", ("retrieval/empty_fraction",)),
    "GRP001": ("echo-no-answers-s1", ("rollout/mixed_group_fraction",)),
    "STP001": ("rambler-giant-steps-s1", ("displacement/correct",)),
    "LLD002": ("collapse-grpo-80-s3", ("displacement/correct", "likelihood/correct")),
    "LLD003": ("collapse-grpo-80-s3", ("displacement/correct", "likelihood/correct")),
    "LLD004": ("collapse-grpo-80-s2", ("likelihood/correct/action_1", "likelihood/correct/action_2")),
    "ISD001": ("collapse-grpo-80-s1", ("ratio/log_product",)),
    "ENT001": ("collapse-trl-grpo-s1", ("entropy/mean", "rollout/length")),
    "ENT002": ("scout-trl-dead-s1", ("entropy/mean",)),
    "TRN001": ("rambler-long-s1", ("rollout/truncated_fraction",)),
    "RWD002": ("curt-mute-s1", ("reward/em", "rollout/answered_fraction")),
    "RWD001": ("collapse-grpo-80-s3", ()),
}


def draw(log: Log, names: tuple[str, ...], path: Path, code: str | None = None) -> None:
    """One panel for the reward and one for each series, above each other. Marks a finding: the first, or a code's."""
    diagnosis = diagnose(log)
    step = next((finding.certain for finding in diagnosis.findings if code in (None, finding.code)), None)
    panels = ("reward/mean", *names)
    figure, axes = plt.subplots(len(panels), 1, sharex=True, figsize=(6.4, 0.5 + 1.05 * len(panels)), squeeze=False)
    for axis, name in zip(axes[:, 0], panels, strict=True):
        series = log.series[name]
        keep = np.isfinite(series.values)
        axis.plot(
            series.steps[keep], series.values[keep], color=BLUE if name == "reward/mean" else ORANGE, linewidth=1.4
        )
        if step is not None:
            axis.axvline(step, color=GREY, linestyle="--", linewidth=1)
        if diagnosis.course.half is not None:
            axis.axvline(diagnosis.course.half.step, color=GREY, linestyle=":", linewidth=1)
        axis.set_title(name, loc="left", fontsize=8, pad=2)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel(f"step of {log.name}", fontsize=8)
    figure.tight_layout(pad=0.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def style() -> None:
    """The same file for the same numbers: text as text, and no random names."""
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "holdfast", "font.family": "sans-serif"}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", nargs="*", default=sorted(SHOWN), help="only these")
    codes = parser.parse_args().codes
    style()
    recordings = {recording.name: recording for recording in read_manifest()}
    for code in codes:
        name, names = SHOWN[code]
        draw(load(recordings[name]), names, FIGURES / f"{code.lower()}.svg", code)


if __name__ == "__main__":
    main()
