"""An optimizer of the user's in the native trainer: arguments, state in checkpoints, schedule, errors in one line."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.data.collate import supervised
from roll.engines.native.decoder import Decoder
from roll.errors import ConfigError
from roll.types import Spec
from tests.engines.models import small, trainer, twin

BATCH = supervised([((1, 2), (3, 4, 5)), ((2,), (6, 7))])
OBJECTIVE = Objective(loss=Spec("policy_gradient"))


class Signs(torch.optim.Optimizer):
    """Steps of a fixed size along the sign of the gradient's running mean."""

    def __init__(self, params: Any, *, lr: float, keep: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "keep": keep})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    mean.lerp_(parameter.grad, 1 - group["keep"])
                    parameter.sub_(mean.sign(), alpha=group["lr"])


class Broken(Signs):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise RuntimeError("no step")


class Hoarder(Signs):
    """Its state has an object that torch does not read back."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for state in self.state.values():
            state["path"] = Path("x")


def not_an_optimizer(params: Any, *, lr: float) -> str:
    return "x"


def config(name: str = "Signs", **changes: Any) -> Optimizer:
    return Optimizer(kind=f"{__name__}:{name}", lr=0.5, max_grad_norm=None, **changes)


def weights(decoder: Decoder) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in decoder.parameters()])


async def updated(decoder: Decoder, optimizer: Optimizer, path: Path, *, restart: bool) -> torch.Tensor:
    """The weights after two updates, from a checkpoint between them if `restart`."""
    engine = trainer(decoder, optimizer=optimizer, total_steps=2)
    await engine.start()
    await engine.update(BATCH, OBJECTIVE)
    if restart:
        await engine.save(path)
        decoder = small(seed=9)
        engine = trainer(decoder, optimizer=optimizer, total_steps=2)
        await engine.start()
        await engine.load(path)
    await engine.update(BATCH, OBJECTIVE)
    return weights(decoder)


def test_the_first_step_has_the_size_of_the_scheduled_learning_rate():
    decoder = small()
    before = weights(decoder)
    engine = trainer(decoder, optimizer=config(warmup_steps=1))

    async def run() -> dict[str, float]:
        await engine.start()
        return await engine.update(BATCH, OBJECTIVE)

    metrics = asyncio.run(run())
    moved = (weights(decoder) - before).abs()
    assert metrics["loss/lr"] == 0.25 and float(moved.max()) == pytest.approx(0.25, rel=1e-5)


def test_a_resumed_run_continues_with_the_state_of_the_optimizer(tmp_path: Path):
    model = small()
    optimizer = config(arguments={"keep": 0.9})
    straight = asyncio.run(updated(twin(model), optimizer, tmp_path, restart=False))
    resumed = asyncio.run(updated(twin(model), optimizer, tmp_path / "saved", restart=True))
    assert torch.equal(straight, resumed)


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("Broken", {}, "Broken': step: RuntimeError: no step ("),
        ("Signs", {"momentum": 1}, "Signs': __init__: TypeError: Signs.__init__() got an unexpected keyword argument"),
        ("not_an_optimizer", {}, "not_an_optimizer': not a torch.optim.Optimizer (got str); derive it from that"),
    ],
)
def test_an_error_of_the_optimizer_is_one_line(name: str, arguments: dict[str, Any], problem: str, tmp_path: Path):
    with pytest.raises(ConfigError) as raised:
        asyncio.run(updated(small(), config(name, arguments=arguments), tmp_path, restart=False))
    assert problem in str(raised.value) and "\n" not in str(raised.value)


def test_a_state_that_cannot_be_read_back_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"optimizer.pt: the state of the optimizer has objects that are not read"):
        asyncio.run(updated(small(), config("Hoarder"), tmp_path / "saved", restart=True))


def test_its_state_moves_with_the_others():
    engine = trainer(small(), optimizer=config())

    async def run() -> set[torch.dtype]:
        await engine.start()
        await engine.update(BATCH, OBJECTIVE)
        await engine.offload(["optimizer"])
        await engine.onload(["optimizer"])
        return {state["mean"].dtype for state in engine._optimizer.state.values()}

    assert asyncio.run(run()) == {torch.float32}
    assert replace(engine.settings).optimizer.custom == Spec(f"{__name__}:Signs", {"lr": 0.5})
