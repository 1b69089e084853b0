"""Several rewards on one task: written in a list, weighted, added, and logged one by one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.config.load import LoadedRun, dump, load
from roll.config.reward import Reward
from roll.errors import ConfigError
from roll.explain.run import explain
from roll.preflight import preflight
from roll.rewards.base import score_once
from roll.rewards.result import RewardFault, RewardResult
from roll.types import Score, Span, Spec, Task

TASK = Task(id="t", domain="d", answer="64")
DIARY: list[str] = []
HERE = __name__


def counted(task: Task, response: str, *, scale: float = 1.0) -> Score:
    return Score(scale * len(response), {"letters": float(len(response))}, f"{len(response)} letters")


def spanned(task: Task, response: str) -> Score:
    return Score(1.0, spans=(Span(0, 1, 0.5), Span(1, 2, 0.25)))


def broken(task: Task, response: str) -> float:
    raise ZeroDivisionError("nothing left")


def huge(task: Task, response: str) -> float:
    return 1e6


class Told:
    def __init__(self, *, who: str, offline: bool = False) -> None:
        self.who, self.offline = who, offline

    async def start(self) -> None:
        if self.offline:
            raise ConnectionError("no route")
        DIARY.append(f"{self.who} starts")

    async def stop(self) -> None:
        DIARY.append(f"{self.who} stops")

    async def score(self, task: Task, response: str) -> float:
        return 1.0


def asked(*rewards: dict[str, Any], response: str = "64") -> RewardResult:
    return asyncio.run(score_once(Spec("weighted", {"rewards": list(rewards)}), TASK, response))


def test_the_sum_is_weighted_and_every_reward_is_a_part_with_its_parts_below_it():
    outcome = asked({"kind": "exact"}, {"kind": f"{HERE}:counted", "weight": -0.25, "name": "size", "scale": 3.0})
    # 1 x 1 - 0.25 x (3 x 2 letters)
    assert outcome.score == Score(-0.5, {"exact": 1.0, "size": 6.0, "size/letters": 2.0}, "size: 2 letters")


def test_spans_have_the_weight_of_their_reward():
    outcome = asked({"kind": "exact"}, {"kind": f"{HERE}:spanned", "weight": 2.0, "name": "steps"})
    spans = (Span(0, 1, 1.0), Span(1, 2, 0.5))
    assert outcome.score == Score(3.0, {"exact": 1.0, "steps": 1.75}, spans=spans) and outcome.score.total == 4.5


def test_where_one_has_no_score_there_is_none_and_the_reason_is_its_own():
    outcome = asked({"kind": "exact"}, {"kind": f"{HERE}:broken", "weight": 0.0})
    assert outcome.score is None and outcome.fault is RewardFault.REWARD
    assert outcome.reason.startswith(
        f"reward '{HERE}:broken' on task 't': ZeroDivisionError: nothing left ({__file__}:"
    )


def test_a_task_that_one_of_them_cannot_judge_is_at_fault():
    nothing = Task(id="t", domain="d")
    rewards = {"rewards": [{"kind": f"{HERE}:counted"}, {"kind": "exact"}]}
    assert asyncio.run(score_once(Spec("weighted", rewards), nothing, "64")).fault is RewardFault.TASK


def test_a_sum_out_of_bounds_gives_no_score():
    outcome = asked({"kind": f"{HERE}:huge", "weight": 2.0})
    assert outcome.fault is RewardFault.REWARD and "(got 2000000.0)" in outcome.reason


def test_all_are_started_and_stopped_and_one_that_cannot_start_stops_the_others():
    DIARY.clear()
    one, two = ({"kind": f"{HERE}:Told", "name": who, "who": who} for who in ("one", "two"))
    assert asked(one, two).score == Score(2.0, {"one": 1.0, "two": 1.0})
    assert DIARY == ["one starts", "two starts", "two stops", "one stops"]
    DIARY.clear()
    outcome = asked(one, {**two, "offline": True})
    assert outcome.fault is RewardFault.INFRASTRUCTURE and "ConnectionError: no route" in outcome.reason
    assert DIARY == ["one starts", "one stops"]


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ([], "an empty list"),
        ([{"kind": "exact"}, {"kind": "exact"}], "two are called 'exact'"),
        ([{"kind": "exakt"}], "did you mean 'exact'"),
    ],
)
def test_an_invalid_list_is_a_config_error(rewards: list[dict[str, Any]], said: str):
    with pytest.raises(ConfigError, match=said):
        asked(*rewards)


def read(reward: str) -> Reward:
    return Reward.model_validate(yaml.safe_load(reward))


@pytest.mark.parametrize("written", ["exact", "{kind: exact}"])
def test_a_single_reward_stays_itself(written: str):
    assert (read(written).kind, read(written).kwargs) == ("exact", {})
    assert read(written).model_dump() == {"kind": "exact"}


def test_a_weight_or_a_list_makes_a_weighted_sum():
    exact = {"kind": "exact", "weight": 1.0, "name": "exact"}
    assert read("{kind: exact, weight: 0.5}").kwargs == {"rewards": [{**exact, "weight": 0.5}]}
    found = read("[exact, {kind: length, name: short, low: 1, high: 2}]")
    short = {"kind": "length", "weight": 1.0, "name": "short", "low": 1, "high": 2}
    assert (found.kind, found.kwargs) == ("weighted", {"rewards": [exact, short]})


RUN = """\
model: {shape: {alphabet: "0123456789+=", max_seq_len: 1024}}
algorithm: grpo
tasks:
  - name: sums
    data: {kind: arithmetic, count: 20}
    reward:
      - exact
      - {kind: length, weight: 0.5, low: 1, high: 2}
