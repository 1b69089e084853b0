"""A run whose trainer is two ranks on Ray, compared with the same run in one process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.weights.huggingface import read_tensors

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fsdp")]
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

RUN = """\
threads: 1
steps: 3
model: {shape: {alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 4, kv_heads: 2, mlp: 64, max_seq_len: 64}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic, count: 50}, reward: "even:score"}]
rollout: {groups_per_step: 4, group_size: 3, max_seq_len: 32, max_new_tokens: 6}
actor_train: {tokens_per_microbatch: 50, optimizer: {lr: 0.01}}
checkpoint: {every: 2}
tracking: {tensorboard: false}
"""
EVEN = """\
def score(task, reply):
    return sum(letter in "02468" for letter in reply) / 6
"""
RANKS = ("executor=ray", "actor_train.backend=fsdp2", "actor_train.workers=2", "weight_sync.transport=gloo")
COMPARED = ("loss/policy", "loss/grad_norm", "loss/entropy", "reward/mean", "sampler_mismatch/mean")


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.sweep
def test_a_run_on_two_ranks_learns_as_one_process_does(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN)
    (tmp_path / "run.yaml").write_text(RUN)
    for name, where in (("one", ()), ("two", RANKS)):
        loaded = load(tmp_path / "run.yaml", [f"directory={tmp_path}", f"name={name}", *where])
        preflight(loaded)
        commands.train(loaded, overwrite=False)
    one, two = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(one) == len(two) == 4 and len({line["loss/grad_norm"] for line in one[1:]}) == 3
    for ours, theirs in zip(two[1:], one[1:], strict=True):
        assert [ours[name] for name in COMPARED] == pytest.approx([theirs[name] for name in COMPARED], abs=1e-4)
    models = [dict(read_tensors(tmp_path / name / "model")) for name in ("one", "two")]
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-3, atol=1e-3)
    assert (tmp_path / "two/checkpoints/step-2/optimizer").is_dir()
    logs = {path.name for path in (tmp_path / "two/logs").iterdir()}
    assert {"actor_train-0.log", "actor_train-1.log", "actor_infer-0.log"} <= logs
    assert not list((tmp_path / "two").glob("weights*"))


@pytest.mark.sweep
def test_a_damaged_shard_of_two_ranks_is_named_and_the_checkpoint_before_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "even.py").write_text(EVEN)
    (tmp_path / "run.yaml").write_text(RUN)
    loaded = load(tmp_path / "run.yaml", [f"directory={tmp_path}", "name=two", *RANKS])
    preflight(loaded)
    commands.train(loaded, overwrite=False)
    shard = next((tmp_path / "two/checkpoints/step-3/optimizer").glob("rank-00001-*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    result = commands.resume(tmp_path / "two", ["steps=4"])
    assert result.finished and result.checkpoint == tmp_path / "two/checkpoints/step-4"
    assert f"step-3: damaged: optimizer/{shard.name}: its content has changed" in capsys.readouterr().out
    assert (tmp_path / "two/checkpoints/damaged-step-3").is_dir()
    assert [line["step"] for line in read_lines(tmp_path / "two/metrics.jsonl")] == [0, 1, 2, 3, 4]
