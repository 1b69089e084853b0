"""Sleeping and waking of vLLM, over an engine that records the calls."""

import asyncio
from typing import Any

from roll.config.schema import Model
from roll.engines.native.model_spec import ModelSpec
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.weights.channel import Shared


class Remembering:
    """Like vLLM, it cannot drop its cache and keep its weights."""

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
    settings = VllmSettings(
        max_seq_len=64, max_num_seqs=8, max_num_batched_tokens=64, progress_interval=8, offload=True
    )
    generator: Any = VllmGenerator(ModelSpec(model=Model(path="nowhere")), settings, Shared())
    generator._engine = engine = Remembering()
    return generator, engine


def test_parts_offloaded_without_being_named_are_loaded_with_the_rest() -> None:
    generator, engine = serving()
    asyncio.run(generator.offload(["kv"]))
    assert engine.asleep == {"weights", "kv_cache"}
    asyncio.run(generator.onload(["kv"]))
    assert engine.asleep == set()


def test_weights_can_be_loaded_before_the_cache() -> None:
    generator, engine = serving()
    asyncio.run(generator.offload(["kv", "weights"]))
    asyncio.run(generator.onload(["weights"]))
    assert engine.asleep == {"kv_cache"}
    asyncio.run(generator.onload(["kv"]))
    assert engine.asleep == set()
