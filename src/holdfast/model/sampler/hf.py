"""A policy on a transformers model: continuous decoding over a slot cache, one host synchronisation per step.

Order of work. All decoding rows advance together, one token per step. A row whose turn ended stays in its slot. Its
next request waits until enough rows wait to be prefilled in one pass (an eighth of those decoding), or some have waited
16 steps, or nothing else can decode. Waiting costs a row idle steps, and a prefill costs all rows a forward pass. Steps
and rows are counted, never seconds, so that runs are reproducible.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from holdfast.base.errors import ModelError
from holdfast.model.passes.casting import CastWeights
from holdfast.model.passes.last_layer import last_layer_where
from holdfast.model.sampler.cache import Batch, Row, SlotCache, SlotTable
from holdfast.model.sampler.flash import FlashSlots, serves
from holdfast.model.sampler.graphs import StepGraphs, rounded_rows
from holdfast.model.sampler.policy import Completion, Request, StopReason
from holdfast.model.sampler.sampling import Sampled, check_sampling, counter_uniform, draw, pick_most_likely, seed_key
from holdfast.model.sampler.turn_ends import StopTable
from holdfast.model.support import (
    CACHE_CPU,
    avoid_cudnn_attention,
    check_exact,
    diverged,
    end_ids,
    free_memory,
    give_back_memory,
    planned_forward,
    positions_of,
    refuse_unsupported,
    rows_that_fit,
    text_config,
    whole_memory,
    worth_sharing,
)
from holdfast.model.text.tokens import common_prefix, decode

_LONG = 128  # new tokens of a prefill; with fewer, leaving out most of the last layer costs more than it saves
_PREFILL_SHARE = 8  # prefill once 1/8 as many rows wait as decode
_MAX_WAIT = 16  # steps a row waits at most
# Tokens, padding included, of one prefill pass: bounds its activations, which on a CPU should stay in its caches.
_PREFILL_TOKENS, _PREFILL_TOKENS_CPU = 16_384, 1024
_HEAD = 64  # tokens that sharing what prompts begin with must save, on a CPU, to be worth a pass
_STAYS = 1 / 16  # share of a GPU that storage and casts may take while the model learns


class HFPolicy:
    """Turns sampled from a causal language model of transformers.

    Log-probs are log_softmax(logits / temperature) over the whole vocabulary in float32, whatever truncation the
    sampler applies. The sampling settings of the model's own generation config are ignored; only its end-of-sequence
    ids are read, and joined with the tokenizer's. The model is in eval mode while it samples; leaving it there between
    calls saves switching.

    Args:
        model: decoder-only, full attention in every layer, loaded with sdpa (or eager) attention.
        tokenizer: decodes sampled ids for the stop strings.
        temperature: > 0.
        top_p, top_k: truncate the sampler (see `sampling.draw`); 1.0 and 0 sample from the whole vocabulary.
        autocast_dtype: e.g. `torch.bfloat16`, runs forward passes under autocast. The weights of linear layers are cast
            once for each batch of rollouts.
        on_token: called with (request id, token id) as each token is sampled.
        greedy: take the most likely token instead of sampling.
        max_rows: rollouts whose keys are in memory at once; others queue.
        max_tokens: upper bound on the tokens of a rollout. With it, a GPU holds as many rows as fit into half of its
            free memory. A CPU holds as many as fit into 2 GiB, of this length or that of the longest request so far.

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
        autocast_dtype: torch.dtype | None = None,
        on_token: Callable[[str, int], None] | None = None,
        greedy: bool = False,
        max_rows: int = 512,
        max_tokens: int | None = None,
    ) -> None:
        check_sampling(temperature, top_p, top_k)
        refuse_unsupported(model)
        self.model, self.tokenizer = model, tokenizer
        self.temperature, self.top_p, self.top_k, self.greedy = temperature, top_p, top_k, greedy
        self.autocast_dtype, self.on_token = autocast_dtype, on_token
        self.device = next(self.model.parameters()).device
        if self.device.type == "cuda":
            avoid_cudnn_attention()
        self.max_rows, self._row_limit, self._max_tokens = max_rows, max_rows, max_tokens
        self._max_positions = positions_of(model)
        self._stops = StopTable(tokenizer, end_ids(model, tokenizer), text_config(model).vocab_size)
        self._prefill_tokens = _PREFILL_TOKENS_CPU if self.device.type == "cpu" else _PREFILL_TOKENS
        self._shares_turns = worth_sharing(model)
        self._in_place = serves(model, self.device, autocast_dtype or model.dtype)
        self._forget()
        self._check()

    def with_sampling(
        self, *, temperature: float, top_p: float = 1.0, top_k: int = 0, greedy: bool = False
    ) -> HFPolicy:
        """A policy on the same model with other sampling settings. It shares the checks and tables of the model and its
        tokenizer, and none of the rollouts."""
        check_sampling(temperature, top_p, top_k)
        policy = copy.copy(self)
        policy.temperature, policy.top_p, policy.top_k, policy.greedy = temperature, top_p, top_k, greedy
        policy._forget()
        return policy

    def _check(self) -> None:
        """Raise `ModelError` for a model that the cache cannot serve. Where only slots cannot, they are not used."""
        with self._ready_to_sample():
            if self._flash is not None:
                try:
                    with self._autocast():
                        check_exact(self.model, self.device, self._flash)
                    return
                except (ModelError, RuntimeError) as error:
                    warnings.warn(f"rollouts decode without FlashAttention, which is slower: {error}", stacklevel=3)
                    self._in_place = False
                    self._forget()
            check_exact(self.model, self.device)

    def _forget(self) -> None:
        """Start without rollouts, and without what stays between batches of them."""
        self._cast: CastWeights | None = None
        self._flash: FlashSlots | None = None
        self._graphs: StepGraphs | None = None
        self._weights: list[int] = []
        if self._in_place:
            self._flash = FlashSlots(self.model, self.device, self.autocast_dtype or self.model.dtype)
            self._graphs = StepGraphs()
        self._begin()

    def _begin(self) -> None:
        """Start without rollouts."""
        self._cache = SlotCache(text_config(self.model).num_hidden_layers, self.device)
        self._table = SlotTable(self._flash or self._cache)
        self._rows: dict[str, Row] = {}
        self._waiting: list[Row] = []
        self._waited = 0
        self._longest = 0
        self._decoding = 0
        self._batch: Batch | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; computing starts at the next `poll`.

        Raises `ValueError` for an id whose last request is not finished, `ModelError` for a request that may outgrow
        the model's positions.
        """
        if not self._rows:
            self._read_weights()
            if self._max_tokens is not None:  # training in between changes the free memory of a GPU
                free = free_memory(self.device) if self.device.type == "cuda" else 2 * CACHE_CPU
                self._bound(self._max_tokens, free)
        for request in requests:
            row = self._rows.get(request.id) or Row(id=request.id, context=[])
            if row.request is not None:
                raise ValueError(f"request {request.id} is not finished; poll until it is before continuing it")
            reach = len(request.token_ids) + request.max_new_tokens - 1  # the last sampled token is never fed
            if reach > self._max_positions:
                raise ModelError(
                    f"request {request.id} may reach {reach} tokens, but the model's max_position_embeddings (or "
                    f"sliding_window) is {self._max_positions}; lower max_total_tokens (or the tokens per turn)"
                )
            self._longest = max(self._longest, reach)
            row.begin(request, seed_key(request.seed), self._stops.flags(request.stop))
            self._rows[request.id] = row
            self._waiting.append(row)

    def poll(self) -> list[Completion]:
        """Prefill and decode until at least one request is finished.

        [] when nothing can be computed: no request is pending, or all wait for one of `max_rows` slots.
        """
        finished: list[Completion] = []
        with self._ready_to_sample():
            while not finished:
                if rows := self._choose_prefill():
                    self._prefill(rows, finished)
                elif self._decoding:
                    self._step(finished)
                else:
                    break
        return finished

    def release(self, ids: Iterable[str]) -> None:
        """Forget these rollouts in any state, also after an exception during their prefill.

        The last one frees the memory of the cache, which the optimizer needs between rollouts, unless that is a small
        part of a GPU's.
        """
        leaving = [self._rows.pop(id) for id in ids if id in self._rows]
        if not self._rows:
            cast = self._cast.bytes if self._cast else 0
            if self._flash is not None and self._flash.bytes + cast <= _STAYS * whole_memory(self.device):
                self._begin()
            else:
                self._forget()
            if leaving and self.device.type == "cpu":
                give_back_memory()
        elif leaving:
            gone = set(leaving)
            self._waiting = [row for row in self._waiting if row not in gone]
            self._decoding -= sum(row.decoding for row in leaving)
            for row in leaving:
                if row.slot >= 0:
                    self._table.drop(row)
        self._batch = None

    def _read_weights(self) -> None:
        """Cast the model's present weights. Graphs hold the addresses of the others, and are dropped where these
        change."""
        if self._cast is not None:
            self._cast.refresh()
        else:
            self._cast = CastWeights(self.model, self.autocast_dtype)
        weights = [parameter.data_ptr() for parameter in self.model.parameters()]
        if self._graphs is not None and weights != self._weights:
            self._graphs, self._weights = StepGraphs(), weights

    def _bound(self, tokens: int, free: int) -> None:
        """Set how many rows of so many tokens are in memory at once."""
        fit = rows_that_fit(self.model, tokens, self.autocast_dtype, free)
        self.max_rows = min(self._row_limit, fit)
        self._table.cache.limits = (self.max_rows, tokens)

    def _make_room(self) -> None:
        """Where no length was promised, fewer rows fit the longer the requests become: the rest leave their slots, and
        are prefilled whole when they come back. On a GPU this would need another size of every graph."""
        if not self._waiting or self._max_tokens is not None or self.device.type != "cpu":
            return
        self._bound(max(self._longest, self._cache.capacity), 2 * CACHE_CPU)
        if self._table.trim(self.max_rows):
            self._cache.shrink(self.max_rows)
            self._batch = None

    def _choose_prefill(self) -> list[Row]:
        """Waiting rows to prefill now; none while waiting for more is cheaper, or until rows that decode have ended."""
        self._make_room()
        room = self.max_rows - self._table.taken
        if room < 0:
            return []
        ready = []
        for row in self._waiting:
            room -= row.slot < 0
            if row.slot >= 0 or room >= 0:
                ready.append(row)
        if ready and len(ready) * _PREFILL_SHARE < self._decoding and self._waited < _MAX_WAIT:
            self._waited += 1
            return []
        self._waited = 0
        return ready

    def _prefill(self, rows: list[Row], finished: list[Completion]) -> None:
        """Compute the unseen part of the rows' contexts and their first token, in passes of rows of similar length."""
        chosen = set(rows)
        self._waiting = [row for row in self._waiting if row not in chosen]
        alike: dict[object, list[Row]] = {}
        for row in rows:
            if new := row.slot < 0:
                self._table.take(row)
            # Rows of a tiny model share prompts alone.
            key = (row.cached, *row.context) if new or self._shares_turns else row.id
            alike.setdefault(key, []).append(row)
        entering = [family[0] for family in alike.values() if not family[0].cached]
        if entering and self._shares_turns and self.device.type == "cpu":
            self._share_head(entering)
        families = sorted(alike.values(), key=lambda family: family[0].unseen)
        while families:
            count = max(1, self._prefill_tokens // families[-1][0].unseen)
            self._prefill_pass(families[-count:], finished)
            del families[-count:]
        self._batch = None

    def _share_head(self, rows: list[Row]) -> None:
        """Compute once what the contexts of new rows begin with, such as an instruction; all of them get its keys."""
        contexts = [row.context for row in rows]
        length = min(common_prefix(min(contexts), max(contexts)), min(map(len, contexts)) - 1)
        if length * (len(rows) - 1) < _HEAD:
            return
        self._padded([Row(id="", context=contexts[0][:length], slot=rows[0].slot)], length)
        self._table.cache.copy([(rows[0].slot, row.slot) for row in rows[1:]], length)
        for row in rows:
            row.cached = length

    def _prefill_pass(self, families: list[list[Row]], finished: list[Completion]) -> None:
        """One forward pass over the first row of each family; the others copy its keys and draw from its logits."""
        leaders = [family[0] for family in families]
        length = max(len(row.context) for row in leaders)
        if self._flash is None:
            logits = self._padded(leaders, length)
        else:
            self._table.reserve(length)
            with self._autocast():
                logits = self._flash.append([(row.slot, row.cached, row.context[row.cached :]) for row in leaders])
        self._table.cache.copy([(family[0].slot, row.slot) for family in families for row in family[1:]], length)
        rows = [(i, row) for i, family in enumerate(families) for row in family]
        for _, row in rows:
            row.cached, row.decoding = len(row.context), True
        self._decoding += len(rows)
        source, keys, where = self._columns([(i, row.key, row.cached) for i, row in rows])
        sampled = self._sample(logits.index_select(0, source), keys, where)
        self._accept([(i, row) for i, (_, row) in enumerate(rows)], sampled, finished)

    def _padded(self, leaders: list[Row], length: int) -> Tensor:
        """Logits `[rows, V]` behind the contexts of rows, in a pass with padding."""
        width = max(row.unseen for row in leaders)
        self._table.reserve(length + 1)
        # New tokens are right-aligned in the pass, so that every row's last one is the pass's last position, the only
        # one to be projected onto the vocabulary. All padding in front is stored behind the row's end, where no query
        # reads.
        ids = torch.tensor(
            [[0] * (width - row.unseen) + row.context[row.cached :] for row in leaders], device=self.device
        )
        slots, cached, ends = self._columns([(row.slot, row.cached, len(row.context)) for row in leaders])
        column = torch.arange(width, device=self.device)
        place = ends.unsqueeze(1) - width + column
        real = place >= cached.unsqueeze(1)
        positions = place.where(real, 0)
        write = place.where(real, ends.unsqueeze(1))
        mask = self._cache.plan_rows(slots, write, positions, length=length)
        only_last = last_layer_where(self.model, column.expand_as(ids) == width - 1)
        with only_last if width >= _LONG else nullcontext():
            return self._forward(ids, positions, mask)

    def _step(self, finished: list[Completion]) -> None:
        """One token for every decoding row."""
        batch = self._batch = self._batch or self._assemble()
        self._table.reserve(batch.length)
        if self._graphs is None:
            sampled = self._advance(batch.state, batch.length)
        else:
            cache = self._table.cache
            sampled, batch.state = self._graphs.step(self._advance, batch.state, (cache.slots, cache.capacity))
        for _, row in batch.rows:
            row.cached += 1
        batch.length += 1
        self._accept(batch.rows, sampled, finished)

    def _advance(self, state: Tensor, length: int = 0) -> Sampled:
        """The next token of each row of `Batch.state`, which moves on in place. Without slots rows see `length`
        positions at most. Does not wait for the device."""
        tokens, positions, keys, advance, slots = state.unbind()
        if self._flash is None:
            mask = self._cache.plan_step(positions, length=length)
            logits = self._forward(tokens.unsqueeze(1), positions.unsqueeze(1), mask)
        else:
            with self._autocast():
                logits = self._flash.next(tokens, positions, slots)
        sampled = self._sample(logits, keys, positions + 1)
        tokens.copy_(sampled.tokens)
        positions.add_(advance)
        return sampled

    def _assemble(self) -> Batch:
        """The device-side state, from the rows."""
        self._table.reserve(1 + max(row.cached for row in self._table.rows if row is not None))
        if self._flash is None:
            count = self._table.gather()
            slots = list(enumerate(self._table.rows[:count]))
        else:
            slots = [(slot, row) for slot, row in enumerate(self._table.rows) if row is not None and row.decoding]
            slots += [(self._flash.slots, None)] * (rounded_rows(len(slots)) - len(slots))
        # What an idle slot computes is stored after its row's end, where no query reads.
        table = [(0, row.cached if row is not None else 0, 0, 0, slot) for slot, row in slots]
        rows = [(i, row) for i, (_, row) in enumerate(slots) if row is not None and row.decoding]
        for i, row in rows:
            table[i] = (row.context[-1], row.cached, row.key, 1, slots[i][0])
        state = torch.tensor(table, device=self.device).T.contiguous()
        return Batch(state, rows, length=1 + max(row.cached for _, row in rows))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        with self._autocast():
            return planned_forward(self.model, self._cache, ids, positions, mask)

    def _sample(self, logits: Tensor, keys: Tensor, positions: Tensor) -> Sampled:
        if self.greedy:
            return pick_most_likely(logits, temperature=self.temperature)
        uniforms = counter_uniform(keys, positions)
        return draw(logits, uniforms, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

    def _accept(self, rows: list[tuple[int, Row]], sampled: Sampled, finished: list[Completion]) -> None:
        """Append a sampled token to each row, given with its index in `sampled`; finish the turns it ends."""
        columns = [column.double() for column in sampled if column is not None]
        tokens, logprobs, *masses = torch.stack(columns).tolist()  # the step's one synchronisation
        for index, row in rows:
            token = int(tokens[index])
            row.context.append(token)
            row.logprobs.append(logprobs[index])
            if masses:
                row.masses.append(masses[0][index])
            if self.on_token is not None:
                self.on_token(row.id, token)
        if not math.isfinite(sum(row.logprobs[-1] for _, row in rows)):
            raise diverged(self.model)
        for _, row in rows:
            if reason := self._stops.why_stopped(row):
                finished.append(self._finish(row, reason))
                self._batch = None

    def _finish(self, row: Row, reason: StopReason) -> Completion:
        sampled = tuple(row.context[-len(row.logprobs) :])
        row.request, row.decoding = None, False
        self._decoding -= 1
        return Completion(
            id=row.id,
            token_ids=sampled,
            logprobs=tuple(row.logprobs),
            stop_reason=reason,
            text=decode(self.tokenizer, sampled[:-1] if reason == "eos" else sampled),
            mask_mass=tuple(row.masses) if row.masses else None,
        )

    def _columns(self, table: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
        """The columns of a table of integers, in one transfer."""
        return torch.tensor(table, device=self.device).T.contiguous().unbind()

    @contextmanager
    def _ready_to_sample(self) -> Iterator[None]:
        """No gradients; dropout off; no gradient checkpointing, under which transformers drop the cache; weights cast
        already."""
        training = self.model.training
        if training:
            self.model.eval()
        try:
            with torch.inference_mode(), self._cast.in_place() if self._cast else nullcontext():
                yield
        finally:
            if training:
                self.model.train()
