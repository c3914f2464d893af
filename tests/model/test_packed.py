"""Rows that begin alike, passed as one sequence: the log-probs and gradients of the rows, and less work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes import packed
from holdfast.model.passes.logprobs import hidden_states, masked_logprobs, token_logprobs
from holdfast.model.passes.packed import pack, pack_where_worth, packable
from holdfast.recipe import Loss, Sampling, Train
from holdfast.train.learner import Learner
from holdfast.train.objective import Objective

VOCABULARY = 60


def a_model(kind: str = "llama", hidden: int = 256, attention: str = "sdpa") -> Any:
    import transformers

    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    config = getattr(transformers, f"{names[kind]}Config")(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{names[kind]}ForCausalLM")(config).double()


def a_batch() -> tuple[Tensor, Tensor]:
    """Two groups. Rows of a group share the prompt, some the first turn too; the last row samples nothing."""
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()

    prompts, turn = [tokens(12), tokens(9)], tokens(14)
    rows = [
        (prompts[0], turn + tokens(6)),
        (prompts[0], turn + tokens(3)),
        (prompts[0], tokens(11)),
        (prompts[1], tokens(8)),
        (prompts[1], tokens(1)),
        (prompts[1], []),
    ]
    width = max(len(prompt) + len(rest) for prompt, rest in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (prompt, rest) in enumerate(rows):
        ids[i, : len(prompt) + len(rest)] = torch.tensor(prompt + rest)
        mask[i, len(prompt) : len(prompt) + len(rest)] = True
    mask[0, 16:20] = False  # an observation
    return ids, mask


def results(model: Any) -> list[Tensor]:
    """Log-probs and entropies, then the gradient of each trained weight."""
    model.zero_grad()
    found, entropy, _ = token_logprobs(model, *a_batch(), entropy=True)
    assert entropy is not None
    (found.sum() + entropy.square().sum()).backward()
    return [found.detach(), entropy.detach(), *(p.grad.clone() for p in model.parameters() if p.requires_grad)]


def as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "worth_sharing", lambda model: False)


def assert_equal_up_to_rounding(one: Tensor, other: Tensor) -> None:
    """Of float32: logits and norms are computed in it, in a float64 model too."""
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


@contextmanager
def each_prefix_once(model: Any) -> Iterator[None]:
    """The first layer sees every prefix of the batch once, and nothing behind the last prediction of a row."""
    seen: list[int] = []
    mlp = packed.decoder_layers(model)[0].mlp
    with mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1].numel())):
        yield
    ids, mask = a_batch()
    ends = [int(row.nonzero()[-1]) if row.any() else 0 for row in mask]
    prefixes = {tuple(row[: k + 1].tolist()) for row, end in zip(ids, ends, strict=True) for k in range(end)}
    assert seen == [len(prefixes)]


def assert_packing_changes_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packable(model)
    with each_prefix_once(model):
        together = results(model)
    as_rows(monkeypatch)
    for one, other in zip(together, results(model), strict=True):
        assert_equal_up_to_rounding(one, other)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_log_probs_and_gradients_are_those_of_the_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_packing_changes_nothing(a_model(kind), monkeypatch)


def test_with_adapters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        a_model(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    assert_packing_changes_nothing(model.double(), monkeypatch)


def test_the_states_that_predict_come_in_the_order_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = a_model(), a_batch()
    with hidden_states(model) as together, torch.no_grad():
        token_logprobs(model, *batch)
    as_rows(monkeypatch)
    with hidden_states(model) as apart, torch.no_grad():
        token_logprobs(model, *batch)
    assert_equal_up_to_rounding(together[0], apart[0])


def test_log_probs_over_the_samplers_mask_are_bit_for_bit_those_that_made_it() -> None:
    model, batch = a_model(), a_batch()
    made, mask = masked_logprobs(model, *batch, temperature=1.0, top_p=0.9, top_k=0)
    again = token_logprobs(model, *batch, sampling_mask=mask).logprobs
    assert torch.equal(made, again.detach())


def test_the_update_starts_from_the_old_log_probs_bit_for_bit() -> None:
    """The plan puts rows that begin alike into a pass of their own, and the old pass has the shapes of the update."""
    ids, mask = a_batch()
    rows = len(ids)
    batch = TokenBatch(
        token_ids=ids,
        lengths=mask.int().argmax(-1) + mask.sum(-1) + 1,
        action_ids=mask.long(),
        answer_mask=mask & False,
        loss_mask=mask,
        rollout_logprobs=torch.zeros(ids.shape),
        advantages=torch.tensor([1.0, -1.0, 0.5, -0.5, 1.0, 0.0])[:, None],
        rewards=torch.zeros(rows),
        correct=torch.tensor([True, False, True, False, True, False]),
        group_ids=torch.arange(rows) // 3,
        valid=torch.ones(rows, dtype=torch.bool),
    )
    language_model = LanguageModel(model=a_model().float(), tokenizer=None)
    learner = Learner(
        language_model, Objective(Loss(kl_coef=0.0)), Train(micro_batch_tokens=70, lr=1e-3), Sampling(), None
    )
    plan = learner.plan_whole(batch)
    groups = [row // 3 for part in plan[0] for row in part]
    assert len(plan[0]) == 2 and groups in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    minis, _, _ = learner.old_pass(batch, plan)
    metrics = learner.step(minis, mean_searches=1.0)
    assert metrics["penalty/noise_floor"] == 0.0
    assert metrics["grad/norm"] > 0


def test_gradients_are_the_same_bits_again_with_several_threads() -> None:
    """Rows of a group read the same token of their prompt, so its gradient is a sum."""
    torch.manual_seed(0)
    prompt, rows = torch.randint(0, VOCABULARY, (1, 30)), 24
    ids = torch.cat([prompt.expand(rows, -1), torch.randint(0, VOCABULARY, (rows, 10))], dim=1)
    mask = (torch.arange(40) >= 30).expand(rows, -1)
    model, threads = a_model("qwen2", hidden=512).float(), torch.get_num_threads()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        token_logprobs(model, ids, mask)[0].square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    torch.set_num_threads(2)
    try:
        first = gradients()
        assert all(torch.equal(a, b) for _ in range(5) for a, b in zip(first, gradients(), strict=True))
    finally:
        torch.set_num_threads(threads)


def test_rows_beyond_a_window_of_attention_are_passed_as_rows() -> None:
    model = a_model("qwen2")
    model.config.sliding_window, model.config.layer_types = 8, None
    ids, mask = a_batch()
    assert pack_where_worth(model, ids, mask) is None


def test_under_autocast_within_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = a_model().float(), a_batch()
    with torch.no_grad():
        with each_prefix_once(model):  # the numbers need not differ: on some CPUs they are equal to the last bit
            together = token_logprobs(model, *batch, autocast_dtype=torch.bfloat16).logprobs
        as_rows(monkeypatch)
        apart = token_logprobs(model, *batch, autocast_dtype=torch.bfloat16).logprobs
    torch.testing.assert_close(together, apart, rtol=0, atol=0.03)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"hidden": 64}, id="tiny"),
        pytest.param({"attention": "eager"}, id="other-attention"),
    ],
)
def test_models_that_are_passed_as_rows(model: dict[str, Any]) -> None:
    assert not packable(a_model(**model))


def test_a_model_that_computes_its_layers_again_is_passed_as_rows() -> None:
    model = a_model()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()
    model.train()
    assert not packable(model)


def test_the_attention_is_the_models_own_again_afterwards() -> None:
    model = a_model()
    configs = [layer.self_attn.config for layer in packed.decoder_layers(model)]
    results(model)
    assert all(layer.self_attn.config is config for layer, config in zip(model.model.layers, configs, strict=True))


def test_a_row_may_be_the_beginning_of_another() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0], [1, 2, 3, 4]])
    found = pack(rows, [4, 2, 4])
    assert found.token_ids.tolist() == [[1, 2, 3, 4]]
    assert found.places.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0], [0, 1, 2, 3]]
    found = pack(torch.tensor([[1, 2, 0, 0], [1, 2, 0, 4]]), [2, 4])  # padding is no token of the shorter row
    assert found.token_ids.tolist() == [[1, 2, 0, 4]] and found.places.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
