"""The examples whose worlds are tools: what their rows say is right is played, and a model trains in them."""

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest

from roll.cli import main
from roll.sandbox.level import unavailable_reason
from tests.model_directories import ASCII, fill

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
REASON = unavailable_reason()
ISOLATED = pytest.mark.skipif(bool(REASON), reason=f"untrusted code is not run here: {REASON}")
NAMES = ("repair", "sql", "retail")
EXAMPLES = [
    pytest.param("repair", "programs", "RepairOracle", 4, marks=ISOLATED),
    ("sql", "tables", "SqlOracle", 5),
    ("retail", "desk", "RetailOracle", 4),
]
"""Each with its source, who knows the answers, and how many tasks there are."""
SMALL = [
    "steps=1", "threads=1", "vars.turns=2", "rollout.groups_per_step=2", "rollout.group_size=2",
    "rollout.max_new_tokens=8", "validation.at_start=false", "checkpoint.every=0", "tracking.tensorboard=false",
]  # fmt: skip


def roll(*arguments: str) -> None:
    with contextlib.chdir(ROOT), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


@pytest.mark.parametrize(("example", "source", "oracle", "count"), EXAMPLES)
def test_who_knows_the_answers_plays_every_task_of_an_example(
    example: str, source: str, oracle: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, agent = f"examples/{example}.yaml", f"roll.envs.oracles:{oracle}"
    roll("rollout", file, "--agent", agent, "--num", str(count), "--output", str(tmp_path / "said.jsonl"))
    assert f"{count} attempts: success 1.000, reward 1.000" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert {row["source"] for row in rows} == {source} and all(row["metrics"]["tools/calls"] > 0 for row in rows)


@pytest.mark.parametrize(("example", "source", "oracle", "count"), EXAMPLES)
def test_a_model_trains_in_an_example_and_its_faults_are_counted(
    example: str, source: str, oracle: str, count: int, tmp_path: Path
) -> None:
    roll("train", f"examples/{example}.yaml", f"directory={tmp_path}", "name=small", *SMALL)
    last = json.loads((tmp_path / "small" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 1 and 1 <= last[f"env/{source}/turns"] <= 2 and last[f"env/{source}/success"] == 0
    assert last[f"env/{source}/tools/calls"] == 0 and last[f"env/{source}/tools/faults"] >= 0


@pytest.mark.parametrize("example", NAMES)
def test_the_command_for_a_real_model_at_the_head_of_an_example_is_accepted(
    example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    fill(tmp_path, ASCII)
    head = (ROOT / "examples" / f"{example}.yaml").read_text().partition("\nname: ")[0]
    (written,) = re.findall(r"roll (train .*model=(?:.*\\\n)*.*)", head)
    words = shlex.split(written.replace("\\\n#", " ").replace("models/instruct", str(tmp_path)))
    theirs = ("vars.tasks=", "vars.held_out=", "vars.database=", "vars.policy=")
    roll("check", *(word for word in words[1:] if not word.startswith(theirs)))
    assert ": ok" in capsys.readouterr().out
