"""Text to vectors with a sentence encoder: the same prefix, pooling and normalisation for queries and for passages.

A model's settings are read from the files that sentence-transformers saves with it, then from one table here. They are
stored in the index, and queries are encoded with the stored settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.base.errors import ConfigError, ModelError
from holdfast.base.stored import read_json

Pooling = Literal["mean", "cls", "last", "max"]
_POOLING_FILE = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A model, and how it turns texts into vectors."""

    model: str
    """Folder or hub id."""
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    """How the vectors of a text's tokens become one: their mean or maximum, or the first or last token's vector."""
    normalise: bool = True
    """Scale to length 1, so that the inner product is the cosine."""
    max_length: int = 512
    """Tokens of a text; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class _Family:
    part: str
    """Part of a model's name, in lower case. The first row that matches counts."""
    query: str = ""
    passage: str = ""
    pooling: Pooling = "mean"
    instructs: bool = False
    """Needs an instruction before each query, which depends on the task."""


FAMILIES = (
    _Family("e5-mistral", pooling="last", instructs=True),
    _Family("e5-large-instruct", instructs=True),
    _Family("e5", query="query: ", passage="passage: "),
    _Family("bge-m3", pooling="cls"),
    _Family("bge", query="Represent this sentence for searching relevant passages: ", pooling="cls"),
    _Family("gte-qwen", pooling="last", instructs=True),
    _Family("nomic-embed", query="search_query: ", passage="search_document: "),
    _Family("snowflake-arctic-embed", query="Represent this sentence for searching relevant passages: ", pooling="cls"),
    _Family("mxbai-embed", query="Represent this sentence for searching relevant passages: ", pooling="cls"),
)
"""Settings that families of models were trained with. Others (GTE, Contriever, MiniLM) have no prefixes and mean
pooling."""


def spec_of(model: str, *, query_prefix: str | None = None, passage_prefix: str | None = None) -> EncoderSpec:
    """How `model` encodes. A given prefix overrides the model's files, which override the table.

    Raises `ConfigError` for a model whose files name a step that holdfast does not compute, and for a model that needs
    an instruction when none is given.
    """
    name = model.lower()
    family = next((row for row in FAMILIES if row.part in name), _Family(""))
    spec = EncoderSpec(model=model, query_prefix=family.query, passage_prefix=family.passage, pooling=family.pooling)
    spec = _from_files(spec)
    if family.instructs and query_prefix is None and not spec.query_prefix:
        raise ConfigError(
            f"{model} needs an instruction before each query, which depends on the task; give it with --query-prefix"
        )
    return replace(
        spec,
        query_prefix=spec.query_prefix if query_prefix is None else query_prefix,
        passage_prefix=spec.passage_prefix if passage_prefix is None else passage_prefix,
    )


def _from_files(spec: EncoderSpec) -> EncoderSpec:
    modules = _read(spec.model, "modules.json")
    if modules is None:
        return spec
    kinds = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
    unsupported = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unsupported:
        raise ConfigError(
            f"{spec.model} has the steps {', '.join(unsupported)}, which holdfast does not compute; use a model of "
            "Transformer, Pooling and Normalize"
        )
    changes: dict[str, Any] = {"normalise": "Normalize" in kinds}
    pooling = _read(spec.model, f"{kinds['Pooling']}/config.json") if "Pooling" in kinds else None
    if pooling is not None:
        changes["pooling"] = _pooling(pooling, spec.model)
    for file in ("sentence_bert_config.json", "sentence_roberta_config.json"):
        if (length := (_read(spec.model, file) or {}).get("max_seq_length")) is not None:
            changes["max_length"] = int(length)
    prompts = (_read(spec.model, "config_sentence_transformers.json") or {}).get("prompts") or {}
    if prompts.get("query"):  # sentence-transformers writes "" for prompts that are not set
        changes["query_prefix"] = prompts["query"]
    for key in ("document", "passage"):
        if prompts.get(key):
            changes["passage_prefix"] = prompts[key]
    return replace(spec, **changes)


def _pooling(config: dict[str, Any], model: str) -> str:
    modes = [mode for key, mode in _POOLING_FILE.items() if config.get(key)]
    if isinstance(mode := config.get("pooling_mode"), str):
        modes = [{"lasttoken": "last"}.get(mode, mode)]
    if len(modes) != 1 or modes[0] not in _POOLING_FILE.values() or config.get("include_prompt", True) is not True:
        raise ConfigError(
            f"{model} pools in a way that holdfast does not compute ({config}); it computes mean, cls, last or max"
        )
    return str(modes[0])


def _read(model: str, file: str) -> Any:
    """A JSON file of a model; None when it does not exist."""
    from transformers.utils import cached_file

    try:
        path = cached_file(
            model,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        return None if path is None else read_json(Path(path), ModelError, f"get the files of {model} again")
    except (OSError, ValueError) as error:
        raise ModelError(f"{model}: {file} cannot be read ({error})") from error


class Encoder:
    """A loaded model. Vectors are float32; on a GPU the model itself computes in half precision."""

    def __init__(self, spec: EncoderSpec, device: str = "auto", *, batch: int = 64) -> None:
        """`device`: auto, cpu or cuda. `batch`: texts at once. Raises `ModelError`, `ConfigError`."""
        from transformers import AutoModel, AutoTokenizer

        self.spec, self.device, self._batch = spec, device_of(device), batch
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(spec.model, trust_remote_code=False)
            model = AutoModel.from_pretrained(
                spec.model,
                dtype=torch.float16 if self.device.type == "cuda" else torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"{spec.model} cannot be loaded as an encoder: {error}") from error
        self._model = model.to(self.device).eval()
        self.dimensions = int(self._model.config.hidden_size)
        longest = getattr(self._model.config, "max_position_embeddings", None) or spec.max_length
        self._length = min(spec.max_length, longest)

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors [texts, dimensions] of queries."""
        return self._encode([self.spec.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors [texts, dimensions] of passages."""
        return self._encode([self.spec.passage_prefix + text for text in texts])

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding
        for first in range(0, len(texts), self._batch):
            rows = by_length[first : first + self._batch]
            inputs = self._tokenizer(
                [texts[i] for i in rows],
                padding=True,
                truncation=True,
                max_length=self._length,
                return_tensors="pt",
            ).to(self.device)
            states = self._model(**inputs).last_hidden_state.float()
            pooled = pool(states, inputs["attention_mask"], self.spec.pooling)
            if self.spec.normalise:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            vectors[rows] = pooled.cpu().numpy()
        return vectors


def device_of(name: str) -> torch.device:
    """The device for auto, cpu or cuda. Raises `ConfigError` for a device that does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name}: give auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda, but torch finds no GPU here; give cpu, or install a torch for your GPU")
    return torch.device(name)


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector per text [batch, width], from states [batch, length, width] and a mask [batch, length] of the texts'
    tokens, with padding on either side."""
    tokens = mask.bool().unsqueeze(-1)
    if pooling == "mean":
        return states.masked_fill(~tokens, 0.0).sum(1) / tokens.sum(1)
    if pooling == "max":
        return states.masked_fill(~tokens, -torch.inf).amax(1)
    positions = torch.arange(mask.shape[1], device=mask.device)
    if pooling == "cls":
        first = torch.where(mask.bool(), positions, mask.shape[1]).amin(1)
        return states[torch.arange(len(states)), first]
    last = torch.where(mask.bool(), positions, -1).amax(1)
    return states[torch.arange(len(states)), last]
