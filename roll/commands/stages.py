"""`roll run`: stages of post-training one after another, one process each."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, cast

import typer

from roll.cluster.process_tree import signal_on_parent_death
from roll.config.load import load, read_text
from roll.config.stages import LoadedStages, Stage, load_stages
from roll.errors import ConfigError, did_you_mean
from roll.preflight import preflight
from roll.report.stages import FinishedStage, summary_rows, write_summary
from roll.tracking.directory import lock_file

STATE = "stages.json"
SAMPLES = "samples.jsonl"
SUFFIXES = {"sft": "-sft", "dpo": "-dpo", "distill": "-distill", "reward": "-reward", "train": "", "rollout": ""}
"""What each command appends to the name of its run."""
_RESUMABLE = ("train", "dpo", "distill", "reward")
_SECTIONS = {"dpo": "dpo", "distill": "distill", "reward": "reward_training"}
"""The section of the run file that a command needs."""
_REPEAT = {"repeat": True}
"""Record of a stage whose results are to be deleted before it runs."""
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A stage with what it reads and writes."""

    stage: Stage
    where: str
    file: Path
    overrides: tuple[str, ...]
    """Those that depend on earlier stages are last."""
    options: tuple[str, ...]
    directory: Path
    model: str | None
    """The directory of an earlier stage's model; None: that of the run file."""

    @property
    def output(self) -> Path:
        """The model of a stage that trains, or the attempts of a rollout."""
        return self.directory / ("model" if self.stage.trains else SAMPLES)

    @property
    def digest(self) -> str:
        """Hash of everything that determines the stage, apart from the contents of what it reads."""
        settings = [self.stage.command, read_text(self.file), *self.overrides, *self.options]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def run(
    path: Annotated[Path, typer.Argument(metavar="STAGES.YAML", help="File of stages.")],
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="STAGE", help="Run this stage and all after it again; deletes their results."),
    ] = None,
) -> None:
    """Run stages of post-training in order. Repeat the command to continue; finished stages are not run again."""
    loaded = load_stages(path)
    steps = _steps(loaded)
    _check(steps, first)
    base = _base(loaded)
    base.mkdir(parents=True, exist_ok=True)
    with closing(lock_file(base / ".lock", "another `roll run` works here; wait for it, or change name=")):
        records = _read_records(base, steps, first)
        for number, step in enumerate(steps, 1):
            _run_step(base, records, step, f"stage {number} of {len(steps)}")
        finished = [_finished(step, records) for step in steps]
        page = write_summary(base, loaded.stages.name, finished)
    for row in summary_rows(finished):
        typer.echo("  ".join(row))
    last = next((step for step in reversed(steps) if step.stage.trains_policy), None)
    typer.echo(f"summary: {page}" + (f"; model: {last.output}" if last is not None else ""))


def _base(loaded: LoadedStages) -> Path:
    return Path(loaded.stages.directory) / loaded.stages.name


def _steps(loaded: LoadedStages) -> list[_Step]:
    base, steps = _base(loaded), dict[str, _Step]()
    outputs: dict[str, str] = {}
    for index, stage in enumerate(loaded.stages.stages):
        directory = base / f"{stage.name}{SUFFIXES[stage.command]}"
        models = [step for step in steps.values() if step.stage.trains_policy]
        defaults = {"file": None, "previous": models[-1] if models else None}
        source = defaults[stage.model] if stage.model in defaults else steps[stage.model]
        model = None if source is None else str(source.output)
        inherited = () if model is None else (f"model={json.dumps({'path': model})}",)
        names = (f"directory={json.dumps(str(base))}", f"name={json.dumps(stage.name)}")
        step = steps[stage.name] = _Step(
            stage=stage,
            where=loaded.where(index),
            file=loaded.path.parent / stage.file,
            overrides=(*names, *inherited, *stage.overrides(outputs)),
            options=_options(stage, directory),
            directory=directory,
            model=model,
        )
        outputs[f"{stage.name}.directory"] = str(directory)
        outputs[f"{stage.name}.{'model' if stage.trains else 'samples'}"] = str(step.output)
    return list(steps.values())


def _options(stage: Stage, directory: Path) -> tuple[str, ...]:
    if stage.trains:
        return ()
    options = {
        "num": stage.num,
        "tasks": stage.tasks,
        "agent": stage.agent,
        "min-reward": stage.min_reward,
        "best": stage.best,
    }
    pairs = [(f"--{name}", str(value)) for name, value in options.items() if value is not None]
    return (*(word for pair in pairs for word in pair), "--output", str(directory / SAMPLES))


