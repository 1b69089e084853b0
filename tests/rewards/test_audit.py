"""The audit of a reward: references must score 1, cheats nothing."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from roll.rewards import cheats
from roll.rewards.audit import AuditSubject, RewardAudit, audit_reward, built_in_name, cheats_of, sample
from roll.rewards.base import RewardAdapter
from roll.rewards.references import references
from roll.rewards.result import RewardFault, RewardResult
from roll.sandbox.level import TRUSTED_CODE
from roll.types import Message, Score, Spec, Task


def tasks_of(rows: Sequence[dict[str, Any]]) -> list[Task]:
    return [
        Task(id=f"row-{index}", domain="d", messages=(Message("user", f"Task {index}."),), **row)
        for index, row in enumerate(rows)
    ]


def audit(kind: str, tasks: Sequence[Task], **options: Any) -> RewardAudit:
    async def run() -> RewardAudit:
        reward = RewardAdapter.load(Spec(kind, options))
        assert await reward.start() is None
        subject = AuditSubject(domain="d", where="d.jsonl", reward=kind, kind=kind, tasks=tasks, score=reward.score)
        try:
            return await audit_reward(subject)
        finally:
            await reward.stop()

    return asyncio.run(run())


def audit_function(
    function: Callable[[Task, str], float], tasks: Sequence[Task], kind: str = "own:score"
) -> RewardAudit:
    """The audit of a function."""

    async def score(task: Task, response: str) -> RewardResult:
        return RewardResult.from_score(Score(function(task, response)))

    subject = AuditSubject(domain="d", where="d.jsonl", reward="own", kind=kind, tasks=tasks, score=score)
    return asyncio.run(audit_reward(subject))


NUMBERS = tasks_of([{"answer": answer} for answer in ("72", "-5", "1/2", "0.25")])
OPTIONS = tasks_of(
    [
        {"answer": answer, "metadata": {"options": ["a river", "a hill", "the sea", "a road"]}}
        for answer in ("A", "B", "C", "D")
    ]
)
PROGRAM = {"tests": ["assert double(2) == 4", "assert double(-3) == -6"], "reference": "def double(x): return 2 * x"}


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [
        ("exact", NUMBERS),
        ("math", NUMBERS),
        ("choice", OPTIONS),
        ("f1", tasks_of([{"answer": ["Paris", "City of Light"]}, {"answer": "the blue whale"}])),
        ("json_schema", tasks_of([{"metadata": {"schema": {"type": "object", "required": ["x"]}}}])),
        ("ifeval", tasks_of([{"metadata": {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}}])),
    ],
)
def test_a_sound_reward_has_no_findings(kind: str, tasks: list[Task]) -> None:
    outcome = audit(kind, tasks)
    assert outcome.findings == [], outcome
    assert outcome.tasks == len(tasks) and outcome.passed == outcome.references
    assert {"empty", "blanks", "thinking only"} <= outcome.cheats.keys()
    assert outcome.verdict.startswith("ok")


def test_programs_that_pass_nothing_score_nothing() -> None:
    outcome = audit("code", tasks_of([{"metadata": PROGRAM}]), sandbox=TRUSTED_CODE)
    assert outcome.findings == [] and outcome.passed == 1
    assert {"pass", "exit", "always equal", "patched checks", "returned argument"} <= outcome.cheats.keys()


def test_a_row_whose_reference_fails_is_listed_with_its_file_and_id() -> None:
    tasks = tasks_of([{"answer": "2"}, {"answer": "3 + 4 = 7, so\n#### 7"}])
    outcome = audit_function(lambda task, response: float(response == f"\\boxed{{{task.answer}}}"), tasks, kind="math")
    (row,) = outcome.failing
    assert (row.where, row.id, row.origin, row.score) == ("d.jsonl", "row-1", "its answer", 0.0)
    assert outcome.passed == 1 and outcome.verdict == "1 of 2 tasks fail with their own reference"


def test_a_worked_solution_must_score_as_well() -> None:
    tasks = tasks_of([{"answer": "2", "metadata": {"worked": "1 + 1 is 3, so \\boxed{3}"}}])
    (row,) = audit_function(lambda task, response: float(response == "\\boxed{2}"), tasks, kind="math").failing
    assert row.origin == "its worked" and "its worked scores 0" in str(row)


def test_a_reply_of_a_chat_is_a_reference() -> None:
    task = Task(id="chat", domain="d", answer="2", reply=Message("assistant", "It is 3."))
    assert audit("exact", [task]).failing[0].origin == "the assistant's last message"


def test_a_task_that_cannot_be_scored_is_listed_with_the_reason() -> None:
    tasks = tasks_of([{"answer": "A"}, {"answer": "Z", "metadata": {"options": ["x", "y"]}}])
    (row,) = audit("choice", tasks).failing
    assert row.id == "row-1" and row.score is None and "none of its options" in row.reason
    (row,) = audit("exact", tasks_of([{}])).failing
    assert row.origin == "" and "no answer to compare with" in row.reason


def test_a_reward_that_looks_for_the_answer_anywhere_is_cheated() -> None:
    outcome = audit_function(lambda task, response: float(str(task.answer) in response), NUMBERS)
    assert outcome.cheated["two answers"] == outcome.cheated["answer in thinking"] == len(NUMBERS)
    assert outcome.cheated_rows == tuple(task.id for task in NUMBERS)
    assert "cheats that score" in outcome.verdict


def test_a_reward_that_accepts_blank_responses_is_cheated() -> None:
    outcome = audit_function(lambda task, response: float(response.strip() in ("", str(task.answer))), NUMBERS)
    assert list(outcome.cheated) == ["empty", "blanks"]
    assert audit("regex", tasks_of([{"metadata": {"pattern": ".*"}}])).cheated.keys() >= {"empty"}


def test_every_option_at_once_is_a_cheat() -> None:
    def lenient(task: Task, response: str) -> float:
        return float(str(task.answer) in response.replace(".", " ").replace(",", " ").split())

    tasks = [task for task in OPTIONS if len(str(task.answer)) == 1]
    assert audit_function(lenient, tasks).cheated["every option"] == len(tasks)


def test_a_prompt_that_is_right_now_and_then_is_chance() -> None:
    rows = [{"answer": str(index)} for index in (0, 11, 12, 13, 14, 15, 16, 17, 18, 19)]

    def last_number(task: Task, response: str) -> float:
        return float(response.rstrip(".").rpartition(" ")[2] == str(task.answer))

    outcome = audit_function(last_number, tasks_of(rows))
    assert outcome.by_chance == {"prompt": 1} and "prompt" not in outcome.cheated
    always = tasks_of([{"answer": str(index)} for index in range(10)])
    assert audit_function(last_number, always).cheated["prompt"] == 10


def test_a_reward_of_ones_own_that_no_reference_earns_is_not_judged() -> None:
    outcome = audit_function(lambda task, response: 0.9, NUMBERS)
    assert outcome.findings == [] and outcome.verdict == "not judged: no reference scores exactly 1"
    assert "not judged" in audit_function(lambda task, response: float(len(response)), NUMBERS).verdict
    outcome = audit_function(lambda task, response: 1.0, tasks_of([{}]))
    assert outcome.verdict == "not judged: no task gives a reference"


def test_a_cheat_without_a_score_is_counted_and_no_finding() -> None:
    async def score(task: Task, response: str) -> RewardResult:
        if not response.strip():
            return RewardResult.failure(RewardFault.REWARD, "division by zero")
        return RewardResult.from_score(Score(float(response == task.answer)))

    subject = AuditSubject(domain="d", where="", reward="own", kind="own:score", tasks=NUMBERS, score=score)
    outcome = asyncio.run(audit_reward(subject))
    assert outcome.findings == [] and outcome.unscored >= len(NUMBERS) and "without a score" in outcome.verdict


def test_no_score_starts_after_the_deadline() -> None:
    responses: list[str] = []

    async def score(task: Task, response: str) -> RewardResult:
        responses.append(response)
        return RewardResult.from_score(Score(float(response == task.answer)))

    ticks = itertools.count()
    subject = AuditSubject(domain="d", where="", reward="exact", kind="exact", tasks=NUMBERS, score=score)
    outcome = asyncio.run(audit_reward(subject, deadline=10.0, clock=lambda: float(next(ticks))))
    assert 0 < len(responses) <= 10 and not outcome.complete and outcome.findings == []


def test_a_score_that_never_ends_is_cancelled_after_the_deadline() -> None:
    started: list[str] = []

    async def score(task: Task, response: str) -> RewardResult:
        started.append(response)
        await asyncio.Event().wait()
        raise AssertionError

    subject = AuditSubject(domain="d", where="", reward="exact", kind="exact", tasks=NUMBERS, score=score)
    outcome = asyncio.run(audit_reward(subject, deadline=time.monotonic() + 0.5, grace_s=0.1))
    assert started and outcome.tasks == 0 and not outcome.complete and outcome.findings == []


def test_another_answer_differs_in_value() -> None:
    tasks = tasks_of([{"answer": "1,000"}, {"answer": "1000.0"}, {"answer": "$1000$"}, {"answer": "7"}])
    subject = AuditSubject(domain="d", where="", reward="math", kind="math", tasks=tasks)
    assert cheats_of(subject, 0)["another answer"] == ("\\boxed{7}",)
    assert "another answer" not in cheats_of(AuditSubject(**{**fields(subject), "tasks": tasks[:3]}), 0)


def fields(subject: AuditSubject) -> dict[str, Any]:
    return {"domain": subject.domain, "where": subject.where, "reward": subject.reward, "kind": subject.kind}


def test_the_tested_function_of_a_program_is_guessed_from_its_tests() -> None:
    assert cheats.entry_point(Task(id="t", domain="d", metadata=PROGRAM)) == "double"
    assert (
        cheats.entry_point(Task(id="t", domain="d", metadata={"entry_point": "f", "tests": "assert g() == 1"})) == "f"
    )
    assert cheats.entry_point(Task(id="t", domain="d", metadata={"tests": "def check(candidate): ..."})) == "solution"


def test_a_solution_that_continues_the_prompt_is_a_reference() -> None:
    prompt = Message("user", "def double(x):")
    task = Task(id="t", domain="d", messages=(prompt,), metadata={"canonical_solution": "    return 2 * x"})
    (reference,) = references("code", task)
    assert reference.forms[1] == "```python\ndef double(x):\n    return 2 * x\n```"


def test_the_sample_is_evenly_spaced_and_never_repeats_a_task() -> None:
    assert sample(range(100), 4) == [0, 25, 50, 75]
    assert sample(range(3), 50) == [0, 1, 2] == sample(range(3), None)
    assert sample((), 5) == sample(range(9), 0) == []


def test_a_built_in_reward_is_recognised_by_its_import_path() -> None:
    assert built_in_name("roll.rewards.text:exact") == "exact" == built_in_name("exact")
    assert built_in_name("my_lab:exact") == "my_lab:exact"
