"""Main program of the fork server; it imports the modules of agents and nothing of this package.

Its arguments are a socket, the folder of the scripts, and the modules to import. Every order on the socket has an `id`.
An order to start carries three descriptors; the reply is the pid of a fork that runs the script as `python` would. An
order to `reap` names a process that has ended; the reply is its exit status. The program ends when the socket closes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import socket
import sys
from typing import Any

_MAX_MESSAGE = 1 << 20


def serve(orders: socket.socket) -> dict[str, Any]:
    """Carry out orders until the socket closes; returns only in a forked process, with its order."""
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(orders, _MAX_MESSAGE, 3)
        except OSError:  # a run that ends may leave replies unread, which resets the socket
            os._exit(0)
        if not data:
            os._exit(0)
        order: dict[str, Any] = json.loads(data)
        if "reap" in order:
            reply = {"status": os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])}
        else:
            pid = os.fork()
            if pid == 0:
                orders.close()
                return {**order, "descriptors": descriptors}
            for descriptor in descriptors:
                os.close(descriptor)
            reply = {"pid": pid}
        try:
            orders.send(json.dumps({"id": order["id"], **reply}).encode())
        except OSError:
            os._exit(0)


def become_agent(order: dict[str, Any]) -> str:
    """Start a new session with the order's streams, directory and environment; returns the script to run."""
    os.setsid()
    for number, descriptor in enumerate(order["descriptors"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()  # otherwise all forks would draw the same numbers
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    script: str = order["argv"][0]
    sys.argv = list(order["argv"])
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    return script


if __name__ == "__main__":
    _orders = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = sys.argv[2]
    for _name in sys.argv[3:]:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()  # shared memory: a collection in a fork would copy it
    _orders.send(b'{"id": 0}')
    runpy.run_path(become_agent(serve(_orders)), run_name="__main__")
