"""What the bundled world asks of an agent, measured: does it take searching, is the search good, is reading possible?

    python -m holdfast_research.pages.world
    python -m holdfast_research.pages.world --seeds 0 1 2 --warm-started 0 --json world.json

Needs no network. On one core a world takes about two minutes, most of it for the closed-book twin; a warm start that is
not in the cache takes four more. Ends with exit code 1 when a number misses its bound. docs/reference/world.md has
the last result.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from holdfast.agent.protocol import SearchProtocol, render_prompt
from holdfast.base.scoring import exact_match, normalize_answer
from holdfast.model.language_model import LanguageModel, pick_device, ready
from holdfast.model.text.tokens import encode
from holdfast.recipe import Config, load
from holdfast.recipe.loading import find_recipe
from holdfast.recipe.sections import WarmStart
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.machine import set_up_torch
from holdfast.tasks.opening import Retrievers, load_protocol, load_questions, load_retrievers, make_agent
from holdfast.tasks.questions import Example
from holdfast.tasks.world.facts import ATTRIBUTES, RELATIONS, World, WorldQuestion, build_world
from holdfast.tasks.world.model import build_model, interchangeable_tokens, world_tokenizer
from holdfast.tasks.world.scripted import PERFECT, ScriptedRollout, build_filler, run_scripts, scripted_rollouts, stated
from holdfast.train.evaluate import Evaluator
from holdfast.train.prepare import prepare
from holdfast.train.start import starting_policy
from holdfast.train.warm_start import (
    Demonstration,
    augment_by_renaming,
    encode_demonstration,
    warm_start,
)

HELD_OUT = ("dev", "test")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number, and the bounds it must keep (None: reported as it is)."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the number keeps its bounds."""
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)


@dataclass(frozen=True, slots=True)
class Bench:
    """A recipe's world and what is made from it without training."""

    config: Config
    retrievers: Retrievers
    world: World
    scripts: list[ScriptedRollout]
    tokenizer: Any

    @property
    def protocol(self) -> SearchProtocol:
        """The recipe's."""
        return load_protocol(self.config)

    def questions(self, *splits: str, hops: int | None = None) -> list[WorldQuestion]:
        """The questions of some splits, in all or with this number of hops."""
        return [q for r in splits for q in self.world.questions[r] if hops in (None, len(q.hops))]

    def perfect(self, *splits: str) -> list[ScriptedRollout]:
        """The script that makes no mistake, over the passages of all splits."""
        return run_scripts(
            self.questions(*splits),
            self.retrievers.eval,
            self.protocol,
            scripts=PERFECT,
            filler=build_filler(self.config.world),
        )

    def encoded(self, script: ScriptedRollout) -> Demonstration:
        """The tokens of a script."""
        prompt = self.prompt(script.question.example.question)
        return encode_demonstration(prompt, script.turns, self.protocol, self.tokenizer)

    def prompt(self, question: str) -> list[int]:
        """The tokens of the prompt for a question."""
        return render_prompt(question, self.protocol, self.tokenizer)


def open_bench(config: Config) -> Bench:
    """The world of a recipe with its indexes, scripts and tokenizer."""
    assert config.data.train == "world", "the recipe must train on the bundled world"
    retrievers, protocol = load_retrievers(config), load_protocol(config)
    scripts = scripted_rollouts(config.world, retrievers.train, protocol, seed=config.warm_start.seed)
    texts = [(script.question.example.question, script.turns) for script in scripts]
    tokenizer = world_tokenizer(config.world, texts, protocol)
    return Bench(config, retrievers, build_world(config.world), scripts, tokenizer)


def search(retriever: Retriever, query: str, k: int) -> list[Hit]:
    """The hits of one query."""
    return retriever.search([query], k)[0]


def values(hits: Iterable[Hit]) -> list[str]:
    """The values of all facts that the hits state."""
    return [value for hit in hits for _, _, value in stated(hit.document.contents)]


def mean(numbers: Iterable[float]) -> float:
    """The mean; 0 without numbers."""
    numbers = list(numbers)
    return sum(numbers) / max(len(numbers), 1)


# ---- measures without a model


