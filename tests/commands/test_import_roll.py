"""`roll import roll`: values, outcomes of every key, and a file that `roll check` accepts."""

import contextlib
import copy
import json
import random
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.importing.command import Imported, convert, import_roll
from roll.commands.importing.hydra import Composed, compose, leaves
from roll.commands.importing.outcome import Outcome, Status
from roll.config.load import load
from roll.config.schema import Run, Shape
from roll.errors import ConfigError
from tests.cli.conftest import call
from tests.model_directories import fill

ROOT = Path(__file__).parents[2]
MODEL = {
    **{"model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": 512, "use_sliding_window": False},
}
ENVIRONMENTS = """\
max_actions_per_traj: 6
answer_pattern: <answer>(.*?)</answer>
library:
  Ice: {env_type: frozen_lake, max_steps: "${max_actions_per_traj}", max_tokens_per_step: 24,
        env_manager_cls: roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager, use_thread_lock: true,
        env_config: {max_steps: "${max_actions_per_traj}", is_slippery: true, format_penalty: -0.05,
                     action_pattern: "${answer_pattern}", render_mode: text}}
  Boxes: {env_type: sokoban, max_tokens_per_step: 32, env_config: {dim_room: [7, 8], num_boxes: 2, max_steps: 9}}
"""
COMMON = """\
hydra: {run: {dir: .}, output_subdir: null}
exp_name: small run
seed: 7
output_dir: ./output
logging_dir: ./output/logs
track_with: wandb
tracker_kwargs: {api_key: geheim, project: lab, name: "${exp_name}"}
checkpoint_config: {type: file_system, output_dir: /models}
num_gpus_per_node: 8
max_steps: 20
save_steps: 5
eval_steps: 4
logging_steps: 1
resume_from_checkpoint: false
pretrain: model
ppo_epochs: 2
async_generation_ratio: 1
max_running_requests: 16
actor_train:
  model_args: {dtype: bf16, disable_gradient_checkpointing: false, attn_implementation: fa2, model_type: ~}
  training_args: {learning_rate: 2.0e-6, weight_decay: 0.01, per_device_train_batch_size: 2,
                  gradient_accumulation_steps: 4, warmup_steps: 3, lr_scheduler_type: cosine, num_train_epochs: 50}
  data_args: {template: qwen2_5}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, recompute_granularity: full}
  device_mapping: list(range(0,4))
  infer_batch_size: 2
actor_infer:
  model_args: {dtype: bf16}
  generating_args: {top_p: 0.9, top_k: -1, num_beams: 1, temperature: 0.8, max_new_tokens: 48}
  strategy_args:
    strategy_name: vllm
    strategy_config: {gpu_memory_utilization: 0.6, block_size: 16, tensor_parallel_size: 2}
  device_mapping: list(range(4,8))
reference:
  model_args: {dtype: bf16}
  strategy_args: {strategy_name: hf_infer, strategy_config: ~}
  device_mapping: list(range(0,4))
"""
RLVR = """\
rollout_batch_size: 16
num_return_sequences_in_group: 4
is_num_return_sequences_expand: true
prompt_length: 64
response_length: 48
adv_estimator: grpo
pg_clip: 0.3
dual_clip_loss: true
advantage_clip: 2.0
whiten_advantages: true
use_kl_loss: true
kl_loss_coef: 0.01
loss_agg_mode: token-mean
max_len_mask: true
difficulty_mask: true
difficulty_low_threshold: 0.1
difficulty_high_threshold: 0.9
validation:
  data_args: {template: qwen2_5, file_name: [held_out.jsonl], messages: messages}
  generating_args: {temperature: 0.6, top_p: 0.7, num_return_sequences: 2}
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [easy, hard]
    model_args: {model_name_or_path: "${pretrain}"}
    world_size: 2
    query_filter_config: {type: mean_filter, filter_args: {threshold_up: 0.9, threshold_down: 0.1}}
  llm_judge:
    worker_cls: roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker
    judge_model_type: api
    judge_model_name: large
    judge_api_url: http://judge:8000/v1
    judge_api_key: geheim
    tag_included: [essay]
"""
RLVR_DATA = {
    "file_name": ["sums.jsonl", "essays.jsonl"],
    "messages": "messages",
    "domain_interleave_probs": {"math_rule": 0.75, "llm_judge": 0.25},
}
AGENTIC = """\
rollout_batch_size: 32
val_batch_size: 8
sequence_length: 256
adv_estimator: gigpo
step_reward_weight: 0.5
step_reward_gamma: 0.9
init_kl_coef: 0.0
reward_normalization: {grouping: traj_group_id, method: mean_std}
train_env_manager: {max_env_num_per_worker: 8, num_env_groups: 8, group_size: 4, tags: [Ice, Boxes],
                    num_groups_partition: [6, 2]}
val_env_manager: {max_env_num_per_worker: 8, num_env_groups: 8, group_size: 1, tags: [Ice], num_groups_partition: [8]}
custom_envs: {Ice: "${library.Ice}", Boxes: "${library.Boxes}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, data and a library of environments."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    fill(tmp_path / "model", Shape().alphabet + "_")
    for name, tag in (("sums", "easy"), ("essays", "essay"), ("held_out", "hard")):
        messages = json.dumps([{"role": "user", "content": f"{name}: 1+1="}])
        row = {"id": "0", "prompt": "unused", "messages": messages, "ground_truth": "2", "tag": tag}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "library.yaml").write_text(ENVIRONMENTS)
    return tmp_path


def rlvr_tree() -> dict[str, Any]:
    tree = yaml.safe_load(COMMON + RLVR)
    tree["actor_train"]["data_args"] |= RLVR_DATA
    return tree


def agentic_tree() -> dict[str, Any]:
    return {"defaults": ["library@_here_"], **yaml.safe_load(COMMON + AGENTIC)}


TAKEN = (Status.TAKEN, Status.RENAMED, Status.DIFFERS)
TREES = {"rlvr": rlvr_tree, "agentic": agentic_tree}


def dump(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False)


@cache
def _composed(pipeline: str) -> Composed:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "library.yaml").write_text(ENVIRONMENTS)
        (Path(name) / "source.yaml").write_text(dump(TREES[pipeline]()))
        return compose(Path(name) / "source.yaml")


def tree_of(pipeline: str) -> dict[str, Any]:
    """A configuration without defaults list and `${...}`, to be changed."""
    return copy.deepcopy(_composed(pipeline).tree)


def imported(folder: Path, tree: dict[str, Any]) -> Imported:
    """What becomes of a tree without `${...}`."""
    composed = replace(_composed("agentic" if "custom_envs" in tree else "rlvr"), tree=tree)
    with contextlib.chdir(folder):
        return convert(composed, "source.yaml")


def outcomes(result: Imported) -> dict[str, Outcome]:
    return {outcome.key: outcome for outcome in result.outcomes}


def sections(report: str) -> dict[str, list[str]]:
    """The keys of each section of a report, by title; checks the number in the title."""
    keys: dict[str, list[str]] = {}
    for block in report.split("\n\n")[:-1]:
        title, *lines = block.strip("\n").split("\n")
        name, _, number = title.rpartition(" ")
        keys[name] = [line.split()[0] for line in lines if line.startswith("  ")]
        assert number == f"({len(lines)})" == f"({len(keys[name])})"
    return keys


def run_of(folder: Path, pipeline: str, **changes: Any) -> Run:
    """The run that a tree with `changes` becomes."""
    return Run.model_validate_json(json.dumps(imported(folder, {**tree_of(pipeline), **changes}).tree))


def test_an_rlvr_configuration_passes_the_check_and_keeps_its_values(folder: Path) -> None:
    (folder / "source.yaml").write_text(dump(rlvr_tree()))
    done = call(folder, "import", "roll", "source.yaml", "--output", "run.yaml", "--strict")
    assert done.code == 0 and done.out == "", done.err
    assert "run.yaml: ok" in call(folder, "check", "run.yaml", "actor_train.backend=fsdp2").out
    run = load(folder / "run.yaml").run
    assert (run.name, run.directory, run.seed, run.steps, run.executor) == ("small-run", "./output", 7, 20, "ray")
    assert run.rollout.groups_per_step * run.rollout.group_size == 16 * 4
    assert (run.rollout.max_seq_len, run.rollout.max_new_tokens, run.rollout.max_staleness) == (112, 48, 1)
    assert (run.rollout.temperature, run.rollout.top_p, run.rollout.top_k) == (0.8, 0.9, 0)
    algorithm = run.algorithm
    assert algorithm.advantage.model_dump() == {"kind": "group_normalised", "unbiased": True}
    assert algorithm.loss.model_dump() == {"kind": "clipped", "clip_low": 0.3, "clip_high": 0.3, "dual_clip": 1.6}
    assert algorithm.kl is not None and (algorithm.kl.coefficient, algorithm.kl.apply_to) == (0.01, "loss")
    assert (algorithm.epochs, algorithm.whiten, algorithm.aggregation.kind) == (2, True, "token_mean")
    assert algorithm.minibatches == 64 // (2 * 4 * 2)  # two of the four devices share layers
    assert [mask.kind for mask in algorithm.masks] == ["truncated", "difficulty"]
    train, infer = run.actor_train.model_dump(), run.actor_infer.model_dump()
    assert (train["backend"], train["devices"], train["parallel"]["tp"]) == ("megatron", "0-3", 2)
    assert (train["tokens_per_microbatch"], train["activation_checkpointing"], train["dtype"]) == (224, True, "float32")
    assert (infer["backend"], infer["devices"], infer["parallel"]["tp"]) == ("vllm", "4-7", 2)
    optimizer = run.actor_train.optimizer
    assert (optimizer.lr, optimizer.betas) == (2e-6, (0.9, 0.999))
    assert (optimizer.schedule, optimizer.warmup_steps) == ("cosine", 3)
    shares = [(task.name, task.share, task.max_prompt_tokens) for task in run.tasks]
    assert shares == [("math_rule", 0.75, 64), ("llm_judge", 0.25, 64)]
    assert run.tasks[0].filters is not None and run.tasks[0].filters[0].kwargs == {"low": 0.1, "high": 0.9}
    assert run.tasks[1].reward is not None and run.tasks[1].reward.kwargs["chat"]["model"] == "large"
    assert (run.validation.every, run.validation.temperature, run.validation.samples) == (4, 0.6, 2)
    assert (run.tracking.wandb, run.tracking.tensorboard, run.checkpoint.every) == ("lab", False, 5)


def test_an_agentic_configuration_passes_the_check_and_keeps_its_values(folder: Path) -> None:
    (folder / "source.yaml").write_text(dump(agentic_tree()))
    assert call(folder, "import", "roll", "source.yaml", "--output", "run.yaml").code == 0
    assert "run.yaml: ok" in call(folder, "check", "run.yaml", "actor_train.backend=fsdp2").out
    run = load(folder / "run.yaml").run
    assert (run.rollout.groups_per_step, run.rollout.group_size) == (8, 4)  # 32 trajectories
    assert (run.rollout.max_seq_len, run.rollout.max_new_tokens, run.rollout.max_turns) == (256, 48, 6)
    assert run.algorithm.advantage.model_dump() == {"kind": "gigpo", "step_weight": 0.5, "gamma": 0.9}
    assert run.algorithm.kl is None and "states" in run.algorithm.needs
    ice, boxes = run.tasks
    expected = {"max_turns": 6, "slippery": True, "format_penalty": 0.05, "tag": "answer"}
    assert (ice.name, ice.env.kind, ice.env.kwargs, ice.share) == ("Ice", "frozen_lake", expected, 6)
    assert (boxes.env.kwargs, boxes.max_new_tokens) == ({"max_turns": 9, "size": 5, "boxes": 2}, 32)
    held_out = run.validation.tasks[0].data
    assert held_out is not None and held_out.kwargs == {"start": 2_000_000, "count": 8}


CASES: list[tuple[str, dict[str, Any], str, Any]] = [
    ("rlvr", {"adv_estimator": "reinforce"}, "algorithm.advantage", {"kind": "discounted", "per": "token", "gamma": 1}),
    ("rlvr", {"adv_estimator": "gae", "lambd": 0.9}, "algorithm.advantage", {"kind": "gae", "gamma": 1, "lam": 0.9}),
    (
        "rlvr",
        {"adv_estimator": "gae", "value_clip": 0.5},
        "algorithm.value_loss",
        {"kind": "squared_value", "clip": 0.5},
    ),
    ("rlvr", {"adv_estimator": "gae", "reward_pretrain": "model"}, "critic.path", "model"),
    ("rlvr", {"reward_clip": 5}, "algorithm.shaping.1", {"kind": "clipped", "low": -5, "high": 5}),
    (
        "rlvr",
        {"adv_estimator": "reinforce", "norm_mean_type": "batch", "norm_std_type": "group"},
        "algorithm.shaping.0",
        {"kind": "normalised", "mean": "batch", "std": "group", "unbiased": True},
    ),
    ("rlvr", {"use_pg_clip_range": True, "pg_clip_high": 0.28}, "algorithm.loss.clip_high", 0.28),
    ("rlvr", {"importance_sampling": "seq"}, "algorithm.loss.kind", "sequence_clipped"),
    (
        "rlvr",
        {"use_kl_loss": False, "add_token_level_kl": True, "init_kl_coef": 0.1},
        "algorithm.kl.estimator.kind",
        "k1",
    ),
    ("rlvr", {"error_max_len_clip": True, "error_max_len_threshold": 40}, "algorithm.masks.2.max_tokens", 39),
    (
        "rlvr",
        {"loss_agg_mode": "seq-mean-token-sum-norm"},
        "algorithm.aggregation",
        {"kind": "constant", "tokens": 112},
    ),
    ("rlvr", {"is_use_additional_prompts": True}, "rollout.redundant_groups", 16),
    (
        "rlvr",
        {"train_infer_correction": {"is_weight": {"enabled": True, "weight_type": "segment"}}},
        "algorithm.correction",
        {"kind": "truncate", "level": "turn", "cap": 1.2},
    ),
    ("agentic", {"adv_estimator": "grpo"}, "algorithm.advantage", {"kind": "group_normalised", "unbiased": True}),
    ("agentic", {"adv_estimator": "grpo", "init_kl_coef": 0.1}, "algorithm.kl.apply_to", "reward"),
    ("agentic", {"adv_estimator": "step_reinforce"}, "algorithm.advantage.gamma", 0.9),
    ("agentic", {"max_ckpt_to_keep": 3}, "checkpoint.keep", 3),
]


@pytest.mark.parametrize(("pipeline", "changes", "key", "value"), CASES)
def test_the_algorithm_is_converted(folder: Path, pipeline: str, changes: dict[str, Any], key: str, value: Any) -> None:
    here: Any = run_of(folder, pipeline, **changes).model_dump()
    for part in key.split("."):
        here = here[int(part)] if isinstance(here, list | tuple) else here[part]
    assert here == value


def test_defaults_of_roll_are_applied_and_reported(folder: Path) -> None:
    tree = tree_of("agentic")
    del tree["init_kl_coef"], tree["actor_train"]["training_args"]["learning_rate"]
    result = imported(folder, tree)
    assert result.tree["actor_train"]["optimizer"]["lr"] == 5e-5
    assert result.tree["algorithm"]["kl"] == {"estimator": "k1", "coefficient": 0.2, "apply_to": "reward"}
    assert outcomes(result)["init_kl_coef"].absent and not outcomes(result)["seed"].absent


def test_a_value_that_cannot_be_resolved_is_reported_and_not_used(folder: Path) -> None:
    changes = {"pretrain": "${oc.env:ROLL_TEST_UNSET}", "output_dir": "${now:%Y}", "rewards": {}}
    (folder / "source.yaml").write_text(dump({**rlvr_tree(), **changes}))
    done = call(folder, "import", "roll", "source.yaml")
    tree = yaml.safe_load(done.out)
    assert done.code == 0 and "model" not in tree and "directory" not in tree and "$" not in done.out
    assert {"pretrain", "output_dir"} <= set(sections(done.err)["not supported"])
    assert "no task could be imported" in done.err.splitlines()[-1]


def test_devices_that_both_roles_name_are_shared_and_lora_needs_no_reference(folder: Path) -> None:
    tree = tree_of("agentic")
    tree["actor_infer"]["device_mapping"] = [0, 2]
    tree["actor_train"]["model_args"] |= {"lora_target": "q_proj,v_proj", "lora_rank": 4}
    result = imported(folder, tree)
    assert result.tree["actor_infer"]["offload"] is True and result.tree["actor_infer"]["devices"] == [0, 2]
    assert result.tree["actor_train"]["lora"] == {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    assert "reference" not in result.tree and "weight_sync" not in result.tree
    report = outcomes(result)
    assert report["reference.device_mapping"].status is Status.UNUSED
    assert report["actor_train.strategy_args.strategy_config.tensor_model_parallel_size"].status is Status.UNSUPPORTED


def test_a_file_without_devices_runs_in_one_process(folder: Path) -> None:
    tree = tree_of("rlvr")
    for role in ("actor_train", "actor_infer", "reference"):
        del tree[role]["device_mapping"]
    run = run_of(folder, "rlvr", **{role: tree[role] for role in ("actor_train", "actor_infer", "reference")})
    assert (run.executor, run.actor_train.backend, run.actor_infer.backend) == ("inline", "native", "vllm")


def test_files_with_rows_of_several_domains_are_left_out_and_reported(folder: Path) -> None:
    with (folder / "essays.jsonl").open("a") as file:
        file.write(json.dumps({"tag": "easy"}) + "\n")
    result = imported(folder, tree_of("rlvr"))
    assert [task["name"] for task in result.tree["tasks"]] == ["math_rule"]
    report = outcomes(result)
    assert report["actor_train.data_args.file_name"].status is Status.DIFFERS
    assert "essays.jsonl" in report["actor_train.data_args.file_name"].note
    assert report["rewards.llm_judge.worker_cls"].status is Status.UNSUPPORTED
    assert report["actor_train.data_args.domain_interleave_probs.llm_judge"].status is Status.UNUSED


def test_secrets_are_neither_reported_nor_written(folder: Path) -> None:
    (folder / "source.yaml").write_text(dump(rlvr_tree()))
    for option in ((), ("--json",)):
        done = call(folder, "import", "roll", "source.yaml", *option)
        assert "tracker_kwargs.api_key" in done.err and "geheim" not in done.err + done.out


def test_unknown_keys_are_listed_and_strict_refuses_them(folder: Path) -> None:
    (folder / "source.yaml").write_text(dump({**rlvr_tree(), "warp_factor": 9, "used": 5, "seed": "${used}"}))
    done = call(folder, "import", "roll", "source.yaml")
    assert done.code == 0 and done.err.splitlines()[-1].startswith("1 unknown keys were not imported")
    assert sections(done.err)["unknown: not imported"] == ["warp_factor"]
    assert sections(done.err)["variable"] == ["used"]
    assert call(folder, "import", "roll", "source.yaml", "--strict").code == 2


def test_the_report_is_json_on_request_and_files_are_not_overwritten(folder: Path) -> None:
    (folder / "source.yaml").write_text(dump(rlvr_tree()))
    done = call(folder, "import", "roll", "source.yaml", "--json")
    assert yaml.safe_load(done.out)["name"] == "small-run"
    rows = {row["key"]: row for row in json.loads(done.err)}
    assert (rows["seed"]["status"], rows["seed"]["value"], rows["seed"]["becomes"]) == ("taken", 7, ["seed"])
    (folder / "run.yaml").write_text("mine")
    arguments = ("import", "roll", "source.yaml", "--output", "run.yaml")
    assert "run.yaml: exists already" in call(folder, *arguments).fault(2)
    assert (folder / "run.yaml").read_text() == "mine"
    assert call(folder, *arguments, "--overwrite").code == 0 and load(folder / "run.yaml").run.seed == 7
    for output in ("source.yaml", "gone/run.yaml"):
        assert f"{output}: " in call(folder, *arguments[:-1], output, "--overwrite").fault(2)


@pytest.mark.parametrize("seed", range(30))
def test_every_key_has_exactly_one_outcome(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    pipeline = rng.choice(["rlvr", "agentic"])
    tree = _thin(tree_of(pipeline), rng)
    tree |= {f"unknown_{index}": rng.choice([1, None, [], {}, {"a": {"b": 2}}]) for index in range(rng.randrange(3))}
    result = imported(folder, tree)
    expected = Counter(".".join(parts) for parts, _ in leaves(tree))
    expected["defaults"] = int(pipeline == "agentic")
    assert Counter(each.key for each in result.outcomes if not each.absent) == +expected
    absent = [each.key for each in result.outcomes if each.absent]
    assert not set(absent) & set(expected) and len(set(absent)) == len(absent)


_KEPT = {"custom_envs", "sequence_length", "response_length", "train_env_manager", "tags", "rewards"}


def _thin(tree: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The tree without a random part of its keys."""
    return {
        name: _thin(value, rng) if isinstance(value, dict) and name != "custom_envs" else value
        for name, value in tree.items()
        if name in _KEPT or rng.random() < 0.7
    }


