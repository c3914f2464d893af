"""Which model families the policy serves exactly, and which it refuses with a sentence."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import transformers

from holdfast.base.errors import ConfigError, ModelError
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Request, generate
from holdfast.model.support import rows_that_fit

from .conftest import request
from .test_hf_exactness import play, worst_gap

SETTINGS = {
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Llama": {},
    "Gemma": {"head_dim": 16},
    "Mistral": {"sliding_window": 256},  # in which no episode of these tests sees less
    "Olmo2": {},
    "GPTNeoX": {},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
}


@pytest.mark.parametrize("family", SETTINGS)
def test_families(family, make_model, tokenizer, reference):
    model = make_model(family, **SETTINGS[family])
    assert worst_gap(play(HFPolicy(model, tokenizer), rows=5, turns=2, most=8), model, reference) < 1e-4


@pytest.mark.parametrize(
    ("family", "settings", "match"),
    [
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding_attention"),
        ("Gemma2", {"head_dim": 16, "attention": "eager"}, "sliding_attention"),
        ("Qwen2", {"attention": "flash_attention_2"}, r"attn_implementation='flash_attention_2'.*'sdpa'"),
    ],
)
def test_refused_by_config(family, settings, match, make_model, tokenizer):
    flash = settings.get("attention") == "flash_attention_2"
    model = make_model(family, **(settings | ({"attention": "sdpa"} if flash else {})))
    if flash:  # the package is not installed here, so the setting is put in afterwards
        model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ModelError, match=match):
        HFPolicy(model, tokenizer)


def test_rows_that_fit_into_memory(make_model):
    model = make_model("Qwen2", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=32)
    a_token = 2 * 3 * 2 * 8 * 4  # keys and values, layers, heads, width of a head, float32
    assert rows_that_fit(model, 100, None, 2 * 7 * 100 * a_token) == 7
    assert rows_that_fit(model, 100, torch.bfloat16, 2 * 7 * 100 * a_token) == 14
    assert rows_that_fit(model, 100, None, 5) == 1


def test_recurrent_state_is_refused(tokenizer):
    config = transformers.MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match="recurrent state"):
        HFPolicy(transformers.MambaForCausalLM(config), tokenizer)


def test_encoder_decoder_is_refused(tokenizer):
    config = transformers.T5Config(vocab_size=300, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4)
    with pytest.raises(ModelError, match="encoder-decoder"):
        HFPolicy(transformers.T5ForConditionalGeneration(config), tokenizer)


def test_a_model_that_takes_no_positions_from_us_is_found_out(make_model, tokenizer):
    # Nothing in its config tells that this one counts positions by itself, from the width of its input.
    model = make_model()
    forward = model.model.forward

    def forgetful(*args, position_ids=None, **kwargs):
        return forward(*args, **kwargs)

    model.model.forward = forgetful
    with pytest.raises(ModelError, match="different log-probs with the rollout cache"):
        HFPolicy(model, tokenizer)


@pytest.mark.parametrize("bf16", [True, False])
def test_rounding_is_allowed_as_the_output_layer_computes(make_model, tokenizer, bf16):
    """accelerate wraps `forward`: inside it is bfloat16, outside weights and logits are float32."""
    model = make_model()
    forward = model.forward

    def rounded(*args, use_cache, **kwargs):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = forward(*args, use_cache=use_cache, **kwargs)
        output.logits = output.logits.float()
        output.logits[..., 5] += 0.15 * use_cache  # what bfloat16 did on a GPU
        return output

    model.forward = rounded
    with nullcontext() if bf16 else pytest.raises(ModelError, match="different log-probs with the rollout cache"):
        HFPolicy(model, tokenizer)


def test_weights_that_are_not_finite_are_named(make_model, tokenizer):
    model = make_model()
    with torch.no_grad():
        next(model.model.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="log-probs that are not finite"):
        HFPolicy(model, tokenizer)


def test_a_model_with_adapters(make_model, tokenizer, reference):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(make_model(), config).eval()
    policy = HFPolicy(model, tokenizer)
    policy.submit([Request(id="a", token_ids=range(10, 20), max_new_tokens=6, stop=(), seed=0)])
    (done,) = policy.poll()
    plain = reference(model, [*range(10, 20), *done.token_ids], 10)
    torch.testing.assert_close(torch.tensor(done.logprobs), plain, atol=1e-4, rtol=0)
    with model.disable_adapter():
        other = reference(model, [*range(10, 20), *done.token_ids], 10)
    assert (plain - other).abs().max() > 1e-2, "the adapters must matter"


# ---- requests


def test_one_request_per_id(make_model, tokenizer):
    policy = HFPolicy(make_model(), tokenizer)
    policy.submit([request("a", [5], 2)])
    with pytest.raises(ValueError, match="request a is not finished"):
        policy.submit([request("a", [5], 2)])


@pytest.mark.parametrize(
    ("family", "settings"), [("Qwen2", {"max_position_embeddings": 16}), ("Mistral", {"sliding_window": 16})]
)
def test_requests_beyond_positions_or_window_are_refused(make_model, tokenizer, family, settings):
    policy = HFPolicy(make_model(family, **settings), tokenizer)
    assert len(generate(policy, [request("a", range(10, 20), 7)])[0].token_ids) == 7, "the 17th token is never fed"
    with pytest.raises(ModelError, match=r"may reach 17 tokens, but .*sliding_window\) is 16"):
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
