"""Where the weights of a native model come from: a description that travels to whichever process builds it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from transformers import PretrainedConfig

from roll.config.lora import Lora
from roll.config.schema import Model
from roll.data.templates import character_tokenizer
from roll.engines.native import lora
from roll.engines.native.decoder import Decoder
from roll.weights.huggingface import config_of, read_config, read_tensors

Head = Literal["logits", "score", "new score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A directory to read, or a shape to make up from a seed."""

    model: Model
    seed: int = 0
    head: Head = "logits"
    """`score`: one number a token instead of logits, from the directory; `new score`: zeros, whatever there is."""
    lora: Lora | None = None
    """The adapters that are trained instead of the model; None: it has none."""
    frozen: torch.dtype = torch.float32
    """Of the model under adapters, which is held as it is computed with."""

    @property
    def alone(self) -> Origin:
        """The same model without adapters."""
        return replace(self, lora=None, frozen=torch.float32)


def architecture(model: Model) -> PretrainedConfig:
    """The Hugging Face config of a model that is not built yet."""
    if model.path is not None:
        return read_config(Path(model.path))
    assert model.shape is not None
    tokenizer = character_tokenizer(model.shape.alphabet)
    size, eos, pad, bos = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id
    return config_of(model.shape, vocab_size=size, eos_id=eos, pad_id=pad, bos_id=bos)


def build(origin: Origin, device: torch.device | None = None) -> Decoder:
    """The model, on the CPU; the same bits wherever it is built.

    One with adapters can be built on a `device` at once: what is frozen may be all that a device holds, and more than
    the host does.
    """
    with _held(origin.frozen, device if origin.lora is not None else None):
        decoder = Decoder(architecture(origin.model), scored=origin.head != "logits")
    _fill(decoder, origin)
    if origin.lora is not None:
        lora.begin(lora.attach(decoder, origin.lora), origin.seed)
    return decoder


def _fill(decoder: Decoder, origin: Origin) -> None:
    """Give it weights."""
    if origin.model.path is None:
        decoder.initialise(origin.seed)
        return
    tensors = read_tensors(Path(origin.model.path))
    decoder.load(_with_score(tensors, decoder) if origin.head == "new score" else tensors, where=origin.model.path)


@contextmanager
def _held(dtype: torch.dtype, device: torch.device | None) -> Generator[None]:
    """Parameters that are made inside this block have this dtype, and lie there."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with nullcontext() if device is None else device:
            yield
    finally:
        torch.set_default_dtype(before)


def _with_score(tensors: Iterable[tuple[str, torch.Tensor]], decoder: Decoder) -> Iterable[tuple[str, torch.Tensor]]:
    """With a head of zeros, unless there is one, and without one for logits."""
    found = {name: tensor for name, tensor in tensors if name != "lm_head.weight"}
    assert decoder.score is not None
    return {"score.weight": torch.zeros_like(decoder.score), **found}.items()
