"""Model directories that cannot be trained: one line from `roll check` and `roll train`, and nothing starts."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.families import family_model
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.tracking.sinks import read_lines
from roll.weights.huggingface import write_model
from tests.cli.conftest import Outcome, call
from tests.data.chat_templates import tokenizer

pytestmark = pytest.mark.slow

RUN = """\
name: run
threads: 1
steps: 1
model: {path: model}
algorithm: grpo
tasks: [{name: sums, data: sums.jsonl, reward: exact}]
rollout: {groups_per_step: 2, group_size: 2, max_seq_len: 64, max_new_tokens: 4}
actor_infer: {max_num_seqs: 4}
tracking: {tensorboard: false}
"""
ROW: dict[str, Any] = {"id": "one", "prompt": "1+1=", "answer": "2"}
TALK = """\
from roll.envs.base import StepResult
from roll.types import Message

class Talk:
    def __init__(self, task):
        self.turns = 0

    async def start(self):
        return (Message("user", "Go."),)

    async def step(self, response):
        self.turns += 1
        return StepResult(messages=(Message("user", f"Turn {self.turns}."),), reward=1.0, done=self.turns == 3)

    async def close(self): ...
"""
Change = Callable[[Path], object]


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Gemma 2 with a strict chat template."""
    words, folder = tokenizer("gemma"), tmp_path_factory.mktemp("gemma")
    decoder = HuggingFaceDecoder(family_model("Gemma 2", vocab_size=len(words)))
    write_model(folder, decoder.config, dict(decoder.named_tensors()))
    words.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, gemma: Path) -> Path:
    """A folder with a run of that model."""
    (tmp_path / "run.yaml").write_text(RUN)
    shutil.copytree(gemma, tmp_path / "model")
    write_rows(tmp_path, ROW)
    return tmp_path


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def config(**values: Any) -> Change:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def only(**values: Any) -> Change:
    return lambda model: (model / "config.json").write_text(json.dumps(values))


def template(text: str | None) -> Change:
    def change(model: Path) -> None:
        (model / "chat_template.jinja").unlink()
        words = tokenizer("gemma")
        words.chat_template = text
        words.save_pretrained(model)

    return change


def split(model: Path) -> None:
    """Two files, the second of which is missing."""
    tensors, files = load_file(model / "model.safetensors"), ["1.safetensors", "2.safetensors"]
    weight_map = {name: files[at % 2] for at, name in enumerate(tensors)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    save_file({name: tensors[name] for name, file in weight_map.items() if file == files[0]}, model / files[0])
    (model / "model.safetensors").unlink()


def cut(size: int | None) -> Change:
    return lambda model: (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:size])


def widen(model: Path) -> None:
    words = tokenizer("gemma")
    words.add_tokens([f"<extra{number}>" for number in range(50)])
    words.save_pretrained(model)


def widen_unigram(model: Path) -> None:
    """A tokenizer whose file lists tokens with scores."""
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [[f"<{number}>", -1.0] for number in range(5000)]}
    path.write_text(json.dumps(content))


