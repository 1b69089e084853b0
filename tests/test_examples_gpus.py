"""The runs for 1, 8 and 64 GPUs: checked and explained on machines without a GPU."""

import contextlib
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from roll.cli import main
from roll.config.load import load
from roll.explain.placement import placement_report
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.planner import plan_devices
from tests.model_directories import ASCII, fill

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MIXTURES = {
    "qwen3_30b_a3b_64_gpus.yaml": "8x8xH200",
    "qwen3_235b_a22b_256_gpus.yaml": "32x8xH200",
    "deepseek_v3_512_gpus.yaml": "64x8xB200",
}
RUNS = {
    "rlvr_8_gpus.yaml": "8xH100",
    "reward_model_8_gpus.yaml": "1x8xH200",
    "rlvr_64_gpus.yaml": "8x8xH200",
    **MIXTURES,
}
PLACED = [name for name in RUNS if name != "reward_model_8_gpus.yaml"]
"""Those with the roles of reinforcement learning."""


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with contextlib.chdir(ROOT), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", RUNS)
def test_it_is_accepted_where_its_model_is_and_on_a_cluster_elsewhere(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    fill(tmp_path, ASCII)
    if name not in MIXTURES or find_spec("megatron") is not None:
        assert ": ok" in run_cli(capsys, "check", f"examples/{name}", f"vars.model={tmp_path}")
    assert "fullest device" in run_cli(capsys, "check", f"examples/{name}", "--cluster", RUNS[name])


def test_the_quick_start_passes_the_check_where_its_model_and_data_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    fill(tmp_path, ASCII)
    for split in ("train", "test"):
        (tmp_path / f"gsm8k_{split}.jsonl").write_text(json.dumps({"prompt": "1+1?", "answer": "2"}))
        row = {"prompt": "Write f.", "tests": ["assert f() == 2"], "reference": "def f(): return 2"}
        (tmp_path / f"mbpp_{split}.jsonl").write_text(json.dumps(row))
    where = (f"vars.model={tmp_path}", f"vars.data={tmp_path}")
    for name in ("gsm8k", "mbpp"):
        assert ": ok" in run_cli(capsys, "check", f"examples/{name}.yaml", *where)
    assert ": ok" in run_cli(capsys, "check", "examples/frozen_lake_chat.yaml", where[0])


@pytest.mark.parametrize("name", PLACED)
def test_it_is_explained_with_a_row_a_role_and_bytes_by_phase(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_cli(capsys, "explain", f"examples/{name}", "--cluster", RUNS[name])
    header = next(line for line in text.splitlines() if line.split()[:2] == ["role", "workers"])
    assert header.split()[-3:] == ["rollout", "update", "weight_sync"]
    rows = {
        line.split()[0]: line.split()
        for line in text.splitlines()
        if line.startswith(("  actor_train ", "  actor_infer "))
    }
    assert {role: row[1:3] for role, row in rows.items()} == {
        "rlvr_8_gpus.yaml": {"actor_train": ["8", "0-7"], "actor_infer": ["8", "0-7"]},
        "rlvr_64_gpus.yaml": {"actor_train": ["32", "0-31"], "actor_infer": ["16", "32-63"]},
        "qwen3_30b_a3b_64_gpus.yaml": {"actor_train": ["12", "0-11"], "actor_infer": ["13", "12-63"]},
        "qwen3_235b_a22b_256_gpus.yaml": {"actor_train": ["80", "0-79"], "actor_infer": ["44", "80-255"]},
        "deepseek_v3_512_gpus.yaml": {"actor_train": ["128", "0-127"], "actor_infer": ["48", "128-511"]},
    }[name]


def test_on_eight_gpus_all_share_and_on_sixty_four_each_half_has_its_own() -> None:
    shared = plan_devices(facts_of(load(ROOT / "examples/rlvr_8_gpus.yaml").run), parse_cluster("8xH100"))
    assert shared.shared("actor_train", "actor_infer") == tuple(range(8))
    apart = plan_devices(facts_of(load(ROOT / "examples/rlvr_64_gpus.yaml").run), parse_cluster("8x8xH200"))
    assert apart.shared("actor_train", "actor_infer") == ()
    assert all(len({worker.node}) == 1 and len(worker.devices) == 2 for worker in apart.workers_of("actor_infer"))


@pytest.mark.parametrize("name", PLACED)
def test_the_documentation_shows_the_table_that_is_printed(name: str) -> None:
    table = placement_report(load(ROOT / "examples" / name).run, RUNS[name])
    text = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert f"$ roll explain examples/{name} --cluster {RUNS[name]}\n{table}\n" in text
