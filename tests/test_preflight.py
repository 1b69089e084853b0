import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.load import load
from roll.errors import ConfigError
from roll.preflight import preflight
from tests.model_directories import NO_TENSORS

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks:
  - name: sums
    data: arithmetic
    reward: exact
rollout: {max_seq_len: 512}
"""


def fly(tmp_path: Path, *overrides: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    preflight(load(path, overrides))


def faults(tmp_path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        fly(tmp_path, *overrides)
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_known_names_with_valid_arguments_pass(tmp_path: Path) -> None:
    fly(tmp_path, "tasks.0.data={kind: arithmetic, digits: 3}", "algorithm.advantage.scale=false")


def test_every_unknown_name_and_argument_is_reported_at_its_key(tmp_path: Path) -> None:
    held_out = "validation.tasks=[{name: held, data: arithmatic, reward: exact}]"
    assert faults(tmp_path, "algorithm.loss.clip_hi=0.3", "tasks.0.reward=exakt", held_out) == [
        "command line: algorithm.loss.clip_hi: loss 'clipped' takes no 'clip_hi'; did you mean 'clip_high'?",
        "command line: tasks.0.reward: no reward named 'exakt'; did you mean 'exact'?",
        "command line: validation.tasks.0.data: no dataset named 'arithmatic'; did you mean 'arithmetic'?",
    ]


def test_arguments_of_a_wrong_type_are_reported_at_their_key(tmp_path: Path) -> None:
    data, env = "tasks.0.data={kind: arithmetic, digits: two}", "tasks.0.env={kind: frozen_lake, size: [4]}"
    assert faults(tmp_path, "algorithm.loss.clip_low=abc", data, env, "tasks.0.reward={kind: f1, threshold: low}") == [
        "command line: algorithm.loss.clip_low: loss 'clipped' takes a number as 'clip_low' (got 'abc'); change it",
        "command line: tasks.0.env.size: environment 'frozen_lake' takes a whole number as 'size' (got [4]); change it",
        "command line: tasks.0.data.digits: dataset 'arithmetic' takes a whole number as 'digits' (got 'two'); "
        "change it",
        "command line: tasks.0.reward.threshold: reward 'f1' takes a number or null as 'threshold' (got 'low'); "
        "change it",
    ]


def test_an_unknown_best_metric_is_reported(tmp_path: Path) -> None:
    assert faults(tmp_path, "checkpoint.best_metric=reward/meen") == [
        "command line: checkpoint.best_metric: no step and no validation of this run measures 'reward/meen'; "
        "did you mean 'reward/mean'?"
    ]


def test_a_file_cannot_give_parameters_that_the_code_passes(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "tasks.0.reward.reply=x")
    assert line.startswith("command line: tasks.0.reward.reply: reward 'exact' takes no 'reply'")


def test_a_dataset_without_its_file_names_the_missing_argument(tmp_path: Path) -> None:
    lines = faults(tmp_path, "tasks.0.data={kind: jsonl}")
    assert lines == ["command line: tasks.0.data: dataset 'jsonl' needs 'path'; add it"]


def test_a_missing_data_file_is_reported_with_the_current_directory(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "tasks.0.data=nowhere/train.jsonl")
    assert line.startswith("command line: tasks.0.data: no such file: nowhere/train.jsonl; paths are relative to")


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_a_missing_data_file_of_any_source_is_reported_at_its_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "run.yaml"
    held_out = "validation:\n  tasks:\n    - name: held\n      data: {gone}\n      reward: exact\n"
    path.write_text(TEXT.replace("arithmetic", f"gone.{ending}") + held_out.format(gone=f"also/gone.{ending}"))
    with pytest.raises(ConfigError) as caught:
        preflight(load(path))
    lines = [line.partition(";")[0] for line in str(caught.value).splitlines()]
    assert lines == [
        f"{path}:5: tasks.0.data: no such file: gone.{ending}",
        f"{path}:11: validation.tasks.0.data: no such file: also/gone.{ending}",
    ]


def test_a_directory_is_a_dataset_if_it_has_parquet_files(tmp_path: Path) -> None:
    data = f"tasks.0.data={{kind: parquet, path: '{tmp_path}'}}"
    (line,) = faults(tmp_path, data)
    assert "has no *.parquet in it; name another directory" in line
    (tmp_path / "part-0.parquet").write_text("")
    fly(tmp_path, data)
    (line,) = faults(tmp_path, data.replace("parquet", "jsonl"))
    assert line.endswith("is a directory; name the .jsonl file in it")


def test_filters_of_a_source_are_checked_too(tmp_path: Path) -> None:
    fly(tmp_path, "tasks.0.filters=[mixed, {kind: mean_between, low: 0.1}]")
    assert faults(tmp_path, "tasks.0.filters=[mixd, {kind: mean_between, lo: 0.1}]") == [
        "command line: tasks.0.filters.0: no group filter named 'mixd'; did you mean 'mixed'?",
        "command line: tasks.0.filters.1.lo: group filter 'mean_between' takes no 'lo'; did you mean 'low'?",
    ]


def test_modules_in_the_directory_of_the_file_are_read_but_not_run(tmp_path: Path) -> None:
    source = "raise SystemExit('imported')\n\ndef polite(task, reply, *, weight=1.0, word):\n    return weight\n"
    (tmp_path / "manners_beside.py").write_text(source)
    fly(tmp_path, "tasks.0.reward={kind: 'manners_beside:polite', word: please}")
    assert faults(tmp_path, "tasks.0.reward={kind: 'manners_beside:polite', wight: 1, word: please}") == [
        "command line: tasks.0.reward.wight: reward 'manners_beside:polite' takes no 'wight'; did you mean 'weight'?"
    ]
    assert faults(tmp_path, "tasks.0.reward='manners_beside:polite'") == [
        "command line: tasks.0.reward: reward 'manners_beside:polite' needs 'word'; add it, "
        "or change its definition: it is called as f(task, response, **arguments)"
    ]
    assert faults(tmp_path, "tasks.0.reward='manners_beside:polit'") == [
        "command line: tasks.0.reward: reward 'manners_beside:polit': module manners_beside has no 'polit'; "
        "did you mean 'polite'?"
    ]


def test_names_defined_under_a_condition_or_imported_are_found(tmp_path: Path) -> None:
    source = "from json import dumps as again\n"
    source += "try:\n    import nothing\nexcept ImportError:\n    def score(task, reply): ...\n"
    (tmp_path / "conditions_beside.py").write_text(source)
    fly(tmp_path, "tasks.0.reward='conditions_beside:score'")
    fly(tmp_path, "tasks.0.reward='conditions_beside:again'")


def test_the_code_passes_the_task_to_an_environment(tmp_path: Path) -> None:
    methods = "".join(f"    async def {name}: ...\n" for name in ("start(self)", "step(self, response)", "close(self)"))
    world = f"class World:\n    def __init__(self, task, *, size=3): ...\n{methods}"
    (tmp_path / "worlds_beside.py").write_text(world)
    world = "tasks.0.env={kind: 'worlds_beside:World', size: 4}"
    fly(tmp_path, world)
    (line,) = faults(tmp_path, world, "tasks.0.env.task=1")
    assert line.startswith("command line: tasks.0.env.task: environment 'worlds_beside:World' takes no 'task'")


@pytest.mark.parametrize("name", ["nowhere_at_all:score", "roll.nowhere:score", "roll.nowhere.deep:score"])
def test_the_error_about_a_missing_module_tells_where_to_put_it(tmp_path: Path, name: str) -> None:
    (line,) = faults(tmp_path, f"tasks.0.reward='{name}'")
    assert line.endswith("put it next to the YAML file or install it")


def test_invalid_names_and_unreadable_modules_are_faults(tmp_path: Path) -> None:
    (tmp_path / "broken_beside.py").write_text("def score(:\n")
    (line,) = faults(tmp_path, "tasks.0.reward=':score'")
    assert line.endswith("is not a name; write package.module:attribute")
    (line,) = faults(tmp_path, "tasks.0.reward='broken_beside:score'")
    assert "broken_beside.py:1: invalid syntax" in line


def model_faults(tmp_path: Path) -> list[str]:
    return [line.partition("model.path: ")[2] for line in faults(tmp_path, f"model={{path: '{tmp_path}/model'}}")]


def test_missing_files_of_a_model_directory_are_reported(tmp_path: Path) -> None:
    assert model_faults(tmp_path)[0].startswith("no such directory: model; ")
    model = tmp_path / "model"
    model.mkdir()
    assert len(model_faults(tmp_path)) == 2
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    (line,) = model_faults(tmp_path)
    assert line.endswith("model has no weights (*.safetensors or pytorch_model*.bin); download or export them there")


def test_a_gguf_file_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "model" / "weights.gguf").write_text("")
    (line,) = model_faults(tmp_path)
    assert line.endswith("GGUF files cannot be trained; give the folder of the original model on Hugging Face")
    (tmp_path / "model").rename(tmp_path / "other")
    (tmp_path / "other" / "weights.gguf").rename(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=r"model\.gguf: GGUF files cannot be trained"):
        fly(tmp_path, f"model={{path: '{tmp_path}/model.gguf'}}")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(NO_TENSORS)
    tokens = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<end>", "id": 2}]}
    (model / "tokenizer.json").write_text(json.dumps(tokens))
    (model / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 2}')
    (line,) = model_faults(tmp_path)
    assert "token '<end>' of its tokenizer has id 2, and the model has 2 embeddings; take both from the" in line
    (model / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 3}')
    fly(tmp_path, f"model={{path: '{model}'}}")


def test_every_shard_of_the_index_must_exist(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    )
    (model / "1.safetensors").write_bytes(NO_TENSORS)
    (model / "tokenizer.json").write_text("{}")
    (line,) = model_faults(tmp_path)
    assert "lacks 2.safetensors" in line
    (model / "2.safetensors").write_bytes(NO_TENSORS)
    fly(tmp_path, f"model={{path: '{model}'}}")


def test_names_in_the_algorithm_of_a_domain_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    own = "    algorithm:\n      advantage: leave_on_out\n      masks:\n        - {kind: difficulty, lo: 0}\n"
    path.write_text(TEXT.replace("    reward: exact\n", f"    reward: exact\n{own}"))
    with pytest.raises(ConfigError) as caught:
        preflight(load(path))
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "run.yaml:8: tasks.0.algorithm.advantage: no advantage named 'leave_on_out'; did you mean 'leave_one_out'?",
        "run.yaml:10: tasks.0.algorithm.masks.0.lo: mask 'difficulty' takes no 'lo'; did you mean 'low'?",
    ]
    fly(
        tmp_path,
        "tasks.0.algorithm={advantage: leave_one_out, shaping: [scaled], advantage_weights: [length], "
        "masks: [truncated]}",
    )


def test_a_name_that_a_compiled_module_lacks_is_reported(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "tasks.0.reward='math:foo'")
    assert line == "command line: tasks.0.reward: reward 'math:foo': module math has no 'foo'; name another"


def test_a_stop_token_that_the_tokenizer_lacks_is_reported(tmp_path: Path) -> None:
    missing = "the tokenizer has no token 'stop here'; name tokens, not text"
    assert faults(tmp_path, "rollout.stop=['5', '<eos>', 'stop here']") == [f"command line: rollout.stop.2: {missing}"]
    words: dict[str, Any] = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "<|im_end|>", "id": 1}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    path = f"model={{path: {tmp_path}}}"
    known, unknown = (faults(tmp_path, path, f"rollout.stop=[{token}]") for token in ("<|im_end|>", "stop here"))
    assert [line for line in unknown if line not in known] == [f"command line: rollout.stop.0: {missing}"]


@pytest.mark.parametrize("tool", ['""', '{kind: ""}'])
def test_a_tool_with_an_empty_name_is_unknown(tmp_path: Path, tool: str) -> None:
    (line,) = faults(tmp_path, f"tasks.0.env={{kind: tool_use, tools: [calculator, {tool}]}}")
    assert line.startswith("command line: tasks.0.env.tools.1: no set of tools named ''; known: calculator, ")


@pytest.mark.parametrize("tool", ["3", "null", "[]", "{count: 2}"])
def test_an_entry_that_names_no_tool_is_reported(tmp_path: Path, tool: str) -> None:
    (line,) = faults(tmp_path, f"tasks.0.env={{kind: tool_use, tools: [calculator, {tool}]}}")
    assert line.startswith("command line: tasks.0.env.tools.1: ")


@pytest.mark.parametrize(
    ("tools", "fault"),
    [
        ("{kind: retrieval, corpus: nowhere.jsonl}", "corpus: no such file: nowhere.jsonl; paths are relative to"),
        ("{kind: mcp, command: [no-such-server]}", "command: no program named 'no-such-server' here; install it"),
        ("{kind: mcp, command: [python, nowhere.py]}", "command: no such file: nowhere.py; paths are relative to"),
    ],
)
def test_missing_files_of_tools_are_reported(tmp_path: Path, tools: str, fault: str) -> None:
    (line,) = faults(tmp_path, f"tasks.0.env={{kind: tool_use, tools: [{tools}]}}")
    assert line.startswith(f"command line: tasks.0.env.tools.0: {fault}")


@pytest.mark.parametrize("module", ["json", "json.decoder", "sys", "own"])
def test_modules_that_agents_preload_are_found_without_importing_them(tmp_path: Path, module: str) -> None:
    (tmp_path / "own.py").write_text("raise SystemError")
    (tmp_path / "agent.py").write_text("")

    def overrides(preload: str) -> list[str]:
        agent = f"{{command: [python, agent.py], directory: '{tmp_path}', preload: [{preload}]}}"
        return ["deterministic=false", f"tasks=[{{name: a, data: arithmetic, reward: exact, agent: {agent}}}]"]

    fly(tmp_path, *overrides(module))
    for missing in (f"{module}x", f"{module}.missing"):
        assert f"preload: no module named '{missing}' here" in "\n".join(faults(tmp_path, *overrides(missing)))
