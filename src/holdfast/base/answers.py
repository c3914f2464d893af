"""The one reader of what an HTTP server answers: its bytes, its seconds, and the shape of its JSON are bounded.

Nothing that a server sends is trusted until it went through here. Whatever it sends, `HTTPClient.exchange` returns an
`Answer` in time or raises one of three standard exceptions, and a process grows by less than 200 MB. Text of a server
gets into an error sentence through `Answer.quoted` alone, which takes the client's key out of it.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import accumulate
from typing import Any
from urllib.parse import SplitResult, urlsplit

from holdfast.base.errors import ConfigError
from holdfast.base.importing import optional

MAX_BYTES = 16 * 2**20
"""The longest body that is read: 16,000 passages of wiki-18. In memory its text may take four times as much."""
_MAX_PARTS = 2**19  # brackets and commas of a JSON text: a value takes up to 200 bytes in memory
_MAX_DEPTH = 64  # brackets around a value of a JSON text
_MAX_DIGITS = 400  # characters
_MAX_WAIT = 366 * 86_400.0
_CONNECT_SECONDS = 15.0
_SHOWN = 160  # characters of a server's text that an error quotes
_NO_MARKS = bytes(set(range(256)) - set(b'"[]{},'))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent."""

    url: str
    """Where the answer comes from, without the query, which may have a key in it: for error sentences."""
    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By names in lower case."""
    secrets: Sequence[str] = field(default=(), repr=False)
    """The keys that the request carried."""

    @property
    def retry_after(self) -> float:
        """Seconds that a `Retry-After` header asks to wait, a year at most; 0 when it does not say."""
        header = self.headers.get("retry-after") or "0"
        try:
            seconds = float(header)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(header).timestamp() - time.time()
            except (ValueError, OverflowError):  # no date, or one that no calendar has
                return 0.0
        return min(max(seconds, 0.0), _MAX_WAIT) if math.isfinite(seconds) else 0.0

    def json(self) -> Any:
        """The value of the body, see `read_json`."""
        return read_json(self.body)

    def quoted(self, text: str | None = None, max_chars: int = _SHOWN) -> str:
        """The beginning of a text that the server sent (of the body, if None is given) for an error sentence: in one
        line that any terminal can show, without the keys of the request."""
        if text is None:
            elsewhere = self.headers.get("location")
            text = f"a redirect to {elsewhere}" if elsewhere else self.body[: 2**16].decode("utf-8", "replace")
        return shown(without_secrets(text[: 2**16], self.secrets), max_chars)


class HTTPClient:
    """Calls of one server.

    Each call has its own connection: one that is cancelled at its deadline leaves nothing in a pool, and a server that
    answers twice cannot shift later answers.

    Args:
        url: of the server, for whose scheme TLS is set up.
        secret: sent as a bearer token.
        hidden: what else no error sentence may repeat, such as keys in `url`.
        proxies: whether the proxy variables of the environment are read.

    Raises:
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self, url: str, *, secret: str | None = None, hidden: Sequence[str] = (), proxies: bool = False
    ) -> None:
        httpx, certifi = optional("httpx", "train"), optional("certifi", "train")
        tls: ssl.SSLContext | bool = False
        if url.startswith("https:"):
            tls = ssl.create_default_context()  # what this machine trusts, and where that is empty, what browsers do
            tls.load_verify_locations(certifi.where())
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        self._open: Callable[[], Any] = lambda: httpx.AsyncClient(verify=tls, trust_env=proxies, timeout=timeout)
        self._secrets = (*hidden, secret) if secret else tuple(hidden)
        self._headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if secret is not None:
            self._headers["Authorization"] = f"Bearer {secret}"

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Answer:
        """The answer to one request, after `seconds` at most, from connecting to the last byte. Redirects are not
        followed. A body of another status than 200 is cut at `max_bytes`.

        Raises `TimeoutError`; `ConnectionError` when the server cannot be reached or does not speak HTTP; `ValueError`
        for a body of more than `max_bytes`, also when it was sent compressed. All are sentences with the address.
        """
        where = url.partition("?")[0]
        request = {"content": content, "headers": {**self._headers, **(headers or {})}}
        try:
            async with (
                asyncio.timeout(seconds),
                self._open() as client,
                client.stream(method, url, **request) as response,
            ):
                body, whole = await _read(response, max_bytes)
        except TimeoutError:
            raise TimeoutError(f"{where} did not answer within {seconds:g} seconds") from None
        except Exception as error:  # httpx and what is below it raise many kinds, some with text of the server
            reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
            reason = shown(without_secrets(reason, self._secrets))
            raise ConnectionError(f"{where} cannot be reached ({reason})") from None
        if response.status_code == 200 and not whole:
            raise ValueError(f"{where} sent more than {max_bytes / 2**20:.3g} MiB")
        return Answer(where, response.status_code, body, response.headers, self._secrets)


