"""The number of generators that the user wants of a running job, in a file of its run directory."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.errors import ConfigError

FILE = "generators.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedGenerators:
    """What `roll generators` asks of a run."""

    number: int | None = None
    """None: as it is, or what the configuration says."""
    remove: tuple[int, ...] = ()
    """Generators that leave; each lowers the number by one."""

    def write(self, directory: Path) -> None:
        """Replace the file, so that no reader sees a part of it."""
        part = directory / f".{FILE}"
        part.write_text(json.dumps({"number": self.number, "remove": self.remove}), encoding="utf-8")
        os.replace(part, directory / FILE)


def read_wanted(directory: Path) -> WantedGenerators:
    """What the file says; nothing if there is none. Raises `ConfigError` if it cannot be read."""
    path = directory / FILE
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        number, remove = tree.get("number"), tuple(map(int, tree.get("remove", ())))
        return WantedGenerators(number=None if number is None else int(number), remove=remove)
    except FileNotFoundError:
        return WantedGenerators()
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f'{path}: is not of the form {{"number": 4, "remove": []}} ({error}); correct it') from None
