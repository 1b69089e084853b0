"""From a file's `tasks` to what is drawn, and what was left out on the way."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.load import load
from roll.config.schema import Run
from roll.config.sources import Fields
from roll.data.fields import PLAIN
from roll.data.screening import ScreeningCounts
from roll.data.templates import Template, character_tokenizer
from roll.errors import ConfigError
from roll.types import Message, Sampling, Task
from roll.wiring.data import Data, build_data, build_held_out, source_settings

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: dapo
rollout: {max_seq_len: 16, max_new_tokens: 4, temperature: 0.9, top_k: 7}
tasks: []
"""


def rows(directory: Path, name: str, *prompts: str) -> str:
    lines = [json.dumps({"q": prompt, "a": "1", "level": len(prompt)}) + "\n" for prompt in prompts]
    file = directory / f"{name}.jsonl"
    file.write_text("".join(lines))
    return str(file)


def config(directory: Path, tasks: list[dict[str, Any]], held_out: list[dict[str, Any]] | None = None) -> Run:
    path = directory / "run.yaml"
    path.write_text(TEXT)
    given = [f"tasks={json.dumps([*map(_source, tasks)])}"]
    given += [f"validation.tasks={json.dumps([*map(_source, held_out)])}"] if held_out else []
    return load(path, given).run


def _source(source: dict[str, Any]) -> dict[str, Any]:
    return {"name": "d", "reward": "exact", "fields": {"prompt": "q", "answer": "a"}, **source}


def built(run: Run) -> Data:
    return build_data(run, run.tasks, Template(character_tokenizer("abcdefgh1")))


def prompts(data: Data) -> list[str]:
    return [task.messages[-1].content for task in data.sources[0].tasks]


def numbered(count: int, fields: Fields = PLAIN) -> list[Task]:
    """A dataset by dotted name that says what it was given."""
    return [Task(id=str(n), domain="x", messages=(Message("user", fields.prompt or "a"),)) for n in range(count)]


def whole(count: int) -> list[Task]:
    return numbered(count)


def test_fields_of_rows_are_mapped_as_the_file_says(tmp_path: Path):
    data = built(config(tmp_path, [{"data": rows(tmp_path, "t", "ab", "cd")}]))
    task = data.sources[0].tasks[1]
    assert (task.domain, task.messages, task.answer, task.metadata) == (
        "d",
        (Message("user", "cd"),),
        "1",
        {"level": 2},
    )


def test_excluded_tasks_are_counted_per_source(tmp_path: Path):
    tasks = [
        {"data": rows(tmp_path, "t", "a", "b", "a", "c", "abcdefgh"), "dedup": True, "max_prompt_tokens": 4},
        {"name": "e", "data": rows(tmp_path, "e", "b")},
    ]
    data = built(
        config(tmp_path, tasks, [{"name": "held", "data": rows(tmp_path, "v", "c", "c", "b"), "dedup": "exact"}])
    )
    assert prompts(data) == ["a"]
    assert data.screened == [
        ScreeningCounts(source="d", total=5, kept=1, duplicates=1, overlaps=2, too_long=1),
        ScreeningCounts(source="e", total=1, kept=1, overlaps=1),
        ScreeningCounts(source="validation held", total=3, kept=2, duplicates=1),
    ]
    assert {data.mixture.draw().task.messages[-1].content for _ in range(4)} == {"a", "b"}


def test_a_source_of_which_nothing_is_left_is_refused(tmp_path: Path):
    held = [{"name": "held", "data": rows(tmp_path, "v", "a")}]
    run = config(tmp_path, [{"data": rows(tmp_path, "t", "a", "a"), "dedup": True}], held)
    with pytest.raises(ConfigError, match="nothing is left of source d: 0 of 2 tasks: 1 duplicates, 1 held out"):
        built(run)


def test_a_prompt_that_fills_the_context_is_refused_unless_a_limit_leaves_it_out(tmp_path: Path):
    path = rows(tmp_path, "t", "a", "b" * 16)
    with pytest.raises(ConfigError, match=r"its prompt has 16 tokens and rollout\.max_seq_len is 16"):
        built(config(tmp_path, [{"data": path}]))
    with pytest.raises(ConfigError, match="its prompt has 16 tokens"):
        built(config(tmp_path, [{"data": path, "max_prompt_tokens": 20}]))
    assert prompts(built(config(tmp_path, [{"data": path, "max_prompt_tokens": 8}]))) == ["a"]


def test_held_out_tasks_are_screened_too(tmp_path: Path):
    held = [{"name": "held", "data": rows(tmp_path, "v", "a", "a", "b"), "dedup": True}]
    run = config(tmp_path, [{"data": rows(tmp_path, "t", "c")}], held)
    sources, (account,) = build_held_out(run, Template(character_tokenizer("abc1")), built(run).rewards)
    assert len(sources[0].tasks) == 2 and account.duplicates == 1


def test_a_function_that_takes_fields_gets_them_and_another_is_refused(tmp_path: Path):
    taking, refusing = ({"kind": f"{__name__}:{name}", "count": 2} for name in ("numbered", "whole"))
    assert prompts(built(config(tmp_path, [{"data": taking, "fields": {"prompt": "gg"}}]))) == ["gg", "gg"]
    with pytest.raises(ConfigError, match="returns complete tasks, not rows"):
        built(config(tmp_path, [{"data": refusing, "fields": {"prompt": "gg"}}]))


def test_sampling_and_curriculum_reach_the_mixture(tmp_path: Path):
    path = rows(tmp_path, "t", "aaa", "aa", "a")
    easy = built(config(tmp_path, [{"data": path, "curriculum": {"by": "level", "steps": 3}}]))
    assert [easy.mixture.draw().task.metadata["level"] for _ in range(3)] == [1, 2, 3]
    hard = built(config(tmp_path, [{"data": path, "task_sampling": {"kind": "difficulty", "exploration": 0.001}}]))
    for draw in [hard.mixture.draw() for _ in range(3)]:
        hard.mixture.observe(draw, [0.5 if draw.index == 1 else 0.0])
    assert {hard.mixture.draw().index for _ in range(20)} == {1}


def test_a_source_inherits_sampling_from_the_run(tmp_path: Path):
    path = rows(tmp_path, "t", "a")
    own = {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.8, "top_k": 0, "filters": []}
    run = config(tmp_path, [{"data": path}, {"name": "e", "data": path, **own}])
    plain, special = (source_settings(run, source) for source in run.tasks)
    assert (plain.sampling, plain.max_new_tokens) == (Sampling(0.9, 7, 1.0), 4)
    assert plain.filters == tuple(each.spec for each in run.algorithm.filters) != ()
    assert (special.sampling, special.max_new_tokens, special.filters) == (Sampling(0.5, 0, 0.8), 3, ())
    assert built(run).settings == {"d": plain, "e": special}
