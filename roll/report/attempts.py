"""One attempt as a row of plain values: the format of `roll samples --json` and `roll eval --output`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.errors import ConfigError
from roll.types import Trajectory

if TYPE_CHECKING:
    from roll.types import Ints

    Decode = Callable[[Ints], str]


def attempt_row(source: str, trajectory: Trajectory, decode: Decode) -> dict[str, Any]:
    """The attempt with its prompt, reference, response, reward and turns; `decode` leaves out special tokens."""
    score, turns = trajectory.score, trajectory.turns
    return {
        "source": source,
        "id": trajectory.task.id,
        "sibling": trajectory.sibling,
        "status": str(trajectory.status),
        "reason": trajectory.reason,
        "prompt": _prompt(trajectory, decode),
        "reference": trajectory.task.answer,
        "response": decode(turns[-1].sampled) if turns else "",
        "reward": trajectory.reward if trajectory.status.valid else None,
        "parts": {} if score is None else score.parts,
        "comment": "" if score is None else score.comment,
        "metrics": trajectory.metrics,
        "turns": _turns(trajectory, decode),
    }


def check_output(output: Path, *, option: str = "--output") -> None:
    """Raise `ConfigError` if the file of a command's option cannot be written there."""
    if not output.parent.is_dir() or output.is_dir():
        what = "is a directory" if output.is_dir() else f"no such directory: {output.parent}"
        raise ConfigError(f"{option} {output}: cannot be written ({what}); give another path")


def write_rows(output: Path, rows: Iterable[dict[str, Any]], *, option: str = "--output") -> None:
    """Write one line of JSON per row to the file of a command's option."""
    write_file(output, "".join(to_line(row) for row in rows), option=option)


def write_file(output: Path, text: str, *, option: str) -> None:
    """Write the file of a command's option."""
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"{option} {output}: cannot be written ({error.strerror}); give another path") from None


def to_line(row: dict[str, Any]) -> str:
    """One line of JSON; a reference that JSON does not have, such as a set, is its text."""
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


def _prompt(trajectory: Trajectory, decode: Decode) -> str:
    """The messages of the task; without any, the environment's first observation."""
    messages = trajectory.task.messages
    if not messages:
        return decode(trajectory.turns[0].observation) if trajectory.turns else ""
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)


def _turns(trajectory: Trajectory, decode: Decode) -> list[dict[str, Any]]:
    return [
        {
            "agent": segment.agent,
            "observation": decode(turn.observation),
            "response": decode(turn.sampled),
            "reward": turn.reward,
            "span_rewards": [[index, value] for index, value in turn.span_rewards],
            "finish": str(turn.finish),
            "num_tokens": len(turn.sampled),
        }
        for segment in trajectory.segments
        for turn in segment.turns
    ]
