"""Faults in the files of a model before a run starts: config.json, weights, tokenizer, adapters. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from roll.config.decoder import engine_of, model_fault
from roll.config.lora import Lora, native_fault, rank_fault, widths
from roll.config.schema import SPECIAL_TOKENS, Model, Run
from roll.errors import ConfigError

_GGUF = "GGUF files cannot be trained; give the folder of the original model on Hugging Face"


def config_faults(run: Run) -> Iterator[tuple[str, str]]:
    """Models on this machine that no trainer can load, by their config.json."""
    for key, path in _models(run):
        model = run.model if path == run.model.path else Model(path=path)
        if Path(path).is_dir() and (fault := _config_fault(model, run.rollout.max_seq_len)):
            yield key, fault


def weight_faults(run: Run) -> Iterator[tuple[str, str]]:
    """Missing weights, and tokenizers with more tokens than the model."""
    for key, path in _models(run):
        faults = list(_weight_faults(Path(path)))
        yield from ((key, fault) for fault in faults or _token_faults(Path(path)))


def adapter_faults(run: Run) -> Iterator[tuple[str, str]]:
    """A missing adapter to start from, or a rank that exceeds the model's widths."""
    if run.actor_train.lora is not None:
        yield from _adapter_faults(run.actor_train.lora, run.model, run.rollout.max_seq_len)


def vocabulary(model: Model) -> Mapping[str, int]:
    """The tokens of a model's tokenizer with their ids; empty if they cannot be told from tokenizer.json."""
    if model.shape is not None:
        return {token: index for index, token in enumerate((*SPECIAL_TOKENS, *model.shape.alphabet))}
    return _read_tokens(Path(model.path or ""))


def _read_tokens(directory: Path) -> dict[str, int]:
    try:
        content: Any = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        tokens = content["model"]["vocab"]
        added = {each["content"]: each["id"] for each in content["added_tokens"]}
        return {**tokens, **added} if isinstance(tokens, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # the start of the run reads the tokenizer, and reports what is wrong with it


def _token_faults(directory: Path) -> Iterator[str]:
    tokens = _read_tokens(directory)
    try:
        config: Any = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # reported with the other faults of config.json
    rows = cast(dict[str, Any], config).get("vocab_size") if isinstance(config, dict) else None
    if not tokens or not isinstance(rows, int):
        return
    token, highest = max(tokens.items(), key=lambda entry: entry[1])
    if highest >= rows:
        yield (
            f"{directory}: token {token!r} of its tokenizer has id {highest}, and the model has {rows} embeddings; "
            "take both from the same model, or resize the embeddings"
        )


def _models(run: Run) -> Iterator[tuple[str, str]]:
    roles = {role: getattr(run, role) for role in ("model", "critic", "reference", "teacher", "reward_model")}
    for role, section in roles.items():
        if section is not None and section.path is not None:
            yield f"{role}.path", section.path
    for index, policy in enumerate(run.policies):
        if policy.path is not None:
            yield f"policies.{index}.path", policy.path


def _config_fault(model: Model, max_seq_len: int) -> str:
    directory = Path(str(model.path))
    path = directory / "config.json"
    if not path.is_file():
        return f"{directory} has no config.json; give the folder of a Hugging Face model"
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{path}: not readable ({error}); copy it again from the model"
    if not isinstance(config, dict):
        return f"{path}: not a JSON object; copy it again from the model"
    values = cast(dict[str, Any], config)
    fault = model_fault(values, model.engine, max_seq_len) or _unknown_family(values, model, max_seq_len)
    return f"{path}: {fault}" if fault else ""


def _unknown_family(config: Any, model: Model, max_seq_len: int) -> str:
    """Why transformers has no such model; empty if it has. Native families are known without asking it."""
    if engine_of(config, model.engine, max_seq_len) == "native":
        return ""
    if "auto_map" in config:
        trusted = "it needs Python code from its directory; read that code, then set model.trust_remote_code"
        return "" if model.trust_remote_code else trusted
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.get("model_type")
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return ""
    return f"transformers has no causal language model of model_type {kind!r}; choose another model"


def _weight_faults(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        if directory.suffix == ".gguf" and directory.exists():
            yield f"{directory}: {_GGUF}"
            return
        wrong = "is not a directory" if directory.exists() else "no such directory"
        yield f"{wrong}: {directory}; give the folder of a Hugging Face model (get one with 'hf download')"
        return
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        missing = [name for name in _shards(index) if not (directory / name).is_file()]
        if missing:
            yield f"{directory} lacks {', '.join(missing)}, which its index names; download the weights again"
    elif any(directory.glob("*.safetensors")):
        return
    elif any(directory.glob("*.gguf")):
        yield f"{directory}: {_GGUF}"
    else:
        yield f"{directory} has no weights (*.safetensors); download or export them there"


def _adapter_faults(lora: Lora, model: Model, max_seq_len: int) -> Iterator[tuple[str, str]]:
    if lora.path is not None and not (Path(lora.path) / "adapter_config.json").is_file():
        yield "actor_train.lora.path", f"{lora.path} has no adapter_config.json; give the folder of an adapter"
    path = None if model.path is None else Path(model.path) / "config.json"
    if path is None or not path.is_file():
        return
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return  # the engine reports it
    if engine_of(config, model.engine, max_seq_len) == "native" and (fault := native_fault(lora)):
        yield "actor_train.lora.target_modules", fault
        return
    if not config.keys() >= {"hidden_size", "num_attention_heads", "intermediate_size"}:
        return
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    kv = (config.get("num_key_value_heads") or heads) * size
    if fault := rank_fault(lora, widths(hidden=hidden, q=heads * size, kv=kv, mlp=config["intermediate_size"])):
        yield "actor_train.lora.rank", fault


def _shards(index: Path) -> list[str]:
    """Names of all weight files in an index."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: broken index of weights ({error!r}); download the model again") from None
