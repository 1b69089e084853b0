import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.tracking.sinks import JsonLines, TensorBoard, read_lines

pytestmark = pytest.mark.slow

SERVICES = ("wandb", "swanlab")


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def run_python(code: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, with a home without anyone's keys in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "SWANLAB_"))}
    environment = {**kept, "HOME": str(directory), "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )


def test_a_step_is_on_disk_as_soon_as_it_is_written(tmp_path: Path):
    sink = JsonLines(tmp_path / "run" / "metrics.jsonl")
    sink.write(1, {"reward/mean": 0.5})
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line["step"] == 1 and line["reward/mean"] == 0.5 and line["time"] > 1e9
    sink.close()


def test_a_number_that_is_not_finite_is_null_and_every_line_is_json(tmp_path: Path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write(1, {"loss/policy": math.nan, "sampler_mismatch/max": math.inf})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads(text)["loss/policy"] is None
    sink.close()


def test_steps_after_the_checkpoint_are_dropped_and_written_again(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path)
    for step in (1, 2, 3, 4):
        first.write(step, {"reward/mean": step / 10})
    first.close()
    again = JsonLines(path)
    again.truncate_after(2)
    again.write(3, {"reward/mean": 0.9})
    again.close()
    assert steps_of(path) == [1, 2, 3]
    assert [line["reward/mean"] for line in read_lines(path)] == [0.1, 0.2, 0.9]
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_cut_short_by_a_crash_does_not_spoil_the_next(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 0.0}\n{"step": 2, "ti')
    assert [line["step"] for line in read_lines(path)] == [1]
    sink = JsonLines(path)
    sink.write(2, {})
    sink.close()
    assert steps_of(path) == [1, 2]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl:2: not a line of metrics"):
        read_lines(path)
    path.write_text('{"step": 1}\n[3]\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl:2: not a line of metrics"):
        read_lines(path)


def test_missing_metrics_are_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        read_lines(tmp_path / "metrics.jsonl")


def test_a_full_disk_stops_the_run(tmp_path: Path):
    code = """
import os, resource
from pathlib import Path
from roll.errors import RunStopped
from roll.tracking.sinks import JsonLines
sink = JsonLines(Path("metrics.jsonl"))
sink.write(1, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    for step in range(2, 9):
        sink.write(step, {"reward/mean": 0.5})
except RunStopped as error:
    print(error, flush=True)
os._exit(0)
"""
    done = run_python(code, tmp_path)
    assert "metrics.jsonl: the metrics could not be written" in done.stdout, done.stderr
    assert read_lines(tmp_path / "metrics.jsonl")[0]["step"] == 1


def test_tensorboard_reads_back_what_was_written_and_a_resume_hides_the_rest(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoard(tmp_path)
    for step in (1, 2, 3):
        first.write(step, {"reward/mean": step / 4})
    first.close()
    second = TensorBoard(tmp_path, resumed_from=1)
    second.write(2, {"reward/mean": 0.0})
    second.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.0)]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_is_not_installed_says_which_extra_to_install(service: str, tmp_path: Path):
    code = f"""
import sys
sys.modules[{service!r}] = None  # what an absent package looks like to an import
from pathlib import Path
from roll.errors import ConfigError
from roll.tracking.sinks import {service.capitalize()}
try:
    {service.capitalize()}("project", "name", Path("."))
except ConfigError as error:
    sys.exit(str(error))
"""
    done = run_python(code, tmp_path)
    assert done.stderr.strip() == (
        f"tracking.{service}: the package {service} is not installed; pip install 'roll-rl[{service}]'"
    )


WRITE = """
from pathlib import Path
from roll.tracking.sinks import {sink}
sink = {sink}("project", "name", Path("logs"), config={{"steps": 3}})
sink.write(1, {{"reward/mean": 0.25, "loss/policy": float("nan")}})
sink.write(2, {{"reward/mean": 0.75}})
sink.close()
"""


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(("service", "record"), [("wandb", "*.wandb"), ("swanlab", "*.swanlab")])
@pytest.mark.parametrize("asked", [True, False], ids=["asked for by variable", "for want of a key"])
def test_a_service_keeps_the_run_offline(service: str, record: str, asked: bool, tmp_path: Path):
    if importlib.util.find_spec(service) is None:
        pytest.skip(f"{service} is not installed")
    variables = {f"{service.upper()}_MODE": "offline"} if asked else {}
    done = run_python(WRITE.format(sink=service.capitalize()), tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    records = list((tmp_path / "logs").rglob(record))
    assert len(records) == 1
    assert b"reward/mean" in records[0].read_bytes()


@pytest.mark.parametrize(("service", "record"), [("wandb", "*.wandb"), ("swanlab", "*.swanlab")])
def test_the_mode_set_by_the_user_is_used(service: str, record: str, tmp_path: Path):
    if importlib.util.find_spec(service) is None:
        pytest.skip(f"{service} is not installed")
    done = run_python(WRITE.format(sink=service.capitalize()), tmp_path, **{f"{service.upper()}_MODE": "disabled"})
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "logs").rglob(record)) == []


def test_tensorboard_that_cannot_be_written_is_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "board").write_text("in the way")
    sink = TensorBoard(tmp_path / "board")
    sink.write(1, {"reward/mean": 0.1})
    assert len(caplog.records) == 1 and "the run continues without it" in caplog.text
    (tmp_path / "board").unlink()
    for step in (2, 3):
        sink.write(step, {"reward/mean": step / 10})
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [event.step for event in events.Scalars("reward/mean")] == [2, 3]
