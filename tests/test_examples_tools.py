"""The examples with tools, and the tool of one's own that the documentation has: they run as they are written."""

import contextlib
import json
import re
from pathlib import Path

import pytest

from roll.cli import main
from roll.data.tasks import jsonl
from roll.envs.function_calling import FunctionCalling

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SMALL = [
    "threads=1", "steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "rollout.max_new_tokens=8",
    "tasks.0.limit=8", "validation.tasks.0.limit=2", "validation.at_start=false",
]  # fmt: skip
WARM = ["sft.steps=2", "sft.batch_size=4", "sft.stop_at_accuracy=null"]


def roll(folder: Path, *arguments: str) -> None:
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def last_of(run: Path) -> dict[str, float]:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_player_shows_the_example_how_to_call_and_it_goes_on_by_itself(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "tool_use.yaml")
    roll(tmp_path, "sft", example, *SMALL, *WARM)
    assert last_of(tmp_path / "runs" / "tool_use-sft")["sft/loss"] < 6
    roll(tmp_path, "train", example, *SMALL, "model={path: runs/tool_use-sft/model}")
    last = last_of(tmp_path / "runs" / "tool_use")
    assert last["step"] == 1 and last["env/sums/tools/calls"] >= 0 and last["env/sums/turns"] >= 1


def test_the_player_of_the_example_solves_its_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roll(tmp_path, "rollout", str(ROOT / "examples" / "tool_use.yaml"), "--agent", "calculator", "--num", "3")
    said = capsys.readouterr().out
    assert '"name": "calculator"' in said and "3 attempts" in said and "success 1" in said


def test_the_example_of_function_calling_trains_on_rows_that_can_all_be_used(tmp_path: Path) -> None:
    for name, num in (("function_calling", 12), ("function_calling_held_out", 4)):
        rows = jsonl(str(ROOT / "examples" / "data" / f"{name}.jsonl"))
        assert len([FunctionCalling(row) for row in rows]) == num
    with contextlib.chdir(ROOT), pytest.raises(SystemExit) as ended:
        overrides = [f"directory={tmp_path}", "tasks.0.filters=[]", "checkpoint.every=0"]
        main(["train", "examples/function_calling.yaml", *overrides, *SMALL])
    assert not ended.value.code
    assert last_of(tmp_path / "function_calling")["env/calls/turns"] == 1


def test_the_tool_of_ones_own_is_used_as_the_page_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    section = page.partition("## A custom tool\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    (run,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "shop.yaml").write_text(run)
    commands = re.findall(r"^roll (\w+) shop\.yaml(.*?)\s*(?:#.*)?$", section, re.MULTILINE)
    assert [command for command, _ in commands] == ["check", "rollout", "sft", "train"]
    roll(tmp_path, "check", "shop.yaml")
    roll(tmp_path, "rollout", "shop.yaml", "--agent", "shop:buyer", "--num", "2")
    said = capsys.readouterr().out
    assert '"arguments": {"item": "apple", "count": 2}' in said and "success 1" in said
    roll(tmp_path, "sft", "shop.yaml", *SMALL, *WARM)
    roll(tmp_path, "train", "shop.yaml", *SMALL, "model={path: runs/shop-sft/model}")
    assert last_of(tmp_path / "runs" / "shop")["step"] == 1