def _without(tree: dict[str, Any], parts: tuple[str, ...], value: Any = None) -> dict[str, Any]:
    """The tree without a key, or with `value` there."""
    changed = copy.deepcopy(tree)
    *above, name = parts
    here = changed
    for part in above:
        here = here[part]
    del here[name]
    if value is not None:
        here[name] = value
    return changed


@pytest.mark.parametrize("pipeline", TREES)
def test_a_key_changes_the_run_file_if_and_only_if_it_is_reported_as_taken(folder: Path, pipeline: str) -> None:
    tree = tree_of(pipeline)
    before = imported(folder, tree)
    silent, loud = list[str](), list[str]()
    for parts, value in leaves(tree):
        outcome = outcomes(before)[".".join(parts)]
        if outcome.status in (Status.UNUSED, Status.UNSUPPORTED):
            after = imported(folder, _without(tree, parts))
            loud += [outcome.key] if after.tree != before.tree else []
        elif outcome.status in TAKEN and isinstance(value, int | float) and value >= 0:
            other = not value if isinstance(value, bool) else value * 2 or 1
            after = imported(folder, _without(tree, parts, other))
            silent += [outcome.key] if after.tree == before.tree else []
    assert (silent, loud) == ([], [])


@pytest.mark.parametrize("pipeline", TREES)
def test_the_report_has_a_section_per_outcome_and_each_key_is_in_one(folder: Path, pipeline: str) -> None:
    (folder / "source.yaml").write_text(dump(TREES[pipeline]()))
    report = sections(call(folder, "import", "roll", "source.yaml").err)
    with contextlib.chdir(folder):
        expected = import_roll(Path("source.yaml")).outcomes
    present = [each for each in expected if not each.absent]
    by_status = {str(status): [each.key for each in present if each.status is status] for status in Status}
    by_status["left out of the file, with ROLL's defaults"] = [each.key for each in expected if each.absent]
    assert list(report.items()) == [(title, keys) for title, keys in by_status.items() if keys]
    assert {"taken", "renamed", "default here", "not supported"} <= report.keys()


