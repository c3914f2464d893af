"""Which model an OpenAI-compatible server has, how long its contexts may be, and the key to it.

`GET /v1/models` gives the names. The length of a context has as many places as there are servers:

    vLLM, SGLang       `max_model_len` of the model
    llama.cpp          `meta.n_ctx` of the model; before that existed, `default_generation_settings.n_ctx` of `/props`
    LM Studio          `loaded_context_length` of the model, in `/api/v0/models`
    TGI                `max_total_tokens` of `/info`
    OpenRouter, Groq   `context_length`, `context_window` of the model
    OpenAI, Anthropic  not given
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from holdfast.base.errors import ConfigError, MissingExtra
from holdfast.retrieval.wire import quoted

KEY = "OPENAI_API_KEY"
"""The environment variable of the key, unless another is named."""
_LENGTHS = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")
_SHOWN = 8  # names of models in an error
_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A model of a server, and how it is asked."""

    url: str
    """What is posted to: ends with `/completions`, for a chat endpoint with `/chat/completions`."""
    model: str
    context: int | None = None
    """The most tokens of a context with its answer; None if the server does not say."""
    source: str | None = None
    """The folder or hub id behind the name, which vLLM gives."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def is_chat(self) -> bool:
        """Whether the server writes the chat template."""
        return self.url.endswith("/chat/completions")


def completions_url(address: str) -> str:
    """The address to post to. A full path is kept, so that it can name a chat endpoint.

    >>> completions_url("http://10.0.0.5:8000"), completions_url("http://h:1/v1/")
    ('http://10.0.0.5:8000/v1/completions', 'http://h:1/v1/completions')

    Raises `ConfigError` for what is not http(s) with a host, and for a password, which would be stored with the
    results; no message repeats it.
    """
    try:
        parts = urlsplit(address)
        usable = (
            parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and (parts.port or 1) > 0
        )
    except ValueError:  # a port that is not a number, a host with a name that is too long
        usable = False
    if usable and "@" in parts.netloc:
        raise ConfigError(
            f"the address of {parts.hostname} has a user or a password in it; leave them out, and put the API key into "
            f"the environment variable {KEY}"
        )
    if not usable:
        raise ConfigError(f"{address!r} is not the address of a server; write one like http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    if not path.endswith("/completions"):
        path = f"{path if path.endswith('/v1') else path + '/v1'}/completions"
    return f"{parts.scheme}://{parts.netloc}{path}"


def key_in(variable: str | None) -> str | None:
    """The API key in an environment variable: `variable`, which must then be set, or else `KEY`, which need not be.

    Raises `ConfigError`.
    """
    key = os.environ.get(variable or KEY, "").strip()
    if variable is not None and not key:
        raise ConfigError(f"--api-key-env {variable}: this environment variable is not set; export it with the key")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"the API key in {variable or KEY} has a blank, a line break or a character that is not ASCII, which an "
            "HTTP header cannot carry; export it again"
        )
    return key or None


def without_key(text: str, api_key: str | None) -> str:
    """A text that is shown or stored, without the key, which some servers repeat in their errors."""
    return text.replace(api_key, "***") if api_key else text


def find_server(address: str, model: str | None, *, api_key: str | None = None) -> Server:
    """Ask a server for its models. `model` None takes the one that it serves.

    If a server does not list its models, the first answer shows whether it has this one. Raises `ConfigError` when the
    server cannot be reached, requires a key, or does not serve the model.
    """
    try:
        import httpx
    except ImportError as error:
        raise MissingExtra("httpx", "train") from error
    url = completions_url(address)
    base = url.removesuffix("/completions").removesuffix("/chat")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(timeout=_TIMEOUT, headers=headers, trust_env=uses_proxy(url)) as client:
        try:
            answer = client.get(f"{base}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"--server {address}: it cannot be reached ({error or type(error).__name__}); is it running there?"
            ) from None
        if answer.status_code in (401, 403) and api_key is None:
            raise ConfigError(
                f"--server {address}: it requires an API key; put it into the environment variable {KEY}, or name "
                "another variable with --api-key-env"
            )
        listing = _json(answer.content) if answer.status_code == 200 else {}
        shown = without_key(quoted(answer.content), api_key)
        entry = _choose(listing, model, address, why_none=f"{answer.status_code}: {shown}")
        context = _length(entry)
        if context is None:
            context = _length_elsewhere(client, base.removesuffix("/v1"), entry["id"])
    source = entry.get("root")
    return Server(
        url=url,
        model=str(entry["id"]),
        context=context,
        source=source if isinstance(source, str) and source != entry["id"] else None,
        api_key=api_key,
    )


def uses_proxy(url: str) -> bool:
    """Whether the proxy variables of the environment count: for hosted models, not for a server nearby."""
    return url.startswith("https:")


def _choose(listing: Mapping[str, Any], model: str | None, address: str, *, why_none: str) -> Mapping[str, Any]:
    """The entry of the model. Raises `ConfigError`."""
    listed = listing.get("data")
    entries = [entry for entry in listed if _is_entry(entry)] if isinstance(listed, list) else []
    if not entries:
        if model is None:
            raise ConfigError(f"--server {address}: it does not list its models ({why_none}); give MODEL, its name")
        return {"id": model}
    names = [entry["id"] for entry in entries]
    if model is None:
        if len(entries) > 1:
            raise ConfigError(f"--server {address}: it serves {_listed(names)}; give MODEL, one of these names")
        return dict(entries[0])
    for entry in entries:
        aliases = entry.get("aliases")
        known = [entry["id"], entry["id"].removesuffix(":latest"), *(aliases if isinstance(aliases, list) else ())]
        if model in known:
            return {**entry, "id": model}
    if listing.get("has_more"):  # the first page of a long list, which cannot tell
        return {"id": model}
    near = difflib.get_close_matches(model, names, n=_SHOWN, cutoff=0.5)
    raise ConfigError(
        f"--server {address}: it does not serve {model!r} but {_listed(near or names, of=len(names))}; give that name"
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str)


def _listed(names: Sequence[str], of: int | None = None) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = max(of or 0, len(names)) - min(len(names), _SHOWN)
    return f"{shown} and {more} more" if more else shown


def _length(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    values = [*(entry.get(name) for name in _LENGTHS), meta.get("n_ctx") if isinstance(meta, dict) else None]
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _length_elsewhere(client: Any, root: str, model: str) -> int | None:
    """The length of a context from the addresses of LM Studio, TGI and llama.cpp; None if there is none of them."""
    import httpx

    def entries() -> Iterator[Mapping[str, Any]]:
        for path in ("/api/v0/models", "/info", "/props"):
            answer = client.get(f"{root}{path}")
            payload = _json(answer.content) if answer.status_code == 200 else {}
            listed = payload.get("data")
            yield from (e for e in (listed if isinstance(listed, list) else ()) if _is_entry(e) and e["id"] == model)
            yield {"max_model_len": payload.get("max_total_tokens")}
            yield {"meta": payload.get("default_generation_settings")}

    try:
        return next((length for entry in entries() if (length := _length(entry)) is not None), None)
    except httpx.HTTPError:
        return None


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
