"""Faults in the files of a model before a run starts: config.json, weights, tokenizer, adapters. Imports no torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from roll.config.backends import MegatronTrain, VllmInfer
from roll.config.decoder import NUM_CHOSEN, engine_of, model_fault
from roll.config.devices import num_devices
from roll.config.lora import Lora, native_fault, rank_fault, widths
from roll.config.megatron import family_fault, layout_fault, package_fault
from roll.config.roles import RoleConfig
from roll.config.schema import SPECIAL_TOKENS, Model, Run
from roll.errors import ConfigError, one_line

_GGUF = "GGUF files cannot be trained; give the folder of the original model on Hugging Face"
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
"""Vocabulary files of tokenizers, of which a directory needs one."""
_OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM")
"""Endings of architectures without a language head."""
_SCORED = ("critic.path", "reward_model.path", "reward_training.path")
"""Keys of models with a score head, which need no language head."""
_SCORE = "score.weight"
_WEIGHTS = (("model.safetensors.index.json", "*.safetensors"), ("pytorch_model.bin.index.json", "pytorch_model*.bin"))
"""Index and files of weights; the first form that a directory has is read."""
_LFS = b"version https://git-lfs"


def config_faults(run: Run) -> Iterator[tuple[str, str]]:
    """Models on this machine that no trainer can load, by their config.json."""
    for key, path in _models(run):
        model = run.model if path == run.model.path else Model(path=path)
        generates = key not in _SCORED
        if Path(path).is_dir() and (fault := _config_fault(model, run.rollout.max_seq_len, generates=generates)):
            yield key, fault
    infer = run.actor_infer
    if infer.backend == "native" and run.actor_train.dtype != "float32" and _takes_hf(run):
        yield (
            "actor_infer.backend",
            f"native samples models of the engine hf with float32 only (got {run.actor_train.dtype}); choose vllm, or "
            "set actor_train.dtype to float32",
        )
    if isinstance(infer, VllmInfer) and infer.router_replay and not _has_experts(Path(run.model.path or "")):
        yield "actor_infer.router_replay", "the model has no experts; leave it out"
    if isinstance(infer, VllmInfer) and infer.quantization is not None and _takes_hf(run):
        yield (
            "actor_infer.quantization",
            "only models of the engine native are quantised (Llama, Mistral, Qwen2, Qwen3, SmolLM2); leave it out",
        )
    losses = getattr(run.actor_train, "router_losses", None)
    if losses is not None and losses.enabled and not _has_experts(Path(run.model.path or "")):
        yield "actor_train.router_losses", "the model has no experts; leave it out"


def megatron_faults(run: Run, *, installed: bool = True) -> Iterator[tuple[str, str]]:
    """Models and layouts that backend megatron cannot compute, and, unless `installed` is false, a missing package."""
    train = run.actor_train
    if not isinstance(train, MegatronTrain):
        return
    if config := _model_values(run.model):
        if fault := family_fault(config):
            yield "actor_train.backend", fault
        elif fault := layout_fault(config, workers=_num_known_workers(train), **train.parallel.model_dump()):
            yield "actor_train.parallel", fault
    for role in ("critic", "reference", "teacher", "reward_model"):
        section: Any = getattr(run, role)
        if section is None or not section.sharded or section.path is None:
            continue
        config, sizes = _model_values(Model(path=section.path)), train.parallel.model_dump()
        if config and (fault := family_fault(config) or layout_fault(config, workers=None, **sizes)):
            yield f"{role}.sharded", fault
    if installed and train.python is None and (fault := package_fault(_installed_version("megatron-core"))):
        yield "actor_train.backend", fault


def _num_known_workers(section: RoleConfig) -> int | None:
    known = section.workers is not None or num_devices(section.devices) is not None
    return section.num_workers if known else None


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _model_values(model: Model) -> dict[str, Any]:
    """The contents of a model's config.json, or the same of a shape; empty if it cannot be read."""
    if (shape := model.shape) is not None:
        return {
            "model_type": shape.architecture,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.mlp,
        }
    try:
        config: Any = json.loads((Path(str(model.path)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # reported with the other faults of config.json
    return cast(dict[str, Any], config) if isinstance(config, dict) else {}


def _takes_hf(run: Run) -> bool:
    """Whether the actor is computed by the engine `hf`, as far as the files on this machine tell."""
    if run.model.path is None or run.model.engine != "auto":
        return run.model.engine == "hf"
    try:
        config: Any = json.loads((Path(run.model.path) / "config.json").read_text(encoding="utf-8"))
        return engine_of(config, "auto", run.rollout.max_seq_len) == "hf"
    except (OSError, ValueError, AttributeError):
        return False  # reported with the other faults of config.json


def _has_experts(directory: Path) -> bool:
    try:
        config: Any = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return any(config.get(key) for key in NUM_CHOSEN)
    except (OSError, ValueError, AttributeError):
        return directory.name != ""  # reported with the other faults of config.json


def weight_faults(run: Run) -> Iterator[tuple[str, str]]:
    """Missing or truncated weights, missing tokenizers, and tokenizers with more tokens than the model."""
    for key, path in _models(run):
        faults = list(_weight_faults(Path(path)))
        faults = faults or list(_token_faults(Path(path)))
        if not faults and key in _SCORED and (fault := _score_fault(Path(path), needed=key == "reward_model.path")):
            faults = [fault]
        yield from ((key, fault) for fault in faults)


def tokenizer_fault(directory: Path) -> str:
    """Why a directory has no tokenizer; empty if it has the files of one. From config.json alone, transformers would
    build an empty one."""
    if any(path for pattern in _VOCABULARIES for path in directory.glob(pattern)):
        return ""
    return f"{directory}: no tokenizer in it ({', '.join(_VOCABULARIES)}); save one with the weights"


def adapter_faults(run: Run) -> Iterator[tuple[str, str]]:
    """A missing adapter to start from, or a rank that exceeds the model's widths."""
    if run.actor_train.lora is not None:
        yield from _adapter_faults(run.actor_train.lora, run.model, run.rollout.max_seq_len)


def vocabulary(model: Model) -> Mapping[str, int]:
    """The tokens of a model's tokenizer with their ids; empty if tokenizer.json does not say."""
    if model.shape is not None:
        return {token: index for index, token in enumerate((*SPECIAL_TOKENS, *model.shape.alphabet))}
    return _read_tokens(Path(model.path or ""))


def num_embeddings(model: Model) -> int | None:
    """Tokens of the output layer, which may exceed those of the tokenizer; None if config.json does not say."""
    if model.shape is not None:
        return len(vocabulary(model))
    size = _model_values(model).get("vocab_size")
    return size if isinstance(size, int) else None


def _read_tokens(directory: Path) -> dict[str, int]:
    try:
        content: Any = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        tokens = content["model"]["vocab"]
        added = {each["content"]: each["id"] for each in content["added_tokens"]}
        if isinstance(tokens, list):  # unigram models list tokens with their scores
            tokens = {each[0]: index for index, each in enumerate(cast("list[Any]", tokens))}
        return {**tokens, **added} if isinstance(tokens, dict) else {}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}  # the start of the run reads the tokenizer, and reports what is wrong with it


def _token_faults(directory: Path) -> Iterator[str]:
    if fault := tokenizer_fault(directory):
        yield fault
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
    if run.reward_training is not None and run.reward_training.path is not None:
        yield "reward_training.path", run.reward_training.path
    for index, policy in enumerate(run.policies):
        if policy.path is not None:
            yield f"policies.{index}.path", policy.path


def _config_fault(model: Model, max_seq_len: int, *, generates: bool) -> str:
    """`generates`: whether the model needs a language head."""
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
    fault = (
        model_fault(values, model.engine, max_seq_len)
        or _unknown_family(values, model, max_seq_len)
        or (_head_fault(values) if generates else "")
    )
    return f"{path}: {fault}" if fault else ""


def _head_fault(config: Mapping[str, Any]) -> str:
    """Why the weights have no language head; empty if they have one, or if that is unknown."""
    listed: Any = config.get("architectures")
    names = [str(name) for name in cast("list[Any]", listed)] if isinstance(listed, list) else []
    if not names or not all(name.endswith(_OTHER_HEADS) for name in names):
        return ""
    return f"its weights are a {names[0]}, which has no language head; choose another model"


def _score_fault(directory: Path, *, needed: bool) -> str:
    """Why a model lacks the score head that it needs or that its config.json names; empty if it has one."""
    try:
        config: Any = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        listed = str(config.get("architectures"))
        names = _tensor_names(directory)
    except (OSError, ValueError, KeyError, AttributeError):
        return ""  # reported with the other faults of these files
    if not names or _SCORE in names or not (needed or "ForSequenceClassification" in listed):
        return ""
    return f"{directory}: its weights have no {_SCORE}; train one with `roll reward`, or choose a reward model"


def _tensor_names(directory: Path) -> set[str]:
    """Names of all tensors in safetensors files; empty if there are none."""
    names: set[str] = set()
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            names |= header.keys() - {"__metadata__"}
    return names


def _unknown_family(config: Any, model: Model, max_seq_len: int) -> str:
    """Why transformers has no such model; empty if it has. Native families are known without asking it."""
    if engine_of(config, model.engine, max_seq_len) == "native":
        return ""
    if model.trust_remote_code and "auto_map" in config:
        return _missing_code(config["auto_map"], Path(str(model.path)))
    from transformers.models.auto import modeling_auto as auto

    if not isinstance(kind := config.get("model_type"), str):
        return "it has no model_type; copy it again from the model"
    if kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and "auto_map" in config:
        return "it needs Python code from its directory; read that code, then set model.trust_remote_code"
    if kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return f"transformers has no causal language model of model_type {kind!r}; choose another model"
    two_sided = kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
    if two_sided or kind in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return f"model_type {kind!r} has an encoder; choose a model with a decoder only"
    return _invalid_values(kind, config, model, max_seq_len)


def _missing_code(auto_map: Any, directory: Path) -> str:
    """Which file of a model's Python code is missing; empty if none is. Code of another model has `--` in its name."""
    classes = cast(dict[str, Any], auto_map).values() if isinstance(auto_map, dict) else ()
    modules = {each.partition(".")[0] for each in classes if isinstance(each, str) and "--" not in each}
    missing = sorted(module for module in modules if not (directory / f"{module}.py").is_file())
    return f"it needs {missing[0]}.py, which is not there; download it with the model" if missing else ""


def _invalid_values(kind: str, config: Mapping[str, Any], model: Model, max_seq_len: int) -> str:
    """What transformers rejects in the values of a config, or `hf` in its defaults; empty if they are valid."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family: Any = CONFIG_MAPPING[kind]
    try:
        values = family.from_dict(dict(config)).to_dict()
    except Exception as error:  # noqa: BLE001 - every family has its own validation errors
        return f"transformers rejects its values ({one_line(str(error))}); copy it again from the model"
    return model_fault(values, model.engine, max_seq_len)


def _weight_faults(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        if directory.suffix == ".gguf" and directory.exists():
            yield f"{directory}: {_GGUF}"
            return
        wrong = "is not a directory" if directory.exists() else "no such directory"
        yield f"{wrong}: {directory}; give the folder of a Hugging Face model (get one with 'hf download')"
        return
    for index_name, pattern in _WEIGHTS:
        index, files = directory / index_name, sorted(directory.glob(pattern))
        if index.is_file():
            files = [directory / name for name in _shards(index)]
        if missing := [file.name for file in files if not file.is_file()]:
            yield f"{directory} lacks {', '.join(missing)}, which its index names; download the weights again"
        yield from filter(None, (_file_fault(file) for file in files if file.is_file()))
        if files:
            return
    if any(directory.glob("*.gguf")):
        yield f"{directory}: {_GGUF}"
    else:
        yield f"{directory} has no weights (*.safetensors or pytorch_model*.bin); download or export them there"


def _file_fault(file: Path) -> str:
    """What is wrong with a file of weights, by its header and its size; empty if nothing is."""
    size = file.stat().st_size
    if file.suffix == ".bin":
        return _torch_file_fault(file)
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if start + stream.read(len(_LFS) - 8) == _LFS:
            return f"{file}: a pointer of Git LFS, not the weights; run `git lfs pull` there, or download them"
        if len(start) < 8 or length > size - 8:
            return f"{file}: cut off within its header ({size} bytes), or not a safetensors file; download it again"
        stream.seek(8)
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
            expected = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return f"{file}: not a readable safetensors file (broken header); download it again"
    return f"{file}: truncated, {size} of {expected} bytes; download it again" if size < expected else ""


def _torch_file_fault(file: Path) -> str:
    """What is wrong with a file written by `torch.save`; empty if nothing is, or if it has the form before 2020."""
    with file.open("rb") as stream:
        start = stream.read(len(_LFS))
    if start == _LFS:
        return f"{file}: a pointer of Git LFS, not the weights; run `git lfs pull` there, or download them"
    if start.startswith(b"PK") and not zipfile.is_zipfile(file):
        return f"{file}: truncated; download it again"
    return ""


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
