"""Models that are refused: folders that are not whole, names without network, other kinds, adapters of another rank."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from holdfast.base.errors import CheckpointError, ConfigError, ModelError
from holdfast.model.language_model import load_model, take_weights
from holdfast.recipe import Config, Model
from holdfast.train.run import train
from holdfast.train.saving import refuse_other_shape
from holdfast.train.start import warm_start_only

CPU = torch.device("cpu")


def broken(home: Path, folder: Path, change: Callable[[Path], Any]) -> Path:
    shutil.copytree(home / "raw", folder)
    change(folder)
    return folder


def without_a_layer(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def remove(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (remove("tokenizer.json", "tokenizer_config.json"), "cannot encode the word 'search'.*tokenizer.json"),
        (remove("model.safetensors"), "no causal language model can be loaded from this folder"),
        (remove("config.json"), "is a folder without config.json"),
        (cut, "no causal language model can be loaded"),
        (without_a_layer, r"lack 1 of the weights of a Qwen2ForCausalLM, such as model\.layers\.0\.mlp\.down_proj"),
        (lambda folder: (folder / "config.json").write_text("{"), "no tokenizer can be loaded|no causal language"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "no tokenizer can be loaded"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    home: Path, tmp_path: Path, change: Callable[[Path], Any], problem: str
) -> None:
    folder = broken(home, tmp_path / "broken", change)
    with pytest.raises(ModelError, match=problem) as caught:
        load_model(Model(path=str(folder)), folder, CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["Qwen/Qwen2.5-0.5B", "no such thing", "/no/such/folder"])
def test_a_hub_id_without_network_is_refused(own: Callable[..., Config], tmp_path: Path, path: str) -> None:
    with pytest.raises(
        ModelError, match=r"is not a folder here.* (not in the hub's cache|could be fetched from the hub|be a hub id)"
    ):
        train(own("raw", {"model.path": path}), tmp_path / "run")


def test_a_model_that_is_no_causal_one_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="Give a causal language model with all its weights"):
        load_model(Model(path=str(tmp_path)), tmp_path, CPU)


def test_adapters_of_another_rank_are_refused(
    own: Callable[..., Config], lesson: dict[str, Any], tmp_path: Path
) -> None:
    short = {"model.lora_rank": 2, "warm_start": lesson["warm_start"] | {"steps": 1}}
    made = warm_start_only(own("raw", short), tmp_path / "run")
    assert load_model(Model(path=str(made)), made, CPU).model.peft_config["default"].r == 2
    refuse_other_shape(Config(model=Model(path="x", lora_rank=2)), made)
    refuse_other_shape(Config(model=Model(path=str(made))), made)
    with pytest.raises(CheckpointError, match=r"model\.lora_rank = 0, but .* was trained with 2"):
        refuse_other_shape(Config(model=Model(path="x")), made)
    with pytest.raises(ConfigError, match=r"model\.lora_rank = 3, but the adapters .* have rank 2"):
        load_model(Model(path=str(made), lora_rank=3), made, CPU)
    settings = json.loads((made / "adapter_config.json").read_text())
    (made / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "/gone"}))
    with pytest.raises(ModelError, match="base_model_name_or_path = '/gone' is not a folder here"):
        load_model(Model(path=str(made)), made, CPU)
    (made / "adapter_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"adapter_config\.json cannot be read"):
        load_model(Model(path=str(made)), made, CPU)


def test_weights_of_another_model_are_refused(home: Path, tmp_path: Path, make_model: Callable[..., Any]) -> None:
    shutil.copytree(home / "raw", tmp_path / "wide")
    make_model(hidden_size=64).save_pretrained(tmp_path / "wide")
    config = Model(path=str(home / "raw"))
    with pytest.raises(CheckpointError, match=r"whose hidden_size = 32, but .*wide was trained with 64"):
        refuse_other_shape(Config(model=config), tmp_path / "wide")
    with pytest.raises(CheckpointError, match=r"contains the weights of another model .*start a new run"):
        take_weights(load_model(config, home / "raw", CPU), config, tmp_path / "wide")
