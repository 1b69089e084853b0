"""A run moves between trainers by a checkpoint: the next updates are those of the trainer that wrote it."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.layout_ranks import LayoutCase, RankProcesses
from benchmarks.layouts import CLIPPED, LAYOUTS, Reference, example
from roll.config.schema import Optimizer
from roll.engines.megatron.ranks import MegatronLayout
from roll.weights.huggingface import read_tensors
from tests.engines.fsdp_team import Team, TrainerSpec
from tests.trainers_optional.conftest import NEEDS_DEEPSPEED

pytestmark = [
    NEEDS_DEEPSPEED,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
    pytest.mark.slow,
    pytest.mark.xdist_group("megatron"),
]

ADAMW = Optimizer(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)
DENSE = ("native", "fsdp2", "deepspeed 2", "deepspeed 3", "megatron tp2", "megatron pp2")


class Trainers:
    """Makes a trainer of any backend with two ranks, and runs its calls."""

    def __init__(self, reference: Reference, team: Team, processes: RankProcesses) -> None:
        self.reference, self.team, self.processes = reference, team, processes

    def run(self, name: str, calls: Any) -> Any:
        """The result of `calls(engine)`, of a trainer that is started before and stopped afterwards."""
        backend, _, option = name.partition(" ")

        async def started(engine: Any) -> Any:
            await engine.start()
            try:
                return await calls(engine)
            finally:
                await engine.stop()

        if backend == "megatron":
            layout = MegatronLayout(**{"url": "", **LAYOUTS[option]})
            return self.processes.run(started(self.processes.trainer(self._case(layout))))
        if backend == "native":
            return self.team.run(started(self.reference.alone(self._case(MegatronLayout(url="", size=1)))))
        spec = TrainerSpec(path=self.reference.path, optimizer=ADAMW, budget=90, engine=self.engine)
        return self.team.run(started(self.team.trainer(replace(spec, zero_stage=int(option) if option else None))))

    @property
    def engine(self) -> str:
        return "native" if self.reference.config.model_type in ("llama", "qwen2", "qwen3") else "hf"

    def _case(self, layout: MegatronLayout) -> LayoutCase:
        return self.reference.case(layout, optimizer=ADAMW)


def after(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(read_tensors(folder))])


def moves(trainers: Trainers, names: tuple[str, ...], folder: Path, *, ring: bool = False) -> None:
    """Each trainer makes two updates, saves, and makes two more; each other loads its save and makes the same two.

    In a `ring` only the next one does.
    """
    batches = [example(trainers.reference.config.vocab_size, seed) for seed in range(4)]
    for index, writer in enumerate(names):

        async def save_and_go_on(engine: Any, index: int = index) -> Any:
            for batch in batches[:2]:
                await engine.update(batch, CLIPPED)
            await engine.save(folder / f"saved-{index}")
            return await go_on(engine)

        async def go_on(engine: Any) -> Any:
            metrics = [await engine.update(batch, CLIPPED) for batch in batches[2:]]
            await engine.save(folder / "after", resumable=False)
            return [(each["loss/policy"], each["loss/grad_norm"], each["loss/lr"]) for each in metrics]

        async def load_and_go_on(engine: Any, index: int = index) -> Any:
            await engine.load(folder / f"saved-{index}")
            return await go_on(engine)

        expected, weights = trainers.run(writer, save_and_go_on), after(folder / "after")
        others = [*names[index + 1 :], *names[:index]]
        for reader in others[:1] if ring else others:
            resumed = trainers.run(reader, load_and_go_on)
            difference = float((after(folder / "after") - weights).abs().max())
            for ours, theirs in zip(resumed, expected, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5), f"{writer} -> {reader}"
            assert difference < 1e-5, f"{writer} -> {reader}: weights differ by {difference}"


def test_a_dense_model_moves_from_each_trainer_to_the_next(
    team: Team, processes: RankProcesses, tmp_path: Path
) -> None:
    moves(Trainers(Reference("Qwen3", tmp_path, num_hidden_layers=2), team, processes), DENSE, tmp_path, ring=True)


@pytest.mark.sweep
def test_a_dense_model_moves_between_all_trainers(team: Team, processes: RankProcesses, tmp_path: Path) -> None:
    moves(Trainers(Reference("Qwen3", tmp_path, num_hidden_layers=2), team, processes), DENSE, tmp_path)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("ring", [True, False], ids=["ring", "all"])
def test_experts_move_between_trainers(ring: bool, team: Team, processes: RankProcesses, tmp_path: Path) -> None:
    """Experts are one tensor per layer in transformers and one per expert in Megatron's blocks and in files."""
    names = ("native", "deepspeed 3", "megatron tp2 ep2")
    trainers = Trainers(Reference("Qwen3-MoE", tmp_path, num_hidden_layers=2), team, processes)
    moves(trainers, names, tmp_path, ring=ring)
