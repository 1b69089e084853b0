"""What of vLLM sleeps and wakes, over an engine that only remembers it."""

import asyncio
from typing import Any

from roll.config.schema import Model
from roll.engines.native.model_spec import Origin
from roll.engines.vllm.generator import Settings, VllmGenerator
from roll.weights.inline import Shared


class Remembering:
    """Like vLLM it cannot drop its cache and keep its weights."""

    def __init__(self) -> None:
        self.asleep: set[str] = set()

    def reset_prefix_cache(self) -> bool:
        return True

    def sleep(self, level: int) -> None:
        self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags: list[str]) -> None:
        self.asleep -= set(tags)

    def is_sleeping(self) -> bool:
        return bool(self.asleep)


def serving() -> tuple[Any, Remembering]:
    settings = Settings(context=64, slots=8, prefill_tokens=64, flush_tokens=8, offload=True)
    generator: Any = VllmGenerator(Origin(model=Model(path="nowhere")), settings, Shared())
    generator._engine = engine = Remembering()
    return generator, engine


def test_what_was_not_asked_to_leave_and_had_to_comes_back_with_the_rest() -> None:
    generator, engine = serving()
    asyncio.run(generator.offload(["kv"]))
    assert engine.asleep == {"weights", "kv_cache"}
    asyncio.run(generator.onload(["kv"]))
    assert engine.asleep == set()


def test_weights_may_come_back_before_the_cache() -> None:
    generator, engine = serving()
    asyncio.run(generator.offload(["kv", "weights"]))
    asyncio.run(generator.onload(["weights"]))
    assert engine.asleep == {"kv_cache"}
    asyncio.run(generator.onload(["kv"]))
    assert engine.asleep == set()
