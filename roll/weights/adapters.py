"""Adapters as directories, as peft writes and reads them: adapter_config.json and adapter_model.safetensors.

peft itself is not needed for it. Kinds of adapters that are not computed here are refused by what their files say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import safe_open

from roll.config.lora import Lora
from roll.errors import ConfigError
from roll.types import Digest

CONFIG, _TENSORS, _BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"
_PREFIX = "base_model.model."
_PLAIN: dict[str, tuple[Any, ...]] = {
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
"""Keys that change what an adapter is, and what they must say, or not say at all, for it to be one of ours."""


def write_adapter(
    directory: Path, lora: Lora, tensors: Iterable[tuple[str, torch.Tensor]], *, base: str | None
) -> None:
    """A directory that peft loads onto the model in `base`, where the model was read from one."""
    directory.mkdir(parents=True, exist_ok=True)
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "target_modules": list(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
    (directory / CONFIG).write_text(json.dumps(about, indent=2), encoding="utf-8")
    whole = {f"{_PREFIX}{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors}
    cast(Any, safetensors.torch).save_file(whole, directory / _TENSORS, metadata={"format": "pt"})


def read_adapter(directory: Path, lora: Lora) -> Iterator[tuple[str, torch.Tensor]]:
    """Every matrix of an adapter, by the names of ours, once it is known to be as `lora` says."""
    about = _described(directory)
    for key, allowed in _PLAIN.items():
        if key in about and about[key] not in allowed:
            raise ConfigError(
                f"{directory}/{CONFIG}: {key} {about[key]!r} is another kind of adapter than those computed here; "
                "merge it into its model with peft, and start from that"
            )
    found = {"rank": about.get("r"), "alpha": about.get("lora_alpha"), "targets": _targets(about)}
    for key, wanted in {"rank": lora.rank, "alpha": lora.alpha, "targets": sorted(lora.targets)}.items():
        if found[key] != wanted:
            raise ConfigError(
                f"actor_train.lora.{key}: the adapter in {directory} has {_spelled(found[key])} (got "
                f"{_spelled(wanted)}); an adapter goes on as it is, say the same here"
            )
    file = directory / _TENSORS
    try:
        opened: Any = safe_open(file, framework="pt")
    except Exception as error:  # noqa: BLE001 - safetensors raises its own untyped errors for broken files
        raise ConfigError(f"{file}: not a readable safetensors file ({error}); copy the adapter anew") from None
    with opened as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            yield name.removeprefix(_PREFIX), tensors.get_tensor(name)


def write_base(directory: Path, base: Digest) -> None:
    """Beside an adapter, what it was trained on, so that it goes on with nothing else."""
    text = json.dumps({kind: [f"{number:016x}" for number in sums] for kind, sums in base.sums.items()})
    (directory / _BASE).write_text(text, encoding="utf-8")


def check_base(directory: Path, base: Digest) -> None:
    """Raise where an adapter was trained on other weights than these; nothing where nobody wrote that down."""
    path = directory / _BASE
    if not path.is_file():
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    if found != {kind: [f"{number:016x}" for number in sums] for kind, sums in base.sums.items()}:
        raise ConfigError(
            f"{directory}: its adapter was trained on other weights than those of `model` now; name the model that "
            "the run began with, in the same actor_train.dtype"
        )


def _described(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"{directory}: no {CONFIG}; without actor_train.lora it was trained whole, else give an adapter's folder"
        )
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}); copy the adapter anew") from None


def _targets(about: dict[str, Any]) -> Any:
    named = about.get("target_modules")
    return sorted(str(name) for name in cast("list[Any]", named)) if isinstance(named, list) else named


def _spelled(value: Any) -> str:
    return ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
