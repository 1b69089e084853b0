"""Roles that alternate on a device compute the same bits as roles that do not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.config.schema import Run
from roll.engines.native.generator import NativeGenerator
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.memory import bytes_on
from roll.placement.planner import plan_devices
from roll.placement.records import Inventory, Offload, Placement
from roll.wiring.models import build_roles
from tests.placement.training import EVERYTHING, assert_equal, run_of, trained

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def roomy(run: Run) -> Placement:
    return plan_devices(facts_of(run), parse_cluster("1xcpu"))


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_with_offloading_equals_one_without(tmp_path: Path, staleness: int) -> None:
    run = run_of(tmp_path, f"rollout.max_staleness={staleness}")
    plain, turns = roomy(run), replace(roomy(run), offloads=EVERYTHING)
    kept, given_up = trained(run, tmp_path / "kept", plain), trained(run, tmp_path / "given_up", turns)
    assert kept.moves == []
    # before step 1, and then three times: the trainer's turn, the publication, the generator's turn
    first = [("actor_train", "offload", ("optimizer",)), ("actor_train", "offload", ("weights",))]
    every = [
        ("actor_infer", "offload", ("kv", "weights")),
        ("actor_train", "onload", ("optimizer", "weights")),
        ("actor_train", "offload", ("optimizer",)),
        ("actor_infer", "onload", ("kv", "weights")),
        ("actor_train", "offload", ("weights",)),
    ]
    assert given_up.moves == [*first, *every * 3]
    if staleness == 0:  # above it the clock decides which weights sample a token
        assert_equal(kept, given_up)
    assert len({line["loss/grad_norm"] for line in given_up.metrics if "loss/grad_norm" in line}) == 3, "it learns"


def test_an_offloaded_reference_gives_the_same_logprobs(tmp_path: Path) -> None:
    run = run_of(tmp_path, "algorithm={recipe: grpo, kl: {coefficient: 0.1}}")
    plain = roomy(run)
    moving = Offload(role="reference", phase="rollout", parts=("weights",))
    found = trained(run, tmp_path / "moved", replace(plain, offloads=(moving,)))
    # the first publication is of version 0; then it is needed once a step
    every = [("reference", "onload", ("weights",)), ("reference", "offload", ("weights",))]
    assert found.moves == [("reference", "offload", ("weights",)), *every * 3]
    assert_equal(found, trained(run, tmp_path / "kept", plain))


def test_the_kv_cache_is_offloaded_if_the_device_is_too_small(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    whole = roomy(run)
    node = parse_cluster("1xcpu").nodes[0]
    tight = Inventory(nodes=(replace(node, memory=bytes_on(whole, 0, "update", at_once=False)),))
    placement = plan_devices(facts_of(run), tight)
    assert placement.offloads == (Offload(role="actor_infer", phase="update", parts=("kv",)),)
    found = trained(run, tmp_path / "tight", placement)
    assert found.moves == [("actor_infer", "offload", ("kv",)), ("actor_infer", "onload", ("kv",))] * 3
    assert_equal(found, trained(run, tmp_path / "roomy", whole))


def test_an_offloaded_kv_cache_is_freed_and_restored_empty(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    roles = build_roles(run, run.actor_train.optimizer, 1)
    (generator,) = roles.first.generators._workers  # type: ignore[attr-defined]
    assert isinstance(generator, NativeGenerator)

    async def work() -> None:
        await generator.start()
        await generator.offload(["kv"])
        assert generator._cache is None
        await generator.onload(["kv"])
        assert generator._cache is not None and not generator._cache.keys.any()

    asyncio.run(work())
