"""The key `devices`."""

from pathlib import Path

import pytest

from roll.config.devices import named_devices, num_devices
from roll.config.load import dump, load
from roll.config.schema import Run
from roll.errors import ConfigError

TEXT = """\
executor: ray
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 512}
"""


def run_of(folder: Path, *changes: str) -> Run:
    (folder / "run.yaml").write_text(TEXT)
    return load(folder / "run.yaml", changes).run


@pytest.mark.parametrize(
    ("text", "named", "num"),
    [
        ("auto", None, None),
        ("all", None, None),
        ("cuda:1", None, None),
        ("4", None, 4),
        ("0-3", (0, 1, 2, 3), 4),
        ("0-1,8-9", (0, 1, 8, 9), 4),
        ("'3, 1'", (3, 1), 2),
        ("[0, 2, 5]", (0, 2, 5), 3),
    ],
)
def test_words_counts_ranges_and_lists_are_read_and_dumped(
    tmp_path: Path, text: str, named: tuple[int, ...] | None, num: int | None
) -> None:
    run = run_of(tmp_path, f"actor_infer.devices={text}")
    assert named_devices(run.actor_infer.devices) == named
    assert num_devices(run.actor_infer.devices) == num
    assert run.actor_infer.num_workers == (num or 1)
    (tmp_path / "again.yaml").write_text(dump(run))
    assert load(tmp_path / "again.yaml").run == run


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpu", r"actor_infer.devices: no such devices \(got 'gpu'\); give auto, all, cpu"),
        ("'4'", r"actor_infer.devices: '4' may be a count or a number; write \[4\] for that one device, or 4"),
        ("0", r"a count of devices is at least 1 \(got 0\)"),
        ("7-0", "a range goes from low to high .got '7-0'.; write '0-7'"),
        ("0-3,2", "device 2 is named twice; name each once"),
        ("[0, 0]", "device 0 is named twice"),
        ("[0, -1]", "a list names devices by their numbers from 0 on"),
        ("[]", "a list names devices by their numbers from 0 on"),
        ("[a]", "a list names devices by their numbers from 0 on"),
        ("true", "no such devices"),
        ("1.5", "no such devices"),
    ],
)
def test_invalid_devices_are_an_error_at_their_key(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as raised:
        run_of(tmp_path, f"actor_infer.devices={text}")
    assert str(raised.value).startswith("command line: actor_infer.devices: ")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            ["actor_infer.devices=0-3", "actor_infer.workers=3"],
            "actor_infer.workers .3.: 4 devices in groups of 1 make 4",
        ),
        (["actor_infer={backend: vllm, devices: 6, parallel: {tp: 4}}"], "6 devices do not divide by parallel.tp .4."),
        (["actor_infer={backend: vllm, parallel: {cp: 2}}"], "parallel.cp .2.: vllm does not divide sequences"),
        (["actor_train.devices=0-1"], "actor_train.devices .0-1.: backend native trains on one device"),
        (["critic.devices=2"], "critic.devices .2.: backend native trains on one device"),
        (
            ["executor=inline", "actor_infer.devices=[0]"],
            r"actor_infer.devices \(\[0\]\): with executor inline there is one",
        ),
        (["executor=inline", "actor_infer.devices=cuda"], r"it is the trainer's \(auto\), got 'cuda'; leave it out"),
    ],
)
def test_inconsistent_counts_are_errors(tmp_path: Path, changes: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        run_of(tmp_path, *changes)


def test_workers_follow_from_devices_and_groups(tmp_path: Path) -> None:
    run = run_of(tmp_path, "actor_infer={backend: vllm, devices: 0-7, parallel: {tp: 4}}", "reference.devices=3")
    assert (run.actor_infer.num_workers, run.reference.num_workers, run.actor_train.num_workers) == (2, 3, 1)
