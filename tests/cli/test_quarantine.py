"""A task that kills or blocks its environment worker or its reward worker every time is not drawn again."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.journal.events import GroupAdmitted, RolledBack, TaskQuarantined
from roll.journal.store import Reader
from tests.cli.conftest import TEXT

pytestmark = pytest.mark.slow

BESIDE = """
import os, signal, time
from roll.envs.base import StepResult
from roll.types import Message, Task

FAULTS = {{"kills": "os.kill(os.getpid(), signal.SIGKILL)", "blocks": "time.sleep(600)"}}


def tasks():
    return [Task(id=f"t{{n}}", domain="sums", messages=(Message(role="user", content=f"{{n}}+1="),)) for n in range(4)]


def even(task, reply):
    if task.id == "t2":
        exec(FAULTS["{fault}"])
    return sum(letter in "02468" for letter in reply) / 6


class Env:
    def __init__(self, task):
        self.task = task

    async def start(self):
        return self.task.messages

    async def step(self, response):
        return StepResult(reward=even(self.task, response), done=True)

    async def close(self):
        pass
"""
REWARD = (
    "tasks=[{name: sums, data: 'poison:tasks', reward: 'poison:even'}]",
    "rewards={workers: 2, timeout_s: 1}",
)
ENV = (
    "tasks=[{name: sums, data: 'poison:tasks', env: 'poison:Env'}]",
    "envs={workers: 2, grace_s: 1}",
)
QUIET = ("validation.tasks=[]", "tracking.tensorboard=false", "deterministic=false", "rollout.max_failed_groups=16")


def events(run: Path) -> list[Any]:
    with closing(Reader(run / "journal.db")) as reader:
        kinds = (GroupAdmitted, TaskQuarantined, RolledBack)
        return [entry.event for entry in reader.events() if isinstance(entry.event, kinds)]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("where", "fault", "reason"),
    [
        (ENV, "kills", "was killed by SIGKILL"),
        (REWARD, "kills", "was killed by SIGKILL"),
        (REWARD, "blocks", "timed out after 1 s"),
        ((*ENV, "rollout.env_timeout_s=1"), "blocks", "1 s"),
    ],
    ids=["env worker killed", "reward worker killed", "reward blocks", "env blocks"],
)
def test_a_poisoned_task_is_quarantined_recorded_and_listed(
    roll: Callable, folder: Path, where: tuple[str, ...], fault: str, reason: str
) -> None:
    (folder / "run.yaml").write_text(TEXT)
    (folder / "poison.py").write_text(BESIDE.format(fault=fault))
    small = ("rollout.groups_per_step=2", "rollout.group_size=2", "checkpoint.every=1")
    outcome = roll("train", "run.yaml", *where, *QUIET, *small, "steps=12", "rollout.quarantine_after=2")
    assert outcome.code == 0, outcome
    run = folder / "runs" / "tiny"
    seen = events(run)
    # A task whose environment was in the killed process by chance fails too, and is tried again.
    (event,) = [event for event in seen if isinstance(event, TaskQuarantined) and event.task == "t2"]
    assert (event.source, event.index, event.num_failed) == ("sums", 2, 2)
    assert reason in event.reason, event.reason
    drawn = [event.task for event in seen if isinstance(event, GroupAdmitted)]
    assert drawn.count("t2") == 2 and set(drawn) == {"t0", "t1", "t2", "t3"}
    line = "task 't2' of sums is quarantined"
    assert [each for each in outcome.out.splitlines() if line in each], outcome.out
    assert line in roll("report", "runs/tiny").out
    outcome = roll("resume", "runs/tiny", "steps=18")
    assert outcome.code == 0, outcome
    after = [event.task for event in events(run)[len(seen) :] if isinstance(event, GroupAdmitted)]
    assert after and "t2" not in after, "not after a restart either"
