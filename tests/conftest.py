"""A byte-level tokenizer, models of random weights, a `/retrieve` server on loopback, and a tiny encoder."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.retrieval.types import Retriever

from .loopback import Asked, Reply, serving
from .tool_templates import speaker

__all__ = ["speaker"]

LLD_CLASS = """
import torch
from holdfast.losses import preserved_mask
from holdfast.penalties import Penalty

class Lld(Penalty):
    coef: float = 0.2
    least: float = 0.0

    def preserved(self, advantages, loss_mask, correct=None):
        return preserved_mask(advantages, loss_mask, rule="nonnegative")

    def per_token(self, logprobs, old_logprobs, advantages, loss_mask, *, preserved, **_):
        decrease = torch.where(loss_mask, old_logprobs.detach() - logprobs, 0.0)
        return torch.where(preserved & (decrease.detach() > self.least), decrease, 0.0)
"""


@pytest.fixture(scope="session")
def lld_class() -> str:
    """Source of a user's penalty class `Lld`, equal to `LLDS(gate="token", threshold=least)`."""
    return LLD_CLASS


# As in Qwen's tokenizers a closing bracket takes the newlines after it, so tags end in the middle of a token.


SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.fixture(scope="session")
def learn_tokenizer() -> Callable[..., Any]:
    """learn_tokenizer(texts, size, special_tokens, eos_token=…): a byte-level BPE tokenizer, learned in memory."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def learn(texts: list[str], size: int, special_tokens: list[str], **names: str) -> PreTrainedTokenizerFast:
        tokenizer = Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"), byte_level]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=special_tokens,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)

    return learn


@pytest.fixture(scope="session")
def random_model() -> Callable[..., Any]:
    """random_model("Qwen2", tokenizer, seed=0, **config): two layers; with the vocabulary and ends of a tokenizer."""
    import torch
    import transformers

    def make(
        family: str = "Qwen2", tokenizer: Any = None, *, seed: int = 0, attention: str = "sdpa", **settings: Any
    ) -> Any:
        options = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        options |= {"num_key_value_heads": 2, "bos_token_id": None}
        if tokenizer is not None:
            options |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
            options |= {"eos_token_id": tokenizer.eos_token_id}
        config = getattr(transformers, f"{family}Config")(**(options | settings))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()

    return make


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `grid(n)` every n-th case stays, and the others are `long`."""
    place: dict[str, int] = {}
    for item in items:
        if (grid := item.get_closest_marker("grid")) is not None:
            test = item.nodeid.partition("[")[0]
            place[test] = place.get(test, -1) + 1
            if place[test] % grid.args[0]:
                item.add_marker("long")


@pytest.fixture(autouse=True)
def heard_signals() -> Iterator[None]:
    """A command that was stopped ignores signals until its process ends; here the process goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def code_of_others() -> Iterator[None]:
    """Code in a temporary folder that a test imported is gone after it: the next may have other code of that name."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(tempfile.gettempdir()):
            del sys.modules[name]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session that all its worker processes share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@dataclass
class RetrieveServer:
    """Answers from a retriever, or with what stands in `replies`, first to last, before that."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    replies: list[tuple[int, bytes]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every answer."""
    authorizations: list[str | None] = field(default_factory=list)
    """What each request had as `Authorization`."""
    hold: threading.Event | None = None
    """When set to an event, requests wait for it."""


def answer(retriever: Retriever, request: dict[str, Any]) -> tuple[int, Any]:
    """As Search-R1's server writes it."""
    result = [
        [{"document": {"id": h.document.id, "contents": h.document.contents}, "score": h.score} for h in hits]
        for hits in retriever.search(request["queries"], request["topk"])
    ]
    return 200, {"result": result}


@pytest.fixture
def retrieve_server() -> Iterator[Callable[[Retriever | None], RetrieveServer]]:
    """retrieve_server(retriever): a running server; it stops with the test."""
    with ExitStack() as running:

        def start(retriever: Retriever | None = None) -> RetrieveServer:
            def respond(asked: Asked) -> Reply:
                state.requests.append({"path": asked.path, **asked.body})
                state.authorizations.append(asked.headers["Authorization"])
                if state.hold is not None:
                    state.hold.wait(60)
                if not state.replies:
                    assert retriever is not None, "the server has no retriever and no reply left"
                return *(state.replies.pop(0) if state.replies else answer(retriever, asked.body)), state.headers

            state = RetrieveServer(running.enter_context(serving(respond)))
            return state

        yield start


SENTENCE_FILES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": "passage: "}},
}
"""What sentence-transformers keeps beside a model."""


def save_encoder(folder: Path, *, seed: int = 0, width: int = 32, files: dict[str, Any] | None = None) -> Path:
    """A BERT of two layers and random weights over letters and a few words, and the given JSON files beside it."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", ":", *[f"w{i}" for i in range(200)]]
    pieces = [chr(c) for c in range(33, 127)]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*words, *pieces, *[f"##{p}" for p in pieces]]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.BertProcessing(ends[1], ends[0])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


@pytest.fixture
def files() -> dict[str, Any]:
    """The JSON files of `SENTENCE_FILES`."""
    return SENTENCE_FILES


@pytest.fixture
def encoder(tmp_path: Path) -> Callable[..., Path]:
    """encoder(name, files): the folder of a tiny encoder; with `seed`, of another one."""

    def make(name: str = "encoder", files: dict[str, Any] = SENTENCE_FILES, *, seed: int = 0, width: int = 32) -> Path:
        folder = tmp_path / name
        return folder if folder.is_dir() else save_encoder(folder, seed=seed, width=width, files=files)

    return make
