"""Every chat keeps the contract of its protocol."""

import asyncio

import pytest

from roll.chat.base import FakeChat
from roll.chat.openai import ChatSettings, OpenAIChat
from roll.errors import ConfigError, EngineFailed
from tests.chat import contract
from tests.chat.server import server, words


def test_every_chat_keeps_its_contract() -> None:
    for promise in (contract.a_chat_answers_in_words, contract.a_chat_takes_options):
        asyncio.run(promise(FakeChat(["yes"])))
        with server(words("yes")) as served:
            asyncio.run(promise(OpenAIChat(ChatSettings(url=served.url, model="m"))))


def test_a_fake_chat_records_requests_and_reports_when_answers_run_out() -> None:
    chat = FakeChat(["yes"])
    assert asyncio.run(chat.complete(contract.QUESTION, seed=3)) == "yes"
    assert (chat.requests, chat.options) == ([contract.QUESTION], [{"seed": 3}])
    with pytest.raises(ConfigError, match="no answer is left"):
        asyncio.run(chat.complete(contract.QUESTION))


def test_a_fake_chat_raises_the_errors_among_its_answers() -> None:
    with pytest.raises(EngineFailed, match="down"):
        asyncio.run(FakeChat([EngineFailed("down")]).complete(contract.QUESTION))
