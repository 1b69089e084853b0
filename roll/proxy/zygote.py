"""A Python that has imported what agents need, and becomes one of them by forking: nothing here is imported by us.

It is started with the number of a socket, the folder of the scripts and the names of modules. Each order that comes
over the socket has an `id`: `start` brings three descriptors and is answered with the number of a process, which runs a
script as `python` would; `reap` names a process that has ended and is answered with how. When the socket closes, it
leaves.
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

_LARGEST = 1 << 20


def serve(orders: socket.socket) -> dict[str, Any]:
    """Carry out orders until the end; returns in a forked process alone, with the order that it is there for."""
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(orders, _LARGEST, 3)
        except OSError:  # a run that ends may leave answers of ours unread, which resets the socket
            os._exit(0)
        if not data:
            os._exit(0)
        order: dict[str, Any] = json.loads(data)
        if "reap" in order:
            answer = {"status": os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])}
        else:
            pid = os.fork()
            if pid == 0:
                orders.close()
                return {**order, "descriptors": descriptors}
            for descriptor in descriptors:
                os.close(descriptor)
            answer = {"pid": pid}
        try:
            orders.send(json.dumps({"id": order["id"], **answer}).encode())
        except OSError:
            os._exit(0)


def settle(order: dict[str, Any]) -> str:
    """Be a process of one's own, with the order's streams, folder and environment; the script to run."""
    os.setsid()
    for place, descriptor in enumerate(order["descriptors"]):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()  # else all of them would draw the same
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
    gc.freeze()  # what is there is shared, and a collection in a fork would copy all of it
    _orders.send(b'{"id": 0}')
    runpy.run_path(settle(serve(_orders)), run_name="__main__")
