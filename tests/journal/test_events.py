import dataclasses

import msgspec
import pytest

from roll.journal.events import (
    KINDS,
    Admitted,
    Checkpointed,
    Diverged,
    Event,
    Generated,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    ProxyRefused,
    Published,
    Released,
    Replaced,
    Resumed,
    Retried,
    RolledBack,
    RunEnded,
    RunStarted,
    Taken,
    TrajectoryEnded,
    Updated,
    Validated,
)
from roll.types import Status

EVERY = [
    RunStarted(config_digest="ab"),
    RunStarted(config_digest="ab", resumed_from=4),
    Admitted(group=1, task="t-1", domain="math", birth=3),
    TrajectoryEnded(group=1, sibling=0, status=Status.FINISHED, reward=1.0, reason="", num_tokens=5, versions=(3, 4)),
    TrajectoryEnded(
        group=1, sibling=1, status=Status.ENV_FAILED, reward=None, reason="boom", num_tokens=0, versions=None
    ),
    Retried(group=1, sibling=1, status=Status.ENV_FAILED, reason="boom"),
    GroupReady(group=1),
    GroupFailed(group=2, reason="boom, three times"),
    GroupFiltered(group=4, reason="all rewards are equal"),
    GroupStale(group=6, reason="born at version 1, trained at 4 at the latest"),
    Diverged(group=1, sibling=0, turn=2),
    Taken(step=5, groups=(1, 3)),
    Updated(step=5, refused=False),
    Published(version=5, step=5, digest="float32:12:34"),
    Published(version=6, step=6, digest="float32:12:34", seconds={"hold": 0.5}),
    Replaced(generator=1, version=6, why="actor_infer 1: its process ended during events"),
    Resumed(version=6, requests=3, tokens=4096),
    Generated(step=6, tokens=100, aborted=3, late=1, bad=0, redispatched=1),
    Released(step=5),
    Validated(step=5, version=5, metrics={"validation/reward": 0.5}),
    ProxyRefused(session="train/math/t-1/0/3", status=400, why="unsupported parameters: 'top_k'; leave them out"),
    ProxyRefused(session="", status=401, why="the token is not that of this run", times=900),
    Checkpointed(step=5, path="checkpoints/step-5"),
    RolledBack(to_step=5, why="trainer lost"),
    RunEnded(step=5, why="done"),
]


def test_every_kind_is_among_the_examples():
    assert {type(event).__name__ for event in EVERY} == set(KINDS)


@pytest.mark.parametrize("event", EVERY, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: Event):
    assert msgspec.json.decode(msgspec.json.encode(event), type=KINDS[type(event).__name__]) == event


def test_what_happened_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EVERY[0].config_digest = "other"  # type: ignore[attr-defined]
