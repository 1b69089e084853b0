"""Main program of `roll.proxy.preloaded_python`: imports the modules of agents, then runs each script in a fork.

Its arguments are the folder of the scripts, the modules to import, and a socket.
"""

from __future__ import annotations

import importlib
import os
import random
import runpy
import socket
import sys

from roll.proxy.launcher_main import adopt_streams, await_order
from roll.sandbox.forkserver_main import report_failure


def main() -> None:
    """Serve forks; in a fork, run its script as `python` would."""
    _, folder, *modules, descriptor = sys.argv
    control = socket.socket(fileno=int(descriptor))
    sys.path[0] = folder
    try:
        for name in modules:
            importlib.import_module(name)
    except BaseException as error:
        report_failure(control, error)
        raise  # its traceback goes to standard error
    (argv, directory, environment), streams = await_order(control)
    adopt_streams(streams)
    become_script(argv, directory, environment)
    runpy.run_path(argv[0], run_name="__main__")


def become_script(argv: list[str], directory: str, environment: dict[str, str]) -> None:
    """Take on a script's arguments, directory and environment."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()  # otherwise all forks would draw the same numbers
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
