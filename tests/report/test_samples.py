from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import AdvantagesAssigned, GroupFailed, RolledBack, StepStarted, WeightsUpdated
from roll.journal.store import Journal
from roll.report.samples import SampleQuery, sample_rows, show, write_page
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn


def turn(observation: list[int], sampled: list[int], *, version: int = 3, reward: float = 0.0) -> Turn:
    return Turn(
        observation=np.array(observation, np.int32),
        sampled=np.array(sampled, np.int32),
        sampler_logprobs=np.zeros(len(sampled), np.float32),
        versions=np.full(len(sampled), version, np.int32),
        finish=Finish.STOP,
        reward=reward,
    )


def attempt(*turns: Turn, status: Status = Status.FINISHED, domain: str = "math", reason: str = "") -> Trajectory:
    return Trajectory(
        task=Task(
            id="t-7", domain=domain, messages=(Message("user", "1 < 2?"),), answer={"one of": ["yes", "<b>1</b>"]}
        ),
        sibling=1,
        segments=(Segment(turns=turns),),
        status=status,
        score=Score(1.0, {"format": 0.5}, "Correct.\nBut long.") if status.valid else None,
        reason=reason,
    )


def test_a_transcript_shows_the_conversation_the_reward_and_the_outcome(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(4, attempt(turn([1, 2], [3]), turn([4], [5, 6], version=4, reward=0.25)))
    journal.record(StepStarted(step=9, groups=(4,)))
    journal.record(WeightsUpdated(step=9, refused=False))
    journal.close()
    (text,) = show(tmp_path)
    assert text.splitlines() == [
        "=== group 4, sibling 1 | math | task t-7",
        "    finished | reward 1.25 | format 0.5 | versions 3 to 4",
        "    trained in step 9",
        '    reference: {"one of": ["yes", "<b>1</b>"]}',
        "    comment: Correct.",
        "    But long.",
        "--- turn 1: observation (2 tokens)",
        "1 2",
        "--- turn 1: sampled (1 tokens, stop)",
        "3",
        "--- turn 2: observation (1 tokens)",
        "4",
        "--- turn 2: sampled (2 tokens, stop, reward 0.25)",
        "5 6",
    ]


def test_rewards_within_a_response_are_shown_with_their_tokens(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(4, attempt(replace(turn([1], [5, 6]), span_rewards=((0, -0.5), (1, 0.25)))))
    journal.close()
    (text,) = show(tmp_path)
    assert text.splitlines()[-1] == "    rewards within it: -0.5 at token 1, +0.25 at token 2"
    (row,) = sample_rows(tmp_path)
    assert row["turns"][0]["span_rewards"] == [[0, -0.5], [1, 0.25]] and row["reward"] == 0.75


def test_a_transcript_shows_how_long_a_reply_was_queued(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(
        4, attempt(replace(turn([1], [3]), queued_s=1.26), replace(turn([4], [5]), queued_s=0.01))
    )
    journal.close()
    (text,) = show(tmp_path)
    assert "sampled (1 tokens, stop, queued 1.3 s)" in text and text.count("queued") == 1  # moments are not worth it


def test_text_is_decoded_with_the_saved_tokenizer(tmp_path: Path):
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    characters = Tokenizer(models.WordLevel({"1": 0, "+": 1, "=": 2, "2": 3, "?": 4}, unk_token="?"))
    characters.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=characters, unk_token="?").save_pretrained(tmp_path / "tokenizer")
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt(turn([0, 1, 0, 2], [3])))
    journal.close()
    (text,) = show(tmp_path)
    assert "\n1+1=\n" in text and text.endswith("\n2")


def test_an_untrained_attempt_shows_the_reason(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt(status=Status.ENV_FAILED, reason="env maze: KeyError: 'x'"))
    journal.record_trajectory(2, attempt(turn([1], [2]), status=Status.ABORTED))
    journal.record(GroupFailed(group=2, reason="3 attempts failed"))
    journal.record_trajectory(3, attempt(turn([1], [2])))
    journal.record_trajectory(4, attempt(turn([1], [2])))
    journal.record(StepStarted(step=5, groups=(4,)))
    journal.record(RolledBack(to_step=4, reason="killed"))
    journal.close()
    first, second, third, fourth = show(tmp_path)
    assert "env_failed | no reward | reason: env maze: KeyError: 'x' | no tokens" in first
    assert "not trained: env_failed" in first
    assert "not trained: the group was abandoned: 3 attempts failed" in second
    assert "not trained: no step has used its group yet" in third
    assert "not trained: its step was rolled back" in fourth


def test_a_step_that_has_not_ended_has_trained_on_nothing_yet(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for step in (1, 2):
        journal.record_trajectory(step, attempt(turn([1], [2])))
        journal.record(StepStarted(step=step, groups=(step,)))
        if step == 1:
            journal.record(WeightsUpdated(step=step, refused=False))
    journal.close()
    first, second = show(tmp_path)
    assert "trained in step 1" in first
    assert "in training: step 2 has not ended" in second


def test_pruned_tokens_are_reported_as_pruned(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt(turn([1], [2])))
    journal.record(StepStarted(step=1, groups=(1,)))
    journal.record(WeightsUpdated(step=1, refused=False))
    journal.prune(before_step=2)
    journal.close()
    (text,) = show(tmp_path)
    assert "reward 1" in text and "trained in step 1" in text and "pruned" in text


def test_filters_select_and_the_newest_come_last(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for group in range(1, 9):
        journal.record_trajectory(group, attempt(turn([1], [2]), domain="code" if group == 2 else "math"))
    journal.close()

    def groups(**wanted: Any) -> list[str]:
        return [text.split(",")[0].removeprefix("=== group ") for text in show(tmp_path, SampleQuery(**wanted))]

    assert groups() == ["4", "5", "6", "7", "8"]
    assert groups(last=2) == ["7", "8"]
    assert groups(domain="code") == ["2"]
    assert groups(status="truncated") == []


def test_attempts_are_selected_by_group_and_sibling_in_the_order_of_the_option(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for group in range(12):
        for sibling in range(2):
            journal.record_trajectory(group, replace(attempt(turn([1], [3])), sibling=sibling))
    journal.close()
    rows = sample_rows(tmp_path, SampleQuery(attempts="11.1, 2.0,3.0,4.0,5.0,6.0,7.0"))
    assert [(row["group"], row["sibling"]) for row in rows] == [(11, 1), *((group, 0) for group in range(2, 8))]
    assert list(show(tmp_path, SampleQuery(attempts="99.0"))) == []
    for wrong in ("11", "a.b", "1.0,", ""):
        with pytest.raises(ConfigError, match=r"--attempt: expected group\.sibling"):
            SampleQuery(attempts=wrong)


def test_a_directory_without_a_run_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere: no such directory; give the directory of a run"):
        list(show(tmp_path / "nowhere"))


def test_an_unknown_status_names_the_known_ones(tmp_path: Path):
    with pytest.raises(ConfigError, match="no status named 'finish'; known: finished, truncated"):
        list(show(tmp_path, SampleQuery(status="finish")))


def test_a_transcript_of_several_agents_names_the_agent_of_each_turn_and_its_reward(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    ann = Segment(turns=(turn([1], [2], reward=1.0), turn([3], [4], reward=-0.5)), agent="ann")
    bob = Segment(turns=(turn([5], [6], reward=0.25),), agent="bob")
    journal.record_trajectory(4, replace(attempt(), segments=(ann, bob), score=None))
    journal.close()
    (text,) = show(tmp_path)
    said = text.splitlines()
    assert said[1] == "    finished | reward 0.75 | ann 0.5, bob 0.25 | version 3"
    assert [line for line in said if "sampled" in line] == [
        "--- ann, turn 1: sampled (1 tokens, stop, reward 1)",
        "--- ann, turn 2: sampled (1 tokens, stop, reward -0.5)",
        "--- bob, turn 1: sampled (1 tokens, stop, reward 0.25)",
    ]


def scored(reward: float | None, sibling: int, *turns: Turn) -> Trajectory:
    status = Status.FINISHED if reward is not None else Status.ENV_FAILED
    score = None if reward is None else Score(reward, {"format": 0.5}, "<script>alert(1)</script>")
    return replace(attempt(*turns or (turn([1], [2]),), status=status), sibling=sibling, score=score)


def test_rewards_sort_in_either_order_over_the_whole_run_and_failures_come_last(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for sibling, reward in enumerate((0.5, None, -1.0, 2.0, 0.5)):
        journal.record_trajectory(1, scored(reward, sibling))
    journal.close()

    def siblings(sort: str, last: int = 99) -> list[int]:
        return [row["sibling"] for row in sample_rows(tmp_path, SampleQuery(sort=sort, last=last))]

    assert siblings("reward") == [2, 0, 4, 3, 1] and siblings("reward", last=2) == [2, 0]
    assert siblings("-reward") == [3, 0, 4, 2, 1] and siblings("-reward", last=1) == [3]
    with pytest.raises(ConfigError, match=r"--sort: no such order \(got 'length'\); write reward, or -reward"):
        siblings("length")


def test_a_row_has_what_the_transcript_shows_and_the_mean_of_its_group(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(4, scored(1.0, 0, turn([1, 2], [3]), turn([4], [5, 6], version=4, reward=0.25)))
    journal.record_trajectory(4, scored(0.25, 1))
    journal.record_trajectory(4, scored(None, 2))
    journal.record(StepStarted(step=9, groups=(4,)))
    journal.record(AdvantagesAssigned(step=9, advantages={4: {0: 0.75, 1: None}}))
    journal.record(WeightsUpdated(step=9, refused=False))
    journal.flush()
    row, *others = sample_rows(tmp_path)  # while the run writes
    assert [other["advantage"] for other in others] == [None, None]
    journal.close()
    assert row.pop("time") > 1e9
    told = {"agent": "policy", "finish": "stop"}
    assert row == {
        "source": "math", "id": "t-7", "sibling": 0, "status": "finished", "reason": "", "prompt": "1 < 2?",
        "reference": {"one of": ["yes", "<b>1</b>"]}, "response": "5 6", "reward": 1.25, "parts": {"format": 0.5},
        "comment": "<script>alert(1)</script>", "metrics": {},
        "turns": [
            {**told, "observation": "1 2", "response": "3", "reward": 0, "span_rewards": [], "num_tokens": 1},
            {**told, "observation": "4", "response": "5 6", "reward": 0.25, "span_rewards": [], "num_tokens": 2},
        ],
        "group": 4, "group_mean": 0.75, "advantage": 0.75, "step": 9,
        "outcome": "trained in step 9, mean advantage +0.75", "versions": [3, 4], "num_tokens": 3,
        "pruned": False,
    }  # fmt: skip


class Page(HTMLParser):
    """The tags of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.links, self.text = list[str](), list[str](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_holds_everything_escaped_and_loads_nothing(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(4, scored(1.0, 0, turn([1, 2], [3]), turn([4], [5, 6], version=4, reward=0.25)))
    journal.record_trajectory(5, scored(None, 0))
    journal.prune(before_step=99)
    journal.close()
    assert write_page(tmp_path, SampleQuery(), tmp_path / "page.html") == 2
    text = (tmp_path / "page.html").read_text()
    found = Page(text)
    assert found.tags.count("section") == 2 and "script" not in found.tags and "b" not in found.tags
    assert not found.links and "http" not in text
    for part in (
        "1 < 2?",
        '["yes", "<b>1</b>"]',
        "<script>alert(1)",
        "reward 1.25",
        "versions 3 to 4",
        "5 6",
        "no reward",
    ):
        assert part in found.text, part


def test_rows_of_pruned_attempts_keep_the_reward(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, scored(0.5, 0))
    journal.record(StepStarted(step=1, groups=(1,)))
    journal.record(WeightsUpdated(step=1, refused=False))
    journal.prune(before_step=2)
    journal.close()
    (row,) = sample_rows(tmp_path)
    assert (row["pruned"], row["reward"], row["id"], row["response"], row["turns"]) == (True, 0.5, "t-7", None, [])
    write_page(tmp_path, SampleQuery(), tmp_path / "page.html")
