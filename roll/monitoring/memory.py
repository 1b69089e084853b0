"""Memory of the processes of a run on this machine. Imports no torch: only a process that uses CUDA has it loaded."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from roll.monitoring.samples import Scrape
from roll.placement.machine import machine_memory
from roll.sandbox.process_tree import list_tree, read_proc

_PAGE = os.sysconf("SC_PAGE_SIZE")


def add_memory(scrape: Scrape, controller: int) -> None:
    """Add the memory of the controller with this pid, of its descendants, and of the GPUs of this machine."""
    first, *workers = list_tree(controller)
    if resident := _resident(first):  # 0 where there is no /proc
        scrape.set("roll_resident_memory_bytes", resident, "controller")
        scrape.set("roll_resident_memory_bytes", sum(map(_resident, workers)), "workers")
        scrape.set("roll_worker_processes", len(workers))
    scrape.set("roll_memory_limit_bytes", machine_memory())
    _add_devices(scrape)
    _add_own_devices(scrape)


def _resident(pid: int) -> int:
    """Bytes, with pages that several processes share in each of them; 0 if the process has ended."""
    fields = read_proc(f"{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


@cache
def _nvml() -> Any:
    """The library of the NVIDIA driver; None without the driver, or without the package nvidia-ml-py."""
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


def _add_devices(scrape: Scrape) -> None:
    """The GPUs of this machine, with what all processes hold on them; asking creates no context on a device."""
    library = _nvml()
    if library is None:
        return
    with suppress(library.NVMLError):  # a driver that is being restarted
        for index in range(library.nvmlDeviceGetCount()):
            memory = library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByIndex(index))
            scrape.set("roll_device_memory_used_bytes", memory.used, str(index))
            scrape.set("roll_device_memory_total_bytes", memory.total, str(index))


def _add_own_devices(scrape: Scrape) -> None:
    """Only devices in use: a question about another one would create a context on it, which takes memory."""
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for index in range(cuda.device_count()):
        if reserved := cuda.memory_reserved(index):
            device = str(index)
            scrape.set("roll_device_memory_reserved_bytes", reserved, device)
            scrape.set("roll_device_memory_allocated_bytes", cuda.memory_allocated(index), device)
