"""What a run's journal and metrics say about its durations and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.config.load import load
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.journal.records import StoredTrajectory
from roll.placement.facts import roles_of
from roll.report.journals import open_journal
from roll.report.timeline import RunTimes
from roll.tracking.directory import METRICS, check_run
from roll.tracking.sinks import read_lines
from roll.types import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSample:
    """One response."""

    start: float
    """Seconds; when it was sent to a generator."""
    end: float
    num_tokens: int
    context: int
    """Tokens before the response."""
    turn: int
    order: tuple[int, int] = (0, 0)
    """Group and sibling: of requests sent at once, generators begin in this order."""
    censored: bool = False
    """Whether it reached `max_new_tokens`, so that its natural length is unknown."""
    interrupted: bool = False
    """Whether a change of version interrupted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSample:
    """One complete attempt."""

    group: int
    lengths: tuple[int, ...]
    """Tokens of each turn."""
    waits_s: tuple[float, ...]
    """Seconds until the environment answered, of each turn."""
    rest_s: float
    """Seconds outside turns: the start of the environment, the reward, and the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One step, in seconds."""

    step: int
    total_s: float
    wait_s: float
    update_s: float
    """Scores and the update."""
    publish_s: float
    validate_s: float
    checkpoint_s: float
    num_tokens: int
    """Sampled tokens of the trained attempts."""
    staleness: float
    """Greatest staleness of a trained token."""

    @property
    def other_s(self) -> float:
        """Seconds of no phase: the controller between them."""
        phases_s = self.wait_s + self.update_s + self.publish_s + self.validate_s + self.checkpoint_s
        return max(0.0, self.total_s - phases_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservations:
    """All that a calibration needs of a run."""

    turns: tuple[TurnSample, ...]
    attempts: tuple[AttemptSample, ...]
    steps: tuple[StepSample, ...]
    num_generators: int
    slots: int
    """Most sequences that a generator decodes at once."""


def observe_run(directory: Path) -> tuple[Run, RunObservations]:
    """The configuration and the observations of the run in `directory`."""
    check_run(directory)
    run = load(directory / "config.yaml").run
    steps = _steps(read_lines(directory / METRICS))
    with open_journal(directory) as reader, reader.snapshot():
        times = RunTimes(reader.events())
        workers = {span.worker for span in reader.spans() if span.worker.startswith("generator-")}
        turns, attempts = _attempts(reader.trajectories(), times)
    if not steps or not attempts:
        raise ConfigError(f"{directory}: no finished step with its attempts; give the directory of a longer run")
    section = roles_of(run)["actor_infer"]
    return run, RunObservations(
        turns=tuple(turns),
        attempts=tuple(attempts),
        steps=steps,
        num_generators=max(1, len(workers)),
        slots=section.max_num_seqs,
    )


def _attempts(
    trajectories: Iterable[StoredTrajectory], times: RunTimes
) -> tuple[list[TurnSample], list[AttemptSample]]:
    turns, attempts = list[TurnSample](), list[AttemptSample]()
    for stored in trajectories:
        start = times.attempt_start(stored)
        if stored.trajectory is None or not stored.status.valid:
            continue
        samples = list(_turns(stored, start))
        turns += samples
        waits_s = tuple(turn.waited_s for turn in stored.trajectory.turns)
        spent_s = sum(turn.generated_s + turn.waited_s for turn in stored.trajectory.turns)
        attempts.append(
            AttemptSample(
                group=stored.group,
                lengths=tuple(sample.num_tokens for sample in samples),
                waits_s=waits_s,
                rest_s=max(0.0, stored.ended - start - spent_s),
            )
        )
    return turns, attempts


def _turns(stored: StoredTrajectory, start: float) -> Iterator[TurnSample]:
    """The turns of an attempt, one after the other. The time outside turns is after the last."""
    assert stored.trajectory is not None
    now, number = start, 0
    for segment in stored.trajectory.segments:
        context = 0
        for turn in segment.turns:
            context += len(turn.observation)
            end = now + turn.generated_s
            yield TurnSample(
                start=now + turn.queued_s,
                end=end,
                num_tokens=len(turn.sampled),
                context=context,
                turn=number,
                order=(stored.group, stored.sibling),
                censored=turn.finish is Finish.LENGTH,
                interrupted=len(set(turn.versions.tolist())) > 1,
            )
            context += len(turn.sampled)
            now, number = end + turn.waited_s, number + 1


def _steps(lines: Iterable[dict[str, Any]]) -> tuple[StepSample, ...]:
    return tuple(
        StepSample(
            step=line["step"],
            total_s=line["time/step"],
            wait_s=line.get("time/wait", 0.0),
            update_s=line.get("time/score", 0.0) + line.get("time/update", 0.0),
            publish_s=line.get("time/publish", 0.0),
            validate_s=line.get("time/validate", 0.0),
            checkpoint_s=line.get("time/checkpoint", 0.0),
            num_tokens=int(line.get("tokens/generated", 0)),
            staleness=line.get("staleness/max", 0.0),
        )
        for line in lines
        if line["step"] > 0 and "time/step" in line
    )
