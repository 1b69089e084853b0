import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import (
    CheckpointSaved,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    RequestsResumed,
    RolledBack,
    RunEnded,
    RunStarted,
    StepStarted,
    TokensGenerated,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.report.ledger import Ledger, read_ledger
from roll.report.outcomes import SampleOutcome
from roll.report.report import format_report
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

VALID = (Status.FINISHED, Status.TRUNCATED)


def attempt(sibling: int, versions: list[int], status: Status = Status.FINISHED, domain: str = "math") -> Trajectory:
    num = len(versions)
    turn = Turn(
        observation=np.zeros(1, np.int32),
        sampled=np.zeros(num, np.int32),
        sampler_logprobs=np.zeros(num, np.float32),
        versions=np.array(versions, np.int32),
        finish=Finish.STOP,
    )
    return Trajectory(
        task=Task(id="t", domain=domain),
        sibling=sibling,
        segments=(Segment(turns=(turn,)),),
        status=status,
        score=Score(1.0) if status.valid else None,
    )


class Script:
    """Writes a journal as a run would."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.journal = directory, Journal(directory / "journal.db")
        self.start()

    def start(self) -> None:
        self.journal.record(RunStarted(config_digest=""))

    def admit(self, group: int, birth: int = 0, domain: str = "math") -> None:
        self.journal.record(GroupAdmitted(group=group, task="t", domain=domain, birth=birth))

    def note(self, group: int, sibling: int, versions: list[int]) -> None:
        for version, count in Counter(versions).items():
            ids, logprobs = np.zeros(count, np.int32), np.zeros(count, np.float32)
            self.journal.record_progress(
                Chunk(
                    group=group,
                    sibling=sibling,
                    attempt=0,
                    turn=0,
                    context=0,
                    ids=ids,
                    logprobs=logprobs,
                    version=version,
                )
            )

    def end(self, group: int, sibling: int, versions: list[int], status: Status = Status.FINISHED) -> None:
        self.journal.record_trajectory(group, attempt(sibling, versions, status))

    def publish(self, version: int, step: int) -> None:
        self.journal.record(
            WeightsPublished(version=version, step=step, digest="", seconds={"hold": 0.5, "send": 0.25})
        )

    def train(self, step: int, *groups: int, refused: bool = False) -> None:
        self.journal.record(StepStarted(step=step, groups=groups))
        self.journal.record(WeightsUpdated(step=step, refused=refused))

    def generated(self, tokens: int, unrecorded: int = 0, discarded: int = 0) -> None:
        self.journal.record(
            TokensGenerated(
                step=0, tokens=tokens, unrecorded=unrecorded, discarded=discarded, late=0, bad=0, redispatched=0
            )
        )

    def read(self) -> Ledger:
        self.journal.flush()
        return read_ledger(self.directory)


def some(**outcomes: int) -> dict[SampleOutcome, int]:
    return dict.fromkeys(SampleOutcome, 0) | {SampleOutcome(name): count for name, count in outcomes.items()}


def test_every_token_attempt_and_group_has_one_outcome(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    for group in range(7):
        script.admit(group)
        if group < 5:
            script.end(group, 0, [0] * 10)
    script.end(0, 1, [0] * 3, Status.ENV_FAILED)
    script.end(0, 1, [0] * 20)
    script.train(1, 0)
    script.train(2, 1, refused=True)
    script.journal.record(GroupFiltered(group=2, reason=""))
    script.journal.record(GroupFailed(group=3, reason=""))
    script.journal.record(GroupStale(group=4, reason=""))
    script.end(5, 0, [0] * 40)
    script.note(5, 1, [0] * 7)
    script.note(2, 1, [0] * 6)  # cancelled with its group
    script.generated(200, unrecorded=100, discarded=3)
    script.generated(50)
    found = script.read()
    assert found.tokens.outcomes == some(
        trained=30, refused=10, filtered=10, failed=13, aborted=9, stale=10, waiting=47, validation=100
    )
    assert (found.tokens.total, found.tokens.unaccounted) == (250, 250 - 229)
    assert found.trajectories.outcomes == some(trained=2, refused=1, filtered=1, failed=2, stale=1, waiting=1)
    assert (found.trajectories.total, found.trajectories.unaccounted) == (8, 0)
    assert found.groups.outcomes == some(trained=1, refused=1, filtered=1, failed=1, stale=1, waiting=2)
    assert (found.groups.total, found.groups.unaccounted) == (7, 0)


def test_a_group_that_is_being_trained_on_still_waits(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    script.admit(0)
    script.end(0, 0, [0] * 4)
    script.journal.record(StepStarted(step=1, groups=(0,)))
    assert script.read().tokens.outcomes == some(waiting=4)
    script.journal.record(WeightsUpdated(step=1, refused=False))
    assert script.read().tokens.outcomes == some(trained=4)


def test_an_excess_shows_as_a_negative_remainder(tmp_path: Path):
    script = Script(tmp_path)
    script.journal.record(GroupFailed(group=3, reason="never admitted"))
    script.journal.record_trajectory(3, attempt(0, [0] * 5))
    script.journal.record(RunEnded(step=0, reason="finished"))
    found = script.read()
    assert [each.unaccounted for each in (found.tokens, found.trajectories, found.groups)] == [-5, 0, -1]
    assert format_report(found).count("unaccounted") == 1 and "-5" in format_report(found)


def test_tokens_that_a_killed_process_did_not_count_are_counted_from_its_records(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    for group in range(2):
        script.admit(group)
    script.end(0, 0, [0] * 4)
    script.generated(4)
    script.end(1, 0, [0] * 3)
    script.note(1, 1, [0] * 2)
    while_it_runs = script.read()
    script.start()
    script.note(1, 1, [0] * 10)
    script.end(1, 1, [0] * 12)
    script.generated(10)
    script.journal.record(RunEnded(step=0, reason="finished"))
    for found, total in ((while_it_runs, 9), (script.read(), 19)):
        assert (found.tokens.total, found.tokens.unaccounted, found.uncounted) == (total, 0, 5)
        assert "5 tokens belong to a process that was killed" in format_report(found)


def test_surplus_attempts_count_as_aborted(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    script.admit(0)
    for sibling in range(3):
        script.end(0, sibling, [0] * 10)
    script.journal.record(GroupReady(group=0, siblings=(0, 2)))
    script.train(1, 0)
    assert script.read().tokens.outcomes == some(trained=20, aborted=10)


def test_a_rollback_makes_tokens_of_later_weights_void(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    script.admit(0)  # trained, and again after the rollback
    script.end(0, 0, [0] * 10)
    script.admit(1)  # filtered after version 1, so not any more
    script.admit(2)  # half of it is void
    script.note(2, 0, [0] * 3)
    script.admit(3)  # partly void, and sampled again from there
    script.train(1, 0)
    script.publish(1, 1)
    script.admit(4, birth=1)  # void altogether
    script.end(4, 0, [1] * 5)
    script.note(4, 1, [1] * 2)
    script.end(1, 0, [0] * 8)
    script.journal.record(GroupFiltered(group=1, reason=""))
    script.note(2, 0, [1] * 4)
    script.note(3, 0, [0] * 6 + [1] * 2)
    script.end(3, 0, [0] * 6 + [1] * 2)
    script.generated(40)
    script.start()
    script.journal.record(RolledBack(to_step=0, reason="killed"))
    script.publish(2, 0)
    assert script.read().tokens.outcomes == some(stale=7 + 4 + 2, waiting=10 + 8 + 3 + 6)
    script.note(3, 0, [2] * 9)
    script.end(3, 0, [0] * 6 + [2] * 9)
    script.train(1, 0, 3)
    script.note(2, 0, [2])
    script.end(2, 0, [0] * 3 + [2])
    script.generated(10)
    found = script.read()
    assert found.tokens.outcomes == some(trained=10 + 15, stale=7 + 4 + 2, waiting=8 + 4)
    assert found.tokens.unaccounted == 0
    assert found.groups.outcomes == some(trained=2, stale=1, waiting=2)
    assert found.trajectories.outcomes == some(trained=2, stale=2, waiting=2) and found.trajectories.unaccounted == 0


def test_aborted_tokens_that_continue_after_a_rollback_are_counted_once(tmp_path: Path):
    script = Script(tmp_path)
    for group in range(2):
        script.publish(group, group)
        script.admit(2 * group)
        script.admit(2 * group + 1)
    for group in range(4):
        script.note(group, 0, [group // 2] * 10)
    script.journal.record(GroupFailed(group=0, reason=""))
    script.journal.record(GroupStale(group=3, reason=""))
    script.admit(4)
    script.note(4, 0, [0] * 5)
    script.journal.record(GroupReady(group=4, siblings=(1,)))
    script.generated(45)
    assert script.read().tokens.outcomes == some(aborted=25, waiting=20)
    script.start()
    script.journal.record(RolledBack(to_step=0, reason="killed"))
    found = script.read()
    assert found.tokens.outcomes == some(waiting=25, stale=20) and found.tokens.unaccounted == 0


def test_tokens_of_surplus_attempts_stay_aborted_when_a_checkpoint_or_a_prune_deletes_them(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    for group in range(2):
        script.admit(group)
        script.end(group, 0, [0] * 10)
        script.note(group, 1, [0] * (4 + group))
        script.journal.record(GroupReady(group=group, siblings=(0,)))
        script.train(group + 1, group)
    script.generated(29)
    assert script.read().tokens.outcomes == some(trained=20, aborted=9)
    script.journal.record(CheckpointSaved(step=1, path=""))
    assert [chunk.group for chunk in script.journal.progress()] == [1]
    assert script.read().tokens.outcomes == some(trained=20, aborted=9)
    script.journal.prune(3)
    assert script.journal.progress() == []
    script.start()
    script.journal.record(RolledBack(to_step=2, reason="killed"))
    script.journal.record(RunEnded(step=2, reason="finished"))
    found = script.read()
    assert found.tokens.outcomes == some(trained=20, aborted=9)
    assert (found.tokens.unaccounted, found.uncounted) == (0, 0)


def test_aborted_tokens_of_groups_that_ended_before_a_rollback_stay_aborted(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    for group in range(4):
        script.admit(group)
        script.note(group, 0, [0] * (10 + group))
    script.journal.record(GroupFailed(group=0, reason=""))
    script.generated(46)
    script.journal.record(GroupFailed(group=1, reason=""))
    script.publish(1, 1)
    script.journal.record(GroupFailed(group=2, reason=""))
    assert script.read().tokens.outcomes == some(aborted=10 + 11 + 12, waiting=13)
    script.start()
    script.journal.record(RolledBack(to_step=0, reason="killed"))
    found = script.read()
    assert found.tokens.outcomes == some(aborted=10 + 11, waiting=12 + 13) and found.tokens.unaccounted == 0


def test_aborted_tokens_that_a_killed_process_did_not_count_are_counted_from_its_progress(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    script.admit(0)
    script.note(0, 0, [0] * 10)
    script.journal.record(GroupStale(group=0, reason=""))
    for _ in range(2):  # while it runs, and after it was killed
        found = script.read()
        assert found.tokens.outcomes == some(aborted=10)
        assert (found.tokens.total, found.uncounted, found.tokens.unaccounted) == (10, 10, 0)
        script.start()
        script.generated(0)


def test_an_attempt_still_running_in_a_complete_group_counts_as_aborted(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    script.admit(0)
    script.end(0, 0, [0] * 10)
    script.note(0, 1, [0] * 4)
    script.journal.record(GroupReady(group=0, siblings=(0,)))
    script.generated(14)
    found = script.read()
    assert found.tokens.outcomes == some(waiting=10, aborted=4) and found.tokens.unaccounted == 0


def test_staleness_counts_steps_between_weights_and_training_not_versions(tmp_path: Path):
    script = Script(tmp_path)
    for version, step in ((0, 0), (1, 1), (2, 2), (7, 2)):
        script.publish(version, step)
    script.admit(0)
    script.end(0, 0, [0] * 2 + [1] * 3 + [2] * 5 + [7] * 7)
    script.train(3, 0)
    assert script.read().staleness == {0: 12, 1: 3, 2: 2}


def test_publications_are_summed_by_part(tmp_path: Path):
    script = Script(tmp_path)
    for version in range(3):
        script.publish(version, version)
        script.journal.record(RequestsResumed(version=version, num_requests=version, num_tokens=100 * version))
    found = script.read().publications
    assert (found.count, found.seconds) == (3, {"hold": 1.5, "send": 0.75})
    assert (found.resumed_requests, found.prefilled_again) == (3, 300)


def test_profiles_describe_trained_and_waiting_attempts(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    for group, (domain, length) in enumerate((("math", 10), ("code", 30), ("code", 80))):
        script.admit(group, domain=domain)
        script.journal.record_trajectory(group, attempt(0, [0] * length, domain=domain))
    script.train(1, 0, 1)
    profiles = script.read().profiles
    assert (profiles[SampleOutcome.TRAINED].count, profiles[SampleOutcome.TRAINED].length) == (2, 20.0)
    assert profiles[SampleOutcome.TRAINED].domains == {"code": 0.5, "math": 0.5}
    assert (profiles[SampleOutcome.WAITING].length, profiles[SampleOutcome.WAITING].domains) == (80.0, {"code": 1.0})
    assert profiles[SampleOutcome.WAITING].reward == 1.0


class World:
    """A run by chance, in which it is known of every token what becomes of it."""

    def __init__(self, seed: int, script: Script) -> None:
        self.chance, self.script = random.Random(seed), script
        self.tokens, self.trajectories, self.groups = (
            Counter[SampleOutcome](),
            Counter[SampleOutcome](),
            Counter[SampleOutcome](),
        )
        self.staleness = Counter[int]()
        self.generated = 0
        self.step = self.version = 0
        self.step_of = {0: 0}
        self.partial: dict[tuple[int, int], list[int]] = {}
        self.whole: dict[int, dict[int, list[int]]] = {}
        self.births: dict[int, int] = {}
        self.trained: dict[int, dict[int, dict[int, list[int]]]] = {}
        self.remade = set[tuple[int, int]]()
        script.publish(0, 0)

    def admit(self) -> None:
        group = len(self.births)
        self.births[group] = self.version
        self.whole[group] = {}
        self.script.admit(group, birth=self.version)
        self.partial |= {(group, sibling): [] for sibling in range(2)}

    def sample(self) -> None:
        for (group, sibling), versions in self.partial.items():
            new = [self.version] * self.chance.randrange(5)
            if new:
                self.script.note(group, sibling, new)
            versions += new
            self.generated += len(new)
        for key in [key for key in self.partial if self.chance.random() < 0.3]:
            self.end(*key)

    def end(self, group: int, sibling: int) -> None:
        versions = self.partial.pop((group, sibling))
        if (group, sibling) in self.remade:
            self.remade.remove((group, sibling))
            self.trajectories[SampleOutcome.STALE] += 1
        if self.chance.random() < 0.2:
            self.script.end(group, sibling, versions, Status.REWARD_FAILED)
            self.tokens[SampleOutcome.FAILED] += len(versions)
            self.trajectories[SampleOutcome.FAILED] += 1
            self.partial[group, sibling] = []  # starts again
            return
        self.script.end(group, sibling, versions, self.chance.choice(VALID))
        self.whole[group][sibling] = versions

    def lose(self) -> None:
        """One group is filtered, failed or stale; its running attempts are aborted."""
        group = self.chance.choice(sorted(self.whole))
        event, outcome = self.chance.choice(
            [
                (GroupFiltered, SampleOutcome.FILTERED),
                (GroupFailed, SampleOutcome.FAILED),
                (GroupStale, SampleOutcome.STALE),
            ]
        )
        self.script.journal.record(event(group=group, reason=""))
        self.settle(group, outcome)
        aborted = sum(len(self.partial.pop((group, sibling), [])) for sibling in range(2))
        self.tokens[SampleOutcome.ABORTED] += aborted

    def settle(
        self, group: int, outcome: SampleOutcome, ended: dict[int, list[int]] | None = None, sign: int = 1
    ) -> None:
        ended = self.whole.pop(group) if ended is None else ended
        self.groups[outcome] += sign
        self.trajectories[outcome] += sign * len(ended)
        self.tokens[outcome] += sign * sum(map(len, ended.values()))

    def train(self) -> None:
        ready = [group for group, ended in self.whole.items() if len(ended) == 2][:2]
        if not ready:
            return
        self.step += 1
        for group in ready:
            self.staleness.update(self.staleness_of(self.whole[group]))
        self.script.train(self.step, *ready)
        self.trained[self.step] = {group: self.whole[group] for group in ready}
        for group in ready:
            self.settle(group, SampleOutcome.TRAINED)
        self.version += 1
        self.step_of[self.version] = self.step
        self.script.publish(self.version, self.step)

    def staleness_of(self, ended: dict[int, list[int]]) -> list[int]:
        return [self.step - 1 - self.step_of[version] for versions in ended.values() for version in versions]

    def crash(self) -> None:
        """The process dies, and another resumes from an earlier step."""
        back, void = self.chance.randint(max(0, self.step - 2), self.step), set[int]()
        while self.step > back:
            for group, ended in self.trained.pop(self.step).items():
                self.staleness.subtract(self.staleness_of(ended))
                self.settle(group, SampleOutcome.TRAINED, ended, sign=-1)
                self.whole[group] = ended
            void |= {version for version, step in self.step_of.items() if step == self.step}
            self.step -= 1
        for group in [group for group in self.whole if self.births[group] in void]:
            for sibling in range(2):
                self.tokens[SampleOutcome.STALE] += len(self.partial.pop((group, sibling), []))
                self.trajectories[SampleOutcome.STALE] += (group, sibling) in self.remade
                self.remade.discard((group, sibling))
            self.settle(group, SampleOutcome.STALE)
        self.keep_what_is_sound(void)
        self.script.start()
        self.script.journal.record(RolledBack(to_step=back, reason="killed"))
        self.version += 1
        self.step_of = {version: step for version, step in self.step_of.items() if step <= back} | {self.version: back}
        self.script.publish(self.version, back)

    def keep_what_is_sound(self, void: set[int]) -> None:
        for key, versions in self.partial.items():
            sound = [version for version in versions if version not in void]
            self.tokens[SampleOutcome.STALE] += len(versions) - len(sound)
            self.partial[key] = sound
        for group, ended in self.whole.items():
            for sibling in [sibling for sibling, versions in ended.items() if void & set(versions)]:
                versions = ended.pop(sibling)
                self.partial[group, sibling] = [version for version in versions if version not in void]
                self.tokens[SampleOutcome.STALE] += len(versions) - len(self.partial[group, sibling])
                self.remade.add((group, sibling))

    def finish(self) -> None:
        self.trajectories[SampleOutcome.WAITING] += len(self.remade)
        self.script.generated(self.generated)
        for group in list(self.whole):
            self.settle(group, SampleOutcome.WAITING)
        self.tokens[SampleOutcome.WAITING] += sum(map(len, self.partial.values()))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lose", "crash"])
@pytest.mark.parametrize("seed", range(8))
def test_the_account_of_a_random_run_is_exact(seed: int, fault: str, tmp_path: Path):
    script = Script(tmp_path)
    world = World(seed, script)
    moves: list[Callable[[], None]] = [world.admit, world.admit, world.sample, world.sample, world.sample, world.train]
    for number in range(150):
        world.chance.choice(moves)()
        if number % 10 == 9 and world.whole:
            getattr(world, fault)()
        if world.chance.random() < 0.05:
            script.journal.flush()
    world.finish()
    found = script.read()
    if fault == "crash":  # some tokens are both: void, and of an attempt that failed
        for tokens in (found.tokens.outcomes, world.tokens):
            assert tokens[SampleOutcome.STALE] > 0
            tokens[SampleOutcome.FAILED] += tokens.pop(SampleOutcome.STALE)
    assert some(**found.tokens.outcomes) == some(**dict(world.tokens))
    assert found.trajectories.outcomes == some(**dict(world.trajectories))
    assert found.groups.outcomes == some(**dict(world.groups))
    assert [each.unaccounted for each in (found.tokens, found.trajectories, found.groups)] == [0, 0, 0]
    assert found.staleness == dict(sorted((+world.staleness).items()))
    assert found.staleness or fault != "lose"


def test_the_account_is_one_json_object(tmp_path: Path):
    script = Script(tmp_path)
    script.publish(0, 0)
    script.admit(0)
    script.end(0, 0, [0] * 4)
    script.train(1, 0)
    plain = json.loads(msgspec.json.encode(script.read()))
    assert plain["tokens"]["outcomes"]["trained"] == 4 and plain["uncounted"] == 4
    assert plain["staleness"] == {"0": 4}


def test_a_journal_without_events_is_refused(tmp_path: Path):
    Journal(tmp_path / "journal.db").close()
    with pytest.raises(ConfigError, match="nothing has happened"):
        read_ledger(tmp_path)
