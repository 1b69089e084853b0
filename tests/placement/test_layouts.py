"""Layouts of backend megatron: bytes and seconds by hand, and the choice of `devices: auto`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.config.backends import MegatronTrain
from roll.config.megatron import layout_fault
from roll.errors import ConfigError
from roll.explain.placement import placement_of, placement_report
from roll.placement.blocks import Blocks
from roll.placement.facts import RoleFacts, RunFacts, facts_of
from roll.placement.known import known_config
from roll.placement.layouts import choose_layouts
from roll.placement.machine import KINDS, parse_cluster
from roll.placement.pipeline import PRODUCTS, STREAMS, PipelineTimes
from roll.placement.planner import plan_devices
from roll.placement.records import Placement
from roll.placement.stages import blocks_of, fullest_stage, stage_bytes
from tests.placement.runs import run_of

TRAIN = "actor_train={backend: megatron, tokens_per_microbatch: 16384, activation_checkpointing: true"
VLLM = "actor_infer={backend: vllm, gpu_memory_utilization: 0.6}"
LONG = "rollout={max_seq_len: 16384, max_new_tokens: 14336, groups_per_step: 256, group_size: 16, max_staleness: 1}"
CORRECTED = "algorithm={recipe: grpo, correction: {kind: truncate}}"
SMALL, MEDIUM, LARGE = "Qwen3-30B-A3B", "Qwen3-235B-A22B", "DeepSeek-V3"
TINY: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 100,
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 12,
    "moe_intermediate_size": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
# per layer q, k, v, o: 8 x (16 + 8 + 8 + 16); norms 2 x 4 + 2 x 8, router 4 x 8; experts 4 x 3 x 8 x 6
DIVIDED, WHOLE, EXPERTS, ENDS = 384, 24 + 32, 576, 800


def facts(folder: Path, model: str, *changes: str, half: bool = False) -> RunFacts:
    """A run with long responses; `half`: trainer and generator compute in 16 bits."""
    result = facts_of(run_of(folder, f"model={{path: {model}}}", f"{TRAIN}}}", VLLM, LONG, CORRECTED, *changes))
    if not half:
        return result
    roles = (replace(each, weight_bytes=2, master_bytes=4 * each.trains) for each in result.roles)
    return replace(result, roles=tuple(roles))


def trainer(facts: RunFacts, **changes: Any) -> RoleFacts:
    return replace(facts.role("actor_train"), **changes)


def tiny(folder: Path, **changes: Any) -> tuple[RunFacts, RoleFacts]:
    """A model with four layers of four experts, and micro-batches of 64 tokens."""
    (folder / "config.json").write_text(json.dumps(TINY))
    run = facts(folder, "models/Qwen3-0.6B")
    blocks = Blocks.of(TINY)
    model = replace(trainer(run).model or pytest.fail("known"), blocks=blocks)
    return run, trainer(run, model=model, tokens=64, **changes)


def test_known_mixtures_have_the_parameters_of_their_files() -> None:
    """As in the indices of their safetensors files, which have 58 x 256 biases of DeepSeek-V3's routers too."""
    sizes = {name: blocks_named(name).parameters for name in (SMALL, MEDIUM, LARGE)}
    assert sizes == {SMALL: 30_532_122_624, MEDIUM: 235_093_634_560, LARGE: 671_026_419_200 - 58 * 256}


def blocks_named(name: str) -> Blocks:
    config = known_config(f"{name}-Instruct")
    assert config is not None
    blocks = Blocks.of(config)
    assert blocks is not None
    return blocks


