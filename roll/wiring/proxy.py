"""The server that agents ask, and who starts them, from configuration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from roll.config.proxy import Agent
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.proxy.agent_process import AgentPlayer
from roll.proxy.server import Proxy, Settings
from roll.proxy.warm import WarmPython
from roll.rollout.source import Player

MakePlayer: TypeAlias = Callable[[Agent], Player]


def build_proxy(run: Run) -> Proxy | None:
    """The server, to be started and stopped; None for a run whose tasks no agent attempts."""
    if all(source.agent is None for source in (*run.tasks, *run.validation.tasks)):
        return None
    given = run.proxy
    token = None if given.token_env is None else os.environ.get(given.token_env, "").strip()
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"proxy.token_env: no token of at least 16 plain characters in the environment variable {given.token_env}; "
            "set it, or leave the option out"
        )
    settings = Settings(
        models=tuple(dict.fromkeys((run.name, *given.models))),
        host=given.host,
        port=given.port,
        max_bytes=int(given.max_body_mb * 2**20),
        requests_per_s=given.requests_per_s,
        max_under_way=given.max_under_way,
        strict=given.sampling == "refuse",
    )
    return Proxy(settings, token)


def build_players(run: Run, proxy: Proxy | None) -> MakePlayer:
    """Who makes the attempts that an agent section describes; all of them share the seats of the run."""
    seats = asyncio.Semaphore(run.proxy.max_agents)
    hidden = frozenset(() if run.proxy.token_env is None else (run.proxy.token_env,))

    known: dict[tuple[str, ...], WarmPython] = {}

    def warm(agent: Agent) -> WarmPython:
        assert proxy is not None
        folder = str((Path(agent.directory or ".") / agent.command[1]).absolute().parent)
        key = (folder, *agent.preload)
        if key not in known:
            known[key] = WarmPython(folder, agent.preload)
            proxy.companions.append(known[key])
        return known[key]

    def make(agent: Agent) -> Player:
        assert proxy is not None, "a run with an agent has a proxy"
        return AgentPlayer(
            proxy=proxy,
            command=agent.command,
            seats=seats,
            timeout_s=agent.timeout_s,
            directory=agent.directory,
            result=agent.result,
            warm=warm(agent) if agent.preload else None,
            hidden=hidden,
        )

    return make
