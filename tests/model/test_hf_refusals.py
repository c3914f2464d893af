"""Requests, settings and weights that the transformers policy refuses."""

from __future__ import annotations

import pytest
import torch

from holdfast.base.errors import ConfigError, ModelError
from holdfast.model.hf import HFPolicy
from holdfast.model.policy import Request, generate

from .conftest import request


def test_one_request_per_id(make_model, tokenizer):
    policy = HFPolicy(make_model(), tokenizer)
    policy.submit([request("a", [5], 2)])
    with pytest.raises(ValueError, match="request a is not finished"):
        policy.submit([request("a", [5], 2)])


def test_requests_beyond_the_models_positions_are_refused(make_model, tokenizer):
    policy = HFPolicy(make_model(max_position_embeddings=16), tokenizer)
    assert len(generate(policy, [request("a", range(10, 20), 7)])[0].token_ids) == 7, "the 17th token is never fed"
    with pytest.raises(ModelError, match=r"may reach 17 tokens.*max_position_embeddings .*is 16"):
        policy.submit([request("b", range(10, 20), 8)])


def test_weights_that_diverged(make_model, tokenizer):
    model = make_model()
    policy = HFPolicy(model, tokenizer)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match=r"not finite.*lower the learning rate"):
        generate(policy, [request("a", [5], 2)])


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}])
def test_sampling_settings_out_of_range(make_model, tokenizer, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        HFPolicy(make_model(), tokenizer, **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"token_ids": ()}, "empty context"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"stop": ("",)}, "empty stop"),
    ],
)
def test_requests_that_cannot_work(settings, match):
    with pytest.raises(ValueError, match=match):
        Request(**({"id": "x", "token_ids": (1,), "max_new_tokens": 1, "stop": (), "seed": 0} | settings))
