"""The client of chat servers: requests, retries, and errors."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from roll.chat.base import FakeChat
from roll.chat.client import RequestRejected, pause_before
from roll.chat.openai import OpenAIChat, build_chat
from roll.errors import ConfigError, EngineFailed
from roll.types import Message
from tests.chat.server import Said, Served, nobody, server, words

VARIABLE = "ROLL_TEST_CHAT_KEY"
KEY = "sk-very-secret"


@contextlib.contextmanager
def key(value: str) -> Iterator[None]:
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def asked(served: Served, text: str = "Hello", **settings: Any) -> str:
    chat = build_chat({"url": f"{served.url}/v1", "model": "m", "backoff_s": 0, **settings}, "chat")
    return asyncio.run(chat.complete([Message("system", "Be brief."), Message("user", text)], seed=7))


def test_a_request_carries_the_model_the_messages_and_the_options() -> None:
    with server(words("Hi")) as served:
        assert asked(served, temperature=0.5, max_tokens=9) == "Hi"
    assert served.paths == ["/v1/chat/completions"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert served.asked == [{"model": "m", "messages": messages, "temperature": 0.5, "max_tokens": 9, "seed": 7}]
    assert "authorization" not in served.headers[0]


def test_extra_fields_override_and_null_removes_one() -> None:
    with server(words("Hi")) as served:
        asked(served, extra={"max_tokens": None, "max_completion_tokens": 5, "seed": None})
    assert served.asked[0].keys() == {"model", "messages", "temperature", "max_completion_tokens"}


def test_text_that_utf8_cannot_hold_is_sent_without_it() -> None:
    with server(words("Hi")) as served:
        assert asked(served, "a\ud800b é") == "Hi"
    assert served.asked[0]["messages"][1]["content"] == "a?b é"


def test_the_key_comes_from_the_environment() -> None:
    with server(words("Hi")) as served, key(KEY):
        asked(served, api_key_env=VARIABLE)
    assert served.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_missing_key_is_reported_before_the_first_request() -> None:
    with pytest.raises(ConfigError, match=f"no key in the environment variable {VARIABLE}"):
        build_chat({"url": "http://127.0.0.1:1", "model": "m", "api_key_env": VARIABLE}, "chat")


def test_a_refused_key_is_a_config_error_and_is_never_shown() -> None:
    said = Said(status=401, body={"error": {"message": f"Incorrect API key provided: {KEY}"}})
    with server(said) as served, key(KEY):
        with pytest.raises(ConfigError, match=f"status 401, with the key in {VARIABLE}") as refused:
            asked(served, api_key_env=VARIABLE)
        chat = build_chat({"url": served.url, "model": "m", "api_key_env": VARIABLE}, "chat")
        assert isinstance(chat, OpenAIChat)
        shown = f"{refused.value} {chat!r} {chat.settings!r} {vars(chat)!r}"
    assert KEY not in shown
    assert "***" in str(refused.value) and "\n" not in str(refused.value)
    assert len(served.asked) == 1


def test_a_missing_model_or_path_is_a_config_error() -> None:
    for status in (404, 307):
        with server(Said(status=status, body={"error": "no model 'm'"})) as served:
            with pytest.raises(ConfigError, match=f"status {status}.*no model 'm'.*correct url or model"):
                asked(served)
            assert len(served.asked) == 1


def test_a_refused_request_fails_once_and_is_not_repeated() -> None:
    with server(Said(status=400, body={"error": "too long"})) as served:
        with pytest.raises(RequestRejected, match=r"status 400, the request was refused .*too long"):
            asked(served)
        assert len(served.asked) == 1


@pytest.mark.parametrize(
    "broken",
    [
        Said(status=429, body={}, headers={"Retry-After": "0"}),
        Said(status=500, body=b"oops"),
        Said(status=503, body={}),
        Said(body=b"<html>"),
        Said(body={"choices": []}),
        Said(body={"choices": [{"message": {"content": None}}]}),
        Said(body=[]),
        Said(raw=b""),
    ],
)
def test_a_busy_or_broken_server_is_retried(broken: Said) -> None:
    with server(broken, broken, words("Hi")) as served:
        assert asked(served, max_retries=2) == "Hi"
        assert len(served.asked) == 3


def test_a_server_that_stays_broken_is_given_up_after_the_last_try() -> None:
    with server(Said(status=502, body={"detail": "bad\ngateway"})) as served:
        with pytest.raises(EngineFailed, match=r"status 502 .*given up at try 3") as failed:
            asked(served, max_retries=2)
        assert len(served.asked) == 3
        assert "\n" not in str(failed.value)


def test_a_server_that_is_gone_is_given_up_too() -> None:
    gone = Served(url=nobody(), answers=[])
    with pytest.raises(EngineFailed, match=r"ConnectionRefusedError.*given up at try 2"):
        asked(gone, max_retries=1)


def test_a_server_that_asks_for_a_long_pause_is_not_waited_for() -> None:
    with server(Said(status=429, body={}, headers={"Retry-After": "3600"})) as served:
        with pytest.raises(EngineFailed, match="asks for a pause of 3600 s"):
            asked(served, max_retries=5)
        assert len(served.asked) == 1


def test_pauses_double_and_follow_retry_after() -> None:
    for tried, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (20, 60.0)):
        assert longest / 2 <= pause_before(tried, None, backoff_s=0.5, now_s=0) <= longest
    assert pause_before(1, "7", backoff_s=0.5, now_s=0) == 7.0
    noon = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert pause_before(1, format_datetime(noon, usegmt=True), backoff_s=0.5, now_s=noon.timestamp() - 9) == 9.0
    assert pause_before(1, format_datetime(noon, usegmt=True), backoff_s=0.5, now_s=noon.timestamp() + 9) == 0.0
    assert 0.25 <= pause_before(1, "soon", backoff_s=0.5, now_s=0) <= 0.5


def test_concurrent_requests_are_bounded() -> None:
    with server(words("Hi")) as served:
        served.answers[0].after_s = 0.05
        chat = build_chat({"url": served.url, "model": "m", "max_concurrent": 2}, "chat")

        async def all_at_once() -> list[str]:
            return await asyncio.gather(*(chat.complete([Message("user", "Hello")]) for _ in range(8)))

        assert asyncio.run(all_at_once()) == ["Hi"] * 8
        assert served.busiest <= 2 and len(served.asked) == 8


def test_all_errors_of_a_section_are_reported() -> None:
    with pytest.raises(ConfigError) as refused:
        build_chat({"url": "http://a", "modle": "m", "timeout_s": 0}, "reward 'judge': chat")
    assert str(refused.value).split("\n") == [
        "reward 'judge': chat: missing key 'model'; add it",
        "reward 'judge': chat.timeout_s: must be greater than 0 (got 0); correct it",
        "reward 'judge': chat: unknown key 'modle'; did you mean 'model'?",
    ]
    with pytest.raises(ConfigError, match="url: is none"):
        build_chat({"url": "a.b/c", "model": "m"}, "chat")
    with pytest.raises(ConfigError, match="chat: is no chat"):
        build_chat("gpt", "chat")


def test_a_chat_is_returned_unchanged() -> None:
    chat = FakeChat([])
    assert build_chat(chat, "chat") is chat
