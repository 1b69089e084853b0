"""One HTTP exchange: bytes are posted, bytes come back, within a limit of time and size.

Every exchange has a connection of its own. Redirects are not followed, and no proxy is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from roll.errors import ConfigError, EngineFailed

_LONGEST = 32 * 2**20
"""Bytes of an answer that are read."""
_MOST_HEADERS = 200
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: .*)?\r?\n")
_PORTS = {"http": 80, "https": 443}


class Unanswered(EngineFailed):
    """A server was not reached, or did not answer as it should. Asking again may help."""


class Refused(EngineFailed):
    """A server will not answer this request, however often it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens."""

    url: str
    host: str
    port: int
    target: str
    """The path and query that are asked for."""
    secure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


def address(url: str) -> Address:
    """The parts of an `http://` or `https://` URL."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConfigError(f"url: cannot be read ({error}); write http://host:port/path") from None
    if "@" in parts.netloc:  # not shown: what stands before it is a secret as a rule
        raise ConfigError("url: carries a user or password; leave it out and name a variable in api_key_env")
    if parts.scheme not in _PORTS or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"url: is none (got {url!r}); write http://host:port/path or https://host/path")
    return Address(
        url=url,
        host=host,
        port=port or _PORTS[parts.scheme],
        target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        secure=parts.scheme == "https",
    )


async def post(to: Address, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> Answer:
    """What the server answers, whatever its status; raises `Unanswered` where it does not, or not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(to, body, headers)
    except TimeoutError:
        raise Unanswered(f"{to.url}: no answer within {timeout_s:g} s") from None
    except (OSError, EOFError, ValueError) as error:
        raise Unanswered(f"{to.url}: {type(error).__name__}: {error}") from error


async def _exchange(to: Address, body: bytes, headers: Mapping[str, str]) -> Answer:
    reader, writer = await asyncio.open_connection(to.host, to.port, ssl=True if to.secure else None)
    try:
        writer.write(_head(to, len(body), headers) + body)
        await writer.drain()
        return await _answer(reader)
    finally:
        writer.transport.abort()  # all was read or nothing will be; a polite goodbye may take a while


def _head(to: Address, size: int, headers: Mapping[str, str]) -> bytes:
    host = f"[{to.host}]" if ":" in to.host else to.host
    fields = {
        "Host": f"{host}:{to.port}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Content-Length": str(size),
        "Connection": "close",
        **headers,
    }
    lines = [f"POST {to.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    while True:
        line = await reader.readline()
        found = _STATUS.fullmatch(line)
        if found is None:
            raise ValueError(f"not HTTP (got {line[:80]!r})" if line else "closed without an answer")
        headers = await _headers(reader)
        status = int(found[1])
        if status >= 200:  # what comes before it is small talk, such as 100 Continue
            return Answer(status=status, headers=headers, body=await _body(reader, headers))


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = (await _line(reader)).decode("latin-1")
        if not line:
            return headers
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"not a header (got {line[:80]!r})")
        headers[name.strip().lower()] = value.strip()
    raise ValueError(f"more than {_MOST_HEADERS} headers")


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    if "content-length" in headers:
        return await reader.readexactly(_within(int(headers["content-length"])))
    body = bytearray()
    while piece := await reader.read(1 << 16):
        body += piece
        _within(len(body))
    return bytes(body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await _line(reader)).partition(b";")[0], 16):
        _within(size)
        _within(size + len(body))
        body += await reader.readexactly(size)
        if await _line(reader):
            raise ValueError("a chunk is longer than it says")
    await _headers(reader)
    return bytes(body)


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the answer breaks off")
    return line.rstrip(b"\r\n")


def _within(size: int) -> int:
    if not 0 <= size <= _LONGEST:
        raise ValueError(f"an answer of {size} bytes (at most {_LONGEST} are read)")
    return size
