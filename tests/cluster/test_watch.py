import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from roll.cluster.ray.environment import accepts_connections, wait_until_unreachable


def test_an_address_counts_as_unreachable_after_the_given_number_of_misses() -> None:
    async def run() -> tuple[bool, int]:
        heard = 0

        def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            heard += 1
            writer.close()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        watching = asyncio.create_task(wait_until_unreachable(f"127.0.0.1:{port}", every_s=0.01, misses=3))
        while heard < 5:
            await asyncio.sleep(0.01)
        early = watching.done()
        server.close()
        async with asyncio.timeout(20):
            await watching
        return early, heard

    early, heard = asyncio.run(run())
    assert not early and heard >= 5


def test_an_invalid_address_accepts_no_connections() -> None:
    for address in ("nonsense", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:1"):
        assert not asyncio.run(accepts_connections(address, 1.0))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_local_cluster_is_gone_when_its_raylet_is_killed_or_stopped(number: int, tmp_path: Path) -> None:
    (tmp_path / "raylet").symlink_to(shutil.which("sleep") or "sleep")
    raylet = subprocess.Popen([str(tmp_path / "raylet"), "500"])

    async def run() -> bool:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        watching = asyncio.create_task(wait_until_unreachable(address, 0.01, 3, tmp_path))
        await asyncio.sleep(0.3)
        early = watching.done()
        os.kill(raylet.pid, number)
        async with asyncio.timeout(60):
            await watching
        server.close()
        return early

    try:
        assert not asyncio.run(run())
    finally:
        raylet.kill()
        raylet.wait()
