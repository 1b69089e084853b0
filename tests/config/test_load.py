from pathlib import Path

import pytest

from roll.config.load import LoadedRun, dump, load
from roll.errors import ConfigError

GOOD = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks:
  - name: sums
    data: arithmetic
    reward: exact
rollout: {max_seq_len: 512}
"""


def read(tmp_path: Path, text: str, *overrides: str) -> LoadedRun:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, overrides)


def faults(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    """The lines of the error, with the folder left out."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, *overrides)
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_a_loaded_run_has_the_location_of_every_key(tmp_path: Path) -> None:
    loaded = read(tmp_path, GOOD, "tasks.0.share=2")
    assert loaded.run.tasks[0].reward is not None and loaded.run.tasks[0].reward.kind == "exact"
    assert loaded.locations["tasks.0.reward"] == f"{tmp_path}/run.yaml:6"
    assert loaded.locations["tasks.0.share"] == "command line"
    assert loaded.where("rollout.group_size") == f"{tmp_path}/run.yaml:7"


def test_the_error_about_a_missing_file_suggests_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"no such file: .*rnu\.yaml; did you mean 'run\.yaml'\?"):
        load(tmp_path / "rnu.yaml")


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory; give the path of a YAML file"):
        load(tmp_path)


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"run\.yaml: not UTF-8 \(byte 9\)"):
        load(tmp_path / "run.yaml")


def test_control_characters_are_refused_in_one_line(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "name: a\x00b\n")
    assert line.startswith("run.yaml: not a text file (unacceptable character #x0000")


def test_broken_yaml_is_placed_by_line_and_column(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "steps: 3\ntasks: [a, b\nseed: 1\n")
    assert line.startswith("run.yaml:3:5: broken YAML: ")


def test_the_error_about_a_variable_inside_braces_asks_for_quotes(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "model: {path: ${root}/model}\n")
    assert line.startswith("run.yaml:1:") and line.endswith("put text with '${' in quotes")


@pytest.mark.parametrize(("text", "got"), [("", "nothing"), ("- a\n", "a list"), ("hello\n", "'hello'")])
def test_a_top_level_without_keys_is_refused(tmp_path: Path, text: str, got: str) -> None:
    (line,) = faults(tmp_path, text)
    assert line == f"run.yaml: must hold keys and values at its top level (got {got}); begin with 'model:'"


def test_an_unknown_key_names_its_nearest_sibling(tmp_path: Path) -> None:
    text = GOOD + "actor_train:\n  optimizr: {lr: 1.0}\n"
    assert faults(tmp_path, text) == ["run.yaml:9: unknown key 'actor_train.optimizr'; did you mean 'optimizer'?"]


def test_the_error_about_a_key_in_the_wrong_section_names_the_right_one(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD + "group_size: 4\n") == [
        "run.yaml:8: unknown key 'group_size'; did you mean 'rollout.group_size'?"
    ]


