"""What the bundled world asks of an agent, measured: does it take searching, is the search good, is reading possible?

    python -m holdfast_research.pages.world
    python -m holdfast_research.pages.world --seeds 0 1 2 --warm-started 0 --json world.json

Needs no network. On one core a world takes about two minutes, most of it for the closed-book twin; a warm start that is
not in the cache takes four more. Ends with exit code 1 when a number misses its bound. docs/world.md says what each
line means and shows the last result.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from holdfast.cli.recipes import find
from holdfast.config import Config, load
from holdfast.language_model import set_up_torch
from holdfast.loading import load_questions
from holdfast.scoring import exact_match, normalize_answer
from holdfast.search.tokens import encode
from holdfast.train.start import starting_policy
from holdfast.train.warm_start import disguised
from holdfast.world.bundle import interchangeable_tokens, scripted_rollouts
from holdfast.world.facts import ATTRIBUTES, RELATIONS
from holdfast.world.model import build_model
from holdfast.world.scripted import stated
from holdfast_research.pages.world_bench import HELD_OUT, Bench, Measure, mean, open_bench, search, values
from holdfast_research.pages.world_models import closed_book, copying, with_passages


def best_guess(bench: Bench) -> Iterator[Measure]:
    """Whoever knows the training region's statistics, aliases included, and always gives the likeliest answer."""
    counts: dict[int, Counter[str]] = {}
    for q in bench.questions("train"):
        counted = counts.setdefault(q.hops[-1].fact.relation, Counter())
        counted.update({normalize_answer(gold) for gold in q.example.golden_answers})
    guess = {relation: counted.most_common(1)[0][0] for relation, counted in counts.items()}
    asked = bench.questions("test")
    right = mean(exact_match(guess[q.hops[-1].fact.relation], q.example.golden_answers) for q in asked)
    yield Measure("likeliest answer of the relation, test EM", right, most=0.05)


def oracle(bench: Bench) -> Iterator[Measure]:
    episodes = bench.perfect("test")
    yield Measure("oracle searcher, test EM", mean(e.correct for e in episodes), least=0.95)
    yield Measure("oracle searcher, searches per question", mean(len(e.turns) - 1 for e in episodes))


def one_search(bench: Bench) -> Iterator[Measure]:
    """Two-hop questions with one search, after which the right value is picked whenever any hit has it as a value: with
    each kind of query, and with the best query for each question, which only somebody could choose who knew it all."""
    asked = bench.questions("test", hops=2)
    found: dict[str, list[bool]] = {}
    for q in asked:
        one, two = q.hops
        queries = {
            "the question": q.example.question,
            "hop one": f"{one.asked} of {one.fact.subject}",
            "the person": one.fact.subject,
            "the relation of hop two": two.asked,
            "hop two, of the person": f"{two.asked} of {one.fact.subject}",
        }
        for kind, query in queries.items():
            seen = values(search(bench.retrievers.eval, query, bench.protocol.topk))
            found.setdefault(kind, []).append(any(exact_match(v, q.example.golden_answers) for v in seen))
    for kind, right in found.items():
        yield Measure(f"one-search oracle on two hops, query: {kind}", mean(right), most=0.1)
    yield Measure(
        "one-search oracle on two hops, best query of the five",
        mean(map(any, zip(*found.values(), strict=True))),
        most=0.1,
    )


def hit_rates(bench: Bench) -> Iterator[Measure]:
    """Is the passage of hop one among the first three hits of the plain query, `mentor of Mira Tolvan`?"""
    for what, retriever, regions in (
        ("training index, training questions", bench.retrievers.train, ("train",)),
        ("full index, dev and test questions", bench.retrievers.eval, HELD_OUT),
    ):
        hops = [q.hops[0] for q in bench.questions(*regions)]
        hits = [
            hop.fact.doc_id in [h.document.id for h in search(retriever, f"{hop.asked} of {hop.fact.subject}", 3)]
            for hop in hops
        ]
        yield Measure(f"BM25 hit@3 on hop one, {what}", mean(hits), least=0.8, most=0.98)
        straight = [hit for hit, hop in zip(hits, hops, strict=True) if hop.asked == hop.fact.written]
        yield Measure(
            f"the same, where the question uses the passage's name of the relation, {regions[0]}", mean(straight)
        )


