"""The demo with vLLM as a Ray actor that receives weights over gloo."""

import os
from contextlib import closing
from pathlib import Path

from roll.cluster.ray.environment import set_ray_environment
from roll.commands import train as commands
from roll.config.load import load
from roll.journal.events import WeightsPublished
from roll.journal.store import Reader
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.types import Task
from tests.engines_optional.conftest import NEEDS_VLLM

pytestmark = NEEDS_VLLM
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
set_ray_environment()
DEMO = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
STEPS = 6


def sevens(task: Task, reply: str) -> float:
    return reply.count("7") / 6


def test_the_demo_runs_through_vllm_on_ray_and_every_version_is_attested(tmp_path: Path) -> None:
    changes = [
        f"directory={tmp_path}",
        "executor=ray",
        "weight_sync.transport=gloo",
        "deterministic=false",
        f"steps={STEPS}",
        "threads=1",
        "rollout.groups_per_step=16",
        "rollout.max_staleness=1",
        f"tasks.0.reward={__name__}:sevens",  # one that random weights can earn
        "actor_infer={backend: vllm, max_num_seqs: 64, kv_cache_gib: 0.25, enforce_eager: true}",
        "validation.tasks.0.limit=8",
        "tracking.tensorboard=false",
    ]
    loaded = load(DEMO, changes)
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    run = tmp_path / "arithmetic"
    steps = [line for line in read_lines(run / "metrics.jsonl") if line["step"]]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    with closing(Reader(run / "journal.db")) as reader:
        published = [entry.event for entry in reader.events(WeightsPublished)]
    assert [event.version for event in published] == list(range(STEPS + 1))
    assert len({event.digest for event in published}) == STEPS + 1
    assert all({"move", "canary"} <= event.seconds.keys() for event in published)
    assert {path.stem for path in (run / "logs").iterdir()} == {"actor_train-0", "actor_infer-0"}
