"""Gradients of backend megatron in every layout, against those of one process with the model of transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import typer

from benchmarks.families import family_model
from benchmarks.layout_ranks import LayoutCase, RankProcesses
from benchmarks.result import Result
from roll.algorithms.recipe import Objective
from roll.config.megatron import family_fault, layout_fault
from roll.config.schema import Optimizer
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.megatron.ranks import MegatronLayout
from roll.engines.native.model_spec import build
from roll.engines.native.trainer import NativeTrainer
from roll.errors import one_line
from roll.types import Batch, Spec
from roll.weights.channel import Shared
from roll.weights.huggingface import read_tensors, write_model

_UNIT = "layouts with the gradient of one process"
BOUND = 1e-5
"""Largest difference of gradients, relative to the norm."""
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)
CLIPPED = Objective(loss=Spec("clipped"))
SQUARED = Objective(loss=Spec("squared_value"))
LAYOUTS: dict[str, dict[str, int]] = {
    "dp2": {"size": 2},
    "tp2": {"size": 2, "tp": 2},
    "pp2": {"size": 2, "pp": 2},
    "cp2": {"size": 2, "cp": 2},
    "ep2": {"size": 2, "ep": 2},
    "tp2 pp2": {"size": 4, "tp": 2, "pp": 2},
    "tp2 ep2": {"size": 4, "tp": 2, "ep": 2},
    "pp2 ep2": {"size": 4, "pp": 2, "ep": 2},
}
FAMILIES = ("Llama 3", "Qwen2", "Qwen3", "Qwen3-MoE", "Mixtral", "DeepSeek-V3")


def run() -> Result:
    """Number of layouts with the gradient of one process, against the number that the families can have."""
    if find_spec("megatron") is None:
        skipped = "megatron-core is not installed"
        return Result(name="layouts", unit=_UNIT, higher_is_better=True, skipped=skipped)
    passes, total, others = 0, 0, dict[str, str]()
    processes = RankProcesses()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for family in FAMILIES:
                reference = Reference(family, Path(folder) / family.replace(" ", "-"))
                for label, text, passed in _check_family(processes, reference):
                    typer.echo(f"{family}, {label}: {text}")
                    total, passes = total + (passed is not None), passes + bool(passed)
                    if not passed:
                        others[f"{family}, {label}"] = text
    finally:
        processes.close()
    return Result(
        name="layouts",
        unit=_UNIT,
        higher_is_better=True,
        ours=float(passes),
        bound=float(total),
        details={"others": others},
    )


def _check_family(processes: RankProcesses, reference: Reference) -> Iterator[tuple[str, str, bool | None]]:
    """For each layout its name, the result as text, and whether it passed; None where the family cannot have it."""
    for name, sizes in LAYOUTS.items():
        layout = MegatronLayout(url="", **sizes)
        if fault := reference.fault(layout):
            yield name, f"not possible: {fault}", None
            continue
        try:
            error = processes.run(reference.error(processes, layout))
            yield name, f"{error:.1e} of the norm", error < BOUND
        except Exception as error:  # noqa: BLE001 - the other layouts are checked all the same
            processes.kill()
            yield name, one_line(f"{type(error).__name__}: {error}")[:300], False


class Reference:
    """A small model of a family in a directory, and its gradient in one process."""

    def __init__(self, family: str, folder: Path, *, scored: bool = False, **changes: Any) -> None:
        """With `scored` it has a score head: a critic."""
        self.folder, self.scored = folder, scored
        decoder = HuggingFaceDecoder(family_model(family, **{"num_hidden_layers": 4, **changes}), scored=scored)
        if decoder.score is not None:
            decoder.score.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
        self.config, self.path = decoder.config, folder / "model"
        write_model(self.path, decoder.config, dict(decoder.named_tensors()))
        self.before, self.batch = weights_of(self.path), example(decoder.config.vocab_size)
        self.metrics: dict[str, dict[str, float]] = {}
        """Of the last update `alone` and of that of the `ranks`."""
        self._gradient: torch.Tensor | None = None

    def fault(self, layout: MegatronLayout) -> str:
        """Why the family cannot have this layout."""
        values = self.config.to_dict()
        sizes = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
        return family_fault(values) or layout_fault(values, workers=layout.size, **sizes)

    def case(self, layout: MegatronLayout, **changes: Any) -> LayoutCase:
        head = "score" if self.scored else "logits"
        return LayoutCase(**{"path": self.path, "layout": layout, "optimizer": SGD, "head": head, **changes})

    def alone(self, case: LayoutCase) -> NativeTrainer:
        """The trainer of the model of transformers, in this process."""
        return NativeTrainer(build(case.model_spec), case.settings, Shared())

    async def error(self, processes: RankProcesses, layout: MegatronLayout, **changes: Any) -> float:
        """The difference of the gradients, relative to the norm."""
        case = self.case(layout, **changes)
        if self._gradient is None:
            self._gradient = await self._gradient_of(self.alone(case), "alone")
        gradient = await self._gradient_of(processes.trainer(case), "ranks")
        return float((gradient - self._gradient).norm() / self._gradient.norm())

    async def _gradient_of(self, trainer: Any, name: str) -> torch.Tensor:
        """By one update with SGD at learning rate 1, which moves weights by exactly the gradient."""
        await trainer.start()
        self.metrics[name] = await trainer.update(self.batch, SQUARED if self.scored else CLIPPED)
        await trainer.save(self.folder / name, resumable=False)
        await trainer.stop()
        return self.before - weights_of(self.folder / name)


def weights_of(directory: Path) -> torch.Tensor:
    """All weights end to end, in the order of their names."""
    return torch.cat([tensor.double().flatten() for _, tensor in sorted(read_tensors(directory))])


def example(vocab: int, seed: int = 4, num_rows: int = 9) -> Batch:
    """A batch of rows of random tokens, whose advantages and old logprobs differ between tokens."""
    noise = torch.Generator().manual_seed(seed)
    lengths = tuple(torch.randint(2, 40, (num_rows,), generator=noise).tolist())
    total, owners = sum(lengths), torch.repeat_interleave(torch.arange(num_rows), torch.tensor(lengths))
    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    trained = torch.ones(total, dtype=torch.bool)
    trained[starts] = False
    numbers = torch.randn(3, total, generator=noise)
    return Batch(
        ids=torch.randint(1, vocab, (total,), generator=noise),  # transformers does not train the embedding of padding
        trained=trained,
        lengths=lengths,
        trajectory=torch.arange(num_rows),
        sampler_logprobs=numbers[1] - 3,
        versions=trained.int() - 1,
        advantages=numbers[0],
        returns=numbers[0],
        weights=trained.float() / trained.sum(),
        old_logprobs=numbers[2] * 0.1 - 3,
        group=torch.zeros(num_rows, dtype=torch.long),
        rewards=torch.zeros(num_rows),
        truncated=torch.zeros(num_rows, dtype=torch.bool),
        turn=owners,
        turn_trajectory=torch.arange(num_rows),
        turn_rewards=torch.zeros(num_rows),
    )