def leaks(bench: Bench) -> Iterator[Measure]:
    """Facts of the dev and test regions that something an agent reads or writes in training states."""
    held_out = {
        (fact.subject, relation, fact.value)
        for region in HELD_OUT
        for fact in bench.world.facts[region]
        for relation in (RELATIONS + ATTRIBUTES)[fact.relation]
    }
    passages = [d.contents for d in bench.world.documents("train")]
    yield Measure("held-out facts stated by training passages", len(facts_in(passages, held_out)), most=0)
    warm_start, scripts = bench.config.warm_start, bench.config.world.scripts
    lessons = {warm_start.steps: bench.scripts}
    if scripts.plain_steps:
        retriever, protocol = bench.retrievers.train, bench.protocol
        lessons[scripts.plain_steps] = scripted_rollouts(
            bench.world, None, retriever, protocol, scripts, seed=warm_start.seed
        )
    texts = ["".join(chain(*script.turns)) for scripted in lessons.values() for script in scripted]
    yield Measure("held-out facts stated by scripted episodes", len(facts_in(texts, held_out)), most=0)
    pieces = [bench.tokenizer.decode([i]) for i in range(len(bench.tokenizer))]
    pools = interchangeable_tokens(bench.world, bench.tokenizer)
    hidden = [
        "".join(pieces[i] for i in episode.token_ids)
        for steps, scripted in lessons.items()
        for episode in disguised(
            [bench.encoded(script) for script in scripted], pools, steps * warm_start.batch_size, warm_start.seed
        )
    ]
    told = facts_in(hidden, held_out)
    yield Measure("disguised episodes of the warm start", len(hidden))
    yield Measure(
        "disguised episodes that state a held-out fact by chance", sum(told & {*stated(t)} != set() for t in hidden)
    )
    yield Measure("held-out facts so stated", len(told))
    yield Measure("held-out facts", sum(len(bench.world.facts[region]) for region in HELD_OUT))


def facts_in(texts: Iterable[str], facts: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    return {fact for text in texts for fact in stated(text)} & facts


def sizes(bench: Bench) -> Iterator[Measure]:
    sizes = bench.config.world.model
    for region, facts in bench.world.facts.items():
        yield Measure(f"passages, {region}", len(facts))
    for region, questions in bench.world.questions.items():
        yield Measure(f"questions, {region}", len(questions))
        yield Measure(f"questions with two hops, {region}", sum(len(q.hops) == 2 for q in questions))
    episodes = [bench.encoded(script) for script in bench.scripts]
    lengths = [len(episode.token_ids) for episode in episodes]
    yield Measure("tokens of a scripted episode, mean", mean(lengths))
    yield Measure("tokens of a scripted episode, longest", max(lengths))
    yield Measure(
        "tokens of a scripted episode said by the agent, mean", mean(sum(episode.loss_mask) for episode in episodes)
    )
    heard = {observed for script in bench.scripts for _, observed in script.turns}
    longest = max(len(encode(bench.tokenizer, observed)) for observed in heard)
    yield Measure("tokens of the longest observation", longest, most=bench.config.protocol.max_observation_tokens)
    yield Measure("scripted episodes that are right", mean(script.correct for script in bench.scripts))
    yield Measure("vocabulary", len(bench.tokenizer))
    model = build_model(bench.tokenizer, hidden=sizes.hidden, layers=sizes.layers, heads=sizes.heads)
    yield Measure("parameters", model.num_parameters())


def measure(config: Config, warm_started: bool) -> list[Measure]:
    set_up_torch(config)
    bench = open_bench(config)
    parts: list[Callable[[Bench], Iterator[Measure]]] = [sizes, best_guess, oracle, one_search, hit_rates, leaks]
    found = [m for part in parts for m in part(bench)]
    found += closed_book(bench, config.world.seed)
    if warm_started:
        policy = starting_policy(config, load_questions(config), bench.retrievers.train)
        bench = replace(bench, tokenizer=policy.tokenizer)
        found += [m for part in (with_passages, copying) for m in part(bench, policy)]
    return found


def table(by_seed: dict[int, list[Measure]]) -> str:
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
    return f"{value:,.0f}" if value == int(value) and value > 1 else f"{value:.3f}".rstrip("0").rstrip(".")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", type=Path, default=find("quickstart"))
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