async def _read(response: Any, max_bytes: int) -> tuple[bytes, bool]:
    """(At most `max_bytes` of a body, whether that is all). Some servers compress it although nobody asked for it."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    unpack = zlib.decompressobj(wbits=47) if encoding in ("gzip", "x-gzip", "deflate") else None
    body, received = bytearray(), 0
    async for part in response.aiter_raw():
        received += len(part)
        body += part if unpack is None else unpack.decompress(part, max_bytes + 1 - len(body))
        if max(received, len(body)) > max_bytes:
            return bytes(body[:max_bytes]), False
    return bytes(body), True


def read_json(body: bytes) -> Any:
    """The value of a JSON text. Its numbers are finite.

    Raises `ValueError`, whose text names what the body is instead.
    """
    # Escaped quotes removed, what stands between quotes is a string, and the rest has the shape of the value.
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    if marks.count(b'"') <= 4 * _MAX_PARTS:
        marks = b"".join(marks.split(b'"')[::2])
    if len(marks) > _MAX_PARTS:
        raise ValueError("JSON of too many values")
    if max(accumulate(_STEPS[mark] for mark in marks), default=0) > _MAX_DEPTH:
        raise ValueError("JSON that is nested too deeply")
    try:
        text = body.decode("utf-8-sig")
        return json.loads(text, parse_int=_number(int), parse_float=_number(float), parse_constant=_number(float))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("something that is not JSON") from None


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if len(text) > _MAX_DIGITS or not math.isfinite(float(text)):
            raise ValueError("JSON with a number that is not finite")
        return kind(text)

    return read


def whole_characters(text: str) -> str:
    """The text with `?` for each half of a surrogate pair: JSON can escape one, and no file or tokenizer takes it.

    >>> whole_characters("cut " + chr(0xD83D))
    'cut ?'
    """
    return text.encode("utf-8", "replace").decode()


def shown(text: str, max_chars: int = _SHOWN) -> str:
    """The text in one line that any terminal can show.

    >>> shown("a\\n b\\x1b[31m"), shown("")
    ('a b?[31m', 'an empty answer')
    """
    text = " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())
    return (text[:max_chars] + " …" if len(text) > max_chars else text) or "an empty answer"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` for each secret, which some servers repeat: as it is, or as JSON or a URL escapes it."""
    for secret in secrets:
        forms = (rf"(?:\\?{re.escape(c)}|\\u{ord(c):04x}|%{ord(c):02x})" for c in secret)
        text = re.sub("".join(forms), "***", text, flags=re.IGNORECASE)
    return text


def secret_in(variable: str) -> str | None:
    """The key or token in an environment variable; None when it is empty or not set.

    Raises `ConfigError`, without the secret, for one that an HTTP header cannot carry.
    """
    secret = os.environ.get(variable, "").strip()
    if not (secret.isascii() and secret.isprintable() and " " not in secret):
        raise ConfigError(
            f"{variable} has a blank, a line break or a character that is not ASCII, which an HTTP header cannot "
            "carry; export it again"
        )
    return secret or None


def address_parts(address: str, *, of: str, example: str, key: str) -> SplitResult:
    """The parts of a server's address.

    Raises `ConfigError` unless it is http(s) with a host, and for a user or a password in it, which would not be sent;
    no message repeats them. `of` is the kind of the server, `key` the environment variable of what it may require.
    """
    named = repr(shown(re.sub("//.*@", "//", address, flags=re.DOTALL).partition("?")[0]))
    try:
        parts = urlsplit(address)
        usable = (
            address.isprintable()
            and " " not in address
            and parts.scheme in ("http", "https")
            and bool((parts.hostname or "").encode("idna"))
            and (parts.port or 1) > 0
        )
    except ValueError:  # a port that is not a number, a host with a name that is too long
        usable = False
    if not usable:
        raise ConfigError(f"{named} is not the address of {of}; write one like {example}")
    if "@" in parts.netloc:
        raise ConfigError(
            f"the address of {of}, {named}, must not contain a user name or a password, because they are not sent; "
            f"leave them out. Put the key that the server requires into the environment variable {key}"
        )
    return parts