def test_a_group_size_of_zero_is_refused_at_its_line(tmp_path: Path) -> None:
    text = GOOD.replace("rollout: {max_seq_len: 512}", "rollout:\n  max_seq_len: 512\n  group_size: 0")
    assert faults(tmp_path, text) == ["run.yaml:9: rollout.group_size: must be greater than 0 (got 0)"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("steps: 1.5", "steps: must be a whole number (got 1.5)"),
        ("steps: true", "steps: must be a whole number (got true)"),
        ("deterministic: yes", "deterministic: must be true or false (got 'yes')"),
        ("name: 7", "name: must be text (got 7); put quotes around it"),
        ("name: a b", r"name: must match ^[\w+-][\w.+-]*$ (got 'a b')"),
        ("checkpoint: 3", "checkpoint: must be a section of keys and values (got 3)"),
        ("checkpoint:", "checkpoint: must be a section of keys and values (got nothing)"),
        ("executor: rya", "executor: must be 'inline' or 'ray' (got 'rya')"),
        ("sft: {optimizer: {lr: .inf}}", "sft.optimizer.lr: must be a finite number (got inf)"),
        ("sft: {optimizer: {lr: '1e-3'}}", "sft.optimizer.lr: must be a number (got '1e-3')"),
        ("validation: {tasks: sums}", "validation.tasks: must be a list (got 'sums')"),
        (
            "sft: {optimizer: {kind: adamW}}",
            "sft.optimizer: kind: no optimizer named 'adamW'; did you mean 'adamw'? (your own: package.module:Class)",
        ),
        (
            "sft: {optimizer: {arguments: {betas: 1}}}",
            "sft.optimizer: arguments: adamw takes none; use the keys beside it, such as weight_decay",
        ),
        (
            "sft: {optimizer: {kind: 'my:Lion', eps: 1e-3}}",
            "sft.optimizer: eps: only for adamw and sgd; give your own optimizer eps in `arguments`",
        ),
        (
            "actor_train: {backend: fsdp2, optimizer: {kind: 'my:Lion'}}",
            "actor_train: optimizer: fsdp2 saves the state of adamw and sgd alone (got my:Lion); choose one of them, "
            "or backend native",
        ),
    ],
)
def test_a_wrong_type_says_what_is_expected_and_what_was_got(tmp_path: Path, line: str, fault: str) -> None:
    assert faults(tmp_path, f"{GOOD}{line}\n") == [f"run.yaml:8: {fault}"]


def test_a_missing_key_is_reported_at_its_section_with_its_purpose(tmp_path: Path) -> None:
    text = "algorithm: grpo\ntasks:\n  - {data: arithmetic, reward: exact}\n"
    assert faults(tmp_path, text) == [
        "run.yaml: missing key 'model'; add it (Initial weights: a Hugging Face directory, or a shape to initialise)",
        "run.yaml:3: missing key 'tasks.0.name'; add it (The domain, used in metrics)",
    ]


def test_a_task_without_a_reward_is_placed_at_the_task(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, GOOD.replace("    reward: exact\n", ""))
    assert line.startswith("run.yaml:4: tasks.0: needs 'reward'")


def test_a_fault_between_sections_is_placed_at_the_key_it_begins_with(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, GOOD + "deterministic: true\n", "rollout.max_staleness=1")
    assert line.startswith("run.yaml:8: deterministic needs rollout.max_staleness 0 (got 1.0)")


def test_a_key_given_twice_is_an_error(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD + "steps: 1\nsteps: 2\n") == [
        "run.yaml:9: key 'steps' is given twice (first: run.yaml:8); delete one"
    ]


def test_all_faults_are_raised_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("grpo", "grpoo").replace("hidden", "hiden") + "steps: 0\nname: ${who}\n"
    assert faults(tmp_path, text, "checkpoint.keep=0", "nonsense") == [
        "run.yaml:1: unknown key 'model.shape.hiden'; did you mean 'hidden'?",
        "run.yaml:2: algorithm: no recipe named 'grpoo'; did you mean 'grpo'?",
        "run.yaml:8: steps: must be greater than 0 (got 0)",
        "run.yaml:9: name: no variable 'who' under 'vars'; there is no 'vars' section ('$${who}' is the text itself)",
        "command line: 'nonsense' is not an override; write key.sub=value",
        "command line: checkpoint.keep: must be greater than 0 (got 0)",
    ]


def test_numbers_and_words_are_read_by_the_rules_of_yaml_1_2(tmp_path: Path) -> None:
    arguments = "{kind: arithmetic, a: 1e-3, b: no, c: 010, d: 0x10, e: 2024-01-01, f: '1', g: 1:30, h: ~, i: -2.5}"
    loaded = read(tmp_path, GOOD.replace("data: arithmetic", f"data: {arguments}"))
    assert loaded.run.tasks[0].data is not None
    expected = {"a": 0.001, "b": "no", "c": 10, "d": 16, "e": "2024-01-01", "f": "1", "g": "1:30", "h": None, "i": -2.5}
    assert loaded.run.tasks[0].data.kwargs == expected