@pytest.mark.parametrize(
    ("strategy", "granularity", "disabled", "checkpointing"),
    [
        ("megatron_train", "full", True, True),
        ("megatron_train", "selective", True, True),
        ("megatron_train", None, False, False),
        ("deepspeed_train", "full", True, False),
        ("deepspeed_train", None, False, True),
    ],
)
def test_megatron_recomputes_by_granularity_and_other_strategies_by_the_model(
    folder: Path, strategy: str, granularity: str | None, disabled: bool, checkpointing: bool
) -> None:
    tree = tree_of("rlvr")
    tree["actor_train"]["strategy_args"] |= {"strategy_name": strategy}
    tree["actor_train"]["strategy_args"]["strategy_config"] = {"recompute_granularity": granularity}
    tree["actor_train"]["model_args"]["disable_gradient_checkpointing"] = disabled
    result = imported(folder, tree)
    assert result.tree["actor_train"].get("activation_checkpointing", False) is checkpointing
    key = "actor_train.strategy_args.strategy_config.recompute_granularity"
    status = {"full": Status.RENAMED, "selective": Status.DIFFERS, None: Status.DEFAULT}[granularity]
    ignored = granularity is not None and strategy == "deepspeed_train"
    assert outcomes(result)[key].status is (Status.UNUSED if ignored else status)


