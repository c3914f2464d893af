"""The state of one rollout, turn by turn: how a completion and a search result change it. No policy, no retriever.

Every loop that runs rollouts uses it, so that a rollout means the same in the local trainer and in a host. Token in,
token out: the context is the prompt, the sampled ids and the ids of the observations, appended and never encoded again.
A rollout that exhausts its budget ends as truncated; nothing is dropped from the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.agent.observations import Observation
from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.tools import ToolProtocol
from holdfast.agent.trajectory import Answer, Call, Read, Search, Status, ToolResult, Trajectory, Turn
from holdfast.base.errors import RetrievalError
from holdfast.model.sampler.policy import Completion
from holdfast.model.text.tokens import Tokenizer, token_span
from holdfast.retrieval.types import Hit


class RolloutState:
    """A rollout in progress. Sample a turn of at most `remaining_tokens()` tokens and pass it to `take_turn`. If that
    returns a search or a call, pass what comes back to `take_hits` or `take_result`. Repeat until `status` is set.

    It ends as `OK` with an answer; as `TRUNCATED` when its turns or tokens are used up (also after a search in the last
    turn, whose result could not be read); as `RETRIEVAL_FAILED`; or as `ERROR` when the prompt alone fills
    `max_total_tokens`, or the policy failed.
    """

    def __init__(self, prompt: Sequence[int], protocol: SearchProtocol, tokenizer: Tokenizer) -> None:
        self._protocol, self._tokenizer = protocol, tokenizer
        self.prompt = tuple(prompt)
        self.context = list(prompt)
        """All token ids so far: what the next turn is sampled from."""
        self.turns: list[Turn] = []
        self._found: dict[str, Hit] = {}
        """Passages that searches returned, by id: what `read` can read."""
        self.status: Status | None = None
        """None while the rollout runs."""
        self.error: str | None = None
        if len(prompt) >= protocol.max_total_tokens:
            self.fail(f"a prompt of {len(prompt)} tokens fills protocol.max_total_tokens = {protocol.max_total_tokens}")

    def remaining_tokens(self) -> int:
        """Tokens the next turn may have; 0 when the rollout has ended."""
        if self.status is not None:
            return 0
        return min(self._protocol.max_turn_tokens, self._protocol.max_total_tokens - len(self.context))

    def take_turn(self, completion: Completion) -> Search | Call | None:
        """Append the turn. Returns its action if that has a result which must be awaited."""
        if completion.error is not None:
            self.fail(completion.error)
            return None
        ids, text = completion.token_ids, completion.text
        action, chars = self._protocol.parse(text, self._tokenizer, finished=completion.stop_reason != "length")
        span = token_span(ids, chars, self._tokenizer) if chars and ids is not None else None
        turn = Turn(
            tokens=ids,
            logprobs=completion.logprobs,
            action=action,
            text=text,
            stop_reason=completion.stop_reason,
            answer_span=span if isinstance(action, Answer) else None,
            query_span=span if isinstance(action, Search | Read | Call) else None,
            mask_mass=completion.mask_mass,
        )
        # The text of a server that returns no ids must be encoded here; such a rollout cannot be trained on.
        self.context += self._protocol.said(text, self._tokenizer) if ids is None else ids
        self.turns.append(turn)
        if isinstance(action, Answer):
            self.status = Status.OK
        elif len(self.turns) >= self._protocol.max_turns or len(self.context) >= self._protocol.max_total_tokens:
            self.status = Status.TRUNCATED
        elif ids is None and not text and completion.stop_reason == "length":
            self.status = Status.TRUNCATED  # the server counts its tokens, and has room for none
        elif isinstance(action, Search | Call):
            return action
        elif isinstance(action, Read):
            found = self._found.get(action.passage)
            self._observe_hits([] if found is None else [found])
        else:
            self._observe_hits(None)
        return None

    def take_hits(self, result: Sequence[Hit] | RetrievalError) -> None:
        """Append what the search of the last turn returned, or end the rollout with its failure."""
        if isinstance(result, RetrievalError):
            self.fail(str(result), Status.RETRIEVAL_FAILED)
        else:
            self._found |= {hit.document.id: hit for hit in result}
            self._observe_hits(result)

    def take_result(self, result: ToolResult) -> None:
        """Append what the call of the last turn returned. A failed one says so to the model, and the rollout goes
        on."""
        assert isinstance(self._protocol, ToolProtocol)
        turn = self.turns[-1]
        self.turns[-1] = replace(turn, result=result)
        self._observe(self._protocol.observe_result(result, self._tokenizer, turn=turn.tokens or ()))

    def fail(self, why: str, status: Status = Status.ERROR) -> None:
        """End the rollout for a reason that says nothing about the policy."""
        self.status, self.error = status, why

    def trajectory(self, example_id: str) -> Trajectory:
        """The rollout as a value, unscored. It must have ended."""
        assert self.status is not None, f"a rollout of {example_id} never ended"
        return Trajectory(
            example_id=example_id, prompt=self.prompt, turns=tuple(self.turns), status=self.status, error=self.error
        )

    def _observe_hits(self, hits: Sequence[Hit] | None) -> None:
        ids = tuple(hit.document.id for hit in hits or ())
        self._observe(self._protocol.observe(hits, self._tokenizer, turn=self.turns[-1].tokens or ()), ids)

    def _observe(self, observation: Observation, hits: tuple[str, ...] = ()) -> None:
        """Append the observation if at least one more token fits after it; else end the rollout without it."""
        if len(self.context) + len(observation.token_ids) >= self._protocol.max_total_tokens:
            self.status = Status.TRUNCATED
            return
        self.context += observation.token_ids
        self.turns[-1] = replace(
            self.turns[-1],
            observation=observation.token_ids,
            observation_text=observation.text,
            hits=hits,
            observation_truncated=observation.truncated,
        )
