"""A policy on a transformers model: continuous decoding over a slot cache, one host synchronisation per step.

How the work is ordered. All decoding rows advance together, one token a step. A row whose turn ended stays in its slot;
when its next request comes, it waits until enough rows wait to be prefilled in one pass (an eighth of those decoding),
or the oldest has waited 16 steps, or nothing else can decode. Waiting costs a row idle steps, prefilling alone costs
everybody a forward pass; counting steps and rows, never seconds, keeps runs reproducible. Rows that neither decode nor
are about to are swapped out of the decoding slots once they are more than an eighth of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ConfigError, ModelError
from holdfast.rollout.cache import SlotCache
from holdfast.rollout.policy import Completion, Request, StopReason
from holdfast.rollout.sampling import Sampled, counter_uniform, draw, pick_most_likely, seed_key
from holdfast.rollout.stops import END, StopTable
from holdfast.rollout.support import (
    accepts_logits_to_keep,
    check_exact,
    planned_forward,
    refuse_unsupported,
    text_config,
)
from holdfast.search.tokens import decode

_SHARE = 8  # rows wait, and idle rows are tolerated, up to 1/8 of the decoding ones
_PATIENCE = 16  # steps a request may wait while others decode
_PREFILL_TOKENS = 8192  # tokens, padding included, of one prefill pass: bounds its activations


@dataclass(slots=True, eq=False)
class _Row:
    """One episode's place in the cache, and its request while one is under way."""

    id: str
    context: list[int]
    cached: int = 0
    """Leading tokens of `context` whose keys are stored. The newest sampled token never is."""
    slot: int = -1
    request: Request | None = None
    key: int = 0
    flags: bytes = b""
    decoding: bool = False
    start: int = 0
    limit: int = 0
    """Length of `context` at which the turn ends."""
    logprobs: list[float] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """Device-side state of slots 0..n-1, valid until a row enters or leaves."""

    tokens: Tensor
    positions: Tensor
    keys: Tensor
    advance: Tensor
    """1 for decoding rows, 0 for idle slots, whose computations are thrown away."""
    rows: list[tuple[int, _Row]]
    length: int


