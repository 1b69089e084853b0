"""Agents in separate processes: each is started for one attempt, receives its task, and is scored by its result.

| call | waits for | woken by |
|---|---|---|
| `run_attempt` | a free agent slot; then the end of the process, at most `timeout_s` | the process, the clock |

An agent gets an address and a key in its environment variables, and its task on standard input. However the attempt
ends, its whole process group is dead afterwards, also if this process is killed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from roll.allocator import foreign_environment
from roll.data.messages import message_entry
from roll.proxy.launcher import ProgramLauncher
from roll.proxy.preloaded_python import PreloadedPython
from roll.proxy.server import Proxy
from roll.proxy.session import Session
from roll.rewards.base import LARGEST
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.sandbox.base import ExitReason, ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.process import Command
from roll.types import Score, Status, Task, Trajectory

_OUTPUT = 8 * 2**20
"""Most bytes on standard output, and on standard error."""
_LAST_LINES, _MAX_EXCERPT = 5, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcessRunner:
    """`AttemptRunner` that starts a command for every attempt."""

    proxy: Proxy
    command: tuple[str, ...]
    """A first word `python` means the interpreter of this process."""
    launcher: ProgramLauncher
    """Starts agents; a `PreloadedPython` if the command is `python` and a script."""
    slots: asyncio.Semaphore
    """Limits concurrent agents; shared by all sources of a run."""
    timeout_s: float = 600.0
    directory: str | None = None
    """Working directory; None: that of the run."""
    hidden_variables: frozenset[str] = frozenset()
    """Environment variables that agents do not inherit."""
    result: Literal["response", "stdout", "reward"] = "response"
    """What is scored: the policy's last response, standard output, or nothing: the agent reports its own reward."""

    async def run_attempt(self, runner: EpisodeRunner, attempt: Attempt) -> tuple[Trajectory, str]:
        """The attempt and the text to score; after a failure, the turns so far and the reason."""
        with runner.router.idle_reasons.waiting_for("environments"):
            await self.slots.acquire()
        try:
            session = self.proxy.open(runner, attempt)
            try:
                outcome = await self._run(session)
            except SandboxFailed as error:
                outcome = str(error)
            finally:
                self.proxy.close(session)
        finally:
            self.slots.release()
        return self._trajectory(session, outcome)

    async def _run(self, session: Session) -> ProgramResult:
        python = self.command[0] in ("python", "python3")
        argv = (sys.executable, *self.command[1:]) if python else self.command
        return await self.launcher.run(
            Command(
                argv=self.command[1:] if isinstance(self.launcher, PreloadedPython) else argv,
                stdin=json.dumps(self._task_input(session.attempt.task)).encode(),
                environment=self._environment(session),
                directory=self.directory or str(Path.cwd()),
            ),
            ResourceLimits(wall_s=self.timeout_s, output_bytes=_OUTPUT),
        )

    def _task_input(self, task: Task) -> dict[str, Any]:
        """The task as the agent receives it; with the answer only if the agent scores itself."""
        fields = {
            "id": task.id,
            "domain": task.domain,
            "messages": [message_entry(message) for message in task.messages],
            "metadata": task.metadata,
            "seed": task.seed,
        }
        return {**fields, "answer": task.answer} if self.result == "reward" else fields

    def _environment(self, session: Session) -> dict[str, str]:
        local = [os.environ[name] for name in ("NO_PROXY", "no_proxy") if os.environ.get(name)][:1]
        unproxied = ",".join([*local, "127.0.0.1", "::1", "localhost"])
        inherited = {name: value for name, value in foreign_environment().items() if name not in self.hidden_variables}
        return inherited | {
            "OPENAI_BASE_URL": self.proxy.url,
            "OPENAI_API_BASE": self.proxy.url,  # for older clients
            "OPENAI_API_KEY": self.proxy.key_of(session),
            "OPENAI_MODEL": self.proxy.settings.models[0],
            "NO_PROXY": unproxied,
            "no_proxy": unproxied,
        }

    def _trajectory(self, session: Session, outcome: ProgramResult | str) -> tuple[Trajectory, str]:
        """The trajectory and the text to score; an `outcome` of text is an error."""
        tree, task = session.tree, session.attempt.task
        trajectory = Trajectory(
            task=task,
            sibling=session.attempt.sibling,
            segments=tree.segments(),
            status=Status.FINISHED,
            metrics={"responses": float(tree.num_turns), "branches": float(tree.num_branches)},
        )
        where = f"agent of task {task.id!r}"
        error = outcome if isinstance(outcome, str) else self._process_error(outcome)
        error = error.replace(self.proxy.key_of(session), "***")  # agents tend to print the key
        if not tree.num_turns and not error:
            error = "it ended without a response of the model; let it send requests to OPENAI_BASE_URL"
        if error and (not tree.num_turns or not session.cut):
            status = Status.ENGINE_FAILED if session.engine_error else Status.ENV_FAILED
            return replace(trajectory, status=status, reason=f"{where}: {session.engine_error or error}"), ""
        cut = session.cut or ("the last response reached max_new_tokens" if session.too_long else "")
        trajectory = replace(trajectory, status=Status.TRUNCATED if cut else Status.FINISHED, reason=cut)
        output = "" if isinstance(outcome, str) else outcome.stdout.decode("utf-8", "replace")
        if self.result == "stdout":
            return trajectory, output.strip()
        return (
            trajectory if self.result == "response" else _with_reported_reward(trajectory, where, output)
        ), session.text

    def _process_error(self, outcome: ProgramResult) -> str:
        """Why a process failed; empty if it succeeded."""
        if outcome.succeeded:
            return ""
        match outcome.reason:
            case ExitReason.TIMED_OUT:
                why = f"killed after {self.timeout_s:g} s (agent.timeout_s)"
            case ExitReason.OUTPUT_FLOOD:
                why = f"killed: it wrote more than {_OUTPUT} bytes"
            case ExitReason.KILLED:
                why = f"ended by signal {outcome.signal}"
            case ExitReason.EXITED:
                why = f"exit code {outcome.exit_code}"
        excerpt = stderr_excerpt(outcome.stderr.decode("utf-8", "replace"))
        return f"{why}; standard error ends with: {excerpt}" if excerpt else f"{why}; standard error is empty"


