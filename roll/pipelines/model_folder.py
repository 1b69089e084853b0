"""The folders of models in a checkpoint or an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll.cluster.handle import Cluster
from roll.engines.base import Trainer
from roll.weights.huggingface import copy_generation_config


def policy_folder(path: Path, policy: str) -> Path:
    """The folder of a policy in a checkpoint or exported model. A run with one policy names it "": no subfolder."""
    return path / "policies" / policy if policy else path


def trainer_folders(
    path: Path, trainers: Mapping[str, Cluster[Trainer]], critic: Cluster[Trainer] | None
) -> dict[Path, Cluster[Trainer]]:
    """All trainers by their folders in a checkpoint."""
    folders = {policy_folder(path, policy): cluster for policy, cluster in trainers.items()}
    return folders if critic is None else {**folders, path / "critic": critic}


def write_companions(folder: Path, tokenizer: Any, origin: Path | None) -> None:
    """Write the files of a model that its trainer does not have; `origin` is the model that it started from."""
    tokenizer.save_pretrained(folder)
    copy_generation_config(origin, folder)
