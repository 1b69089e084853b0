"""How a reward compares with people: numbers worked by hand, and the command over a real judge on a local server."""

import asyncio
import json
from pathlib import Path

import pytest

from roll.chat.base import FakeChat
from roll.errors import ConfigError
from roll.rewards.base import RewardAdapter
from roll.rewards.calibration import LabelledResponse, calibrate, compare, main, read_labels
from roll.rewards.judge.reward import Judge
from roll.types import Message, Task
from tests.chat.server import Said, server, words


def test_the_numbers_are_those_of_the_textbook() -> None:
    # 20 right called right, 5 right called wrong, 10 wrong called right, 15 wrong called wrong: kappa is 0.4.
    pairs = [(1.0, 1.0)] * 20 + [(0.0, 1.0)] * 5 + [(1.0, 0.0)] * 10 + [(0.0, 0.0)] * 15
    found = compare(pairs, (), threshold=0.5)
    assert (found.right_called_right, found.right_called_wrong) == (20, 5)
    assert (found.wrong_called_right, found.wrong_called_wrong) == (10, 15)
    assert found.accuracy == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)
    assert found.correlation == pytest.approx((20 * 15 - 5 * 10) / (25 * 25 * 30 * 20) ** 0.5)
    assert [(level.label, level.count, level.mean) for level in found.groups] == [(0.0, 25, 0.4), (1.0, 25, 0.8)]
    assert found.groups[1].spread == pytest.approx(0.4)


def test_undefined_statistics_are_none() -> None:
    found = compare([(1.0, 1.0)] * 3, (), threshold=0.5)
    assert (found.accuracy, found.kappa, found.correlation) == (1.0, None, None)
    assert "kappa -, correlation -" in found.table()


def test_failures_are_counted_and_left_out() -> None:
    answers = ["<verdict>yes</verdict>", "<verdict>no</verdict>", "", "", ""]  # the third reply has three answers
    judge = Judge(chat=FakeChat(answers))
    labelled = [
        LabelledResponse(
            task=Task(id=str(number), domain="d", messages=(Message("user", "?"),)), response=reply, label=label
        )
        for number, (reply, label) in enumerate((("a", 1.0), ("b", 0.0), ("c", 1.0)))
    ]
    reward = RewardAdapter(name="judge", function=judge.score, options={}, instance=judge)
    found = asyncio.run(calibrate(reward.score, labelled))
    assert (found.count, len(found.failures), found.accuracy) == (2, 1, 1.0)
    assert "no verdict in 3 answers" in found.failures[0]


def test_labels_are_read_from_a_file_and_faults_have_their_line(tmp_path: Path) -> None:
    path = tmp_path / "labelled.jsonl"
    good = {"id": "a", "prompt": "6 x 7?", "answer": "42", "response": "42\u2028", "label": True, "level": 3}
    path.write_text(json.dumps(good, ensure_ascii=False) + "\n\n", encoding="utf-8")
    messages = (Message("user", "6 x 7?"),)
    task = Task(id="a", domain="labelled", messages=messages, answer="42", metadata={"level": 3}, seed=1)
    assert read_labels(str(path)) == [LabelledResponse(task=task, response="42\u2028", label=1.0)]
    for text in (
        '{"prompt": "?", "reply": "x", "label": 2}\n{"prompt": "?", "reply": "x"}\n{"reply": "x", "label": []}\n',
        '{"prompt": "?", "reply": 3, "label": 1}\nnone\n[]\n{"prompt": "?", "reply": "x", "label": 2}',
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            read_labels(str(path))
        assert [line.partition("jsonl:")[2][:2] for line in str(refused.value).split("\n")] == ["1:", "2:", "3:"]
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no responses"):
        read_labels(str(path))


def test_the_command_prints_the_report_of_a_judge_on_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled, reward = tmp_path / "labelled.jsonl", tmp_path / "judge.yaml"
    rows = [{"prompt": "?", "reply": reply, "label": label} for reply, label in (("a", 1), ("b", 0), ("c", 0))]
    labelled.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with server(words("Fine. <verdict>yes</verdict>")) as served:
        reward.write_text(
            f"reward: {{kind: 'roll.rewards.judge.reward:Judge', chat: {{url: '{served.url}', model: m}}}}",
            encoding="utf-8",
        )
        assert main([str(labelled), str(reward)]) == 0
    shown = capsys.readouterr().out
    assert "scored 3, failed 0" in shown and "accuracy 0.333, kappa 0.000, correlation -" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["0", "2", "1.000", "0.000"],
        ["1", "1", "1.000", "0.000"],
    ]


def test_the_command_reports_errors_in_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labelled, reward = tmp_path / "labelled.jsonl", tmp_path / "judge.yaml"
    assert main([str(labelled), str(reward)]) == 2
    labelled.write_text('{"prompt": "?", "reply": "x", "label": 1}', encoding="utf-8")
    assert main([str(labelled), str(reward)]) == 2
    for text in ("rewards: []", "a: &a [" + "x, " * 9_000 + "]\nreward: [" + "*a, " * 9 + "]"):
        reward.write_text(text, encoding="utf-8")
        assert main([str(labelled), str(reward)]) == 2
    with server(Said(status=400, body={})) as served:
        reward.write_text(
            f"reward: {{kind: 'roll.rewards.judge.reward:Judge', chat: {{url: '{served.url}', model: m}}}}",
            encoding="utf-8",
        )
        assert main([str(labelled), str(reward)]) == 2
    assert main([]) == 2
    shown = capsys.readouterr().err
    for why in (
        "labelled.jsonl: no such file",
        "no such file: ",
        "judge.yaml: no reward in it",
        "judge.yaml: has more than 20,000 values",
        "none of 1 responses was scored",
        "usage:",
    ):
        assert why in shown


def test_a_list_of_rewards_is_calibrated_as_it_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"prompt": "?", "reply": reply, "answer": "yes", "label": label} for reply, label in (("yes", 1), ("no", 0))
    ]
    (tmp_path / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "beside_it.py").write_text("def short(task, reply):\n    return len(reply) < 10\n")
    (tmp_path / "reward.yaml").write_text('reward: [exact, {kind: "beside_it:short", weight: 0.2}]\n')
    assert main([str(tmp_path / "labelled.jsonl"), str(tmp_path / "reward.yaml")]) == 0
    out = capsys.readouterr().out
    assert "scored 2, failed 0" in out and "accuracy 1.000" in out
    assert "1.200" in out and "0.200" in out  # the mean score of what is right, and of what is wrong
