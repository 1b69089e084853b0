"""Router replay: the gap between the logprobs of vLLM and of the trainer, with and without vLLM's choice of experts.

A small Qwen3-MoE with random weights in bf16, where scores of experts are often nearly equal, as after training.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.families import family_model
from benchmarks.result import Result
from roll.config.schema import Model, Optimizer
from roll.data.collate import collate
from roll.engines.base import Request
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec, build
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.serving.dispatch import Sampled
from roll.types import Batch, Finish, Group, Sampling, Score, Segment, Status, Task, Trajectory, Turn
from roll.weights.channel import Mailbox
from roll.weights.huggingface import write_model

FAMILY, EXPERTS = "Qwen3-MoE", {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 128}
GOAL, _UNIT = 3.0, "times smaller"
_NUM_RESPONSES, _PROMPT, _NEW = 32, 24, 64


def run() -> Result:
    """How many times smaller the mean gap is with replay, against 3."""
    if importlib.util.find_spec("vllm") is None:
        return Result(name="router_replay", unit=_UNIT, higher_is_better=True, skipped="vllm is not installed")
    measured = measure(FAMILY, **EXPERTS)
    ours = measured["without"] / measured["with"]
    return Result(name="router_replay", unit=_UNIT, higher_is_better=True, ours=ours, bound=GOAL, details=measured)


def measure(name: str, **changes: Any) -> dict[str, float]:
    """The mean and the largest gap of a family in bf16, without and with replay."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        decoder = HuggingFaceDecoder(family_model(name, **changes))
        write_model(Path(directory), decoder.config, dict(decoder.named_tensors()))
        model_spec = ModelSpec(model=Model(path=directory), engine="hf")
        batch = asyncio.run(_sample(model_spec, decoder.config.vocab_size))
        trainer = _trainer(model_spec)
        replayed = asyncio.run(trainer.logprobs(batch))
        own = asyncio.run(trainer.logprobs(replace(batch, experts=None)))
    gaps = {"without": own, "with": replayed}
    means = {key: float(_gap(batch, each).mean()) for key, each in gaps.items()}
    return {**means, **{f"largest_{key}": float(_gap(batch, each).amax()) for key, each in gaps.items()}}


def _gap(batch: Batch, logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs.cpu() - batch.sampler_logprobs).abs()[batch.trained]


def _trainer(model_spec: ModelSpec) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=Optimizer(),
        total_steps=1,
        tokens_per_microbatch=4096,
        sampling=Sampling(),
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        precision=Precision(dtype=torch.bfloat16),
    )
    return NativeTrainer(build(model_spec), settings, Mailbox())


async def _sample(model_spec: ModelSpec, vocab: int) -> Batch:
    settings = VllmSettings(
        max_seq_len=_PROMPT + _NEW,
        max_num_seqs=_NUM_RESPONSES,
        max_num_batched_tokens=_NUM_RESPONSES * _PROMPT,
        progress_interval=_NEW,
        kv_cache_gib=0.5,
        dtype="bfloat16",
        router_replay=True,
    )
    engine = VllmGenerator(model_spec, settings, Mailbox())
    noise = np.random.default_rng(0)
    prompts = {f"{index}": noise.integers(1, vocab, _PROMPT).astype(np.int32) for index in range(_NUM_RESPONSES)}
    await engine.start()
    await engine.submit(
        [
            Request(
                id=name,
                ids=tuple(prompt.tolist()),
                max_new_tokens=_NEW,
                sampling=Sampling(),
                stop=frozenset(),
                key=int(name),
            )
            for name, prompt in prompts.items()
        ]
    )
    trajectories: list[Trajectory] = []
    while len(trajectories) < _NUM_RESPONSES:
        for output in await engine.events(10.0):
            assert output.finish is Finish.LENGTH, "the whole response is one output"
            versions = np.zeros(_NEW, np.int32)
            sampled = Sampled(ids=output.ids, logprobs=output.logprobs, versions=versions, experts=output.experts)
            trajectories.append(_trajectory(prompts[output.id], sampled, len(trajectories)))
    await engine.stop()
    return collate([Group(id=0, birth=0, trajectories=tuple(trajectories))])


def _trajectory(prompt: Any, sampled: Sampled, sibling: int) -> Trajectory:
    turn = Turn(
        observation=prompt,
        sampled=sampled.ids,
        sampler_logprobs=sampled.logprobs,
        versions=sampled.versions,
        finish=Finish.LENGTH,
        experts=sampled.turn_experts(len(prompt)),
    )
    return Trajectory(
        task=Task(id="task", domain="tasks"),
        sibling=sibling,
        segments=(Segment(turns=(turn,)),),
        status=Status.FINISHED,
        score=Score(0.0),
    )
