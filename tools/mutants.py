"""Do the tests notice? Break one line in a copy of the source at a time, and run the tests that should fail.

python tools/mutants.py [losses agent …] takes some 15 minutes on one core for all 42, or breaks those of some rooms.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Behind each `#`: files under tests/. Below: `file under src/holdfast: text that is there once => what it becomes`.
MUTANTS = """
# losses/test_llds.py losses/test_losses_differential.py
losses/penalties.py: active = excess > 0 => active = excess >= 0
losses/penalties.py: decrease - threshold, 0.0) => decrease + threshold, 0.0)
losses/penalties.py: > -math.log(tau) => > math.log(tau)
losses/policy.py: importance_ratio.clamp(1 - clip_low, => importance_ratio.clamp(1 - clip_high,
losses/policy.py: torch.minimum(loss, -advantage => torch.maximum(loss, -advantage
losses/policy.py: log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO) => log_ratio = log_ratio
# losses/test_advantages.py losses/test_statistics.py
losses/advantages.py: (valid_count - 1).clamp(min=1) => valid_count.clamp(min=1)
losses/advantages.py: (high > low)[group] => (high >= low)[group]
losses/stats.py: (token_count - 1).clamp(min=0) // 100 => token_count // 100
# losses/test_remedies_differential.py
losses/values.py: gamma * lam * next_advantage => gamma * next_advantage
losses/filters.py: (-rise > low) => (rise > low)
losses/sampler.py: weights = weights.clamp(low, high) => weights = weights.clamp(max=high)
# losses/test_influence.py losses/test_centering.py
losses/influence.py: lowest = means[flags].min() => lowest = means[flags].max()
losses/centering.py: advantages * rise.exp() => advantages * (-rise).exp()
# train/test_methods.py train/test_papers.py
methods/operations.py: micro.advantages < 0 => micro.advantages > 0
methods/nthr.py: return (positive & negative) => return (positive | negative)
# methods/test_credit.py methods/test_group_and_token_filters.py
methods/credit.py: (len(t.turns) - 1 - k) * (t.reward => (len(t.turns) - k) * (t.reward
methods/operations.py: self.settings.share * sum(deviations) => sum(deviations)
methods/operations.py: (0.05, 0.95) => (0.5, 0.95)
# train/test_update.py train/test_papers.py
train/objective.py: / max(counts.preserved, 1.0) => / max(counts.policy, 1.0)
train/objective.py: -loss.entropy_coef * reduced => loss.entropy_coef * reduced
# train/test_critic.py train/test_run.py
train/optimizer.py: (completed_steps + 1) / (warmup + 1) => completed_steps / (warmup + 1)
train/critic.py: advantages = whiten(advantages, batch.loss_mask) => pass
# train/test_skipping.py
train/objective.py: tokens = (batch.advantages != 0) => tokens = (batch.advantages > 0)
# train/test_displacement.py train/test_warm_start.py
train/displacement.py: if k == 0: => if k == 1:
train/warm_start.py: peak * (step + 1) / rise => peak * step / rise
# agent/test_rollout_loop.py agent/test_scheduler.py
agent/state.py: len(self.turns) >= self._protocol.max_turns => len(self.turns) > self._protocol.max_turns
agent/state.py: + len(observation.token_ids) >= => + len(observation.token_ids) >
agent/searching.py: if silent == _MAX_SILENT => if silent == -1
# agent/test_trajectory.py agent/test_metrics.py
agent/trajectory.py: start <= i < end for i => start < i < end for i
agent/rewards.py: max(trajectory.searches, 1) => (trajectory.searches + 1)
agent/batch.py: [not t.status.is_failure for t in trajectories] => [True for t in trajectories]
# diagnose/test_rules.py
diagnose/rules/grp001.py: (smooth <= MIXED_NOW) & (highest(smooth) <= MIXED_EVER) => (smooth <= MIXED_NOW)
diagnose/rules/lld003.py: (now > ACCELERATION_TIMES * before) => (now > before)
diagnose/rules/grd001.py: ABOVE_LARGEST_TIMES * delayed( => 0 * delayed(
# diagnose/test_verdict.py
diagnose/log/collapse.py: + EXCLUDED_ERRORS * course.error <= clear_rise(curve) => <= clear_rise(curve)
diagnose/verdict.py: (may_be_flat(curve, course) and explained) => may_be_flat(curve, course)
diagnose/rules/rwd001.py: return AT_ONCE in hit.evidence => return False
# retrieval/test_bm25.py retrieval/test_client.py
retrieval/bm25.py: scores[hits] >= _kth => scores[hits] > _kth
retrieval/client.py: asked=min(answer.retry_after, self._timeout) => asked=0.0
# retrieval/test_dense.py retrieval/test_corpus.py
retrieval/dense.py: bound = reached - _MARGIN => bound = reached + _MARGIN
retrieval/folders.py: if size + piece_size > 2 * WORDS => if size + piece_size >= 2 * WORDS
"""


def mutants(rooms: list[str]) -> Iterator[tuple[str, str, str, list[str]]]:
    """File, old text, new text and tests of each mutant of these rooms, or of all."""
    tests: list[str] = []
    for line in MUTANTS.strip().splitlines():
        if line.startswith("# "):
            tests = [f"tests/{path}" for path in line[2:].split()]
        elif not rooms or line.split("/")[0] in rooms:
            file, _, change = line.partition(": ")
            old, new = change.split(" => ")
            yield file, old, new, tests


def passes(source: Path, tests: list[str]) -> bool:
    """Whether the tests pass with the holdfast in `source`."""
    paths = os.pathsep.join([str(source), str(ROOT / "research" / "src")])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long", *tests]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True)
    return ran.returncode == 0


def main(rooms: list[str]) -> None:
    """Break each line, and count."""
    chosen = list(mutants(rooms))
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        shutil.copytree(ROOT / "src" / "holdfast", source / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
        for name, old, new, tests in chosen:
            file = source / "holdfast" / name
            text = file.read_text()
            if text.count(old) != 1:
                sys.exit(f"{name} has {old!r} {text.count(old)} times, and a mutant needs it once")
            file.write_text(text.replace(old, new))
            seen = not passes(source, tests)
            file.write_text(text)
            noticed += seen
            print(f"{'noticed' if seen else 'MISSED '}  {name}: {old} => {new}", flush=True)
        if not passes(source, sorted({path for *_, tests in chosen for path in tests})):
            sys.exit("these tests fail without a mutant too, so nothing above counts")
    print(f"{noticed} of {len(chosen)} noticed")


if __name__ == "__main__":
    main(sys.argv[1:])
