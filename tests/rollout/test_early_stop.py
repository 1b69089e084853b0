"""Attempts that are stopped because a step waits for them: limit, replacement, bias, accounts, and crashes."""

import asyncio
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from roll.algorithms.recipe import Objective
from roll.engines.base import Output, Request
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.errors import RunStopped
from roll.journal.events import AttemptRetried, Event, RunEnded, RunStarted, StepStarted
from roll.journal.records import StoredTrajectory
from roll.report.invariants import RunBounds
from roll.report.ledger import read_ledger
from roll.report.outcomes import SampleOutcome
from roll.report.verify import verify_journal
from roll.rollout.buffer import Buffer
from roll.rollout.early_stop import EarlyStop
from roll.rollout.statistics import compare_stopped
from roll.serving.policies import ServedVersion
from roll.types import Batch, Finish, Status
from tests.rollout.buffer_driver import complete_group
from tests.rollout.rig import GROUP_SIZE, Rig, Setting, keys_of

SHORT, LONG = 3, 40
LONG_KEYS = frozenset[int]().union(*(keys_of(f"t{number}", tries=4) for number in range(0, 30, 4)))
"""All attempts at every fourth task."""


class Streaming(FakeGenerator):
    """Returns every token at once; responses have 3 tokens, those of `stragglers` as many as the request allows."""

    def _extend(self, request: Request, ids: list[int]) -> None:
        ids.append(10 + (request.key + request.produced + len(ids)) % 10)
        at = request.produced + len(ids)
        ends = (at == SHORT and request.key not in self.stragglers) or len(ids) == request.max_new_tokens
        finish = (Finish.LENGTH if request.key in self.stragglers else Finish.STOP) if ends else None
        if ends:
            del self._requests[request.id]
        self._outputs.append(Output.of(request.id, ids[-1:], (-1.0,), version=self.version, finish=finish))

    async def abort(self, ids: object = None) -> None:
        for request, _, _ in list(self._requests.values()):
            if ids is None or request.id in ids:  # type: ignore[operator]
                del self._requests[request.id]
                self._outputs.append(Output.of(request.id, [], (), version=self.version, finish=Finish.ABORT))


def stopping(**changes: object) -> Setting:
    values = {"groups_per_step": 8, "num_slots": 8, "max_new_tokens": LONG, "stragglers": LONG_KEYS, "delay": 0}
    return Setting(**{**values, "stop_quantile": 0.75, "steps": 6, **changes})  # type: ignore[arg-type]


def stored(rig: Rig) -> list[StoredTrajectory]:
    rig.journal.flush()
    return list(rig.journal.trajectories())


def test_the_limit_is_the_length_at_the_quantile_once_its_share_has_ended() -> None:
    due = [[7, 8]]
    stop = EarlyStop(quantile=0.75, group_size=4, due=lambda: due[0])
    for sibling, (group, length) in enumerate([(7, 5), (7, 1), (8, 4), (8, 2), (8, 3)]):
        stop.add_ended(group, sibling, length)
    assert stop.reason(7, 100) == "", "five of eight have ended, and three quarters are six"
    stop.add_ended(7, 9, 9)
    assert stop.reason(7, 9) == "", "the sixth shortest has nine tokens"
    assert stop.reason(7, 10) == "10 tokens, more than 75% of the attempts that the step waits for"
    assert stop.reason(6, 10) == "", "no step waits for its group"
    due[0] = []
    assert stop.reason(7, 10) == "", "no step waits"
    due[0] = [7, 8]
    assert stop.reason(7, 10) != ""
    stop.forget(8)
    due[0] = [7, 9]
    assert stop.reason(7, 10) == "", "the group that took its place has not ended"


def test_only_a_waiting_step_has_groups_that_are_due() -> None:
    async def scenario() -> None:
        buffer = Buffer(num_slots=4)
        for _ in range(3):
            await buffer.admit(lambda: ServedVersion(0, 0))
        assert list(buffer.due) == []
        taking = asyncio.create_task(buffer.take(2, 0))
        await asyncio.sleep(0)
        assert list(buffer.due) == [0, 1], "the oldest two"
        await buffer.drop(0)
        await asyncio.sleep(0)
        assert list(buffer.due) == [1, 2]
        await buffer.drop(1)
        await asyncio.sleep(0)
        assert list(buffer.due) == [], "one is too few"
        await buffer.admit(lambda: ServedVersion(0, 0))
        await asyncio.sleep(0)
        assert list(buffer.due) == [2, 3]
        for ticket in (2, 3):
            await buffer.put(complete_group(ticket, 0, random.Random(0)))
        await taking
        assert list(buffer.due) == []

    asyncio.run(scenario())


