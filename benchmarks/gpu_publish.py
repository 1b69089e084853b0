"""Time of a weight sync on a GPU, from pause to resume and by part, and of the transport between processes alone.

Trainer and native generator are in one process, as in `gpu_step`; the model has the shape of Qwen3-0.6B. The transport
is measured between two processes on the same device, 8 GiB in buckets of 512 MiB, against a plain copy on the device.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any, cast

import torch
import typer

from benchmarks.gpu_model import ceilings, missing, write_qwen3
from benchmarks.gpu_step import config, median_parts
from benchmarks.result import Result
from roll.cluster.process import ProcessCluster
from roll.config.load import load
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.types import Spec
from roll.weights.ipc import ipc
from roll.wiring.models import build_roles
from roll.wiring.run import build_publisher

BOUND_S = 0.1
WARM, COUNTED = 2, 5
TENSOR, TENSORS = 64 * 2**20, 128
"""Bytes per tensor, and number of tensors: 8 GiB."""


def run() -> Result:
    """The median of five weight syncs, against 0.1 s."""
    if reason := missing(vllm=False):
        return Result(name="gpu_publish", unit="s", higher_is_better=False, skipped=reason)
    copy_rate = ceilings().bytes_per_s / 2
    transport = asyncio.run(_time_transport())
    rate = TENSOR * TENSORS / statistics.median(transport)
    typer.echo(f"transport: {rate / 1e9:.0f} GB/s; a copy on the device {copy_rate / 1e9:.0f} GB/s")
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        whole, parts = asyncio.run(_time_weight_syncs(Path(folder)))
    for name, seconds in parts.items():
        typer.echo(f"{name:<8} {1000 * seconds:7.1f} ms")
    details: dict[str, Any] = {
        "whole_s": [round(seconds, 4) for seconds in whole],
        "parts_s": parts,
        "transport_s": [round(seconds, 5) for seconds in transport],
        "transport_gb_per_s": round(rate / 1e9),
        "copy_gb_per_s": round(copy_rate / 1e9),
        "transport_of_copy": round(rate / copy_rate, 3),
    }
    return Result(
        name="gpu_publish",
        unit="s from pause to resume",
        higher_is_better=False,
        ours=statistics.median(whole),
        bound=BOUND_S,
        details=details,
    )


async def _time_weight_syncs(folder: Path) -> tuple[list[float], dict[str, float]]:
    """Seconds of whole weight syncs, and the medians of their parts."""
    write_qwen3(folder / "model")
    (folder / "run.yaml").write_text(config(folder / "model", folder), encoding="utf-8")
    loaded = load(folder / "run.yaml").run
    roles = build_roles(loaded, loaded.actor_train.optimizer, loaded.steps)
    await roles.start()
    whole: list[float] = []
    try:
        with closing(Journal(folder / "journal.db")) as journal:
            publisher = build_publisher(roles.first, journal)
            for step in range(WARM + COUNTED):
                torch.cuda.synchronize()
                began = time.perf_counter()
                await publisher.publish(step)
                torch.cuda.synchronize()
                whole.append(time.perf_counter() - began)
            parts = median_parts([entry.event for entry in journal.events(WeightsPublished)][WARM:])
    finally:
        await roles.stop()
    return whole[WARM:], parts


class IpcEndpoint:
    """One end of the transport: rank 0 sends, rank 1 receives."""

    def __init__(self, rank: int, *, name: str) -> None:
        self.rank = rank
        self.channel = ipc(0, name=name, num_receivers=1, sends=rank == 0)
        self.tensors = [
            (str(number), torch.full((TENSOR,), number, dtype=torch.uint8, device="cuda"))
            for number in range(TENSORS if rank == 0 else 0)
        ]

    async def move(self, version: int) -> float:
        """Seconds until the receiver has every tensor; it verifies their values at version 0 only."""
        self._transfer(self.tensors[:1], version)  # synchronises both ends
        began = time.perf_counter()
        self._transfer(self.tensors, version)
        return time.perf_counter() - began

    def _transfer(self, tensors: Sequence[tuple[str, torch.Tensor]], version: int) -> None:
        torch.cuda.synchronize()
        if self.rank == 0:
            self.channel.send(tensors, version=version)
        else:
            for name, tensor in self.channel.receive(version=version):
                assert version or bool((tensor == int(name)).all()), "the weights did not arrive"
        torch.cuda.synchronize()


async def _time_transport() -> list[float]:
    spec = Spec(f"{__name__}:IpcEndpoint", {"name": f"roll-{uuid.uuid4().hex}"})
    endpoints = ProcessCluster[IpcEndpoint](spec, 2, name="gpu_publish")
    try:
        times = [await endpoints.each(IpcEndpoint.move, version) for version in range(COUNTED + 1)]
    finally:
        await cast(Any, endpoints).stop()
    return [max(each) for each in times[1:]]
