"""The file of `roll run`: stages of post-training, one command and one run file each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from roll.config.document import Document, Fault, parse
from roll.config.faults import describe_value, expected_value, raise_all
from roll.config.load import read_text
from roll.config.section import Section
from roll.errors import ConfigError, did_you_mean

_REFERENCE = re.compile(r"\{([A-Za-z0-9][\w-]*)\.(model|samples|directory)\}")
_NAME = r"^[A-Za-z0-9][\w-]*$"


class Stage(Section):
    """One command with its run file."""

    name: str = Field(pattern=_NAME)
    """Name of the stage's directory, and in `{name.model}`."""
    command: Literal["sft", "dpo", "distill", "train", "rollout"]
    """`rollout` attempts tasks and writes `{name.samples}`; the others train, and write `{name.model}`."""
    file: str = Field(min_length=1)
    """Run file, relative to the file of the stages."""
    model: str = "previous"
    """Where the model comes from: `previous` (the newest of the stages before, or the run file if there is none),
    `file` (the run file), or the name of an earlier stage."""
    set: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Overrides of keys of the run file; `{stage.model}`, `{stage.samples}` and `{stage.directory}` are paths."""
    tasks: str | None = None
    """For `rollout`: the source of tasks; None: the first."""
    num: int | None = Field(default=None, gt=0)
    """For `rollout`: number of attempts; needed there."""
    agent: str | None = None
    """For `rollout`: an agent that attempts them in place of the model, as in `roll rollout --agent`."""
    min_reward: float | None = None
    """For `rollout`: keep the attempts with at least this reward; None: all that are valid."""
    best: int | None = Field(default=None, gt=0)
    """For `rollout`: most attempts to keep per task, those with the highest rewards; None: all."""

    @property
    def trains(self) -> bool:
        """Whether the stage writes a model."""
        return self.command != "rollout"

    @model_validator(mode="after")
    def _check_command(self) -> Stage:
        rollout_keys = ("tasks", "num", "agent", "min_reward", "best")
        if self.trains and (wrong := [key for key in rollout_keys if getattr(self, key) is not None]):
            raise ValueError(f"{wrong[0]}: only `command: rollout` has it (got {self.command}); remove it")
        if not self.trains and self.num is None:
            raise ValueError("num: missing; give the number of attempts")
        return self

    def references(self) -> Iterator[tuple[str, str]]:
        """Name of a stage and kind of its output, for every reference in `set`."""
        yield from _REFERENCE.findall(json.dumps(self.set))

    def overrides(self, outputs: Mapping[str, str]) -> list[str]:
        """`set` as overrides of the command line; `outputs` has the path of each `stage.kind`."""

        def path(match: re.Match[str]) -> str:
            return json.dumps(outputs[f"{match[1]}.{match[2]}"])[1:-1]

        return [f"{key}={_REFERENCE.sub(path, json.dumps(value))}" for key, value in self.set.items()]


class Stages(Section):
    """All stages of a model, in order."""

    name: str = Field(pattern=_NAME)
    """Name of the directory of all stages."""
    directory: str = "runs"
    """The directory that has it."""
    stages: tuple[Stage, ...] = Field(min_length=1, strict=False)
    """They run in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStages:
    """Valid stages with the location of each of their keys."""

    stages: Stages
    document: Document
    path: Path
    text: str

    def where(self, index: int, key: str = "") -> str:
        """Location of a stage, or of a key of it."""
        return self.document.where(f"stages.{index}.{key}".rstrip("."))


def load_stages(path: Path) -> LoadedStages:
    """The stages in a file. Raises all faults at once."""
    text = read_text(path)
    document = parse(text, str(path))
    top: Any = document.tree
    tree = cast("dict[str, Any]", top) if isinstance(top, dict) else {}
    if "stages" not in tree:
        hint = "; this is a run file, for `roll train`" if "model" in tree else ""
        raise ConfigError(f"{path}: missing key 'stages'; give a file with stages{hint}")
    stages: Stages | None = None
    try:
        stages = Stages.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        document.faults += [_fault(document, each) for each in error.errors(include_url=False)]
    if stages is not None:
        for key, fault in _order_faults(stages):
            document.fault(key, f"{key}: {fault}")
    raise_all(document.faults)
    assert stages is not None
    return LoadedStages(stages=stages, document=document, path=path, text=text)


def _order_faults(stages: Stages) -> Iterator[tuple[str, str]]:
    """Names that are given twice, and references to stages that are not earlier ones with that output."""
    earlier: dict[str, Stage] = {}
    for index, stage in enumerate(stages.stages):
        above = f"stages.{index}"
        if stage.name in earlier:
            yield f"{above}.name", f"two stages are named {stage.name!r}; rename one"
        if stage.model not in ("previous", "file"):
            yield from ((f"{above}.model", fault) for fault in _reference_faults(earlier, stage.model, "model"))
        for name, kind in stage.references():
            yield from ((f"{above}.set", fault) for fault in _reference_faults(earlier, name, kind))
        earlier[stage.name] = stage


def _reference_faults(earlier: Mapping[str, Stage], name: str, kind: str) -> Iterator[str]:
    if name not in earlier:
        yield f"no earlier stage is named {name!r}{did_you_mean(name, earlier) or '; name one above it'}"
    elif kind != "directory" and earlier[name].trains != (kind == "model"):
        yield f"stage {name!r} writes no {kind}, as its command is {earlier[name].command}; name another stage"


def _fault(document: Document, error: ErrorDetails) -> Fault:
    key = ".".join(str(part) for part in error["loc"])
    above, _, name = key.rpartition(".")
    match error["type"]:
        case "extra_forbidden":
            section = Stage if above.startswith("stages.") and above.count(".") == 1 else Stages
            near = did_you_mean(name, section.model_fields) or "; remove it"
            return Fault(key, document.where(key), f"unknown key {key!r}{near}")
        case "missing":
            return Fault(key, document.where(above), f"missing key {key!r}; add it")
        case "value_error":
            text = error["msg"].removeprefix("Value error, ")
            return Fault(key, document.where(f"{key}.{text.partition(':')[0]}"), f"{key}.{text}")
        case _:
            got = describe_value(error["input"])
            return Fault(key, document.where(key), f"{key}: {expected_value(error)} (got {got})")
