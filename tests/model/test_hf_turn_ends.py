"""How a turn of the transformers policy ends: at a stop string, at the end of the sequence, at its last token."""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Completion, generate
from holdfast.model.sampler.turn_ends import END, MAYBE, StopTable

from .conftest import request


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def chain_of(tokens: list[int]) -> dict[int, int]:
    assert len(set(tokens[:-1])) == len(tokens) - 1, "a chain cannot pass the same token twice"
    return dict(itertools.pairwise(tokens))


def follow(make_chain, tokenizer, script: list[int], *, prompt: int = 1, new: int = 50, stop=("</e>",)) -> Completion:
    """What a model that recites `script` after its first `prompt` tokens produces."""
    policy = HFPolicy(make_chain(chain_of(script)), tokenizer, greedy=True)
    return generate(policy, [request("s", script[:prompt], new, stop=stop)])[0]


def test_a_stop_string_may_span_tokens(make_chain, tokenizer):
    script = [*ids_of(tokenizer, "q"), *ids_of(tokenizer, "</e"), *ids_of(tokenizer, ">"), *ids_of(tokenizer, " w")]
    assert len(script) == 6, "q, </, e, >, and two for what must not be reached"
    done = follow(make_chain, tokenizer, script)
    assert (done.text, done.stop_reason) == ("</e>", "stop")
    assert list(done.token_ids) == script[1:4]


def test_the_closing_token_is_kept_whole(make_chain, tokenizer):
    closing = ids_of(tokenizer, " </search>\n\n")
    assert tokenizer.decode(closing[-1:]) == ">\n\n"
    done = follow(make_chain, tokenizer, [*ids_of(tokenizer, "q"), *closing, 5], stop=("</search>", "</answer>"))
    assert (done.text, done.stop_reason) == (" </search>\n\n", "stop")
    assert list(done.token_ids) == closing


def test_a_stop_string_in_the_prompt_does_not_count(make_chain, tokenizer):
    script = [*ids_of(tokenizer, "</e"), *ids_of(tokenizer, ">"), *ids_of(tokenizer, "Z>")]
    # The prompt ends in the middle of the tag: "</e", and the model writes ">" first.
    done = follow(make_chain, tokenizer, [*script[:-1]], prompt=2, new=2)
    assert (done.text, done.stop_reason) == (">Z", "length")
    done = follow(make_chain, tokenizer, [*script[:-1]], prompt=3, new=1)
    assert (done.text, done.stop_reason) == ("Z", "length"), "nor when the whole tag lies there"


def test_end_of_sequence_ends_the_turn_and_is_kept(make_chain, tokenizer):
    end = tokenizer.eos_token_id
    done = follow(make_chain, tokenizer, [*ids_of(tokenizer, "qZ"), end])
    assert (done.text, done.stop_reason) == ("Z", "eos")
    assert done.token_ids[-1] == end and len(done.logprobs) == 2


def test_end_ids_of_the_generation_config_count_too(make_chain, tokenizer):
    model = make_chain(chain_of([10, 11, 12, 13]))
    model.generation_config.eos_token_id = [12, 299]
    model.generation_config.top_k = 1
    model.generation_config.temperature = 9.0
    done = generate(HFPolicy(model, tokenizer, greedy=True), [request("x", [10], 9)])[0]
    assert (done.token_ids, done.stop_reason) == ((11, 12), "eos")
    assert done.mask_mass is None, "its sampling settings do not"


def test_a_turn_stops_at_its_last_allowed_token_when_it_completes_the_tag(make_chain, tokenizer):
    script = [*ids_of(tokenizer, "q"), *ids_of(tokenizer, "</e"), *ids_of(tokenizer, ">")]
    assert follow(make_chain, tokenizer, script, new=3).stop_reason == "stop"
    assert follow(make_chain, tokenizer, script, new=2).stop_reason == "length"


def test_stop_strings_are_each_requests_own(make_chain, tokenizer):
    script = ids_of(tokenizer, "qabc>")
    model = make_chain(chain_of(script))
    a, b = generate(
        HFPolicy(model, tokenizer, greedy=True),
        [request("a", script[:1], 4, stop=("b",)), request("b", script[:1], 4, stop=("c>",))],
    )
    assert (a.text, b.text) == ("ab", "abc>")


# ---- which tokens end a turn or ask for a look at the text


def test_flags(tokenizer) -> None:
    flags = StopTable(tokenizer, {tokenizer.eos_token_id}, vocabulary=310).flags(("</search>", "</answer>"))
    assert len(flags) == 310, "embeddings may be padded beyond the tokenizer"
    assert flags[tokenizer.eos_token_id] == END
    for token, text in enumerate(tokenizer.batch_decode([[i] for i in range(len(tokenizer))])):
        if token != tokenizer.eos_token_id:
            assert flags[token] == (MAYBE if ">" in text else 0), text
    merged = tokenizer(" </search>\n\n")["input_ids"][-1]
    assert tokenizer.decode([merged]).startswith(">\n"), "the point of this tokenizer"
    assert flags[merged] == MAYBE


def test_a_last_character_spread_over_byte_tokens_is_looked_at(tokenizer) -> None:
    last = tokenizer("é")["input_ids"][-1]
    assert "é" not in tokenizer.decode([last]), "two byte tokens"
    table = StopTable(tokenizer, (), vocabulary=300)
    assert table.flags(("fin é",))[last] == MAYBE
    assert table.flags(("fin e",))[last] == 0
