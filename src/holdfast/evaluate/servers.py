"""Which model an OpenAI-compatible server has, how long its contexts may be, and the key to it.

`GET /v1/models` gives the names. The length of a context has as many places as there are servers:

    vLLM, SGLang       `max_model_len` of the model
    llama.cpp          `meta.n_ctx` of the model; before that existed, `default_generation_settings.n_ctx` of `/props`
    LM Studio          `loaded_context_length` of the model, in `/api/v0/models`
    TGI                `max_total_tokens` of `/info`
    OpenRouter, Groq   `context_length`, `context_window` of the model
    OpenAI, Anthropic  not given

It is looked for in all of them, because LM Studio and older llama.cpp cut a longer prompt without an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.answers import Answer, HTTPClient, address_parts, secret_in
from holdfast.base.errors import ConfigError
from holdfast.base.workers import LoopThread

KEY = "OPENAI_API_KEY"
"""The environment variable of the key, unless another is named."""
_LENGTHS = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")
_SHOWN = 8  # names of models in an error
_MAX_NAME = 256
_MAX_MODELS = 10_000
_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A model of a server, and how it is asked."""

    url: str
    """What is posted to: ends with `/completions`, for a chat endpoint with `/chat/completions`."""
    model: str
    context: int | None = None
    """The most tokens of a context with its answer; None if the server does not say."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def is_chat(self) -> bool:
        """Whether the server writes the chat template."""
        return self.url.endswith("/chat/completions")


def completions_url(address: str) -> str:
    """The address to post to. A full path is kept, so that it can name a chat endpoint.

    >>> completions_url("http://10.0.0.5:8000"), completions_url("http://h:1/v1/")
    ('http://10.0.0.5:8000/v1/completions', 'http://h:1/v1/completions')

    Raises `ConfigError` as `address_parts` does.
    """
    parts = address_parts(address, of="a server", example="http://127.0.0.1:8000", key=KEY)
    path = parts.path.rstrip("/")
    if not path.endswith("/completions"):
        path = f"{path if path.endswith('/v1') else path + '/v1'}/completions"
    return f"{parts.scheme}://{parts.netloc}{path}"


def key_in(variable: str | None) -> str | None:
    """The API key in an environment variable: `variable`, which must then be set, or else `KEY`, which need not be.

    Raises `ConfigError`.
    """
    key = secret_in(variable or KEY)
    if variable is not None and key is None:
        raise ConfigError(f"--api-key-env {variable}: this environment variable is not set; export it with the key")
    return key


def find_server(address: str, model: str | None, *, api_key: str | None = None) -> Server:
    """Ask a server for its models. `model` None takes the one that it serves.

    If a server does not list its models, the first answer shows whether it has this one. Raises `ConfigError` when the
    server cannot be reached, requires a key, or does not serve the model.
    """
    url = completions_url(address)
    base, where = url.removesuffix("/completions").removesuffix("/chat"), f"--server {address.partition('?')[0]}"
    http, loop = HTTPClient(url, secret=api_key, proxies=uses_proxy(url)), LoopThread("server")

    def get(page: str) -> Answer:
        try:
            return loop.run(http.exchange("GET", page, seconds=_TIMEOUT))
        except (TimeoutError, ConnectionError, ValueError) as error:
            raise ConfigError(f"--server: {error}; is it running there?") from None

    try:
        answer = get(f"{base}/models")
        if answer.status in (401, 403) and api_key is None:
            raise ConfigError(
                f"{where}: it requires an API key; put it into the environment variable {KEY}, or name another "
                "variable with --api-key-env"
            )
        entry = _choose(answer, model, where)
        context = _length(entry)
        if context is None:
            context = _length_elsewhere(get, base.removesuffix("/v1"), entry["id"])
    finally:
        loop.close()
    return Server(url=url, model=entry["id"], context=context, api_key=api_key)


def uses_proxy(url: str) -> bool:
    """Whether the proxy variables of the environment count: for hosted models, not for a server nearby."""
    return url.startswith("https:")


def _choose(answer: Answer, model: str | None, where: str) -> Mapping[str, Any]:
    """The entry of the model. Raises `ConfigError`."""
    listing = _object(answer)
    entries = _entries(listing)
    if not entries:
        if model is None:
            why = f"{answer.status}: {answer.quoted()}"
            raise ConfigError(f"{where}: it does not list its models ({why}); give MODEL, its name")
        return {"id": model}
    names = [entry["id"] for entry in entries]
    if model is None:
        if len(entries) > 1:
            raise ConfigError(f"{where}: it serves {_listed(names, answer)}; give MODEL, one of these names")
        return dict(entries[0])
    for entry in entries:
        aliases = entry.get("aliases")
        known = [entry["id"], entry["id"].removesuffix(":latest"), *(aliases if isinstance(aliases, list) else ())]
        if model in known:
            return {**entry, "id": model}
    if listing.get("has_more"):  # the first page of a long list, which cannot tell
        return {"id": model}
    near = difflib.get_close_matches(model, names, n=_SHOWN, cutoff=0.5)
    listed = _listed(near or names, answer, of=len(names))
    raise ConfigError(f"{where}: it does not serve {model!r} but {listed}; give that name")


def _entries(listing: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The models of a listing, with names that a terminal can show and a folder can have."""
    listed = listing.get("data")
    return [
        entry
        for entry in (listed[:_MAX_MODELS] if isinstance(listed, list) else ())
        if isinstance(entry, dict)
        and isinstance(name := entry.get("id"), str)
        and name.isprintable()
        and 0 < len(name) <= _MAX_NAME
    ]


def _listed(names: Sequence[str], answer: Answer, of: int | None = None) -> str:
    shown = answer.quoted(", ".join(names[:_SHOWN]), max_chars=_SHOWN * _MAX_NAME)
    more = max(of or 0, len(names)) - min(len(names), _SHOWN)
    return f"{shown} and {more} more" if more else shown


def _length(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    values = [*(entry.get(name) for name in _LENGTHS), meta.get("n_ctx") if isinstance(meta, dict) else None]
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _length_elsewhere(get: Callable[[str], Answer], root: str, model: str) -> int | None:
    """The length of a context from the addresses of LM Studio, TGI and llama.cpp; None if there is none of them."""

    def entries() -> Iterator[Mapping[str, Any]]:
        for path in ("/api/v0/models", "/info", "/props"):
            payload = _object(get(f"{root}{path}"))
            yield from (entry for entry in _entries(payload) if entry["id"] == model)
            yield {"max_model_len": payload.get("max_total_tokens")}
            yield {"meta": payload.get("default_generation_settings")}

    try:
        return next((length for entry in entries() if (length := _length(entry)) is not None), None)
    except ConfigError:
        return None


def _object(answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer; an empty one if there is none."""
    try:
        value = answer.json() if answer.status == 200 else None
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}
