"""Transcripts for people: what was said in an attempt, what it earned, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from roll.errors import ConfigError
from roll.journal.events import GroupFailed, GroupFiltered, Taken, Updated
from roll.journal.records import Kept, Wanted
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
    """One transcript a trajectory of the run in `directory`, the newest at the end."""
    wanted = Wanted(step=step, last=last, domain=domain, status=_status(status))
    reader = Reader(directory / "journal.db")
    decode = _decoder(directory / "tokenizer")
    given_up = {entry.event.group: entry.event.reason for entry in reader.events(GroupFailed)}
    given_up |= {entry.event.group: f"filtered: {entry.event.reason}" for entry in reader.events(GroupFiltered)}
    begun = _begun(reader)
    for kept in reader.trajectories(wanted):
        fate = f"taken by step {begun}, which has not ended" if kept.step == begun else _fate(kept, given_up)
        yield transcript(kept, decode, fate)
    reader.close()


def transcript(kept: Kept, decode: Decode, fate: str) -> str:
    """One attempt as text; `fate` is what became of it."""
    lines = [
        f"=== group {kept.group}, sibling {kept.sibling} | {kept.domain} | task {kept.task}",
        f"    {_earned(kept)}",
        f"    {fate}",
    ]
    if kept.trajectory is None:
        return "\n".join([*lines, "    its tokens were pruned (journal.keep_steps)"])
    for agent, own in kept.trajectory.by_agent().items():
        who = "" if agent == POLICY else f"{agent}, "
        for number, turn in enumerate(own.turns, 1):
            lines += _exchange(f"{who}turn {number}", turn, decode)
    return "\n".join(lines)


def _earned(kept: Kept) -> str:
    parts = [str(kept.status), "no reward" if kept.reward is None else f"reward {kept.reward:g}"]
    if kept.trajectory is None:
        return " | ".join(parts)
    if kept.trajectory.score and kept.trajectory.score.parts:
        parts.append(", ".join(f"{name} {value:g}" for name, value in kept.trajectory.score.parts.items()))
    agents = kept.trajectory.by_agent()
    if len(agents) > 1:
        parts.append(", ".join(f"{agent} {own.reward:g}" for agent, own in agents.items()))
    if kept.trajectory.reason:
        parts.append(f"reason: {kept.trajectory.reason}")
    return " | ".join([*parts, _versions(kept.trajectory)])


def _versions(trajectory: Trajectory) -> str:
    versions = [int(version) for turn in trajectory.turns for version in turn.versions]
    if not versions:
        return "no tokens"
    oldest, newest = min(versions), max(versions)
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


def _begun(reader: Reader) -> int:
    """The step that has begun and not ended, as the last of a run that goes on or was killed; 0 if there is none."""
    taken = max(((entry.id, entry.event.step) for entry in reader.events(Taken)), default=(0, 0))
    return 0 if any(True for _ in reader.events(Updated, after=taken[0])) else taken[1]


def _fate(kept: Kept, given_up: Mapping[int, str]) -> str:
    if kept.step is not None:
        return f"trained in step {kept.step}"
    if kept.undone:
        return "not trained: its step was rolled back"
    if kept.group in given_up:
        return f"not trained: the group was given up: {given_up[kept.group]}"
    if kept.spare:
        return "not trained: others of its group ended first"
    if not kept.status.valid:
        return f"not trained: {kept.status}"
    return "not trained: its group has not been taken"


def _exchange(which: str, turn: Turn, decode: Decode) -> list[str]:
    earned = f", reward {turn.reward:g}" if turn.reward else ""
    queued = f", queued {turn.queued_s:.1f} s" if turn.queued_s >= 0.05 else ""
    return [
        f"--- {which}: observation ({len(turn.observation)} tokens)",
        decode(turn.observation),
        f"--- {which}: sampled ({len(turn.sampled)} tokens, {turn.finish}{earned}{queued})",
        decode(turn.sampled),
    ]


def _status(name: str | None) -> Status | None:
    if name is None:
        return None
    if name not in list(Status):
        raise ConfigError(f"--status: no status named {name!r}; known: {', '.join(Status)}")
    return Status(name)


def _decoder(directory: Path) -> Decode:
    """Text by the run's own tokenizer; ids where the run has kept none."""
    if not directory.is_dir():
        return lambda ids: " ".join(str(int(id)) for id in ids)
    from transformers import AutoTokenizer

    tokenizer = cast(Any, AutoTokenizer).from_pretrained(str(directory), local_files_only=True)
    return lambda ids: tokenizer.decode([int(id) for id in ids])
