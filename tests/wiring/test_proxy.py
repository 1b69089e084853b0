"""From configuration to a proxy, or to none."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roll.config.load import load
from roll.errors import ConfigError
from roll.proxy.agent_process import AgentPlayer
from roll.wiring.proxy import build_players, build_proxy

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = EXAMPLES / "agent.yaml"


def test_a_run_without_agents_has_no_proxy() -> None:
    assert build_proxy(load(EXAMPLES / "arithmetic.yaml").run) is None


def test_a_proxy_is_as_its_section_says_and_agents_share_their_seats() -> None:
    async def work() -> None:
        run = load(AGENT, ["proxy={models: [gpt-4o, agent], max_body_mb: 0.5, max_agents: 3, sampling: ignore}"]).run
        proxy = build_proxy(run)
        assert proxy is not None and proxy.settings.models == ("agent", "gpt-4o")
        assert (proxy.settings.max_bytes, proxy.settings.strict) == (2**19, False)
        play, agent = build_players(run, proxy), run.tasks[0].agent
        assert agent is not None
        first, second = play(agent), play(agent)
        assert isinstance(first, AgentPlayer) and isinstance(second, AgentPlayer)
        assert first.seats is second.seats and first.warm is second.warm is not None
        assert proxy.companions == [first.warm]

    asyncio.run(work())


def test_a_token_of_ones_own_must_be_there_and_long_enough() -> None:
    run = load(AGENT, ["proxy={token_env: ROLL_TEST_TOKEN}"]).run
    with pytest.raises(ConfigError, match=r"proxy.token_env: no token of at least 16 .* ROLL_TEST_TOKEN"):
        build_proxy(run)


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    async def work() -> None:
        first = build_proxy(load(AGENT).run)
        assert first is not None
        await first.start()
        port = first.url.rpartition(":")[2].removesuffix("/v1")
        second = build_proxy(load(AGENT, [f"proxy.port={port}"]).run)
        assert second is not None
        try:
            with pytest.raises(ConfigError, match=rf"proxy: 127.0.0.1:{port}: cannot listen there"):
                await second.start()
        finally:
            await first.stop()

    asyncio.run(work())


def test_without_aiohttp_the_command_that_installs_it_is_told() -> None:
    code = (
        "import asyncio, sys; sys.modules['aiohttp'] = None\n"
        "from roll.proxy.server import Proxy, Settings\n"
        "asyncio.run(Proxy(Settings(models=('m',))).start())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1].endswith("proxy: aiohttp is not installed; run: pip install 'roll[proxy]'")
