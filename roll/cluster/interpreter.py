"""Checks whether workers can run in another interpreter."""

from __future__ import annotations

import asyncio
import shutil
import sys

from roll.errors import ConfigError

_PROBE = "import sys, ray, roll; print('%d.%d' % sys.version_info[:2], ray.__version__)"
_TIMEOUT_S = 120.0


async def check_interpreter(python: str, where: str, ray_version: str) -> None:
    """Raise `ConfigError` if `python` is missing, lacks roll, or has another version of Python or Ray than this one."""
    program = shutil.which(python)
    if program is None:
        raise ConfigError(f"{where}: no program {python}; give the path of a virtual environment's python")
    process = await asyncio.create_subprocess_exec(
        program, "-c", _PROBE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"{where}: {python} did not reply within {_TIMEOUT_S:g} s; try it by hand") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"{where}: {python} cannot import roll and ray ({reason}); install roll there")
    theirs, ours = output.decode().split(), [f"{sys.version_info[0]}.{sys.version_info[1]}", ray_version]
    if theirs != ours:
        raise ConfigError(
            f"{where}: {python} has Python {theirs[0]} and Ray {theirs[1]}, this process {ours[0]} and {ours[1]}; "
            "install the same there"
        )
