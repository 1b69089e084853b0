"""What a file may say of its sources, and what it may not."""

from pathlib import Path

import pytest

from roll.config.algorithm import Algorithm, OwnAlgorithm
from roll.config.load import dump, load
from roll.config.schema import Run
from roll.errors import ConfigError

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks:
  - name: sums
    data: arithmetic
    reward: exact
rollout: {context: 512}
"""


def read(tmp_path: Path, *overrides: str) -> Run:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load(path, overrides).run


def fault(tmp_path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, *overrides)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.jsonl", "jsonl"), ("a.jsonl.gz", "jsonl"), ("a.parquet", "parquet"), ("lab:rows", "lab:rows")],
)
def test_a_file_is_known_by_how_its_name_ends(tmp_path: Path, name: str, kind: str) -> None:
    data = read(tmp_path, f"tasks.0.data={name}").tasks[0].data
    assert data is not None and data.kind == kind


@pytest.mark.parametrize(
    ("said", "meant"), [("true", "exact"), ("false", None), ("exact", "exact"), ("normalised", "normalised")]
)
def test_dedup_may_be_said_short(tmp_path: Path, said: str, meant: str | None) -> None:
    assert read(tmp_path, f"tasks.0.dedup={said}").tasks[0].dedup == meant
    assert "must be 'exact' or 'normalised'" in fault(tmp_path, "tasks.0.dedup=fuzzy")


def test_all_of_a_source_survives_being_written_down(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        'tasks.0.fields={template: "Q: {question}\\nA:", system: s, metadata: {options: o}, constants: {level: 1}}',
        "tasks.0.dedup=true",
        "tasks.0.sampling={kind: difficulty, target: 0.4}",
        "tasks.0.curriculum={by: level, steps: 10}",
        "tasks.0.filters=[mixed]",
        "tasks.0.algorithm={advantage: leave_one_out, whiten: true, clip: none, weight: 3}",
        "tasks.0.algorithm.shaping=[{kind: scaled, factor: 2}]",
        "validation.samples=4",
        "validation.temperature=0.7",
    )
    (tmp_path / "again.yaml").write_text(dump(run), encoding="utf-8")
    assert load(tmp_path / "again.yaml").run == run


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["tasks.0.fields={prompt: q, template: '{q}'}"], "'prompt' and 'template' both make the prompt"),
        (["tasks.0.fields={template: 'in \\boxed{}'}"], "{} names no field"),
        (["tasks.0.fields={template: '{q!r}'}"], "{q} names no field"),
        (["tasks.0.fields={template: 'open { brace'}"], "write {{ and }} for braces"),
        (["tasks.0.fields={promt: q}"], "did you mean 'prompt'?"),
        (["tasks.0.data={kind: jsonl, path: x, fields: {}}"], "'fields' stands beside 'data'"),
        (["tasks.0.sampling={kind: hardness}"], "must be 'difficulty'"),
        (["tasks.0.sampling={exploration: 0}"], "must be greater than 0"),
        (["tasks.0.curriculum={by: level}"], "missing key 'tasks.0.curriculum.steps'"),
        (["tasks.0.max_new_tokens=512"], "leaves no room for a prompt in rollout.context (512)"),
        (["validation.samples=4"], "would all be the same at temperature 0"),
        (
            ["validation.tasks=[{name: v, data: arithmetic, reward: exact, temperature: 0.5, top_k: 3}]"],
            "validation.tasks: 'v' has temperature, top_k, which only training reads",
        ),
        (["sft.tasks=[{name: v, data: arithmetic, reward: exact, filters: []}]"], "sft.tasks: 'v' has filters"),
        (
            ["validation.tasks=[{name: v, data: arithmetic, reward: exact, algorithm: {clip: 1}}]"],
            "validation.tasks: 'v' has algorithm, which only training reads",
        ),
        (["tasks.0.algorithm=rloo"], "tasks.0.algorithm: a recipe is for the whole run"),
        (["tasks.0.algorithm={recipe: rloo}"], "tasks.0.algorithm: a recipe is for the whole run"),
        (["tasks.0.algorithm={loss: clipped}"], "tasks.0.algorithm: 'loss' is one for the whole optimizer step"),
        (["tasks.0.algorithm={epochs: 2}"], "'epochs' is one for the whole optimizer step"),
        (["tasks.0.algorithm={filters: [mixed]}"], "'filters' is a key of the source itself"),
        (["tasks.0.algorithm={clib: 2}"], "unknown key 'tasks.0.algorithm.clib'; did you mean 'clip'?"),
        (["tasks.0.algorithm={weight: 0}"], "tasks.0.algorithm.weight: must be greater than 0 (got 0)"),
        (["tasks.0.algorithm={clip: off}"], "tasks.0.algorithm.clip: must be a number, or 'none' (got 'off')"),
        (["tasks.0.algorithm={clip: 0}"], "tasks.0.algorithm.clip: must be greater than 0, or 'none' (got 0)"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, overrides: list[str], told: str) -> None:
    assert told in fault(tmp_path, *overrides)


def test_every_key_of_an_algorithm_is_for_domains_or_refused_with_a_reason(tmp_path: Path) -> None:
    for name in Algorithm.model_fields.keys() - OwnAlgorithm.model_fields.keys():
        assert "unknown key" not in fault(tmp_path, f"tasks.0.algorithm={{{name}: 1}}")


def test_what_a_domain_says_of_the_algorithm_is_laid_over_the_runs(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "algorithm={recipe: grpo, clip: 5, whiten: true, masks: [truncated]}",
        "tasks.0.algorithm={advantage: {kind: leave_one_out}, clip: none, masks: [], weight: 2}",
    )
    own = run.tasks[0].algorithm
    assert own is not None
    laid = run.algorithm.within(own)
    assert (laid.advantage.kind, laid.clip, laid.masks, laid.whiten) == ("leave_one_out", None, (), True)
    assert laid.loss == run.algorithm.loss
    assert run.algorithm.within(OwnAlgorithm()) == run.algorithm
    assert run.algorithm.within(OwnAlgorithm(clip=2.0)).clip == 2.0