def stderr_excerpt(text: str) -> str:
    """The end of an agent's standard error; of a traceback, its last line and the agent's innermost frame."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    frames = [line for line in lines if line.startswith('File "')]
    agent_frames = [line for line in frames if "site-packages" not in line and "<frozen" not in line]
    if agent_frames:
        return f"{lines[-1][:_MAX_EXCERPT]} ({agent_frames[-1]})"
    return " | ".join(lines[-_LAST_LINES:])[-_MAX_EXCERPT:]


def _with_reported_reward(trajectory: Trajectory, where: str, output: str) -> Trajectory:
    """The trajectory, scored with the reward that the agent printed; failed if it printed none."""
    reward = read_reward(output)
    if reward is not None:
        return trajectory.with_score(Score(reward))
    last = output.strip().rpartition("\n")[2][:_MAX_EXCERPT]
    reason = f'{where}: no reward (its last line is {last!r}); let it write {{"reward": NUMBER}}'
    return replace(trajectory, status=Status.ENV_FAILED, reason=reason)


def read_reward(output: str) -> float | None:
    """The reward in the last line of an agent's output, `{"reward": 0.5}`; None if there is no valid one."""
    try:
        content: Any = json.loads(output.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    reward: Any = cast(dict[str, Any], content).get("reward") if isinstance(content, dict) else None
    if not isinstance(reward, int | float) or isinstance(reward, bool):
        return None
    return float(reward) if math.isfinite(reward) and abs(reward) <= LARGEST else None
