"""A client for one JSON service: retries, backoff, an API key, and the meaning of HTTP statuses.

Every request opens its own connection and has a time limit and a size limit. Redirects are not followed, and no proxy
is used.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from roll.errors import ConfigError, EngineFailed, one_line

T = TypeVar("T")

_BUSY = frozenset({408, 425, 429})
"""Statuses worth a retry, besides 500 and above."""
_UNAUTHORISED = frozenset({401, 403})
_NOT_THERE = frozenset({301, 302, 303, 307, 308, 404, 405})
_MAX_PAUSE_S = 60.0
_EXCERPT = 200
_MAX_BYTES = 32 * 2**20


class RequestFailed(EngineFailed):
    """A server was not reached, or its answer was invalid. A retry may succeed."""


class RequestRejected(EngineFailed):
    """A server rejects this request; a retry would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A complete answer, of any status."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonClient:
    """Posts JSON to one URL. At most `max_concurrent` requests are in flight; the others queue."""

    url: str
    api_key_env: str | None = None
    """Environment variable with the key; the key itself is neither stored nor shown."""
    timeout_s: float = 60.0
    """Per try."""
    max_retries: int = 3
    backoff_s: float = 0.5
    """Upper bound of the first pause; it doubles with each retry."""
    max_concurrent: int = 64
    _slots: asyncio.Semaphore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_url(self.url)
        object.__setattr__(self, "_slots", asyncio.Semaphore(self.max_concurrent))
        self._key()  # report a missing key before the first request

    async def post(self, payload: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """`parse` of the JSON answer to `payload`; an answer for which it raises ValueError is invalid.

        Raises `RequestFailed` after the last try, `RequestRejected` at once if this request cannot succeed, and
        `ConfigError` if no request ever can.
        """
        key = self._key()
        # UTF-8 cannot hold a lone surrogate, and a server would reject the whole request for one.
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for tries in range(1, self.max_retries + 2):
            retry_after = None
            try:
                async with self._slots:
                    response = await post(self.url, body, headers, timeout_s=self.timeout_s)
                retry_after = response.headers.get("retry-after")
                return self._parse(response, parse, key)
            except RequestFailed as error:
                pause_s = pause_before(tries, retry_after, backoff_s=self.backoff_s, now_s=time.time())
                if pause_s > _MAX_PAUSE_S:
                    raise RequestFailed(f"{error}; asks for a pause of {pause_s:g} s; lower the load on it") from error
                if tries > self.max_retries:
                    raise RequestFailed(f"{error}; given up at try {tries}; see whether the server is up") from error
                await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"api_key_env: no key in the environment variable {self.api_key_env}; set it, or leave the option out"
            )
        return key

    def _parse(self, response: HttpResponse, parse: Callable[[Any], T], key: str | None) -> T:
        excerpt = _excerpt(response.body, key)
        status = response.status
        if status in _BUSY or status >= 500:
            raise RequestFailed(f"{self.url}: status {status} ({excerpt})")
        if status in _UNAUTHORISED:
            sent = "no key was sent" if key is None else f"with the key in {self.api_key_env}"
            raise ConfigError(
                f"{self.url}: status {status}, {sent} ({excerpt}); set api_key_env to a variable with one"
            )
        if status in _NOT_THERE:
            raise ConfigError(f"{self.url}: status {status}, nothing answers there ({excerpt}); correct url or model")
        if status != 200:
            raise RequestRejected(f"{self.url}: status {status}, the request was refused ({excerpt})")
        try:
            return parse(json.loads(response.body))
        except (ValueError, RecursionError) as error:
            problem = _redact(str(error), key)
            raise RequestFailed(f"{self.url}: not the answer asked for, {problem} (got {excerpt})") from None


def pause_before(tries: int, retry_after: str | None, *, backoff_s: float, now_s: float) -> float:
    """Seconds to wait after `tries` tries: what the server asks for, else exponential backoff with jitter."""
    requested_s = _parse_retry_after(retry_after, now_s)
    if requested_s is not None:
        return requested_s
    max_s = min(backoff_s * 2 ** (tries - 1), _MAX_PAUSE_S)
    return max_s * _JITTER.uniform(0.5, 1.0)  # so that workers do not retry all at once


_JITTER = random.Random()
"""Separate from the run's seeded generators."""


def _parse_retry_after(header: str | None, now_s: float) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date; None if it is absent or invalid."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - now_s)
    except ValueError:
        return None


def _excerpt(body: bytes, key: str | None) -> str:
    text = _redact(" ".join(body[: 50 * _EXCERPT].decode("utf-8", "replace").split()), key)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def _redact(text: str, key: str | None) -> str:
    """The text without the key, which servers often echo."""
    return text if key is None else text.replace(key, "***")


def check_url(url: str) -> str:
    """The URL, if it is a valid `http://` or `https://` URL without credentials; else raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError as error:
        raise ConfigError(f"url: cannot be read ({error}); write http://host:port/path") from None
    if "@" in parts.netloc:  # the URL is not shown, because it usually holds a secret
        raise ConfigError("url: carries a user or password; leave it out and name a variable in api_key_env")
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"url: is none (got {url!r}); write http://host:port/path or https://host/path")
    return url


async def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> HttpResponse:
    """The server's answer, of any status; raises `RequestFailed` if there is none within `timeout_s`."""
    sent = {"Content-Type": "application/json", "Accept": "application/json", **headers}
    limit = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.post(URL(url, encoded=True), data=body, headers=sent, allow_redirects=False) as response,
        ):
            received = {name.lower(): value for name, value in response.headers.items()}
            return HttpResponse(status=response.status, headers=received, body=await _read_body(response))
    except TimeoutError:
        raise RequestFailed(f"{url}: no answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        raise RequestFailed(f"{url}: {type(cause).__name__}: {one_line(str(cause))}") from error


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _MAX_BYTES:
            raise ValueError(f"an answer of more than {_MAX_BYTES} bytes")
    return bytes(body)