def strategy(folder: Path, name: str, config: dict[str, Any], **model: Any) -> Imported:
    """A configuration with this strategy of the trainer."""
    tree = tree_of("rlvr")
    tree["actor_train"]["strategy_args"] = {"strategy_name": name, "strategy_config": config}
    tree["actor_train"]["model_args"] |= model
    return imported(folder, tree)


def status_of(result: Imported, key: str) -> Status:
    """The outcome of a key of the strategy."""
    return outcomes(result)[f"actor_train.strategy_args.strategy_config.{key}"].status


MEGATRON: list[tuple[dict[str, Any], dict[str, Any], Status]] = [
    ({"tensor_model_parallel_size": 2}, {"parallel": {"tp": 2}}, Status.RENAMED),
    ({"pipeline_model_parallel_size": 2}, {"parallel": {"pp": 2}}, Status.RENAMED),
    ({"context_parallel_size": 4}, {"parallel": {"cp": 4}}, Status.RENAMED),
    ({"expert_model_parallel_size": 4}, {"parallel": {"ep": 4}}, Status.RENAMED),
    ({"virtual_pipeline_model_parallel_size": 2}, {}, Status.UNSUPPORTED),
    ({"expert_tensor_parallel_size": 1}, {}, Status.DEFAULT),
    ({"expert_tensor_parallel_size": 2}, {}, Status.UNSUPPORTED),
    ({"sequence_parallel": False}, {}, Status.DEFAULT),
    ({"use_distributed_optimizer": True}, {}, Status.DEFAULT),
    ({"use_distributed_optimizer": False}, {}, Status.UNSUPPORTED),
    ({"overlap_grad_reduce": True}, {}, Status.UNSUPPORTED),
    ({"moe_token_dispatcher_type": "alltoall"}, {}, Status.DEFAULT),
    ({"moe_token_dispatcher_type": "flex"}, {}, Status.UNSUPPORTED),
    ({"moe_aux_loss_coeff": 0.01}, {}, Status.UNSUPPORTED),
    ({"account_for_loss_in_pipeline_split": True}, {}, Status.UNSUPPORTED),
    ({"recompute_method": "block"}, {}, Status.UNSUPPORTED),
    ({"optimizer_cpu_offload": True}, {}, Status.UNSUPPORTED),
    ({"bias_activation_fusion": True}, {}, Status.DEFAULT),
    ({"fp8": "hybrid"}, {}, Status.UNSUPPORTED),
]


