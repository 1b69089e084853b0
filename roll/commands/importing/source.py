"""A configuration of ROLL as the converters read it: values of the file, else ROLL's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from roll.commands.importing.device_lists import parse_devices
from roll.errors import ConfigError

Pipeline = Literal["rlvr", "agentic"]
MISSING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Values by dotted key."""

    label: str
    """The file, for errors."""
    pipeline: Pipeline
    tree: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """ROLL's default by key, for the keys whose default matters here."""

    def given(self, key: str) -> Any:
        """The value in the file; MISSING if it has none."""
        here: Any = self.tree
        for index, part in enumerate(parts := key.split(".")):
            if not isinstance(here, Mapping | None):
                above = ".".join(parts[:index])
                raise ConfigError(f"{self.label}: {above}: must be a section of keys (got {here!r}); correct it")
            entries = cast("Mapping[str, Any]", here or {})
            if part not in entries:
                return MISSING
            here = entries[part]
        return here

    def get(self, key: str) -> Any:
        """The value in the file, else ROLL's default, else None."""
        value = self.given(key)
        return self.defaults.get(key) if value is MISSING else value

    def section(self, key: str) -> dict[str, Any]:
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fault(key, "must be a section of keys and values")
        return cast("dict[str, Any]", value)

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(key, "must be a number")
        return value

    def whole(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise self.fault(key, "must be a whole number")
        return int(value)

    def texts(self, key: str) -> list[str]:
        """A list of texts, or one text as a list of one."""
        value = self.get(key)
        entries = cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(entry, str) for entry in entries):
            raise self.fault(key, "must be text or a list of texts")
        return entries

    def devices(self, role: str) -> tuple[int, ...]:
        """Device numbers of a role; empty if the file gives none."""
        value = self.get(f"{role}.device_mapping")
        if value is None:
            return ()
        try:
            return parse_devices(value)
        except ValueError as error:
            raise ConfigError(f"{self.label}: {role}.device_mapping: {error}") from None

    @property
    def max_seq_len(self) -> int:
        """Most tokens of prompt and responses together."""
        if self.get("sequence_length") is not None:
            return self.whole("sequence_length")
        if self.get("response_length") is None:
            raise ConfigError(f"{self.label}: has neither sequence_length nor response_length; add one of them")
        return self.whole("prompt_length") + self.whole("response_length")

    def fault(self, key: str, text: str) -> ConfigError:
        return ConfigError(f"{self.label}: {key}: {text} (got {self.get(key)!r}); correct it")
