"""The measures of `pages.world` that need a model: the closed-book twin, and the warm-started policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from holdfast.data import Example
from holdfast.language_model import LanguageModel, pick_device, prepare
from holdfast.loading import load_questions, make_agent
from holdfast.retrieval.types import Hit, Retriever
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.policy import Request, generate
from holdfast.search.protocol import SearchProtocol
from holdfast.search.tokens import encode
from holdfast.train.evaluate import Evaluation, Evaluator
from holdfast.train.warm_start import Demonstration, Supervision, encode_demonstration, pad, warm_start
from holdfast.world.facts import WorldQuestion
from holdfast.world.model import build_model
from holdfast.world.scripted import stated
from holdfast_research.pages.world_bench import HELD_OUT, Bench, Measure, mean

TWIN_STEPS = 2000


def closed_book(bench: Bench, seed: int) -> Iterator[Measure]:
    """A twin of the tiny model learns question -> answer by heart, and is asked about people it never met."""
    sizes = bench.config.world.model
    model = build_model(bench.tokenizer, seed=seed, hidden=sizes.hidden, layers=sizes.layers, heads=sizes.heads)
    twin = prepare(model, bench.tokenizer, bench.config.model, pick_device(bench.config.run.device))
    protocol = bench.protocol
    opened, closed = protocol.answer_tags
    lessons = [
        encode_demonstration(
            bench.prompt(q.example.question),
            [(f"{opened} {q.example.golden_answers[0]} {closed}", "")],
            protocol,
            bench.tokenizer,
        )
        for q in bench.questions("train")
    ]
    tokens = bench.config.train.micro_batch_tokens
    supervision = Supervision(steps=TWIN_STEPS, batch=96, lr=4e-3, seed=seed, micro_batch_tokens=tokens)
    for _ in warm_start(twin, lessons, supervision):
        pass
    learned = [q.example for q in bench.questions("train")[:400]]
    asked = load_questions(bench.config).test
    test = evaluate(bench, twin, asked, bench.retrievers.eval, seed).scores
    yield Measure("closed-book twin, test EM, sampled", test["em"], most=0.05)
    yield Measure("closed-book twin, test EM, greedy", test["em_greedy"], most=0.05)
    yield Measure(
        "closed-book twin, EM on 400 questions it was taught, greedy",
        evaluate(bench, twin, learned, bench.retrievers.eval, seed).scores["em_greedy"],
    )


def evaluate(
    bench: Bench, policy: LanguageModel, questions: Sequence[Example], retriever: Retriever, seed: int
) -> Evaluation:
    agent = make_agent(bench.config, policy, retriever)
    return Evaluator(agent, 1, seed=seed, max_failed=bench.config.run.max_failed_fraction)(questions)


# ---- the warm-started model


class Shuffled:
    """Answers every search with the passages of another question's query, none of them about a person in the search."""

    in_process = True

    def __init__(self, retriever: Retriever, questions: Sequence[WorldQuestion]) -> None:
        self._queries = [f"{hop.asked} of {hop.fact.subject}" for q in questions for hop in q.hops]
        self._retriever = retriever

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self._others(query, k) for query in queries]

    def _others(self, query: str, k: int) -> list[Hit]:
        rng = random.Random(f"shuffled/{query}")
        while True:
            hits = self._retriever.search([rng.choice(self._queries)], k)[0]
            if not any(hit.document.title in query for hit in hits):
                return hits


def with_passages(bench: Bench, policy: LanguageModel) -> Iterator[Measure]:
    everything, asked = bench.retrievers.eval, load_questions(bench.config).test
    for what, retriever, most in (
        ("right", everything, None),
        ("shuffled", Shuffled(everything, bench.questions("test")), 0.05),
    ):
        scores = evaluate(bench, policy, asked, retriever, bench.config.run.seed).scores
        yield Measure(f"warm-started, {what} passages, test EM, sampled", scores["em"], most=most)
        yield Measure(f"warm-started, {what} passages, test EM, greedy", scores["em_greedy"], most=most)