@pytest.mark.parametrize(("config", "expected", "status"), MEGATRON, ids=lambda each: ",".join(each) if each else "")
def test_each_key_of_megatron_is_mapped_or_named(
    folder: Path, config: dict[str, Any], expected: dict[str, Any], status: Status
) -> None:
    result = strategy(folder, "megatron_train", config)
    train = result.tree["actor_train"]
    assert train["backend"] == "megatron" and {name: train[name] for name in expected} == expected
    assert set(train) == {"backend", "devices", "optimizer", "tokens_per_microbatch", *expected}
    assert status_of(result, next(iter(config))) is status
    assert Run.model_validate_json(json.dumps(result.tree)).actor_train.backend == "megatron"


def test_sequence_parallelism_of_megatron_follows_from_tp(folder: Path) -> None:
    for value, status in ((True, Status.DEFAULT), (False, Status.UNSUPPORTED)):
        config = {"tensor_model_parallel_size": 2, "sequence_parallel": value}
        assert status_of(strategy(folder, "megatron_train", config), "sequence_parallel") is status


def test_adapters_of_megatron_are_trained_by_fsdp2(folder: Path) -> None:
    result = strategy(folder, "megatron_train", {"pipeline_model_parallel_size": 2}, lora_target="all", lora_rank=4)
    assert result.tree["actor_train"]["backend"] == "fsdp2" and "parallel" not in result.tree["actor_train"]
    assert status_of(result, "pipeline_model_parallel_size") is Status.UNSUPPORTED
    assert "fsdp2, which trains adapters" in outcomes(result)["actor_train.strategy_args.strategy_name"].note


