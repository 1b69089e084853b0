"""Keys of ROLL's training strategies: backend, layout of ranks, recomputation and offloading of `actor_train`."""

from __future__ import annotations

from typing import Any, Literal

from roll.commands.importing.outcome import Status
from roll.commands.importing.source import Source
from roll.commands.importing.table import Convert, Effect, Row, goes_to, neutral, same, unsupported, unused

TRAIN_CONFIG = "actor_train.strategy_args.strategy_config"
_NAME, _MODEL = "actor_train.strategy_args.strategy_name", "actor_train.model_args"
_CHECKPOINTING = "actor_train.activation_checkpointing"
_ZERO = f"{TRAIN_CONFIG}.zero_optimization"
_EACH_LAYER = "with activation_checkpointing each layer is recomputed by itself"
_ALONE = "communication does not overlap with computation"
_EVEN = "stages have equally many layers"
_PARALLEL = {"tensor_model": "tp", "pipeline_model": "pp", "context": "cp", "expert_model": "ep"}
_SIZES_OF = {"megatron": ("tp", "pp", "cp", "ep"), "fsdp2": ("tp", "cp")}
"""Sizes that a backend has."""

TrainBackend = Literal["native", "fsdp2", "megatron", "deepspeed"]


def train_backend(source: Source) -> TrainBackend:
    """Our trainer for ROLL's strategy: FSDP2 for what the other backends refuse."""
    if not on_devices(source):
        return "native"
    name = str(source.get(_NAME))
    if has_lora(source):
        return "fsdp2"
    if name.startswith("deepspeed") and source.get(f"{_MODEL}.ulysses_size") in (1, None):
        return "deepspeed"
    return "megatron" if name.startswith("megatron") else "fsdp2"


def on_devices(source: Source) -> bool:
    """Whether the file names devices, so that roles are processes."""
    return bool(source.devices("actor_train") or source.devices("actor_infer"))


def has_lora(source: Source) -> bool:
    """Whether adapters are trained."""
    return source.get(f"{_MODEL}.lora_target") is not None


def _backend(source: Source, key: str, value: Any) -> Effect:
    backend = train_backend(source)
    note = "" if str(value).startswith(backend) else f"the trainer is {backend}{_reason(source, backend)}"
    return goes_to(key, "actor_train.backend", note)


def _reason(source: Source, backend: TrainBackend) -> str:
    if backend != "fsdp2":
        return ""
    return ", which trains adapters" if has_lora(source) else ""


def _size(name: str) -> Convert:
    """A degree of parallelism of the trainer."""

    def convert(source: Source, key: str, value: Any) -> Effect:
        if value is None or source.whole(key) == 1:
            return Effect(Status.DEFAULT)
        backend = train_backend(source)
        if backend == "native":
            return unsupported("the native trainer has one device")
        if has_lora(source) and name == "tp":
            return unsupported("adapters are not divided over ranks that share layers")
        if name not in _SIZES_OF.get(backend, ()):
            return unsupported("those devices are data parallel here")
        return Effect(Status.RENAMED, {f"actor_train.parallel.{name}": source.whole(key)})

    return convert


def _other_size(source: Source, key: str, value: Any) -> Effect:
    if value in (1, None):
        return Effect(Status.DEFAULT)
    if train_backend(source) != "megatron":
        return unsupported("those devices are data parallel here")
    return unsupported("no interleaved stages" if "virtual" in key else "no such layout here")


def _expert_tensor(source: Source, _key: str, value: Any) -> Effect:
    """Experts are whole with expert parallelism, and else divided as other weights are."""
    tp, ep = (source.get(f"{TRAIN_CONFIG}.{name}_model_parallel_size") or 1 for name in ("tensor", "expert"))
    if value in (None, 1 if ep != 1 else tp):
        return Effect(Status.DEFAULT)
    return unsupported("experts are whole with expert parallelism, and else divided by tp")


def _checkpointing(source: Source, _key: str, value: Any) -> Effect:
    if _is_megatron(source):
        return unused("Megatron reads recompute_granularity")
    return Effect(Status.RENAMED, {_CHECKPOINTING: not value})


def _is_megatron(source: Source) -> bool:
    return str(source.get(_NAME)).startswith("megatron")


def _recompute(source: Source, _key: str, value: Any) -> Effect:
    if value is None:
        return Effect(Status.DEFAULT)
    if not _is_megatron(source):
        return unused("only Megatron reads it")
    if value == "full":
        return Effect(Status.RENAMED, {_CHECKPOINTING: True})
    return Effect(Status.DIFFERS, {_CHECKPOINTING: True}, "whole layers are recomputed")


def _always(what: str) -> Convert:
    """A switch that is always on here."""

    def convert(source: Source, _key: str, value: Any) -> Effect:
        if value in (True, None) or not _is_megatron(source):
            return Effect(Status.DEFAULT, {}, what)
        return unsupported(f"cannot be switched off: {what}")

    return convert


def _sequence_parallel(source: Source, key: str, value: Any) -> Effect:
    if source.get(f"{TRAIN_CONFIG}.tensor_model_parallel_size") in (1, None):
        return Effect(Status.DEFAULT, {}, "only with tensor parallelism")
    return _always("tensor parallelism also divides the tokens between layers")(source, key, value)


