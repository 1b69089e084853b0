"""Agents in processes of their own: started for one attempt, given its task, and judged by what they did.

| call | waits for | woken by |
|---|---|---|
| `play` | a seat, where processes are limited; then the agent's end, or its limit of time | the process, the clock |

An agent knows an address and a key, from its environment, and its task, from its standard input. However the attempt
ends, its whole process group is dead afterwards.
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

from roll.allocator import environment_of_others
from roll.proxy.server import Proxy
from roll.proxy.session import Session
from roll.proxy.warm import WarmPython
from roll.rewards.base import LARGEST
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.sandbox.base import Ended, Limits, Outcome, SandboxFailed
from roll.sandbox.process import Command, supervise
from roll.types import Score, Status, Task, Trajectory

_OUTPUT = 8 * 2**20
"""Bytes that an agent may write to standard output, and to standard error."""
_LAST_LINES, _LONGEST = 5, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlayer:
    """`Player` that starts a command for every attempt."""

    proxy: Proxy
    command: tuple[str, ...]
    """The word `python` at its beginning is the interpreter of this process."""
    seats: asyncio.Semaphore
    """Agents that may run at once; shared by all sources of a run."""
    timeout_s: float = 600.0
    directory: str | None = None
    """Where it starts; None: where the run was started."""
    warm: WarmPython | None = None
    """Starts it by forking, where the command is `python` and a script; None: it is started anew each time."""
    hidden: frozenset[str] = frozenset()
    """Variables of our environment that are none of its business."""
    result: Literal["reply", "stdout", "reward"] = "reply"
    """What is judged: the policy's last reply, what the agent wrote, or nothing: it tells its reward itself."""

    async def play(self, runner: EpisodeRunner, attempt: Attempt) -> tuple[Trajectory, str]:
        """The whole attempt, and what is to be scored; where something gave up, what there is and why."""
        with runner.router.waits.on("environments"):
            await self.seats.acquire()
        try:
            session = self.proxy.open(runner, attempt)
            try:
                outcome = await self._run(session)
            except asyncio.CancelledError:
                runner.router.broken_off(session.num_sampled)
                raise
            except SandboxFailed as error:
                outcome = str(error)
            finally:
                self.proxy.close(session)
        finally:
            self.seats.release()
        return self._ended(session, outcome)

    async def _run(self, session: Session) -> Outcome:
        python = self.command[0] in ("python", "python3")
        argv = (sys.executable, *self.command[1:]) if python else self.command
        run = supervise if self.warm is None else self.warm.run
        return await run(
            Command(
                argv=argv if self.warm is None else self.command[1:],
                stdin=json.dumps(self._told(session.attempt.task)).encode(),
                environment=self._surroundings(session),
                directory=self.directory or str(Path.cwd()),
            ),
            Limits(wall_s=self.timeout_s, output_bytes=_OUTPUT),
        )

    def _told(self, task: Task) -> dict[str, Any]:
        """What an agent knows of its task: the answer only where it is the one to judge."""
        told = {
            "id": task.id,
            "domain": task.domain,
            "messages": [{"role": message.role, "content": message.content} for message in task.messages],
            "metadata": task.metadata,
            "seed": task.seed,
        }
        return {**told, "answer": task.answer} if self.result == "reward" else told

    def _surroundings(self, session: Session) -> dict[str, str]:
        local = [os.environ[name] for name in ("NO_PROXY", "no_proxy") if os.environ.get(name)][:1]
        unproxied = ",".join([*local, "127.0.0.1", "::1", "localhost"])
        inherited = {name: value for name, value in environment_of_others().items() if name not in self.hidden}
        return inherited | {
            "OPENAI_BASE_URL": self.proxy.url,
            "OPENAI_API_BASE": self.proxy.url,  # as older clients have it
            "OPENAI_API_KEY": self.proxy.key_of(session),
            "OPENAI_MODEL": self.proxy.settings.models[0],
            "NO_PROXY": unproxied,
            "no_proxy": unproxied,
        }

    def _ended(self, session: Session, outcome: Outcome | str) -> tuple[Trajectory, str]:
        conversations, task = session.conversations, session.attempt.task
        trajectory = Trajectory(
            task=task,
            sibling=session.attempt.sibling,
            segments=conversations.segments(),
            status=Status.FINISHED,
            metrics={"replies": float(len(conversations.replies)), "branches": float(conversations.num_branches)},
        )
        place = f"agent of task {task.id!r}"
        wrong = outcome if isinstance(outcome, str) else self._wrong(outcome)
        wrong = wrong.replace(self.proxy.key_of(session), "***")  # which agents like to repeat
        if not conversations.replies:
            why = wrong or "it ended without a reply of the model; let it ask OPENAI_BASE_URL for one"
            status = Status.ENGINE_FAILED if session.failed else Status.ENV_FAILED
            return replace(trajectory, status=status, reason=f"{place}: {session.failed or why}"), ""
        cut = session.cut or ("the reply is too long" if session.too_long else "")
        if wrong and not session.cut:
            status = Status.ENGINE_FAILED if session.failed else Status.ENV_FAILED
            return replace(trajectory, status=status, reason=f"{place}: {session.failed or wrong}"), ""
        trajectory = replace(trajectory, status=Status.TRUNCATED if cut else Status.FINISHED, reason=cut)
        return self._judged(trajectory, place, conversations.text, outcome)

    def _judged(self, trajectory: Trajectory, place: str, reply: str, outcome: Outcome | str) -> tuple[Trajectory, str]:
        written = "" if isinstance(outcome, str) else outcome.stdout.decode("utf-8", "replace")
        if self.result == "reply":
            return trajectory, reply
        if self.result == "stdout":
            return trajectory, written.strip()
        reward = reported(written)
        if reward is None:
            last = written.strip().rpartition("\n")[2][:_LONGEST]
            why = f'{place}: no reward (its last line is {last!r}); let it write {{"reward": NUMBER}}'
            return replace(trajectory, status=Status.ENV_FAILED, reason=why), ""
        return trajectory.scored(Score(reward)), reply

    def _wrong(self, outcome: Outcome) -> str:
        """Why a process did not end as it should; empty where it did."""
        if outcome.succeeded:
            return ""
        match outcome.ended:
            case Ended.TIMED_OUT:
                why = f"killed after {self.timeout_s:g} s (agent.timeout_s)"
            case Ended.OUTPUT_FLOOD:
                why = f"killed: it wrote more than {_OUTPUT} bytes"
            case Ended.KILLED:
                why = f"ended by signal {outcome.signal}"
            case Ended.EXITED:
                why = f"exit code {outcome.exit_code}"
        said = last_words(outcome.stderr.decode("utf-8", "replace"))
        return f"{why}; its last words: {said}" if said else f"{why}; it said nothing on standard error"


def last_words(written: str) -> str:
    """The end of what an agent wrote to standard error; of a traceback, its last line and where the agent was."""
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    frames = [line for line in lines if line.startswith('File "')]
    own = [line for line in frames if "site-packages" not in line and "<frozen" not in line]
    if own:
        return f"{lines[-1][:_LONGEST]} ({own[-1]})"
    return " | ".join(lines[-_LAST_LINES:])[-_LONGEST:]


def reported(written: str) -> float | None:
    """The reward in the last line that an agent wrote: `{"reward": 0.5}`; None where there is none to train on."""
    try:
        found: Any = json.loads(written.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    reward: Any = cast(dict[str, Any], found).get("reward") if isinstance(found, dict) else None
    if not isinstance(reward, int | float) or isinstance(reward, bool):
        return None
    return float(reward) if math.isfinite(reward) and abs(reward) <= LARGEST else None
