"""Small models and what the tests of engines do with them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from roll.config.schema import Optimizer
from roll.engines.base import Generator, Request
from roll.engines.native.build import multiply_by_blas
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator
from roll.engines.native.generator import Settings as InferSettings
from roll.engines.native.trainer import NativeTrainer
from roll.engines.native.trainer import Settings as TrainSettings
from roll.types import Batch, Finish, Sampling
from roll.weights.inline import Shared
from roll.weights.plan import Channel

torch.set_num_threads(1)
multiply_by_blas()

CPU = torch.device("cpu")
ANY = frozenset[int]()


def config(architecture: str = "qwen3", **changes: Any) -> Any:
    """Of a small model whose logits are far from flat."""
    numbers: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return AutoConfig.for_model(architecture, **{**numbers, **changes})


def small(architecture: str = "qwen3", seed: int = 0, **changes: Any) -> Decoder:
    """A decoder with random weights."""
    decoder = Decoder(config(architecture, **changes))
    decoder.initialise(seed)
    return decoder


def peer(settings: Any, seed: int = 0) -> Any:
    """The model that transformers builds from a config, with every parameter random: norms and biases too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def ours(model: Any) -> Decoder:
    """Our decoder with the weights of a transformers model."""
    decoder = Decoder(model.config)
    decoder.load(model.state_dict().items(), where="peer")
    return decoder


def generator(
    decoder: Decoder,
    *,
    slots: int = 8,
    context: int = 128,
    prefill_tokens: int = 8192,
    flush_tokens: int = 64,
    channel: Channel | None = None,
) -> NativeGenerator:
    settings = InferSettings(
        slots=slots, context=context, prefill_tokens=prefill_tokens, flush_tokens=flush_tokens, device=CPU
    )
    return NativeGenerator(decoder, settings, channel or Shared())


def trainer(
    decoder: Decoder,
    *,
    optimizer: Optimizer | None = None,
    budget: int = 4096,
    sampling: Sampling | None = None,
    channel: Channel | None = None,
    total_steps: int = 100,
) -> NativeTrainer:
    settings = TrainSettings(
        optimizer=optimizer or Optimizer(lr=1e-2),
        total_steps=total_steps,
        tokens_per_microbatch=budget,
        sampling=sampling or Sampling(),
        device=CPU,
    )
    return NativeTrainer(decoder, settings, channel or Shared())


def twin(decoder: Decoder) -> Decoder:
    """The same weights in another place."""
    return copy.deepcopy(decoder)


def request(name: str, ids: Sequence[int], new: int = 8, *, key: int | None = None, **changes: Any) -> Request:
    settings: dict[str, Any] = {"sampling": Sampling(), "stop": ANY, **changes}
    number = sum(ord(letter) * 31**place for place, letter in enumerate(name)) if key is None else key
    return Request(id=name, ids=tuple(ids), max_new_tokens=new, key=number, **settings)


def prompts(count: int, *, vocab: int = 40, shortest: int = 1, longest: int = 40, seed: int = 0) -> list[list[int]]:
    """Random ids of random lengths."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=noise).tolist()
    return [torch.randint(0, vocab, (length,), generator=noise).tolist() for length in lengths]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All outputs of one request, joined, as plain numbers."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    finish: Finish | None


async def collect(engine: Generator, num_requests: int) -> dict[str, Answer]:
    """What came of so many requests; every wait is bounded."""
    found: dict[str, Answer] = {}
    num_ended = 0
    for _ in range(10_000):
        for output in await engine.events(1.0):
            before = found.get(output.id)
            assert before is None or before.finish is None, f"{output.id} went on after its end"
            ids, logprobs = ((), ()) if before is None else (before.ids, before.logprobs)
            assert (output.ids.dtype, output.logprobs.dtype) == (np.int32, np.float32)
            found[output.id] = Answer(
                ids=(*ids, *output.ids.tolist()),
                logprobs=(*logprobs, *output.logprobs.tolist()),
                version=output.version,
                finish=output.finish,
            )
            num_ended += output.finish is not None
        if num_ended == num_requests:
            return found
    raise AssertionError(f"only {num_ended} of {num_requests} requests ended")


async def serve(engine: Generator, requests: Sequence[Request]) -> dict[str, Answer]:
    """What becomes of these requests, all submitted at once to a fresh engine."""
    await engine.start()
    await engine.submit(requests)
    found = await collect(engine, len(requests))
    await engine.stop()
    assert all(output.finish is not Finish.ABORT for output in found.values())
    return found


def batch_of(rows: Sequence[Sequence[int]], *, prompt: int = 1, **changes: Any) -> Batch:
    """Sequences whose tokens after the first `prompt` are trained, each its own trajectory."""
    lengths = tuple(len(row) for row in rows)
    ids = torch.tensor([token for row in rows for token in row])
    trained = torch.tensor([at >= prompt for row in rows for at in range(len(row))])
    fields: dict[str, Any] = {
        "sampler_logprobs": torch.zeros(len(ids)),
        "versions": trained.int() - 1,
        "advantages": trained.float(),
        "weights": trained.float() / trained.sum(),
        "group": torch.zeros(len(rows), dtype=torch.long),
        "rewards": torch.zeros(len(rows)),
        "truncated": torch.zeros(len(rows), dtype=torch.bool),
        "turn": torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths)),
        "turn_trajectory": torch.arange(len(rows)),
        "turn_rewards": changes.get("rewards", torch.zeros(len(rows))),
        **changes,
    }
    return Batch(ids=ids, trained=trained, lengths=lengths, trajectory=torch.arange(len(rows)), **fields)
