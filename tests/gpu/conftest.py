"""Every test of this folder runs on the CPU, so that it cannot rot, and on a GPU where there is one (`-m gpu`).

What a device computes is compared with float64 on the CPU, or with what the CPU makes of the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

TEXTS = ["<search> lake </search>\n\n", "<answer> town </answer>\n", "<think> What is the lake? </think>\n"] * 20
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(scope="session")
def tokenizer(learn_tokenizer: Callable[..., Any]) -> Any:
    return learn_tokenizer(TEXTS, 300, ["<|pad|>", "<|end|>"], pad_token="<|pad|>", eos_token="<|end|>")


@pytest.fixture
def model(random_model: Callable[..., Any]) -> Any:
    """Two layers with grouped heads; random weights, spread out so that log-probs differ by nats."""
    sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 1024}
    return random_model(**sizes, initializer_range=0.1, pad_token_id=0, eos_token_id=None)
