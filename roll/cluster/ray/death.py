"""The end of a Ray worker in one line. Call `set_ray_environment` before importing it."""

from __future__ import annotations

import re
from pathlib import Path

from ray.exceptions import OutOfMemoryError, RayError

from roll.cluster.process_state import OUT_OF_MEMORY

_LAST_LINE = 300


def describe_death(error: RayError, pid: int, what: str, log: Path) -> str:
    """One line about a worker's end during `what`, with Ray's reason and the last line of its log."""
    pids = [pid] if pid else re.findall(r"\bpid: (\d+)", str(error))  # 0: unknown until it has started
    named = f" (pid {pids[0]})" if pids else ""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"its process{named} ended during {what}; {death_reason(error)}; {log} ends with: {last[:_LAST_LINE]}"


def death_reason(error: RayError) -> str:
    """Ray's reason for a worker's end; Ray reports no signal."""
    summary, _, _ = str(error).partition("\n")
    if isinstance(error, OutOfMemoryError):
        return f"Ray killed it for lack of memory: {summary[:_LAST_LINE]}"
    detail = str(error).partition("Worker exit detail: ")[2].partition("\n")[0] or summary
    reason = detail.partition(" Some common causes")[0].rstrip(". ")[:_LAST_LINE]
    return f"{reason} (if its log has no error, {OUT_OF_MEMORY})"