@dataclass(frozen=True, slots=True)
class Reading:
    """A moment at which the passage that states `value` has just been observed, and what the script says next."""

    kind: str
    context: tuple[int, ...]
    """Everything up to the observation, which it includes."""
    forced: tuple[int, ...]
    """The script's words from there up to the relation: `<think> Mira Tolvan has mentor`."""
    value: tuple[int, ...]
    text: str
    rank: int
    """Place of the passage among those just observed, from 0."""


def readings(bench: Bench) -> list[Reading]:
    """From perfect episodes on dev and test questions: one for every hop whose passage was found."""
    made = []
    for script in bench.perfect(*HELD_OUT):
        for number, hop in enumerate(script.question.hops):
            fact = hop.fact
            before = f"{fact.subject} has {fact.written}"
            for i, (said, _) in enumerate(script.turns):
                at = said.find(f"{before} {fact.value}.")
                if at >= 0:
                    rank = stated(script.turns[i - 1][1]).index((fact.subject, fact.written, fact.value))
                    forced = encode(bench.tokenizer, said[: at + len(before)])
                    value = encode(bench.tokenizer, f" {fact.value}")
                    assert encode(bench.tokenizer, said)[: len(forced) + len(value)] == forced + value
                    kind = ("one hop", "hop one of two", "hop two of two")[number + (len(script.question.hops) > 1)]
                    context = tuple(map(int, bench.encoded(script, script.turns[:i]).token_ids))
                    made.append(Reading(kind, context, tuple(forced), tuple(value), fact.value, rank))
                    break
    return made


def copying(bench: Bench, policy: LanguageModel) -> Iterator[Measure]:
    """Does the model say what the passage says? Forced: its most likely tokens after `X has mentor`. Free: its most
    likely turn after the observation has the value in it, as thought or as answer."""
    moments = readings(bench)
    forced_right, free_right = [], []
    for i in range(0, len(moments), 64):
        forced_right += reads_forced(policy, moments[i : i + 64])
        free_right += reads_free(policy, moments[i : i + 64], bench.protocol)
    for what, chosen in (
        ("all", lambda m: True),
        ("one hop", lambda m: m.kind == "one hop"),
        ("hop one of two", lambda m: m.kind == "hop one of two"),
        ("hop two of two", lambda m: m.kind == "hop two of two"),
        ("passage came first", lambda m: m.rank == 0),
        ("passage came second or third", lambda m: m.rank > 0),
    ):
        rows = [i for i, moment in enumerate(moments) if chosen(moment)]
        least = 0.9 if what == "all" else None
        yield Measure(f"copied, up to the relation forced: {what}", mean(forced_right[i] for i in rows), least=least)
        yield Measure(f"copied, running free: {what}", mean(free_right[i] for i in rows))
        yield Measure(f"passages to copy from: {what}", len(rows))


def reads_free(policy: LanguageModel, moments: Sequence[Reading], protocol: SearchProtocol) -> list[bool]:
    requests = [
        Request(id=str(i), token_ids=m.context, max_new_tokens=protocol.max_turn_tokens, stop=protocol.stop, seed=0)
        for i, m in enumerate(moments)
    ]
    turns = generate(HFPolicy(policy.model, policy.tokenizer, greedy=True), requests)
    return [m.text in turn.text for m, turn in zip(moments, turns, strict=True)]


@torch.no_grad()
def reads_forced(policy: LanguageModel, moments: Sequence[Reading]) -> list[bool]:
    """Is each token of the value the likeliest one, given the context, the forced words and the value before it?"""
    rows = [
        Demonstration((*m.context, *m.forced, *m.value), (False,) * len(m.context + m.forced + m.value))
        for m in moments
    ]
    ids, _ = pad(rows, policy.pad_token_id, next(policy.model.parameters()).device)
    likeliest = policy.model(input_ids=ids, use_cache=False).logits.argmax(-1)
    ends = [len(row.token_ids) for row in rows]
    return [
        tuple(likeliest[i, end - len(m.value) - 1 : end - 1].tolist()) == m.value
        for i, (m, end) in enumerate(zip(moments, ends, strict=True))
    ]
