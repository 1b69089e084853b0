"""Valid and invalid task sources."""

from pathlib import Path

import pytest

from roll.config.algorithm import Algorithm, DomainAlgorithm
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
rollout: {max_seq_len: 512}
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
def test_a_file_is_recognised_by_its_extension(tmp_path: Path, name: str, kind: str) -> None:
    data = read(tmp_path, f"tasks.0.data={name}").tasks[0].data
    assert data is not None and data.kind == kind


@pytest.mark.parametrize(
    ("written", "dedup"), [("true", "exact"), ("false", None), ("exact", "exact"), ("normalised", "normalised")]
)
def test_dedup_has_a_short_form(tmp_path: Path, written: str, dedup: str | None) -> None:
    assert read(tmp_path, f"tasks.0.dedup={written}").tasks[0].dedup == dedup
    assert "must be 'exact' or 'normalised'" in fault(tmp_path, "tasks.0.dedup=fuzzy")


def test_a_dumped_source_is_read_back_equal(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        'tasks.0.fields={template: "Q: {question}\\nA:", system: s, metadata: {options: o}, constants: {level: 1}}',
        "tasks.0.dedup=true",
        "tasks.0.task_sampling={kind: difficulty, target: 0.4}",
        "tasks.0.curriculum={by: level, steps: 10}",
        "tasks.0.filters=[mixed]",
        "tasks.0.algorithm={advantage: leave_one_out, whiten: true, advantage_clip: none, loss_weight: 3}",
        "tasks.0.algorithm.shaping=[{kind: scaled, factor: 2}]",
        "validation.samples=4",
        "validation.temperature=0.7",
    )
    (tmp_path / "again.yaml").write_text(dump(run), encoding="utf-8")
    assert load(tmp_path / "again.yaml").run == run


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["tasks.0.fields={prompt: q, template: '{q}'}"], "'prompt' and 'template' both make the prompt"),
        (["tasks.0.fields={template: 'in \\boxed{}'}"], "{} names no field"),
        (["tasks.0.fields={template: '{q!r}'}"], "{q} names no field"),
        (["tasks.0.fields={template: 'open { brace'}"], "write {{ and }} for braces"),
        (["tasks.0.fields={promt: q}"], "did you mean 'prompt'?"),
        (["tasks.0.data={kind: jsonl, path: x, fields: {}}"], "'fields' is a key of the source, not of 'data'"),
        (["tasks.0.task_sampling={kind: hardness}"], "must be 'difficulty'"),
        (["tasks.0.task_sampling={exploration: 0}"], "must be greater than 0"),
        (["tasks.0.share=0"], "share: must be greater than 0, or have a share_schedule that raises it (got 0)"),
        (
            ["validation.tasks=[{name: v, data: arithmetic, reward: exact, share_schedule: {end: 2, steps: 3}}]"],
            "validation.tasks: 'v' has share_schedule, which only training reads",
        ),
        (["tasks.0.share_schedule={end: 0}"], "missing key 'tasks.0.share_schedule.steps'"),
        (
            ["tasks.0.share_schedule={end: 0, steps: 30}"],
            "tasks: all shares are 0 after step 30; give a source a share",
        ),
        (["tasks.0.curriculum={by: level}"], "missing key 'tasks.0.curriculum.steps'"),
        (["tasks.0.max_new_tokens=512"], "leaves no room for a prompt in rollout.max_seq_len (512)"),
        (["validation.samples=4"], "would all be the same at temperature 0"),
        (
            ["validation.tasks=[{name: v, data: arithmetic, reward: exact, temperature: 0.5, top_k: 3}]"],
            "validation.tasks: 'v' has temperature, top_k, which only training reads",
        ),
        (["sft.tasks=[{name: v, data: arithmetic, reward: exact, filters: []}]"], "sft.tasks: 'v' has filters"),
        (
            ["validation.tasks=[{name: v, data: arithmetic, reward: exact, algorithm: {advantage_clip: 1}}]"],
            "validation.tasks: 'v' has algorithm, which only training reads",
        ),
        (["tasks.0.algorithm=rloo"], "tasks.0.algorithm: a recipe is for the whole run"),
        (["tasks.0.algorithm={recipe: rloo}"], "tasks.0.algorithm: a recipe is for the whole run"),
        (["tasks.0.algorithm={loss: clipped}"], "tasks.0.algorithm: 'loss' is one for the whole optimizer step"),
        (["tasks.0.algorithm={epochs: 2}"], "'epochs' is one for the whole optimizer step"),
        (["tasks.0.algorithm={filters: [mixed]}"], "'filters' is a key of the source itself"),
        (
            ["tasks.0.algorithm={advantage_clib: 2}"],
            "unknown key 'tasks.0.algorithm.advantage_clib'; did you mean 'advantage_clip'?",
        ),
        (["tasks.0.algorithm={loss_weight: 0}"], "tasks.0.algorithm.loss_weight: must be greater than 0 (got 0)"),
        (
            ["tasks.0.algorithm={advantage_clip: off}"],
            "tasks.0.algorithm.advantage_clip: must be a number, or 'none' (got 'off')",
        ),
        (
            ["tasks.0.algorithm={advantage_clip: 0}"],
            "tasks.0.algorithm.advantage_clip: must be greater than 0, or 'none' (got 0)",
        ),
    ],
)
def test_contradictory_settings_are_errors(tmp_path: Path, overrides: list[str], expected: str) -> None:
    assert expected in fault(tmp_path, *overrides)


def test_every_key_of_an_algorithm_is_for_domains_or_an_error_with_a_reason(tmp_path: Path) -> None:
    for name in Algorithm.model_fields.keys() - DomainAlgorithm.model_fields.keys():
        assert "unknown key" not in fault(tmp_path, f"tasks.0.algorithm={{{name}: 1}}")


def test_a_domain_overrides_parts_of_the_runs_algorithm(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "algorithm={recipe: grpo, advantage_clip: 5, whiten: true, masks: [truncated]}",
        "tasks.0.algorithm={advantage: {kind: leave_one_out}, advantage_clip: none, masks: [], loss_weight: 2}",
    )
    own = run.tasks[0].algorithm
    assert own is not None
    laid = run.algorithm.within(own)
    assert (laid.advantage.kind, laid.advantage_clip, laid.masks, laid.whiten) == ("leave_one_out", None, (), True)
    assert laid.loss == run.algorithm.loss
    assert run.algorithm.within(DomainAlgorithm()) == run.algorithm
    assert run.algorithm.within(DomainAlgorithm(advantage_clip=2.0)).advantage_clip == 2.0
