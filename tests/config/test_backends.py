"""Which engine samples is chosen by `backend`, and everything else about it follows."""

from pathlib import Path

import pytest

from roll.config.backends import FsdpTrain, MegatronTrain, SglangInfer, VllmInfer, check_sglang
from roll.config.load import dump, load
from roll.config.roles import NativeInfer
from roll.errors import ConfigError

RUN = """\
model: {shape: {}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic}, reward: exact}]
rollout: {max_seq_len: 128, max_new_tokens: 8}
"""


def infer(path: Path, section: str, *overrides: str) -> object:
    (path / "run.yaml").write_text(f"{RUN}actor_infer: {section}\n")
    return load(path / "run.yaml", overrides).run.actor_infer


def test_the_section_is_that_of_the_backend(tmp_path: Path) -> None:
    assert infer(tmp_path, "{}") == NativeInfer()
    assert infer(tmp_path, "{max_num_seqs: 8}") == NativeInfer(max_num_seqs=8)
    found = infer(tmp_path, "{backend: vllm, parallel: {tp: 2}}", "actor_infer.kv_cache_gib=2.0")
    assert isinstance(found, VllmInfer) and (found.parallel.tp, found.kv_cache_gib, found.max_num_seqs) == (2, 2.0, 256)


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("{backend: vlm}", r"run.yaml:5: actor_infer.backend: must be one of 'native', 'vllm', 'sglang' \(got 'vlm'\)"),
        (
            "{backend: vllm, max_num_seq: 4}",
            "run.yaml:5: unknown key 'actor_infer.max_num_seq'; did you mean 'max_num_seqs'",
        ),
        ("{backend: vllm, parallel: {tq: 4}}", "unknown key 'actor_infer.parallel.tq'; known: cp, tp"),
        ("{enforce_eager: true}", "unknown key 'actor_infer.enforce_eager'; only another backend has it"),
        ("{backend: vllm, parallel: {tp: 0}}", r"actor_infer.parallel.tp: must be greater than 0 \(got 0\)"),
        ("{max_num_seqs: 1}", r"actor_infer.max_num_seqs: must be greater than 1 \(got 1\)"),
        ("4", "actor_infer: must be a section of keys and values"),
    ],
)
def test_a_fault_is_reported_at_its_line_for_every_backend(section: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        infer(tmp_path, section)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_a_deterministic_run_refuses_backends_that_are_not_native(backend: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"deterministic: tokens of backend {backend} depend on the other requests"):
        infer(tmp_path, f"{{backend: {backend}}}", "deterministic=true")


def test_sglang_has_the_names_of_its_server_arguments(tmp_path: Path) -> None:
    found = infer(tmp_path, "{backend: sglang, max_running_requests: 8}", "actor_infer.max_total_tokens=4096")
    assert isinstance(found, SglangInfer) and (found.max_num_seqs, found.max_total_tokens) == (8, 4096)
    with pytest.raises(ConfigError, match=r"unknown key 'actor_infer.parallel'"):
        infer(tmp_path, "{backend: sglang, parallel: {tp: 2}}")


def test_sglang_refuses_adapters_and_a_second_engine_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor_train.lora: backend sglang serves no adapters"):
        infer(tmp_path, "{backend: sglang}", "actor_train.lora={rank: 4}")
    with pytest.raises(ValueError, match=r"policies: a process has one engine of SGLang .*\(got 2\)"):
        check_sglang("inline", SglangInfer(backend="sglang"), None, 2)
    check_sglang("ray", SglangInfer(backend="sglang"), None, 2)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["rollout.max_staleness=1"], r"actor_infer.logprobs: rollout.max_staleness \(1\) needs to know them"),
        (["algorithm={recipe: grpo, correction: truncate}"], "actor_infer.logprobs: algorithm.correction needs"),
        (["algorithm=topr"], r"actor_infer.logprobs: algorithm.loss \(topr\) needs"),
        (["algorithm={recipe: grpo, kl: {apply_to: loss}}"], "actor_infer.logprobs: algorithm.kl needs"),
    ],
)
def test_logprobs_of_the_sampler_cannot_be_left_out_if_something_reads_them(
    changes: list[str], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=fault):
        infer(tmp_path, "{backend: vllm, logprobs: false}", *changes)


def test_logprobs_of_the_sampler_may_be_left_out_if_nothing_reads_them(tmp_path: Path) -> None:
    found = infer(tmp_path, "{backend: vllm, logprobs: false}")
    assert isinstance(found, VllmInfer) and not found.logprobs


def test_a_resumed_run_with_another_trainer_drops_the_keys_that_it_lacks(tmp_path: Path) -> None:
    fsdp2 = "{backend: fsdp2, workers: 2, offload: true, parallel: {tp: 2}, optimizer: {lr: 0.5}}"
    (tmp_path / "run.yaml").write_text(f"{RUN}executor: ray\nactor_train: {fsdp2}\n")
    (tmp_path / "saved.yaml").write_text(dump(load(tmp_path / "run.yaml").run))
    changed = ["actor_train.backend=megatron", "actor_train.parallel.pp=1"]
    with pytest.raises(ConfigError, match=r"unknown key 'actor_train\.offload'"):
        load(tmp_path / "saved.yaml", changed)
    train = load(tmp_path / "saved.yaml", changed, resumed=True).run.actor_train
    assert isinstance(train, MegatronTrain)
    assert (train.workers, train.parallel.tp, train.optimizer.lr) == (2, 2, 0.5)
    (tmp_path / "saved.yaml").write_text(dump(load(tmp_path / "saved.yaml", changed, resumed=True).run))
    back = load(tmp_path / "saved.yaml", ["actor_train.backend=fsdp2"], resumed=True).run.actor_train
    assert isinstance(back, FsdpTrain) and not back.offload
    with pytest.raises(ConfigError, match=r"unknown key 'actor_train\.zero_stage'"):
        load(tmp_path / "saved.yaml", ["actor_train.backend=fsdp2", "actor_train.zero_stage=3"], resumed=True)


@pytest.mark.parametrize(
    ("section", "changes", "fault"),
    [
        ("{}", [], r"int8\): tokens come from another .* set algorithm.correction to truncate"),
        ("{}", ["actor_train.lora={rank: 4}"], r"int8\): adapters are served with unquantised models; remove"),
        ("{parallel: {tp: 2}}", [], r"int8\): quantised weights are not divided; set parallel.tp to 1 \(got 2\)"),
        (
            "{}",
            ["executor=ray", "actor_train={backend: megatron}", "algorithm={recipe: grpo, correction: truncate}"],
            r"int8\): backend megatron publishes no quantised weights; set actor_train.backend to native or fsdp2",
        ),
    ],
)
def test_quantised_generation_refuses_what_it_does_not_support(
    section: str, changes: list[str], fault: str, tmp_path: Path
) -> None:
    section = section.replace("{", "{backend: vllm, quantization: int8, ", 1)
    with pytest.raises(ConfigError, match=rf"actor_infer.*quantization \({fault}"):
        infer(tmp_path, section, *changes)


@pytest.mark.parametrize("algorithm", ["{recipe: grpo, correction: mask}", "topr"])
def test_quantised_generation_takes_a_correction_or_a_loss_that_reads_the_sampler(
    algorithm: str, tmp_path: Path
) -> None:
    found = infer(tmp_path, "{backend: vllm, quantization: fp8}", f"algorithm={algorithm}")
    assert isinstance(found, VllmInfer) and found.quantization == "fp8"
