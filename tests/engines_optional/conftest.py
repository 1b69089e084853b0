"""Optional engines: their tests run where their packages are installed, and are skipped elsewhere."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.config.schema import Model
from roll.engines.native.decoder import Decoder
from roll.engines.native.model_spec import ModelSpec
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.weights.channel import Channel, Shared
from roll.weights.huggingface import write_model
from tests.engines import contract
from tests.engines.models import small

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "head_dim": 32,
    "intermediate_size": 128,
    "dtype": "float32",
    "initializer_range": 0.15,
}
"""The smallest model that vLLM's kernels allow."""


NEEDS_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make test-engines` has it")


def model(architecture: str = "qwen3", **changes: Any) -> Decoder:
    """Random weights in every parameter, norms and biases too."""
    names = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
    decoder = small(architecture, **{**SHAPE, "architectures": [names[architecture]], **changes})
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.05)
    return decoder


def settings(**changes: Any) -> VllmSettings:
    numbers: dict[str, Any] = {
        "max_seq_len": contract.CONTEXT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "progress_interval": 64,
        "dtype": "float32",
        "kv_cache_gib": 0.25,
        "enforce_eager": True,
    }
    return VllmSettings(**{**numbers, **changes})


class Engines:
    """vLLM engines by their settings, each started once, because a start takes seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: dict[str, Any] = {}

    def serving(self, decoder: Decoder, name: str, channel: Channel | None = None, **changes: Any) -> VllmGenerator:
        """A new generator over the engine of this model."""
        engines, path = self.started, self.path / name
        if name not in engines:
            write_model(path, decoder.config, dict(decoder.named_tensors()))

        class Reused(VllmGenerator):
            async def start(self) -> None:
                if name not in engines:
                    await super().start()
                    engines[name] = self._engine
                self._engine = engines[name]

            async def stop(self) -> None:
                assert not self._engine.has_unfinished_requests()

        return Reused(ModelSpec(model=Model(path=str(path))), settings(**changes), channel or Shared())

    async def stop(self) -> None:
        for engine in self.started.values():
            engine.engine_core.shutdown()


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = Engines(tmp_path_factory.mktemp("models"))
    yield built
    asyncio.run(built.stop())
