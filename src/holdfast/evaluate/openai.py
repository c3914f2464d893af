"""A policy behind an OpenAI-compatible server: turns by text, for evaluation.

`POST /v1/completions`, one call a turn, with the whole context as text. It returns no token ids, so its rollouts
cannot be trained on. The tokenizer applies the chat template here, as for a local model: the server gets plain text.

`POST /v1/chat/completions` gets a context as one user message, and the server writes the template: no tokenizer is
needed here. Methods that continue an answer cannot use it: such a server begins another answer, or its template strips
blanks and drops thoughts.

Neutral sampling values are always sent, because servers otherwise take the model's own (`top_k`, repetition penalty).
A server that refuses a field by its name gets the request without it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any

from holdfast.base.answers import Answer, HTTPClient, whole_characters
from holdfast.base.errors import RolloutError
from holdfast.base.retries import PATIENCE, Retries
from holdfast.base.thoughts import thought_field, through_first
from holdfast.base.workers import LoopThread
from holdfast.evaluate.servers import Server, uses_proxy
from holdfast.model.sampler.policy import Completion, Request, StopReason
from holdfast.model.text.tokens import Tokenizer, decode_for_server

_TRANSIENT = frozenset({408, 409, 425, 500, 504})
"""HTTP statuses worth a retry."""
_AWAY = frozenset({429, 502, 503})
"""HTTP statuses of a server that is restarted, or asks for fewer calls. They are tried again for longer."""
_MAX_BYTES = 2**18  # of an answer, beside its turn
_MAX_BYTES_PER_TOKEN = 256  # of a turn: what is longer was not sampled with the limit that was sent

_REFUSED = frozenset({400, 413, 422})
_NO_QUOTA = re.compile(r"insufficient_quota|credit_balance", re.I)
_CONTEXT_FULL = re.compile(
    # vLLM, SGLang and OpenAI; llama.cpp; LM Studio; Anthropic; TGI
    r"context[ _](length|size|window|limit)|maximum model length|prompt is too long|max_new_tokens` must be"
    r"|`inputs` must have",
    re.I,
)
_UNKNOWN_FIELD = re.compile(r"unsupported|unrecogni[sz]ed|unknown|not (supported|permitted|allowed)|forbidden", re.I)
_OPTIONAL = ("top_k", "repetition_penalty", "include_stop_str_in_output", "seed", "stop")
"""Fields that a server need not know. A stop text that it overruns is cut off here."""


class OpenAIPolicy:
    """Turns from a server.

    Args:
        server: where it is, the model and the key.
        tokenizer: decodes contexts; `WordTokenizer` if the model's is not available, and for a chat endpoint.
        template_variables: for the chat template of a chat endpoint; vLLM and SGLang take them.
        temperature: 0 is greedy decoding.
        concurrency: simultaneous calls.
        timeout: seconds of one attempt. retries: attempts after the first. backoff: seconds before the second.
        patience: seconds for which a server may be unreachable or refuse all calls for the moment.

    Raises:
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self,
        server: Server,
        tokenizer: Tokenizer,
        *,
        template_variables: Mapping[str, Any] | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        concurrency: int = 32,
        timeout: float = 300.0,
        retries: int = 3,
        backoff: float = 1.0,
        patience: float = PATIENCE,
    ) -> None:
        self.server, self.url, self.tokenizer = server, server.url, tokenizer
        self._added, self._variables = added_bos(tokenizer), dict(template_variables or {})
        self.temperature, self.top_p = temperature, top_p
        self._timeout, self._patience = timeout, patience
        self._retries = Retries(retries, backoff=backoff, patience=patience)
        self._http = HTTPClient(self.url, secret=server.api_key, proxies=uses_proxy(self.url))
        self._loop, self._turns = LoopThread("server"), asyncio.Semaphore(concurrency)
        self._pending: dict[Future[Completion], str] = {}
        self._omitted: frozenset[str] = frozenset()
        """Fields that the server refused."""
        self._limit = "max_tokens"

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests, `concurrency` at a time."""
        for request in requests:
            self._pending[self._loop.start(self._complete(request))] = request.id

    def poll(self) -> list[Completion]:
        """Wait until at least one is answered. A call that failed has an error."""
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        answered = [call for call in self._pending if call in done]
        for call in answered:
            del self._pending[call]
        return [call.result() for call in answered]

    def release(self, ids: Iterable[str]) -> None:
        """Cancel the calls of these ids."""
        released = set(ids)
        for call in [call for call, id in reversed(self._pending.items()) if id in released]:
            call.cancel()  # those that wait for a turn first, or the end of another would start them
            del self._pending[call]

    def close(self) -> None:
        """End the thread, and cancel running calls."""
        self._loop.close()

    async def _complete(self, request: Request) -> Completion:
        async with self._turns:
            try:
                return await self._turn(request)
            except RolloutError as error:
                return replace(_cut(request), error=str(error))

    async def _turn(self, request: Request) -> Completion:
        """The answer to a call, which is made again while the server cannot answer for the moment, without fields that
        it does not know, and with fewer tokens where its context is full. Raises `RolloutError`."""
        failures, most = 0, request.max_new_tokens
        while True:
            body, away, asked = self._body(request, most), False, 0.0
            try:
                answer = await self._post(body)
                if answer.status == 200:
                    completion = parse_completion(answer, request, chat=self.server.is_chat)
                    self._retries.answered()
                    return completion
                if self._adapt(answer, body):
                    continue
                if answer.status in _REFUSED and _CONTEXT_FULL.search(answer.body.decode("utf-8", "replace")):
                    if most == 1:
                        return _cut(request)
                    most //= 2  # how many tokens still fit, only the server can tell
                    continue
                reason, asked = self._refusal(answer), answer.retry_after
                away = answer.status in _AWAY and not _NO_QUOTA.search(reason)  # no account fills while one waits
                if not away and answer.status not in _TRANSIENT:
                    raise RolloutError(reason)
            except (TimeoutError, ConnectionError, ValueError) as error:
                away, reason = isinstance(error, ConnectionError), str(error)
            failures += 1
            pause = self._retries.pause(failures, away=reason if away else None, asked=asked)
            if pause is None or asked > self._patience:
                raise RolloutError(reason)
            await asyncio.sleep(pause)

    def _adapt(self, answer: Answer, body: Mapping[str, Any]) -> bool:
        """Leave out, from now on, the optional fields of a body that the server refuses. False if there are none."""
        text = answer.body.decode("utf-8", "replace")
        if answer.status not in _REFUSED or not _UNKNOWN_FIELD.search(text):
            return False
        if "max_tokens" in body and "max_completion_tokens" in text:
            self._limit = "max_completion_tokens"
            return True
        neutral = (*_OPTIONAL, *(("top_p",) if self.top_p == 1 else ()))
        refused = {name for name in neutral if name in body and re.search(rf"\b{name}\b", text)}
        self._omitted |= refused
        return bool(refused)

    def _refusal(self, answer: Answer) -> str:
        """A sentence on a status that is not 200."""
        reason = f"{self.url} answered {answer.status}: {answer.quoted()}"
        if answer.status in (401, 403):
            return f"{reason}. Check the API key (OPENAI_API_KEY, or the variable of --api-key-env)"
        if answer.status in (404, 405) and not self.server.is_chat:
            chat = self.url.removesuffix("/completions") + "/chat/completions"
            return f"{reason}. If the server has only a chat endpoint, give --server {chat}"
        if answer.status in _REFUSED and b"temperature" in answer.body:
            return f"{reason}. If the model has its own temperature only, give --samples 1 --sampling.temperature 1"
        if answer.retry_after > self._patience:
            return f"{reason}. The server asks to wait {answer.retry_after:.0f} seconds; repeat the command then"
        return reason

    async def _post(self, body: dict[str, Any]) -> Answer:
        """Raises as `HTTPClient.exchange` does."""
        return await self._http.exchange(
            "POST",
            self.url,
            content=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            seconds=self._timeout,
            max_bytes=_MAX_BYTES + _MAX_BYTES_PER_TOKEN * body[self._limit],
        )

    def _body(self, request: Request, most: int) -> dict[str, Any]:
        body = {
            "model": self.server.model,
            **self._prompt(decode_for_server(self.tokenizer, request.token_ids)),
            self._limit: most,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": request.seed & 0x7FFFFFFF,
            # A chat endpoint may stop inside a thought, which it does not show; the answer is cut here.
            **({"stop": list(request.stop)} if request.stop and not self.server.is_chat else {}),
            # Not in OpenAI's own API, which refuses them; vLLM and SGLang know them.
            "top_k": -1,
            "repetition_penalty": 1.0,
            "include_stop_str_in_output": True,
        }
        return {name: value for name, value in body.items() if name not in self._omitted}

    def _prompt(self, context: str) -> dict[str, Any]:
        """The fields that carry a context."""
        if not self.server.is_chat:
            return {"prompt": context.removeprefix(self._added)}
        variables = {"chat_template_kwargs": self._variables} if self._variables else {}
        return {"messages": [{"role": "user", "content": context}], **variables}


def added_bos(tokenizer: Any) -> str:
    """The token that a server begins every text with, as its tokenizer does; `""` for none. A tokenizer may have a BOS
    and not add it: that of SmolLM2 is the `<|im_start|>` of its chat template."""
    bos = getattr(tokenizer, "bos_token", None)
    return bos if bos and str(tokenizer.decode(tokenizer("a")["input_ids"])).startswith(bos) else ""


def parse_completion(answer: Answer, request: Request, *, chat: bool = False) -> Completion:
    """The turn in a server's response; `chat` in that of a chat endpoint, whose own field for thoughts is left out.

    Raises `ValueError` for half a turn, or none, and `RolloutError` for an answer in the field for thoughts.

    A server may leave out the stop text, and may or may not name it. It is appended again, because it closes the turn's
    tag. Text after it is removed.
    """
    try:
        choice = answer.json()["choices"][0]
        text, finish = choice["message"].get("content") if chat else choice["text"], choice.get("finish_reason")
        thought = thought_field(choice["message"]) if chat else ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"{answer.url} answered without `choices` that contain text: {answer.quoted()}") from None
    if chat and not text and thought and finish == "stop":
        raise RolloutError(
            f"{answer.url} sent the whole answer in the field for thoughts, with finish_reason 'stop'. Its "
            "reasoning parser does not fit the model or its template: start the server without the parser, or with "
            "another one"
        )
    if finish == "tool_calls":
        raise RolloutError(
            f"{answer.url} sent a tool call, but no tool was offered to the model: its tool-call parser mistook the "
            "model's text for one. Start the server without this parser"
        )
    if chat and text is None and finish == "length":  # a model that thinks may spend all tokens on it
        text = ""
    if not isinstance(text, str):
        raise ValueError(f"{answer.url} answered with `text` that is not a string: {answer.quoted()}")
    if finish not in ("stop", "length", "eos", "eos_token", "stop_sequence"):
        finish = answer.quoted(repr(finish))
        raise ValueError(f"{answer.url} ended a turn with finish_reason = {finish}, so it may be half a turn")
    text = whole_characters(text)
    reason: StopReason = "length" if finish == "length" else "eos"
    if (stopped := through_first(request.stop, text)) is not None:
        text, reason = stopped, "stop"
    elif not chat and finish in ("stop", "stop_sequence") and (mark := _omitted_stop(text, choice, request.stop)):
        text, reason = text + mark, "stop"
    return Completion(id=request.id, token_ids=None, logprobs=None, stop_reason=reason, text=text)


def _omitted_stop(text: str, choice: Mapping[str, Any], stop: Sequence[str]) -> str | None:
    """The stop text that a server left out: the one it names, or that of the last opened tag if it names none.

    vLLM's field is `stop_reason`, SGLang's `matched_stop`: the text, or an id or null if the model ended the turn.
    """
    named = [choice[key] for key in ("stop_reason", "matched_stop") if key in choice]
    if named:
        return next((mark for mark in stop if mark in named), None)
    opened = {mark: text.rfind(mark.replace("</", "<").replace("end", "begin")) for mark in stop}
    last = max(opened, key=lambda mark: opened[mark], default=None)
    return last if last is not None and opened[last] >= 0 else None


class WordTokenizer:
    """Replaces a model's tokenizer if only its server is available: a word or a sign counts as one token.

    >>> tokenizer = WordTokenizer()
    >>> ids = tokenizer("Who wrote it?\\n")["input_ids"]
    >>> len(ids), tokenizer.decode(ids)
    (5, 'Who wrote it?\\n')
    """

    eos_token_id = bos_token = None
    chat_template: str | None = None

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        """The ids of a text's pieces; new pieces get the next ids."""
        ids = []
        for piece in re.findall(r"\n| ?\w+| ?[^\w\s]|\s", text):
            if piece not in self._ids:
                self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
            ids.append(self._ids[piece])
        return {"input_ids": ids}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text of these ids."""
        return "".join(self._pieces[i] for i in ids)


def _cut(request: Request) -> Completion:
    """A turn without a token."""
    return Completion(id=request.id, token_ids=None, logprobs=None, stop_reason="length", text="")
