"""Runs on engines whose weights are a hash of all they trained on; they die at given moments and are resumed.

    python -m tests.rollout.crashes FOLDER MODE MOMENT...

Prints one JSON object for the unbroken run and one per moment. Each process after the first dies as well, but the last.
"""

import asyncio
import hashlib
import json
import random
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.algorithms.recipe import Objective
from roll.config.rollout import Adapt, Rollout
from roll.config.sources import Difficulty, ShareSchedule
from roll.data.mixture import Mixture, MixturePart
from roll.data.templates import character_tokenizer
from roll.engines.base import Request
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.journal.events import RunEnded, RunStarted
from roll.journal.store import Reader
from roll.report.invariants import RunBounds
from roll.report.verify import verify_journal
from roll.types import Batch, Group, Message, Score, Span, Spec, Task
from roll.weights.digest import Digest
from tests.rollout.killed import STRAGGLERS, account, dying, in_a_child
from tests.rollout.rig import GROUP_SIZE, SEED, TASKS, Rig, Setting

STEPS, GROUPS = 6, 4
OTHER = [Task(id=f"u{number}", domain="e", messages=(Message("user", "1+2="),)) for number in range(20)]
ADAPTED = Rollout(
    groups_per_step=GROUPS,
    reuse=2,
    max_staleness=1,
    redundant_groups=2,
    adapt=Adapt(max_staleness=(1, 3), redundant_groups=(0, 3)),
)
_SERVED = [0]
"""Weights that the generators serve."""


class HashTrainer(FakeTrainer):
    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        before, metrics = self.num_updates, await super().update(batch, objective)
        assert batch.advantages is not None
        trained = batch.ids.numpy().tobytes() + batch.advantages.numpy().tobytes()
        self.num_updates = int(hashlib.sha256(f"{before}".encode() + trained).hexdigest()[:12], 16)
        for _ in range(4):
            await asyncio.sleep(0)  # generators get some steps further
        return metrics

    async def send(self, version: int) -> Digest:
        _SERVED[0] = self.num_updates
        return await super().send(version)


class HashGenerator(FakeGenerator):
    def _extend(self, request: Request, ids: list[int]) -> None:
        super()._extend(replace(request, key=request.key + _SERVED[0]), ids)


def drop_some(group: Group) -> str:
    """A filter."""
    return "dropped" if round(10 * sum(each.reward for each in group.trajectories)) % 3 == 0 else ""


def first_digit(task: Task, reply: str) -> Score:
    """A reward that raises for two of ten replies; half of it is for the first character."""
    if reply[0] in "37":
        raise RuntimeError("no score")
    half = float(reply[0]) / 20
    return Score(half, spans=(Span(0, 1, half),))


def setting(mode: str) -> Setting:
    changes: dict[str, dict[str, Any]] = {
        "synchronous": {"in_order": True},
        "asynchronous": {"num_slots": 12, "max_age": 2, "stragglers": STRAGGLERS, "delay": 7},
        "redundant": {"num_slots": 8, "max_age": 1, "redundant_groups": 2, "redundant_siblings": 1},
        "everything": {
            **{"num_slots": ADAPTED.slots_at(3), "max_age": 3, "redundant_groups": 3, "redundant_siblings": 1},
            **{"reuse": 2, "priority": "value", "adapted": ADAPTED, "stragglers": STRAGGLERS, "delay": 40},
            **{"steps": 14, "max_retries": 0},
        },
    }
    common: dict[str, Any] = {"steps": STEPS, "groups_per_step": GROUPS, "generators": 2, "max_new_tokens": 6}
    common |= {"checkpoint_every": 2, "max_retries": 1}
    return Setting(**{**common, **changes[mode]}, max_failed_groups=100, filters=(Spec(f"{__name__}:drop_some"),))


def rig(path: Path, mode: str) -> Rig:
    made = Rig(path, setting(mode), HashTrainer(), HashGenerator)
    hard = Difficulty(target=0.5, exploration=0.2)
    parts = [
        MixturePart(
            name="d", tasks=TASKS, share=0.9, share_schedule=ShareSchedule(end=0.5, steps=STEPS), difficulty=hard
        ),
        MixturePart(name="e", tasks=OTHER, share=0.3, difficulty=hard),
    ]
    source = replace(made.scheduler.sources["d"], reward=Spec(f"{__name__}:first_digit"))
    made.scheduler.sources = {"d": source, "e": replace(source, name="e", tasks=OTHER)}
    made.mixture = made.scheduler.mixture = Mixture(parts, seed=SEED, draws_per_step=GROUPS)
    return made


def attempt(path: Path, mode: str, moment: int | None, *, resumed: bool) -> None:
    with closing(rig(path, mode)) as made:
        made.journal.record(RunStarted(config_digest=""))
        if moment is not None:
            dying(made.journal, moment)
        asyncio.run(made.resume() if resumed else made.run())
        made.journal.record(RunEnded(step=made.loop.schedule.steps, reason="finished"))
        (path / "weights").write_text(str(made.trainer.num_updates))


def run_with_crashes(path: Path, mode: str, moments: list[int]) -> dict[str, Any]:
    path.mkdir()
    codes: list[int] = []
    for moment in (*moments, None):
        code = in_a_child(lambda: attempt(path, mode, moment, resumed=bool(codes)))  # noqa: B023 - called at once
        if code == 2:  # no checkpoint yet: the user starts again
            shutil.rmtree(path)
            path.mkdir()
            code = in_a_child(lambda: attempt(path, mode, None, resumed=False))
        codes.append(code)
        if code == 0:
            break
    if codes[-1] != 0:
        return {"codes": codes}
    with closing(Reader(path / "journal.db")) as reader:
        events, unfinished = reader.position(), {chunk.group for chunk in reader.progress()}
    summary = account(path)
    left = sorted(unfinished & set(summary["groups"]))
    if mode == "everything":
        summary["violations"] = _violations(path)
    return {"codes": codes, "weights": (path / "weights").read_text(), "events": events, "left": left, **summary}


def _violations(path: Path) -> list[str]:
    """What `roll verify` finds, but for the metrics, which a rig does not write."""
    bounds = RunBounds(
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        max_age=3,
        redundant_groups=3,
        reuse=2,
        num_replayed=GROUPS // 2,
        in_order=False,
    )
    invariants = verify_journal(path, bounds).invariants
    return [example for each in invariants if each.unit not in ("lines", "checkpoints") for example in each.examples]


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    character_tokenizer("0")  # import once, not in every child
    chance = random.Random(0)
    plans = [[], *([int(moment), chance.randrange(3, 60), chance.randrange(3, 60)] for moment in sys.argv[3:])]
    for index, moments in enumerate(plans):
        sys.stdout.write(json.dumps(run_with_crashes(folder / str(index), mode, moments)) + "\n")


if __name__ == "__main__":
    main()
