"""Validation errors in terms of the file: key, location, cause and advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from roll.config.algorithm import Algorithm, DomainAlgorithm, Kl
from roll.config.backends import FsdpTrain, VllmInfer
from roll.config.document import COMMAND_LINE, Document, Fault
from roll.config.envs import Envs, ProxyConfig
from roll.config.knobs import choice_at, knobs, section_at, sections_at
from roll.config.lora import Lora
from roll.config.policies import Policy
from roll.config.roles import NativeInfer, NativeTrain, Optimizer, Ray
from roll.config.schema import Checkpoint, Rollout, Run, Sft, Shape
from roll.config.section import Section
from roll.config.sources import TaskSourceConfig
from roll.errors import ConfigError, did_you_mean

_MOST_FAULTS = 50
_EXPECTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a section of keys and values",
    "dict_type": "must be a section of keys and values",
    "string_too_short": "must not be empty",
    "too_short": "must have at least {min_length} entry",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must match {pattern}",
}
"""By type of error; the names in braces are fields of its context."""

_GENERATOR = {
    "slots": "max_num_seqs",
    "prefill_tokens": "max_num_batched_tokens",
    "flush_tokens": "progress_interval",
}
RENAMED: dict[type[Section], dict[str, str]] = {
    Run: {"publication": "weight_sync"},
    Shape: {"context": "max_seq_len"},
    Rollout: {"context": "max_seq_len"},
    Ray: {"max_replaced": "max_replacements"},
    NativeTrain: {"checkpointing": "activation_checkpointing", "exact": "float32_compute"},
    FsdpTrain: {"checkpointing": "activation_checkpointing"},
    Optimizer: {
        "clip_norm": "max_grad_norm",
        "final_lr": "final_lr_ratio",
        "max_refused": "max_nonfinite_updates",
    },
    Lora: {"targets": "target_modules"},
    NativeInfer: _GENERATOR,
    VllmInfer: {
        **_GENERATOR,
        "stream_tokens": "stream_interval",
        "memory": "gpu_memory_utilization",
        "kv_gib": "kv_cache_gib",
        "prefix_cache": "enable_prefix_caching",
        "eager": "enforce_eager",
        "seeded": "per_request_seed",
    },
    Algorithm: {"clip": "advantage_clip", "emphasis": "advantage_weights", "entropy": "entropy_coefficient"},
    DomainAlgorithm: {"clip": "advantage_clip", "emphasis": "advantage_weights", "weight": "loss_weight"},
    Kl: {"place": "apply_to"},
    TaskSourceConfig: {"sampling": "task_sampling"},
    Policy: {"plays": "agents"},
    Envs: {"start_limit": "max_concurrent_starts"},
    ProxyConfig: {
        "sampling": "sampling_params",
        "max_under_way": "max_concurrent_requests",
        "max_agents": "max_concurrent_agents",
    },
    Checkpoint: {"best": "best_metric"},
    Sft: {"player": "scripted_agent", "stop_at": "stop_at_accuracy"},
}
"""Former names of keys by section, with the new ones. An old name is an error that tells the new one; no aliases."""


MOVED = {"tracking.log": "logging.format"}
"""Former keys that are now in another section."""


def add_faults(document: Document, error: ValidationError) -> int:
    """Add validation errors to the document's faults, except for keys that have a fault already.

    Returns how many are left out, because there are too many: advice takes milliseconds for each.
    """
    known = [fault.key for fault in document.faults]
    details = error.errors(include_url=False)
    errors = list(_merge_choices([_without_choice(each) for each in details[:_MOST_FAULTS]]))
    renamed = {_new_name(_key(each)) for each in errors if each["type"] == "extra_forbidden"}
    for each in errors:
        key = _key(each)
        at_fault = any(key == bad or key.startswith(f"{bad}.") for bad in known)
        if at_fault or _is_consequence(each) or (each["type"] == "missing" and key in renamed):
            continue
        document.faults.append(_fault(document, key, each))
    return max(0, len(details) - _MOST_FAULTS)


def raise_all(faults: list[Fault], num_more: int = 0) -> None:
    """Raise one ConfigError with one line per fault, in the order of the file; return if there is none."""
    if faults or num_more:
        lines = [str(fault) for fault in sorted(faults, key=_order)]
        num_more += len(lines[_MOST_FAULTS:])
        more = [f"and {num_more} more faults; fix these first"] if num_more else []
        raise ConfigError("\n".join([*lines[:_MOST_FAULTS], *more]))


def _key(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])


def _without_choice(error: ErrorDetails) -> ErrorDetails:
    """The error without the part of its location that tells which backend's section was validated."""
    key = tuple(part for part in error["loc"] if not str(part).startswith("<"))
    if error["type"] != "union_tag_invalid":
        return {**error, "loc": key}
    context = error.get("ctx", {})
    known = str(context["expected_tags"]).replace("<", "").replace(">", "")
    backend = str(context["tag"]).strip("<>")
    return {**error, "loc": (*key, "backend"), "type": "choice", "msg": f"must be one of {known}", "input": backend}


