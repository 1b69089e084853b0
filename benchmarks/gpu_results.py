"""A real model learns on one GPU: the runs of `docs/results.md`, each `roll train` on a file of `examples/`.

`ROLL_MODEL` is the directory of an instruction-tuned model. The folder `ROLL_DATA` has `math/gsm8k_train.jsonl`,
`math/gsm8k_test.jsonl`, `code/mbpp_train.jsonl` and `code/mbpp_test.jsonl`. Metrics of finished runs stay in
`ROLL_RESULTS` (`runs/results`), and those runs are not repeated: benchmarks share them. Weights are deleted.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
import typer

from benchmarks.gpu_model import missing
from benchmarks.result import Result
from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.sandbox.level import TRUSTED_CODE, unavailable_reason
from roll.tracking.sinks import read_lines

MODEL, DATA, RESULTS = "ROLL_MODEL", "ROLL_DATA", "ROLL_RESULTS"
GSM8K_GAIN, GAIN, CONTROL_GAIN, SPEEDUP, TOLERANCE, LIMIT_S = 0.10, 0.05, 0.02, 1.3, 0.01, 600.0
REAL_STEP_S = 5.5
_WARM_STEPS = 3
"""Steps at the start that are not timed."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A file of `examples/` and the overrides of one run."""

    example: str
    overrides: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command line of the run."""
        overrides = (f'"{each}"' if " " in each else each for each in self.overrides)
        return " ".join(["roll train", self.example, *overrides])


_VLLM = "actor_infer={backend: vllm, max_num_seqs: 512, kv_cache_gib: 30, per_request_seed: false}"
_VLLM_FP8 = _VLLM.replace("}", ", quantization: fp8}")
_GSM8K, _MBPP, _LAKE = "examples/gsm8k.yaml", "examples/mbpp.yaml", "examples/frozen_lake_chat.yaml"
_ASYNC = (
    "executor=ray",
    "weight_sync.transport=ipc",
    "rollout.max_staleness=1",
    "algorithm.correction=truncate",
)
EXPERIMENTS = {
    "gsm8k": Experiment(_GSM8K),
    "gsm8k_vllm": Experiment(_GSM8K, (_VLLM,)),
    "gsm8k_fp8": Experiment(_GSM8K, ("steps=18", "algorithm.correction=truncate", _VLLM_FP8)),
    "gsm8k_async": Experiment(_GSM8K, _ASYNC),
    "gsm8k_async_vllm": Experiment(_GSM8K, (*_ASYNC, _VLLM)),
    "gsm8k_dapo": Experiment(_GSM8K, ("algorithm=dapo", "steps=18", _VLLM)),
    "gsm8k_reinforce++": Experiment(
        _GSM8K, ("algorithm=reinforce++", "steps=18", "actor_train.tokens_per_microbatch=24576")
    ),
    "gsm8k_short": Experiment(_GSM8K, ("steps=18",)),
    "gsm8k_partial": Experiment(_GSM8K, ("steps=18", "rollout.max_staleness=1", "algorithm.correction=truncate")),
    "gsm8k_redundant": Experiment(_GSM8K, ("steps=18", "rollout.redundant_groups=16", "actor_infer.max_num_seqs=640")),
    "mbpp": Experiment(_MBPP),
    "mbpp_control": Experiment(_MBPP, ("algorithm.advantage=benchmarks.control:shuffled",)),
    "frozen_lake": Experiment(_LAKE),
    "frozen_lake_control": Experiment(_LAKE, ("algorithm.advantage=benchmarks.control:shuffled_turns", "steps=12")),
}


class Curve(msgspec.Struct, kw_only=True):
    """What one run measured."""

    command: str
    model: str
    """Name of its directory."""
    host: str
    """The GPU and the versions of torch and vLLM."""
    validation: dict[int, float]
    """Held-out accuracy by step."""
    rewards: list[float]
    """Mean reward of each step."""
    lengths: list[float]
    step_s: float
    """Median seconds per step, without validation."""
    spent_s: float
    """Of the whole command: loading, compiling, validations."""
    largest_mismatch: float
    tokens_per_s: float = 0.0
    """Median of a step, of tokens in responses that were trained on; 0 where it was not recorded."""

    @property
    def gain(self) -> float:
        """Held-out accuracy after the last step minus that before the first."""
        return self.gain_until(max(self.validation))

    def gain_until(self, step: int) -> float:
        """Held-out accuracy after this step minus that before the first."""
        return self.validation[step] - self.validation[min(self.validation)]


def gsm8k() -> Result:
    """Held-out gain on GSM8K within ten minutes, against 0.10."""
    if reason := _missing(vllm=False):
        return Result(name="gpu_gsm8k", unit="held-out accuracy gained", higher_is_better=True, skipped=reason)
    curve = train("gsm8k")
    details = {**_details(curve), "in_time": curve.spent_s <= LIMIT_S}
    return _gain_result("gpu_gsm8k", curve.gain, GSM8K_GAIN, details)


def real_step() -> Result:
    """Seconds per step of the run on GSM8K, against 5.5 s."""
    if reason := _missing(vllm=False):
        return Result(name="gpu_real", unit="s per step", higher_is_better=False, skipped=reason)
    curve = train("gsm8k")
    return Result(
        name="gpu_real",
        unit="s per step",
        higher_is_better=False,
        ours=curve.step_s,
        bound=REAL_STEP_S,
        details=_details(curve),
    )


def asynchronous() -> Result:
    """Steps per minute of the same run with `max_staleness: 1`, against the synchronous run."""
    if reason := _missing(vllm=False):
        return Result(name="gpu_async", unit="steps/min", higher_is_better=True, skipped=reason)
    synchronous, curve = train("gsm8k"), train("gsm8k_async")
    return Result(
        name="gpu_async",
        unit="steps/min",
        higher_is_better=True,
        ours=60 / curve.step_s,
        peer=60 / synchronous.step_s,
        details={
            "async": _details(curve),
            "sync": _details(synchronous),
            "accuracy_within_tolerance": curve.gain >= synchronous.gain - TOLERANCE,
        },
    )


def tail() -> Result:
    """Trained tokens per second where no step waits for its longest responses, against the plain synchronous run.

    Responses continue over steps in one run, and a step takes the first 64 of 80 groups in the other.
    """
    if reason := _missing(vllm=False):
        return Result(name="gpu_tail", unit="tokens/s", higher_is_better=True, skipped=reason)
    plain, others = train("gsm8k_short"), {name: train(name) for name in ("gsm8k_partial", "gsm8k_redundant")}
    return Result(
        name="gpu_tail",
        unit="tokens/s",
        higher_is_better=True,
        ours=max(curve.tokens_per_s for curve in others.values()),
        peer=plain.tokens_per_s,
        details={name: _details(curve) for name, curve in {"gsm8k_short": plain, **others}.items()},
    )


def code() -> Result:
    """Held-out gain on MBPP, against 0.05."""
    return _with_control("gpu_code", "mbpp")


def agent() -> Result:
    """Gain in success on unseen maps of FrozenLake, played in words over several turns, against 0.05."""
    return _with_control("gpu_agent", "frozen_lake")


def recipes() -> Result:
    """The smaller of the held-out gains of DAPO and REINFORCE++ on GSM8K over those of GRPO after as many steps."""
    unit = "of the gain of GRPO"
    if reason := _missing():
        return Result(name="gpu_recipes", unit=unit, higher_is_better=True, skipped=reason)
    gains: list[float] = []
    details: dict[str, Any] = {}
    for name, peer in (("gsm8k_dapo", "gsm8k_vllm"), ("gsm8k_reinforce++", "gsm8k")):  # with the same generator
        curve, grpo = train(name), train(peer)
        gains.append(curve.gain / max(grpo.gain_until(max(curve.validation)), 1e-4))
        details |= {name: _details(curve), peer: _details(grpo)}
    return Result(name="gpu_recipes", unit=unit, higher_is_better=True, ours=min(gains), bound=1.0, details=details)


def train(name: str) -> Curve:
    """The curve of an experiment; trains unless `ROLL_RESULTS` has it."""
    folder = Path(os.environ.get(RESULTS, "runs/results"))
    file = folder / f"{name}.json"
    if not file.exists():
        run = folder / name
        curve = _train(EXPERIMENTS[name], run)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(curve)))
        shutil.rmtree(run)
    curve = msgspec.json.decode(file.read_bytes(), type=Curve)
    typer.echo(f"{name}: {_details(curve)}")
    return curve


def _train(experiment: Experiment, run: Path) -> Curve:
    data = {_GSM8K: "math", _MBPP: "code"}.get(experiment.example)
    where = [f"vars.model={os.environ[MODEL]}", f"directory={run.parent}", f"name={run.name}", "checkpoint.every=0"]
    if data:
        where.append(f"vars.data={Path(os.environ[DATA], data)}")
    if experiment.example == _MBPP and (reason := unavailable_reason()):
        typer.echo(f"code runs without a sandbox: {reason}")
        where.append(f"vars.sandbox='{TRUSTED_CODE}'")
    began = time.perf_counter()
    with redirect_stdout(sys.stderr):
        loaded = load(Path(experiment.example), [*where, *experiment.overrides])
        preflight(loaded)
        commands.train(loaded, overwrite=True)
    spent_s = time.perf_counter() - began
    lines = read_lines(run / "metrics.jsonl")
    vllm = f", vLLM {version('vllm')}" if loaded.run.actor_infer.backend == "vllm" else ""
    host = f"{torch.cuda.get_device_name()}, torch {torch.__version__}{vllm}"
    return curve_of(experiment, lines, spent_s, model=Path(os.environ[MODEL]).name, host=host)


def curve_of(experiment: Experiment, lines: list[dict[str, Any]], spent_s: float, *, model: str, host: str) -> Curve:
    """The curve in the lines of a metrics file."""
    steps = [line for line in lines if "reward/mean" in line]
    return Curve(
        command=experiment.command,
        model=model,
        host=host,
        validation={int(line["step"]): line["validation/accuracy"] for line in lines if "validation/accuracy" in line},
        rewards=[round(line["reward/mean"], 4) for line in steps],
        lengths=[round(line["length/mean"], 1) for line in steps],
        step_s=statistics.median(line["time/step"] for line in steps[_WARM_STEPS:] or steps),
        spent_s=spent_s,
        largest_mismatch=max(line["sampler_mismatch/mean"] for line in steps),
        tokens_per_s=statistics.median(line["speed/tokens_per_s"] for line in steps[_WARM_STEPS:] or steps),
    )


def _with_control(benchmark: str, name: str) -> Result:
    if reason := _missing():
        return Result(name=benchmark, unit="held-out accuracy gained", higher_is_better=True, skipped=reason)
    curve, control = train(name), train(f"{name}_control")
    details = {**_details(curve), "control": _details(control), "control_gains_nothing": control.gain <= CONTROL_GAIN}
    return _gain_result(benchmark, curve.gain, GAIN, details)


def _gain_result(name: str, gain: float, bound: float, details: dict[str, Any]) -> Result:
    unit = "held-out accuracy gained"
    return Result(name=name, unit=unit, higher_is_better=True, ours=gain, bound=bound, details=details)


def _details(curve: Curve) -> dict[str, Any]:
    return {
        "validation": {step: round(accuracy, 4) for step, accuracy in curve.validation.items()},
        "gain": round(curve.gain, 4),
        "step_s": round(curve.step_s, 2),
        "spent_s": round(curve.spent_s),
        "tokens_per_s": round(curve.tokens_per_s),
        "largest_mismatch": round(curve.largest_mismatch, 4),
    }


def _missing(*, vllm: bool = True) -> str:
    unset = (f"{name} is not set" for name in (MODEL, DATA) if not os.environ.get(name))
    return missing(vllm=vllm) or next(unset, "")
