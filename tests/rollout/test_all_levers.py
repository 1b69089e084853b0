"""Replay, redundancy, a priority and a controller, while generators join and leave: every invariant, and its checks."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from roll.config.rollout import Adapt, Rollout
from roll.journal.events import Event, RunEnded, RunStarted
from roll.report.invariants import RunBounds
from roll.report.verify import verify_journal
from roll.serving.elastic import ElasticBounds, ElasticGenerators
from roll.serving.publisher import ReplacementPolicy
from roll.tracking.wanted import WantedGenerators
from tests.rollout.rig import GROUP_SIZE, Rig, Setting
from tests.rollout.test_reuse import STRAGGLERS
from tests.serving.test_elastic import MOST, Growing, OtherModel
from tests.serving.test_replacement import Streaming

STEPS, GROUPS, REPLAYED, USES, MAX_AGE, REDUNDANT = 16, 6, 2, 3, 3, 3
CONFIG = Rollout(
    groups_per_step=GROUPS,
    reuse=USES,
    replay=REPLAYED / GROUPS,
    max_staleness=1,
    redundant_groups=1,
    adapt=Adapt(max_staleness=(1, MAX_AGE), redundant_groups=(0, REDUNDANT)),
)
SETTING = Setting(
    steps=STEPS,
    groups_per_step=GROUPS,
    num_slots=CONFIG.slots_at(MAX_AGE),
    max_age=MAX_AGE,
    reuse=USES,
    replayed=REPLAYED,
    redundant_groups=REDUNDANT,
    redundant_siblings=1,
    priority="value",
    stragglers=STRAGGLERS,
    reward={"refuse": "1"},
    max_new_tokens=12,
    adapted=CONFIG,
)


class ElasticRig(Rig):
    """Another number of generators is wanted after every step."""

    def __init__(self, path: Path, setting: Setting, kind: type[Streaming]) -> None:
        self.chance, self.cluster, self.wanted = random.Random(0), Growing(MOST), 2
        self.changes = Counter[str]()
        self.cluster.kind = kind
        super().__init__(path, setting, cluster=self.cluster)
        self.publisher.replacement = ReplacementPolicy(
            replace=self.cluster.replace, max_replacements=0, notice=lambda text: None, min_workers=1
        )
        self.router.replace_generator = self.publisher.replace_generator  # a generator that leaves is no failure
        self.elastic = ElasticGenerators(
            pool=self.cluster,
            publisher=self.publisher,
            bounds=ElasticBounds(fewest=1, most=MOST, initial=2, start_timeout_s=60.0),
            requests=lambda: WantedGenerators(number=self.wanted),
            confirm=lambda wanted: None,
            journal=self.journal,
            notice=lambda text: None,
            poll_s=0.001,
        )

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        super().report(step, metrics)
        self.wanted = self.chance.choice([number for number in range(1, MOST + 1) if number != self.wanted])

    async def run_elastic(self) -> None:
        """The run, with generators that join and leave meanwhile."""
        changing = asyncio.create_task(self.elastic.run())
        try:
            await self.run()
        finally:
            changing.cancel()
            await asyncio.wait([changing])


def run(path: Path, setting: Setting = SETTING, kind: type[Streaming] = Streaming) -> ElasticRig:
    with closing(ElasticRig(path, setting, kind)) as rig:
        rig.journal.record(RunStarted(config_digest=""))
        asyncio.run(rig.run_elastic())
        rig.journal.record(RunEnded(step=STEPS, reason="finished"))
        rig.journal.flush()
        rig.changes = Counter(type(event).__name__ for event in rig.events(Event))
    return rig


def violations(path: Path) -> dict[str, str]:
    """The first violation of each rule, but for metrics.jsonl, which a rig does not write."""
    bounds = RunBounds(
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        max_age=MAX_AGE,
        redundant_groups=REDUNDANT,
        reuse=USES,
        num_replayed=REPLAYED,
        in_order=False,
    )
    invariants = verify_journal(path, bounds).invariants
    return {each.name: each.examples[0] for each in invariants if each.violations and each.unit != "lines"}


def test_with_all_levers_on_every_invariant_holds_while_generators_join_and_leave(tmp_path: Path) -> None:
    rig = run(tmp_path)
    assert rig.changes["GeneratorJoined"] and rig.changes["GeneratorLeft"] and not rig.changes["GeneratorRefused"]
    assert violations(tmp_path) == {}
    assert max(metrics["staleness/max"] for metrics in rig.metrics.values()) > 0
    assert [rig.metrics[step]["reuse/groups"] for step in range(2, STEPS + 1)] == [REPLAYED] * (STEPS - 1)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"max_age": 9, "num_slots": 40}, "trained tokens are within the staleness bound"),
        ({"reuse": 9}, "groups are trained at most 3 times"),
        ({"replayed": 3}, "groups are trained at most 3 times"),
    ],
)
def test_each_limit_that_is_broken_on_purpose_is_found(changes: dict[str, int], rule: str, tmp_path: Path) -> None:
    run(tmp_path, replace(SETTING, adapted=None, **changes))
    assert rule in violations(tmp_path)


def test_a_generator_with_other_weights_never_serves(tmp_path: Path) -> None:
    rig = run(tmp_path, kind=OtherModel)
    assert rig.changes["GeneratorRefused"] and not rig.changes["GeneratorJoined"]
    assert rig.cluster.absent == {1, 2, 3}
    assert violations(tmp_path) == {}
