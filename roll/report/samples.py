"""Readable transcripts of attempts: the conversation, the reward, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roll.errors import ConfigError
from roll.journal.events import GroupFailed, GroupFiltered, StepStarted, WeightsUpdated
from roll.journal.records import StoredTrajectory, TrajectoryQuery
from roll.journal.store import Reader
from roll.types import POLICY, Status, Trajectory, Turn

if TYPE_CHECKING:
    from roll.types import Ints

    Decode = Callable[[Ints], str]


def show(
    directory: Path,
    *,
    step: int | None = None,
    last: int | None = 5,
    domain: str | None = None,
    status: str | None = None,
) -> Iterator[str]:
    """One transcript per trajectory of the run in `directory`, the newest last."""
    query = TrajectoryQuery(step=step, last=last, domain=domain, status=_parse_status(status))
    reader = Reader(directory / "journal.db")
    decode = _decoder(directory / "tokenizer")
    reasons = {entry.event.group: entry.event.reason for entry in reader.events(GroupFailed)}
    reasons |= {entry.event.group: f"filtered: {entry.event.reason}" for entry in reader.events(GroupFiltered)}
    unfinished = _unfinished_step(reader)
    for stored in reader.trajectories(query):
        training = stored.step == unfinished
        outcome = f"in training: step {unfinished} has not ended" if training else _outcome(stored, reasons)
        yield transcript(stored, decode, outcome)
    reader.close()


def transcript(stored: StoredTrajectory, decode: Decode, outcome: str) -> str:
    """One attempt as text, with its outcome in the heading."""
    lines = [
        f"=== group {stored.group}, sibling {stored.sibling} | {stored.domain} | task {stored.task}",
        f"    {_summary(stored)}",
        f"    {outcome}",
    ]
    if stored.trajectory is None:
        return "\n".join([*lines, "    its tokens were pruned (journal.keep_steps)"])
    for agent, trajectory in stored.trajectory.by_agent().items():
        prefix = "" if agent == POLICY else f"{agent}, "
        for number, turn in enumerate(trajectory.turns, 1):
            lines += _format_turn(f"{prefix}turn {number}", turn, decode)
    return "\n".join(lines)


def _summary(stored: StoredTrajectory) -> str:
    parts = [str(stored.status), "no reward" if stored.reward is None else f"reward {stored.reward:g}"]
    if stored.trajectory is None:
        return " | ".join(parts)
    if stored.trajectory.score and stored.trajectory.score.parts:
        parts.append(", ".join(f"{name} {value:g}" for name, value in stored.trajectory.score.parts.items()))
    agents = stored.trajectory.by_agent()
    if len(agents) > 1:
        parts.append(", ".join(f"{agent} {trajectory.reward:g}" for agent, trajectory in agents.items()))
    if stored.trajectory.reason:
        parts.append(f"reason: {stored.trajectory.reason}")
    return " | ".join([*parts, _versions(stored.trajectory)])


def _versions(trajectory: Trajectory) -> str:
    versions = [int(version) for turn in trajectory.turns for version in turn.versions]
    if not versions:
        return "no tokens"
    oldest, newest = min(versions), max(versions)
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


def _unfinished_step(reader: Reader) -> int:
    """The step that has started and not ended, in a run that still runs or was killed; 0 if there is none."""
    id, step = max(((entry.id, entry.event.step) for entry in reader.events(StepStarted)), default=(0, 0))
    return 0 if any(True for _ in reader.events(WeightsUpdated, after=id)) else step


def _outcome(stored: StoredTrajectory, reasons: Mapping[int, str]) -> str:
    """The outcome in words; `reasons` has those of the abandoned and filtered groups."""
    if stored.step is not None:
        return f"trained in step {stored.step}"
    if stored.rolled_back:
        return "not trained: its step was rolled back"
    if stored.group in reasons:
        return f"not trained: the group was abandoned: {reasons[stored.group]}"
    if stored.surplus:
        return "not trained: others of its group ended first"
    if not stored.status.valid:
        return f"not trained: {stored.status}"
    return "not trained: no step has used its group yet"


def _format_turn(heading: str, turn: Turn, decode: Decode) -> list[str]:
    reward = f", reward {turn.reward:g}" if turn.reward else ""
    queued = f", queued {turn.queued_s:.1f} s" if turn.queued_s >= 0.05 else ""
    return [
        f"--- {heading}: observation ({len(turn.observation)} tokens)",
        decode(turn.observation),
        f"--- {heading}: sampled ({len(turn.sampled)} tokens, {turn.finish}{reward}{queued})",
        decode(turn.sampled),
    ]


def _parse_status(name: str | None) -> Status | None:
    if name is None:
        return None
    if name not in list(Status):
        raise ConfigError(f"--status: no status named {name!r}; known: {', '.join(Status)}")
    return Status(name)


def _decoder(directory: Path) -> Decode:
    """Decodes with the run's saved tokenizer; shows ids if the run saved none."""
    if not directory.is_dir():
        return lambda ids: " ".join(str(int(id)) for id in ids)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    return lambda ids: tokenizer.decode([int(id) for id in ids])
