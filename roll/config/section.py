"""What every section of a configuration file is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Frozen, and strict about names and types: a key we do not know is an error, never a shrug."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Named(Section):
    """Something importable with its arguments: `math`, `my_lab.rewards:polite`, or `{kind: math, tolerance: 0.1}`."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(min_length=1)
    """A short name of ours, or `package.module:attribute`."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything beside `kind`."""
        return dict(self.model_extra or {})
