"""Attempts as rows: the format of `roll eval --output`, `roll samples --json` and the validation files of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.report.attempts import attempt_row, write_rows
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn


def turn(observation: list[int], sampled: list[int]) -> Turn:
    return Turn(
        observation=np.array(observation, np.int32),
        sampled=np.array(sampled, np.int32),
        sampler_logprobs=np.zeros(len(sampled), np.float32),
        versions=np.zeros(len(sampled), np.int32),
        finish=Finish.STOP,
    )


def row(*turns: Turn, messages: tuple[Message, ...] = (), answer: Any = None, **fields: Any) -> dict[str, Any]:
    attempt = {"sibling": 0, "segments": (Segment(turns=turns),), "status": Status.FINISHED, **fields}
    trajectory = Trajectory(task=Task(id="t", domain="d", messages=messages, answer=answer), **attempt)
    return attempt_row("held_out", trajectory, lambda ids: "".join(chr(id) for id in ids))


def test_a_row_has_prompt_reference_response_reward_parts_comment_and_status():
    found = row(
        turn([97], [98]), messages=(Message("user", "a"),), answer="b", score=Score(1.0, {"form": 0.5}, "matches")
    )
    names = ("prompt", "reference", "response", "reward", "parts", "comment", "status")
    assert {name: found[name] for name in names} == {
        "prompt": "a", "reference": "b", "response": "b", "reward": 1.0, "parts": {"form": 0.5}, "comment": "matches",
        "status": "finished",
    }  # fmt: skip


def test_the_prompt_has_all_messages_or_else_the_first_observation():
    several = (Message("system", "Be brief."), Message("user", "a"))
    assert row(turn([97], [98]), messages=several)["prompt"] == "[system]\nBe brief.\n\n[user]\na"
    assert row(turn([97], [98]), turn([99], [100]))["prompt"] == "a"
    assert row(turn([97], [98]), turn([99], [100]))["response"] == "d"


def test_a_failed_attempt_has_no_reward_and_may_have_no_turns():
    found = row(status=Status.ENV_FAILED, reason="no room")
    assert (found["reward"], found["response"], found["prompt"], found["reason"]) == (None, "", "", "no room")


def test_rows_are_json_lines_also_with_a_reference_that_is_not(tmp_path: Path):
    write_rows(tmp_path / "rows.jsonl", [row(answer=frozenset({4}))])
    assert json.loads((tmp_path / "rows.jsonl").read_text())["reference"] == "frozenset({4})"
    with pytest.raises(ConfigError, match=r"--output .*: cannot be written \(Is a directory\); give another path"):
        write_rows(tmp_path, [])
