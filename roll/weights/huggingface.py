"""Model directories as Hugging Face lays them out: config.json, safetensors files, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from roll.config.schema import Shape
from roll.errors import ConfigError

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_config(directory: Path) -> PretrainedConfig:
    """The architecture of a model directory."""
    if not directory.is_dir():
        raise ConfigError(f"model.path: no directory {directory}; give one with config.json and *.safetensors")
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory}: no config.json; is this a Hugging Face model directory?")
    try:
        return cast(Any, AutoConfig).from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{directory}/config.json: cannot be read ({reason}); copy it anew from its origin") from None


def read_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a model directory, file by file."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"{directory}: no *.safetensors; save the model with safe_serialization, or download its weights"
        )
    index = directory / _INDEX
    if index.is_file():
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(wanted - {file.name for file in files}):
            raise ConfigError(f"{directory}: {missing[0]} is missing; the download is incomplete")
        files = [file for file in files if file.name in wanted]
    for file in files:
        try:
            opened: Any = safe_open(file, framework="pt")
        except Exception as error:  # noqa: BLE001 - safetensors raises its own untyped errors for broken files
            raise ConfigError(f"{file}: not a readable safetensors file ({error}); download it again") from None
        with opened as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tensors.get_tensor(name)


def write_model(directory: Path, config: PretrainedConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """A directory that `transformers` loads, tokenizer apart."""
    directory.mkdir(parents=True, exist_ok=True)
    cast(Any, config).save_pretrained(directory)
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    cast(Any, safetensors.torch).save_file(whole, directory / _WHOLE, metadata={"format": "pt"})


def write_pieces(
    directory: Path, config: PretrainedConfig, tensors: Iterable[tuple[str, torch.Tensor]], *, most_bytes: int
) -> None:
    """The same from tensors that come one by one, in files of about `most_bytes`: no more than one is ever held."""
    directory.mkdir(parents=True, exist_ok=True)
    cast(Any, config).save_pretrained(directory)
    place_of: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {}
    total = 0

    def write() -> None:
        file = f"model-{len(set(place_of.values())) + 1:05}.safetensors"
        cast(Any, safetensors.torch).save_file(held, directory / file, metadata={"format": "pt"})
        place_of.update(dict.fromkeys(held, file))
        held.clear()

    for name, tensor in tensors:
        if held and sum(each.nbytes for each in held.values()) + tensor.nbytes > most_bytes:
            write()
        held[name] = tensor.detach().cpu().contiguous().clone()
        total += tensor.nbytes
    if not place_of:
        cast(Any, safetensors.torch).save_file(held, directory / _WHOLE, metadata={"format": "pt"})
        return
    write()
    index = {"metadata": {"total_size": total}, "weight_map": place_of}
    (directory / _INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def config_of(shape: Shape, *, vocab_size: int, eos_id: int, pad_id: int, bos_id: int) -> PretrainedConfig:
    """The architecture of a model to be built from scratch."""
    return cast(Any, AutoConfig).for_model(
        shape.architecture,
        architectures=[f"{shape.architecture.capitalize()}ForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=shape.mlp,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        bos_token_id=bos_id,
        dtype="float32",
    )
