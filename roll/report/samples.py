"""Readable transcripts of attempts: the conversation, the reward, and the outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from roll.errors import ConfigError
from roll.journal.events import AdvantagesAssigned, GroupFailed, GroupFiltered, StepStarted, WeightsUpdated
from roll.journal.records import StoredTrajectory, TrajectoryQuery
from roll.journal.store import Reader
from roll.report.attempts import attempt_row, write_file
from roll.report.html import page, plain, sample_section
from roll.report.journals import open_journal
from roll.types import POLICY, Status, Trajectory, Turn

if TYPE_CHECKING:
    from roll.report.attempts import Decode

_MAX_REFERENCE = 500
"""Characters of a reference answer in a transcript; the rows have all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """Which attempts of a run to show; None means any."""

    step: int | None = None
    domain: str | None = None
    status: str | None = None
    attempts: str | None = None
    """Only these attempts, as `group.sibling`, separated by commas; `last` does not limit them."""
    last: int | None = 5
    """Most attempts to show: the newest, or the first in the order of `sort`."""
    sort: str | None = None
    """`reward`: the lowest first, `-reward`: the highest first; None: in the order they ended."""

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in list(Status):
            raise ConfigError(f"--status: no status named {self.status!r}; known: {', '.join(Status)}")
        if self.sort not in (None, "reward", "-reward"):
            raise ConfigError(f"--sort: no such order (got {self.sort!r}); write reward, or -reward: highest first")
        self.pairs()

    def pairs(self) -> list[tuple[int, int]]:
        """Group and sibling of each of `attempts`."""
        names = [] if self.attempts is None else self.attempts.split(",")
        parts = [name.strip().partition(".") for name in names]
        if any(not (group.isdecimal() and sibling.isdecimal()) for group, _, sibling in parts):
            raise ConfigError(
                f"--attempt: expected group.sibling, such as 12.0,15.3 (got {self.attempts!r}); change it"
            )
        return [(int(group), int(sibling)) for group, _, sibling in parts]


def show(directory: Path, query: SampleQuery | None = None) -> Iterator[str]:
    """One transcript per selected attempt of the run in `directory`."""
    with open_journal(directory) as reader:
        decode = load_decoder(directory)
        for stored, outcome, _ in _select(reader, query or SampleQuery()):
            yield transcript(stored, decode, outcome)


def sample_rows(directory: Path, query: SampleQuery | None = None) -> Iterator[dict[str, Any]]:
    """One row per selected attempt: everything the transcript shows, and where the journal has it."""
    with open_journal(directory) as reader:
        decode = load_decoder(directory, special_tokens=False)
        for stored, outcome, advantage in _select(reader, query or SampleQuery()):
            means = {"group_mean": _group_mean(reader, stored), "advantage": advantage}
            yield {**_row(stored, outcome, decode), **means}


def write_page(directory: Path, query: SampleQuery, output: Path) -> int:
    """Write the selected attempts as an HTML page; returns their number."""
    sections = [sample_section(row) for row in sample_rows(directory, query)]
    write_file(output, page(f"Samples of {directory.resolve().name}", sections), option="--html")
    return len(sections)


def _select(reader: Reader, query: SampleQuery) -> Iterator[tuple[StoredTrajectory, str, float | None]]:
    """The attempts with their outcomes in words, and their mean advantages."""
    reasons = {entry.event.group: entry.event.reason for entry in reader.events(GroupFailed)}
    reasons |= {entry.event.group: f"filtered: {entry.event.reason}" for entry in reader.events(GroupFiltered)}
    unfinished = _unfinished_step(reader)
    advantages = _advantages(reader, {stored.step for stored in _ordered(reader, query, bodies=False)})
    for stored in _ordered(reader, query):
        advantage = advantages.get((stored.step, stored.group, stored.sibling))
        outcome = _outcome(stored, reasons)
        if stored.step == unfinished:
            outcome = f"in training: step {unfinished} has not ended"
        if advantage is not None:
            outcome += f", mean advantage {advantage:+.3g}"
        yield stored, outcome, advantage


def _advantages(reader: Reader, steps: Collection[int | None]) -> dict[tuple[int | None, int, int], float | None]:
    """Mean advantages by step, group and sibling; of a step that was repeated, the newest."""
    events = [entry.event for entry in reader.events(AdvantagesAssigned) if entry.event.step in steps]
    return {
        (event.step, group, sibling): advantage
        for event in events
        for group, siblings in event.advantages.items()
        for sibling, advantage in siblings.items()
    }