def pointer(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def as_torch_file(model: Path) -> Path:
    """The weights in the form that `torch.save` writes."""
    file = model / "model.safetensors"
    torch.save(load_file(file), model / "pytorch_model.bin")
    file.unlink()
    return model / "pytorch_model.bin"


def cut_torch_file(model: Path) -> None:
    file = as_torch_file(model)
    file.write_bytes(file.read_bytes()[:-1000])


class _Touch:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (self._path, "w")


CODE = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
HEAD = "run.yaml:4: model.path: model"
BAD: dict[str, tuple[Change, str]] = {
    "unknown family": (config(model_type="own"), "/config.json: transformers has no causal language model of model_ty"),
    "no family": (config(model_type=None), "/config.json: it has no model_type; copy it again"),
    "remote code": (config(model_type="own", auto_map=CODE), "/config.json: it needs Python code from its directory; "),
    "quantised": (config(quantization_config={"quant_method": "gptq"}), "/config.json: its weights are quantised, "),
    "missing shard": (split, " lacks 2.safetensors, which its index names; download the weights again"),
    "empty": (cut(0), "/model.safetensors: cut off within its header (0 bytes), or not a safetensors file; "),
    "no header": (cut(100), "/model.safetensors: cut off within its header (100 bytes)"),
    "truncated": (cut(-1000), "/model.safetensors: truncated, "),
    "pointer": (pointer, "/model.safetensors: a pointer of Git LFS, not the weights; run `git lfs pull`"),
    "truncated torch file": (cut_torch_file, "/pytorch_model.bin: truncated; download it again"),
    "tokens": (widen, ": token '<extra49>' of its tokenizer has id "),
    "unigram tokens": (widen_unigram, ": token '<4999>' of its tokenizer has id 4999, and the model has "),
    "no config": (lambda model: (model / "config.json").unlink(), " has no config.json; give the folder of a Hugging"),
    "no tokenizer": (
        lambda model: [path.unlink() for path in model.glob("tok*")],
        ": no tokenizer in it (tokenizer",
    ),
    "BERT": (only(model_type="bert", vocab_size=200), "/config.json: model_type 'bert' has an encoder; choose a model"),
    "BART": (only(model_type="bart", vocab_size=200), "/config.json: model_type 'bart' has an encoder; choose a model"),
    "T5": (
        only(model_type="t5", is_encoder_decoder=True),
        "/config.json: it has an encoder; choose a model with a",
    ),
    "sparse attention": (
        only(model_type="deepseek_v32", vocab_size=200),
        "/config.json: layers of indexed_attention are not supported; ",
    ),
    "classifier": (
        config(architectures=["Gemma2ForSequenceClassification"]),
        "/config.json: its weights are a Gemma2",
    ),
    "wrong type": (config(hidden_size="big"), "/config.json: transformers rejects its values (Validation error for fi"),
    "no heads": (config(num_attention_heads=0), "/config.json: transformers rejects its values (integer modulo by ze"),
}


def test_weights_in_a_torch_file_are_trained_as_those_of_safetensors(folder: Path) -> None:
    assert call(folder, "train", "run.yaml", "name=safe").code == 0
    as_torch_file(folder / "model")
    assert call(folder, "check", "run.yaml").code == 0 and call(folder, "train", "run.yaml", "name=torch").code == 0
    first, second = (load_file(folder / "runs" / name / "model/model.safetensors") for name in ("safe", "torch"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_torch_file_with_anything_but_tensors_is_refused_and_runs_nothing(folder: Path) -> None:
    file = as_torch_file(folder / "model")
    file.write_bytes(pickle.dumps({"w": _Touch(str(folder / "touched"))}))
    assert "/pytorch_model.bin: not a readable file of weights (" in call(folder, "train", "run.yaml").fault(2)
    assert not (folder / "touched").exists()


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(folder: Path, name: str, command: str) -> None:
    change, said = BAD[name]
    change(folder / "model")
    assert call(folder, command, "run.yaml").fault(2).startswith(HEAD + said)
    assert not (folder / "runs").exists()


def test_a_gguf_file_is_refused_in_one_line(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(b"GGUF")
    line = call(folder, "check", "run.yaml", "model.path=model.gguf").fault(2)
    assert line.startswith("command line: model.path: model.gguf: GGUF files cannot be trained; give the folder of")


def both(folder: Path, *overrides: str) -> str:
    """The line that `roll check` and `roll train` both end with."""
    lines = [call(folder, command, "run.yaml", *overrides).fault(2) for command in ("check", "train")]
    assert lines[0] == lines[1]
    return lines[0]


def test_trusted_code_must_be_there(folder: Path) -> None:
    config(model_type="own", auto_map=CODE)(folder / "model")
    line = both(folder, "model.trust_remote_code=true")
    assert "config.json: it needs configuration_own.py, which is not there" in line


def test_a_family_of_transformers_needs_no_code_of_its_directory(folder: Path) -> None:
    config(auto_map=CODE)(folder / "model")
    assert call(folder, "check", "run.yaml").code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: (model / "tokenizer.json").write_text("{"), "model: no tokenizer that can be read ("),
        (template("{{ messages[0].content + 3 }}"), "model.template: the chat template fails (TypeError: "),
        (template("{% for m in messages %}"), "model.template: the chat template fails (TemplateSyntaxError: "),
        (template("{{ raise_exception('nobody') }}"), "model.template: the chat template fails (TemplateError: nobody"),
    ],
    ids=["broken tokenizer", "wrong type", "syntax", "refuses all"],
)
def test_a_tokenizer_that_cannot_be_used_is_reported_by_both(folder: Path, change: Change, said: str) -> None:
    change(folder / "model")
    assert both(folder).startswith(said)


@pytest.mark.parametrize("key", ["tasks", "validation.tasks"])
def test_a_system_message_that_the_template_refuses_is_reported_by_both(folder: Path, key: str) -> None:
    source = "{name: new, data: sums.jsonl, reward: exact, fields: {system: Add.}}"
    assert both(folder, f"{key}=[{source}]") == (
        "tasks: source 'new': task 'one': the chat template refuses a system message (System role not supported); "
        "put its text into the user's message, in data with `fields.template` for `fields.system`"
    )
    merged = "{name: new, data: sums.jsonl, reward: exact, fields: {template: 'Add. {prompt}'}}"
    assert call(folder, "check", "run.yaml", f"{key}=[{merged}]").code == 0


def test_roles_that_do_not_alternate_are_reported_by_both(folder: Path) -> None:
    twice = [{"role": "user", "content": text} for text in ("Add.", "1+1=")]
    write_rows(folder, ROW, {"id": "two", "messages": twice, "answer": "2"})
    said = "tasks: source 'sums': task 'two': the chat template refuses its messages (Conversation roles must alternate"
    assert both(folder).startswith(said)


def test_tools_that_the_template_cannot_call_are_reported_by_both(folder: Path) -> None:
    env = "tasks.0.env={kind: tool_use, tools: [calculator]}"
    assert "it has tools, and the model's chat template has no way to call one" in both(folder, env)


def trained(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """The metrics of all steps of a run."""
    outcome = call(folder, "train", "run.yaml", *overrides)
    assert outcome.code == 0, outcome
    return [line for line in read_lines(folder / "runs" / "run" / "metrics.jsonl") if "reward/mean" in line]


def test_every_end_token_of_the_model_ends_a_response(folder: Path) -> None:
    ends = list(range(len(tokenizer("gemma"))))
    (folder / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (line,) = trained(folder)
    assert line["length/mean"] == 1 and line["length/truncated"] == 0
    exported = json.loads((folder / "runs" / "run" / "model" / "generation_config.json").read_text())
    assert exported["eos_token_id"] == ends


def test_turns_with_a_strict_template_are_trained_as_they_were_sampled(folder: Path) -> None:
    (folder / "talks_of_models.py").write_text(TALK)
    task = "{name: talk, env: 'talks_of_models:Talk', data: sums.jsonl}"
    (line,) = trained(folder, f"tasks=[{task}]", "rollout.max_seq_len=400")
    assert line["reward/mean"] == 3 and line.get("segments/rewritten", 0) == 0
    assert line["sampler_mismatch/max"] < 1e-3, "the trainer saw the tokens of the generator"


def test_a_model_without_a_template_joins_texts_and_says_so_where_roles_are_lost(folder: Path) -> None:
    template(None)(folder / "model")
    assert "model.template: the tokenizer has no chat template" in both(folder, "model.template=chat")

    def warnings(*overrides: str) -> list[str]:
        outcome: Outcome = call(folder, "train", "run.yaml", "--overwrite", *overrides)
        assert outcome.code == 0, outcome
        return [line for line in (outcome.out + outcome.err).splitlines() if "warning: source" in line]

    assert not warnings()
    chat = "tasks.0.fields={system: Add.}"
    (line,) = warnings(chat)
    assert "the model has no chat template, so it sees the texts of system, user without their roles" in line
    assert not warnings(chat, "model.template=plain")


def test_router_replay_needs_experts(folder: Path) -> None:
    said = "actor_infer.router_replay: the model has no experts; leave it out"
    assert said in both(folder, "actor_infer={backend: vllm, router_replay: true}")


def test_models_of_the_engine_hf_are_not_quantised(folder: Path) -> None:
    said = "actor_infer.quantization: only models of the engine native are quantised"
    quantised = "actor_infer={backend: vllm, quantization: int8}"
    assert said in both(folder, "model.engine=hf", "algorithm.correction=truncate", quantised)


def test_losses_of_routers_need_experts(folder: Path) -> None:
    said = "actor_train.router_losses: the model has no experts; leave it out"
    assert said in both(folder, "actor_train.router_losses.balance=0.1")
