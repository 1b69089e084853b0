"""Runs on fake engines that die at a given moment and are resumed, in separate processes; see `test_killed.py`.

    python -m tests.rollout.killed FOLDER STALENESS REDUNDANT MOMENT...

Each moment is a number of journal events after which the process is gone as by SIGKILL: no handler runs, nothing is
flushed. The run is resumed, dies once more, and is resumed to its end. Prints one JSON object per moment.
"""

import asyncio
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from roll.algorithms.recipe import Objective
from roll.data.templates import character_tokenizer
from roll.engines.fake import FakeTrainer
from roll.errors import ConfigError
from roll.journal.events import (
    Event,
    GroupAdmitted,
    GroupFailed,
    GroupStale,
    RolledBack,
    StepStarted,
    WeightsPublished,
)
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Journal, Reader
from roll.types import Batch, Trajectory
from tests.rollout.rig import Rig, Setting, keys_of

STEPS, GROUPS = 6, 4
SECOND = 10
"""Events after which a resumed run dies once more: just after a publication that has cut replies."""
STRAGGLERS = frozenset[int]().union(*(keys_of(f"t{number}", tries=3) for number in range(0, 30, 4)))


def setting(staleness: float, redundant: int) -> Setting:
    return Setting(
        steps=STEPS,
        groups_per_step=GROUPS,
        num_slots=math.floor((staleness + 1) * GROUPS),
        redundant_groups=redundant,
        max_age=math.ceil(staleness),
        reward={"refuse": "3"},
        max_retries=1,
        stragglers=STRAGGLERS,
        delay=7,
        generators=2,
        max_new_tokens=12,
        checkpoint_every=2,
    )


class Unhurried(FakeTrainer):
    """Generators get some steps further while it updates, so that publications find replies half done."""

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        for _ in range(4):
            await asyncio.sleep(0)
        return await super().update(batch, objective)


def dying(journal: Journal, moment: int) -> None:
    """Make this process exit after a number of events."""
    record, record_trajectory, left = journal.record, journal.record_trajectory, [moment]

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)

    def recorded(event: Event) -> int:
        count()
        return record(event)

    def kept(group: int, trajectory: Trajectory) -> int:
        count()
        return record_trajectory(group, trajectory)

    journal.record, journal.record_trajectory = recorded, kept  # type: ignore[method-assign]


def in_a_child(work: Callable[[], object]) -> int:
    """Exit status of a forked process that does some work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except ConfigError:  # no checkpoint yet
            os._exit(2)
        except Exception as error:  # noqa: BLE001 - a child reports its error
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def attempt(path: Path, made: Setting, moment: int | None, *, resumed: bool) -> None:
    with closing(Rig(path, made, Unhurried())) as rig:
        if moment is not None:
            dying(rig.journal, moment)
        if not resumed:
            asyncio.run(rig.run())
            return
        held = asyncio.run(rig.resume())
        past = [each for group in held for each in group.attempts.values()]
        found = {
            "held": len(held),
            "whole": sum(each.trajectory is not None for each in past),
            "tokens": sum(len(said.so_far.ids) for each in past for said in each.turns),
        }
        (path / "carried.json").write_text(json.dumps(found))


def account(path: Path) -> dict[str, Any]:
    """Summary of the whole run from its journal."""
    taken: dict[int, tuple[int, ...]] = {}
    births: dict[int, int] = {}
    tasks: dict[int, str] = {}
    step_of: dict[int, int] = {}
    with closing(Reader(path / "journal.db")) as reader:
        for entry in reader.events():
            match entry.event:
                case StepStarted(step=step, groups=groups):
                    taken[step] = groups
                case RolledBack(to_step=to_step):
                    taken = {step: groups for step, groups in taken.items() if step <= to_step}
                case GroupAdmitted(group=group, birth=birth, task=task):
                    births[group], tasks[group] = birth, task
                case WeightsPublished(version=version, step=step):
                    step_of[version] = step
                case _:
                    pass
        lost = [entry.event.group for kind in (GroupFailed, GroupStale) for entry in reader.events(kind)]
        trained = [kept for step in taken for kept in reader.trajectories(TrajectoryQuery(step=step))]
    groups = [group for step in sorted(taken) for group in taken[step]]
    replies = [turn for kept in trained if kept.trajectory for turn in kept.trajectory.turns]
    return {
        "steps": sorted(taken),
        "groups": groups,
        "tasks": [tasks[group] for group in groups],
        "lost": lost,
        "oldest": max(step - 1 - step_of[births[group]] for step in taken for group in taken[step]),
        "trajectories": len(trained),
        "broken": sum(
            [int(id) for id in turn.sampled] != [10 + (int(turn.sampled[0]) - 10 + at) % 10 for at in range(12)]
            for turn in replies
        ),
    }


def main() -> None:
    folder, staleness, redundant = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    made = setting(staleness, redundant)
    character_tokenizer("0")  # import once, not in every child
    for moment in map(int, sys.argv[4:]):
        path = folder / str(moment)
        path.mkdir()
        first = in_a_child(lambda: attempt(path, made, moment, resumed=False))  # noqa: B023 - called at once
        again = in_a_child(lambda: attempt(path, made, SECOND, resumed=True))  # noqa: B023
        if again == 2:  # no checkpoint yet: the user starts again
            shutil.rmtree(path)
            path.mkdir()
        last = in_a_child(lambda: attempt(path, made, None, resumed=again != 2))  # noqa: B023
        found = path / "carried.json"
        carried = json.loads(found.read_text()) if found.exists() else {"held": 0, "whole": 0, "tokens": 0}
        about = {"moment": moment, "exits": [first, again, last], **account(path), "carried": carried}
        sys.stdout.write(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
