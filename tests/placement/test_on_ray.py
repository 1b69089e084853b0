"""Placements on a real Ray cluster of this machine."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.cluster.ray.environment import set_ray_environment
from roll.errors import ConfigError
from roll.wiring.placing import plan_placement
from tests.placement.training import EVERYTHING, assert_equal, run_of, trained

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
set_ray_environment()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a Ray cluster is; this process is connected to it."""
    import ray

    mine = not ray.is_initialized()
    if mine:
        ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray.get_runtime_context().gcs_address
    if mine:
        ray.shutdown()


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def test_devices_are_those_of_the_ray_cluster(address: str, tmp_path: Path) -> None:
    named = ["executor=ray", f"ray.address={address}", "actor_infer.devices=2-3"]
    found = plan_placement(run_of(tmp_path, *named))
    assert found.inventory.nodes[0].id and found.inventory.num_devices >= 8
    assert [worker.devices for worker in found.workers_of("actor_infer")] == [(2,), (3,)]
    assert all(worker.pinned for worker in found.workers_of("actor_infer"))
    slots = plan_placement(run_of(tmp_path, *named, "ray.cpu_slots=4"))
    assert slots.inventory.num_devices == 4
    with pytest.raises(ConfigError, match=r"there is no device 3 .*or set ray.cpu_slots"):
        plan_placement(run_of(tmp_path, *named, "ray.cpu_slots=3", "ray.start_timeout_s=0.1"))


@pytest.mark.sweep
def test_processes_that_alternate_equal_one_process(address: str, tmp_path: Path) -> None:
    inline = run_of(tmp_path, "deterministic=true")
    ray = run_of(
        tmp_path,
        *("deterministic=true", "executor=ray", f"ray.address={address}"),
        *("actor_train.devices=[1]", "actor_infer.devices=1-2"),
    )
    placement = replace(plan_placement(ray), offloads=EVERYTHING)
    assert placement.shared("actor_train", "actor_infer") == (1,)
    found = trained(ray, tmp_path / "ray", placement)
    assert ("actor_infer", "offload", ("kv", "weights")) in found.moves
    # the generator on device 2 has no neighbour and keeps what it has
    assert sum(role == "actor_infer" for role, _, _ in found.moves) == 2 * 3
    assert_equal(found, trained(inline, tmp_path / "inline", plan_placement(inline)))
