"""Environment failures cost attempts and not the run, and every record names the fault, the task and the turn."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from roll.journal.events import AttemptRetried, Event, GroupFailed, TrajectoryEnded
from roll.rollout.env_pool import EnvPool, EnvWorkerLimits
from roll.rollout.environments import Environments, InlineEnvs
from roll.types import Status, Trajectory
from tests.envs import faulty
from tests.envs.fault_rig import attempts, tasks
from tests.envs.faulty import FAULTY, GARBAGE, OPENINGS

pytestmark = pytest.mark.slow

Found = tuple[Mapping[str, list[Trajectory]], list[Event]]
FAILURES = {
    "cannot_be_made": ": ValueError: no world today (its line)",
    "start_raises": ", starting: OSError: no ice (its line)",
    "start_hangs": ", starting: TimeoutError: no answer within 0.4 s (rollout.env_timeout_s)",
    "opens_with_text": ", starting: not a tuple of messages (got '5'); give Message('user', ...)",
    "opens_with_nothing": ", starting: returned no message; open with at least one",
    "opens_with_none": ", starting: not a tuple of messages (got None); give Message('user', ...)",
    "opens_too_long": ", starting: its first messages fill the context; raise rollout.max_seq_len, or shorten them",
    "raises": ", turn 0: ValueError: the world ended (its line)",
    "leaves": ", turn 0: SystemExit: good bye (its line)",
    "cancels_itself": ", turn 0: cancelled itself; catch what it cancels",
    "hangs": ", turn 0: TimeoutError: no answer within 0.4 s (rollout.env_timeout_s)",
    "none": ", turn 0: not a StepResult (got None); return roll.envs.base.StepResult",
    "dict": ", turn 0: not a StepResult (got {'done': True, 'messages': []}); return roll.envs.base.StepResult",
    "nan": ", turn 0: reward is no finite number of at most 1e+06 (got nan); give a float",
    "huge": ", turn 0: reward is no finite number of at most 1e+06 (got 1e+30); give a float",
    "word": ", turn 0: reward is no finite number of at most 1e+06 (got 'much'); give a float",
    "text": ", turn 0: not a tuple of messages (got '5'); give Message('user', ...)",
    "number": ", turn 0: a message is not text (got 5 from 'user'); give role and content",
    "half": ", turn 0: a message is not text (got '\\ud800' from 'user'); give role and content",
    "metric": ", turn 0: success is no finite number of at most 1e+06 (got inf); give a float",
    "metrics": ", turn 0: metrics are not numbers by name (got [1.0]); give a dict",
    "state": ", turn 0: `done` must be true or false and `state` a text (got done False, state 5); give them so",
    "silent": ", turn 0: no message and not done; give the StepResult `messages`, or `done=True`",
    "close_raises": ", closing: OSError: the door is stuck (its line)",
}
KILLERS = ("sticks", "hangs_for_good", "dies", "is_killed")
VALID = {
    "good": (Status.FINISHED, 2, ""),
    "good too": (Status.FINISHED, 2, ""),
    "ends_at_once": (Status.FINISHED, 1, ""),
    "never_ends": (Status.TRUNCATED, 4, "4 turns are over"),
    "talks_too_long": (Status.TRUNCATED, 1, "the context is full"),
}


def inline() -> Environments:
    return InlineEnvs(limit_s=0.4)


def limited() -> Environments:
    return InlineEnvs(limit_s=0.4, start_limit=3)


def pooled() -> Environments:
    return EnvPool(2, names=[FAULTY.name], limit_s=0.4, limits=EnvWorkerLimits(grace_s=0.5))


@pytest.fixture(scope="module", params=[inline, limited, pooled])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("faults")
    return attempts(folder, tasks([*FAILURES, *VALID]), request.param, until=as_told)


def as_told(trajectory: Trajectory) -> bool:
    """Whether it ended as it had to, and not only because the machine was slow."""
    name = trajectory.task.id
    return told(trajectory).endswith(f"task '{name}'{FAILURES[name]}") if name in FAILURES else trajectory.status.valid


def told(trajectory: Trajectory) -> str:
    """Its reason, wherever in the faulty file a line is to blame."""
    return re.sub(rf"\({re.escape(faulty.__file__)}:\d+\)$", "(its line)", trajectory.reason)


def test_a_failure_is_a_record_that_names_the_task_the_turn_and_the_bad_value(run: Found) -> None:
    found, _ = run
    assert set(FAILURES) >= set(GARBAGE) | set(OPENINGS)
    for fault, reason in FAILURES.items():
        for trajectory in found[fault]:
            assert trajectory.status is Status.ENV_FAILED
            assert trajectory.reason.startswith("environment ") and f"task '{fault}'" in trajectory.reason
        assert any(told(trajectory).endswith(reason) for trajectory in found[fault]), fault


def test_sound_environments_in_the_same_run_finish(run: Found) -> None:
    found, _ = run
    for name, (status, num_turns, reason) in VALID.items():
        ended = [trajectory for trajectory in found[name] if trajectory.status.valid]
        assert ended, name
        for trajectory in ended:
            cut = (
                "the last response reached max_new_tokens" if status is Status.FINISHED else reason
            )  # the fake writes to the limit
            assert (len(trajectory.turns), trajectory.reason) == (num_turns, cut), name


def test_failures_are_retried_and_then_their_group_is_dropped(run: Found) -> None:
    _, events = run
    ended = [event for event in events if isinstance(event, TrajectoryEnded) and "'raises'" in event.reason]
    retried = [event for event in events if isinstance(event, AttemptRetried) and "'raises'" in event.reason]
    given_up = [event for event in events if isinstance(event, GroupFailed) and "'raises'" in event.reason]
    assert ended and retried and given_up
    assert all(event.status is Status.ENV_FAILED and event.reward is None for event in ended)


def test_killing_or_blocking_a_process_costs_the_attempts_in_it_and_not_the_run(tmp_path: Path) -> None:
    pools: list[EnvPool] = []

    def make() -> Environments:
        pools.append(EnvPool(2, names=[FAULTY.name], limit_s=0.4, limits=EnvWorkerLimits(grace_s=0.5)))
        return pools[0]

    wanted = tasks([*KILLERS, "good"], times=2, witness=str(tmp_path))
    found, _ = attempts(tmp_path, wanted, make, until=lambda each: each.status.valid)
    fired = [len(list(tmp_path.glob(f"{killer}-*"))) for killer in KILLERS]
    assert fired == [2] * len(KILLERS), "the faults really fired, and later attempts had fresh environments"
    assert pools[0].num_replaced >= 3 and not pools[0].pids, "their processes were replaced, and nobody is left"
    failed = [each for killer in KILLERS for each in found[killer] if not each.status.valid]
    assert all(each.status is Status.ENV_FAILED and f"task '{each.task.id}'" in each.reason for each in failed)
    said = {killer: " ".join(each.reason for each in found[killer]) for killer in KILLERS}
    assert "no answer within 0.4 s" in said["sticks"] and "no answer within 0.4 s" in said["hangs_for_good"]
    assert "exited with code 3" in said["dies"] and "was killed by SIGKILL" in said["is_killed"]
