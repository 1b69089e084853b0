"""LoRA adapters as directories that peft writes and reads: adapter_config.json and adapter_model.safetensors.

peft is not required. Adapters of a kind that the engines do not compute are refused by the keys of their config.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import safetensors.torch

from roll.config.lora import Lora
from roll.errors import ConfigError
from roll.weights.buckets import NamedTensor
from roll.weights.digest import Digest
from roll.weights.huggingface import read_file

CONFIG, _TENSORS, _BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"
_PREFIX = "base_model.model."
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_rslora": (False,),
    "use_dora": (False,),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
}
"""Config keys that change what an adapter computes, with the values that the engines support; a key may be absent."""


def write_adapter(
    directory: Path, lora: Lora, tensors: Iterable[NamedTensor], *, base: str | None, frozen: Digest | None = None
) -> None:
    """Write a directory that peft loads onto the model directory `base`; None if the model has none.

    The digest of the model's weights, `frozen`, is written next to it: the adapter is then not resumed on another one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "target_modules": list(lora.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
    contents = {f"{_PREFIX}{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors}
    cast(Any, safetensors.torch).save_file(contents, directory / _TENSORS, metadata={"format": "pt"})
    if frozen is not None:
        (directory / _BASE).write_text(json.dumps(_hex(frozen)), encoding="utf-8")


def read_adapter(directory: Path, lora: Lora) -> Iterator[NamedTensor]:
    """Every matrix of an adapter, by the decoder's names; raises if the adapter differs from `lora`."""
    config = _read_config(directory)
    for key, supported in _SUPPORTED.items():
        if key in config and config[key] not in supported:
            raise ConfigError(
                f"{directory}/{CONFIG}: adapters with {key} {config[key]!r} are not supported; merge it into its model "
                "with peft, and start from that"
            )
    saved = {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "target_modules": _targets(config)}
    for key, value in {"rank": lora.rank, "alpha": lora.alpha, "target_modules": sorted(lora.target_modules)}.items():
        if saved[key] != value:
            raise ConfigError(
                f"actor_train.lora.{key}: the adapter in {directory} has {_text(saved[key])} (got {_text(value)}); "
                "an adapter cannot change shape, set the same value here"
            )
    for name, tensor in read_file(directory / _TENSORS, "copy the adapter again"):
        yield name.removeprefix(_PREFIX), tensor


def check_base(directory: Path, base: Digest) -> None:
    """Raise if the adapter was trained on other weights than `base`; an adapter without a saved digest passes."""
    path = directory / _BASE
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != _hex(base):
        raise ConfigError(
            f"{directory}: its adapter was trained on other weights than those of `model`; set the model that the run "
            "began with, and the same actor_train.dtype"
        )


def _hex(digest: Digest) -> dict[str, list[str]]:
    return {dtype: [f"{number:016x}" for number in sums] for dtype, sums in digest.sums.items()}


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"{directory}: no {CONFIG}; give an adapter's directory, or remove actor_train.lora for a whole model"
        )
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}); copy the adapter again") from None


def _targets(config: dict[str, Any]) -> Any:
    names = config.get("target_modules")
    return sorted(str(name) for name in cast("list[Any]", names)) if isinstance(names, list) else names


def _text(value: Any) -> str:
    return ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
