"""A penalty says of itself whether it is zero on the first optimizer step; the gradient there decides."""

from __future__ import annotations

import pytest
import torch

from holdfast.config import Penalty as PenaltySettings
from holdfast.contradictions import needs_drift
from holdfast.penalties import LLDS, NLL, SAPO, Penalty


@pytest.mark.parametrize(
    ("penalty", "per_token"),
    [
        (LLDS(), 0.0),
        (LLDS(gate="token"), 0.0),
        (SAPO(tau=0.6), 0.0),
        (SAPO(tau=1.0), 0.0),
        (SAPO(tau=1.2), -1.0),  # -log r has gradient -1, and r = 1 < 1.2 counts
        (SAPO(tau=1e6), -1.0),
        (NLL(), -1.0),
    ],
)
def test_it_needs_drift_if_its_gradient_is_zero_where_nothing_has_moved(penalty: Penalty, per_token: float) -> None:
    old = torch.tensor([[-1.0, -2.0]])
    logprobs = old.clone().requires_grad_()
    advantages, mask = torch.tensor([[0.5]]), torch.ones(1, 2, dtype=torch.bool)
    preserved = penalty.preserved(advantages, mask)
    penalty.per_token(logprobs, old, advantages, mask, preserved=preserved).sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[per_token, per_token]]
    assert penalty.needs_drift == (per_token == 0)
    tau = {"tau": penalty.tau} if isinstance(penalty, SAPO) else {}
    assert needs_drift(PenaltySettings.model_validate({"name": penalty.name, **tau})) == penalty.needs_drift
