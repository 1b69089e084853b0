"""Which engine samples is chosen by `backend`, and everything else about it follows."""

from pathlib import Path

import pytest

from roll.config.load import load
from roll.config.roles import NativeInfer
from roll.config.vllm import VllmInfer
from roll.errors import ConfigError

RUN = """\
model: {shape: {}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic}, reward: exact}]
rollout: {context: 128, max_new_tokens: 8}
"""


def infer(path: Path, section: str, *overrides: str) -> object:
    (path / "run.yaml").write_text(f"{RUN}actor_infer: {section}\n")
    return load(path / "run.yaml", overrides).run.actor_infer


def test_the_section_is_that_of_the_backend(tmp_path: Path) -> None:
    assert infer(tmp_path, "{}") == NativeInfer()
    assert infer(tmp_path, "{slots: 8}") == NativeInfer(slots=8)
    found = infer(tmp_path, "{backend: vllm, parallel: {tp: 2}}", "actor_infer.kv_gib=2.0")
    assert isinstance(found, VllmInfer) and (found.parallel.tp, found.kv_gib, found.slots) == (2, 2.0, 256)


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("{backend: vlm}", r"run.yaml:5: actor_infer.backend: must be one of 'native', 'vllm' \(got 'vlm'\)"),
        ("{backend: vllm, slot: 4}", "run.yaml:5: unknown key 'actor_infer.slot'; did you mean 'slots'"),
        ("{backend: vllm, parallel: {tq: 4}}", "unknown key 'actor_infer.parallel.tq'; known: cp, tp"),
        ("{kv_gib: 4}", "unknown key 'actor_infer.kv_gib'; only another backend has it"),
        ("{backend: vllm, parallel: {tp: 0}}", r"actor_infer.parallel.tp: must be greater than 0 \(got 0\)"),
        ("{slots: 1}", r"actor_infer.slots: must be greater than 1 \(got 1\)"),
        ("4", "actor_infer: must be a section of keys and values"),
    ],
)
def test_a_fault_is_told_where_it_was_written_whatever_the_backend(section: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        infer(tmp_path, section)


def test_vllm_cannot_promise_determinism_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="deterministic: backend vllm draws its own noise"):
        infer(tmp_path, "{backend: vllm}", "deterministic=true")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["rollout.max_staleness=1"], r"actor_infer.logprobs: rollout.max_staleness \(1\) needs to know them"),
        (["algorithm={recipe: grpo, correction: truncate}"], "actor_infer.logprobs: algorithm.correction needs"),
        (["algorithm=topr"], r"actor_infer.logprobs: algorithm.loss \(topr\) needs"),
        (["algorithm={recipe: grpo, kl: {place: loss}}"], "actor_infer.logprobs: algorithm.kl needs"),
    ],
)
def test_logprobs_of_the_sampler_are_not_left_out_where_something_reads_them(
    changes: list[str], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=fault):
        infer(tmp_path, "{backend: vllm, logprobs: false}", *changes)


def test_logprobs_of_the_sampler_may_be_left_out_where_nothing_does(tmp_path: Path) -> None:
    found = infer(tmp_path, "{backend: vllm, logprobs: false}")
    assert isinstance(found, VllmInfer) and not found.logprobs
