"""Small models and helpers for tests of engines."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from roll.config.schema import Optimizer
from roll.engines.base import Generator, Request
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.build import prefer_blas
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGenerator, NativeGeneratorSettings
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Batch, Finish, Sampling
from roll.weights.channel import Channel, Shared

torch.set_num_threads(1)
prefer_blas()

CPU = torch.device("cpu")
ANY = frozenset[int]()


def config(architecture: str = "qwen3", **changes: Any) -> Any:
    """Config of a small model with peaked logits."""
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
    from transformers import AutoModelForCausalLM  # takes two seconds: only where it is used

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def ours(model: Any) -> Decoder:
    """The decoder with the weights of a transformers model."""
    decoder = Decoder(model.config)
    decoder.load(model.state_dict().items(), where="peer")
    return decoder


def generator(
    decoder: Decoder | HuggingFaceDecoder,
    *,
    slots: int = 8,
    context: int = 128,
    prefill_tokens: int = 8192,
    flush_tokens: int = 64,
    channel: Channel | None = None,
) -> NativeGenerator:
    settings = NativeGeneratorSettings(
        max_num_seqs=slots,
        max_seq_len=context,
        max_num_batched_tokens=prefill_tokens,
        progress_interval=flush_tokens,
        device=CPU,
    )
    return NativeGenerator(decoder, settings, channel or Shared())


def trainer(
    decoder: Decoder | HuggingFaceDecoder,
    *,
    optimizer: Optimizer | None = None,
    budget: int = 4096,
    sampling: Sampling | None = None,
    channel: Channel | None = None,
    total_steps: int = 100,
) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=optimizer or Optimizer(lr=1e-2),
        total_steps=total_steps,
        tokens_per_microbatch=budget,
        sampling=sampling or Sampling(),
        device=CPU,
    )
    return NativeTrainer(decoder, settings, channel or Shared())


def twin(decoder: Decoder) -> Decoder:
    """A copy of the decoder."""
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
    """All outputs of one request, joined, as plain values."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    finish: Finish | None


async def collect(engine: Generator, num_requests: int) -> dict[str, Answer]:
    """The answers of this many requests; every wait has a timeout."""
    result: dict[str, Answer] = {}
    num_ended = 0
    for _ in range(10_000):
        for output in await engine.events(1.0):
            before = result.get(output.id)
            assert before is None or before.finish is None, f"{output.id} went on after its end"
            ids, logprobs = ((), ()) if before is None else (before.ids, before.logprobs)
            assert (output.ids.dtype, output.logprobs.dtype) == (np.int32, np.float32)
            result[output.id] = Answer(
                ids=(*ids, *output.ids.tolist()),
                logprobs=(*logprobs, *output.logprobs.tolist()),
                version=output.version,
                finish=output.finish,
            )
            num_ended += output.finish is not None
        if num_ended == num_requests:
            return result
    raise AssertionError(f"only {num_ended} of {num_requests} requests ended")


async def serve(engine: Generator, requests: Sequence[Request]) -> dict[str, Answer]:
    """The answers to these requests, all submitted at once to a new engine."""
    await engine.start()
    await engine.submit(requests)
    result = await collect(engine, len(requests))
    await engine.stop()
    assert all(output.finish is not Finish.ABORT for output in result.values())
    return result


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