def best_guess(bench: Bench) -> Iterator[Measure]:
    """A guesser that always gives the likeliest answer of the training split, aliases included."""
    counts: dict[int, Counter[str]] = {}
    for q in bench.questions("train"):
        counted = counts.setdefault(q.hops[-1].fact.relation, Counter())
        counted.update({normalize_answer(gold) for gold in q.example.golden_answers})
    guess = {relation: counted.most_common(1)[0][0] for relation, counted in counts.items()}
    asked = bench.questions("test")
    right = mean(exact_match(guess[q.hops[-1].fact.relation], q.example.golden_answers) for q in asked)
    yield Measure("likeliest answer of the relation, test EM", right, most=0.05)


def oracle(bench: Bench) -> Iterator[Measure]:
    """A searcher that makes no mistake."""
    scripts = bench.perfect("test")
    yield Measure("oracle searcher, test EM", mean(script.correct for script in scripts), least=0.95)
    yield Measure("oracle searcher, searches per question", mean(len(script.turns) - 1 for script in scripts))


def one_search(bench: Bench) -> Iterator[Measure]:
    """Two-hop questions after one search, answered when a hit has the right value: for each kind of query, and for the
    best query of each question, which is not known beforehand."""
    answered: dict[str, list[bool]] = {}
    for q in bench.questions("test", hops=2):
        first, second = q.hops
        queries = {
            "the question": q.example.question,
            "hop one": f"{first.asked} of {first.fact.subject}",
            "the person": first.fact.subject,
            "the relation of hop two": second.asked,
            "hop two, of the person": f"{second.asked} of {first.fact.subject}",
        }
        for kind, query in queries.items():
            seen = values(search(bench.retrievers.eval, query, bench.protocol.topk))
            answered.setdefault(kind, []).append(any(exact_match(v, q.example.golden_answers) for v in seen))
    for kind, right in answered.items():
        yield Measure(f"one-search oracle on two hops, query: {kind}", mean(right), most=0.1)
    yield Measure(
        "one-search oracle on two hops, best query of the five",
        mean(map(any, zip(*answered.values(), strict=True))),
        most=0.1,
    )


def hit_rates(bench: Bench) -> Iterator[Measure]:
    """Is the passage of hop one among the first three hits of the plain query, `mentor of Mira Tolvan`?"""
    for what, retriever, splits in (
        ("training index, training questions", bench.retrievers.train, ("train",)),
        ("full index, dev and test questions", bench.retrievers.eval, HELD_OUT),
    ):
        hops = [q.hops[0] for q in bench.questions(*splits)]
        hits = [
            hop.fact.doc_id in [h.document.id for h in search(retriever, f"{hop.asked} of {hop.fact.subject}", 3)]
            for hop in hops
        ]
        yield Measure(f"BM25 hit@3 on hop one, {what}", mean(hits), least=0.8, most=0.98)
        straight = [hit for hit, hop in zip(hits, hops, strict=True) if hop.asked == hop.fact.written]
        yield Measure(
            f"the same, where the question uses the passage's name of the relation, {splits[0]}", mean(straight)
        )


def leaks(bench: Bench) -> Iterator[Measure]:
    """Held-out facts in what an agent reads or writes in training."""
    held_out = {
        (fact.subject, relation, fact.value)
        for split in HELD_OUT
        for fact in bench.world.facts[split]
        for relation in (RELATIONS + ATTRIBUTES)[fact.relation]
    }
    passages = [d.contents for d in bench.world.documents("train")]
    yield Measure("held-out facts stated by training passages", len(facts_in(passages, held_out)), most=0)
    warm_start, scripts = bench.config.warm_start, bench.config.world.scripts
    lessons = {warm_start.steps: bench.scripts}
    if scripts.plain_steps:
        retriever, protocol = bench.retrievers.train, bench.protocol
        lessons[scripts.plain_steps] = scripted_rollouts(
            bench.config.world, retriever, protocol, seed=warm_start.seed, plain=True
        )
    texts = ["".join(chain(*script.turns)) for scripted in lessons.values() for script in scripted]
    yield Measure("held-out facts stated by scripted demonstrations", len(facts_in(texts, held_out)), most=0)
    pieces = [bench.tokenizer.decode([i]) for i in range(len(bench.tokenizer))]
    pools = interchangeable_tokens(bench.world, bench.tokenizer)
    hidden = [
        "".join(pieces[i] for i in demonstration.token_ids)
        for steps, scripted in lessons.items()
        for demonstration in augment_by_renaming(
            [bench.encoded(script) for script in scripted], pools, steps * warm_start.batch_size, warm_start.seed
        )
    ]
    by_chance = facts_in(hidden, held_out)
    yield Measure("disguised demonstrations of the warm start", len(hidden))
    yield Measure(
        "disguised demonstrations that state a held-out fact by chance",
        sum(by_chance & {*stated(t)} != set() for t in hidden),
    )
    yield Measure("held-out facts so stated", len(by_chance))
    yield Measure("held-out facts", sum(len(bench.world.facts[split]) for split in HELD_OUT))


