"""The file of `roll run`: what it means, and one line per fault."""

import json
from pathlib import Path

import pytest

from roll.config.load import load
from roll.config.stages import load_stages
from roll.errors import ConfigError

VALID = """\
name: both
stages:
  - {name: start, command: sft, file: run.yaml}
  - {name: samples, command: rollout, file: run.yaml, num: 8, best: 1}
  - name: tuned
    command: sft
    file: run.yaml
    model: start
    set: {"sft.tasks": [{name: own, data: "{samples.samples}", reward: exact}], sft.steps: 2, model.template: "{x}"}
"""


def stages_file(folder: Path, text: str) -> Path:
    path = folder / "stages.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_references_become_paths_and_other_braces_stay(tmp_path: Path) -> None:
    *_, tuned = load_stages(stages_file(tmp_path, VALID)).stages.stages
    tasks, steps, template = tuned.overrides({"samples.samples": 'a "b"/samples.jsonl'})
    assert json.loads(tasks.partition("=")[2]) == [{"name": "own", "data": 'a "b"/samples.jsonl', "reward": "exact"}]
    assert (steps, template) == ("sft.steps=2", 'model.template="{x}"')


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("num: 8, best: 1", "best: 1", 4, "stages.1.num: missing; give the number of attempts"),
        ("file: run.yaml}\n  - {name: samples", "file: run.yaml, num: 3}\n  - {name: samples", 3, "stages.0.num: only"),
        ("command: sft, file: run.yaml}", "command: sleep, file: run.yaml}", 3, "stages.0.command: must be"),
        ("model: start", "model: strat", 8, "stages.2.model: no earlier stage is named 'strat'; did you mean 'start'"),
        (
            "model: start",
            "model: samples",
            8,
            "stages.2.model: stage 'samples' writes no model, as its command is roll",
        ),
        ("{samples.samples}", "{start.samples}", 9, "stages.2.set: stage 'start' writes no samples"),
        ("{samples.samples}", "{tuned.model}", 9, "stages.2.set: no earlier stage is named 'tuned'"),
        ("name: tuned", "name: start", 5, "stages.2.name: two stages are named 'start'; rename one"),
        ("best: 1", "bset: 1", 4, "unknown key 'stages.1.bset'; did you mean 'best'"),
        ("name: both", "nmae: both", 1, "unknown key 'nmae'; did you mean 'name'"),
        ("name: start", "name: ../start", 3, "stages.0.name: must match"),
        ("best: 1", "best: 0", 4, "stages.1.best: must be greater than 0 (got 0)"),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert VALID.count(old) == 1
    path = stages_file(tmp_path, VALID.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_stages(path)
    assert any(each.startswith(f"{path}:{line}: {message}") for each in str(caught.value).splitlines())


def test_a_run_file_is_named_as_such(tmp_path: Path) -> None:
    path = stages_file(tmp_path, "model: {path: x}\n")
    with pytest.raises(ConfigError, match="missing key 'stages'; give a file with stages; this is a run file"):
        load_stages(path)


def test_every_example_of_stages_is_valid() -> None:
    paths = sorted((Path(__file__).parents[2] / "examples" / "stages").glob("*.yaml"))
    assert paths
    for path in paths:
        for stage in load_stages(path).stages.stages:
            load(
                path.parent / stage.file, stage.overrides({f"{name}.{kind}": "x" for name, kind in stage.references()})
            )
