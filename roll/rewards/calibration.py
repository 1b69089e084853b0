"""How far a reward agrees with people: its scores of replies that were labelled by hand.

    python -m roll.rewards.calibration labelled.jsonl judge.yaml

A line of the first file is `{"prompt": ..., "reply": ..., "label": ...}`, with `answer`, `messages` and other fields
where the reward reads them; a label is a number from 0 to 1, or true or false. The second file holds a `reward:`
section or list, as a run's source has it.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from roll.config.reward import Reward as RewardSection
from roll.errors import ConfigError, RollError
from roll.preflight import importable
from roll.rewards.base import Reward
from roll.rewards.outcome import Outcome
from roll.types import Call, Message, Task

_UNDER_WAY = 32
_OWN = frozenset({"id", "domain", "prompt", "messages", "answer", "reply", "label"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A reply, and what a person thinks of it."""

    task: Task
    reply: str
    label: float
    """From 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What the replies of one label got."""

    label: float
    count: int
    mean: float
    spread: float
    """Standard deviation of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How scores and labels compare, over the replies that were scored. A reply is called right from `threshold` on."""

    count: int
    failures: tuple[str, ...]
    """Why there is no score, for each reply without one."""
    threshold: float
    right_called_right: int
    right_called_wrong: int
    wrong_called_right: int
    """What a policy would learn to exploit."""
    wrong_called_wrong: int
    accuracy: float
    kappa: float | None
    """Cohen's: agreement beyond chance, 1 at best; None where chance alone would agree."""
    correlation: float | None
    """Pearson's, of scores and labels; None where either is always the same."""
    levels: tuple[Level, ...]

    def table(self) -> str:
        """The report, for a terminal."""
        lines = [
            f"scored {self.count}, failed {len(self.failures)}",
            f"accuracy {self.accuracy:.3f}, kappa {_shown(self.kappa)}, correlation {_shown(self.correlation)}",
            "",
            f"{'':>12}{'called right':>14}{'called wrong':>14}   (right from {self.threshold:g} on)",
            f"{'right':>12}{self.right_called_right:>14}{self.right_called_wrong:>14}",
            f"{'wrong':>12}{self.wrong_called_right:>14}{self.wrong_called_wrong:>14}",
            "",
            f"{'label':>12}{'replies':>14}{'mean score':>14}{'spread':>14}",
            *(f"{level.label:>12g}{level.count:>14}{level.mean:>14.3f}{level.spread:>14.3f}" for level in self.levels),
            *(f"failed: {reason}" for reason in self.failures),
        ]
        return "\n".join(lines)


async def calibrate(
    score: Callable[[Task, str], Awaitable[Outcome]], labelled: Sequence[Labelled], *, threshold: float = 0.5
) -> Calibration:
    """What `score`, such as `Reward.score`, makes of labelled replies. What fails is left out and counted."""
    turns = asyncio.Semaphore(_UNDER_WAY)

    async def asked(entry: Labelled) -> Outcome:
        async with turns:
            return await score(entry.task, entry.reply)

    outcomes = await asyncio.gather(*(asked(entry) for entry in labelled))
    failures = tuple(outcome.reason for outcome in outcomes if outcome.score is None)
    pairs = [
        (outcome.score.value, entry.label)
        for outcome, entry in zip(outcomes, labelled, strict=True)
        if outcome.score is not None
    ]
    if not pairs:
        raise ConfigError(f"calibration: none of {len(labelled)} replies was scored ({failures[:1]}); mend that first")
    return compared(pairs, failures, threshold=threshold)


def compared(pairs: Sequence[tuple[float, float]], failures: tuple[str, ...], *, threshold: float) -> Calibration:
    """The statistics of pairs of score and label."""
    called = [(label >= threshold, score >= threshold) for score, label in pairs]
    num, right = len(pairs), sum(label for label, _ in called)
    called_right = sum(score for _, score in called)
    both = sum(label and score for label, score in called)
    accuracy = sum(label == score for label, score in called) / num
    chance = (right * called_right + (num - right) * (num - called_right)) / num**2
    scores, labels = [score for score, _ in pairs], [label for _, label in pairs]
    constant = len(set(scores)) == 1 or len(set(labels)) == 1
    return Calibration(
        count=num,
        failures=failures,
        threshold=threshold,
        right_called_right=both,
        right_called_wrong=right - both,
        wrong_called_right=called_right - both,
        wrong_called_wrong=num - right - called_right + both,
        accuracy=accuracy,
        kappa=None if chance == 1 else (accuracy - chance) / (1 - chance),
        correlation=None if constant else statistics.correlation(scores, labels),
        levels=_levels(pairs),
    )


def read_labelled(path: str) -> list[Labelled]:
    """The labelled replies of a JSONL file; raises `ConfigError` with a line for each fault."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a JSONL file of labelled replies") from None
    found: list[Labelled] = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                found.append(_labelled(json.loads(line), number))
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{path}:{number}: {error}; write {{prompt or messages, reply, label from 0 to 1}}")
    if faults or not found:
        raise ConfigError("\n".join(faults[:10]) or f"{path}: no replies in it; put one JSON object on each line")
    return found


def _labelled(row: Any, number: int) -> Labelled:
    fields = cast(dict[str, Any], row)
    reply, label = fields["reply"], float(fields["label"])
    if not isinstance(reply, str) or not 0 <= label <= 1:
        raise ValueError(f"a reply is text, a label a number from 0 to 1 (got {reply!r:.60}, {label})")
    messages = fields.get("messages") or [{"role": "user", "content": fields["prompt"]}]
    task = Task(
        id=str(fields.get("id", number)),
        domain=str(fields.get("domain", "labelled")),
        messages=tuple(Message(str(message["role"]), str(message["content"])) for message in messages),
        answer=fields.get("answer"),
        metadata={key: value for key, value in fields.items() if key not in _OWN},
    )
    return Labelled(task=task, reply=reply, label=label)


def _levels(pairs: Sequence[tuple[float, float]]) -> tuple[Level, ...]:
    scores: defaultdict[float, list[float]] = defaultdict(list)
    for score, label in pairs:
        scores[label].append(score)
    return tuple(
        Level(label=label, count=len(found), mean=statistics.fmean(found), spread=statistics.pstdev(found))
        for label, found in sorted(scores.items())
    )


def _shown(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def main(arguments: Sequence[str]) -> int:
    """The command: 0, or 2 where the user has something to mend."""
    try:
        if len(arguments) != 2:
            raise ConfigError("usage: python -m roll.rewards.calibration labelled.jsonl reward.yaml")
        found = asyncio.run(_calibrated(read_labelled(arguments[0]), _reward(arguments[1])))
    except RollError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{found.table()}\n")
    return 0


def _reward(path: str) -> Reward:
    try:
        section: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        named = RewardSection.model_validate(section["reward"])
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no reward in it ({error}); write `reward: {{kind: ...}}`, or a list") from None
    importable(Path(path))
    return Reward.made(Call(named.kind, named.arguments))


async def _calibrated(labelled: Sequence[Labelled], reward: Reward) -> Calibration:
    unready = await reward.start()
    if unready is not None:
        raise ConfigError(unready.reason)
    try:
        return await calibrate(reward.score, labelled)
    finally:
        await reward.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
