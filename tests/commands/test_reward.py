"""`roll reward` from the file to the model: what reads the model, resumption, dropped rows, refusals."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers.processors import TemplateProcessing

from roll.commands import reward as commands
from roll.commands.offline import owns
from roll.config.load import load
from roll.data.chat_rows import chat_row
from roll.data.collate import last_rows, supervised
from roll.data.templates import Template, character_tokenizer, load_tokenizer
from roll.errors import ConfigError
from roll.pipelines.reference_models import values_of
from roll.preflight import preflight
from roll.rewards.model import ClassifierReward
from roll.tracking.sinks import read_lines
from roll.types import Message, Task
from roll.wiring.models import RunPaths, build_roles
from roll.wiring.reward_models import scoring_tokenizer
from tests.model_directories import ASCII

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{%- generation -%}{{ m.content }}<eos>"
    "{%- endgeneration -%}{% else %}{{ m.content }}<eos>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
QUESTION = (Message("user", "1+1="),)


def run_of(folder: Path, **changed: Any) -> dict[str, Any]:
    """A tiny run on sums of one digit."""
    shape = {"architecture": "qwen3", "alphabet": "0123456789+=", "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1}
    section = {
        "data": {"kind": "arithmetic", "digits": 1},
        "held_out": {"kind": "arithmetic", "digits": 1, "seed": 1},
        "steps": 4,
        "batch_size": 8,
        "validate_every": 2,
        "optimizer": {"lr": 1e-2},
        **changed.pop("reward_training", {}),
    }
    return {
        "name": "tiny",
        "directory": str(folder),
        "deterministic": True,
        "model": {"shape": {**shape, "mlp": 32, "max_seq_len": 32}},
        "algorithm": {"recipe": "grpo"},
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "digits": 1}, "reward": "exact"}],
        "rollout": {"max_seq_len": 16, "max_new_tokens": 4},
        "checkpoint": {"every": 2},
        "tracking": {"tensorboard": False},
        "reward_training": {key: value for key, value in section.items() if value is not None},
        **changed,
    }


def train(run: dict[str, Any], **options: Any) -> bool:
    return commands.reward(load(run), overwrite=False, **options)


def model_of(folder: Path) -> Path:
    return folder / "tiny-reward" / "model"


def equal(first: Path, second: Path) -> bool:
    rows, others = (load_file(model_of(folder) / "model.safetensors") for folder in (first, second))
    return all(np.array_equal(rows[name], others[name]) for name in rows)


def metrics(folder: Path, name: str) -> list[float]:
    return [line[name] for line in read_lines(folder / "tiny-reward" / "metrics.jsonl") if name in line]


def write_rows(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_both_kinds_of_reward_model_read_the_scores_of_training(tmp_path: Path):
    assert train(run_of(tmp_path))
    answer = "27"
    reward = ClassifierReward(path=str(model_of(tmp_path)))
    classified = reward.score(Task(id="1", domain="", messages=QUESTION), answer).value
    run = load(run_of(tmp_path, reward_model={"path": str(model_of(tmp_path))})).run
    roles = build_roles(run, run.actor_train.optimizer, run.steps, paths=RunPaths(directory=tmp_path / "used"))
    context = roles.template.open(QUESTION, where="test").tolist()
    batch = last_rows(supervised([[context, roles.template.answer(answer, where="test").tolist()]]))
    reader = roles.first.models.reward_model
    assert reader is not None
    values = asyncio.run(values_of(batch, reader))
    assert float(values[-1]) == pytest.approx(classified, abs=1e-6) and classified != 0


@pytest.mark.parametrize("chat_template", [CHAT, MARKED], ids=["chat", "marked"])
def test_the_exported_chat_template_ends_with_the_end_token(tmp_path: Path, chat_template: str):
    tokenizer = character_tokenizer(ASCII)
    tokenizer.chat_template = chat_template
    template = Template(tokenizer)
    scoring_tokenizer(template).save_pretrained(tmp_path)
    exported = load_tokenizer(tmp_path)
    for once_more in (exported, scoring_tokenizer(Template(exported))):  # as in a run from an exported model
        conversation = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
        text = once_more.apply_chat_template(conversation, tokenize=False)
        assert text == "<user>1+1=<eos>\n<assistant>2<eos>"
        question = once_more.apply_chat_template(conversation[:1], tokenize=False, add_generation_prompt=True)
        assert template.encode(question, where="test").tolist() == template.open(QUESTION, where="test").tolist()


@pytest.mark.parametrize("begins", [False, True], ids=["without begin", "with begin"])
def test_without_a_chat_template_the_exported_tokenizer_ends_a_pair(tmp_path: Path, begins: bool):
    tokenizer = character_tokenizer("0123456789+=")
    if begins:
        begin = TemplateProcessing(single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 2)])
        tokenizer.backend_tokenizer.post_processor = begin
    template = Template(tokenizer)
    scoring_tokenizer(template).save_pretrained(tmp_path)
    exported = load_tokenizer(tmp_path)
    context, response = chat_row(template, (*QUESTION, Message("assistant", "2")), every=False, where="test")
    assert exported.encode("1+1=", "2", split_special_tokens=True) == [*context, *response]
    assert Template(exported).open(QUESTION, where="test").tolist() == context
    assert not Template(exported).chat


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert train(run_of(whole))
    assert train(run_of(halves, reward_training={"steps": 2}))
    assert owns(commands.REWARD, halves / "tiny-reward")
    assert commands.resume(halves / "tiny-reward", ["reward_training.steps=4"])
    assert equal(whole, halves)
    for name in ("reward_model/loss", "reward_model/held_out_calibration_error"):
        assert metrics(whole, name) == metrics(halves, name)


def test_training_continues_from_an_exported_model(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    train(run_of(first))
    train(run_of(second, reward_training={"path": str(model_of(first)), "steps": 1}))
    assert metrics(second, "reward_model/held_out_loss")[0] == metrics(first, "reward_model/held_out_loss")[-1]
    assert metrics(first, "reward_model/held_out_loss")[0] == pytest.approx(0.6931472)  # a head of zeros


@pytest.mark.parametrize(
    ("loss", "row"),
    [
        ("regression", {"response": "2", "rating": 4, "source": "web"}),
        ("classification", {"response": "2", "label": True, "source": "web"}),
        ("process", {"steps": ["2", "3"], "labels": [True, False], "source": "web"}),
    ],
)
def test_every_kind_of_loss_trains(tmp_path: Path, loss: str, row: dict[str, Any]):
    other = {"response": "3", "rating": 2, "label": False, "labels": [False], "steps": ["4"]}
    rows = [{"prompt": f"{n}+1=", **(row if n % 2 else {key: other.get(key, "") for key in row})} for n in range(9)]
    data = write_rows(tmp_path, *rows)
    section = {"data": data, "held_out": data, "loss": loss, "steps": 2, "step_separator": "+"}
    ratings = {"ratings": {"lowest": 1, "highest": 5}} if loss == "regression" else {}
    assert train(run_of(tmp_path, reward_training=section | ratings))
    assert len(metrics(tmp_path, "reward_model/held_out_accuracy/web")) == 2
    measured = "error" if loss == "regression" else "brier"
    assert metrics(tmp_path, f"reward_model/held_out_{measured}")[1] < 1
    losses = metrics(tmp_path, "reward_model/held_out_loss")
    assert losses[1] < losses[0]


def test_dropped_rows_are_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n + 1 if n == 3 else 0)} for n in range(9)]
    section = {"data": write_rows(tmp_path, *pairs), "held_out": None, "steps": 1, "faulty_rows": "drop"}
    assert train(run_of(tmp_path, reward_training=section))
    assert "8 examples; 1 of 9 rows dropped, listed in dropped.jsonl" in capsys.readouterr().out
    listed = json.loads((tmp_path / "tiny-reward" / "dropped.jsonl").read_text(encoding="utf-8"))
    assert listed["where"].endswith("rows.jsonl:4")


def test_a_model_without_the_weights_of_its_head_is_refused(tmp_path: Path):
    train(run_of(tmp_path, reward_training={"steps": 1}))
    file = model_of(tmp_path) / "model.safetensors"
    save_file({name: row for name, row in load_file(file).items() if name != "score.weight"}, file)
    for section in ({"reward_model": {"path": str(file.parent)}}, {"reward_training": {"path": str(file.parent)}}):
        with pytest.raises(ConfigError, match=r"path: .*: its weights have no score\.weight; train one with"):
            preflight(load(run_of(tmp_path, **section)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"actor_train": {"lora": {"rank": 4}}}, "reward_training: a model with a score head has no adapters"),
        ({"reward_training": {"loss": "regression"}}, "reward_training.loss: regression needs the range of ratings"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load(run_of(tmp_path, **changed))


def test_the_token_after_the_last_one_has_to_fit(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokens_per_microbatch: a row of a reward model may have 17 tokens"):
        train(run_of(tmp_path, actor_train={"tokens_per_microbatch": 16}))
    with pytest.raises(ConfigError, match=r"max_seq_len: the model supports 32 tokens, and a row has one more"):
        train(run_of(tmp_path, rollout={"max_seq_len": 32, "max_new_tokens": 4}))


def test_a_file_without_the_section_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="reward_training: no such section; add one"):
        train({key: value for key, value in run_of(tmp_path).items() if key != "reward_training"})
