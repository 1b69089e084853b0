"""`roll distill` from the file to the model: resumption, stores, refusals."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from roll.commands import distill as commands
from roll.commands.check import check_data
from roll.config.load import load
from roll.config.schema import Model
from roll.data.teacher_store import digest_model
from roll.engines.native.model_spec import ModelSpec, build
from roll.errors import ConfigError
from roll.preflight import preflight
from roll.tracking.sinks import read_lines
from roll.weights.huggingface import write_model
from roll.wiring.models import build_tokenizer

ALPHABET = "0123456789+="


def model_of(**changed: Any) -> dict[str, Any]:
    shape = {"architecture": "qwen3", "alphabet": ALPHABET, "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1}
    return {"shape": {**shape, "mlp": 32, "max_seq_len": 32, **changed}}


def write_teacher(folder: Path, seed: int = 5, **changed: Any) -> str:
    """A random model on disk; its path."""
    model = Model.model_validate(model_of(**{"hidden": 24, **changed}))
    decoder = build(ModelSpec(model=model, seed=seed))
    write_model(folder, decoder.config, dict(decoder.named_tensors()))
    build_tokenizer(model).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_teacher(tmp_path_factory.mktemp("models") / "teacher")


def run_of(folder: Path, teacher_path: str | None, **changed: Any) -> dict[str, Any]:
    """A tiny run on sums of one digit."""
    section = {"steps": 4, "batch_size": 8, "validate_every": 2, "optimizer": {"lr": 1e-2}}
    sums = {"kind": "arithmetic", "digits": 1}
    return {
        "name": "tiny",
        "directory": str(folder),
        "deterministic": True,
        "model": model_of(),
        "algorithm": {"recipe": "grpo"},
        "tasks": [{"name": "sums", "data": sums, "reward": "exact"}],
        "validation": {"tasks": [{"name": "held", "data": {**sums, "split": "held_out"}, "reward": "exact"}]},
        "rollout": {"max_seq_len": 16, "max_new_tokens": 4},
        "checkpoint": {"every": 2},
        "tracking": {"tensorboard": False},
        **({} if teacher_path is None else {"teacher": {"path": teacher_path}}),
        **{key: value for key, value in changed.items() if key != "distill"},
        "distill": {**section, **changed.get("distill", {})},
    }


def train(run: dict[str, Any], **options: Any) -> bool:
    loaded = load(run)
    preflight(loaded)
    return commands.distill(loaded, overwrite=False, **options)


def equal(first: Path, second: Path) -> bool:
    rows, others = (load_file(folder / "tiny-distill" / "model" / "model.safetensors") for folder in (first, second))
    return all(np.array_equal(rows[name], others[name]) for name in rows)


def metrics(folder: Path, name: str) -> list[float]:
    return [line[name] for line in read_lines(folder / "tiny-distill" / "metrics.jsonl") if name in line]


def store_of(folder: Path, **changed: Any) -> dict[str, Any]:
    return {"store": str(folder / "logits"), "top_k": 4, **changed}


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, teacher: str):
    whole, halves, before = tmp_path / "whole", tmp_path / "halves", digest_model(Path(teacher))
    assert train(run_of(whole, teacher))
    assert train(run_of(halves, teacher, distill={"steps": 2}))
    assert commands.resume(halves / "tiny-distill", ["distill.steps=4"])
    assert equal(whole, halves)
    assert metrics(whole, "distillation/loss") == metrics(halves, "distillation/loss")
    assert len(metrics(whole, "validation/accuracy")) == 3
    losses = metrics(whole, "distillation/held_out_loss")
    assert losses[-1] < 0.9 * losses[0]
    assert digest_model(Path(teacher)) == before


@pytest.mark.slow
def test_stored_logprobs_train_the_same_student_as_a_live_teacher(tmp_path: Path, teacher: str):
    live, stored, again = tmp_path / "live", tmp_path / "stored", tmp_path / "again"
    section = {"divergence": "reverse_kl", "temperature": 2.0}
    train(run_of(live, teacher, distill={"top_k": 4, **section}))
    train(run_of(stored, teacher, distill=store_of(tmp_path, **section)))
    train(run_of(again, None, distill=store_of(tmp_path, **section)))  # no teacher is loaded any more
    assert equal(live, stored) and equal(live, again)


@pytest.mark.slow
def test_all_tokens_as_the_likeliest_train_as_hidden_states_do(tmp_path: Path, teacher: str):
    hidden, likeliest = tmp_path / "hidden", tmp_path / "likeliest"
    train(run_of(hidden, teacher, distill={"steps": 2}))
    train(run_of(likeliest, teacher, distill={"steps": 2, "top_k": 16}))
    losses = [metrics(folder, "distillation/held_out_loss") for folder in (hidden, likeliest)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_weight_of_sft_mixes_the_two_losses(tmp_path: Path, teacher: str):
    train(run_of(tmp_path, teacher, distill={"sft_weight": 0.25, "steps": 1}))
    loss, divergence, surprise = (
        metrics(tmp_path, f"distillation/{name}")[0] for name in ("loss", "divergence", "surprise")
    )
    assert loss == pytest.approx(0.75 * divergence + 0.25 * surprise, rel=1e-5)


def test_a_store_is_written_without_training_and_not_over_another(
    tmp_path: Path, teacher: str, capsys: pytest.CaptureFixture[str]
):
    loaded = load(run_of(tmp_path, teacher, distill=store_of(tmp_path)))
    commands.store(loaded, overwrite=False)
    assert "the 4 most likely tokens" in capsys.readouterr().out
    assert not (tmp_path / "tiny-distill").exists()
    with pytest.raises(ConfigError, match=r"distill\.store: .*logits exists already; add --overwrite"):
        commands.store(loaded, overwrite=False)
    commands.store(loaded, overwrite=True)
    with pytest.raises(ConfigError, match=r"distill\.store: there is no path to write to"):
        commands.store(load(run_of(tmp_path, teacher)), overwrite=False)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, teacher: str) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    commands.store(load(run_of(folder, teacher, distill=store_of(folder))), overwrite=False)
    return folder


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"distill": {"top_k": 5}}, r"distill\.top_k: 5, and .*logits was stored with 4"),
        ({"distill": {"temperature": 2.0}}, r"distill\.temperature: 2, and .*logits was stored with 1"),
        ({"distill": {"top_k": 17}}, r"distill\.top_k: the vocabulary has 16 tokens \(got 17\); lower it"),
        (
            {"tasks": [{"name": "sums", "data": "arithmetic", "reward": "exact"}]},
            "has other rows than tasks of the run",
        ),
        ({"validation": {}}, r"has other rows than validation\.tasks of the run"),
        ({"model": model_of(alphabet=ALPHABET + "x")}, "was stored with another tokenizer than the model's"),
    ],
)
def test_a_store_of_another_run_is_refused(tmp_path: Path, stored: Path, changed: dict[str, Any], message: str):
    section = {"distill": store_of(stored, **changed.get("distill", {}))}
    with pytest.raises(ConfigError, match=message) as error:
        train(run_of(tmp_path, None, **{**changed, **section}))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tiny-distill" / "config.yaml").exists()


def test_a_store_of_another_teacher_is_refused(tmp_path: Path, stored: Path):
    other = write_teacher(tmp_path / "other", seed=6)
    with pytest.raises(ConfigError, match=r"was stored with another teacher than teacher\.path"):
        train(run_of(tmp_path, other, distill=store_of(stored)))


def truncate(folder: Path) -> None:
    with (folder / "training-logprobs.npy").open("r+b") as file:
        file.truncate(300)


def change_a_byte(folder: Path) -> None:
    content = bytearray((folder / "training-ids.npy").read_bytes())
    content[-1] ^= 1
    (folder / "training-ids.npy").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"is damaged: training-logprobs\.npy: 300 bytes long \(written: "),
        (change_a_byte, r"is damaged: training-ids\.npy: its content has changed"),
        (lambda folder: (folder / "held_out-ids.npy").unlink(), r"is damaged: held_out-ids\.npy: missing"),
        (lambda folder: (folder / "header.json").unlink(), r"no readable header\.json in it"),
        (lambda folder: (folder / "checksums.json").unlink(), r"is damaged: no checksums\.json"),
    ],
)
def test_a_damaged_store_is_refused_by_check_and_run(tmp_path: Path, stored: Path, damage: Any, message: str):
    shutil.copytree(stored / "logits", tmp_path / "logits")
    damage(tmp_path / "logits")
    run = run_of(tmp_path, None, distill=store_of(tmp_path))
    for use in (train, lambda run: check_data(load(run).run)):
        with pytest.raises(ConfigError, match=message) as error:
            use(run)
        assert "\n" not in str(error.value)


def test_a_teacher_that_does_not_fit_is_refused(tmp_path: Path, teacher: str):
    other = write_teacher(tmp_path / "alphabet", alphabet=ALPHABET + "x")
    with pytest.raises(ConfigError, match="its tokenizer differs from the actor's"):
        train(run_of(tmp_path, other))
    with pytest.raises(ConfigError, match="its tokenizer differs from the model's"):
        check_data(load(run_of(tmp_path, other)).run)
    short = write_teacher(tmp_path / "short", max_seq_len=12)
    with pytest.raises(ConfigError, match=r"supports 12 tokens|max_seq_len"):
        train(run_of(tmp_path, short))
    with pytest.raises(ConfigError, match=r"^teacher: there is none; add `teacher: \{path: \.\.\.\}`"):
        train(run_of(tmp_path, None))
    with pytest.raises(ConfigError, match=r"teacher: there is none, and distill\.store .*logits does not exist"):
        train(run_of(tmp_path, None, distill=store_of(tmp_path)))
    with pytest.raises(ConfigError, match="no such directory"):
        train(run_of(tmp_path, str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"distill": {"store": "x"}}, "store: holds the most likely tokens alone; set top_k"),
        (
            {"executor": "ray", "actor_train": {"backend": "fsdp2"}, "deterministic": False},
            "only backend native distils",
        ),
        (
            {"executor": "ray", "teacher": {"path": "x", "sharded": True}, "deterministic": False},
            r"its teacher is not sharded \(got teacher\.sharded\)",
        ),
    ],
)
def test_settings_without_an_effect_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load(run_of(tmp_path, None, **changed))


def test_tasks_without_answers_are_refused(tmp_path: Path, teacher: str):
    games = [{"name": "games", "env": "guess_number"}]
    for use in (train, lambda run: check_data(load(run).run)):
        with pytest.raises(ConfigError, match=r"'games': its environment writes the tasks, which have no answers"):
            use(run_of(tmp_path, teacher, tasks=games, validation={}))


def test_a_file_without_the_section_is_refused(tmp_path: Path):
    run = {key: value for key, value in run_of(tmp_path, None).items() if key != "distill"}
    with pytest.raises(ConfigError, match="distill: no such section; add one"):
        commands.distill(load(run), overwrite=False)