def test_anchors_and_merge_keys_are_read(tmp_path: Path) -> None:
    text = GOOD + "validation:\n  tasks:\n    - &held {name: held, data: arithmetic, reward: exact}\n"
    loaded = read(tmp_path, text + "    - {<<: *held, name: other}\n")
    assert [source.name for source in loaded.run.validation.tasks] == ["held", "other"]


def test_an_alias_inside_its_own_value_is_an_error_not_an_endless_loop(tmp_path: Path) -> None:
    lines = faults(tmp_path, GOOD + "vars: &v {again: *v}\n")
    assert lines == ["run.yaml:8: vars.again: the alias is inside the value that it names; write the value out"]


def test_a_python_tag_builds_nothing(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, GOOD + "name: !!python/name:os.system x\n")
    assert line.startswith("run.yaml:8: name: tags are not supported")


def test_overrides_reach_into_lists_and_into_short_forms(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        GOOD,
        "tasks.0.reward.tolerance=1e-3",
        "algorithm.loss.clip_high=0.3",
        "rollout.stop=[a, b]",
        "actor_train.optimizer.lr=1e-2",
    ).run
    assert run.tasks[0].reward is not None and run.tasks[0].reward.kwargs == {"tolerance": 0.001}
    assert run.algorithm.loss.kwargs == {"clip_low": 0.2, "clip_high": 0.3}
    assert run.rollout.stop == ("a", "b")
    assert run.actor_train.optimizer.lr == 0.01


def test_overriding_the_origin_of_the_weights_keeps_the_other_keys_of_the_model(tmp_path: Path) -> None:
    text = GOOD.replace("model: {", "model: {template: plain, ")
    found = read(tmp_path, text, "model={path: elsewhere}")
    assert (found.run.model.path, found.run.model.shape, found.run.model.template) == ("elsewhere", None, "plain")
    assert found.where("model.path") == "command line" and found.where("model.template") != "command line"
    assert read(tmp_path, text, "model={template: last}").run.model.shape is not None
    assert read(tmp_path, text, "model={path: elsewhere, template: last}").run.model.template == "last"


def test_an_override_below_a_data_file_keeps_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("data: arithmetic", "data: train.jsonl")
    data = read(tmp_path, text, "tasks.0.data.extra=1").run.tasks[0].data
    assert data is not None and (data.kind, data.kwargs) == ("jsonl", {"path": "train.jsonl", "extra": 1})


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("tasks.3.share=1", "tasks.3.share: 'tasks' has entries 0 to 0 (got '3')"),
        ("seed=[1", "seed: broken YAML: expected ',' or ']', but got '<stream end>'"),
        ("rollout.group_sise=1", "unknown key 'rollout.group_sise'; did you mean 'group_size'?"),
        (
            "rollout.max_seq_len.x=1",
            "rollout.max_seq_len.x: 'rollout.max_seq_len' is a single value (got 512); it has no 'x'",
        ),
        ("steps=soon", "steps: must be a whole number (got 'soon')"),
        (".steps=1", "'.steps=1' is not an override; write key.sub=value"),
    ],
)
def test_a_fault_of_an_override_is_placed_on_the_command_line(tmp_path: Path, override: str, fault: str) -> None:
    assert faults(tmp_path, GOOD, override) == [f"command line: {fault}"]


def test_variables_keep_their_type_alone_and_become_text_inside_text(tmp_path: Path) -> None:
    text = GOOD + "vars: {n: 3, root: '${base}/x', base: runs}\nsteps: ${n}\nname: try-${n}\ndirectory: ${root}\n"
    run = read(tmp_path, text, "vars.base=elsewhere").run
    assert (run.steps, run.name, run.directory) == (3, "try-3", "elsewhere/x")


def test_two_dollars_make_a_reference_plain_text(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD + "directory: a$${b}\n").run.directory == "a${b}"


def test_unknown_and_circular_variables_are_faults(tmp_path: Path) -> None:
    text = GOOD + "vars: {data: d, a: '${b}', b: '${a}'}\nname: ${dat}\ndirectory: ${a}\n"
    assert faults(tmp_path, text, "vars.dta=1") == [
        "run.yaml:9: name: no variable 'dat' under 'vars'; did you mean 'data'? ('$${dat}' is the text itself)",
        "run.yaml:10: directory: variables name each other in a circle: a -> b -> a",
        "command line: vars.dta: no variable 'dta' under 'vars'; did you mean 'data'?",
    ]


