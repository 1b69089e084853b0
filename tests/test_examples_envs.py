"""Examples with their own worlds: a scripted agent warms a model up, which then trains without it."""

import contextlib
import json
import re
from pathlib import Path

import pytest

from roll.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
SMALL = ["threads=1", "steps=2", "rollout.groups_per_step=4", "rollout.group_size=2", "validation.tasks.0.limit=4"]

RUN_OF_TOOLS = """\
name: dice
model: {shape: {hidden: 32}}
algorithm: grpo
tasks: [{name: dice, env: "dice:Dice"}]
rollout: {max_seq_len: 200, max_new_tokens: 50}
"""


def roll(folder: Path, *arguments: str) -> None:
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "source"), [("frozen_lake", "lake"), ("sokoban", "room")])
def test_a_player_warms_the_example_up_and_it_trains_in_its_world(name: str, source: str, tmp_path: Path) -> None:
    example = str(ROOT / "examples" / f"{name}.yaml")
    roll(tmp_path, "sft", example, *SMALL, "sft.steps=12", "sft.batch_size=8", "sft.stop_at_accuracy=null")
    losses = [line["sft/loss"] for line in metrics_of(tmp_path / "runs" / f"{name}-sft")]
    assert losses[-1] < 0.9 * losses[0]
    roll(tmp_path, "train", example, *SMALL, f"model={{path: runs/{name}-sft/model}}")
    *_, last = metrics_of(tmp_path / "runs" / name)
    assert last["step"] == 2 and last["length/truncated"] < 1
    counted = {key: last[f"env/{source}/{key}"] for key in ("success", "turns", "valid_actions", "effective_actions")}
    assert counted["turns"] >= 1 and all(0 <= counted[key] <= 1 for key in counted if key != "turns")


def test_the_environment_of_the_page_is_short_and_trains_as_written(tmp_path: Path) -> None:
    code, _ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    written, *_ = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) < 40
    (tmp_path / "countdown.py").write_text(code)
    (tmp_path / "countdown.yaml").write_text(written)
    roll(tmp_path, "check", "countdown.yaml")
    roll(tmp_path, "train", "countdown.yaml", *SMALL)
    *_, last = metrics_of(tmp_path / "runs" / "countdown")
    assert last["step"] == 2 and last["env/stones/turns"] >= 1


def test_the_tools_of_the_page_are_called_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) < 40
    (tmp_path / "dice.py").write_text(code)
    (tmp_path / "agents.py").write_text(
        "def eager(messages):\n"
        "    broken = 'I try. <tool_call>roll</tool_call>'\n"
        '    call = \'<tool_call>{"name": "roll", "arguments": {"dice": 3}}</tool_call>\'\n'
        "    return broken if len(messages) == 1 else call\n"
    )
    (tmp_path / "dice.yaml").write_text(RUN_OF_TOOLS)
    roll(tmp_path, "rollout", "dice.yaml", "--agent", "agents:eager", "--num", "3")
    said = capsys.readouterr().out
    assert "the call is not JSON" in said and '"dice": 3' in said and "3 attempts" in said


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            "sft.scripted_agent=sokobann",
            "no scripted agent named 'sokobann'; did you mean 'sokoban'",
        ),
        (
            "sft.scripted_agent={kind: sokoban, noize: 1}",
            "'sokoban' takes no 'noize'; did you mean 'noise'",
        ),
        ("tasks.0.env.sise=5", "environment 'sokoban' takes no 'sise'; did you mean 'size'?"),
    ],
)
def test_names_and_arguments_that_do_not_exist_are_found_by_the_check(
    wrong: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", str(ROOT / "examples" / "sokoban.yaml"), wrong])
    assert ended.value.code == 2 and says in capsys.readouterr().err
