"""An evaluation from questions to results: batch by batch, each written before the next begins.

A question's batch never changes. A local policy computes the rows of a batch together, and which rows these are moves
the last bits of a logit. So an unfinished batch is computed again as a whole: an evaluation that was stopped at any
time writes, byte for byte, what one without a stop writes in as many CPU threads. From a server, only missing answers
are requested, and each is written as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.agent.agent import Task, call_queue
from holdfast.agent.protocol import render_prompt
from holdfast.agent.scheduler import Agent, run_agents
from holdfast.agent.searching import SEARCH, SearchQueue
from holdfast.base.errors import RolloutError
from holdfast.base.progress import Progress
from holdfast.base.retries import PATIENCE, Retries
from holdfast.base.scoring import MODES, Mode, exact_match, f1, in_passages, sub_em
from holdfast.evaluate.agents import Attempt, PromptEncoder, converse, run_search_agent
from holdfast.evaluate.folder import FAILED, EvalFolder, Row
from holdfast.evaluate.methods import LIMITS, SINGLE_HOP_LIMITS, Method
from holdfast.evaluate.model import EvaluatedModel, agent_protocol, fitted, refuse_unfit
from holdfast.evaluate.questions import digest
from holdfast.evaluate.results import MULTI_HOP_SETS, results_of, set_of
from holdfast.model.sampler.policy import rollout_seed
from holdfast.tasks.files import joined, unmatched
from holdfast.tasks.questions import Example

_OUTAGE = 8
"""So many new failures in a row mean that the server or the retriever is gone."""


class Evaluation:
    """One method and one model on some questions.

    Args:
        model: the model that answers.
        method: one of `METHODS`.
        retriever: None for methods that do not search.
        samples: answers per question; None is one, greedy.
        scorer: `table`; `unicode`; or `official` for the rule of each question's own set.
        bare: ask without instructions, as a model that was trained on the method expects.
        thinking_tokens: for the thought of each call of a prompting method, beyond what the method gives.
        row: name of this row in tables.
    """

    def __init__(
        self,
        model: EvaluatedModel,
        method: Method,
        examples: Sequence[Example],
        retriever: Any,
        *,
        samples: int | None = None,
        scorer: str = "table",
        bare: bool = False,
        thinking_tokens: int = 0,
        row: str = "",
    ) -> None:
        self.model, self.method, self.examples, self.retriever = model, method, examples, retriever
        self.samples, self.scorer, self.row, self.bare = samples, scorer, row, bare
        protocol = agent_protocol(method, model.config)
        self.protocol = fitted(protocol, model)
        self._asked_tokens = protocol.max_total_tokens
        self._thinking_tokens = thinking_tokens
        self._failed_in_a_row = 0
        self._retries = Retries(patience=PATIENCE)

    def settings(self) -> dict[str, Any]:
        """What the answers depend on; results.json repeats these settings."""
        model, method, config = self.model, self.method, self.model.config
        thinking = {"thinking_tokens": self._thinking_tokens} if self._thinking_tokens else {}
        prompting = asdict(LIMITS) | thinking if method.conversation else None
        protocol = {name: value for name, value in asdict(self.protocol).items() if name != "template"}
        return {
            "row": self.row,
            "model": model.name,
            "weights": model.weights,
            "method": method.name,
            "prompt": "bare" if self.bare else "instructed" if prompting else self.protocol.name,
            "decoding": model.decoding,
            "samples": self.samples or 1,
            "seed": config.run.seed,
            "searches": method.searches_allowed(self.protocol),
            "scorer": self.scorer,
            "questions": len(self.examples),
            "questions_digest": digest(self.examples),
            "retrieval": config.retrieval.model_dump() if method.searches else None,
            "passages": getattr(self.retriever, "corpus_hash", None),
            "tokenizer": model.tokenizer_name,
            "topk": self.protocol.topk,
            "protocol": None if prompting else protocol,
            "limits": prompting,
            "chat_template": config.model.chat_template,
            "chat_template_kwargs": config.model.chat_template_kwargs,
        }

    def run(self, out: Path, listener: Progress, *, batch: int = 128) -> dict[str, Any]:
        """Answer the questions that are not answered yet, and write everything. Returns the content of results.json.

        `batch` counts answers; a question's samples stay together. Raises `RolloutError` when every question of a batch
        failed.
        """
        folder = EvalFolder(out)
        refuse_unfit(self.model, self.method, self.protocol)
        if self.method.conversation is None and (fits := self.protocol.max_total_tokens) < self._asked_tokens:
            listener.note(
                f"the model's context has {fits} tokens, fewer than protocol.max_total_tokens = "
                f"{self._asked_tokens}. Turns that do not fit count as truncated. To set the limit yourself: "
                f"--protocol.max_total_tokens {fits}"
            )
        if self.scorer == "table" and (note := unmatched(self.examples)) is not None:
            listener.note(f"{note}; every answer to them counts as wrong")
        if (note := joined(self.examples)) is not None:
            listener.note(note)
        settings = self.settings() | {"batch": batch if self.model.local else None}
        folder.begin(settings)
        count = self.samples or 1
        total = len(self.examples) * count
        existing = len(folder.rows)
        if existing:
            listener.note(f"{existing} of {total} answers exist already, in {out}")
        listener.stage(f"evaluating {self.method.name}", total - existing)
        listener.advance(0, _running(folder.rows))
        size = max(batch // count, 1)
        for start in range(0, len(self.examples), size):
            part = self.examples[start : start + size]
            batch_answers = [(example, k) for example in part for k in range(count)]
            missing = [(example, k) for example, k in batch_answers if _id(example, k) not in folder.rows]
            if not missing:
                continue
            ended = partial(_advance, listener, len(folder.rows) - existing, len(missing), _running(folder.rows))
            rows = self._answer(batch_answers if self.model.local else missing, folder, ended)
            self._refuse_outage(rows, folder)
            if start == existing == 0:
                self._refuse_silence(rows, folder)
            folder.add(rows)
            listener.advance(len(folder.rows) - existing, _running(folder.rows))
        ids = [_id(example, k) for example in self.examples for k in range(count)]
        answers = [folder.rows[id] for id in ids]
        if cut := [row["id"] for row in answers if row["status"] == "truncated"]:
            listener.note(f"{len(cut)} of {total} answers were cut, the first {cut[0]}. {self._room()}")
        results = results_of(answers, settings)
        folder.finish(ids, results)
        return results

    def _answer(
        self, requested: Sequence[tuple[Example, int]], folder: EvalFolder, ended: Callable[[int], None]
    ) -> list[Row]:
        """A row for each answer. `ended` gets the number of answers that are finished.

        A server's answers go into `folder` one by one, so a stop loses none that it gave. Failures wait for the end of
        the batch, which shows whether they are an outage.
        """
        finished = 0

        def answered(example: Example, k: int) -> Agent[Row]:
            nonlocal finished
            row = self._row(example, k, (yield from self._agent(example, k)))
            if not self.model.local and row["status"] not in FAILED:
                folder.add([row])
            finished += 1
            ended(finished)
            return row

        agents = {_id(example, k): answered(example, k) for example, k in requested}
        calls = call_queue(self.protocol)
        if self.retriever is None:
            return run_agents(agents, policy=self.model.policy, tools=calls)
        with closing(SearchQueue(self.retriever, self.protocol.topk, retries=self._retries)) as queue:
            return run_agents(agents, policy=self.model.policy, tools={SEARCH: queue, **calls})

    def _agent(self, example: Example, k: int) -> Agent[Attempt]:
        model, conversation = self.model, self.method.bare if self.bare else self.method.conversation
        id, seed = _id(example, k), rollout_seed("evals", model.config.run.seed, example.id, k)
        if conversation is not None:
            limits = LIMITS if set_of(example) in MULTI_HOP_SETS else SINGLE_HOP_LIMITS
            encoder = PromptEncoder(model.tokenizer, self.protocol.template, model.positions, self._thinking_tokens)
            return converse(conversation(example.question.strip(), limits), encoder, id, seed)
        prompt = tuple(render_prompt(example.question, self.protocol, model.tokenizer))
        task = Task(id=id, example_id=example.id, prompt=prompt, seed=seed)
        return run_search_agent(task, self.protocol, model.tokenizer)

    def _row(self, example: Example, k: int, attempt: Attempt) -> Row:
        golds, mode, failed = example.golden_answers, self._mode(example), attempt.status.is_failure
        prediction, searches = attempt.prediction, attempt.searches
        hit = in_passages(attempt.passages, golds) if searches and not failed else None
        row: Row = {
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
            "status": attempt.status.value,
        }
        if attempt.error is not None:
            row["error"] = attempt.error
        row |= {"searches": searches, "calls": attempt.calls}
        if self.method.single_call and attempt.raw is not None:
            row["em_raw"] = exact_match(attempt.raw, golds, mode=mode)
        return row | {"steps": attempt.steps}

    def _mode(self, example: Example) -> Mode:
        name = set_of(example)
        if self.scorer == "unicode":
            return "unicode"
        return name if self.scorer == "official" and name in MODES else "table"  # type: ignore[return-value]

    def _refuse_outage(self, rows: Sequence[Row], folder: EvalFolder) -> None:
        failed = [row for row in rows if row["status"] in FAILED]
        if len(failed) < len(rows):
            self._failed_in_a_row = 0
            return
        # A question that failed before may always fail, for its length say. That is not an outage.
        new = [row for row in failed if row["id"] not in folder.failed_before]
        self._failed_in_a_row += len(new)
        if self._failed_in_a_row >= _OUTAGE or (len(new) > 1 and not folder.rows):
            reason = failed[0].get("error") or f"status {failed[0]['status']}"
            raise RolloutError(
                f"all {len(rows)} questions of a batch failed. The first error, of {failed[0]['id']}: {reason}. Fix "
                "it and run the same command again: it continues where it stopped"
            )

    def _refuse_silence(self, rows: Sequence[Row], folder: EvalFolder) -> None:
        """A score of answers that were all cut, or are all empty, says nothing. Rollouts of a local model are another
        matter: one that has collapsed answers nothing, and its score is 0."""
        if (self.model.local and self.method.conversation is None) or len(rows) < 2:
            return
        cut = [row for row in rows if row["status"] == "truncated"]
        empty = [row for row in rows if not any(step.get("says", "").strip() for step in row["steps"])]
        if any(row["prediction"] is not None or not (row in cut or row in empty) for row in rows):
            return
        folder.discard()
        if cut:
            what = f"{len(cut)} of them were cut off first. {self._room()}"
        else:
            what = "They are empty. Ask the model one question by hand, to see what it answers"
        raise RolloutError(f"none of the {len(rows)} answers of the first batch contains an answer. {what}")

    def _room(self) -> str:
        """What to do about answers that are cut."""
        if self.method.conversation is None:
            return "A model that thinks may need more: raise protocol.max_turn_tokens and protocol.max_total_tokens"
        given = f" (it has {self._thinking_tokens})" if self._thinking_tokens else ""
        return (
            "A model that thinks needs tokens for its thoughts, in addition to the method's limit for an answer: "
            f"give --thinking-tokens 4096 or more{given}, or turn thinking off, as --model.chat_template_kwargs "
            "'{enable_thinking = false}' does for Qwen3"
        )


def _id(example: Example, k: int) -> str:
    return f"{example.id}#{k}"


def _advance(listener: Progress, before: int, missing: int, detail: Mapping[str, float], finished: int) -> None:
    """Tell of every eighth of a batch: its answers end in bursts, which say little of the time left."""
    if finished % max(missing // 8, 1) == 0:
        listener.advance(before + min(finished, missing), detail)


def _running(rows: Mapping[str, Row]) -> dict[str, float]:
    scored = [row["em"] for row in rows.values() if row["em"] is not None]
    return {"EM": sum(scored) / len(scored)} if scored else {}
