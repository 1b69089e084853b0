"""One HTTP request: URLs, framings of an answer, and invalid answers."""

import asyncio
import json

import pytest

from roll.chat.client import HttpResponse, RequestFailed, check_url, post
from roll.errors import ConfigError
from tests.chat.server import Said, nobody, server


def posted(said: Said, timeout_s: float = 10.0) -> HttpResponse:
    with server(said) as served:
        return asyncio.run(post(f"{served.url}/a?b=c", b'{"x": 1}', {"X-Own": "1"}, timeout_s=timeout_s))


def raw(text: str) -> bytes:
    return posted(Said(raw=text.replace("\n", "\r\n").encode())).body


@pytest.mark.parametrize("url", ["https://example.org/v1?x=y", "http://[::1]:8000"])
def test_a_valid_url_is_returned_unchanged(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://a/b", "http://", "http://a:x/", "http://a b/", "http://a/\r\nX: y", "http://ä/"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url: "):
        check_url(url)


def test_a_url_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="api_key_env") as refused:
        check_url("https://me:hunter2@example.org/")
    assert "hunter2" not in str(refused.value)


def test_body_path_and_headers_arrive() -> None:
    with server(Said(body={"ok": True})) as served:
        answer = asyncio.run(post(f"{served.url}/a?b=c", b'{"x": 1}', {"X-Own": "1"}, timeout_s=10))
        assert (served.asked, served.paths) == ([{"x": 1}], ["/a?b=c"])
        assert served.headers[0]["x-own"] == "1"
        assert served.headers[0]["host"] == served.url.removeprefix("http://")
    assert (answer.status, json.loads(answer.body)) == (200, {"ok": True})
    assert answer.headers["content-length"] == "12"


def test_an_answer_ends_where_its_length_its_last_chunk_or_its_connection_says() -> None:
    assert raw("HTTP/1.1 200 OK\nContent-Length: 2\n\nab") == b"ab"
    assert raw("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3;x=y\nabc\nA\n0123456789\n0\nTrailer: t\n\n") == (
        b"abc0123456789"
    )
    assert raw("HTTP/1.0 200\n\nall of it") == b"all of it"


def test_interim_responses_are_skipped() -> None:
    assert raw("HTTP/1.1 100 Continue\n\nHTTP/1.1 200 OK\nContent-Length: 1\n\nx") == b"x"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SSH-2.0-OpenSSH\n",
        "HTTP/1.1 200 OK\nContent-Length: 5\n\nabc",
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nabc",
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
def test_a_broken_answer_is_an_error(text: str) -> None:
    with pytest.raises(RequestFailed, match=r"127\.0\.0\.1"):
        raw(text)


def test_a_secure_url_is_not_spoken_to_in_the_clear() -> None:
    with server(Said(body={})) as served, pytest.raises(RequestFailed, match="SSL"):
        asyncio.run(post(served.url.replace("http", "https"), b"{}", {}, timeout_s=10))
    assert served.asked == []


def test_silence_ends_at_the_limit_and_an_empty_port_at_once() -> None:
    with pytest.raises(RequestFailed, match=r"no answer within 0\.2 s"):
        posted(Said(body={}, after_s=30.0), timeout_s=0.2)
    with pytest.raises(RequestFailed, match="ConnectionRefusedError"):
        asyncio.run(post(nobody(), b"{}", {}, timeout_s=10))
