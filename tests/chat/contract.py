"""What every chat must keep."""

from roll.chat.base import Chat
from roll.types import Message

QUESTION = (Message("user", "Is this right?"),)


async def a_chat_answers_in_words(chat: Chat) -> None:
    answer = await chat.complete(QUESTION)
    assert isinstance(answer, str) and answer
    assert chat.name


async def a_chat_takes_options(chat: Chat) -> None:
    assert await chat.complete(QUESTION, temperature=0.5, seed=3)