ZERO: list[tuple[dict[str, Any], dict[str, Any], Status]] = [
    ({"stage": 3}, {"zero_stage": 3}, Status.RENAMED),
    ({"stage": 2}, {"zero_stage": 2}, Status.RENAMED),
    ({"stage": 1}, {"zero_stage": 2}, Status.DIFFERS),
    ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": True}, Status.RENAMED),
    ({"stage": 3, "offload_param": {"device": "cpu"}}, {"offload_parameters": True}, Status.RENAMED),
    ({"stage": 2, "offload_param": {"device": "none"}}, {}, Status.DEFAULT),
    ({"stage": 2, "offload_param": {"device": "cpu"}}, {}, Status.UNSUPPORTED),
    ({"stage": 3, "overlap_comm": True}, {}, Status.DEFAULT),
]


@pytest.mark.parametrize(("zero", "expected", "status"), ZERO, ids=str)
def test_the_stage_and_the_offloading_of_deepspeed_are_kept(
    folder: Path, zero: dict[str, Any], expected: dict[str, Any], status: Status
) -> None:
    result = strategy(folder, "deepspeed_train", {"zero_optimization": zero, "steps_per_print": 5})
    train = Run.model_validate_json(json.dumps(result.tree)).actor_train.model_dump()
    assert (train["backend"], train["dtype"]) == ("deepspeed", "bfloat16")
    offloaded = {"offload_optimizer": False, "offload_parameters": False} | expected
    assert {name: train[name] for name in offloaded} == offloaded
    last = list(zero)[-1]
    key = f"zero_optimization.{last}.device" if isinstance(zero[last], dict) else f"zero_optimization.{last}"
    assert status_of(result, key) is status


