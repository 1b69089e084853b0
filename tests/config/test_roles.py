"""Checks of the processes of roles."""

from pathlib import Path

import pytest

from roll.config.load import dump, load
from roll.errors import ConfigError

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 512}
"""


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["actor_infer.workers=2"], "actor_infer.workers (2): with executor inline every role is in this process"),
        (["reference.python=/x"], "reference.python (/x): with executor inline every role is in this process"),
        (["ray.address=auto"], "ray: with executor inline every role is in this process"),
        (["executor=ray", "actor_train.workers=2"], "actor_train.workers (2): backend native trains in one process"),
        (["executor=ray", "critic.workers=2"], "critic.workers (2): backend native trains in one process"),
        (
            ["actor_infer.min_workers=1"],
            "actor_infer.min_workers (1): with executor inline every role is",
        ),
        (
            ["executor=ray", "actor_infer={workers: 2, min_workers: 3}"],
            "actor_infer.min_workers (3): there are only 2 generators; lower it",
        ),
        (
            ["executor=ray", "actor_infer={workers: 2, min_workers: 1}", "weight_sync.transport=gloo"],
            "actor_infer.min_workers (1): gloo needs all generators; set weight_sync.transport to disk",
        ),
        (
            ["actor_infer.max_workers=2"],
            "actor_infer.max_workers (2): with executor inline every role is",
        ),
        (
            ["executor=ray", "actor_infer={workers: 3, max_workers: 2}"],
            "actor_infer.max_workers (2): the run starts with 3 generators; raise it, or lower workers",
        ),
        (
            ["executor=ray", "actor_infer.max_workers=2", "weight_sync.transport=gloo"],
            "actor_infer.max_workers (2): none can join a gloo broadcast; set weight_sync.transport to disk",
        ),
        (
            ["executor=ray", "actor_infer.max_workers=2", "ray.max_replacements=0"],
            "actor_infer.max_workers (2): with ray.max_replacements 0 the first lost generator ends the run",
        ),
        (["actor_infer.lend_factor=2"], "actor_infer.lend_factor (2): with executor inline there is one device"),
        (
            ["executor=ray", "actor_infer.lend_factor=2", "weight_sync.transport=gloo"],
            "actor_infer.lend_factor (2): none can join a gloo broadcast; set weight_sync.transport to disk",
        ),
        (
            ["executor=ray", "actor_infer={lend_factor: 2, max_workers: 2}", "rollout.concurrency=8"],
            "actor_infer.lend_factor (2): generators also join and leave by actor_infer.max_workers; leave one",
        ),
        (
            ["executor=ray", "actor_infer={lend_factor: 1.5, max_num_seqs: 32}"],
            "actor_infer.lend_factor (1.5): without rollout.concurrency no request waits for a device; set it, for "
            "example to actor_infer.max_num_seqs (32)",
        ),
        (["executor=ray", "actor_infer.lend_factor=0.5"], "actor_infer.lend_factor"),
        (["executor=ray", "ray.address=ray://a:1"], "ray.address (ray://a:1): start the run on a machine of the"),
    ],
)
def test_impossible_numbers_of_processes_are_errors(tmp_path: Path, changes: list[str], fault: str) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "run.yaml", changes)
    assert fault in str(raised.value)


@pytest.mark.parametrize("changes", [[], ["executor=ray", "actor_infer.workers=2", "ray.address=auto"]])
def test_a_dumped_placement_is_read_back_equal(tmp_path: Path, changes: list[str]) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    run = load(tmp_path / "run.yaml", changes).run
    (tmp_path / "again.yaml").write_text(dump(run))
    assert load(tmp_path / "again.yaml").run == run
