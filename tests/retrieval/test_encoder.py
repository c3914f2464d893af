"""What a model's files and name say, and vectors against a plain forward."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from holdfast.base.errors import ConfigError, ModelError
from holdfast.retrieval.encoder import Encoder, EncoderSpec, pool, spec_of

TEXTS = ["w1 w2", "w3", "w4 w5 w6 w7 " * 20, "", "w1 w2"]


def changed(files: dict[str, Any], name: str, content: Any) -> dict[str, Any]:
    return {**copy.deepcopy(files), name: content}


@pytest.mark.parametrize(
    ("name", "query", "passage", "pooling"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: ", "mean"),
        ("/models/E5-small", "query: ", "passage: ", "mean"),
        ("intfloat/multilingual-e5-large", "query: ", "passage: ", "mean"),
        ("BAAI/bge-base-en-v1.5", "Represent this sentence for searching relevant passages: ", "", "cls"),
        ("BAAI/bge-m3", "", "", "cls"),
        ("thenlper/gte-base", "", "", "mean"),
        ("facebook/contriever", "", "", "mean"),
    ],
)
def test_the_table(monkeypatch: pytest.MonkeyPatch, name: str, query: str, passage: str, pooling: str) -> None:
    monkeypatch.setattr("holdfast.retrieval.encoder._read", lambda model, file: None)
    spec = spec_of(name)
    assert (spec.query_prefix, spec.passage_prefix, spec.pooling) == (query, passage, pooling)
    given = spec_of(name, query_prefix="q ", passage_prefix="")
    assert (given.query_prefix, given.passage_prefix) == ("q ", "")


def test_an_instruction_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.retrieval.encoder._read", lambda model, file: None)
    with pytest.raises(ConfigError, match=r"needs an instruction before each query.*--query-prefix"):
        spec_of("intfloat/e5-mistral-7b-instruct")
    assert spec_of("intfloat/e5-mistral-7b-instruct", query_prefix="Instruct: find\nQuery: ").pooling == "last"


def test_the_files_beside_a_model_beat_the_table(encoder: Any, files: dict[str, Any]) -> None:
    spec = spec_of(str(encoder("a-bge-model", files)))
    assert (spec.query_prefix, spec.passage_prefix, spec.pooling, spec.normalise, spec.max_length) == (
        "query: ",
        "passage: ",
        "mean",
        True,
        24,
    )
    without = changed(files, "modules.json", files["modules.json"][:2])
    without["1_Pooling/config.json"] = {"pooling_mode": "lasttoken", "include_prompt": True}
    spec = spec_of(str(encoder("other", without)))
    assert (spec.pooling, spec.normalise) == ("last", False)
    assert spec_of(str(encoder("plain", {}))) == EncoderSpec(model=str(encoder("plain", {})))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}], "has the steps Dense"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "pools in a way that holdfast does not"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "pools in"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False}, "pools in a way"),
    ],
)
def test_what_is_not_computed_is_refused(
    encoder: Any, files: dict[str, Any], name: str, content: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(str(encoder("strange", changed(files, name, content))))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max"])
@pytest.mark.parametrize("normalise", [True, False])
def test_vectors_are_those_of_a_plain_forward(encoder: Any, pooling: Any, normalise: bool) -> None:
    folder = encoder("plain", {})
    spec = EncoderSpec(model=str(folder), query_prefix="query: ", pooling=pooling, normalise=normalise, max_length=24)
    found = Encoder(spec, "cpu", batch=2).queries(TEXTS)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, found, strict=True):
        inputs = tokenizer("query: " + text, truncation=True, max_length=24, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state[0]
        expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1], "max": states.amax(0)}[pooling]
        expected = torch.nn.functional.normalize(expected, dim=0) if normalise else expected
        assert vector == pytest.approx(expected.numpy(), abs=1e-5)
    # The prefix counts: passages of the same text have other vectors.
    assert np.abs(Encoder(spec, "cpu").passages(TEXTS) - found).max() > 1e-3


def test_padding_on_the_left_pools_the_same() -> None:
    states = torch.randn(2, 5, 3)
    right = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    shifted = torch.stack([states[0].roll(2, 0), states[1]])
    left = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for pooling in ("mean", "cls", "last", "max"):
        assert torch.allclose(pool(states, right, pooling), pool(shifted, left, pooling))


def test_a_model_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded as an encoder"):
        Encoder(EncoderSpec(model=str(tmp_path)), "cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_a_device_that_is_not_there(encoder: Any, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"--device {device}"):
        Encoder(EncoderSpec(model=str(encoder())), device)
    assert Encoder(EncoderSpec(model=str(encoder())), "auto").device.type == "cpu"
