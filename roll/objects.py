"""Python objects in place of names in a configuration, for the time of one call.

A configuration names functions and classes as `package.module:attribute`. An object that can be imported is replaced by
its name. Any other one, such as a lambda, a closure or a function of a notebook, becomes the only attribute of a module
that exists during the call: in this process the object itself, in worker processes a copy of it.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, cast

from roll.errors import ConfigError, one_line
from roll.registry import PASSED

_LOADS = '''"""A Python object that was passed to roll; exists during that call."""
import pickle
{name} = pickle.loads({data!r})
'''
_FAILS = '''"""A Python object that was passed to roll; exists during that call."""
from roll.errors import ConfigError
raise ConfigError({message!r})
'''


def replace_objects(value: Any, objects: dict[str, Any], key: str = "") -> Any:
    """`value` as plain data, with a name in place of every function and class; adds those not importable to `objects`.

    `key` is the dotted key of the value. Raises `ConfigError` for other values.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value).items()
        return {str(name): replace_objects(inner, objects, f"{key}.{name}".lstrip(".")) for name, inner in entries}
    if isinstance(value, list | tuple):
        items = enumerate(cast("list[Any]", value))
        return [replace_objects(inner, objects, f"{key}.{index}".lstrip(".")) for index, inner in items]
    if not callable(value):
        raise ConfigError(f"{key}: must be plain data, a function or a class (got {type(value).__name__}); change it")
    return _importable_name(value) or _passed_name(value, objects)


@contextmanager
def importable_objects(objects: Mapping[str, Any], folder: Path | None, *, processes: bool) -> Generator[None]:
    """Makes every `module:attribute` of `objects` importable inside this block.

    With `processes`, also in worker processes that are started inside the block and see `folder`; None is the folder
    for temporary files.
    """
    modules = {name.partition(":")[0]: value for name, value in objects.items()}
    for module in modules:
        if module in sys.modules:
            name = module.removeprefix(PASSED)
            raise ConfigError(f"{name}: another call in this process uses an object of this name; rename the function")
    with TemporaryDirectory(prefix=".objects-", dir=folder) as directory:
        try:
            for module, value in modules.items():
                sys.modules[module] = _module(module, value)
                if processes:
                    (Path(directory) / f"{module}.py").write_text(_source(module, value), encoding="utf-8")
            sys.path.append(directory)
            yield
        finally:
            for module in modules:
                sys.modules.pop(module, None)
            if directory in sys.path:
                sys.path.remove(directory)


def _importable_name(value: Any) -> str:
    """`module:attribute` of an object that any process can import; else empty."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not value:
        return ""
    return f"{module}:{name}"


def _passed_name(value: Any, objects: dict[str, Any]) -> str:
    """The name of an object for this call: its own, so that a resumed run finds it again, numbered if it is taken."""
    title = getattr(value, "__name__", type(value).__name__)
    title = re.sub(r"\W+", "_", title).strip("_")
    title = f"{title}_" if keyword.iskeyword(title) else title
    number = 1
    while True:
        short = title if number == 1 else f"{title}_{number}"
        name = f"{PASSED}{short}:{short}"
        if objects.setdefault(name, value) is value:
            return name
        number += 1


def _module(name: str, value: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="a Python object")
    setattr(module, name.removeprefix(PASSED), value)
    return module


def _source(module: str, value: Any) -> str:
    """The text of the module for other processes; importing it raises `ConfigError` if the object cannot be sent."""
    from ray import cloudpickle  # an import of a second: only for objects that other processes need

    name = module.removeprefix(PASSED)
    try:
        return _LOADS.format(name=name, data=cast(Any, cloudpickle).dumps(value))
    except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
        reason = one_line(f"{type(error).__name__}: {error}")
        advice = "define it in a module, or set rewards.workers and envs.workers to 0"
        return _FAILS.format(message=f"{name}: cannot be sent to a worker process ({reason}); {advice}")
