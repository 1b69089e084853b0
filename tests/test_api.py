"""The Python interface: what the commands do, with objects in place of names, also inside a running event loop."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.types import Batch, Message, Task

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "deterministic": True,
    "threads": 1,
    "steps": 2,
    "model": {
        "shape": {"alphabet": "0123456789+=", "hidden": 32, "layers": 1, "heads": 2, "mlp": 64, "max_seq_len": 64}
    },
    "algorithm": "grpo",
    "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "count": 40}}],
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_seq_len": 32, "max_new_tokens": 4},
    "validation": {"tasks": [{"name": "sums", "data": {"kind": "arithmetic", "split": "held_out", "count": 4}}]},
    "tracking": {"tensorboard": False},
}


def exactly(task: Task, response: str) -> float:
    """A reward that any process of this test can import."""
    return float(response == task.answer)


def half(batch: Batch) -> Any:
    return batch.trained * 0.5


def in_a_notebook(work: Callable[[], Any]) -> Any:
    """The result of `work`, called while this thread runs an event loop, with the handler that a notebook has."""

    async def cell() -> Any:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return work()
        finally:
            signal.signal(signal.SIGINT, before)

    return asyncio.run(cell())


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"directory": folder, "rewards": {"sums": exactly}, **more}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[roll.Result, list[str]]:
    """A run of two steps, and the responses that its reward received."""
    responses: list[str] = []

    def noted(task: Task, response: str) -> float:
        responses.append(response)
        return float(len(response) % 2)

    folder = tmp_path_factory.mktemp("runs")
    return roll.train(CONFIG, directory=folder, rewards={"sums": noted}, **{"checkpoint.every": 1}), responses


def test_a_dictionary_and_a_file_with_overrides_give_the_same_run(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: tiny\ndeterministic: true\nthreads: 1\nsteps: 7\nmodel: {shape: {alphabet: '0123456789+=', hidden: 32, "
        "layers: 1, heads: 2, mlp: 64, max_seq_len: 64}}\nalgorithm: grpo\ntasks: [{name: sums, data: {kind: "
        "arithmetic, count: 40}}]\nrollout: {groups_per_step: 2, group_size: 2, max_seq_len: 32, max_new_tokens: 4}\n"
        "validation: {tasks: [{name: sums, data: {kind: arithmetic, split: held_out, count: 4}}]}\n"
        "tracking: {tensorboard: false}\n"
    )
    more = {"rollout.group_size": 4, "rewards": {"sums": "exact"}}
    from_file = roll.load(file, steps=3, **more)
    assert from_file.run == roll.load(CONFIG, steps=3, **more).run
    assert from_file.run.rollout.group_size == 4 and from_file.run.steps == 3
    assert roll.load(from_file) is from_file
    assert roll.load(from_file, seed=5).run == from_file.run.model_copy(update={"seed": 5})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stepz": 3}, "argument: unknown key 'stepz'; did you mean 'steps'?"),
        ({"steps": -1}, "argument: steps: must be greater than 0 (got -1)"),
        ({"rewards": {"sum": exactly}}, "no task source named 'sum'; did you mean 'sums'?"),
        ({"algorithm.loss": object()}, "algorithm.loss: must be plain data, a function or a class (got object)"),
        ({}, "needs 'reward'"),
    ],
)
def test_an_error_is_one_line_that_names_the_argument(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(roll.ConfigError) as raised:
        roll.load(CONFIG, **{"validation.tasks": [], **changes})
    assert says in str(raised.value) and len(str(raised.value).splitlines()) <= 2


def test_train_returns_where_the_run_is_and_how_it_went(trained: tuple[roll.Result, list[str]]) -> None:
    result, responses = trained
    assert (result.steps, result.finished, result.metrics["step"]) == (2, True, 2)
    assert result.accuracy_before is not None and result.accuracy_after is not None
    assert result.model == result.directory / "model" and (result.model / "model.safetensors").is_file()
    assert result.checkpoint == result.directory / "checkpoints" / "step-2"
    assert len(responses) == 2 * 2 * 2 + 2 * 4, "the caller's own function scored every response"


def test_metrics_and_samples_are_flat_rows(trained: tuple[roll.Result, list[str]]) -> None:
    result, responses = trained
    lines = roll.metrics(result.directory)
    assert [line["step"] for line in lines] == [0, 1, 2]
    rows = roll.samples(result.directory)
    assert len(rows) == 2 * 2 * 2 and {row["step"] for row in rows} == {1, 2}
    assert {row["response"] for row in rows} <= set(responses)
    assert {(row["source"], row["num_turns"], row["version"] < 2) for row in rows} == {("sums", 1, True)}
    assert all(
        value is None or isinstance(value, int | float | str) for row in [*lines, *rows] for value in row.values()
    )
    assert roll.samples(result.directory, step=2, last=1) == rows[-1:]
    with pytest.raises(roll.ConfigError, match="nowhere: no such directory; give the directory of a run"):
        roll.metrics(result.directory / "nowhere")


def test_a_run_inside_an_event_loop_equals_one_outside(tmp_path: Path) -> None:
    outside = roll.train(CONFIG, **options(tmp_path / "outside"))
    inside = in_a_notebook(lambda: roll.train(CONFIG, **options(tmp_path / "inside")))
    timed = ("time", "speed/")
    ours, others = (
        {name: value for name, value in result.metrics.items() if not name.startswith(timed)}
        for result in (inside, outside)
    )
    assert inside.finished and ours == others


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_in_a_notebook_ends_the_step_and_twice_the_run(presses: int, tmp_path: Path) -> None:
    calls: list[str] = []

    async def interrupting(task: Task, response: str) -> float:
        calls.append(response)
        if len(calls) == 6:  # in the first step, after a validation of 4
            handler: Any = signal.getsignal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            while not handler.__self__.requested:
                await asyncio.sleep(0.01)
            if presses == 2:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(600)
        return 0.0

    def cell() -> roll.Result:
        return roll.train(CONFIG, directory=tmp_path, steps=50, rewards={"sums": interrupting})

    if presses == 1:
        result = in_a_notebook(cell)
        assert 1 <= result.steps < 50 and not result.finished and result.model is None
        result = roll.resume(result.directory, rewards={"sums": interrupting}, steps=result.steps + 1)
        assert result.finished and result.model is not None
    else:
        with pytest.raises(KeyboardInterrupt):
            in_a_notebook(cell)
    assert "passed_interrupting" not in sys.modules


def test_a_function_without_an_importable_name_reaches_worker_processes(tmp_path: Path) -> None:
    bonus = 0.25
    result = roll.train(CONFIG, directory=tmp_path, steps=1, rewards={"sums": lambda task, response: bonus}, **{
        "rewards.workers": 1, "deterministic": False, "validation.tasks": []
    })  # fmt: skip
    assert {row["reward"] for row in roll.samples(result.directory)} == {0.25}


def test_an_object_that_cannot_be_sent_is_one_line_in_a_worker_and_works_without_workers(tmp_path: Path) -> None:
    handle = (tmp_path / "log").open("w")

    def logged(task: Task, response: str) -> float:
        handle.write(response)
        return 0.0

    with handle:
        more: dict[str, Any] = {"steps": 1, "rewards": {"sums": logged}, "validation.tasks": []}
        with pytest.raises(
            roll.ConfigError, match=r"^logged: cannot be sent to a worker process .*; define it in a mod"
        ):
            roll.train(CONFIG, directory=tmp_path, **more, **{"rewards.workers": 1, "deterministic": False})
        assert roll.train(CONFIG, directory=tmp_path, overwrite=True, **more).finished


def test_any_name_of_a_configuration_can_be_an_object(tmp_path: Path) -> None:
    scale = 2.0

    def doubled(batch: Batch) -> Any:
        return half(batch) * scale

    def tasks(count: int) -> list[Task]:
        return [Task(id=str(index), domain="", messages=(Message("user", f"{index}+1="),)) for index in range(count)]

    source = {"name": "sums", "data": {"kind": tasks, "count": 3}, "reward": [{"kind": exactly, "weight": 2}]}
    config = {**CONFIG, "steps": 1, "tasks": [source], "algorithm": {"recipe": "grpo", "advantage": doubled}}
    result = roll.train(config, directory=tmp_path, **{"validation.tasks": []})
    saved = roll.load(result.directory / "config.yaml").run
    assert saved.algorithm.advantage.kind == "passed_doubled:doubled"
    assert saved.tasks[0].data is not None and saved.tasks[0].data.kind == "passed_tasks:tasks"
    assert saved.tasks[0].reward is not None and saved.tasks[0].reward.rewards[0].kind.endswith("test_api:exactly")
    assert {row["id"] for row in roll.samples(result.directory)} <= {"0", "1", "2"}


def test_two_calls_with_functions_of_one_name_use_their_own(tmp_path: Path) -> None:
    for value in (0.0, 0.5):

        def score(task: Task, response: str, value: float = value) -> float:
            return value

        changes: dict[str, Any] = {"name": f"run{value}", "steps": 1, "validation.tasks": []}
        result = roll.train(CONFIG, directory=tmp_path, rewards={"sums": score}, **changes)
        assert {row["reward"] for row in roll.samples(result.directory)} == {value}
    assert not [name for name in sys.modules if name.startswith("passed_")]
    assert not [entry for entry in sys.path if ".objects-" in entry]


def test_a_resumed_run_needs_its_objects_again(tmp_path: Path) -> None:
    def score(task: Task, response: str) -> float:
        return 1.0

    more: dict[str, Any] = {"directory": tmp_path, "validation.tasks": []}
    run = roll.train(CONFIG, rewards={"sums": score}, steps=1, **more).directory
    with pytest.raises(roll.ConfigError) as raised:
        roll.resume(run, steps=2)
    assert "reward 'score': was passed as a Python object; pass it again" in str(raised.value)
    assert roll.resume(run, steps=2, rewards={"sums": score}).steps == 2
    with pytest.raises(roll.ConfigError, match="exists already"):
        roll.train(CONFIG, rewards={"sums": score}, **more)
    result = roll.train(CONFIG, rewards={"sums": score}, resume=True, steps=3, **more)
    assert (result.steps, result.metrics["step"]) == (3, 3)


def test_evaluate_returns_metrics_and_attempts(trained: tuple[roll.Result, list[str]], tmp_path: Path) -> None:
    model = {"path": trained[0].model}
    result = in_a_notebook(lambda: roll.evaluate(CONFIG, model=model, **options(tmp_path)))
    assert result.metrics["validation/accuracy"] == sum(row["reward"] for row in result.samples) / 4
    assert {row["source"] for row in result.samples} == {"sums"} and len(result.samples) == 4


def test_importing_roll_and_loading_a_run_imports_no_torch() -> None:
    script = (
        "import sys, roll\n"
        "assert 'pydantic' not in sys.modules\n"
        "roll.load({'model': {'path': 'm'}, 'algorithm': 'grpo', 'tasks': [{'name': 's', 'data': 'd.jsonl', "
        "'reward': lambda task, response: 1.0}]})\n"
        "assert set(roll.__all__) <= {*dir(__import__('roll.api').api), 'Result', 'Evaluation', 'Training'}\n"
        "print('torch' in sys.modules, 'ray' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False False"