def _ordered(reader: Reader, query: SampleQuery, *, bodies: bool = True) -> Iterator[StoredTrajectory]:
    status = None if query.status is None else Status(query.status)
    selected = TrajectoryQuery(step=query.step, domain=query.domain, status=status)
    if pairs := query.pairs():
        for group, sibling in pairs:
            attempts = reader.trajectories(replace(selected, group=group, bodies=bodies))
            yield from (stored for stored in attempts if stored.sibling == sibling)
        return
    if query.sort is None:
        yield from reader.trajectories(replace(selected, last=query.last, bodies=bodies))
        return
    sign = -1.0 if query.sort == "-reward" else 1.0
    rewards = [(stored.reward, stored.id) for stored in reader.trajectories(replace(selected, bodies=False))]
    rewarded = sorted((sign * reward, id) for reward, id in rewards if reward is not None)
    unrewarded = [(0.0, id) for reward, id in rewards if reward is None]
    for _, id in [*rewarded, *unrewarded][: query.last]:
        yield from reader.trajectories(TrajectoryQuery(id=id, bodies=bodies))


def _group_mean(reader: Reader, stored: StoredTrajectory) -> float | None:
    """Mean reward of the attempts that are compared with this one; None if there are none."""
    siblings = reader.trajectories(TrajectoryQuery(group=stored.group, bodies=False))
    rewards = [
        each.reward
        for each in siblings
        if each.reward is not None
        and not each.surplus
        and (each.step, each.rolled_back) == (stored.step, stored.rolled_back)
    ]
    return sum(rewards) / len(rewards) if rewards else None


def _row(stored: StoredTrajectory, outcome: str, decode: Decode) -> dict[str, Any]:
    trajectory = stored.trajectory
    return {
        **(_pruned_row(stored) if trajectory is None else attempt_row(stored.domain, trajectory, decode)),
        "group": stored.group,
        "step": stored.step,
        "outcome": outcome,
        "versions": sorted(stored.versions),
        "num_tokens": stored.num_tokens,
        "pruned": trajectory is None,
        "time": stored.ended,
    }


def _pruned_row(stored: StoredTrajectory) -> dict[str, Any]:
    """The fields of `attempt_row` that outlast the tokens; the others are empty."""
    return {
        "source": stored.domain,
        "id": stored.task,
        "sibling": stored.sibling,
        "status": str(stored.status),
        "reward": stored.reward,
        "parts": {},
        "metrics": {},
        "turns": [],
        **dict.fromkeys(("reason", "prompt", "reference", "response", "comment")),
    }


def transcript(stored: StoredTrajectory, decode: Decode, outcome: str) -> str:
    """One attempt as text, with its outcome in the heading."""
    lines = [
        f"=== group {stored.group}, sibling {stored.sibling} | {stored.domain} | task {stored.task}",
        f"    {_summary(stored)}",
        f"    {outcome}",
    ]
    if stored.trajectory is None:
        return "\n".join([*lines, "    its tokens were pruned (journal.keep_steps)"])
    lines += _notes(stored.trajectory)
    for agent, trajectory in stored.trajectory.by_agent().items():
        prefix = "" if agent == POLICY else f"{agent}, "
        for number, turn in enumerate(trajectory.turns, 1):
            lines += _format_turn(f"{prefix}turn {number}", turn, decode)
    return "\n".join(lines)


def _notes(trajectory: Trajectory) -> list[str]:
    """The reference answer and the reward's comment, where there are any."""
    answer, score = trajectory.task.answer, trajectory.score
    notes = [] if answer is None else [f"reference: {shorten(plain(answer))}"]
    notes += [f"comment: {score.comment}"] if score is not None and score.comment else []
    return [indent(note, "    ") for note in notes]


def shorten(text: str, max_chars: int = _MAX_REFERENCE) -> str:
    """The text, or its beginning and its length."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}... ({len(text)} characters)"


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
        *([f"    rewards within it: {_spans(turn)}"] if turn.span_rewards else []),
    ]


def _spans(turn: Turn) -> str:
    return ", ".join(f"{value:+g} at token {index + 1}" for index, value in turn.span_rewards)


def load_decoder(run: Path, *, special_tokens: bool = True) -> Decode:
    """Decodes with the run's saved tokenizer; shows ids if the run saved none."""
    directory = run / "tokenizer"
    if not directory.is_dir():
        return lambda ids: " ".join(str(int(id)) for id in ids)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    return lambda ids: tokenizer.decode([int(id) for id in ids], skip_special_tokens=not special_tokens)
