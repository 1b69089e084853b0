"""Main program of `roll.proxy.launcher`: executes each command in a fork. Its argument is a socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from roll.sandbox.forkserver_main import serve


def main() -> None:
    """Serve forks; a fork becomes the command that was ordered."""
    (argv, directory, environment), streams = await_order(socket.socket(fileno=int(sys.argv[1])))
    adopt_streams(streams)
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, which a program would inherit
        signal.signal(name, signal.SIG_DFL)
    try:
        os.chdir(directory)
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]!r} ({error.strerror}); check agent.command and agent.directory".encode())
        os._exit(127)


def await_order(control: socket.socket) -> tuple[tuple[list[str], str, dict[str, str]], list[int]]:
    """Returns in a fork: its arguments, directory and environment, and its standard streams."""
    _, (order_file, *streams) = serve(control)
    with os.fdopen(order_file) as order:
        argv, directory, environment = json.load(order)
    return (argv, directory, environment), streams


def adopt_streams(streams: list[int]) -> None:
    """Make the descriptors the standard streams of this process."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
