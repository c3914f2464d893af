"""What the losses log: the series, whole in every micro-batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import Tensor

pytest.importorskip("verl")

from verl.utils.metric import AggregationType, Metric, reduce_metrics

from holdfast.adapters.verl import LOSSES
from holdfast.base.glossary import METRICS

from .conftest import GLOBAL, Batch, MakeConfig, call, naive_penalty


def test_the_series_say_what_happened(actor_config: MakeConfig, batch: Batch) -> None:
    config = actor_config(actor={"global_batch_info": GLOBAL})
    metrics = call("holdfast_llds", config, batch)[2]
    old, new, mask = batch["old_log_prob"], batch["log_prob"], batch["response_mask"]

    def mean(values: Tensor, rows: list[int]) -> float:
        return sum(float(values[i][mask[i]].mean()) for i in rows) / len(rows)

    kept = mask & (batch["advantages"] >= 0)  # rows 0, 1 and 3
    drop = (old - new).clamp(min=0)
    expected = {
        "likelihood/positive": mean(old, [0, 3]),
        "likelihood/negative": mean(old, [2]),
        "drift/positive": mean(new - old, [0, 3]),
        "drift/negative": mean(new - old, [2]),
        "penalty/preserved_fraction": float(kept.sum() / mask.sum()),
        "penalty/mean_decrease": float(drop[kept].mean()),
        "penalty/active_fraction": float((naive_penalty("holdfast_llds", batch)[0] > 0).sum() / kept.sum()),
        "ratio/mean": float((new - old).exp()[mask].mean()),
        "ratio/max": float((new - old).exp()[mask].max()),
        # own denominator: 0.2 · penalty / tokens
        "loss/penalty": 0.2 * float(naive_penalty("holdfast_llds", batch)[0].sum() / mask.sum()),
    }
    for name, value in expected.items():
        assert metrics[f"holdfast/{name}"] == pytest.approx(value), name
    assert {name.removeprefix("holdfast/") for name in metrics if name.startswith("holdfast/")} <= set(METRICS)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "holdfast_custom"])
def test_every_micro_batch_has_the_same_finite_series(actor_config: MakeConfig, batch: Batch, name: str) -> None:
    """As verl puts them together: per micro-batch a Metric of kind MEAN, over ranks, over mini-batches."""
    config = actor_config(loss_mode=name, actor={"global_batch_info": GLOBAL})
    rows = [[0, 1], [2], [4], [3, 2]]  # only negative ones, only an empty one
    numbers = [call(name, config, {k: v[i] for k, v in batch.items()})[2] for i in rows]
    assert len({tuple(sorted(n)) for n in numbers}) == 1
    assert all(math.isfinite(value) for n in numbers for value in n.values() if not isinstance(value, Tensor))
    ranks: list[dict[str, Any]] = []
    for rank in (numbers[:2], numbers[2:]):
        merged = {key: Metric(AggregationType.MEAN) for key in rank[0]}
        for one in rank:
            for key, metric in Metric.from_dict(one, AggregationType.MEAN).items():
                merged[key].append(metric)
        ranks.append(merged)
    reduced = reduce_metrics({key: [Metric.aggregate_dp([rank[key] for rank in ranks])] for key in numbers[0]})
    # two micro-batches without a positive rollout repeat what was seen last
    seen = [n["holdfast/likelihood/positive"] for n in numbers]
    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert reduced["holdfast/likelihood/positive"] == pytest.approx(sum(seen) / 4)
