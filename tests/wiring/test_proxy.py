"""The proxy from the configuration."""

import asyncio
from pathlib import Path

import pytest

from roll.config.load import load
from roll.errors import ConfigError
from roll.proxy.agent_process import AgentProcessRunner
from roll.wiring.proxy import build_attempt_runners, build_proxy

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = EXAMPLES / "agent.yaml"


def test_a_run_without_agents_has_no_proxy() -> None:
    assert build_proxy(load(EXAMPLES / "arithmetic.yaml").run) is None


def test_a_proxy_follows_its_section_and_agents_share_their_slots() -> None:
    async def work() -> None:
        run = load(
            AGENT,
            ["proxy={models: [gpt-4o, agent], max_body_mb: 0.5, max_concurrent_agents: 3, sampling_params: ignore}"],
        ).run
        proxy = build_proxy(run)
        assert proxy is not None and proxy.settings.models == ("agent", "gpt-4o")
        assert (proxy.settings.max_bytes, proxy.settings.strict) == (2**19, False)
        make_runner, agent = build_attempt_runners(run, proxy), run.tasks[0].agent
        assert agent is not None
        first, second = make_runner(agent), make_runner(agent)
        assert isinstance(first, AgentProcessRunner) and isinstance(second, AgentProcessRunner)
        assert first.slots is second.slots and first.launcher is second.launcher
        assert proxy.services == [first.launcher]

    asyncio.run(work())


def test_a_configured_token_must_exist_and_be_long_enough() -> None:
    run = load(AGENT, ["proxy={token_env: ROLL_TEST_TOKEN}"]).run
    with pytest.raises(ConfigError, match=r"proxy.token_env: no token of 16 or more .* ROLL_TEST_TOKEN"):
        build_proxy(run)


def test_a_port_in_use_is_reported_in_one_line() -> None:
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
