"""Kinds of devices, and inventories: of this machine, of a Ray cluster, or of a description such as `2x8xH200`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.errors import ConfigError, did_you_mean
from roll.placement.records import CPU, Inventory, Node

GIB = 2**30
_QUERY = ["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
_PART = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?([A-Za-z0-9]+)")
_MIB = 2**20
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of device."""

    name: str
    flops: float
    """Floating point operations per second."""
    bytes_per_s: float
    """Memory bandwidth."""
    memory: int
    """Bytes that CUDA reports, slightly less than the nominal size."""
    link: float
    """Bytes per second that a device sends to others of its node: NVLink in one direction, else PCIe."""
    network: float
    """Bytes per second that a device sends to other nodes, with one network card per device or its share of one."""


_LISTED = (
    ("B200", 2250e12, 8.0e12, 178, 900e9, 50e9),
    ("H200", 989e12, 4.8e12, 139, 450e9, 50e9),
    ("H100", 989e12, 3.35e12, 79, 450e9, 50e9),
    ("H800", 989e12, 3.35e12, 79, 200e9, 50e9),
    ("H20", 148e12, 4.0e12, 95, 450e9, 50e9),
    ("A100", 312e12, 2.0e12, 79, 300e9, 25e9),
    ("A800", 312e12, 2.0e12, 79, 200e9, 25e9),
    ("L40S", 362e12, 0.86e12, 44, 32e9, 12.5e9),
    ("L4", 121e12, 0.3e12, 22, 32e9, 12.5e9),
    ("A10", 125e12, 0.6e12, 22, 32e9, 12.5e9),
    ("4090", 165e12, 1.0e12, 23, 32e9, 12.5e9),
    ("V100", 125e12, 0.9e12, 31, 150e9, 12.5e9),
    ("T4", 65e12, 0.3e12, 15, 16e9, 12.5e9),
)
KINDS = {
    name: Kind(name=name, flops=flops, bytes_per_s=speed, memory=gib * GIB, link=link, network=network)
    for name, flops, speed, gib, link, network in _LISTED
}
KINDS[CPU] = Kind(name=CPU, flops=5e10, bytes_per_s=1e10, memory=4 * GIB, link=1e9, network=1e9)
"""From data sheets, in dense bf16; `network` as in the usual machines of that kind. A CPU slot is one core with vector
units, in fp32, and a part of the memory."""


def kind_named(name: str) -> Kind | None:
    """The kind of a device name such as `H100` or `NVIDIA H100 80GB HBM3`; None if it is not listed."""
    words = name.upper().replace("-", " ").split()
    return next((kind for listed, kind in KINDS.items() if listed.upper() in words), None)


def kind_of(inventory: Inventory) -> Kind:
    """The kind of the devices; an A100 if it is not listed."""
    return KINDS.get(inventory.nodes[0].kind, KINDS["A100"] if inventory.gpus else KINDS[CPU])


def this_machine(cpu_slots: int | None = None, *, known: bool = True) -> Inventory:
    """The GPUs of this machine; without a GPU its CPU as `cpu_slots` slots, or one per core if that is None."""
    gpus = visible_gpus()
    num = len(gpus) or cpu_slots or num_cores()
    kind, memory = gpus[0] if gpus else (CPU, machine_memory() // num)  # all GPUs of a machine are of one kind
    node = Node(name="this machine", kind=kind, num_devices=num, memory=memory)
    return Inventory(nodes=(node,), known=known)


def parse_cluster(text: str) -> Inventory:
    """The cluster of a text: `2x8xH200` is two nodes of eight, `8xH100` is one node; `+` joins different nodes."""
    nodes: list[Node] = []
    for part in text.replace(" ", "").split("+"):
        match = _PART.fullmatch(part)
        if match is None:
            raise ConfigError(f"--cluster: {part!r} is no cluster; give nodes x devices x kind, such as 2x8xH200")
        first, second, name = match.groups()
        num_nodes, num = (int(first), int(second)) if second else (1, int(first or 1))
        kind = KINDS[CPU] if name.lower() == CPU else kind_named(name)
        if kind is None:
            raise ConfigError(f"--cluster: no kind of device is named {name!r}{did_you_mean(name, KINDS)}")
        if not num_nodes or not num:
            raise ConfigError(f"--cluster: {part!r} has no devices; give nodes x devices x kind, such as 2x8xH200")
        numbers = range(len(nodes), len(nodes) + num_nodes)
        nodes += [Node(name=f"node {n}", kind=kind.name, num_devices=num, memory=kind.memory) for n in numbers]
    return Inventory(nodes=tuple(nodes))


def ray_inventory(nodes: Sequence[Mapping[str, Any]], cpu_slots: int | None = None) -> Inventory:
    """The cluster of `ray.nodes()`: all nodes with GPUs, or the CPU slots of all nodes if none has a GPU."""
    alive = [node for node in nodes if node.get("Alive", True)]
    with_gpus = [node for node in alive if node["Resources"].get("GPU", 0) >= 1]
    records = [_ray_node(node, cpu_slots, gpus=bool(with_gpus)) for node in with_gpus or alive]
    return Inventory(nodes=tuple(sorted(records, key=lambda node: node.name)))


def _ray_node(node: Mapping[str, Any], cpu_slots: int | None, *, gpus: bool) -> Node:
    resources: Mapping[str, float] = node["Resources"]
    name, id = str(node["NodeManagerAddress"]), str(node["NodeID"])
    if not gpus:
        slots = cpu_slots or max(1, int(resources.get("CPU", 1)))
        return Node(name=name, id=id, kind=CPU, num_devices=slots, memory=int(resources.get("memory", 0)) // slots)
    prefix = "accelerator_type:"
    model = next((key.removeprefix(prefix) for key in sorted(resources) if key.startswith(prefix)), "GPU")
    kind = kind_named(model)
    num = int(resources["GPU"])
    return Node(name=name, id=id, kind=kind.name if kind else model, num_devices=num, memory=kind.memory if kind else 0)


def visible_gpus() -> list[tuple[str, int]]:
    """Kind and bytes of each visible GPU, from the driver; 0 bytes if it does not report them."""
    gpus = _query_driver() or _read_proc(_DRIVER)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    numbers = [int(each) for each in visible.split(",") if each.strip().isdecimal()]
    return [gpus[number] for number in numbers if number < len(gpus)]


def _query_driver() -> list[tuple[str, int]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        output = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # a driver without a device
    return [_gpu(line) for line in output.splitlines() if "," in line]


def _gpu(line: str) -> tuple[str, int]:
    name, _, memory = line.rpartition(",")
    kind = kind_named(name)
    num_bytes = int(memory) * _MIB if memory.strip().isdecimal() else 0
    return (kind.name if kind else name.strip()), num_bytes


def _read_proc(folder: Path) -> list[tuple[str, int]]:
    """GPUs from the driver's files, for machines without nvidia-smi."""
    gpus: list[tuple[str, int]] = []
    for path in sorted(folder.glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        kind = kind_named(model[1]) if model else None
        gpus.append((kind.name, kind.memory) if kind else (model[1].strip() if model else "GPU", 0))
    return gpus


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """Bytes of memory that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdecimal() else total
