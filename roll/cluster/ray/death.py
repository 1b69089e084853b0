"""One line about the end of a Ray worker."""

from __future__ import annotations

import re
from pathlib import Path

from ray.exceptions import OutOfMemoryError, RayError

from roll.cluster.process_state import OUT_OF_MEMORY

_LAST_LINE = 300


def describe_death(where: str, pid: int, what: str, error: RayError, log: Path) -> str:
    """How the worker `where` ended during a call, with Ray's reason and the last line of its log. 0: unknown pid."""
    pids = [pid] if pid else re.findall(r"\bpid: (\d+)", str(error))
    process = f"its process (pid {pids[0]})" if pids else "its process"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"{where}: {process} ended during {what}; {death_reason(error)}; {log} ends with: {last[:_LAST_LINE]}"


def death_reason(error: RayError) -> str:
    """Ray's reason for a worker's end; Ray reports no signal."""
    summary, _, _ = str(error).partition("\n")
    if isinstance(error, OutOfMemoryError):
        return f"Ray killed it for lack of memory: {summary[:_LAST_LINE]}"
    detail = str(error).partition("Worker exit detail: ")[2].partition("\n")[0] or summary
    reason = detail.partition(" Some common causes")[0].rstrip(". ")[:_LAST_LINE]
    return f"{reason} (if its log has no error, {OUT_OF_MEMORY})"
