"""What is read from the directory of a run, and runs that cannot be planned from."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import GroupAdmitted, RunStarted
from roll.journal.store import Journal
from roll.plan.check import check_run_plan, format_check
from roll.plan.observations import observe_run
from roll.plan.plan import PlanRequest, make_plan
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

RUN = """
executor: ray
steps: 2
model: {path: models/Qwen2.5-1.5B-Instruct}
algorithm: {recipe: grpo}
tasks:
  - {name: sums, data: {kind: arithmetic}, reward: exact}
rollout: {groups_per_step: 2, group_size: 2, max_seq_len: 2048, max_new_tokens: 1024}
actor_infer: {max_num_seqs: 8}
"""


def turn(observed: int, sampled: int, *, versions: tuple[int, ...] = (0,), finish: Finish = Finish.STOP) -> Turn:
    tags = np.resize(np.array(versions, np.int32), sampled)
    return Turn(
        observation=np.zeros(observed, np.int32),
        sampled=np.zeros(sampled, np.int32),
        sampler_logprobs=np.zeros(sampled, np.float32),
        versions=np.sort(tags),
        finish=finish,
        generated_s=0.02,
        queued_s=0.005,
        waited_s=0.01,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run of two steps with two groups of two attempts each."""
    directory = tmp_path / "runs" / "recorded"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(RUN, encoding="utf-8")
    line = {"time/wait": 0.1, "time/score": 0.05, "time/update": 0.2, "time/publish": 0.1, "tokens/generated": 96}
    lines = [{"step": step, "time/step": 0.5, "staleness/max": 0.0, **line} for step in (1, 2)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    with closing(Journal(directory / "journal.db")) as journal:
        journal.record(RunStarted(config_digest="x"))
        journal.record_span("generator-0", "generate", 0.0, 1.0)
        for group in range(4):
            journal.record(GroupAdmitted(group=group, task=f"{group}", domain="sums", birth=0))
            for sibling in range(2):
                turns = turn(5, 8), turn(3, 16, versions=(0, 1), finish=Finish.LENGTH)
                journal.record_trajectory(group, _trajectory(group, sibling, turns))
    return directory


def _trajectory(group: int, sibling: int, turns: tuple[Turn, ...]) -> Trajectory:
    task = Task(id=f"{group}", domain="sums", messages=(), seed=group)
    return Trajectory(
        task=task, sibling=sibling, segments=(Segment(turns=turns),), status=Status.FINISHED, score=Score(1.0)
    )


def test_turns_attempts_and_steps_are_read(directory: Path) -> None:
    _, observed = observe_run(directory)
    assert (observed.num_generators, observed.slots, len(observed.attempts)) == (1, 8, 8)
    assert [each.turn for each in observed.turns] == [0, 1] * 8
    first, second = observed.turns[:2]
    assert (first.context, second.context, first.num_tokens, second.num_tokens) == (5, 16, 8, 16)
    assert not first.censored and second.censored and second.interrupted and not first.interrupted
    assert first.end - first.start == pytest.approx(0.015, abs=1e-5) and second.start - first.end == pytest.approx(
        0.015, abs=1e-5
    )
    assert observed.attempts[0].waits_s == (0.01, 0.01)
    assert [each.other_s for each in observed.steps] == pytest.approx([0.05, 0.05])


def test_a_run_is_compared_with_its_prediction(directory: Path) -> None:
    check = check_run_plan(directory)
    text = format_check(check)
    assert check.num_steps == 1 and check.measured_s == 0.5
    assert check.predicted.phases_s["update"] == pytest.approx(0.25, rel=0.1)
    assert check.predicted.phases_s["publish"] == pytest.approx(0.1, rel=0.1)
    assert "predicted  measured" in text and "greatest staleness: predicted 0, measured 0" in text
    assert "50.0 % reached max_new_tokens" in text


def request_for(tmp_path: Path, text: str, source: Path) -> PlanRequest:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return PlanRequest(path=path, cluster="1x2xH200", source=source)


def test_a_journal_of_another_model_is_refused(directory: Path, tmp_path: Path) -> None:
    request = request_for(tmp_path, RUN.replace("1.5B", "7B"), directory)
    with pytest.raises(ConfigError, match=r"^--from .*: a run of another model \(models/Qwen2.5-1.5B-Instruct, not "):
        make_plan(request)


def test_lengths_that_were_cut_earlier_are_refused(directory: Path, tmp_path: Path) -> None:
    request = request_for(tmp_path, RUN.replace("max_new_tokens: 1024", "max_new_tokens: 2000"), directory)
    with pytest.raises(ConfigError, match=r"^--from .*: its responses were cut at 1024 tokens, those of .* at 2000"):
        make_plan(request)
