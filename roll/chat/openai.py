"""A chat with any server that speaks the OpenAI protocol: vLLM, SGLang, llama.cpp, or a service of the kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import Field, ValidationError

from roll.chat.base import Chat
from roll.chat.client import Client
from roll.config.section import Section
from roll.errors import ConfigError, did_you_mean
from roll.types import Message


class ChatSettings(Section):
    """Which model to talk to, and how."""

    url: str = Field(min_length=1)
    """Up to and with the version: `http://127.0.0.1:8000/v1`."""
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds the key."""
    timeout_s: float = Field(default=60.0, gt=0)
    """For one try."""
    max_retries: int = Field(default=3, ge=0)
    """Tries beyond the first, where a server is busy, broken or gone."""
    backoff_s: float = Field(default=0.5, ge=0)
    """The first pause between two tries; each later one is twice the one before, or what the server asks for."""
    max_concurrent: int = Field(default=64, gt=0)
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, gt=0)
    extra: dict[str, Any] = Field(default_factory=dict)
    """Laid over every request, null taking a field away: `{max_tokens: null, max_completion_tokens: 2048}`."""


class OpenAIChat:
    """`Chat` over HTTP."""

    def __init__(self, settings: ChatSettings) -> None:
        self.settings = settings
        self._client = Client(
            url=f"{settings.url.rstrip('/')}/chat/completions",
            api_key_env=settings.api_key_env,
            timeout_s=settings.timeout_s,
            max_retries=settings.max_retries,
            backoff_s=settings.backoff_s,
            max_concurrent=settings.max_concurrent,
        )

    @property
    def name(self) -> str:
        return self.settings.model

    async def complete(self, messages: Sequence[Message], **options: Any) -> str:
        """The content of the first choice. Options are fields of the request, such as `temperature` and `seed`."""
        asked: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
            **options,
            **self.settings.extra,
        }
        return await self._client.ask({key: value for key, value in asked.items() if value is not None}, _content)


def chat_of(given: Any, place: str) -> Chat:
    """The chat that a section of a configuration describes; a `Chat` is given back as it is. `place` is for errors."""
    if hasattr(given, "complete"):
        return cast(Chat, given)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place}: is no chat (got {given!r}); write {{url: ..., model: ...}}")
    try:
        settings = ChatSettings.model_validate(dict(cast(Mapping[str, Any], given)))
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(found, place) for found in error.errors(include_url=False))) from None
    return OpenAIChat(settings)


def _fault(found: Any, place: str) -> str:
    key = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"{place}: unknown key {key!r}{did_you_mean(key, ChatSettings.model_fields)}"
    if found["type"] == "missing":
        return f"{place}: missing key {key!r}; add it"
    expected = str(found["msg"]).replace("Input should be", "must be")
    return f"{place}.{key}: {expected} (got {found['input']!r}); correct it"


def _content(found: Any) -> str:
    """The reply in an answer of the protocol; ValueError where there is none."""
    try:
        content = found["choices"][0]["message"]["content"]
    except (LookupError, TypeError) as error:
        raise ValueError("no choices[0].message.content in it") from error
    if not isinstance(content, str) or not content.strip():
        raise ValueError("an empty reply")
    return content
