import dataclasses

import msgspec
import pytest

from roll.journal.events import (
    KINDS,
    AdvantagesAssigned,
    AsyncRatioChanged,
    AttemptRetried,
    CheckpointSaved,
    ControllerRestarted,
    DevicesLent,
    DevicesReturned,
    Event,
    GeneratorJoined,
    GeneratorLeft,
    GeneratorRefused,
    GeneratorReplaced,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    HackSuspected,
    NodeAwaited,
    ProblemEnded,
    ProblemNoticed,
    ProxyRequestRefused,
    ReplayDiverged,
    RequestsResumed,
    RolledBack,
    RunEnded,
    RunStarted,
    SlotsReleased,
    StepStarted,
    TaskQuarantined,
    TokensGenerated,
    TrajectoryEnded,
    ValidationFinished,
    WeightsPublished,
    WeightsUpdated,
    WorkerMoved,
    WorkerReplaced,
)
from roll.types import Status

EVERY = [
    RunStarted(config_digest="ab"),
    RunStarted(config_digest="ab", resumed_from=4),
    ControllerRestarted(number=1, cause="the controller (pid 7) was killed by SIGKILL", seconds=8.5),
    GroupAdmitted(group=1, task="t-1", domain="math", birth=3),
    TrajectoryEnded(group=1, sibling=0, status=Status.FINISHED, reward=1.0, reason="", num_tokens=5, versions=(3, 4)),
    TrajectoryEnded(
        group=1, sibling=1, status=Status.ENV_FAILED, reward=None, reason="boom", num_tokens=0, versions=None
    ),
    AttemptRetried(group=1, sibling=1, status=Status.ENV_FAILED, reason="boom"),
    GroupReady(group=1),
    TaskQuarantined(task="t-1", source="math", index=0, num_failed=3, reason="boom"),
    GroupFailed(group=2, reason="boom, three times"),
    GroupFiltered(group=4, reason="all rewards are equal"),
    GroupStale(group=6, reason="born at version 1, trained at 4 at the latest"),
    ReplayDiverged(group=1, sibling=0, turn=2),
    StepStarted(step=5, groups=(1, 3)),
    AdvantagesAssigned(step=5, advantages={1: {0: 0.5, 1: -0.5}, 3: {0: None}}),
    HackSuspected(step=5, domain="math", sign="identical", reason="50% are equal", attempts=("1.0", "3.1")),
    ProblemNoticed(step=5, kind="length_growth", metric="length/mean", reason="it has doubled"),
    ProblemNoticed(
        step=5,
        kind="domain_break",
        metric="domain/a/reward",
        reason="fell",
        domain="a",
        metrics=("x",),
        keys=("tasks",),
    ),
    ProblemEnded(step=9, kind="length_growth", metric="length/mean", reason="it has halved", since=5),
    WeightsUpdated(step=5, refused=False),
    WeightsPublished(version=5, step=5, digest="float32:12:34"),
    WeightsPublished(version=6, step=6, digest="float32:12:34", seconds={"hold": 0.5}),
    GeneratorReplaced(generator=1, version=6, reason="actor_infer 1: its process ended during events"),
    GeneratorJoined(generator=2, node="10.0.0.3:1", version=6, digest="float32:12:34", seconds=9.5),
    GeneratorLeft(generator=2, reason="its node is being drained", num_requests=3, num_tokens=70),
    DevicesLent(generators=(0, 1), version=6, digest="float32:12:34", seconds=2.5),
    DevicesReturned(generators=(0, 1), num_requests=3, num_tokens=70, seconds=1.5),
    GeneratorRefused(generator=3, node="10.0.0.4:1", reason="it has roll 0.0.9, the run has 0.1.0"),
    WorkerReplaced(worker="critic 0", reason="critic 0: its process ended during update", seconds=9.5, num_updates=3),
    WorkerMoved(worker="actor_infer 1", before="10.0.0.1:1", after="10.0.0.2:1", reason="is lost"),
    NodeAwaited(worker="actor_train 0", reason="no node", seconds=2.5),
    RequestsResumed(version=6, num_requests=3, num_tokens=4096),
    TokensGenerated(step=6, tokens=100, unrecorded=5, discarded=3, late=1, bad=0, redispatched=1),
    SlotsReleased(step=5),
    AsyncRatioChanged(step=5, max_staleness=2.0, redundant_groups=1, reason="the trainer waited for 40 % of the time"),
    ValidationFinished(step=5, version=5, metrics={"validation/reward": 0.5}),
    ProxyRequestRefused(
        session="train/math/t-1/0/3", status=400, reason="unsupported parameters: 'top_k'; leave them out"
    ),
    ProxyRequestRefused(session="", status=401, reason="the token is not that of this run", count=900),
    CheckpointSaved(step=5, path="checkpoints/step-5"),
    RolledBack(to_step=5, reason="trainer lost"),
    RunEnded(step=5, reason="done"),
]


def test_the_examples_cover_every_kind_of_event():
    assert {type(event).__name__ for event in EVERY} == set(KINDS)


@pytest.mark.parametrize("event", EVERY, ids=lambda event: type(event).__name__)
def test_an_event_survives_a_round_trip(event: Event):
    assert msgspec.json.decode(msgspec.json.encode(event), type=KINDS[type(event).__name__]) == event


def test_events_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EVERY[0].config_digest = "other"  # type: ignore[attr-defined]
