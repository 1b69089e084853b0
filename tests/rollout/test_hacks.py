"""Metrics and notices about rewarded responses, on groups written by hand."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.journal.events import HackSuspected
from roll.journal.store import Journal
from roll.rewards.vocabulary import Vocabulary
from roll.rollout.hacks import HackDetector, inspect
from roll.types import Finish, Group, Message, Score, Segment, Status, Task, Trajectory, Turn


def decode(ids: Sequence[int] | np.ndarray) -> str:
    return "".join(chr(int(id)) for id in ids)


def turn(text: str) -> Turn:
    return Turn(
        observation=np.zeros(1, np.int32),
        sampled=np.array([ord(character) for character in text], np.int32),
        sampler_logprobs=np.zeros(len(text), np.float32),
        versions=np.zeros(len(text), np.int32),
        finish=Finish.STOP,
    )


def group(id: int, *attempts: tuple[str, float], answer: Any = None, prompt: str = "", domain: str = "math") -> Group:
    """Attempts at one task; each is a response and its reward."""
    task = Task(id=f"t{id}", domain=domain, messages=(Message("user", prompt or f"task {id}"),), answer=answer)
    return Group(
        id=id,
        birth=0,
        trajectories=tuple(
            Trajectory(
                task=task,
                sibling=sibling,
                segments=(Segment(turns=(turn(text),)),),
                status=Status.FINISHED,
                score=Score(reward),
            )
            for sibling, (text, reward) in enumerate(attempts)
        ),
    )


def identical(groups: Sequence[Group]) -> float | None:
    return inspect(groups, decode).metrics.get("rewarded/math/identical")


def test_equal_answers_to_one_task_are_not_identical_responses() -> None:
    assert identical([group(id, ("42", 1.0), ("42", 1.0), answer=f"{id}") for id in (42,) * 4]) == 0.0


def test_equal_answers_to_tasks_with_the_same_reference_are_not_identical_responses() -> None:
    assert identical([group(id, ("B", 1.0), ("C", 0.0), answer="B") for id in range(8)]) == 0.0
    assert identical([group(id, ("B", 1.0), answer=["B", "b"]) for id in range(8)]) == 0.0


def test_one_response_rewarded_at_different_references_is_identical() -> None:
    groups = [group(id, ("seven", 1.0), (str(id), 1.0), answer=f"{id}") for id in range(4)]
    assert identical(groups) == 0.5
    assert identical([group(id, ("ok", 1.0)) for id in range(4)]) == 1.0, "without a reference, tasks differ"
    assert identical([group(id, ("ok", 1.0), prompt="the same") for id in range(4)]) == 0.0


def test_partial_credit_for_neighbours_of_the_answer_is_no_identical_response() -> None:
    """Each response is right at one reference and half right at the next: honest, with short answers."""
    groups = [group(id, (str(id), 1.0), (str(id - id % 2), 1.0), answer=f"{id}") for id in range(64)]
    assert identical(groups) == 0.0
    assert identical([group(id, (str(id % 2), 1.0), answer=f"{id}") for id in range(4)]) == 0.0, "two references each"


def test_a_few_constant_responses_at_many_references_are_identical() -> None:
    groups = [group(id, ("abcde"[id % 5], 1.0), (str(id), 1.0), answer=f"{id}") for id in range(50)]
    assert identical(groups) == 0.5, "each of the five letters is rewarded at 10 of 50 references"


def test_responses_without_a_reward_do_not_count() -> None:
    wrong = [group(id, ("ok", 0.0), (f"{id}", 1.0), answer=f"{id}") for id in range(4)]
    assert identical(wrong) == 0.0
    assert identical([group(id, ("ok", 0.0), answer=f"{id}") for id in range(8)]) is None
    assert identical([group(id, ("ok", -1.0), answer=f"{id}") for id in range(8)]) is None
    assert identical([group(id, ("ok", 0.1), answer=f"{id}") for id in range(8)]) == 1.0, "all have the mean"


def test_rewards_that_are_all_negative_are_compared_with_their_mean() -> None:
    groups = [group(id, ("please", -2.0), (f"{id}", -5.0)) for id in range(4)]
    assert identical(groups) == 1.0


def test_too_few_rewarded_responses_have_no_metrics() -> None:
    metrics = inspect([group(id, ("ok", 1.0)) for id in range(3)], decode).metrics
    assert metrics == {"domain/math/reward": 1.0, "domain/math/std": 0.0}


def test_length_and_diversity_are_those_of_rewarded_responses() -> None:
    groups = [group(id, ("abc", 1.0), ("abcdefghij", 0.0), answer=id) for id in range(8)]
    metrics = inspect(groups, decode).metrics
    assert metrics["rewarded/math/length"] == 3.0 and metrics["domain/math/reward"] == 0.5
    assert metrics["rewarded/math/distinct"] == 2 / 16, "ab and bc, eight times"
    assert "rewarded/math/distinct" not in inspect(groups[:7], decode).metrics


def test_diversity_does_not_depend_on_the_number_of_rewarded_responses() -> None:
    few = [group(id, (f"{id}-{id * 7 % 100}", 1.0), answer=id) for id in range(8)]
    many = [*few, *(group(id, (f"{id}-{id * 7 % 100}", 1.0), answer=id) for id in range(8, 80))]
    first, second = (inspect(each, decode).metrics["rewarded/math/distinct"] for each in (few, many))
    assert first == second


def test_attempts_that_the_environment_rewards_are_not_inspected() -> None:
    scored = group(0, ("right", 1.0))
    unscored = replace(scored, trajectories=tuple(replace(each, score=None) for each in scored.trajectories))
    assert inspect([unscored] * 8, decode).metrics == {}


def test_the_share_of_responses_with_words_of_a_grader_is_by_domain() -> None:
    groups = [group(id, ("os._exit(0)" if id % 2 else f"{id}", 1.0), domain="code") for id in range(8)]
    groups += [group(10 + id, ("os._exit(0)", 1.0)) for id in range(8)]
    words = {"code": Vocabulary(["code"]), "math": Vocabulary(["math"])}
    metrics = inspect(groups, decode, words).metrics
    assert metrics["rewarded/code/vocabulary"] == 0.5 and metrics["rewarded/math/vocabulary"] == 0.0


def test_a_notice_has_examples_the_command_and_an_event_in_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        detector = HackDetector(decode=decode, vocabularies={}, journal=journal, directory=Path("runs/my run"))
        groups = [group(id, ("seven", 1.0), (str(id), 0.0), answer=f"{id}") for id in range(4)]
        with caplog.at_level(logging.WARNING):
            counts = [detector.inspect(step, groups)["hacks/notices"] for step in range(1, 6)]
        assert counts == [0.0, 0.0, 1.0, 0.0, 0.0]
        (line,) = caplog.messages
        assert line == (
            "step 3: possible reward hacking in 'math': 100% of the rewarded responses are identical for many tasks "
            "with different references: 'seven'; see `roll samples 'runs/my run' --attempt 0.0,1.0,2.0`"
        )
        (entry,) = journal.events(HackSuspected)
        assert entry.event.step == 3 and entry.event.attempts == ("0.0", "1.0", "2.0")


def test_the_mean_reward_of_a_domain_is_left_to_the_statistics_of_all_attempts(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        detector = HackDetector(decode=decode, vocabularies={}, journal=journal, directory=tmp_path)
        assert set(detector.inspect(1, [group(0, ("1", 1.0))])) == {"domain/math/std", "hacks/notices"}