def _zero_stage(source: Source, key: str, _value: Any) -> Effect:
    if train_backend(source) != "deepspeed":
        return Effect(Status.DEFAULT, {}, "FSDP2 divides weights, gradients and optimizer state")
    stage, ours = source.whole(key), "actor_train.zero_stage"
    if stage in (2, 3):
        return Effect(Status.RENAMED, {ours: stage})
    if stage in (0, 1):
        return Effect(Status.DIFFERS, {ours: 2}, "2 divides more, with the same results")
    return unsupported("stages are 1, 2 and 3; here it is 3")


def _offload(name: str) -> Convert:
    """What is in host memory; `name` is DeepSpeed's part, empty for everything."""

    def convert(source: Source, _key: str, value: Any) -> Effect:
        backend = train_backend(source)
        if value in (None, "none", False) or backend == "native":
            return Effect(Status.DEFAULT)
        if backend == "megatron":
            return unsupported("backend megatron has its state on the devices")
        if backend == "deepspeed" and not name:
            return unused("DeepSpeed reads zero_optimization")
        if backend == "deepspeed":
            if name == "parameters" and source.get(f"{_ZERO}.stage") not in (3, None):
                return unsupported("only with stage 3")
            return Effect(Status.RENAMED, {f"actor_train.offload_{name}": True})
        return Effect(Status.RENAMED, {"actor_train.offload": True}, "weights and optimizer state together")

    return convert


def _other(source: Source, _key: str, value: Any) -> Effect:
    """A setting without a row of its own."""
    backend = train_backend(source)
    if backend in ("native", "fsdp2") or value in (None, False, 0, {}, []):
        return Effect(Status.DEFAULT, {}, f"no such setting of backend {backend}")
    return unsupported(f"no such setting of backend {backend}")


ROWS: tuple[Row, ...] = (
    Row(_NAME, _backend),
    Row(f"{_MODEL}.disable_gradient_checkpointing", _checkpointing, False),
    Row(f"{_MODEL}.ulysses_size", _size("cp"), 1),
    *(Row(f"{TRAIN_CONFIG}.{theirs}_parallel_size", _size(ours)) for theirs, ours in _PARALLEL.items()),
    Row(f"{TRAIN_CONFIG}.expert_tensor_parallel_size", _expert_tensor),
    Row(f"{TRAIN_CONFIG}.*_parallel_size", _other_size),
    Row(f"{TRAIN_CONFIG}.sequence_parallel", _sequence_parallel),
    Row(f"{TRAIN_CONFIG}.use_distributed_optimizer", _always("AdamW's state is divided among data-parallel ranks")),
    Row(f"{TRAIN_CONFIG}.variable_seq_lengths", _always("batches have no padding")),
    Row(f"{TRAIN_CONFIG}.recompute_granularity", _recompute),
    *neutral(_EACH_LAYER, f"{TRAIN_CONFIG}.recompute_method", values=(None, "uniform")),
    *neutral(_EACH_LAYER, f"{TRAIN_CONFIG}.recompute_num_layers", values=(None, 1)),
    *neutral(_EACH_LAYER, f"{TRAIN_CONFIG}.recompute_modules", values=(None,)),
    *neutral(_EACH_LAYER, f"{TRAIN_CONFIG}.moe_layer_recompute"),
    *neutral(_ALONE, f"{TRAIN_CONFIG}.overlap_*", f"{TRAIN_CONFIG}.moe_shared_expert_overlap"),
    *neutral(_EVEN, f"{TRAIN_CONFIG}.account_for_*", f"{TRAIN_CONFIG}.*_pipeline_*", values=(None, False)),
    *neutral("tokens move by alltoall", f"{TRAIN_CONFIG}.moe_token_dispatcher_type", values=(None, "alltoall")),
    *neutral(
        "no auxiliary losses of experts",
        f"{TRAIN_CONFIG}.moe_aux_loss_coeff",
        f"{TRAIN_CONFIG}.moe_router_load_balancing_type",
        values=(None, "none", 0),
    ),
    *same("a faster form of the same operation", f"{TRAIN_CONFIG}.*_fusion", f"{TRAIN_CONFIG}.moe_grouped_gemm"),
    Row(f"{_ZERO}.stage", _zero_stage),
    Row(f"{_ZERO}.offload_optimizer.device", _offload("optimizer")),
    Row(f"{_ZERO}.offload_param.device", _offload("parameters")),
    *same("buffers and overlap change no result", f"{_ZERO}.**"),
    *same("follows from dtype", f"{TRAIN_CONFIG}.bf16.**", f"{TRAIN_CONFIG}.fp16.**"),
    *same(
        "roll computes batches, clips gradients and logs",
        *(f"{TRAIN_CONFIG}.{name}" for name in ("train_*batch_size*", "gradient_*", "steps_per_print", "wall_clock_*")),
    ),
    Row(f"{TRAIN_CONFIG}.offload_policy", _offload("")),
    Row(f"{TRAIN_CONFIG}.optimizer_cpu_offload", _offload("")),
    Row(TRAIN_CONFIG, _other),
    Row(f"{TRAIN_CONFIG}.**", _other),
)
