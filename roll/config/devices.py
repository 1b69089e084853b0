"""What a file says of a role's devices, which are numbered over the whole cluster, node by node."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BeforeValidator

_WORD = re.compile(r"auto|all|cpu|cuda(:\d+)?")
_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_HOW = "give auto, all, cpu, cuda, cuda:1, a count such as 4, ids such as \"0-7\" or '0-3,8-11', or a list [0, 2]"


def _readable(given: Any) -> Any:
    """The same, once it is known to be something we can read; a list becomes a tuple."""
    if isinstance(given, list | tuple):
        listed = tuple(cast("list[Any]", given))
        if not listed or any(type(each) is not int or each < 0 for each in listed):
            raise ValueError(f"a list names devices by their numbers from 0 on (got {list(listed)}); {_HOW}")
        return _distinct(listed)
    if type(given) is int:
        if given < 1:
            raise ValueError(f"a count of devices is at least 1 (got {given}); {_HOW}")
        return given
    text = given.replace(" ", "") if isinstance(given, str) else ""
    if text.isdecimal():
        raise ValueError(f"{given!r} may be a count or a number; write [{int(text)}] for that one device, or {text}")
    if _RANGES.fullmatch(text):
        _distinct(_numbers(text))
        return text
    if not _WORD.fullmatch(text):
        raise ValueError(f"no such devices (got {given!r}); {_HOW}")
    return text


Devices: TypeAlias = Annotated[str | int | tuple[int, ...], BeforeValidator(_readable)]
"""A word, ranges, a count or a list."""


def named_devices(devices: str | int | tuple[int, ...]) -> tuple[int, ...] | None:
    """The devices that are named by number; None where the file names none."""
    if isinstance(devices, tuple):
        return devices
    return _numbers(devices) if isinstance(devices, str) and devices[0].isdecimal() else None


def num_devices(devices: str | int | tuple[int, ...]) -> int | None:
    """How many are asked for; None where that depends on what there is."""
    if isinstance(devices, int):
        return devices
    named = named_devices(devices)
    return None if named is None else len(named)


def one_device(devices: str | int | tuple[int, ...]) -> bool:
    """Whether this is a word for one device that all workers of a role use, such as `cuda:1`."""
    return isinstance(devices, str) and devices.startswith(("cpu", "cuda"))


def device_text(devices: str | int | tuple[int, ...]) -> str:
    """As a file would say it."""
    return f"[{', '.join(map(str, devices))}]" if isinstance(devices, tuple) else str(devices)


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"a range goes from low to high (got {part!r}); write '{last}-{first}'")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _distinct(ids: tuple[int, ...]) -> tuple[int, ...]:
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"device {twice[0]} is named twice; name each once")
    return ids
