"""What has to be on the disk before something else may happen, looked at from outside at that very moment."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from roll.algorithms.recipe import Objective
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.errors import RunStopped
from roll.journal.events import (
    Event,
    GroupReady,
    RunEnded,
    RunStarted,
    StepStarted,
    ValidationFinished,
    WeightsPublished,
)
from roll.report.ledger import Ledger, read_ledger
from roll.report.outcomes import SampleOutcome
from roll.rollout.validation import Validator
from roll.types import Batch
from tests.rollout.rig import SEED, TASKS, Rig, Setting
from tests.rollout.test_early_stop import LONG, LONG_KEYS, Streaming


def durable(path: Path, kind: str) -> list[int]:
    """The steps of all events of this kind that would survive a power cut now."""
    query = "SELECT step FROM events WHERE kind = ? AND id <= (SELECT position FROM durable) ORDER BY id"
    with closing(sqlite3.connect(path / "journal.db")) as journal:
        return [step for (step,) in journal.execute(query, (kind,))]


def test_the_groups_of_a_step_are_on_disk_before_its_update(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Looking(FakeTrainer):
        async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
            seen.append(durable(tmp_path, "StepStarted"))
            return await super().update(batch, objective)

    with closing(Rig(tmp_path, Setting(steps=3, num_slots=8), trainer=Looking())) as rig:
        asyncio.run(rig.run())
    assert seen == [[1], [1, 2], [1, 2, 3]]


def test_a_version_is_on_disk_before_anything_is_sampled_with_it(tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []

    class Looking(FakeGenerator):
        async def resume(self, version: int) -> None:
            seen.append((version, durable(tmp_path, "WeightsPublished")))
            await super().resume(version)

    with closing(Rig(tmp_path, Setting(steps=2, num_slots=8), make_engine=lambda **_: Looking())) as rig:
        asyncio.run(rig.run())
    assert seen == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]


def run_until(path: Path, kind: type[Event] | None, *, resumed: bool) -> Ledger:
    """The accounts of a run that ends with an error at an event of this kind, or comes to its end."""
    setting = Setting(
        steps=6,
        num_slots=8,
        max_age=1,
        redundant_groups=2,
        redundant_siblings=1,
        generators=2,
        max_new_tokens=LONG,
        stragglers=LONG_KEYS,
        checkpoint_every=2,
    )
    with closing(Rig(path, setting, make_engine=Streaming)) as rig:
        rig.loop.schedule = replace(rig.loop.schedule, validate_every=2)
        rig.loop.validator = Validator(
            sources=[replace(rig.scheduler.sources["d"], tasks=TASKS[:6])], runner=rig.scheduler.runner, seed=SEED
        )
        record = rig.journal.record

        def recorded(event: Event) -> int:
            if kind is not None and isinstance(event, kind) and len(rig.metrics) >= 3:
                raise RunStopped("died")
            return record(event)

        record(RunStarted(config_digest=""))
        rig.journal.record = recorded  # type: ignore[method-assign]
        if kind is None:
            asyncio.run(rig.resume())
        else:
            with pytest.raises(RunStopped, match="died"):
                asyncio.run(rig.resume() if resumed else rig.run())
        record(RunEnded(step=0, reason="failed"))
    return read_ledger(path)


@pytest.mark.parametrize("kind", [StepStarted, GroupReady, WeightsPublished, ValidationFinished])
def test_no_token_is_unaccounted_whatever_event_a_process_ends_at_with_an_error(
    kind: type[Event], tmp_path: Path
) -> None:
    """Late groups and surplus siblings are cancelled at that moment, and held-out attempts may be half done."""
    for number, last in enumerate((kind, kind, None)):
        ledger = run_until(tmp_path, last, resumed=number > 0)
        assert (ledger.tokens.unaccounted, ledger.uncounted) == (0, 0), number
    assert min(ledger.tokens.outcomes[name] for name in (SampleOutcome.ABORTED, SampleOutcome.VALIDATION)) > 0
