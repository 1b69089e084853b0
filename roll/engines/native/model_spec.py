"""Description of a native model and its weights, which can be sent to the process that builds it."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PretrainedConfig

from roll.config.decoder import engine_of, model_fault
from roll.config.lora import Lora
from roll.config.schema import Model
from roll.data.templates import character_tokenizer
from roll.engines.hf.decoder import HuggingFaceDecoder, check_packing, check_replay, empty_model
from roll.engines.native import lora
from roll.engines.native.decoder import Decoder
from roll.errors import ConfigError
from roll.weights.huggingface import config_of, read_config, read_tensors, write_model

Head = Literal["logits", "score", "new score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model directory, or a shape with random weights from a seed."""

    model: Model
    seed: int = 0
    head: Head = "logits"
    """`score`: one value per token instead of logits, from the directory; `new score`: the same, starting at zero."""
    lora: Lora | None = None
    """The adapters to train instead of the model; None to train the whole model."""
    frozen: torch.dtype = torch.float32
    """Dtype of the frozen model under adapters."""
    engine: str = "native"
    """`native` or `hf`; see `engine_for`."""
    replays_experts: bool = False
    """Whether a generator says which experts to choose."""

    @property
    def without_adapters(self) -> ModelSpec:
        """The same model without adapters."""
        return replace(self, lora=None, frozen=torch.float32)


def engine_for(model: Model, max_seq_len: int) -> str:
    """The engine that computes a model on sequences of this length; raises `ConfigError` if it cannot."""
    config = architecture(model).to_dict()
    if fault := model_fault(config, model.engine, max_seq_len):
        raise ConfigError(f"model: {fault}")
    return engine_of(config, model.engine, max_seq_len)


def architecture(model: Model) -> PretrainedConfig:
    """The Hugging Face config of a model before it is built."""
    if model.path is not None:
        return read_config(Path(model.path), trust_remote_code=model.trust_remote_code)
    assert model.shape is not None
    tokenizer = character_tokenizer(model.shape.alphabet)
    size, eos, pad, bos = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id
    return config_of(model.shape, vocab_size=size, eos_id=eos, pad_id=pad, bos_id=bos)


def build(model_spec: ModelSpec, device: torch.device | None = None) -> Any:
    """The model on the CPU; bitwise equal wherever it is built.

    A model with adapters is built directly on `device`: its frozen weights may fill a device and exceed the host.
    """
    if model_spec.engine == "hf":
        return build_huggingface(model_spec)
    return build_native(model_spec, device)


@contextmanager
def model_directory(model_spec: ModelSpec) -> Generator[Path]:
    """The model directory for an engine that reads one; a temporary one for a model that is built from a shape."""
    if model_spec.model.path is not None:
        yield Path(model_spec.model.path)
        return
    with tempfile.TemporaryDirectory() as directory:
        decoder = build(model_spec)
        write_model(Path(directory), decoder.config, dict(decoder.named_tensors()))
        yield Path(directory)


def build_huggingface(model_spec: ModelSpec) -> HuggingFaceDecoder:
    """A model of transformers, compared with its own forward pass."""
    config, path = architecture(model_spec.model), model_spec.model.path
    with torch.random.fork_rng([]):
        torch.manual_seed(model_spec.seed)
        model = empty_model(config, model_spec.frozen, trust_remote_code=model_spec.model.trust_remote_code)
    decoder = HuggingFaceDecoder(model, scored=model_spec.head != "logits")
    if path is not None:
        tensors = read_tensors(Path(path))
        decoder.load(_with_score(tensors, decoder) if model_spec.head == "new score" else tensors, where=path)
    check_packing(decoder)
    if model_spec.replays_experts:
        check_replay(decoder)
    if model_spec.lora is not None:
        decoder.attach(model_spec.lora)
        lora.initialise(decoder, model_spec.seed)
    return decoder


def build_native(model_spec: ModelSpec, device: torch.device | None) -> Decoder:
    """The native decoder."""
    with _defaults(model_spec.frozen, device if model_spec.lora is not None else None):
        decoder = Decoder(architecture(model_spec.model), scored=model_spec.head != "logits")
    if (path := model_spec.model.path) is None:
        decoder.initialise(model_spec.seed)
    else:
        tensors = read_tensors(Path(path))
        decoder.load(_with_score(tensors, decoder) if model_spec.head == "new score" else tensors, where=path)
    if model_spec.lora is not None:
        lora.initialise(lora.attach(decoder, model_spec.lora), model_spec.seed)
    return decoder


@contextmanager
def _defaults(dtype: torch.dtype, device: torch.device | None) -> Generator[None]:
    """Parameters created inside this block have this dtype, on this device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with nullcontext() if device is None else device:
            yield
    finally:
        torch.set_default_dtype(before)


def _with_score(tensors: Iterable[tuple[str, torch.Tensor]], decoder: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors without a language head, and with a score head of zeros unless there is one."""
    body = {name: tensor for name, tensor in tensors if name != "lm_head.weight"}
    assert decoder.score is not None
    return {"score.weight": torch.zeros_like(decoder.score), **body}.items()
