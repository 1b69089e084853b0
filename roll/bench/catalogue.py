"""All benchmarks by name. Listing them imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roll.bench.result import Result
from roll.registry import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What is known of a benchmark before it runs."""

    run: str
    """`package.module:attribute` of a function without arguments that returns a `Result`."""
    about: str
    goal: str
    """What it has to reach."""
    needs_gpu: bool = False


CATALOGUE = {
    "startup": Benchmark(
        run="roll.bench.startup:run",
        about="wall time of `roll check examples/arithmetic.yaml`, in a fresh process",
        goal="under 1 s",
    ),
    "generate": Benchmark(
        run="roll.bench.generate:run",
        about="useful tokens per second of the native generator, against `transformers` generate in batches",
        goal="at least 2.5 times",
    ),
    "trl_cpu": Benchmark(
        run="roll.bench.trl_cpu:run",
        about="trajectories per second of whole GRPO steps on the CPU, against TRL 1.16",
        goal="at least 2 times",
    ),
    "learning": Benchmark(
        run="roll.bench.learning:run",
        about="gain in held-out accuracy of the demo, for three seeds and a control with shuffled rewards",
        goal="at least 0.3 for each seed; control below 0.05",
    ),
    "algorithms": Benchmark(
        run="roll.bench.algorithms:run",
        about="seconds of the slowest loss or advantage on 1,024 trajectories of 2,048 tokens",
        goal="under 0.25 s; GAE and GiGPO under 0.5 s",
    ),
    "conformance": Benchmark(
        run="roll.bench.conformance:run",
        about="checks of every loss, advantage and trainer of ours that find nothing wrong",
        goal="all of them",
    ),
}
BENCHMARKS: Table[Callable[[], Result]] = Table(
    "benchmark", 0, **{name: benchmark.run for name, benchmark in CATALOGUE.items()}
)