def test_the_longest_attempts_of_a_step_are_stopped_once_and_sampled_again(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, stopping(), make_engine=Streaming)) as rig:
        rig.journal.record(RunStarted(config_digest=""))
        asyncio.run(rig.run())
        attempts = stored(rig)
        stops = [each for each in attempts if each.status is Status.ABORTED]
        assert stops and all(each.num_tokens == SHORT + 1 and each.step is None for each in stops)
        assert max(Counter((each.group, each.sibling) for each in stops).values()) == 1
        retried = [event for event in rig.events(AttemptRetried) if event.status is Status.ABORTED]
        assert len(retried) == len(stops) and all("more than 75%" in event.reason for event in retried)
        assert sum(metrics["stopped/attempts"] for metrics in rig.metrics.values()) == len(stops)
        assert sum(metrics["stopped/tokens"] for metrics in rig.metrics.values()) == len(stops) * (SHORT + 1)
        assert not any(name.startswith("failed/") for metrics in rig.metrics.values() for name in metrics)
        rig.journal.record(RunEnded(step=6, reason="finished"))
    ledger = read_ledger(tmp_path)
    assert [each.unaccounted for each in (ledger.tokens, ledger.trajectories, ledger.groups)] == [0, 0, 0]
    late = ledger.tokens.outcomes[SampleOutcome.ABORTED] - len(stops) * (SHORT + 1)
    assert 0 <= late <= 2 * len(stops), "they count as lost, with what was sampled until the generator knew"
    assert ledger.profiles[SampleOutcome.ABORTED].length == SHORT + 1
    bounds = RunBounds(groups_per_step=8, group_size=GROUP_SIZE, max_age=0, stops=True)
    assert _violations(tmp_path, bounds) == []
    never = RunBounds(groups_per_step=8, group_size=GROUP_SIZE, max_age=0)
    assert "was stopped" in _violations(tmp_path, never)[0], "a run without a quantile stops none"


def test_attempts_that_are_all_long_are_trained_in_the_end(tmp_path: Path) -> None:
    """The replacement of a stopped attempt is as long: nothing is stopped twice, and no step waits without end."""
    with closing(Rig(tmp_path, stopping(steps=12), make_engine=Streaming)) as rig:
        assert asyncio.run(rig.run()) == 12
        attempts = stored(rig)
        assert max(each.num_tokens for each in attempts if each.step) == LONG
        assert [len(event.groups) for event in rig.events(StepStarted)] == [8] * 12


def test_the_bias_compares_trained_attempts_with_those_stopped_in_their_groups() -> None:
    easy, hard = (complete_group(id, 0, _Constant(value)) for id, value in ((1, 0.0), (2, 1.0)))
    assert compare_stopped([easy, hard], {}) == {"stopped/attempts": 0.0, "stopped/tokens": 0.0}
    metrics = compare_stopped([easy, hard], {2: [30, 50]})
    assert [each.reward for each in (*easy.trajectories, *hard.trajectories)] == [1.0] * 4 + [0.0] * 4
    assert metrics == {
        "stopped/attempts": 2.0,
        "stopped/tokens": 80.0,
        "stopped/length": 40.0,
        "bias/stopped/length": -40.0,
        "stopped/reward": 0.0,
        "bias/stopped/reward": 0.5,
        "stopped/share/d": 1.0,
        "bias/stopped/share/d": 0.0,
    }


class _Slow(FakeTrainer):
    """Generators get some steps further while it updates."""

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        for _ in range(4):
            await asyncio.sleep(0)
        return await super().update(batch, objective)


def dying_at_a_stop(rig: Rig) -> None:
    """Make the run end with the first stopped attempt after its first checkpoint."""
    record = rig.journal.record

    def recorded(event: Event) -> int:
        id = record(event)
        if isinstance(event, AttemptRetried) and event.status is Status.ABORTED and len(rig.metrics) >= 2:
            raise RunStopped("died")
        return id

    rig.journal.record = recorded  # type: ignore[method-assign]


@pytest.mark.parametrize(("reuse", "redundant"), [(1, 0), (2, 1)])
def test_a_resumed_run_stops_no_attempt_a_second_time(reuse: int, redundant: int, tmp_path: Path) -> None:
    setting = stopping(
        steps=10,
        stop_quantile=0.5,
        num_slots=16 if reuse == 1 else 12,
        max_age=1 if reuse == 1 else 2,
        reuse=reuse,
        redundant_groups=redundant,
        redundant_siblings=redundant,
        checkpoint_every=2,
        generators=2,
    )
    with closing(Rig(tmp_path, setting, _Slow(), Streaming)) as rig:
        dying_at_a_stop(rig)
        rig.journal.record(RunStarted(config_digest=""))
        with pytest.raises(RunStopped, match="died"):
            asyncio.run(rig.run())
        before = sum(each.status is Status.ABORTED for each in stored(rig))
    with closing(Rig(tmp_path, setting, make_engine=Streaming)) as rig:
        rig.journal.record(RunStarted(config_digest="", resumed_from=2))
        restored = asyncio.run(rig.resume())
        stops = Counter((each.group, each.sibling) for each in stored(rig) if each.status is Status.ABORTED)
        assert 0 < before < sum(stops.values()) and max(stops.values()) == 1, before
        again = [each for group in restored for each in group.attempts.values() if each.stopped]
        assert again and all(len(each.stopped) == 1 and each.stopped[0] > SHORT for each in again)
        rig.journal.record(RunEnded(step=10, reason="finished"))
    ledger = read_ledger(tmp_path)
    assert [each.unaccounted for each in (ledger.tokens, ledger.trajectories, ledger.groups)] == [0, 0, 0]
    bounds = RunBounds(
        groups_per_step=8,
        group_size=GROUP_SIZE,
        max_age=2,
        redundant_groups=redundant,
        reuse=reuse,
        num_replayed=8 - 8 // reuse,
        stops=True,
    )
    assert _violations(tmp_path, bounds) == []


def _violations(path: Path, bounds: RunBounds) -> list[str]:
    """What `roll verify` finds, but for metrics and checkpoints, which a rig does not write in full."""
    invariants = verify_journal(path, bounds).invariants
    return [
        f"{each.name}: {example}"
        for each in invariants
        if each.unit not in ("lines", "checkpoints")
        for example in each.examples
    ]


class _Constant(random.Random):
    """Draws one number again and again."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value
