"""Devices of a role as a file writes them; device numbers run over the whole cluster, node by node."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BeforeValidator

_WORD = re.compile(r"auto|all|cpu|cuda(:\d+)?")
_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_HOW = "give auto, all, cpu, cuda, cuda:1, a count such as 4, ids such as \"0-7\" or '0-3,8-11', or a list [0, 2]"


def _validate(value: Any) -> Any:
    """`value` if it describes devices, with a list as a tuple; else ValueError."""
    if isinstance(value, list | tuple):
        ids = tuple(cast("list[Any]", value))
        if not ids or any(type(each) is not int or each < 0 for each in ids):
            raise ValueError(f"a list names devices by their numbers from 0 on (got {list(ids)}); {_HOW}")
        return _check_distinct(ids)
    if type(value) is int:
        if value < 1:
            raise ValueError(f"a count of devices is at least 1 (got {value}); {_HOW}")
        return value
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if text.isdecimal():
        raise ValueError(f"{value!r} may be a count or a number; write [{int(text)}] for that one device, or {text}")
    if _RANGES.fullmatch(text):
        _check_distinct(_parse_ranges(text))
        return text
    if not _WORD.fullmatch(text):
        raise ValueError(f"no such devices (got {value!r}); {_HOW}")
    return text


Devices: TypeAlias = Annotated[str | int | tuple[int, ...], BeforeValidator(_validate)]
"""A word, ranges, a count or a list."""


def named_devices(devices: str | int | tuple[int, ...]) -> tuple[int, ...] | None:
    """The device numbers; None for a word or a count."""
    if isinstance(devices, tuple):
        return devices
    return _parse_ranges(devices) if isinstance(devices, str) and devices[0].isdecimal() else None


def num_devices(devices: str | int | tuple[int, ...]) -> int | None:
    """Number of devices; None if it depends on the cluster."""
    if isinstance(devices, int):
        return devices
    named = named_devices(devices)
    return None if named is None else len(named)


def one_device(devices: str | int | tuple[int, ...]) -> bool:
    """Whether this is a word for one device that all workers of a role share, such as `cuda:1`."""
    return isinstance(devices, str) and devices.startswith(("cpu", "cuda"))


def device_text(devices: str | int | tuple[int, ...]) -> str:
    """The devices as a file writes them."""
    return f"[{', '.join(map(str, devices))}]" if isinstance(devices, tuple) else str(devices)


def _parse_ranges(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"a range goes from low to high (got {part!r}); write '{last}-{first}'")
        ids += range(int(first), int(last or first) + 1)
    return tuple(ids)


def _check_distinct(ids: tuple[int, ...]) -> tuple[int, ...]:
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"device {twice[0]} is named twice; name each once")
    return ids
