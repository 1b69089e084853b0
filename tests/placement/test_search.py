"""The search of `auto`: large models get a placement, small ones keep theirs, and every placement fits."""

import json
import time
from pathlib import Path

import pytest

from roll.config.backends import FsdpTrain, VllmInfer
from roll.config.load import load
from roll.errors import ConfigError
from roll.explain.placement import placement_report
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.memory import USABLE, bytes_on, overlapping
from roll.placement.planner import plan_devices
from roll.placement.records import PHASES, Placement
from tests.placement.runs import run_of

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPE = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "intermediate_size": 28672,
    "tie_word_embeddings": False,
}
FSDP = "actor_train={backend: fsdp2, dtype: bfloat16, tokens_per_microbatch: 8192"
SAVING = f"{FSDP}, activation_checkpointing: true}}"
VLLM = "actor_infer={backend: vllm}"
ASYNC = "rollout.max_staleness=1"


def large(folder: Path, *changes: str) -> tuple[str, ...]:
    """The settings of a run with a model of 70 billion parameters, and other settings."""
    (folder / "large").mkdir(exist_ok=True)
    (folder / "large" / "config.json").write_text(json.dumps(SHAPE))
    return f"model={{path: {folder / 'large'}}}", f"{FSDP}}}", VLLM, *changes


def plan(folder: Path, cluster: str, *changes: str) -> Placement:
    """The placement, every device of which has room for its roles in every phase."""
    facts = facts_of(run_of(folder, *changes))
    placement = plan_devices(facts, parse_cluster(cluster))
    at_once = overlapping(facts, placement)
    for device in {device for role in placement.roles for device in role.devices}:
        room = placement.inventory.node_of(device).memory * USABLE
        assert all(bytes_on(placement, device, phase, at_once=at_once) <= room for phase in PHASES), device
    return placement


@pytest.mark.parametrize("changes", [(), (ASYNC,), (SAVING,), (SAVING, ASYNC)], ids=str)
def test_a_model_of_70_billion_parameters_is_placed_on_64_devices(tmp_path: Path, changes: tuple[str, ...]) -> None:
    placement = plan(tmp_path, "8x8xH100", *large(tmp_path, *changes))
    assert placement.role("actor_infer").tp >= 4
    assert placement.role("actor_train").cp == (1 if SAVING in changes else 8), "activations are 179 GiB without"
    text = placement_report(run_of(tmp_path, *large(tmp_path, *changes)), "8x8xH100")
    assert "auto: actor_infer: tp 8, the fastest of the sizes that hold the model" in text
    assert "auto: runners-up: " in text and "(tp 4" in text


def test_what_would_fit_is_named_in_one_line_and_does_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs 465.7 .*; it fits with ") as raised:
        plan(tmp_path, "2xH100", *large(tmp_path, SAVING))
    line = str(raised.value)
    assert "\n" not in line
    assert "actor_train.offload true, which needs 1051 GiB of host memory" in line
    plan(tmp_path, "2xH100", *large(tmp_path, SAVING.replace("}", ", offload: true}")))
    assert line.endswith("or with 24 of these devices (3x8xH100)")
    plan(tmp_path, "3x8xH100", *large(tmp_path, SAVING))
    with pytest.raises(ConfigError):
        plan(tmp_path, "2x8xH100", *large(tmp_path, SAVING))


def test_recomputed_activations_are_named_where_they_suffice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"; it fits with actor_train\.activation_checkpointing true, or with "):
        plan(tmp_path, "3x8xH100", *large(tmp_path))
    plan(tmp_path, "3x8xH100", *large(tmp_path, SAVING))


def test_a_generator_is_offloaded_if_sharing_devices_is_then_the_fastest(tmp_path: Path) -> None:
    in_host = SAVING.replace("}", ", offload: true}")
    placement = plan(tmp_path, "8xH100", *large(tmp_path, in_host))
    assert placement.role("actor_infer").offload and len(placement.shared("actor_train", "actor_infer")) == 8
    assert any("offload true, to share devices" in reason for reason in placement.reasons)


@pytest.mark.slow
def test_the_settings_of_a_placement_are_those_of_the_run(tmp_path: Path) -> None:
    from roll.wiring.placing import apply_placement

    changes = large(tmp_path, SAVING.replace("}", ", offload: true}"))
    run = apply_placement(run_of(tmp_path, *changes), plan(tmp_path, "8xH100", *changes))
    infer, train = run.actor_infer, run.actor_train
    assert isinstance(infer, VllmInfer) and isinstance(train, FsdpTrain)
    assert (infer.offload, infer.parallel.tp, infer.workers, train.workers) == (True, 8, 1, 8)


@pytest.mark.parametrize(
    ("example", "cluster", "changes", "sizes"),
    [
        ("gsm8k", "1xH200", (), ((1, 1), (1, 1))),
        ("rlvr_full", "8xH100", (), ((1, 1), (1, 1))),
        ("rlvr_8_gpus", "4xH200", (), ((4, 1), (4, 1))),
        ("rlvr_8_gpus", "4xH200", (ASYNC,), ((3, 1), (1, 1))),
        ("rlvr_8_gpus", "8xH100", (), ((8, 1), (8, 1))),
        ("rlvr_8_gpus", "8xH100", (ASYNC,), ((4, 1), (4, 1))),
        ("rlvr_8_gpus", "2x8xH200", (ASYNC,), ((6, 1), (10, 1))),
        ("rlvr_8_gpus", "8x8xH200", (ASYNC,), ((9, 1), (55, 1))),
        ("rlvr_64_gpus", "2x8xH200", (), ((10, 2), (6, 1))),
        ("rlvr_64_gpus", "8x8xH200", (), ((26, 2), (38, 1))),
    ],
)
def test_models_that_fit_as_configured_keep_their_settings(
    example: str, cluster: str, changes: tuple[str, ...], sizes: object
) -> None:
    """Devices and `cp` of trainer and generators; `tp` and offloading are those of the file."""
    automatic = ("actor_train.devices=auto", "actor_infer.devices=auto")
    run = load(EXAMPLES / f"{example}.yaml", [*automatic, *changes]).run
    placement = plan_devices(facts_of(run), parse_cluster(cluster))
    roles = [placement.role(name) for name in ("actor_train", "actor_infer")]
    assert tuple((len(role.devices), role.cp) for role in roles) == sizes
    parallel = getattr(run.actor_infer, "parallel", None)
    assert roles[1].tp == (1 if parallel is None else parallel.tp)
    assert [role.offload for role in roles] == [
        getattr(run, role.role).model_dump().get("offload", False) for role in roles
    ]


@pytest.mark.parametrize("changes", [(), (SAVING, ASYNC)], ids=str)
def test_the_search_takes_seconds_for_512_devices(tmp_path: Path, changes: tuple[str, ...]) -> None:
    facts = facts_of(run_of(tmp_path, *large(tmp_path, *changes)))
    start = time.process_time()
    plan_devices(facts, parse_cluster("64x8xH100"))
    assert time.process_time() - start < 60, "below one second on an idle machine"
