"""`roll explain --json` and the text say the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from roll.cli import main
from roll.explain.placement import format_bytes, format_ids

EXAMPLES = Path(__file__).parents[2] / "examples"


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    """The JSON document and the text of the same command."""
    outputs: list[str] = []
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            main(["explain", *arguments, *more])
        assert not ended.value.code
        outputs.append(capsys.readouterr().out)
    return json.loads(outputs[1]), outputs[0]


@pytest.mark.parametrize(("name", "cluster"), [("rlvr_8_gpus", "8xH100"), ("rlvr_64_gpus", "8x8xH200")])
def test_the_numbers_of_the_document_are_those_of_the_text(
    name: str, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document, text = explained(capsys, str(EXAMPLES / f"{name}.yaml"), "--cluster", cluster)
    plan, step = document["placement"], document["step"]
    table = {line.split()[0]: re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()}
    assert [role["role"] for role in plan["roles"]] == ["actor_train", "actor_infer"]
    for role in plan["roles"]:
        sizes = [format_bytes(role["bytes"][phase]) for phase in ("rollout", "update", "weight_sync")]
        numbers = [role["workers"], format_ids(role["devices"]), format_ids(role["nodes"]), role["tp"], role["cp"]]
        assert table[role["role"]] == [role["role"], *map(str, numbers), *sizes]
    assert table["fullest"][1:] == [format_bytes(plan["fullest"][phase]) for phase in plan["fullest"]]
    groups = f"{step['groups']} groups (tasks) x {step['attempts_per_group']} attempts each"
    assert f"{step['trajectories']} = {groups}" in text
    assert step["trajectories"] == step["groups"] * step["attempts_per_group"]
    assert f"{step['groups_in_flight']} groups at once" in text
    words = " ".join(text.split())
    rows = [row for paragraph in document["paragraphs"] for row in paragraph["rows"]]
    lines = [f"{row['label']} {row['text']}" for row in rows] + plan["notes"]
    lines += [f"auto: {reason}" for reason in plan["reasons"]]
    assert rows and [line for line in lines if " ".join(line.split()) not in words] == []


def test_warnings_and_scored_models_are_part_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ("deterministic=false", "rollout.max_staleness=1", "algorithm.kl={coefficient: 0.1}")
    document, text = explained(capsys, str(EXAMPLES / "arithmetic.yaml"), "--cluster", "1xcpu", *changes)
    (warning,) = document["warnings"]
    assert "trained on as if they were new" in warning and warning in " ".join(text.split())
    assert document["step"]["scored_by"] == ["reference", "old_logprobs"]


def test_a_plan_that_does_not_fit_this_machine_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ("actor_infer.devices=[999]", "actor_infer.backend=native", "executor=ray")
    document, text = explained(capsys, str(EXAMPLES / "arithmetic.yaml"), *changes)
    assert document["warnings"] == [document["placement"]["fault"]]
    assert f"not on this machine: {document['placement']['fault']}" in text
