"""Python agents as forks of a process that has imported their modules."""

from __future__ import annotations

from collections.abc import Sequence

from roll.proxy.launcher import ProgramLauncher, server_program


class PreloadedPython(ProgramLauncher):
    """Runs the scripts `argv[0]` of commands in forks of one Python process."""

    def __init__(self, folder: str, modules: Sequence[str]) -> None:
        """`folder` holds the scripts, and may hold modules."""
        super().__init__()
        self._program = server_program("roll.proxy.preloaded_python_main", folder, *modules)
        self._fault = f"agent.preload: cannot import {', '.join(modules)} (see above); leave it out"
