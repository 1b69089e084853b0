"""What a role takes of a device, and what is done where it is too much."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.config.schema import Model, Shape
from roll.engines.native.attention import Ragged, SlotCache
from roll.engines.native.model_spec import ModelSpec, build
from roll.errors import ConfigError
from roll.placement.architecture import architecture_of
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.memory import bytes_on
from roll.placement.planner import plan_devices
from roll.placement.records import Inventory, Offload, Placement
from tests.placement.runs import SMALL, VLLM, plan_of, run_of

SHAPE = Shape(hidden=64, layers=3, heads=4, kv_heads=2, mlp=192, max_seq_len=256)


def share(plan: Placement, role: str, part: str, phase: str = "update") -> int:
    found = [each.bytes for each in plan.shares if (each.role, each.part, each.phase) == (role, part, phase)]
    return sum(found)


def test_parameters_are_those_of_the_models_as_published() -> None:
    # in billions, as the model cards say
    for name, billions in {"Qwen2.5-7B": 7.6, "Qwen3-0.6B-Base": 0.6, "Llama-3.1-8B-Instruct": 8.0}.items():
        found = architecture_of(Model(path=f"models/{name}"))
        assert found is not None and found.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert architecture_of(Model(path="models/nobody-has-heard-of-it")) is None


def test_parameters_equal_those_of_the_decoder_without_biases_and_head_norms() -> None:
    model = Model(shape=SHAPE)
    decoder = build(ModelSpec(model=model))
    counted = architecture_of(model)
    assert counted is not None
    norms_of_heads = SHAPE.layers * 2 * 16
    assert counted.parameters + norms_of_heads == sum(parameter.numel() for parameter in decoder.parameters())


def test_activations_are_those_that_the_backward_pass_needs() -> None:
    model = Model(shape=SHAPE)
    decoder, counted = build(ModelSpec(model=model)), architecture_of(model)
    assert counted is not None
    constants = {tensor.data_ptr() for tensor in (*decoder.parameters(), *decoder.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constants:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ragged = Ragged([32] * 32, device=torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = decoder.hidden(torch.full((1024,), 5), ragged.positions, ragged.attend)
    assert hidden.requires_grad
    assert sum(kept.values()) == pytest.approx(1024 * SHAPE.layers * counted.layer_row * 4, rel=0.3)


def test_the_kv_cache_is_that_of_the_native_generator(tmp_path: Path) -> None:
    tiny = "model={shape: {hidden: 64, layers: 3, heads: 4, kv_heads: 2, mlp: 192, max_seq_len: 256}}"
    sizes = ["rollout.max_seq_len=250", "rollout.max_new_tokens=64", "actor_infer.max_num_seqs=40"]
    plan = plan_of(tmp_path, "2xcpu", tiny, *sizes)
    cache = SlotCache(
        build(ModelSpec(model=Model(shape=SHAPE))).cache_shape, slots=40, max_seq_len=250, device=torch.device("cpu")
    )
    assert share(plan, "actor_infer", "kv") == cache.keys.nbytes + cache.values.nbytes


def test_a_trainer_in_fp32_takes_sixteen_bytes_per_parameter_and_activations(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "2xH200", SMALL, "actor_train.devices=[0]", "actor_infer.devices=[1]")
    model = architecture_of(Model(path="models/Qwen3-0.6B"))
    assert model is not None
    parts = {part: share(plan, "actor_train", part) for part in ("weights", "gradients", "optimizer", "activations")}
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * model.parameters
    # 8,192 tokens x 28 layers x (4 x 1,024 + 3 x (2,048 + 1,024) + 3 x 3,072) numbers of 4 bytes
    assert parts["activations"] == 8192 * 28 * (4 * 1024 + 3 * (2048 + 1024) + 3 * 3072) * 4
    assert share(plan, "actor_train", "gradients", "rollout") == 0
    assert share(plan, "actor_train", "optimizer", "rollout") == 8 * model.parameters


def test_vllm_takes_its_configured_fraction_of_a_gpu(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, "2xH200", SMALL, "actor_train.devices=[0]", f"{VLLM}, devices: [1], gpu_memory_utilization: 0.5}}"
    )
    taken = sum(share(plan, "actor_infer", part, "rollout") for part in ("weights", "kv", "activations"))
    assert taken == pytest.approx(0.5 * 139 * 2**30, rel=1e-6)


def test_quantised_layers_take_one_byte_per_weight(tmp_path: Path) -> None:
    # A layer has 1024 x 128 x (16 + 2 x 8) weights for queries, keys and values, 2048 x 1024 for the output, three
    # times 1024 x 3072 in the feed-forward part, and two norms: 15,730,688. There are 28 layers.
    changes = [SMALL, "actor_train.devices=[0]", "algorithm.correction=truncate"]
    plain, quantised = (
        share(plan_of(tmp_path, "2xH200", *changes, f"{VLLM}, devices: [1]{more}}}"), "actor_infer", "weights")
        for more in ("", ", quantization: fp8")
    )
    assert plain - quantised == 28 * 15_730_688


def test_nothing_is_offloaded_if_everything_fits(tmp_path: Path) -> None:
    shared = plan_of(tmp_path, "1xH200", SMALL, f"{VLLM}, devices: [0], gpu_memory_utilization: 0.4, offload: true}}")
    assert shared.offloads == ()


def test_parts_that_do_not_fit_together_are_offloaded_per_phase(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "1xH200", SMALL, f"{VLLM}, devices: [0], gpu_memory_utilization: 0.9, offload: true}}")
    assert Offload(role="actor_infer", phase="update", parts=("kv",)) in plan.offloads
    for phase in ("rollout", "update", "weight_sync"):
        assert bytes_on(plan, 0, phase, at_once=False) <= 0.95 * 139 * 2**30


@pytest.mark.parametrize(
    ("cluster", "changes", "fault"),
    [
        (
            "8xH200",
            ["actor_train.devices=[0]", "actor_infer.devices=[1]"],
            r"actor_train.devices: H200 0 has 132.0 GiB and the update needs .* \(actor_train's activations .*\); "
            r"lower actor_train.tokens_per_microbatch \(got 8192\)",
        ),
        (
            "8xH200",
            [SMALL, "actor_train.devices=[0]", "actor_infer.devices=[1]", "actor_infer.max_num_seqs=512"],
            r"H200 1 .* the rollout needs .*kv.*; lower actor_infer.max_num_seqs \(got 512\) or rollout.max_seq_len",
        ),
        (
            "1xH200",
            [SMALL, f"{VLLM}, devices: [0], gpu_memory_utilization: 0.9}}"],
            r"lower actor_infer.gpu_memory_utilization \(got 0.9\) or set actor_infer.offload to true",
        ),
        (
            "8xA100",
            [
                "model={path: models/Qwen2.5-72B}",
                "actor_train.devices=[0]",
                f"{VLLM}, devices: [1, 2], parallel: {{tp: 1}}}}",
            ],
            "raise actor_infer.parallel.tp .got 1.",
        ),
    ],
)
def test_too_little_memory_is_an_error_with_the_largest_part_and_a_remedy(
    tmp_path: Path, cluster: str, changes: list[str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault) as raised:
        plan_of(tmp_path, cluster, *changes)
    assert "\n" not in str(raised.value)


def test_on_cpu_slots_only_the_kv_cache_is_offloaded(tmp_path: Path) -> None:
    tiny = "model={shape: {hidden: 64, layers: 3, heads: 4, kv_heads: 2, mlp: 192, max_seq_len: 256}}"
    sizes = [
        "rollout.max_seq_len=256",
        "rollout.max_new_tokens=64",
        "actor_infer.max_num_seqs=64",
        "actor_train.devices=[0]",
    ]
    sizes.append("actor_infer.max_num_batched_tokens=256")
    run = run_of(tmp_path, tiny, *sizes, "actor_infer.devices=[0]", "actor_train.tokens_per_microbatch=2048")
    roomy = parse_cluster("1xcpu")
    whole = plan_devices(facts_of(run), roomy)
    need = bytes_on(whole, 0, "update", at_once=False)
    tight = Inventory(nodes=(replace(roomy.nodes[0], memory=need),))  # of which 0.95 may be used
    assert whole.offloads == ()
    assert plan_devices(facts_of(run), tight).offloads == (Offload(role="actor_infer", phase="update", parts=("kv",)),)
    less = int((need - share(whole, "actor_infer", "kv") - 1) / 0.95)  # weights that left would be enough
    with pytest.raises(ConfigError, match="CPU slot 0 has"):
        plan_devices(facts_of(run), Inventory(nodes=(replace(roomy.nodes[0], memory=less),)))


def test_an_unknown_model_is_placed_without_counting_memory(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "8xH200", "model={path: models/own}", "actor_infer.devices=1-7", "actor_train.devices=[0]")
    assert plan.shares == () and len(plan.workers_of("actor_infer")) == 7


def test_auxiliary_models_are_offloaded_during_the_rollout(tmp_path: Path) -> None:
    kl = "algorithm={recipe: grpo, kl: {coefficient: 0.1}}"
    plan = plan_of(
        tmp_path, "1xH200", SMALL, kl, f"{VLLM}, devices: [0], gpu_memory_utilization: 0.93, offload: true}}"
    )
    assert "weights" in plan.off("reference", "rollout") and plan.off("reference", "update") == ()


def test_a_sharded_model_takes_a_part_of_each_device(tmp_path: Path) -> None:
    kl = "algorithm={recipe: grpo, kl: {coefficient: 0.1}}"
    apart = ["actor_train.devices=[0]", "actor_infer.devices=[1]"]
    whole = plan_of(tmp_path, "8xH200", SMALL, kl, *apart, "reference.devices=4-7")
    parts = plan_of(tmp_path, "8xH200", SMALL, kl, *apart, "reference={devices: 4-7, sharded: true}")
    assert share(parts, "reference", "weights") == share(whole, "reference", "weights") // 4