@pytest.mark.parametrize(
    ("sizes", "first", "last"),
    [
        ({}, 4 * (DIVIDED + WHOLE + EXPERTS) + 2 * ENDS + 8, None),
        ({"pp": 2}, 2 * (DIVIDED + WHOLE + EXPERTS) + ENDS, 2 * (DIVIDED + WHOLE + EXPERTS) + ENDS + 8),
        ({"tp": 2}, 4 * (DIVIDED // 2 + WHOLE + EXPERTS // 2) + ENDS + 8, None),
        ({"tp": 2, "ep": 4}, 4 * (DIVIDED // 2 + WHOLE + EXPERTS // 4) + ENDS + 8, None),
        ({"pp": 4, "ep": 2}, DIVIDED + WHOLE + EXPERTS // 2 + ENDS, DIVIDED + WHOLE + EXPERTS // 2 + ENDS + 8),
    ],
)
def test_weights_and_gradients_of_a_rank(sizes: dict[str, int], first: int, last: int | None, tmp_path: Path) -> None:
    run, role = tiny(tmp_path, **sizes)
    stages = stage_bytes(run, role, 8)
    for stage, weights in ((stages[0], first), (stages[-1], last or first)):
        assert (stage.bytes["weights"], stage.bytes["gradients"]) == (4 * weights, 4 * weights)


def test_the_optimizer_state_is_divided_among_the_ranks_that_have_the_same_weights(tmp_path: Path) -> None:
    run, role = tiny(tmp_path, tp=2, pp=2, ep=2)
    # of 16 ranks 8 are a stage, of which 4 share dense weights and 4 each expert
    dense, experts = 2 * (DIVIDED // 2 + WHOLE) + ENDS // 2, 2 * EXPERTS // 2
    assert stage_bytes(run, role, 16)[0].bytes["optimizer"] == 8 * (dense // 4 + experts // 4)
    half = replace(role, weight_bytes=2, master_bytes=4)
    assert stage_bytes(run, half, 16)[0].bytes["optimizer"] == 12 * (dense // 4 + experts // 4)
    assert stage_bytes(run, half, 16)[0].bytes["weights"] == 2 * (dense + experts)
    assert stage_bytes(run, replace(role, adaptive=False), 16)[0].bytes["optimizer"] == 0


def test_early_stages_hold_the_activations_of_more_micro_batches(tmp_path: Path) -> None:
    # per token and layer: 2 (q + kv), norms of heads 2 (q + kv), two norms of 3 x 8, experts 2 x 4 x 6, scores 2 x 4,
    # and 2 x 2 hidden states of 8 that move
    row = 2 * 24 + 2 * 24 + 48 + 48 + 8 + 32
    run, role = tiny(tmp_path, pp=4)
    whole = [stage.bytes["activations"] for stage in stage_bytes(run, replace(role, checkpointed=False), 4)]
    assert whole == [4 * 64 * row * in_flight for in_flight in (4, 3, 2, 1)]
    again = [stage.bytes["activations"] for stage in stage_bytes(run, role, 4)]
    assert again == [4 * 64 * (8 * in_flight + row) for in_flight in (4, 3, 2, 1)]
    shared = stage_bytes(run, replace(role, pp=1, tp=2, cp=2, ep=2), 4)[0]
    assert shared.bytes["activations"] == 4 * 64 * (4 * 8 + row) // 4


def test_more_ranks_and_a_larger_model_change_the_bytes_as_they_should(tmp_path: Path) -> None:
    run = facts(tmp_path, f"models/{SMALL}")
    totals = [fullest_stage(run, trainer(run, ep=8), num).total for num in (8, 16, 64, 512)]
    assert totals == sorted(totals, reverse=True) and totals[0] > totals[-1]
    sizes = [fullest_stage(run, trainer(run, ep=ep), 64).total for ep in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    larger = facts(tmp_path, f"models/{MEDIUM}")
    assert fullest_stage(larger, trainer(larger, ep=8), 64).total > 6 * totals[2]


def times(run: RunFacts, role: RoleFacts, num: int, node: int = 8) -> PipelineTimes:
    return PipelineTimes(facts=run, role=role, kind=KINDS["H100"], num=num, node=node)


def test_seconds_of_a_dense_model_by_hand(tmp_path: Path) -> None:
    """Qwen2.5-7B on 8 ranks: 4096 trajectories of 8192 tokens on average."""
    run = replace(facts(tmp_path, "models/Qwen2.5-7B"), passes=0)
    step = times(run, trainer(run, pp=4), 8).step()
    model = blocks_of(trainer(run))
    # two replicas of 2048 rows, in 1024 micro-batches of two rows; the last stage has 7 layers and the output layer
    layers = 7 * (model.layers[0].divided + model.layers[0].whole) + model.vocab * model.hidden
    operations = (2 * layers + 7 * 2 * 28 * 128 * 8192) * 16384 * 4  # a forward pass, again, and two backward
    each = operations / (989e12 * PRODUCTS)
    assert step.compute == pytest.approx(1024 * each)
    sent = 2 * 16384 * 3584 * 4 / (450e9 * STREAMS)
    assert step.pp == pytest.approx(1024 * sent)
    assert step.bubble == pytest.approx(3 * (each + sent))
    assert (step.tp, step.cp, step.ep) == (0, 0, 0)
    weights = 7 * model.layers[0].parameters + model.vocab * model.hidden + model.hidden
    # half of the gradients and half of the weights move to the other replica
    assert step.dp == pytest.approx(weights * 8 / 2 / (450e9 * STREAMS))


def test_groups_that_leave_a_node_are_slower_and_others_are_not(tmp_path: Path) -> None:
    run = facts(tmp_path, f"models/{SMALL}")
    inside, across = (times(run, trainer(run, ep=16), 16, node).step() for node in (16, 8))
    assert across.ep > 4 * inside.ep and across.compute == inside.compute
    one, two = (times(run, trainer(run, tp=2), num).step() for num in (8, 16))
    assert two.tp == pytest.approx(one.tp / 2, rel=0.01) and two.compute == pytest.approx(one.compute / 2, rel=0.01)
    assert two.dp > one.dp


@pytest.mark.parametrize("model", [SMALL, MEDIUM, LARGE])
@pytest.mark.parametrize("cluster", ["8xH200", "8x8xB200", "64x8xH200"])
def test_a_layout_divides_the_model_and_lies_in_nodes_where_it_must(model: str, cluster: str, tmp_path: Path) -> None:
    run, inventory = facts(tmp_path, f"models/{model}", half=True), parse_cluster(cluster)
    config = known_config(model)
    assert config is not None
    for role in choose_layouts(run, inventory, inventory.num_devices):
        sizes = {"tp": role.tp, "pp": role.pp, "cp": role.cp, "ep": role.ep}
        assert 8 % role.node_group == 0
        assert not layout_fault(config, workers=None, **sizes), sizes


def test_the_choice_is_the_cheapest_that_fits(tmp_path: Path) -> None:
    run, inventory = facts(tmp_path, f"models/{SMALL}"), parse_cluster("2x8xH200")
    first = choose_layouts(run, inventory, 16)[0]
    chosen = times(run, first, 16).step().total
    room = 0.95 * inventory.nodes[0].memory
    rivals = 0
    for sizes in ({"tp": 2}, {"pp": 2}, {"ep": 16}, {"tp": 2, "pp": 4}, {"cp": 2, "ep": 8}, {"pp": 4, "ep": 4}):
        role = trainer(run, **sizes)
        if fullest_stage(run, role, 16).total < room:
            rivals += 1
            assert times(run, role, 16).step().total >= 0.9 * chosen
    assert rivals > 2 and fullest_stage(run, first, 16).total < room


def plan(folder: Path, model: str, cluster: str, *changes: str, half: bool = True) -> Placement:
    return plan_devices(facts(folder, f"models/{model}", *changes, half=half), parse_cluster(cluster))


def test_auto_chooses_the_layout_and_keeps_sizes_of_the_file(tmp_path: Path) -> None:
    train = plan(tmp_path, SMALL, "2x8xH200").role("actor_train")
    assert train.tp * train.pp * train.ep > 1
    changed = f"{TRAIN}, parallel: {{pp: 6}}}}"
    kept = plan(tmp_path, SMALL, "2x8xH200", changed)
    role = kept.role("actor_train")
    assert role.pp == 6 and len(role.workers) % (6 * role.tp * role.cp) == 0
    assert any("layouts that fit as many devices" in reason for reason in kept.reasons)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("cluster", ["8xH200", "8x8xB200", "64x8xB200"])
@pytest.mark.parametrize("model", [SMALL, MEDIUM, LARGE])
def test_each_shape_has_a_plan_or_one_line_with_the_part_that_is_too_large(
    model: str, cluster: str, tmp_path: Path
) -> None:
    """In 16 bits. On 8 GPUs only the smallest fits; no layout of 64 B200 leaves room to generate with DeepSeek-V3."""
    small = (model, cluster) in ((MEDIUM, "8xH200"), (LARGE, "8xH200"), (LARGE, "8x8xB200"))
    if small:
        with pytest.raises(ConfigError, match=r"^actor_\w+\.devices: .* GiB and the \w+ needs .* \(actor_") as raised:
            plan(tmp_path, model, cluster)
        assert "\n" not in str(raised.value)
        return
    placement = plan(tmp_path, model, cluster)
    role, config = placement.role("actor_train"), known_config(model)
    assert config is not None
    sizes = {"tp": role.tp, "pp": role.pp, "cp": role.cp, "ep": role.ep}
    assert not layout_fault(config, workers=len(role.workers), **sizes)


def test_what_does_not_fit_is_named_with_its_rank_and_with_a_cluster_that_is_large_enough(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        plan(tmp_path, MEDIUM, "8xH200")
    line = str(raised.value)
    assert "(actor_train's optimizer 328.6 on each rank of stage 1, tp 4, pp 2, ep 4)" in line and "\n" not in line
    state_gib = 12 * 235_093_634_560 / 8 / 2**30  # a weight in 32 bits and two moments per parameter, on eight ranks
    assert state_gib == pytest.approx(328.6, rel=0.01)
    assert line.endswith("it fits with 48 of these devices (6x8xH200)")
    plan(tmp_path, MEDIUM, "6x8xH200")
    with pytest.raises(ConfigError):
        plan(tmp_path, MEDIUM, "4x8xH200")


def test_a_generator_that_no_node_holds_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor_infer's weights 312\.5\); raise actor_infer\.parallel\.tp \(got 8\)"):
        plan(tmp_path, LARGE, "64x8xH200", half=False)  # 4 bytes of 671 billion parameters on 8 devices


def test_a_layout_that_divides_no_number_of_devices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor_train\.parallel: tp 3 divides no number of ranks up to 8"):
        plan(tmp_path, SMALL, "8xH200", f"{TRAIN}, parallel: {{tp: 3}}}}")
    with pytest.raises(ConfigError, match=r"actor_train\.parallel: 1 ranks do not divide by tp 2"):
        plan(tmp_path, SMALL, "4xcpu", f"{TRAIN}, parallel: {{tp: 2}}}}")


def test_the_plan_has_stages_seconds_and_sizes(tmp_path: Path) -> None:
    changes = f"model={{path: models/{SMALL}}}", f"{TRAIN}}}", VLLM, LONG, CORRECTED
    run = run_of(tmp_path, *changes)
    train = placement_of(run, "8x8xH200").roles[0]
    assert [each.stage for each in train.stages] == list(range(train.pp))
    assert train.bytes is not None and train.bytes["update"] == max(each.total for each in train.stages)
    assert train.times is not None and train.times.total == pytest.approx(sum(train.times.parts.values()))
    text = placement_report(run, "8x8xH200")
    assert f"actor_train, stage {train.pp - 1} of {train.pp}: " in text and " GiB per rank: weights " in text
    assert f"actor_train: about {train.times.total:.1f} s per step: compute " in text


@pytest.mark.slow
def test_the_layout_of_a_plan_is_that_of_the_run(tmp_path: Path) -> None:
    from roll.wiring.placing import apply_placement

    run = run_of(tmp_path, f"model={{path: models/{SMALL}}}", f"{TRAIN}}}", VLLM, LONG, CORRECTED)
    placement = plan_devices(facts_of(run), parse_cluster("8x8xH200"))
    planned, train = placement.role("actor_train"), apply_placement(run, placement).actor_train
    assert isinstance(train, MegatronTrain) and planned.pp > 1
    sizes = {"tp": planned.tp, "cp": planned.cp, "pp": planned.pp, "ep": planned.ep}
    assert (train.parallel.model_dump(), train.workers) == (sizes, len(planned.workers))
