"""Every engine, fake or native, fulfils the contract of its protocol."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.errors import ConfigError
from tests.engines import contract
from tests.engines.models import generator, request, small, trainer


def in_a_process() -> Any:
    """The native generator as its own process has it: it samples between calls too."""
    engine = generator(small(), slots=8, context=contract.CONTEXT)
    engine.continuous = True
    return engine


GENERATORS: dict[str, Callable[[], Any]] = {
    "fake": lambda: FakeGenerator(max_seq_len=contract.CONTEXT),
    "native": lambda: generator(small(), slots=8, context=contract.CONTEXT),
    "native, continuous": in_a_process,
}
TRAINERS: dict[str, Callable[[], Any]] = {"fake": FakeTrainer, "native": lambda: trainer(small())}


def every(engines: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("make", engines.values(), ids=engines.keys())


@every(GENERATORS)
@pytest.mark.parametrize("promise", contract.GENERATOR)
def test_every_generator_fulfils_its_contract(make: Callable[[], Any], promise: Any) -> None:
    asyncio.run(promise(make()))


@every(GENERATORS)
def test_every_generator_offloads_and_onloads(make: Callable[[], Any]) -> None:
    engine = make()
    asyncio.run(contract.replies_are_the_same_after_offload_and_onload(engine, engine))


@every(GENERATORS)
def test_every_generator_can_be_probed(make: Callable[[], Any]) -> None:
    engine = make()
    asyncio.run(contract.a_probe_speaks_of_every_token_and_leaves_nothing_behind(engine, engine))


def test_a_continuous_generator_samples_between_calls_and_raises_its_errors_in_the_next() -> None:
    async def use() -> None:
        engine = in_a_process()
        await engine.start()
        await engine.events(0.0)
        await engine.submit([request("r", [1, 2, 3], 20)])
        while engine._busy:
            await asyncio.sleep(0)
        assert sum(len(output.ids) for output in await engine.events(0.0)) == 20
        engine._advance = broken
        await engine.submit([request("s", [1, 2, 3], 20)])
        with pytest.raises(ZeroDivisionError):
            await engine.events(60.0)
        await engine.stop()

    def broken() -> None:
        raise ZeroDivisionError

    asyncio.run(use())


@every(TRAINERS)
@pytest.mark.parametrize(
    "promise",
    [contract.logprobs_are_about_their_own_token, contract.an_update_that_is_not_finite_changes_nothing],
)
def test_every_trainer_fulfils_its_contract(make: Callable[[], Any], promise: Any) -> None:
    asyncio.run(promise(make()))


@every(TRAINERS)
def test_every_trainer_resumes_from_its_save(make: Callable[[], Any], tmp_path: Path) -> None:
    asyncio.run(contract.a_loaded_trainer_goes_on_as_the_saved_one(make(), make(), tmp_path))


@every(TRAINERS)
def test_every_trainer_offloads_and_onloads(make: Callable[[], Any]) -> None:
    engine = make()
    asyncio.run(contract.updates_are_the_same_after_offload_and_onload(engine, make(), engine))


def test_values_without_a_value_head_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no value head"):
        asyncio.run(trainer(small()).values(contract.batch_of(contract.ROWS)))
