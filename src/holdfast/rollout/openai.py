"""A policy behind an OpenAI-compatible server: turns by text, for evaluation.

`POST /v1/completions`, one call a turn, with the whole context as text. It returns no token ids, so its rollouts
cannot be trained on. The tokenizer applies the chat template here, as for a local model: the server gets plain text.

Neutral sampling values are always sent, because servers otherwise take the model's own (`top_k`, repetition penalty).
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, MissingExtra, RolloutError
from holdfast.retrieval.wire import quoted
from holdfast.rollout.policy import Completion, Request, StopReason
from holdfast.search.tokens import Tokenizer, decode

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP statuses worth a retry."""
_MAX_CONSECUTIVE_FAILURES = 8
"""Consecutive failed calls after which the server is given up."""
_jitter = random.Random()


class OpenAIPolicy:
    """Turns from a server.

    Args:
        address: as `http://127.0.0.1:8000`; `/v1/completions` is added to what has no such path.
        model: what the server calls the model.
        tokenizer: decodes contexts; `WordTokenizer` if the model's is not available.
        temperature: 0 is greedy decoding.
        api_key: sent as a bearer token.
        concurrency: simultaneous calls.
        timeout: seconds of one attempt. retries: attempts after the first. backoff: seconds before the second.

    Raises:
        ConfigError: the address cannot be used.
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self,
        address: str,
        model: str,
        tokenizer: Tokenizer,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        api_key: str | None = None,
        concurrency: int = 32,
        timeout: float = 300.0,
        retries: int = 3,
        backoff: float = 1.0,
    ) -> None:
        self.url = completions_url(address)
        self.model, self.tokenizer = model, tokenizer
        self.temperature, self.top_p = temperature, top_p
        self._retries, self._backoff, self._timeout = retries, backoff, timeout
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx", "train") from error
        self._httpx = httpx
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout, pool=None), limits=limits, headers=headers, trust_env=False
        )
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="completions")
        self._pending: dict[Future[Completion], str] = {}
        self._failed_in_a_row = 0
        self._closed = False

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests, `concurrency` at a time."""
        for request in requests:
            self._pending[self._threads.submit(self._complete, request)] = request.id

    def poll(self) -> list[Completion]:
        """Wait until at least one is answered. Raises `RolloutError` when the server fails again and again."""
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        completions = []
        for call in [call for call in self._pending if call in done]:
            del self._pending[call]
            completion = call.result()
            completions.append(completion)
            if completion.error is None:
                self._failed_in_a_row = 0
                continue
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= _MAX_CONSECUTIVE_FAILURES:
                raise RolloutError(
                    f"{self._failed_in_a_row} calls in a row failed, the last because {completion.error}. Repair "
                    "the server, then repeat the command: it continues where it stopped"
                )
        return completions

    def release(self, ids: Iterable[str]) -> None:
        """Drop the calls of these ids. Those that are running finish, and their results are ignored."""
        released = set(ids)
        for call in [call for call, id in self._pending.items() if id in released]:
            call.cancel()
            del self._pending[call]

    def close(self) -> None:
        """End the threads and the connections without waiting for running calls."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _complete(self, request: Request) -> Completion:
        attempt = 0
        while True:
            try:
                status, body = self._post(self._body(request))
                if status == 200:
                    answer = parse_completion(body, request, self.url)
                    if answer.error is None:
                        return answer
                    reason = answer.error
                else:
                    reason = f"{self.url} answered {status}: {quoted(body)}"
                    if status not in TRANSIENT:
                        return _failed(request, reason)
            except self._httpx.TimeoutException:
                reason = f"{self.url} did not answer within {self._timeout:g} seconds"
            except (self._httpx.HTTPError, RuntimeError) as error:  # the latter from a client that was closed
                reason = f"{self.url} cannot be reached ({error or type(error).__name__})"
            if attempt == self._retries or self._closed:
                return _failed(request, reason)
            time.sleep(self._backoff * 2**attempt * _jitter.uniform(0.5, 1.5))
            attempt += 1

    def _post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """(status, body). Raises `httpx.TimeoutException` at the deadline, however slowly the answer drips in."""
        deadline = time.monotonic() + self._timeout
        parts = []
        with self._client.stream("POST", self.url, json=body) as response:
            for part in response.iter_bytes():
                parts.append(part)
                if time.monotonic() > deadline:
                    raise self._httpx.ReadTimeout("the answer did not end in time")
            return response.status_code, b"".join(parts)

    def _body(self, request: Request) -> dict[str, Any]:
        text = decode(self.tokenizer, request.token_ids)
        first = getattr(self.tokenizer, "bos_token", None)
        return {
            "model": self.model,
            "prompt": text.removeprefix(first) if first else text,  # the server begins every text with it
            "max_tokens": request.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": request.seed & 0x7FFFFFFF,
            **({"stop": list(request.stop)} if request.stop else {}),
            # Not in OpenAI's own API; vLLM and SGLang know them, others ignore them.
            "top_k": -1,
            "repetition_penalty": 1.0,
            "include_stop_str_in_output": True,
        }


def completions_url(address: str) -> str:
    """The address to post to.

    >>> completions_url("http://10.0.0.5:8000"), completions_url("http://h:1/v1/")
    ('http://10.0.0.5:8000/v1/completions', 'http://h:1/v1/completions')

    Raises `ConfigError` for what is not http(s) with a host.
    """
    parts = urlsplit(address)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{address!r} is not the address of a server; write one like http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    if not path.endswith("/completions"):
        path = f"{path if path.endswith('/v1') else path + '/v1'}/completions"
    return f"{parts.scheme}://{parts.netloc}{path}"


def parse_completion(body: bytes, request: Request, url: str) -> Completion:
    """The turn in a server's response; a `Completion` with an error if there is none.

    A server may leave out the stop text, and may or may not name it. It is appended again, because it closes the turn's
    tag. Text after it is removed.
    """
    try:
        choice = json.loads(body)["choices"][0]
        text, finish = choice["text"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError):
        return _failed(request, f"{url} answered without `choices` that hold a text: {quoted(body)}")
    if not isinstance(text, str):
        return _failed(request, f"{url} answered with a text that is not a string: {quoted(body)}")
    if finish not in ("stop", "length", "eos", "eos_token", "stop_sequence"):
        return _failed(request, f"{url} ended a turn with finish_reason = {finish!r}, so it may be half a turn")
    ends = [text.index(mark) + len(mark) for mark in request.stop if mark in text]
    reason: StopReason = "length" if finish == "length" else "eos"
    if ends:
        text, reason = text[: min(ends)], "stop"
    elif finish in ("stop", "stop_sequence") and (mark := _omitted_stop(text, choice, request.stop)):
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

    eos_token_id = bos_token = chat_template = None
    all_special_tokens: tuple[str, ...] = ()

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


def _failed(request: Request, reason: str) -> Completion:
    return Completion(id=request.id, token_ids=None, logprobs=None, stop_reason="length", text="", error=reason)
