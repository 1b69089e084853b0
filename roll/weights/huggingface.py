"""Hugging Face model directories: config.json, files of weights, tokenizer."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from roll.config.schema import Shape
from roll.errors import ConfigError, one_line
from roll.weights.buckets import NamedTensor

_GENERATION = "generation_config.json"
_SINGLE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TORCH_INDEX = "pytorch_model.bin.index.json"


def read_config(directory: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """The Hugging Face config of a model directory."""
    if not directory.is_dir():
        raise ConfigError(f"model.path: no directory {directory}; give one with config.json and weights")
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory}: no config.json; is this a Hugging Face model directory?")
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    except Exception as error:  # noqa: BLE001 - every family has its own validation errors
        reason = one_line(str(error))
        raise ConfigError(f"{directory}/config.json: not readable ({reason}); copy it again from the model") from None


def read_tensors(directory: Path) -> Iterator[NamedTensor]:
    """Every tensor of a model directory, file by file; of files written by torch if there are no others."""
    for file in weight_files(directory):
        yield from read_file(file, "download it again") if file.suffix == ".safetensors" else _read_torch_file(file)


def weight_files(directory: Path) -> list[Path]:
    """The files of weights of a model directory; raises `ConfigError` if one is missing."""
    files, index = sorted(directory.glob("*.safetensors")), directory / _INDEX
    if not files:
        files, index = sorted(directory.glob("pytorch_model*.bin")), directory / _TORCH_INDEX
    if not files:
        raise ConfigError(f"{directory}: no weights (*.safetensors or pytorch_model*.bin); download them")
    if index.is_file():
        indexed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(indexed - {file.name for file in files}):
            raise ConfigError(f"{directory}: {missing[0]} is missing; the download is incomplete")
        files = [file for file in files if file.name in indexed]
    return files


class TensorFiles(Mapping[str, torch.Tensor]):
    """The tensors of a model directory by name, each read when it is asked for; in files of torch all at once."""

    def __init__(self, directory: Path) -> None:
        files = [file for file in weight_files(directory) if file.suffix == ".safetensors"]
        self._shapes = {file: _shapes_in(file) for file in files}
        self._files = {name: file for file, shapes in self._shapes.items() for name in shapes}
        self._tensors = {} if self._files else dict(read_tensors(directory))

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._files:
            return self._tensors[name]
        opened: Any = safe_open(self._files[name], framework="pt")
        with opened as tensors:
            return tensors.get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""
        return self._shapes[self._files[name]][name] if name in self._files else tuple(self._tensors[name].shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files or self._tensors)

    def __len__(self) -> int:
        return len(self._files or self._tensors)


def _shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors in a safetensors file."""
    try:
        opened: Any = safe_open(file, framework="pt")
    except Exception as error:  # noqa: BLE001 - safetensors raises its own untyped errors for broken files
        raise ConfigError(f"{file}: not a readable safetensors file ({error}); download it again") from None
    with opened as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 - no mapping


def read_file(file: Path, fix: str) -> Iterator[NamedTensor]:
    """Every tensor of a safetensors file; `fix` ends the error about a broken one."""
    try:
        opened: Any = safe_open(file, framework="pt")
    except Exception as error:  # noqa: BLE001 - safetensors raises its own untyped errors for broken files
        raise ConfigError(f"{file}: not a readable safetensors file ({error}); {fix}") from None
    with opened as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            yield name, tensors.get_tensor(name)


def _read_torch_file(file: Path) -> Iterator[NamedTensor]:
    """Every tensor of a file written by `torch.save`, which may hold nothing else."""
    try:
        tensors: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file) or None)
        pairs: list[NamedTensor] = list(tensors.items())
        assert all(isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in pairs), "no tensors"
    except Exception as error:  # noqa: BLE001 - torch raises many types for broken files
        reason = one_line(str(error))[:200]
        raise ConfigError(f"{file}: not a readable file of weights ({reason}); download it again") from None
    yield from pairs


def write_model(directory: Path, config: PretrainedConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a directory that `transformers` loads; the tokenizer is not included."""
    write_sharded_model(directory, config, tensors.items(), file_bytes=sys.maxsize)


def classifier_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the same model with a score head: of a sequence classifier of transformers with one output."""
    changed: Any = copy.deepcopy(config)
    changed.num_labels = 1
    changed.architectures = [
        name.replace("ForCausalLM", "ForSequenceClassification") for name in config.architectures or ()
    ] or None
    ends: Any = getattr(config, "eos_token_id", None)
    padding = getattr(config, "pad_token_id", None)
    if padding in (ends if isinstance(ends, list) else [ends]):
        changed.pad_token_id = None  # it reads the last token that is no padding, which must be the end token
    return changed


def copy_generation_config(source: Path | None, directory: Path) -> None:
    """Copy the generation defaults of a model, if it has any; servers read stop tokens and sampling from them."""
    if source is not None and (source / _GENERATION).is_file():
        shutil.copyfile(source / _GENERATION, directory / _GENERATION)


def write_sharded_model(
    directory: Path, config: PretrainedConfig, tensors: Iterable[NamedTensor], *, file_bytes: int
) -> None:
    """Write a model from an iterator of tensors, in files of about `file_bytes`; at most one file is in memory."""
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    weight_map, total = write_files(directory, "model", tensors, file_bytes=file_bytes)
    if len(files := set(weight_map.values())) == 1:
        (directory / files.pop()).rename(directory / _SINGLE_FILE)
        return
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / _INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def write_files(
    directory: Path, stem: str, tensors: Iterable[NamedTensor], *, file_bytes: int
) -> tuple[dict[str, str], int]:
    """Write tensors to `STEM-00001.safetensors` and so on, of about `file_bytes` each, one after the other in memory.

    Returns the file of each tensor, and the number of bytes.
    """
    weight_map: dict[str, str] = {}
    pending: dict[str, torch.Tensor] = {}
    total = pending_bytes = 0

    def write() -> None:
        file = f"{stem}-{len(set(weight_map.values())) + 1:05}.safetensors"
        cast(Any, safetensors.torch).save_file(pending, directory / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(pending, file))
        pending.clear()

    for name, tensor in tensors:
        if pending and pending_bytes + tensor.nbytes > file_bytes:
            write()
            pending_bytes = 0
        pending[name] = tensor.detach().cpu().contiguous().clone()
        pending_bytes += tensor.nbytes
        total += tensor.nbytes
    if pending:
        write()
    return weight_map, total


def config_of(shape: Shape, *, vocab_size: int, eos_id: int, pad_id: int, bos_id: int) -> PretrainedConfig:
    """The Hugging Face config of a model that is built from a `shape` with random weights."""
    return AutoConfig.for_model(
        shape.architecture,
        architectures=[f"{shape.architecture.capitalize()}ForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=shape.mlp,
        max_position_embeddings=shape.max_seq_len,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        bos_token_id=bos_id,
        dtype="float32",
    )
