"""A model from the checkpoint of a run that trains adapters: added into its model, or apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from roll.checkpoint import Checkpoints
from roll.config.load import load
from roll.data.templates import load_tokenizer
from roll.engines.native import lora
from roll.engines.native.model_spec import Origin, build
from roll.errors import ConfigError
from roll.weights.adapters import check_base, write_adapter
from roll.weights.huggingface import write_model


def export(directory: Path, output: Path, *, apart: bool) -> Path:
    """Write what the newest checkpoint of a run amounts to; which checkpoint that is."""
    newest = Checkpoints(directory / "checkpoints", keep=1).latest()
    if newest is None:
        raise ConfigError(f"{directory}: no checkpoint to export; give the directory of a run that has saved one")
    if output.exists():
        raise ConfigError(f"{output}: there already; name another directory")
    run = load(directory / "config.yaml", []).run
    if run.actor_train.lora is None:
        raise ConfigError(f"{directory}: its checkpoints are whole models already; take {newest}")
    adapter = run.actor_train.lora.model_copy(update={"path": str(newest)})
    frozen = torch.float32 if run.actor_train.dtype == "float32" else torch.bfloat16
    decoder = build(Origin(model=run.model, seed=run.seed, lora=adapter, frozen=frozen))
    check_base(newest, lora.frozen_digest(decoder))
    pairs = dict(lora.adapter_tensors(decoder))
    if apart:
        write_adapter(output, adapter, pairs.items(), base=run.model.path)
    else:
        write_model(output, decoder.config, dict(lora.merged(decoder.named_tensors(), pairs, adapter.scale)))
    tokenizer: Any = load_tokenizer(newest)
    tokenizer.save_pretrained(output)
    return newest