def facts_in(texts: Iterable[str], facts: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Those of the facts that a text states."""
    return {fact for text in texts for fact in stated(text)} & facts


def sizes(bench: Bench) -> Iterator[Measure]:
    """The numbers of passages, questions, tokens and parameters."""
    sizes = bench.config.world.model
    for split, facts in bench.world.facts.items():
        yield Measure(f"passages, {split}", len(facts))
    for split, questions in bench.world.questions.items():
        yield Measure(f"questions, {split}", len(questions))
        yield Measure(f"questions with two hops, {split}", sum(len(q.hops) == 2 for q in questions))
    demonstrations = [bench.encoded(script) for script in bench.scripts]
    lengths = [len(demonstration.token_ids) for demonstration in demonstrations]
    yield Measure("tokens of a scripted demonstration, mean", mean(lengths))
    yield Measure("tokens of a scripted demonstration, longest", max(lengths))
    written = mean(sum(demonstration.loss_mask) for demonstration in demonstrations)
    yield Measure("tokens of a scripted demonstration written by the agent, mean", written)
    observations = {observation for script in bench.scripts for _, observation in script.turns}
    longest = max(len(encode(bench.tokenizer, observation)) for observation in observations)
    yield Measure("tokens of the longest observation", longest, most=bench.config.protocol.max_observation_tokens)
    yield Measure("scripted demonstrations that are correct", mean(script.correct for script in bench.scripts))
    yield Measure("vocabulary", len(bench.tokenizer))
    model = build_model(bench.tokenizer, hidden=sizes.hidden, layers=sizes.layers, heads=sizes.heads)
    yield Measure("parameters", model.num_parameters())


# ---- measures of a model: the closed-book twin, and the warm-started policy


TWIN_STEPS = 2000


def closed_book(bench: Bench, seed: int) -> Iterator[Measure]:
    """A twin of the tiny model that learns question -> answer by heart, on questions about other people."""
    sizes = bench.config.world.model
    model = build_model(bench.tokenizer, seed=seed, hidden=sizes.hidden, layers=sizes.layers, heads=sizes.heads)
    twin = ready(model, bench.tokenizer, bench.config.model, pick_device(bench.config.run.device))
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
    settings = WarmStart(steps=TWIN_STEPS, batch_size=96, lr=4e-3, seed=seed, batches="by-length")
    for _ in warm_start(twin, lessons, settings, micro_batch_tokens=tokens):
        pass
    learned = [q.example for q in bench.questions("train")[:400]]
    asked = load_questions(bench.config).test
    test = evaluate(bench, twin, asked, bench.retrievers.eval, seed)
    yield Measure("closed-book twin, test EM, sampled", test["em"], most=0.05)
    yield Measure("closed-book twin, test EM, greedy", test["em_greedy"], most=0.05)
    yield Measure(
        "closed-book twin, EM on 400 questions it was taught, greedy",
        evaluate(bench, twin, learned, bench.retrievers.eval, seed)["em_greedy"],
    )


def evaluate(
    bench: Bench, policy: LanguageModel, questions: Sequence[Example], retriever: Retriever, seed: int
) -> dict[str, float]:
    """Scores of a policy, sampled and greedy."""
    agent = make_agent(bench.config, policy, retriever)
    return Evaluator(agent, 1, seed=seed, max_failed=bench.config.run.max_failed_fraction)(questions).scores


# ---- the warm-started model


class Shuffled:
    """Answers every search with the passages of another question's query, none of them about a person in the search."""

    in_process = True

    def __init__(self, retriever: Retriever, questions: Sequence[WorldQuestion]) -> None:
        self._queries = [f"{hop.asked} of {hop.fact.subject}" for q in questions for hop in q.hops]
        self._retriever = retriever

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The same hits whenever a query is repeated."""
        return [self._others(query, k) for query in queries]

    def _others(self, query: str, k: int) -> list[Hit]:
        rng = random.Random(f"shuffled/{query}")
        while True:
            hits = self._retriever.search([rng.choice(self._queries)], k)[0]
            if not any(hit.document.title in query for hit in hits):
                return hits


def with_passages(bench: Bench, policy: LanguageModel) -> Iterator[Measure]:
    """The warm-started model with the right passages, and with those of other questions."""
    everything, asked = bench.retrievers.eval, load_questions(bench.config).test
    for what, retriever, most in (
        ("right", everything, None),
        ("shuffled", Shuffled(everything, bench.questions("test")), 0.05),
    ):
        scores = evaluate(bench, policy, asked, retriever, bench.config.run.seed)
        yield Measure(f"warm-started, {what} passages, test EM, sampled", scores["em"], most=most)
        yield Measure(f"warm-started, {what} passages, test EM, greedy", scores["em_greedy"], most=most)


def measure(config: Config, warm_started: bool) -> list[Measure]:
    """All measures of a recipe's world; those of its warm-started model on demand."""
    set_up_torch(config)
    bench = open_bench(config)
    parts: list[Callable[[Bench], Iterator[Measure]]] = [sizes, best_guess, oracle, one_search, hit_rates, leaks]
    measures = [m for part in parts for m in part(bench)]
    measures += closed_book(bench, config.world.seed)
    if warm_started:
        policy = starting_policy(prepare(config))
        bench = replace(bench, tokenizer=policy.tokenizer)
        measures += with_passages(bench, policy)
    return measures


def table(by_seed: dict[int, list[Measure]]) -> str:
    """Markdown of measures by world seed; marks those that miss their bounds."""
    names = list(dict.fromkeys(m.name for measures in by_seed.values() for m in measures))
    rows = []
    for name in names:
        cells = [next((m for m in measures if m.name == name), None) for measures in by_seed.values()]
        first = next(m for m in cells if m is not None)
        bound = " and ".join(
            f"{sign} {number(edge)}" for sign, edge in (("≥", first.least), ("≤", first.most)) if edge is not None
        )
        shown = ["" if m is None else number(m.value) + ("" if m.holds else " **missed**") for m in cells]
        rows.append(f"| {name} | {bound} | {' | '.join(shown)} |")
    head = " | ".join(f"world {seed}" for seed in by_seed)
    return "\n".join([f"| measure | bound | {head} |", "|---|---|" + "---|" * len(by_seed), *rows])


def number(value: float) -> str:
    """A count, or three digits of a fraction."""
    return f"{value:,.0f}" if value == int(value) and value > 1 else f"{value:.3f}".rstrip("0").rstrip(".")


def main() -> int:
    """The command line; exit code 1 when a number misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", type=Path, default=find_recipe("quickstart"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the world")
    parser.add_argument(
        "--warm-started",
        type=int,
        nargs="*",
        default=[0],
        help="of them, those whose warm-started model is measured too",
    )
    parser.add_argument("--json", type=Path, help="write the measures here as well")
    options = parser.parse_args()
    by_seed: dict[int, list[Measure]] = {}
    for seed in options.seeds:
        started = time.monotonic()
        config = load(options.recipe, ["--world.seed", str(seed)])
        by_seed[seed] = measure(config, seed in options.warm_started)
        print(f"world {seed}: {time.monotonic() - started:.0f} s", flush=True)
    print(table(by_seed))
    if options.json:
        rows = {seed: [asdict(m) | {"holds": m.holds} for m in measures] for seed, measures in by_seed.items()}
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(not all(m.holds for measures in by_seed.values() for m in measures))


if __name__ == "__main__":
    raise SystemExit(main())
