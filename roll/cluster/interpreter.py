"""Whether another interpreter can be a worker's."""

from __future__ import annotations

import asyncio
import shutil
import sys

from roll.errors import ConfigError

_ASK = "import sys, ray, roll; print('%d.%d' % sys.version_info[:2], ray.__version__)"
_TIMEOUT_S = 120.0


async def check_interpreter(python: str, place: str, ray_version: str) -> None:
    """Refuse one on this machine that is not there, or lacks roll, or has another Python or Ray than this one."""
    program = shutil.which(python)
    if program is None:
        raise ConfigError(f"{place}: no program {python}; give the path of a virtual environment's python")
    asked = await asyncio.create_subprocess_exec(
        program, "-c", _ASK, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answer, complaint = await asked.communicate()
    except TimeoutError:
        raise ConfigError(f"{place}: {python} did not answer within {_TIMEOUT_S:g} s; try it by hand") from None
    finally:
        if asked.returncode is None:
            asked.kill()
            await asked.wait()
    if asked.returncode != 0:
        reason = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"{place}: {python} cannot import roll and ray ({reason}); install roll there")
    found, wanted = answer.decode().split(), [f"{sys.version_info[0]}.{sys.version_info[1]}", ray_version]
    if found != wanted:
        raise ConfigError(
            f"{place}: {python} has Python {found[0]} and Ray {found[1]}, this process {wanted[0]} and {wanted[1]}; "
            "install the same there"
        )
