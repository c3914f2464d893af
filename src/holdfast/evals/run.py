"""An evaluation from questions to results: batch by batch, each written before the next begins.

The batches are cut from the questions once and for all. A local policy computes the rows of a batch together, and which
rows these are moves the last bits of a logit, so an unfinished batch is computed again as a whole: what a stop at any
moment leaves is, byte for byte, what a run that never stopped would have written. A server's answers do not depend on
their neighbours here, and only what is missing is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from holdfast.data import Example
from holdfast.errors import RolloutError
from holdfast.evals.catalogue import AGENT, SEARCHING, SINGLE_CALL
from holdfast.evals.methods import BARE, PROMPTING, Limits, Method
from holdfast.evals.questions import digest
from holdfast.evals.results import results_of
from holdfast.evals.sets import MULTI_HOP_SETS, set_of
from holdfast.evals.state import FAILED, EvalFolder, Row
from holdfast.evals.subject import Subject, agent_protocol
from holdfast.evals.talk import Speech, Talk, hold, search_desk
from holdfast.listener import Listener
from holdfast.rewards import PARTS
from holdfast.rollout.loop import Task, run_rollouts
from holdfast.rollout.policy import rollout_seed
from holdfast.scoring import MODES, Mode, exact_match, f1, normalize_answer, normalized_golds, sub_em
from holdfast.search.protocol import render_prompt
from holdfast.trajectory import Search, Status, Trajectory

LIMITS = Limits()
_SINGLE_HOP_SEARCHES = 5
_OUTAGE = 8
"""Questions in a row that fail for the first time: the server is gone, or the retriever."""


class Evaluation:
    """One method of one subject on some questions.

    Args:
        subject: who answers.
        retriever: None for methods that do not search.
        samples: answers per question; None is one, greedy.
        scorer: `table`, or `official` for the rule of each question's own set.
        bare: ask without instructions, as a model is asked that was taught the method.
        row: what the table calls this.
    """

    def __init__(
        self,
        subject: Subject,
        method: str,
        examples: Sequence[Example],
        retriever: Any,
        *,
        samples: int | None = None,
        scorer: str = "table",
        bare: bool = False,
        row: str = "",
    ) -> None:
        self.subject, self.method, self.examples, self.retriever = subject, method, examples, retriever
        self.samples, self.scorer, self.bare, self.row = samples, scorer, bare and method in BARE, row
        self.protocol = agent_protocol(method, subject.config)
        self._failed_in_a_row = 0

    def settings(self) -> dict[str, Any]:
        """What the answers depend on; results.json repeats it."""
        own, config = self.subject, self.subject.config
        prompting = asdict(LIMITS) if self.method in PROMPTING else None
        return {
            "row": self.row,
            "model": own.name,
            "weights": own.weights,
            "method": self.method,
            "prompt": "bare" if self.bare else "instructed" if prompting else self.protocol.name,
            "decoding": own.decoding,
            "samples": self.samples or 1,
            "seed": config.run.seed,
            "searches": self._searches_allowed(),
            "scorer": self.scorer,
            "questions": len(self.examples),
            "questions_digest": digest(self.examples),
            "retrieval": config.retrieval.model_dump() if self.method in SEARCHING else None,
            "passages": getattr(self.retriever, "corpus_hash", None),
            "tokenizer": own.spoken,
            "topk": self.protocol.topk,
            "protocol": None if prompting else asdict(self.protocol),
            "limits": prompting,
            "chat_template": config.model.chat_template,
        }

    def run(self, out: Path, listener: Listener, *, batch: int = 128) -> dict[str, Any]:
        """Answer what is not answered yet, and write everything; returns what results.json holds.

        `batch` is in answers, of whole questions. Raises `RolloutError` when every question of a batch failed.
        """
        folder = EvalFolder(out)
        settings = self.settings() | {"batch": batch if self.subject.local else None}
        done = folder.begin(settings)
        count = self.samples or 1
        total = len(self.examples) * count
        if done:
            listener.note(f"{len(done)} of {total} answers are there already, in {out}")
        there = len(done)
        listener.stage(f"evaluating {self.method}", total - there)
        listener.advance(0, _running(done))
        size = max(batch // count, 1)
        for start in range(0, len(self.examples), size):
            part = self.examples[start : start + size]
            asked = [(example, k) for example in part for k in range(count)]
            missing = [(example, k) for example, k in asked if _id(example, k) not in done]
            if not missing:
                continue
            rows = self._answer(asked if self.subject.local else missing)
            self._refuse_outage(rows, folder)
            folder.add(rows)
            done = folder.rows
            listener.advance(len(done) - there, _running(done))
        ids = [_id(example, k) for example in self.examples for k in range(count)]
        kept = folder.rows
        results = results_of([kept[id] for id in ids], settings)
        folder.finish(ids, results)
        return results

    def _answer(self, asked: Sequence[tuple[Example, int]]) -> list[Row]:
        return self._episodes(asked) if self.method in AGENT else self._talks(asked)

    def _talks(self, asked: Sequence[tuple[Example, int]]) -> list[Row]:
        own = self.subject
        method: Method = (BARE if self.bare else PROMPTING)[self.method]
        talks = [
            Talk(_id(example, k), self._seed(example, k), method(example.question.strip(), self._limits(example)))
            for example, k in asked
        ]
        desk = search_desk(self.retriever, self.protocol.topk) if self.retriever is not None else None
        try:
            speech = Speech(own.tokenizer, own.config.model.chat_template, own.positions)
            hold(talks, policy=own.policy, desk=desk, speech=speech)
        finally:
            if desk is not None:
                desk.close()
        return [self._talk_row(example, k, talk) for (example, k), talk in zip(asked, talks, strict=True)]

    def _episodes(self, asked: Sequence[tuple[Example, int]]) -> list[Row]:
        own = self.subject
        prompts = {example.id: self._prompt(example) for example, _ in asked}
        tasks = [
            Task(id=_id(example, k), example_id=example.id, prompt=prompts[example.id], seed=self._seed(example, k))
            for example, k in asked
        ]
        trajectories = run_rollouts(
            tasks,
            policy=own.policy,
            retriever=self.retriever or _Nowhere(),
            protocol=self.protocol,
            tokenizer=own.tokenizer,
        )
        return [self._episode_row(example, k, t) for (example, k), t in zip(asked, trajectories, strict=True)]

    def _prompt(self, example: Example) -> tuple[int, ...]:
        template = self.subject.config.model.chat_template
        return tuple(render_prompt(example.question, self.protocol, self.subject.tokenizer, template))

    def _talk_row(self, example: Example, k: int, talk: Talk) -> Row:
        outcome = talk.outcome
        assert talk.status is not None
        hit = None
        if any("searches" in step for step in talk.steps) and not talk.status.is_failure:
            seen = [normalize_answer(text) for text in talk.found]
            hit = float(any(gold in text for gold in normalized_golds(example.golden_answers) for text in seen))
        row = self._row(
            example,
            k,
            prediction=outcome.prediction if outcome else None,
            status=talk.status,
            error=talk.error,
            hit=hit,
            searches=sum("searches" in step for step in talk.steps),
            calls=sum("says" in step for step in talk.steps),
        )
        if self.method in SINGLE_CALL and outcome is not None:
            row["em_raw"] = exact_match(outcome.raw, example.golden_answers, mode=self._mode(example))
        return row | {"steps": talk.steps}

    def _episode_row(self, example: Example, k: int, trajectory: Trajectory) -> Row:
        steps: list[dict[str, Any]] = []
        for turn in trajectory.turns:
            steps.append({"says": turn.text})
            if isinstance(turn.action, Search) and turn.observation_text:
                steps.append({"searches": turn.action.query, "hits": list(turn.hits)})
        searches = sum("searches" in step for step in steps)
        failed = trajectory.status.is_failure
        row = self._row(
            example,
            k,
            prediction=trajectory.answer,
            status=trajectory.status,
            error=trajectory.error,
            hit=PARTS["retrieval"](trajectory, example.golden_answers) if searches and not failed else None,
            searches=searches,
            calls=len(trajectory.turns),
        )
        return row | {"steps": steps}

    def _row(
        self, example: Example, k: int, *, prediction: str | None, status: Status, hit: float | None, **more: Any
    ) -> Row:
        golds, mode, failed = example.golden_answers, self._mode(example), status.is_failure
        return {
            "id": _id(example, k),
            "set": set_of(example),
            "sample": k,
            "question": example.question,
            "golden_answers": list(golds),
            "prediction": prediction,
            "em": None if failed else exact_match(prediction, golds, mode=mode),
            "f1": None if failed else f1(prediction, golds, mode=mode),
            "sub_em": None if failed else sub_em(prediction, golds, mode=mode),
            "hit": hit,
            "status": status.value,
            **{name: value for name, value in more.items() if value is not None},
        }

    def _mode(self, example: Example) -> Mode:
        own = set_of(example)
        return own if self.scorer == "official" and own in MODES else "table"  # type: ignore[return-value]

    def _limits(self, example: Example) -> Limits:
        return LIMITS if set_of(example) in MULTI_HOP_SETS else replace(LIMITS, searches=_SINGLE_HOP_SEARCHES)

    def _seed(self, example: Example, k: int) -> int:
        return rollout_seed("evals", self.subject.config.run.seed, example.id, k)

    def _searches_allowed(self) -> str:
        if self.method not in SEARCHING:
            return "none"
        most = {
            "rag": "1",
            "ircot": str(LIMITS.sentences + 1),
            "search-o1": f"{_SINGLE_HOP_SEARCHES} (multi-hop {LIMITS.searches})",
        }
        return most.get(self.method, str(self.protocol.max_turns - 1))

    def _refuse_outage(self, rows: Sequence[Row], folder: EvalFolder) -> None:
        failed = [row for row in rows if row["status"] in FAILED]
        if len(failed) < len(rows):
            self._failed_in_a_row = 0
            return
        # What failed before may fail for ever, by its length say: no sign of an outage.
        fresh = [row for row in failed if row["id"] not in folder.failed_before]
        self._failed_in_a_row += len(fresh)
        if self._failed_in_a_row >= _OUTAGE or (len(fresh) > 1 and not folder.rows):
            reason = failed[0].get("error") or f"status {failed[0]['status']}"
            raise RolloutError(
                f"all {len(rows)} questions of a batch failed; the first, {failed[0]['id']}, because {reason}. Put it "
                "right; the same command goes on where it stopped"
            )


class _Nowhere:
    """A retriever that must not be asked: an episode of one turn ends before its search."""

    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[Any]:
        raise AssertionError("an episode without search has searched")


def _id(example: Example, k: int) -> str:
    return f"{example.id}#{k}"


def _running(rows: Mapping[str, Row]) -> dict[str, float]:
    scored = [row["em"] for row in rows.values() if row["em"] is not None]
    return {"EM": sum(scored) / len(scored)} if scored else {}
