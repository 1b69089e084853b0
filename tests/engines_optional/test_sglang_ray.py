"""The demo with SGLang as a Ray actor that receives weights over gloo or from disk."""

import os
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from roll.cluster.ray.environment import set_ray_environment
from roll.commands import train as commands
from roll.config.load import load
from roll.journal.events import WeightsPublished
from roll.journal.store import Reader
from roll.preflight import preflight
from roll.types import Task

pytestmark = pytest.mark.skipif(
    find_spec("sglang") is None, reason="SGLang is not installed; `make test-sglang` has it"
)
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
set_ray_environment()
DEMO = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
STEPS = 4


def sevens(task: Task, reply: str) -> float:
    return reply.count("7") / 6


@pytest.mark.parametrize("transport", ["gloo", "disk"])
def test_the_demo_runs_through_sglang_on_ray_and_every_version_is_attested(transport: str, tmp_path: Path) -> None:
    changes = [
        f"directory={tmp_path}",
        "executor=ray",
        f"weight_sync.transport={transport}",
        "deterministic=false",
        f"steps={STEPS}",
        "threads=1",
        "rollout.groups_per_step=16",
        "rollout.max_staleness=1",
        f"tasks.0.reward={__name__}:sevens",  # one that random weights can earn
        "actor_infer={backend: sglang, max_running_requests: 64}",
        "validation.tasks.0.limit=8",
        "tracking.tensorboard=false",
    ]
    loaded = load(DEMO, changes)
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    with closing(Reader(tmp_path / "arithmetic" / "journal.db")) as reader:
        published = [entry.event for entry in reader.events(WeightsPublished)]
    assert [event.version for event in published] == list(range(STEPS + 1))
    assert len({event.digest for event in published}) == STEPS + 1
    assert all("canary" in event.seconds for event in published)
