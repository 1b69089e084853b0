"""`roll export`: writes the newest LoRA checkpoint of a run as a merged model, or as an adapter alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer

from roll.checkpoint import Checkpoints
from roll.config.load import load
from roll.data.templates import load_tokenizer
from roll.engines.native import lora
from roll.engines.native.model_spec import ModelSpec, build, engine_for
from roll.errors import ConfigError
from roll.journal.database import check_format
from roll.tracking.directory import JOURNAL, check_run
from roll.weights.adapters import check_base, write_adapter
from roll.weights.huggingface import copy_generation_config, write_model


def export(directory: Path, output: Path, *, adapter_only: bool) -> Path:
    """Write the newest checkpoint of a run to `output`; the path of that checkpoint."""
    check_run(directory)
    check_format(directory / JOURNAL)
    checkpoint = Checkpoints(directory / "checkpoints", keep=1).newest_intact()
    if checkpoint is None:
        raise ConfigError(f"{directory}: no checkpoint to export; give the directory of a run that has saved one")
    newest = checkpoint.path
    for note in checkpoint.notes:
        typer.echo(note, err=True)
    if output.exists():
        raise ConfigError(f"{output}: exists already; name another directory")
    run = load(directory / "config.yaml", []).run
    if run.actor_train.lora is None:
        raise ConfigError(f"{directory}: its checkpoints are complete models already; use {newest}")
    adapter = run.actor_train.lora.model_copy(update={"path": str(newest)})
    frozen = torch.float32 if run.actor_train.dtype == "float32" else torch.bfloat16
    engine = engine_for(run.model, run.rollout.max_seq_len)
    decoder = build(ModelSpec(model=run.model, seed=run.seed, lora=adapter, frozen=frozen, engine=engine))
    check_base(newest, lora.frozen_digest(decoder))
    pairs = dict(decoder.adapter_tensors())
    if adapter_only:
        write_adapter(output, adapter, pairs.items(), base=run.model.path)
    else:
        write_model(output, decoder.config, dict(lora.merge(decoder.named_tensors(), pairs, adapter.scale)))
    tokenizer: Any = load_tokenizer(newest)
    tokenizer.save_pretrained(output)
    copy_generation_config(None if run.model.path is None else Path(run.model.path), output)
    return newest
