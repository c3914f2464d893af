"""What NTHR refuses in TRL. test_trl_equals_local.py trains with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

trl = pytest.importorskip("trl")

from holdfast.adapters.trl import LLDS, with_penalties  # noqa: E402
from holdfast.base.errors import ConfigError, ModelError  # noqa: E402


def test_what_cannot_work_is_refused(make_trainer: Any) -> None:
    Trainer = with_penalties(trl.GRPOTrainer, LLDS(), nthr=True)
    with pytest.raises(ConfigError, match=r"nthr=True with mask_logprobs=True: .* Leave one out"):
        with_penalties(trl.GRPOTrainer, nthr=True, mask_logprobs=True)
    assert Trainer.__name__ == "GRPOTrainerWithLLDSAndNTHR"
    with pytest.raises(ModelError, match=r"with_penalties\(nthr=True\): the output layer of this model is frozen"):
        frozen = copy.deepcopy(make_trainer(trl.GRPOTrainer).model)
        frozen.get_output_embeddings().weight.requires_grad_(False)
        make_trainer(Trainer, model=frozen)
