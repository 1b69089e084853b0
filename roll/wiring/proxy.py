"""Builds the proxy for agents, and their runners, from the configuration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from roll.config.envs import Agent
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.proxy.agent_process import AgentProcessRunner
from roll.proxy.launcher import ProgramLauncher
from roll.proxy.preloaded_python import PreloadedPython
from roll.proxy.server import Proxy, ProxySettings
from roll.rollout.source import AttemptRunner

MakeAttemptRunner: TypeAlias = Callable[[Agent], AttemptRunner]


def build_proxy(run: Run) -> Proxy | None:
    """The proxy, which the caller starts and stops; None for a run without agents."""
    if all(source.agent is None for source in (*run.tasks, *run.validation.tasks)):
        return None
    config = run.proxy
    token = None if config.token_env is None else os.environ.get(config.token_env, "").strip()
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"proxy.token_env: no token of 16 or more ASCII characters in the environment variable {config.token_env}; "
            "set it, or remove the option"
        )
    settings = ProxySettings(
        models=tuple(dict.fromkeys((run.name, *config.models))),
        host=config.host,
        port=config.port,
        max_bytes=int(config.max_body_mb * 2**20),
        requests_per_s=config.requests_per_s,
        max_inflight=config.max_concurrent_requests,
        max_connections=config.max_connections,
        idle_s=config.idle_timeout_s,
        body_s=config.body_timeout_s,
        ignored=frozenset(config.ignore),
        strict=config.sampling_params == "refuse",
    )
    return Proxy(settings, token)


def build_attempt_runners(run: Run, proxy: Proxy | None) -> MakeAttemptRunner:
    """Builds the runner of an agent section; all runners share the agent slots of the run."""
    slots = asyncio.Semaphore(run.proxy.max_concurrent_agents)
    hidden = frozenset(() if run.proxy.token_env is None else (run.proxy.token_env,))
    launchers: dict[tuple[str, ...], ProgramLauncher] = {}

    def launcher(agent: Agent) -> ProgramLauncher:
        assert proxy is not None
        folder = str((Path(agent.directory or ".") / agent.command[1]).absolute().parent) if agent.preload else ""
        key = (folder, *agent.preload)
        if key not in launchers:
            launchers[key] = PreloadedPython(folder, agent.preload) if agent.preload else ProgramLauncher()
            proxy.services.append(launchers[key])
        return launchers[key]

    def make(agent: Agent) -> AttemptRunner:
        assert proxy is not None, "a run with an agent has a proxy"
        return AgentProcessRunner(
            proxy=proxy,
            command=agent.command,
            slots=slots,
            timeout_s=agent.timeout_s,
            directory=agent.directory,
            result=agent.result,
            launcher=launcher(agent),
            hidden_variables=hidden,
        )

    return make


def connect_proxy(proxy: Proxy | None, notice: Callable[[str], None]) -> Callable[[], dict[str, float]]:
    """Send the proxy's notices to the run; returns its counts."""
    if proxy is None:
        return dict
    proxy.notice = notice
    return proxy.drain_counts
