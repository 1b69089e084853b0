"""Base classes of all sections of a configuration file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from roll.registry import Spec


class Section(BaseModel):
    """A frozen group of keys; unknown keys and wrong types are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class SpecConfig(Section):
    """A `Spec` as a file writes it: `math`, `my_lab.rewards:polite`, or `{kind: math, tolerance: 0.1}`."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(min_length=1)
    """A short name of the package, or `package.module:attribute`."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def kwargs(self) -> dict[str, Any]:
        """All keys except `kind`."""
        return dict(self.model_extra or {})

    @property
    def spec(self) -> Spec:
        """The same as a plain record, which any process can resolve."""
        return Spec(self.kind, self.kwargs)