def _check(steps: Sequence[_Step], first: str | None) -> None:
    """Raise all faults of all run files. Files of stages that read the output of another are checked at their start."""
    names = [step.stage.name for step in steps]
    if first is not None and first not in names:
        raise ConfigError(f"--from: no stage is named {first!r}{did_you_mean(first, names)}")
    faults: list[str] = []
    for step in steps:
        try:
            loaded = load(step.file, step.overrides)
            command = step.stage.command
            section = _SECTIONS.get(command)
            if section is not None and getattr(loaded.run, section) is None:
                raise ConfigError(f"{step.file}: {section}: missing section; `roll {command}` needs it")
            alone = step.model is None and not any(step.stage.references())
            preflight(loaded, files=alone, models=alone)
        except ConfigError as error:
            faults += [f"{step.where}: stage {step.stage.name}: {line}" for line in str(error).splitlines()]
    if faults:
        raise ConfigError("\n".join(faults))


def _run_step(base: Path, records: dict[str, Any], step: _Step, title: str) -> None:
    record, name = records.get(step.stage.name), step.stage.name
    if record == _REPEAT:
        shutil.rmtree(step.directory, ignore_errors=True)  # now: an interrupted start must not resume what was there
        record = None
    if record is not None and record["digest"] != step.digest:
        raise ConfigError(
            f"{step.where}: stage {name} was run with other settings; change them back, "
            f"or add --from {name} to run it and all after it again"
        )
    if record is not None and record["finished"]:
        if not step.output.exists():
            raise ConfigError(f"{step.output}: the result of stage {name} is gone; add --from {name} to repeat it")
        typer.echo(f"{title}: {name} is finished: {step.output}")
        return
    before_s = 0.0 if record is None else float(record["seconds"])
    current = {"digest": step.digest, "finished": False, "seconds": before_s}
    records[name] = current
    _write_records(base, records)
    command = _command(step, begun=record is not None)
    typer.echo(f"{title}: {name}: {shlex.join(['roll', *command])}")
    start = time.monotonic()
    code = _run_child(command)
    current["seconds"] = round(before_s + time.monotonic() - start, 1)
    current["finished"] = code == 0
    _write_records(base, records)
    if code != 0:
        what = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        typer.echo(f"{title}: {name} {what}; repeat the command to continue with it", err=True)
        raise typer.Exit(code if code > 0 else 128 - code)


def _command(step: _Step, *, begun: bool) -> list[str]:
    """The words after `roll`."""
    words = [step.stage.command, str(step.file), *step.overrides, *step.options]
    if not step.stage.trains:
        step.directory.mkdir(parents=True, exist_ok=True)
        return words
    if begun and step.stage.command in _RESUMABLE:
        return [*words, "--resume"]
    return [*words, "--overwrite"] if begun else words


def _run_child(command: Sequence[str]) -> int:
    """Exit code of a command of `roll`, which is sent the signals that would end this process."""
    end_too = partial(signal_on_parent_death, signal.SIGTERM, os.getpid())
    child = subprocess.Popen(  # its own group: a terminal's Ctrl-C arrives once, by `forward`
        [sys.executable, "-m", "roll", *command], process_group=0, preexec_fn=end_too
    )

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_records(base: Path, steps: Sequence[_Step], first: str | None) -> dict[str, Any]:
    """What is known of each stage; `first` and those after it that have run are to be repeated."""
    path = base / STATE
    if not path.is_file():
        if first is not None:
            raise ConfigError(f"--from {first}: no stage has run in {base} yet; leave it out")
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        records = cast("dict[str, Any]", content["stages"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not the state of `roll run` ({error}); remove {base}, or change name=") from None
    names = [step.stage.name for step in steps]
    repeated = [] if first is None else names[names.index(first) :]
    return {name: _REPEAT if name in repeated else records[name] for name in names if name in records}


def _write_records(base: Path, records: Mapping[str, Any]) -> None:
    temporary = base / f".{STATE}"
    temporary.write_text(json.dumps({"format": _FORMAT, "stages": records}, indent=1), encoding="utf-8")
    temporary.replace(base / STATE)


def _finished(step: _Step, records: Mapping[str, Any]) -> FinishedStage:
    samples = None
    if not step.stage.trains:
        with step.output.open(encoding="utf-8") as file:
            samples = sum(1 for _ in file)
    return FinishedStage(
        name=step.stage.name,
        command=step.stage.command,
        directory=step.directory,
        seconds=records[step.stage.name]["seconds"],
        samples=samples,
    )
