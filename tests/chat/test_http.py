"""One exchange: URLs, the ways an answer may be framed, and all that is no answer."""

import asyncio
import json

import pytest

from roll.chat.http import Answer, Unanswered, address, post
from roll.errors import ConfigError
from tests.chat.server import Said, nobody, server


def posted(said: Said, timeout_s: float = 10.0) -> Answer:
    with server(said) as served:
        return asyncio.run(post(address(f"{served.url}/a?b=c"), b'{"x": 1}', {"X-Own": "1"}, timeout_s=timeout_s))


def raw(text: str) -> bytes:
    return posted(Said(raw=text.replace("\n", "\r\n").encode())).body


def test_a_url_has_its_parts() -> None:
    found = address("https://example.org/v1?x=y")
    assert (found.host, found.port, found.target, found.secure) == ("example.org", 443, "/v1?x=y", True)
    found = address("http://[::1]:8000")
    assert (found.host, found.port, found.target, found.secure) == ("::1", 8000, "/", False)


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://a/b", "http://", "http://a:x/", "http://a b/", "http://a/\r\nX: y", "http://ä/"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url: "):
        address(url)


def test_a_url_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="api_key_env") as refused:
        address("https://me:hunter2@example.org/")
    assert "hunter2" not in str(refused.value)


def test_what_is_posted_arrives_with_its_path_and_headers() -> None:
    with server(Said(body={"ok": True})) as served:
        answer = asyncio.run(post(address(f"{served.url}/a?b=c"), b'{"x": 1}', {"X-Own": "1"}, timeout_s=10))
        assert (served.asked, served.paths) == ([{"x": 1}], ["/a?b=c"])
        assert served.headers[0]["x-own"] == "1"
        assert served.headers[0]["host"] == served.url.removeprefix("http://")
    assert (answer.status, json.loads(answer.body)) == (200, {"ok": True})
    assert answer.headers["content-length"] == "12"


def test_an_answer_ends_where_its_length_its_last_chunk_or_its_connection_says() -> None:
    assert raw("HTTP/1.1 200 OK\nContent-Length: 2\n\nabc") == b"ab"
    assert raw("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3;x=y\nabc\nA\n0123456789\n0\nTrailer: t\n\n") == (
        b"abc0123456789"
    )
    assert raw("HTTP/1.0 200\n\nall of it") == b"all of it"


def test_small_talk_before_an_answer_is_skipped() -> None:
    assert raw("HTTP/1.1 100 Continue\n\nHTTP/1.1 200 OK\nContent-Length: 1\n\nx") == b"x"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SSH-2.0-OpenSSH\n",
        "HTTP/1.1 200 OK\nContent-Length: 5\n\nabc",
        "HTTP/1.1 200 OK\nContent-Length: -1\n\n",
        "HTTP/1.1 200 OK\nContent-Length: 99999999999\n\n",
        "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\nzz\nabc\n",
        "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nabc\n0\n\n",
        "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n-2\nabc\n0\n\n",
        "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n",
        "HTTP/1.1 200 OK\nno header\n\n",
        "HTTP/1.1 200 OK\n" + "A: b\n" * 300 + "\n",
        "HTTP/1.1 200 OK\nA: " + "b" * 100_000 + "\n\n",
    ],
)
def test_a_broken_answer_is_none(text: str) -> None:
    with pytest.raises(Unanswered, match=r"127\.0\.0\.1"):
        raw(text)


def test_a_secure_url_is_not_spoken_to_in_the_clear() -> None:
    with server(Said(body={})) as served, pytest.raises(Unanswered, match="SSL"):
        asyncio.run(post(address(served.url.replace("http", "https")), b"{}", {}, timeout_s=10))
    assert served.asked == []


def test_silence_ends_at_the_limit_and_an_empty_port_at_once() -> None:
    with pytest.raises(Unanswered, match=r"no answer within 0\.2 s"):
        posted(Said(body={}, after_s=30.0), timeout_s=0.2)
    with pytest.raises(Unanswered, match="ConnectionRefusedError"):
        asyncio.run(post(address(nobody()), b"{}", {}, timeout_s=10))
