from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import GroupFailed, RolledBack, StepStarted, WeightsUpdated
from roll.journal.store import Journal
from roll.report.samples import show
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn


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
        task=Task(id="t-7", domain=domain),
        sibling=1,
        segments=(Segment(turns=turns),),
        status=status,
        score=Score(1.0, {"format": 0.5}) if status.valid else None,
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
        "--- turn 1: observation (2 tokens)",
        "1 2",
        "--- turn 1: sampled (1 tokens, stop)",
        "3",
        "--- turn 2: observation (1 tokens)",
        "4",
        "--- turn 2: sampled (2 tokens, stop, reward 0.25)",
        "5 6",
    ]


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

    def groups(**wanted: object) -> list[str]:
        return [text.split(",")[0].removeprefix("=== group ") for text in show(tmp_path, **wanted)]  # type: ignore[arg-type]

    assert groups() == ["4", "5", "6", "7", "8"]
    assert groups(last=2) == ["7", "8"]
    assert groups(domain="code") == ["2"]
    assert groups(status="truncated") == []


def test_a_directory_without_a_run_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"journal.db: no journal here"):
        list(show(tmp_path / "nowhere"))


def test_an_unknown_status_names_the_known_ones(tmp_path: Path):
    with pytest.raises(ConfigError, match="no status named 'finish'; known: finished, truncated"):
        list(show(tmp_path, status="finish"))


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
