"""One trial of `gpu_memory`: two updates of a model with random weights; reports whether they fit in memory.

python -m benchmarks.gpu_memory_try '{"shape": {...}, "layers": 36, "lora": null}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_memory import TOKENS
from benchmarks.gpu_model import VOCAB, qwen3
from roll.algorithms.recipe import Objective
from roll.config.lora import Lora
from roll.config.schema import Optimizer
from roll.data.collate import supervised
from roll.engines.native import lora
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Batch, Sampling, Spec
from roll.weights.channel import Mailbox

ROWS, PROMPT, UPDATES = 4, 128, 2


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Whether the updates fit, and the peak bytes that torch allocated."""
    try:
        asyncio.run(_train(spec))
    except torch.OutOfMemoryError:
        return {"fits": False, "peak": torch.cuda.max_memory_allocated()}
    return {"fits": True, "peak": torch.cuda.max_memory_allocated()}


async def _train(spec: dict[str, Any]) -> None:
    trainer = _trainer(random_decoder(spec["shape"], spec["layers"], spec["lora"]))
    await trainer.start()
    for _ in range(UPDATES):
        metrics = await trainer.update(batch(), Objective(loss=Spec("clipped")))
        assert not metrics["loss/refused"], f"the update was not finite: {metrics}"


def random_decoder(shape: dict[str, int], layers: int, adapters: dict[str, Any] | None = None) -> Decoder:
    """A model with random weights, created on the device alone; with LoRA its own weights have 16 bits."""
    config = qwen3(**shape, num_hidden_layers=layers, tie_word_embeddings=False)
    with torch.device("meta"):
        decoder = Decoder(config)
    tables = {name: getattr(decoder, name) for name in ("cos", "sin")}
    if adapters is not None:
        decoder.to(torch.bfloat16)
    decoder.to_empty(device="cuda")
    for name, table in tables.items():  # `to_empty` would lose their values
        setattr(decoder, name, table.to("cuda"))
    noise = torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim == 2 and not name.endswith("norm"):
                parameter.normal_(0, decoder.shape.init_std, generator=noise)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    for module in decoder.layers:
        heads = [0] * decoder.shape.heads + [1] * decoder.shape.kv_heads
        module.norm_of_head = torch.tensor(heads, device="cuda")  # pyright: ignore[reportAttributeAccessIssue]
    if adapters is not None:
        lora.initialise(lora.attach(decoder, Lora(**adapters)), seed=0)
    return decoder


def batch() -> Batch:
    """Sequences of random ids; all tokens but the prompts are trained."""
    noise = torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(4, VOCAB, (ROWS, TOKENS), generator=noise).numpy().tolist()
    plain = supervised([(row[:PROMPT], row[PROMPT:]) for row in rows])
    return replace(plain, advantages=torch.randn(plain.num_tokens, generator=noise))


def _trainer(decoder: Decoder) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=Optimizer(lr=1e-6),
        total_steps=10,
        tokens_per_microbatch=TOKENS,
        sampling=Sampling(),
        device=torch.device("cuda"),
        precision=Precision(dtype=torch.bfloat16, checkpointing=True),
    )
    return NativeTrainer(decoder, settings, Mailbox())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