class HFPolicy:
    """Turns sampled from a causal language model of transformers.

    Log-probs are log_softmax(logits / temperature) over the whole vocabulary in float32, whatever truncation the
    sampler applies. The sampling settings of the model's own generation config are ignored; only its end-of-sequence
    ids are read, and joined with the tokenizer's.

    Args:
        model: decoder-only, full attention in every layer, loaded with sdpa (or eager) attention.
        tokenizer: decodes sampled ids for the stop strings.
        temperature: > 0.
        top_p, top_k: truncate the sampler (see `sampling.draw`); 1.0 and 0 sample from the whole vocabulary.
        device: moves the model there; None leaves it where it is.
        autocast_dtype: e.g. `torch.bfloat16`, runs forward passes under autocast.
        on_token: called with (request id, token id) as each token is sampled.
        greedy: take the most likely token instead of sampling.
        max_rows: episodes whose keys are held at once; further ones queue.

    Raises:
        ModelError: sliding windows, recurrent state or an attention implementation that the cache cannot serve.
        ConfigError: a sampling setting out of range.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        device: torch.device | str | None = None,
        autocast_dtype: torch.dtype | None = None,
        on_token: Callable[[str, int], None] | None = None,
        greedy: bool = False,
        max_rows: int = 512,
    ) -> None:
        if not temperature > 0:
            raise ConfigError(
                f"temperature = {temperature}: logits cannot be divided by it; for the most likely token use greedy"
            )
        if not 0 < top_p <= 1 or top_k < 0:
            raise ConfigError(
                f"top_p = {top_p}, top_k = {top_k}: top_p must lie in (0, 1] and top_k must be 0 (all) or more"
            )
        refuse_unsupported(model)
        self.model = model if device is None else model.to(device)
        self.tokenizer = tokenizer
        self.temperature, self.top_p, self.top_k, self.greedy = temperature, top_p, top_k, greedy
        self.autocast_dtype, self.on_token, self.max_rows = autocast_dtype, on_token, max_rows
        self.device = next(self.model.parameters()).device
        self._keep = {"logits_to_keep": 1} if accepts_logits_to_keep(model) else {}
        self._max_positions = getattr(text_config(model), "max_position_embeddings", None) or math.inf
        self._stops = StopTable(tokenizer, self._end_ids(), text_config(model).vocab_size)
        self._cache = self._new_cache()
        self._rows: dict[str, _Row] = {}
        self._slots: list[_Row | None] = []
        self._free: list[int] = []
        self._waiting: list[_Row] = []
        self._decoding = 0
        self._waited = 0
        self._batch: _Batch | None = None
        with self._evaluating():
            check_exact(self.model, self.device)

    # ---- the Policy protocol

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; computing starts at the next `poll`."""
        for request in requests:
            row = self._rows.get(request.id)
            if row is not None and row.request is not None:
                raise ValueError(
                    f"request {request.id} is still under way; poll until it is finished before continuing it"
                )
            context = list(request.token_ids)
            limit = len(context) + request.max_new_tokens
            if limit - 1 > self._max_positions:
                raise ModelError(
                    f"request {request.id} may reach {limit} tokens, but the model's max_position_embeddings is "
                    f"{self._max_positions}; lower max_total_tokens (or the tokens per turn)"
                )
            if row is None:
                row = self._rows[request.id] = _Row(id=request.id, context=context)
            else:
                # At least the last token is always fed: its logits start the turn.
                row.cached = min(_common_prefix(row.context, context), row.cached, len(context) - 1)
                row.context = context
            row.request, row.key, row.flags = request, seed_key(request.seed), self._stops.flags(request.stop)
            row.start, row.limit = len(context), limit
            row.logprobs, row.masses = [], []
            self._waiting.append(row)

    def poll(self) -> list[Completion]:
        """Prefill and decode until at least one request is finished; [] when none is under way."""
        finished: list[Completion] = []
        with torch.inference_mode(), self._evaluating():
            while not finished and (self._waiting or self._decoding):
                ready = self._admissible()
                if ready:
                    self._prefill(ready, finished)
                else:
                    self._step(finished)
        return finished

    def release(self, ids: Iterable[str]) -> None:
        for id in ids:
            row = self._rows.pop(id, None)
            if row is None:
                continue
            if row.decoding:
                self._decoding -= 1
                row.decoding = False
            elif row.request is not None:
                self._waiting.remove(row)
            if row.slot >= 0:
                self._slots[row.slot] = None
                heapq.heappush(self._free, row.slot)
            self._batch = None
        if not self._rows:
            self._cache, self._slots, self._free = self._new_cache(), [], []

    # ---- scheduling

    def _admissible(self) -> list[_Row]:
        """Rows to prefill now; empty while waiting for company is better."""
        if not self._waiting:
            return []
        room = self.max_rows - sum(row is not None for row in self._slots)
        ready = []
        for row in self._waiting:
            if row.slot < 0:
                room -= 1
            if row.slot >= 0 or room >= 0:
                ready.append(row)
        if not ready and not self._decoding:
            raise ValueError(
                f"{self.max_rows} episodes hold a cache and none of them has a request, so the "
                f"{len(self._waiting)} queued ones can never start; release finished episodes, or raise max_rows"
            )
        enough = len(ready) * _SHARE >= self._decoding or self._waited >= _PATIENCE
        return ready if enough else []

    def _prefill(self, rows: list[_Row], finished: list[Completion]) -> None:
        """Compute the unseen part of the rows' contexts, and their first token."""
        chosen = set(map(id, rows))
        self._waiting = [row for row in self._waiting if id(row) not in chosen]
        self._waited = 0
        families: list[list[_Row]] = []
        same_prompt: dict[tuple[int, ...], list[_Row]] = {}
        for row in rows:
            if row.slot < 0:
                row.slot = self._take_slot(row)
                same_prompt.setdefault(tuple(row.context), []).append(row)
            else:
                families.append([row])
        families += same_prompt.values()
        families.sort(key=lambda family: len(family[0].context) - family[0].cached)
        while families:
            widest = len(families[-1][0].context) - families[-1][0].cached
            count = max(1, _PREFILL_TOKENS // widest)
            self._prefill_pass(families[-count:], finished)
            del families[-count:]
        self._batch = None

    def _prefill_pass(self, families: list[list[_Row]], finished: list[Completion]) -> None:
        """One forward pass over the first row of each family; the others copy its keys and draw from its logits."""
        leaders = [family[0] for family in families]
        width = max(len(row.context) - row.cached for row in leaders)
        length = max(len(row.context) for row in leaders)
        self._cache.reserve(len(self._slots), max(row.cached for row in leaders) + width)
        # New tokens are right-aligned in the pass, so that every row's last one is the pass's last position, the only
        # one to be projected onto the vocabulary. The padding in front is stored behind the row's end, where nothing
        # looks.
        ids = [[0] * (width - len(row.context) + row.cached) + row.context[row.cached :] for row in leaders]
        ids_t = torch.tensor(ids, device=self.device)
        slots, cached, end = torch.tensor(
            [(row.slot, row.cached, len(row.context)) for row in leaders], device=self.device
        ).T.contiguous()
        column = torch.arange(width, device=self.device)
        place = end.unsqueeze(1) - width + column
        real = place >= cached.unsqueeze(1)
        sees = place.where(real, 0)
        write = place.where(real, end.unsqueeze(1) + column)
        logits = self._forward(ids_t, sees, self._cache.plan_rows(slots, write, sees, length=length))
        followers = [(family[0].slot, row.slot) for family in families for row in family[1:]]
        if followers:
            source, target = torch.tensor(followers, device=self.device).T
            self._cache.copy(source, target, length)
        rows = [row for family in families for row in family]
        which = [i for i, family in enumerate(families) for _ in family]
        for row in rows:
            row.cached = len(row.context)
            row.decoding = True
        self._decoding += len(rows)
        keys, positions, index = torch.tensor(
            [(row.key, row.cached, i) for row, i in zip(rows, which, strict=True)], device=self.device
        ).T.contiguous()
        sampled = self._sample(logits.index_select(0, index), keys, positions)
        self._accept(list(enumerate(rows)), sampled, finished)

    def _step(self, finished: list[Completion]) -> None:
        """One token for every decoding row."""
        batch = self._batch or self._assemble()
        self._cache.reserve(len(self._slots), batch.length)
        mask = self._cache.plan_step(batch.positions, length=batch.length)
        logits = self._forward(batch.tokens.unsqueeze(1), batch.positions.unsqueeze(1), mask)
        positions = batch.positions + batch.advance
        sampled = self._sample(logits, batch.keys, positions)
        for _, row in batch.rows:
            row.cached += 1
        self._waited += bool(self._waiting)
        batch.tokens, batch.positions, batch.length = sampled.tokens, positions, batch.length + 1
        self._batch = batch
        self._accept(batch.rows, sampled, finished)

    def _assemble(self) -> _Batch:
        """Device tensors for slots 0..n-1, after moving idle rows out of the way if there are too many."""
        count = self._compact()
        columns: list[tuple[int, int, int, int]] = []
        rows = []
        for slot, row in enumerate(self._slots[:count]):
            if row is not None and row.decoding:
                columns.append((row.context[-1], row.cached, row.key, 1))
                rows.append((slot, row))
            else:
                # Idle slots compute too; what they store lands behind their end.
                columns.append((0, row.cached if row else 0, 0, 0))
        self._cache.reserve(len(self._slots), 1 + max(column[1] for column in columns))
        length = 1 + max(row.cached for _, row in rows)
        tokens, positions, keys, advance = torch.tensor(columns, device=self.device).T.contiguous()
        return _Batch(tokens, positions, keys, advance, rows, length)

    def _compact(self) -> int:
        """Number of leading slots that hold all decoding rows; swaps rows when too many others lie among them."""
        decoding = [row for row in self._slots if row is not None and row.decoding]
        count, reach = len(decoding), 1 + decoding[-1].slot
        if (reach - count) * _SHARE <= count:
            return reach
        holes = [slot for slot in range(count) if (row := self._slots[slot]) is None or not row.decoding]
        movers = [row for row in decoding if row.slot >= count]
        moves, length = [], 0
        for hole, mover in zip(holes, movers, strict=True):
            resident, origin = self._slots[hole], mover.slot
            moves.append((origin, hole))
            length = max(length, mover.cached)
            if resident is not None:
                moves.append((hole, origin))
                length = max(length, resident.cached)
                resident.slot = origin
            self._slots[hole], self._slots[origin], mover.slot = mover, resident, hole
        source, target = torch.tensor(moves, device=self.device).T
        self._cache.copy(source, target, length)
        self._free = [slot for slot, row in enumerate(self._slots) if row is None]
        return count

    # ---- one forward pass

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None):
            return planned_forward(self.model, self._cache, ids, positions, mask, **self._keep)[:, -1]

    def _sample(self, logits: Tensor, keys: Tensor, positions: Tensor) -> Sampled:
        if self.greedy:
            return pick_most_likely(logits, temperature=self.temperature)
        uniforms = counter_uniform(keys, positions)
        return draw(logits, uniforms, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

    def _accept(self, rows: list[tuple[int, _Row]], sampled: Sampled, finished: list[Completion]) -> None:
        """Append one sampled token to each row, and finish those whose turn it ends."""
        columns = [sampled.tokens.double(), sampled.logprobs.double()]
        if sampled.kept_mass is not None:
            columns.append(sampled.kept_mass.double())
        tokens, logprobs, *masses = torch.stack(columns).tolist()  # the step's one synchronisation
        done = len(finished)
        for index, row in rows:
            token = int(tokens[index])
            row.context.append(token)
            row.logprobs.append(logprobs[index])
            if masses:
                row.masses.append(masses[0][index])
            flag = row.flags[token]
            if flag or len(row.context) >= row.limit:
                reason = self._why_stopped(row, flag)
                if reason is not None:
                    finished.append(self._finish(row, reason))
        if not all(math.isfinite(logprobs[index]) for index, _ in rows):
            raise ModelError(
                "the model's logits are not finite, so nothing can be sampled; its weights have probably diverged"
            )
        if self.on_token is not None:
            for _, row in rows:
                self.on_token(row.id, row.context[-1])
        if len(finished) > done:
            self._batch = None

    def _why_stopped(self, row: _Row, flag: int) -> StopReason | None:
        assert row.request is not None
        if flag == END:
            return "eos"
        if flag:
            text = decode(self.tokenizer, row.context[row.start :])
            if any(stop in text for stop in row.request.stop):
                return "stop"
        return "length" if len(row.context) >= row.limit else None

    def _finish(self, row: _Row, reason: StopReason) -> Completion:
        sampled = tuple(row.context[row.start :])
        row.request, row.decoding = None, False
        self._decoding -= 1
        return Completion(
            id=row.id,
            token_ids=sampled,
            logprobs=tuple(row.logprobs),
            stop_reason=reason,
            text=decode(self.tokenizer, sampled[:-1] if reason == "eos" else sampled),
            kept_mass=tuple(row.masses) if row.masses else None,
        )

    # ---- small things

    def _take_slot(self, row: _Row) -> int:
        if self._free:
            slot = heapq.heappop(self._free)
            self._slots[slot] = row
            return slot
        self._slots.append(row)
        return len(self._slots) - 1

    def _new_cache(self) -> SlotCache:
        return SlotCache(text_config(self.model).num_hidden_layers)

    def _end_ids(self) -> set[int]:
        ends = {self.tokenizer.eos_token_id}
        configured = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ends.update(configured if isinstance(configured, list | tuple) else [configured])
        return {token for token in ends if token is not None}

    def _evaluating(self) -> _Evaluating:
        return _Evaluating(self.model)


class _Evaluating:
    """Eval mode while inside: dropout off, and no gradient checkpointing, under which transformers drop the cache."""

    def __init__(self, model: Any) -> None:
        self.model, self.training = model, model.training

    def __enter__(self) -> None:
        if self.training:
            self.model.eval()

    def __exit__(self, *_: object) -> None:
        if self.training:
            self.model.train()


def _common_prefix(a: list[int], b: list[int]) -> int:
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
