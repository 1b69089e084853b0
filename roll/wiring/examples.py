"""Builds the examples of the commands that train on preferences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from roll.config.preferences import PreferenceSection
from roll.data.preference_rows import DroppedRow, read_preferences
from roll.data.preferences import Preference, Reading
from roll.errors import ConfigError

T = TypeVar("T")
Encode = Callable[[Sequence[Preference]], tuple[list[T], list[DroppedRow]]]
"""Examples of preferences, and the rows that are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSets(Generic[T]):
    """The examples of a run."""

    examples: list[T]
    held_out: list[T]
    num_read: int
    dropped: list[DroppedRow]
    """Rows of both that are not used."""

    def check_sizes(self, section: PreferenceSection, num_ranks: int) -> None:
        """Every batch must have a sequence for each data-parallel rank."""
        sizes = {"batch_size": section.batch_size, "data": len(self.examples)}
        sizes |= {"held_out": len(self.held_out)} if self.held_out else {}
        for key, size in sizes.items():
            if size < num_ranks:
                raise ConfigError(
                    f"{section.key}.{key}: {size} examples for {num_ranks} trainer ranks; give each rank one or more"
                )


def build_examples(section: PreferenceSection, reading: Reading, encode: Encode[T]) -> ExampleSets[T]:
    """The examples of the section; raises `ConfigError` for faulty rows unless it drops them."""
    data = {"data": section.data} | ({} if section.held_out is None else {"held_out": section.held_out})
    read = {key: read_preferences(f"{section.key}.{key}", each, reading) for key, each in data.items()}
    examples: dict[str, list[T]] = {}
    dropped: list[DroppedRow] = []
    for key, preferences in read.items():
        examples[key], left_out = encode(preferences)
        dropped += left_out
        if not examples[key]:
            raise ConfigError(f"{section.key}.{key}: nothing is left of {len(preferences)} rows; correct them")
    return ExampleSets(
        examples=examples["data"],
        held_out=examples.get("held_out", []),
        num_read=sum(map(len, read.values())),
        dropped=dropped,
    )