def test_keys_of_the_file_override_those_of_the_recipe(tmp_path: Path) -> None:
    algorithm = read(
        tmp_path, GOOD.replace("algorithm: grpo", "algorithm: {recipe: grpo, loss: {clip_high: 0.28}}")
    ).run.algorithm
    assert (algorithm.loss.kind, algorithm.loss.kwargs) == ("clipped", {"clip_low": 0.2, "clip_high": 0.28})
    assert algorithm.advantage.kind == "group_normalised"


@pytest.mark.parametrize("loss", ["policy_gradient", "{kind: policy_gradient}"])
def test_a_part_of_another_kind_keeps_no_argument_of_the_recipe(tmp_path: Path, loss: str) -> None:
    text = GOOD.replace("algorithm: grpo", f"algorithm: {{recipe: grpo, loss: {loss}}}")
    found = read(tmp_path, text).run.algorithm.loss
    assert (found.kind, found.kwargs) == ("policy_gradient", {})


def test_a_dumped_run_is_read_back_equal(tmp_path: Path) -> None:
    nasty = [
        "1e-3",
        "no",
        "0o17",
        "010",
        "~",
        "",
        "2024-01-01",
        "${x}",
        "$${x}",
        "a: b",
        "\n",
        "é",
        "1.",
        "true",
        "- x",
    ]
    text = GOOD.replace("data: arithmetic", "data: {kind: arithmetic, deep: {x: [1, 2.5, null]}}")
    run = read(tmp_path, text, "algorithm.loss.clip_low=1e-7", "actor_train.optimizer.lr=3e-7").run
    run = run.model_copy(update={"rollout": run.rollout.model_copy(update={"stop": tuple(nasty)})})
    assert read(tmp_path, dump(run)).run == run


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", "must be greater than 0, or 'adaptive' (got 0)"),
        ("many", "must be a whole number, or 'adaptive' (got 'many')"),
        ("1.5", "must be a whole number, or 'adaptive' (got 1.5)"),
    ],
)
def test_a_key_that_takes_several_types_has_one_fault(tmp_path: Path, value: str, expected: str) -> None:
    assert faults(tmp_path, GOOD, f"rollout.concurrency={value}") == [f"command line: rollout.concurrency: {expected}"]


@pytest.mark.parametrize("kind", ["judge", "remote"])
def test_a_deterministic_run_refuses_rewards_that_may_vary(tmp_path: Path, kind: str) -> None:
    reward = f"tasks.0.reward=[exact, {{kind: {kind}, weight: 0.5}}]"
    (line,) = faults(tmp_path, GOOD, "deterministic=true", reward)
    assert line.startswith(
        f"command line: tasks.0.reward: deterministic, and {kind!r} may score the same reply differently"
    )
    held_out = f"validation.tasks=[{{name: held, data: arithmetic, reward: {kind}}}]"
    (line,) = faults(tmp_path, GOOD, "deterministic=true", held_out)
    assert line.startswith("command line: validation.tasks.0.reward: deterministic")
    path = tmp_path / "run.yaml"
    path.write_text(GOOD)
    assert load(path, [reward]).run.tasks[0].reward is not None


@pytest.mark.parametrize("recipe", ["grpo", "rloo"])
def test_a_recipe_that_compares_attempts_needs_two_per_group(recipe: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, GOOD, "rollout.group_size=1", f"algorithm={recipe}")
    assert "rollout.group_size (1)" in fault and "make it 2 or more" in fault
    read(tmp_path, GOOD, "rollout.group_size=1", "algorithm=reinforce")


@pytest.mark.parametrize("name", [".", "..", "a/b", ""])
def test_the_name_of_a_run_is_not_a_path(name: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, GOOD, f"name={name!r}")
    assert fault.startswith("command line: name:")
