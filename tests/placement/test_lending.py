"""Runs whose trainer lends its devices: the plan, and the same bits as a run without lending."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.cluster.inline import InlineExecutor
from roll.config.load import load
from roll.config.schema import Run
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.explain.devices import device_rows
from roll.explain.placement import placement_report
from roll.journal.events import DevicesLent, DevicesReturned
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.memory import overlapping
from roll.placement.planner import plan_devices
from roll.placement.records import Offload, Placement
from roll.serving.counts import IdleReasons
from roll.serving.lending_rule import LendingRule
from roll.tracking.directory import RunDirectory
from roll.weights.huggingface import read_tensors
from roll.wiring.actor import build_canary, build_engine_specs, place_actor
from roll.wiring.data import build_data
from roll.wiring.models import PolicyEngines, Roles, build_router, build_tokenizer
from roll.wiring.preferences import preference_run
from roll.wiring.run import RunServices, build_checkpointer, build_loop, build_reporter
from tests.placement.runs import SMALL, VLLM
from tests.placement.runs import run_of as planned_run
from tests.placement.training import RUN, Finished, assert_equal

LENDING = ("executor=ray", "rollout.concurrency=2", "actor_train.devices=[0]")
DEVICES = "actor_infer={max_num_seqs: 64, max_num_batched_tokens: 16, progress_interval: 2, devices: [0, 1]"
MOVED = (
    Offload(role="actor_train", phase="rollout", parts=("optimizer", "weights")),
    Offload(role="actor_infer", phase="update", parts=("kv", "weights")),
)


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Always(LendingRule):
    """Every wait is worth it."""

    def pays(self, waited_s: float) -> bool:
        return True


def run_of(folder: Path, infer: str, *changes: str) -> Run:
    (folder / "run.yaml").write_text(RUN)
    return load(folder / "run.yaml", [f"directory={folder}", *LENDING, infer, *changes]).run


def placed(run: Run, *offloads: Offload) -> Placement:
    return replace(plan_devices(facts_of(run), parse_cluster("2xcpu")), offloads=offloads)


def trained(run: Run, folder: Path, placement: Placement) -> tuple[Finished, int, int]:
    """The run with all its workers in this process; how often devices were lent, and requests were taken back."""
    left = Finished()

    async def work() -> tuple[int, int]:
        specs = build_engine_specs(run, run.actor_train.optimizer, run.steps, supervised=False)
        actor = place_actor(run, specs, InlineExecutor(), folder / "weights")
        engines = PolicyEngines(
            trainers=actor.trainers,
            generators=actor.generators,
            router=build_router(run, actor.generators, IdleReasons()),
            transport=actor.transport,
            canary=build_canary(run),
        )
        roles = Roles(policies={"": engines}, template=Template(build_tokenizer(run.model)), placement=placement)
        data = build_data(run, run.tasks, roles.template)
        with (
            closing(RunDirectory.create(folder / run.name, overwrite=True)) as directory,
            closing(Journal(directory.journal)) as journal,
            closing(build_reporter(run, directory)) as reporter,
            Interrupt() as interrupt,
        ):
            checkpointer = build_checkpointer(run, directory, roles, journal)
            await train(roles, data, RunServices(journal, checkpointer, reporter, interrupt))
            left.weights = dict(read_tensors(directory.path / "model"))
            returned = [entry.event for entry in journal.events(DevicesReturned)]
            return len(list(journal.events(DevicesLent))), sum(event.num_requests for event in returned)

    async def train(roles: Roles, data: Any, services: RunServices) -> None:
        await roles.start()
        loop = build_loop(run, roles, data, services)
        loop.report = left.report
        lender = loop.publishers.lender
        if lender is not None:
            lender.devices.rule, lender.poll_s = Always(1.0), 0.001
        await loop.run()
        await services.checkpointer.export()
        await roles.stop()

    numbers = asyncio.run(work())
    return (left, *numbers)


@pytest.mark.slow
def test_a_run_that_lends_has_the_bits_of_one_that_does_not(tmp_path: Path) -> None:
    plain, lending = run_of(tmp_path, f"{DEVICES}}}"), run_of(tmp_path, f"{DEVICES}, lend_factor: 2}}")
    held, num_held, _ = trained(plain, tmp_path / "held", placed(plain))
    lent, num_lent, _ = trained(lending, tmp_path / "lent", placed(lending, *MOVED))
    assert num_held == 0 and num_lent >= 2
    assert_equal(held, lent)
    assert any(line["loss/grad_norm"] > 0 for line in lent.metrics if "loss/grad_norm" in line), "it learns"


@pytest.mark.slow
def test_with_staleness_requests_move_on_and_no_token_is_past_the_bound(tmp_path: Path) -> None:
    more = ("rollout.max_staleness=1", "algorithm={recipe: grpo, correction: truncate}", "steps=6")
    run = run_of(tmp_path, f"{DEVICES}, lend_factor: 2}}", *more)
    lent, num_lent, _ = trained(run, tmp_path, placed(run, *MOVED))
    steps = [line for line in lent.metrics if "staleness/max" in line]
    assert num_lent and len(steps) == 6
    assert max(line["staleness/max"] for line in steps) == 1


def test_lending_needs_generators_on_and_off_the_devices_of_the_trainer(tmp_path: Path) -> None:
    for devices, fault in (
        ("[1]", "actor_infer.lend_factor: no generator is on a device of actor_train (got [0])"),
        ("[0]", "actor_infer.lend_factor: all generators are on devices of other roles"),
    ):
        with pytest.raises(ConfigError) as raised:
            placed(run_of(tmp_path, f"actor_infer={{devices: {devices}, lend_factor: 2}}"))
        assert str(raised.value).startswith(fault) and "\n" not in str(raised.value)


def lending_plan(folder: Path, *changes: str) -> Run:
    base = ("rollout.max_staleness=2", "rollout.concurrency=64", "actor_train.devices=[0]", SMALL, *changes)
    return planned_run(folder, *base)


def test_roles_on_lent_devices_alternate_in_the_memory_plan(tmp_path: Path) -> None:
    plain = lending_plan(tmp_path, "actor_infer.devices=0-1")
    lending = lending_plan(tmp_path, "actor_infer={devices: 0-1, lend_factor: 2}")
    cluster = parse_cluster("2xH200")
    assert overlapping(facts_of(plain), plan_devices(facts_of(plain), cluster))
    assert not overlapping(facts_of(lending), plan_devices(facts_of(lending), cluster))
    report = placement_report(lending, "2xH200")
    assert "overlap: generators 0 on devices 0 serve while the trainer waits, the others always" in report


def test_a_device_that_is_too_small_even_in_turns_is_an_error(tmp_path: Path) -> None:
    infer = f"{VLLM}, devices: 0-1, lend_factor: 2, gpu_memory_utilization: 0.97}}"
    with pytest.raises(ConfigError, match=r"^actor_infer\.devices: H200 0 has .* GiB and the rollout needs"):
        plan_devices(facts_of(lending_plan(tmp_path, infer)), parse_cluster("2xH200"))


def test_a_run_on_preferences_samples_nothing_and_lends_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, f"{DEVICES}, lend_factor: 2}}", "dpo={data: {kind: json, path: pairs.jsonl}}")
    assert run.actor_infer.lend_factor == 2 and preference_run(run).actor_infer.lend_factor is None


def test_the_explanation_says_when_devices_are_lent(tmp_path: Path) -> None:
    rows = dict(device_rows(lending_plan(tmp_path, "actor_infer={devices: 0-1, lend_factor: 2}")))
    lent = "the trainer lends its devices in waits over 2 times the moves"
    assert rows["overlap"] == f"generation continues during training; {lent}"
