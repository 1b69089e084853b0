"""What a publication takes on a GPU, from pause to resume and part by part, and the transport between processes alone.

Trainer and vLLM are in one process, as in `gpu_step`; the model has the shape of Qwen3-0.6B. The transport is measured
between two processes on the one device, 8 GiB in buckets of 512 MiB, against a plain copy on it.
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
from benchmarks.gpu_step import config, publications
from benchmarks.result import Result
from roll.cluster.processes import ProcessCluster
from roll.config.load import load
from roll.journal.events import Published
from roll.journal.store import Journal
from roll.types import Call
from roll.weights.ipc import ipc
from roll.wiring.models import build_roles
from roll.wiring.run import build_publisher

BOUND_S = 0.3
WARM, COUNTED = 2, 5
TENSOR, TENSORS = 64 * 2**20, 128
"""Bytes of each, and how many: 8 GiB."""


def run() -> Result:
    """The median of five publications, against 0.3 s."""
    if reason := missing():
        return Result(name="gpu_publish", unit="s", higher_is_better=False, skipped=reason)
    copied = ceilings().bytes_per_s / 2
    transport = asyncio.run(_transported())
    rate = TENSOR * TENSORS / statistics.median(transport)
    typer.echo(f"transport: {rate / 1e9:.0f} GB/s; a copy on the device {copied / 1e9:.0f} GB/s")
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        whole, parts = asyncio.run(_published(Path(folder)))
    for name, seconds in parts.items():
        typer.echo(f"{name:<8} {1000 * seconds:7.1f} ms")
    details: dict[str, Any] = {
        "whole_s": [round(seconds, 4) for seconds in whole],
        "parts_s": parts,
        "transport_s": [round(seconds, 5) for seconds in transport],
        "transport_gb_per_s": round(rate / 1e9),
        "copy_gb_per_s": round(copied / 1e9),
        "transport_of_copy": round(rate / copied, 3),
    }
    return Result(
        name="gpu_publish",
        unit="s from pause to resume",
        higher_is_better=False,
        ours=statistics.median(whole),
        bound=BOUND_S,
        details=details,
    )


async def _published(folder: Path) -> tuple[list[float], dict[str, float]]:
    """Seconds of whole publications, and the medians of their parts."""
    write_qwen3(folder / "model")
    (folder / "run.yaml").write_text(config(folder / "model", folder), encoding="utf-8")
    loaded = load(folder / "run.yaml").run
    roles = build_roles(loaded, loaded.actor_train.optimizer, loaded.steps)
    await roles.start()
    whole: list[float] = []
    try:
        with closing(Journal(folder / "journal.db")) as journal:
            publisher = build_publisher(roles, journal)
            for step in range(WARM + COUNTED):
                torch.cuda.synchronize()
                began = time.perf_counter()
                await publisher.publish(step)
                torch.cuda.synchronize()
                whole.append(time.perf_counter() - began)
            parts = publications([entry.event for entry in journal.events(Published)][WARM:])
    finally:
        await roles.stop()
    return whole[WARM:], parts


class Member:
    """One end of the transport alone: rank 0 sends, rank 1 receives."""

    def __init__(self, rank: int, *, name: str) -> None:
        self.rank = rank
        self.channel = ipc(0, name=name, num_receivers=1, sends=rank == 0)
        self.tensors = [
            (str(number), torch.full((TENSOR,), number, dtype=torch.uint8, device="cuda"))
            for number in range(TENSORS if rank == 0 else 0)
        ]

    async def move(self, version: int) -> float:
        """Seconds until every tensor is in the receiver's hands, which looks at each in the first round only."""
        self._pass(self.tensors[:1], version)  # both ends begin at the same time
        began = time.perf_counter()
        self._pass(self.tensors, version)
        return time.perf_counter() - began

    def _pass(self, tensors: Sequence[tuple[str, torch.Tensor]], version: int) -> None:
        torch.cuda.synchronize()
        if self.rank == 0:
            self.channel.send(tensors, version=version)
        else:
            for name, tensor in self.channel.receive(version=version):
                assert version or bool((tensor == int(name)).all()), "the weights did not arrive"
        torch.cuda.synchronize()


async def _transported() -> list[float]:
    call = Call(f"{__name__}:Member", {"name": f"roll-{uuid.uuid4().hex}"})
    members = ProcessCluster[Member](call, 2, name="gpu_publish")
    try:
        found = [await members.each(Member.move, version) for version in range(COUNTED + 1)]
    finally:
        await cast(Any, members).stop()
    return [max(each) for each in found[1:]]
