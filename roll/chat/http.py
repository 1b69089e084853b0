"""One HTTP POST with a time limit and a size limit.

Every request opens its own connection. Redirects are not followed, and no proxy is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from roll.errors import ConfigError, EngineFailed, one_line

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
