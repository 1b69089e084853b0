"""Instruction following: whether a reply keeps to the rules its task states, each checked by a program (IFEval).

A task names its rules in its metadata: `instruction_id_list`, and `kwargs` with the parameters of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from roll.errors import ConfigError, did_you_mean
from roll.rewards.ifeval_checks import KINDS, Kind
from roll.types import Score, Task


@dataclass(frozen=True, slots=True)
class Instruction:
    """One rule of a task."""

    kind: Kind
    parameters: Mapping[str, Any]


def score(task: Task, reply: str, *, loose: bool = False, partial: bool = False) -> Score:
    """1 if every instruction is followed, else 0, or the fraction that is followed if `partial`.

    `loose` also looks at the reply without its first line, its last line, both, and without asterisks; an instruction
    counts as followed if any of these follows it. The part `followed` is the fraction. An empty reply follows nothing.
    """
    kept = followed(task, reply, loose=loose)
    fraction = sum(kept) / len(kept)
    return Score(fraction if partial else float(all(kept)), {"followed": fraction})


def followed(task: Task, reply: str, *, loose: bool = False) -> list[bool]:
    """For each instruction of the task, in its order, whether the reply follows it."""
    said = _said(reply)
    readings = _readings(said) if loose else [said]
    return [
        any(reading and instruction.kind.follows(reading, **instruction.parameters) for reading in readings)
        for instruction in instructions(task)
    ]


def instructions(task: Task) -> list[Instruction]:
    """What the task asks for, checked: kinds are known, and each has its parameters and no others."""
    place = f"task {task.id!r}"
    names, given = task.metadata.get("instruction_id_list"), task.metadata.get("kwargs")
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{place}: no instructions (got {names!r}); list them as 'instruction_id_list'")
    if not isinstance(given, list) or len(cast(list[Any], given)) != len(cast(list[Any], names)):
        raise ConfigError(f"{place}: not one entry an instruction (got kwargs {given!r}); give each its parameters")
    pairs = zip(cast(list[Any], names), cast(list[Any], given), strict=True)
    return [_instruction(name, parameters, place) for name, parameters in pairs]


def _instruction(name: Any, parameters: Any, place: str) -> Instruction:
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(f"{place}: unknown instruction (got {name!r}){did_you_mean(str(name), KINDS)}")
    if not isinstance(parameters, dict):
        raise ConfigError(
            f"{place}: {name}: parameters are not an object (got {parameters!r}); write one, {{}} for none"
        )
    # Tables that share their columns over all kinds fill the foreign ones with null.
    present = {key: value for key, value in cast(dict[str, Any], parameters).items() if value is not None}
    needs = KINDS[name].needs
    for key in present.keys() - needs.keys():
        raise ConfigError(f"{place}: {name}: unknown parameter (got {key!r}); it takes {', '.join(needs) or 'none'}")
    for key, need in needs.items():
        if not need.met(present.get(key)):
            raise ConfigError(f"{place}: {name}: bad {key!r} (got {present.get(key)!r}); it must be {need.words}")
    return Instruction(KINDS[name], present)


def _said(reply: str) -> str:
    """The reply without what was thought before it; empty while it is still thinking."""
    _, closed, text = reply.rpartition("</think>")
    return "" if not closed and "<think>" in text else text.strip()


def _readings(said: str) -> list[str]:
    """The reply as it is, and without its first line, its last line, both, and asterisks; each once."""
    _, _, rest = said.partition("\n")
    most, _, _ = said.rpartition("\n")
    middle, _, _ = rest.rpartition("\n")
    lines = [text.strip() for text in (said, rest, most, middle)]
    return list(dict.fromkeys([*lines, *(text.replace("*", "").strip() for text in lines)]))