"""


def loaded(folder: Path, *overrides: str, text: str = RUN) -> LoadedRun:
    (folder / "run.yaml").write_text(text)
    found = load(folder / "run.yaml", overrides)
    preflight(found)
    return found


def test_a_run_with_several_rewards_is_dumped_as_it_was_written_and_explained(tmp_path: Path):
    run = loaded(tmp_path).run
    (tmp_path / "dumped.yaml").write_text(dump(run))
    assert load(tmp_path / "dumped.yaml").run == run
    assert "rewarded by 1 x exact + 0.5 x length(low=1, high=2)" in " ".join(explain(run).split())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      - exact\n", "      - exakt\n", "run.yaml:7: tasks.0.reward.0: no reward named 'exakt'"),
        ("high: 2", "hihg: 2", "run.yaml:8: tasks.0.reward.1.hihg: reward 'length' takes no 'hihg'"),
        ("      - exact\n", "      - length\n", "tasks.0.reward: two rewards are called 'length'; give one of them"),
        ("weight: 0.5", "weight: half", "weight: must be a number (got 'half')"),
    ],
)
def test_an_error_in_the_list_is_reported_with_its_location(tmp_path: Path, old: str, new: str, said: str):
    with pytest.raises(ConfigError) as fault:
        loaded(tmp_path, text=RUN.replace(old, new))
    assert said in str(fault.value)


def test_an_empty_list_of_rewards_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="several rewards are a list with one at least"):
        loaded(tmp_path, "tasks.0.reward=[]")


def test_options_can_override_a_reward_given_as_a_name(tmp_path: Path):
    written = ["tasks.0.reward=length", "tasks.0.reward.low=1", "tasks.0.reward.high=2"]
    reward = loaded(tmp_path, *written).run.tasks[0].reward
    assert reward is not None and (reward.kind, reward.kwargs) == ("length", {"low": 1, "high": 2})
    reward = loaded(tmp_path, "tasks.0.reward.1.weight=2").run.tasks[0].reward
    assert reward is not None and [part.weight for part in reward.rewards] == [1.0, 2.0]
