"""A chat with any server that implements the OpenAI protocol, such as vLLM, SGLang or llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import Field, ValidationError

from roll.chat.base import Chat
from roll.chat.client import JsonClient
from roll.config.section import Section
from roll.errors import ConfigError, did_you_mean
from roll.types import Message


class ChatSettings(Section):
    """The model to chat with, its server, and request options."""

    url: str = Field(min_length=1)
    """Including the version: `http://127.0.0.1:8000/v1`."""
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(default=None, min_length=1)
    """Environment variable with the key."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Per try."""
    max_retries: int = Field(default=3, ge=0)
    """Retries if the server is busy, broken or unreachable."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Pause before the first retry; it doubles with each retry, unless the server asks for another."""
    max_concurrent: int = Field(default=64, gt=0)
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, gt=0)
    extra: dict[str, Any] = Field(default_factory=dict)
    """Overrides fields of every request; null removes one: `{max_tokens: null, max_completion_tokens: 2048}`."""


class OpenAIChat:
    """`Chat` over HTTP."""

    def __init__(self, settings: ChatSettings) -> None:
        self.settings = settings
        options = settings.model_dump(
            include={"api_key_env", "timeout_s", "max_retries", "backoff_s", "max_concurrent"}
        )
        self._client = JsonClient(url=f"{settings.url.rstrip('/')}/chat/completions", **options)

    @property
    def name(self) -> str:
        return self.settings.model

    async def complete(self, messages: Sequence[Message], **options: Any) -> str:
        """The content of the first choice. Options are fields of the request, such as `temperature` and `seed`."""
        request: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
            **options,
            **self.settings.extra,
        }
        return await self._client.post({key: value for key, value in request.items() if value is not None}, _content)


def build_chat(section: Any, where: str) -> Chat:
    """The chat of a config section; a `Chat` is returned unchanged. `where` locates errors."""
    if hasattr(section, "complete"):
        return cast(Chat, section)
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: is no chat (got {section!r}); write {{url: ..., model: ...}}")
    try:
        settings = ChatSettings.model_validate(dict(cast(Mapping[str, Any], section)))
    except ValidationError as error:
        raise ConfigError("\n".join(_format_error(entry, where) for entry in error.errors(include_url=False))) from None
    return OpenAIChat(settings)


def _format_error(entry: Any, where: str) -> str:
    key = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}{did_you_mean(key, ChatSettings.model_fields)}"
    if entry["type"] == "missing":
        return f"{where}: missing key {key!r}; add it"
    expected = str(entry["msg"]).replace("Input should be", "must be")
    return f"{where}.{key}: {expected} (got {entry['input']!r}); correct it"


def _content(answer: Any) -> str:
    """The text in an answer of the protocol; ValueError if there is none."""
    try:
        content = answer["choices"][0]["message"]["content"]
    except (LookupError, TypeError) as error:
        raise ValueError("no choices[0].message.content in it") from error
    if not isinstance(content, str) or not content.strip():
        raise ValueError("an empty reply")
    return content
