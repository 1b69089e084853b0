"""Serves a folder of runs until Ctrl-C, with low priority: training on the same machine comes first."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

from roll.watch.folder import RunFolder
from roll.watch.server import ServerAddress, WatchServer

_NICE = 10
"""Where all cores are busy, the server then gets about a tenth of one. In the idle class it might wait for seconds."""


def serve(directory: Path, *, host: str, port: int, open_browser: bool, echo: Callable[[str], None]) -> None:
    """Print the link as one line, open it if that is wanted, and serve until SIGINT or SIGTERM."""
    if os.getpriority(os.PRIO_PROCESS, 0) < _NICE:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    server = WatchServer(RunFolder(directory), ServerAddress(host=host, port=port))
    asyncio.run(_serve(server, open_browser=open_browser, echo=echo))


def _has_display() -> bool:
    """Whether a browser has a window: a browser of the terminal would take the terminal."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


async def _serve(server: WatchServer, *, open_browser: bool, echo: Callable[[str], None]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await server.start()
    try:
        echo(server.link)
        if open_browser and _has_display():
            await asyncio.to_thread(webbrowser.open, server.link)
        await ended.wait()
    finally:
        await server.stop()