def test_sequences_that_deepspeed_would_divide_are_divided_by_fsdp2(folder: Path) -> None:
    result = strategy(folder, "deepspeed_train", {"zero_optimization": {"stage": 3}}, ulysses_size=2)
    train = result.tree["actor_train"]
    assert (train["backend"], train["parallel"], "zero_stage" in train) == ("fsdp2", {"cp": 2}, False)


def test_the_report_of_the_documentation_is_the_report_of_the_command(folder: Path) -> None:
    page = (ROOT / "docs" / "import_roll.md").read_text(encoding="utf-8")
    (folder / "rlvr_config.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    report = page.split("```text\n")[1].split("```")[0].splitlines()
    done = call(folder, "import", "roll", "rlvr_config.yaml", "--output", "run.yaml")
    assert report and [line for line in report if line not in done.err.splitlines()] == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rollout_batch_size": "many"}, "rollout_batch_size: must be a number (got 'many')"),
    ({"rollout_batch_size": 1.5}, "rollout_batch_size: must be a whole number"),
    ({"adv_estimator": "best"}, "adv_estimator: is gae"),
    ({"loss_agg_mode": 3}, "loss_agg_mode: is"),
    ({"actor_train": 3}, "actor_train"),
    ({"rewards": [1]}, "rewards: must be a section"),
    ({"actor_train": {"device_mapping": "os.system('x')"}}, "actor_train.device_mapping: no such devices"),
    ({"response_length": None}, "neither sequence_length nor response_length"),
]


