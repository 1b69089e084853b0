"""The page about rewards is true: its code is the example's, its commands print what it says, its table is complete."""

import asyncio
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from roll.cli import main
from roll.preflight import importable
from roll.registry import REWARDS
from roll.rewards.base import score_once
from roll.rewards.calibration import main as calibrate
from roll.rewards.result import RewardResult
from roll.types import Score, Span, Spec, Task
from tests.chat.server import server, words

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "rewards"
PAGE = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
TASK = Task(id="t", domain="d")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    lines = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    return [line[1:] for line in lines if line[0] == program]


def said(*arguments: str) -> tuple[str, str]:
    """What `roll` prints in the folder of the example."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(FOLDER),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    assert not ended.value.code, err.getvalue()
    return out.getvalue(), err.getvalue()


def asked(name: str, reply: str, **options: object) -> RewardResult:
    importable(FOLDER / "here")
    return asyncio.run(score_once(Spec(name, options), TASK, reply))


def test_the_code_and_the_judge_of_the_page_are_those_of_the_example() -> None:
    code = (FOLDER / "my_checks.py").read_text(encoding="utf-8")
    assert len(blocks("python")) == 4 and [block for block in blocks("python") if block not in code] == []
    assert (FOLDER / "judge.yaml").read_text(encoding="utf-8") in blocks("yaml")


def test_every_command_of_the_page_runs_and_the_first_prints_what_it_says() -> None:
    first, *others = (arguments for arguments in commands("roll") if arguments[0] != "audit")
    out, err = said(*first)
    assert [out] == blocks("json") and err.splitlines()[-1] in PAGE
    assert len(others) == 3
    for arguments in others:
        assert '"outcome": "scored"' in said(*arguments)[0]


def test_the_audit_of_the_page_prints_what_it_says() -> None:
    (arguments,) = (arguments for arguments in commands("roll") if arguments[0] == "audit")
    assert said(*arguments)[0] == blocks("text")[0]


def test_what_the_dataset_calls_right_is_at_1() -> None:
    (arguments,) = (each for each in commands("roll") if "--run" in each)
    assert "at 1: 12 (100.0%)" in said(*arguments)[1]


def test_the_calibration_of_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, module, *arguments),) = commands("python")
    assert module == "roll.rewards.calibration"
    with contextlib.chdir(FOLDER):
        assert calibrate(arguments) == 0
    assert capsys.readouterr().out == blocks("text")[1]


def test_the_judge_of_the_page_is_asked_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server(words("Fine.\n<verdict>yes</verdict>")) as service:
        text = (FOLDER / "judge.yaml").read_text(encoding="utf-8").replace("http://127.0.0.1:8000", service.url)
        (tmp_path / "judge.yaml").write_text(text)
        assert calibrate([str(FOLDER / "labelled.jsonl"), str(tmp_path / "judge.yaml")]) == 0
    assert capsys.readouterr().out.startswith("scored 12, failed 0\naccuracy 0.500, kappa 0.000, correlation -\n")
    assert len(service.asked) == 12


def test_the_page_lists_every_reward() -> None:
    table = PAGE.partition("## Built-in rewards")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == REWARDS.targets.keys() - {"weighted"}


def test_the_options_that_the_page_lists_exist() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", PAGE.partition("## Built-in rewards")[2], re.MULTILINE)
    for name, options in rows:
        named = re.findall(r"`(\w+)`", options)
        assert [option for option in named if not REWARDS.takes(name, option)] == [], name


def test_the_example_function_wants_courtesy_and_brevity() -> None:
    def polite(reply: str) -> RewardResult:
        return asked("my_checks:polite", reply, words=["please"], longest=10)

    assert polite("Please.") == RewardResult.from_score(Score(1.0, {"courtesy": 1.0, "excess": 0.0}))
    assert polite("Please, now!") == RewardResult.from_score(Score(0.8, {"courtesy": 1.0, "excess": 2.0}))
    assert polite("Now!") == RewardResult.from_score(Score(0.0, {"courtesy": 0.0, "excess": 0.0}))


def test_the_example_with_steps_rewards_each_sum() -> None:
    score = asked("my_checks:sums", "1 + 2 = 3, so 3 + 4 = 8").score
    assert score == Score(0.0, spans=(Span(0, 9, 0.1), Span(14, 23, -0.1)))


def test_the_example_that_waits_tells_python_from_what_is_not() -> None:
    assert asked("my_checks:parses", "x = 2 * x") == RewardResult.from_score(Score(1.0))
    assert asked("my_checks:parses", "double x") == RewardResult.from_score(Score(0.0))


def test_the_example_class_counts_the_words_that_it_read_when_it_started() -> None:
    found = asked("my_checks:Vocabulary", "please pour tea thanks", path=str(FOLDER / "words.txt"))
    assert found == RewardResult.from_score(Score(0.5, {"words": 4.0}))
    assert asked("my_checks:Vocabulary", "", path=str(FOLDER / "words.txt")).score == Score(0.0, {"words": 0.0})
