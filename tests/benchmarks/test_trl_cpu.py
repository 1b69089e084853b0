"""The workload of both sides of `trl_cpu`."""

from pathlib import Path

from benchmarks.trl_cpu import ALPHABET, PROMPTS, SHAPE, SIBLINGS, STEPS, VOCAB, config, distinct_characters, prompts
from roll.config.load import load
from roll.preflight import preflight
from roll.types import Task


def test_the_config_is_valid_with_16_prompts_8_siblings_32_tokens(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(config(tmp_path), encoding="utf-8")
    loaded = load(path)
    preflight(loaded)
    rollout = loaded.run.rollout
    assert (rollout.groups_per_step, rollout.group_size, rollout.max_new_tokens) == (16, 8, 32)
    assert rollout.max_staleness == 0
    assert loaded.run.actor_infer.max_num_seqs == PROMPTS * SIBLINGS
    assert loaded.run.checkpoint.every == 0


def test_the_shape_is_a_vocabulary_of_64_and_heads_of_48() -> None:
    assert len(set(ALPHABET)) + 4 == VOCAB == 64  # four special tokens
    assert SHAPE["hidden"] // SHAPE["heads"] == 48
    assert (SHAPE["layers"], SHAPE["kv_heads"], SHAPE["mlp"]) == (4, 2, 512)


def test_there_are_enough_prompts_for_all_steps_and_the_alphabet_can_write_them() -> None:
    tasks = prompts(PROMPTS * STEPS)
    assert len({task.id for task in tasks}) == PROMPTS * STEPS
    assert all(set(task.messages[0].content) <= set(ALPHABET) for task in tasks)


def test_the_reward_counts_distinct_characters() -> None:
    assert distinct_characters(Task(id="0", domain="sums"), "abca") == 3.0


def test_the_peer_does_not_import_this_package() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "trl_peer.py"
    assert "roll" not in script.read_text(encoding="utf-8")
