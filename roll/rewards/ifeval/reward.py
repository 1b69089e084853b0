"""Instruction following (IFEval): whether a response follows the verifiable instructions of its task.

A task names its instructions in its metadata: `instruction_id_list`, and `kwargs` with the parameters of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from roll.errors import ConfigError, did_you_mean
from roll.rewards.ifeval.checks import KINDS, InstructionKind
from roll.types import Score, Task


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a task."""

    kind: InstructionKind
    parameters: Mapping[str, Any]


def score(task: Task, response: str, *, loose: bool = False, partial: bool = False) -> Score:
    """1 if every instruction is followed, else 0, or the fraction that is followed if `partial`.

    `loose` also tries the response without its first line, its last line, both, and without asterisks; an instruction
    is followed if any variant follows it. The part `followed` is the fraction. An empty response follows nothing.
    """
    checks = check_instructions(task, response, loose=loose)
    fraction = sum(checks) / len(checks)
    return Score(fraction if partial else float(all(checks)), {"followed": fraction})


def check_instructions(task: Task, response: str, *, loose: bool = False) -> list[bool]:
    """Whether the response follows each instruction of the task, in order."""
    text = _after_thinking(response)
    variants = _variants(text) if loose else [text]
    return [
        any(variant and instruction.kind.follows(variant, **instruction.parameters) for variant in variants)
        for instruction in parse_instructions(task)
    ]


def parse_instructions(task: Task) -> list[Instruction]:
    """The task's instructions; raises `ConfigError` for unknown kinds and wrong parameters."""
    where = f"task {task.id!r}"
    names, kwargs = task.metadata.get("instruction_id_list"), task.metadata.get("kwargs")
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{where}: no instructions (got {names!r}); list them as 'instruction_id_list'")
    if not isinstance(kwargs, list) or len(cast(list[Any], kwargs)) != len(cast(list[Any], names)):
        raise ConfigError(f"{where}: not one entry per instruction (got kwargs {kwargs!r}); give each its parameters")
    pairs = zip(cast(list[Any], names), cast(list[Any], kwargs), strict=True)
    return [_parse_instruction(name, parameters, where) for name, parameters in pairs]


def _parse_instruction(name: Any, parameters: Any, where: str) -> Instruction:
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(f"{where}: unknown instruction (got {name!r}){did_you_mean(str(name), KINDS)}")
    if not isinstance(parameters, dict):
        raise ConfigError(
            f"{where}: {name}: parameters are not an object (got {parameters!r}); write one, {{}} for none"
        )
    # Datasets with one column per parameter of any kind fill the unused ones with null.
    present = {key: value for key, value in cast(dict[str, Any], parameters).items() if value is not None}
    rules = KINDS[name].parameters
    for key in present.keys() - rules.keys():
        raise ConfigError(f"{where}: {name}: unknown parameter (got {key!r}); it takes {', '.join(rules) or 'none'}")
    for key, rule in rules.items():
        if not rule.accepts(present.get(key)):
            raise ConfigError(f"{where}: {name}: bad {key!r} (got {present.get(key)!r}); it must be {rule.description}")
    return Instruction(KINDS[name], present)


def _after_thinking(response: str) -> str:
    """The response after its thinking; empty if the thinking has not ended."""
    _, closed, text = response.rpartition("</think>")
    return "" if not closed and "<think>" in text else text.strip()


def _variants(text: str) -> list[str]:
    """The distinct texts without the first line, the last line, both, and asterisks; the original first."""
    _, _, rest = text.partition("\n")
    most, _, _ = text.rpartition("\n")
    middle, _, _ = rest.rpartition("\n")
    lines = [part.strip() for part in (text, rest, most, middle)]
    return list(dict.fromkeys([*lines, *(part.replace("*", "").strip() for part in lines)]))