def _merge_choices(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """The errors, with those of a key that accepts several types of value merged into one."""
    choices: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for error in errors:
        if choice_at([str(part) for part in error["loc"][:-1]]):
            choices.setdefault(error["loc"][:-1], []).append(error)
        else:
            yield error
    for key, several in choices.items():
        first, *others = dict.fromkeys(expected_value(error) for error in several)
        alternatives = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        yield {**several[0], "loc": key, "type": "choice", "msg": alternatives}


def _is_consequence(error: ErrorDetails) -> bool:
    """Whether a list is too short only because some of its entries are invalid."""
    if error["type"] != "too_short" or not isinstance(error["input"], list):
        return False
    return len(cast("list[Any]", error["input"])) >= error.get("ctx", {})["min_length"]


def _fault(document: Document, key: str, error: ErrorDetails) -> Fault:
    match error["type"]:
        case "extra_forbidden":
            return Fault(key, document.where(key), f"unknown key {key!r}{_nearest(key)}")
        case "missing":
            return Fault(key, document.where(key.rpartition(".")[0]), f"missing key {key!r}; add it{_purpose(key)}")
        case "value_error":
            text = error["msg"].removeprefix("Value error, ")
            return Fault(key, document.where(key or _subject(text)), f"{key}: {text}" if key else text)
        case _:
            quotes = error["type"] == "string_type" and not isinstance(error["input"], dict | list | None)
            advice = "; put quotes around it" if quotes else ""
            text = f"{key}: {expected_value(error)} (got {describe_value(error['input'])}){advice}"
            return Fault(key, document.where(key), text)


def _nearest(key: str) -> str:
    """Advice about an unknown key: its new name, a similar sibling, or the same name in another section."""
    if (new := _new_name(key)) is not None:
        return f"; it is now {new!r}"
    above, _, name = key.rpartition(".")
    sections = sections_at(above.split(".") if above else [])
    siblings = {sibling for section in sections for sibling in section.model_fields}
    if name in siblings:
        return "; only another backend has it"
    tail = did_you_mean(name, siblings)
    elsewhere = [knob.key for knob in knobs() if knob.key.rpartition(".")[2] == name]
    return f"; did you mean {elsewhere[0]!r}?" if elsewhere and "did you mean" not in tail else tail


def _new_name(key: str) -> str | None:
    """The dotted key that replaces `key`, such as `rollout.max_seq_len` for `rollout.context`; None if none does."""
    if key in MOVED:
        return MOVED[key]
    above, _, name = key.rpartition(".")
    for section in sections_at(above.split(".") if above else []):
        if name in RENAMED.get(section, {}):
            new = RENAMED[section][name]
            return f"{above}.{new}" if above else new
    return None


def _purpose(key: str) -> str:
    """Purpose of a missing key, from the docstring of the schema."""
    above, _, name = key.rpartition(".")
    section = section_at(above.split(".") if above else [])
    info = section.model_fields.get(name) if section is not None else None
    inner = section_at(key.split("."))
    text = (info.description if info is not None else None) or (inner.__doc__ if inner is not None else None)
    return f" ({text.splitlines()[0].rstrip('.')})" if text else ""


def _subject(text: str) -> str:
    """The key that a message about the whole file begins with; empty if it begins with none."""
    first = re.match(r"[\w.]+", text)
    return first[0] if first and first[0].partition(".")[0] in Run.model_fields else ""


def expected_value(error: ErrorDetails) -> str:
    """What a key must be, such as `must be a whole number`."""
    if error["type"] in _EXPECTED:
        return _EXPECTED[error["type"]].format(**error.get("ctx", {}))
    return error["msg"].replace("Input should be", "must be")


def describe_value(value: Any) -> str:
    """A value as an error message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _order(fault: Fault) -> tuple[bool, int]:
    """Sort key: the file from top to bottom, then the command line."""
    line = fault.where.rpartition(":")[2]
    return fault.where == COMMAND_LINE, int(line) if line.isdecimal() else 0
