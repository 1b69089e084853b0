"""All benchmarks by name. Listing them imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.result import Result
from roll.registry import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Description of a benchmark and the function that runs it."""

    run: str
    """`package.module:attribute` of a function without arguments that returns a `Result`."""
    about: str
    """One line for the list of `roll bench`."""
    goal: str
    """Required result, for the table on the page."""
    needs_gpu: bool = False


CATALOGUE = {
    "startup": Benchmark(
        run="benchmarks.startup:run",
        about="wall time of `roll check examples/arithmetic.yaml`, in a fresh process",
        goal="under 1 s",
    ),
    "generate": Benchmark(
        run="benchmarks.generate:run",
        about="useful tokens per second of the native generator, against `transformers` generate in batches",
        goal="at least 2.5 times",
    ),
    "gpu_hf": Benchmark(
        run="benchmarks.gpu_hf:run",
        about="seconds per update of a model of `transformers` on one GPU, against the native decoder",
        goal="at most 1.25 times",
        needs_gpu=True,
    ),
    "gpu_fp8": Benchmark(
        run="benchmarks.gpu_fp8:run",
        about="seconds per update with products in fp8 on one GPU, against 16 bits, for two shapes",
        goal="faster for 1.5 billion parameters; cosine of gradients above 0.99",
        needs_gpu=True,
    ),
    "models": Benchmark(
        run="benchmarks.models:run",
        about="families of models that pass: logits, gradients, training, files and generation as in `transformers`",
        goal="all of them",
    ),
    "router_replay": Benchmark(
        run="benchmarks.router_replay:run",
        about="gap between logprobs of vLLM and the trainer for a mixture of experts, without over with router replay",
        goal="at least 3 times smaller",
    ),
    "trl_cpu": Benchmark(
        run="benchmarks.trl_cpu:run",
        about="trajectories per second of whole GRPO steps on the CPU, against TRL 1.16",
        goal="at least 2 times",
    ),
    "learning": Benchmark(
        run="benchmarks.learning:run",
        about="gain in held-out accuracy of the demo, for three seeds and a control with permuted rewards",
        goal="at least 0.3 for each seed; control below 0.05",
    ),
    "learn_frozen_lake": Benchmark(
        run="benchmarks.learn_frozen_lake:run",
        about="gain in success on 300 unseen FrozenLake maps, for two seeds and a control with permuted rewards",
        goal="at least 0.2 for each seed; control below 0.05",
    ),
    "learn_preferences": Benchmark(
        run="benchmarks.learn_preferences:run",
        about="held-out accuracy on sums gained by `roll dpo`, for two seeds and a control with randomly swapped pairs",
        goal="at least 0.2 for each seed; control below 0.05",
    ),
    "learn_distill": Benchmark(
        run="benchmarks.learn_distill:run",
        about="held-out accuracy on sums that a student of `roll distill` lacks to its teacher, for two seeds",
        goal="at most 0.05 for each seed; student of an untrained teacher below 0.05",
    ),
    "learn_sokoban": Benchmark(
        run="benchmarks.learn_sokoban:run",
        about="the same on unseen Sokoban levels of 5 by 5 cells with one box",
        goal="at least 0.2 for each seed; control below 0.05",
    ),
    "learn_tic_tac_toe": Benchmark(
        run="benchmarks.learn_tic_tac_toe:run",
        about="decrease in loss rate at tic-tac-toe over 400 games with a random player, after self-play",
        goal="at least 0.2 for each of two seeds, each in under 10 minutes; control below 0.05",
    ),
    "algorithms": Benchmark(
        run="benchmarks.algorithms:run",
        about="seconds of the slowest loss or advantage on 1,024 trajectories of 2,048 tokens",
        goal="under 0.25 s; GAE and GiGPO under 0.5 s",
    ),
    "big_model": Benchmark(
        run="benchmarks.big_model:run",
        about="time and memory of loading and publishing up to a billion weights over two ranks, for each trainer",
        goal="no rank more than one bucket above its share; seconds per byte within 1.25 of those of a quarter",
    ),
    "layouts": Benchmark(
        run="benchmarks.layouts:run",
        about="layouts of backend megatron with the gradient of one process, in six families; needs megatron-core",
        goal="all of them",
    ),
    "conformance": Benchmark(
        run="benchmarks.conformance:run",
        about="checks of every loss, advantage and trainer of the package that find no fault",
        goal="all of them",
    ),
    "conformance_planted": Benchmark(
        run="benchmarks.conformance_planted:run",
        about="planted bugs in losses, advantages and trainers that those checks report by name",
        goal="all of them",
    ),
    "crash_points": Benchmark(
        run="benchmarks.crash_points:run",
        about="violations after a short run was killed at every file operation and journal commit, and continued",
        goal="none",
    ),
    "chaos": Benchmark(
        run="benchmarks.chaos:run",
        about="violations in runs whose processes of every kind are killed, stopped, slowed, or raise exceptions",
        goal="none",
    ),
    "chaos_soak": Benchmark(
        run="benchmarks.chaos_soak:run",
        about="violations in one run with 200 random faults in processes of every kind",
        goal="none",
    ),
    "recovery": Benchmark(
        run="benchmarks.recovery:run",
        about="median seconds from SIGKILL to recovery by kind of process, as the largest fraction of a limit",
        goal="generator 5 s, reward or environment worker 1 s, trainer 15 s, two FSDP2 ranks 25 s, controller 15 s",
    ),
    "goodput": Benchmark(
        run="benchmarks.goodput:run",
        about="steps per hour of a run with a process killed every minute, against the same run without kills",
        goal="at least 0.8 times",
    ),
    "recovery_price": Benchmark(
        run="benchmarks.recovery_price:run",
        about="seconds per step of a run on Ray without faults, with and without recovery in turns",
        goal="at most 1.02 times",
    ),
    "metrics_price": Benchmark(
        run="benchmarks.metrics_price:run",
        about="seconds per step of a run on two cores that a page and a scraper share, against neither in turns",
        goal="at most 1.01 times",
    ),
    "config_fuzz": Benchmark(
        run="benchmarks.config_fuzz:run",
        about="faults on 10,000 mutated examples: tracebacks, hangs, files that `check` accepts and `train` refuses",
        goal="none",
    ),
    "math": Benchmark(
        run="benchmarks.math:run",
        about="responses per second that the reward `math` scores on two cores, and the correctness of its scores",
        goal="20,000 responses/s; 250 through math-verify, 40 with 1 % bombs; no call 0.5 s past its limit",
    ),
    "reward_pool": Benchmark(
        run="benchmarks.reward_pool:run",
        about="median latency that two reward processes add to a score at 64 `math` or 20 `code` per second",
        goal="under 50 ms, and no queue at the end",
    ),
    "sandbox": Benchmark(
        run="benchmarks.sandbox:run",
        about="programs per second that the reward `code` scores on two cores, and the correctness of the sandbox",
        goal="40 programs/s; no wrong program passes, no hostile one succeeds, no string breaks a verifier",
    ),
    "verifiers": Benchmark(
        run="benchmarks.verifiers:run",
        about="wrong verdicts on 21,000 made responses, forged code verdicts, memory and processes past the sandbox",
        goal="boxed and choice 0.5 %, unboxed 3 %, negations 5 %; nothing forged, no survivor, no byte past 64 MB",
    ),
    "async_single_turn": Benchmark(
        run="benchmarks.async_single_turn:run",
        about="steps per virtual hour at staleness 4 on the workload tail, against staleness 0 on the same devices",
        goal="at least 2.2 times; 1.8 at staleness 2, 1.35 at 1",
    ),
    "async_multi_turn": Benchmark(
        run="benchmarks.async_multi_turn:run",
        about="the same with five turns and an environment with long-tailed delays, at the median those of a response",
        goal="at least 2.7 times; 2.2 at staleness 2, 1.5 at 1",
    ),
    "async_cpu": Benchmark(
        run="benchmarks.async_cpu:run",
        about="steps per second at staleness 2 with the native engine and a slow environment, against staleness 0",
        goal="at least 1.5 times, with held-out accuracy within 0.03",
    ),
    "async_agentic": Benchmark(
        run="benchmarks.async_agentic:run",
        about="the same at staleness 4",
        goal="at least 2 times",
    ),
    "lifecycles": Benchmark(
        run="benchmarks.lifecycles:run",
        about="trajectories of 512 tokens per second of one controller on one core, from admission to update",
        goal="at least 5,000",
    ),
    "publish": Benchmark(
        run="benchmarks.publish:run",
        about="GB per second of weights between two processes over gloo, against a plain broadcast of as many bytes",
        goal="at least 0.6 times; verification adds at most 30 %",
    ),
    "queue": Benchmark(
        run="benchmarks.queue:run",
        about="generation steps per virtual hour with a queue and 16 redundant groups, against static batching",
        goal="at least 3 times",
    ),
    "lending": Benchmark(
        run="benchmarks.lending:run",
        about="steps per virtual hour with devices of the trainer lent while it waits, against the better run without",
        goal="at least 1.15 times",
    ),
    "plan": Benchmark(
        run="benchmarks.plan:run",
        about="worst of predicted against real step times, and of the plan's choice against an exhaustive search",
        goal="errors of 15 %, median 8 %; 5 % above the best of 200 candidates, found in 60 s",
    ),
    "reuse": Benchmark(
        run="benchmarks.reuse:run",
        about="sampled tokens until the demo answers 90 % of its held-out sums, with every group trained on twice",
        goal="at most 0.7 times, two seeds",
    ),
    "adapt": Benchmark(
        run="benchmarks.adapt:run",
        about="steps per virtual hour with `rollout.adapt` while lengths triple, against the best fixed ratio",
        goal="at least 0.95 times",
    ),
    "adapt_real": Benchmark(
        run="benchmarks.adapt_real:run",
        about="steps per second with `rollout.adapt` in a real run whose attempts get longer, against fixed ratios",
        goal="at least 0.95 times",
    ),
    "elastic": Benchmark(
        run="benchmarks.elastic:run",
        about="seconds until a generator that joins a real run over Ray has its share; nothing is lost when one leaves",
        goal="under 30 s for each of three joins; no violation of `roll verify`",
    ),
    "paper": Benchmark(
        run="benchmarks.papers.command:run",
        about="claims of the ROLL Flash paper that its experiments show here; `roll bench paper` lists the experiments",
        goal="none: what is not shown, and why, is in `docs/papers.md`",
    ),
    "scaling": Benchmark(
        run="benchmarks.scaling:run",
        about="seconds to simulate one hour of 64 generators; the number of generators that one controller can serve",
        goal="under 60 s",
    ),
    "alfworld": Benchmark(
        run="benchmarks.alfworld:run",
        about="steps per second of the environment `alfworld` on one core, replaying the walkthrough of every game",
        goal="at least 5,000, and every game won",
    ),
    "ray_lifecycles": Benchmark(
        run="benchmarks.ray_lifecycles:run",
        about="trajectories per second of one controller with four Ray actors as generators, which answer immediately",
        goal="at least 2,000",
    ),
    "watch": Benchmark(
        run="benchmarks.watch:run",
        about="response times of `roll watch` with 100,000 attempts: first view, filters, delay of an event",
        goal="first view under 1 s, a filter under 0.3 s, an event within 2 s",
    ),
    "controller": Benchmark(
        run="benchmarks.controller:run",
        about="seconds of the controller in a step of 8.4M tokens: statistics, journal, collation, credit, shards",
        goal="under 1.5 s",
    ),
    "task_file": Benchmark(
        run="benchmarks.task_file:run",
        about="CPU time and peak memory from a task file of a million rows to the first drawn tasks",
        goal="under 5 s of CPU and under 400 MB",
    ),
    "turns": Benchmark(
        run="benchmarks.turns:run",
        about="turns per second with 2,000 live `frozen_lake` environments and a stub generator, on two cores",
        goal="at least 3,000",
    ),
    "proxy": Benchmark(
        run="benchmarks.proxy:run",
        about="requests per second of the agent proxy with 200 concurrent sessions and a stub generator",
        goal="at least 500; at that rate a median latency under 10 ms",
    ),
    "gpu_step": Benchmark(
        run="benchmarks.gpu_step:run",
        about="seconds of a GRPO step on one GPU with the native generator and the shape of Qwen3-0.6B",
        goal="at most 4.0 s, at most 56.8 GiB",
        needs_gpu=True,
    ),
    "gpu_generate": Benchmark(
        run="benchmarks.gpu_generate:run",
        about="tokens per second of the native generator and of vLLM on one GPU, for two models with random weights",
        goal="at least 0.55 of the byte bound with the shape of Qwen3-0.6B, 60,000 with 1.5 billion parameters",
        needs_gpu=True,
    ),
    "gpu_gsm8k": Benchmark(
        run="benchmarks.gpu_results:gsm8k",
        about="gain in accuracy on the GSM8K test set of a model of 1.5 billion parameters on one GPU",
        goal="at least 0.10 in 10 minutes",
        needs_gpu=True,
    ),
    "gpu_real": Benchmark(
        run="benchmarks.gpu_results:real_step",
        about="seconds per step of that run",
        goal="at most 5.5",
        needs_gpu=True,
    ),
    "gpu_async": Benchmark(
        run="benchmarks.gpu_results:asynchronous",
        about="steps per minute of the same run with `max_staleness: 1`, against the synchronous run",
        goal="at least 1.3 times, accuracy within 0.01",
        needs_gpu=True,
    ),
    "gpu_tail": Benchmark(
        run="benchmarks.gpu_results:tail",
        about="trained tokens per second of the run on GSM8K where no step waits for its longest responses",
        goal="none: shows what partial responses and redundant groups give, with held-out accuracy",
        needs_gpu=True,
    ),
    "gpu_code": Benchmark(
        run="benchmarks.gpu_results:code",
        about="gain in accuracy on the MBPP test set of the same model, and a control with permuted rewards",
        goal="at least 0.05; control below 0.02",
        needs_gpu=True,
    ),
    "gpu_agent": Benchmark(
        run="benchmarks.gpu_results:agent",
        about="gain in success on unseen FrozenLake maps of the same model, and a control with permuted rewards",
        goal="at least 0.05; control below 0.02",
        needs_gpu=True,
    ),
    "gpu_recipes": Benchmark(
        run="benchmarks.gpu_results:recipes",
        about="the smaller gain of DAPO and REINFORCE++ on the GSM8K test set, against that of GRPO",
        goal="none",
        needs_gpu=True,
    ),
    "gpu_memory": Benchmark(
        run="benchmarks.gpu_memory:run",
        about="the largest model that trains on one GPU, in full and with LoRA, against the memory plan",
        goal="predicted within 15 %",
        needs_gpu=True,
    ),
    "gpu_publish": Benchmark(
        run="benchmarks.gpu_publish:run",
        about="seconds of a weight sync on one GPU, from pause to resume, and of the transport between processes alone",
        goal="at most 0.1 s; the transport at least half of a copy on the device",
        needs_gpu=True,
    ),
    "gpu_learn": Benchmark(
        run="benchmarks.gpu_learn:run",
        about="held-out accuracy that SmolLM2-135M-Instruct gains on sums in 100 steps on one GPU",
        goal="at least 0.3 in 8 minutes; mean sampler mismatch below 0.02 in every step",
        needs_gpu=True,
    ),
}
BENCHMARKS: Table[Callable[[], Result]] = Table(
    "benchmark",
    0,
    supplied_to_class=None,
    others_give=False,
    **{name: benchmark.run for name, benchmark in CATALOGUE.items()},
)