@pytest.mark.parametrize(("changes", "line"), BAD)
def test_bad_values_are_one_line(folder: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        imported(folder, {**tree_of("rlvr"), **changes})
    assert line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(60))
def test_any_value_is_converted_or_refused_in_one_line(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    tree = tree_of(rng.choice(["rlvr", "agentic"]))
    for parts, _ in rng.sample(list(leaves(tree)), 3):
        tree = _without(
            tree, parts, rng.choice([0, -1, 1e300, float("nan"), True, "x", "", [], [[]], {"a": 1}, ["x", 1]])
        )
    try:
        imported(folder, tree)
    except ConfigError as error:
        assert "\n" not in str(error) and str(error).startswith("source.yaml: ")


@pytest.mark.parametrize("tree", [{}, {"sft_train": {}}, {"student": {"a": 1}, "teacher": {}}])
def test_other_pipelines_are_refused(folder: Path, tree: dict[str, Any]) -> None:
    (folder / "source.yaml").write_text(dump(tree))
    assert "no pipeline of ROLL that can be imported" in call(folder, "import", "roll", "source.yaml").fault(2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: ${b}\nb: ${a}", "in a circle"),
        ("defaults: [gone@_here_]", "no such file: gone.yaml"),
        ("\n".join(["a0: &a0 [x]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(30))]), "has more than"),
    ],
)
def test_malformed_files_are_one_line_and_exit_code_2(folder: Path, text: str, line: str) -> None:
    (folder / "source.yaml").write_text(text)
    assert line in call(folder, "import", "roll", "source.yaml").fault(2)
