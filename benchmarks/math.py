"""Correctness and speed of the reward `math`: golds in other forms, wrong golds, pathological answers, rates.

The golds are those of GSM8K, SVAMP and DeepMath in the folder `ROLL_DATA`. A bomb is an answer that algebra cannot
evaluate in reasonable time.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import typer

from benchmarks.result import Result
from roll.rewards.math.exact import normalise, same
from roll.rewards.math.reward import Math
from roll.types import Score, Task

PROCESSES = 2
BOUND = 20_000.0
LIMIT_S = 2.0
_MATH = Math(timeout_s=LIMIT_S)
START_S = 60.0
NUM_MIXED = 4_000
NUM_BOMBED = 2_000
NUM_COMPARED = 6_000
NUM_WARMUP = 1_000
"""Pairs that each comparer scores before the timed ones: parsing is slower until it has seen most forms."""
WORDED = ("gsm8k_train", "gsm8k_test", "svamp_train", "svamp_test")
BOMBS = (
    "9**9**9**9",
    "9^{9^{9^9}}",
    "1000000!",
    "((10!)!)!",
    "(x+1)^{5000}",
    r"\int_0^1 " * 40 + "x",
    "(" * 500 + "1" + ")" * 500,
    r"\frac{1}{" * 90 + "2" + "}" * 90,
    r"\sqrt{" * 140 + "2" + "}" * 140,
    r"\sum_{n=1}^{10^9} \frac{1}{n}",
    "9" * 1000,
    "x" * 1_000_000,
)

Pair = tuple[str, str]
"""A gold answer and a response."""


def run() -> Result:
    """Responses per second that need no algebra, on two cores; the details have all other measurements."""
    folder = os.environ.get("ROLL_DATA")
    if not folder:
        return _result(skipped="ROLL_DATA is not set; set it to the folder with the data")
    worded = [answer for name in WORDED for answer in golds(Path(folder), name)]
    deep = golds(Path(folder), "deepmath5k_train")
    details = _surface(worded)
    easy = [(gold, form) for gold in worded[:2000] for form in surface_forms(gold)]
    details["fast_cpu_us"] = round(1e6 * _cpu_s(easy[:5000]) / 5000, 1)
    speed = _rate("fast path", easy, with_comparers=False)
    if importlib.util.find_spec("math_verify") is None:
        reason = "math-verify is not installed; run `pip install math-verify`"
        return _result(skipped=reason, details=details | {"fast_per_s": round(speed)})
    _start()
    details |= _false_positives(deep) | _notation(deep) | _overruns()
    hard = list(itertools.islice(pairs_for_algebra(deep), NUM_COMPARED))
    details["math_verify_first_per_s"] = round(_rate("through math-verify, cold", hard[:NUM_WARMUP]))
    details["math_verify_per_s"] = round(_rate("through math-verify", hard, num_before=NUM_WARMUP))
    details["with_bombs_per_s"] = round(_rate("with 1 % bombs", with_bombs(hard[:NUM_BOMBED])))
    details["load_average"] = round(os.getloadavg()[0], 1)
    return _result(ours=speed, details=details)


def _result(*, ours: float | None = None, details: dict[str, Any] | None = None, skipped: str = "") -> Result:
    return Result(
        name="math",
        unit="responses/s",
        higher_is_better=True,
        ours=ours,
        bound=BOUND,
        details=details or {},
        skipped=skipped,
    )


def golds(folder: Path, name: str) -> list[str]:
    """All gold answers of one file."""
    with (folder / "math" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [str(json.loads(line)["answer"]) for line in lines]


def score_pair(pair: Pair) -> Score:
    """The score of one response."""
    return _MATH.score(Task(id="bench", domain="math", answer=pair[0]), pair[1])


def surface_forms(number: str) -> list[str]:
    """Ten responses with this number as their answer."""
    grouped = f"{int(number):,}" if number.lstrip("-").isdigit() else number
    decimal = f"{number}0" if "." in number else f"{number}.0"
    return [
        rf"So it is \boxed{{{number}}}.",
        rf"Hence \boxed{{\${grouped}}} in all",
        rf"\[\boxed{{{number}\text{{ apples}}}}\]",
        f"The answer is {grouped}.",
        f"The answer is **{grouped}** dollars, after 3 steps",
        f"First 3 + 4 = 7.\n#### {number}",
        f"**Answer:** \\({number}\\)",
        f"5 + 6 = {number}",
        f"She has {grouped} dollars left.",
        f"<think>maybe 99</think>It is {decimal}",
    ]


def change_number(number: str) -> str:
    """A different number close to this one."""
    return f"{number}7" if "." in number else str(int(number) + 1)


def _surface(answers: Sequence[str]) -> dict[str, Any]:
    forms = [(gold, form) for gold in answers for form in surface_forms(gold)]
    others = [(gold, form) for gold in answers for form in surface_forms(change_number(gold))]
    wrong = sum(score_pair(pair).value != 1.0 for pair in forms)
    fooled = sum(score_pair(pair).value != 0.0 for pair in others)
    typer.echo(f"{len(forms)} right surface forms: {wrong} refused; {len(others)} changed ones: {fooled} accepted")
    return {"surface_forms": len(forms), "surface_refused": wrong, "changed": len(others), "changed_accepted": fooled}


def mismatched_golds(answers: Sequence[str], num: int, seed: int = 0) -> Iterator[Pair]:
    """Responses with the gold answer of another task, unless the two differ only in notation."""
    rng, distinct = random.Random(seed), sorted(set(answers))
    while num:
        gold, other = rng.sample(distinct, 2)
        if normalise(gold) != normalise(other):
            num -= 1
            yield gold, rf"\boxed{{{other}}}"


def _false_positives(answers: Sequence[str]) -> dict[str, Any]:
    pairs = list(mismatched_golds(answers, NUM_MIXED))
    accepted = [pair for pair in pairs if score_pair(pair).value == 1.0]
    typer.echo(f"{len(pairs)} golds of other tasks: {len(accepted)} accepted")
    return {
        "mixed": len(pairs),
        "false_positive_rate": len(accepted) / len(pairs),
        "accepted": accepted[:20],
    }


def _decimal(match: re.Match[str]) -> str | None:
    value = Fraction(int(match[1]), int(match[2]))
    return f"{float(value):.6f}".rstrip("0") if (value * 10**6).denominator == 1 else None


def _under_the_root(match: re.Match[str]) -> str:
    return rf"\sqrt{{{int(match[1]) ** 2 * int(match[2])}}}"


_TERM = r"((?:(?!\\[gl]eq?\b|\\n?eq\b|\\in\b)[^-+=<>,&|()\[\]])+)"
NOTATIONS: dict[str, tuple[str, str | Callable[[re.Match[str]], str | None]]] = {
    "slash": (r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1\2/\3"),
    "decimal": (r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", _decimal),
    "under the root": (r"(\d+) ?\\sqrt\{(\d+)\}", _under_the_root),
    "half power": (r"\\sqrt\{(\d+)\}", r"\1^{1/2}"),
    "pi first": (r"(\d+) ?\\pi", r"\\pi \\cdot \1"),
    "pi over": (r"\\[dt]?frac\{(\d+) ?\\pi\}\{(\d+)\}", r"\\frac{\1}{\2} \\pi"),
    "inverse power": (r"e\^\{-(\d+)\}", r"\\frac{1}{e^{\1}}"),
    "quotient": (r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}", r"(\1)/(\2)"),
    "sum turned": (rf"{_TERM} \+ {_TERM}", r"\2 + \1"),
    "difference turned": (rf"{_TERM} - {_TERM}", r"-\2 + \1"),
    "spaced pair": (r"([(\[])([^,()\[\]]+),([^,()\[\]]+)([)\]])", r"\\left\1 \2 , \3 \\right\4"),
}
"""Rules by name: the pattern of an answer, and its replacement."""


def rewrite_notations(answers: Sequence[str]) -> Iterator[tuple[str, Pair]]:
    """Boxed responses with every distinct answer rewritten by every rule that applies, with the name of the rule."""
    for gold in sorted(set(answers)):
        for name, (pattern, rewrite) in NOTATIONS.items():
            match = re.fullmatch(pattern, gold)
            if match is None or any(part.count("{") != part.count("}") for part in match.groups()):
                continue
            other = match.expand(rewrite) if isinstance(rewrite, str) else rewrite(match)
            if other is not None:
                yield name, (gold, rf"\boxed{{{other}}}")


def _notation(answers: Sequence[str]) -> dict[str, Any]:
    pairs = list(rewrite_notations(answers))
    refused = [(name, *pair) for name, pair in pairs if score_pair(pair).value != 1.0]
    right = {pair[0] for _, pair in pairs} - {gold for _, gold, _ in refused}
    typer.echo(f"{len(pairs)} golds in another notation: {len(refused)} refused")
    return {
        "notations": len(pairs),
        "notations_refused": len(refused),
        "golds_right_in_every_notation": len(right),
        "refused": refused[:20],
    }


def _overrun_s(bomb: str) -> float:
    began = time.monotonic()
    score_pair(("12", rf"\boxed{{{bomb}}}"))
    return time.monotonic() - began - LIMIT_S


def _overruns() -> dict[str, Any]:
    """Largest time by which a bomb exceeds its limit: inline, from concurrent threads, and from other processes."""
    here = [_overrun_s(bomb) for bomb in BOMBS]
    with ThreadPoolExecutor(4) as pool:
        threads = list(pool.map(_overrun_s, BOMBS[:4]))
    with _processes() as pool:
        processes = list(pool.map(_overrun_s, BOMBS[:4]))
    worst = {"here": max(here), "threads": max(threads), "processes": max(processes)}
    typer.echo(f"bombs exceed the limit of {LIMIT_S:g} s by {worst}")
    return {f"overrun_s_{where}": round(seconds, 3) for where, seconds in worst.items()}


def pairs_for_algebra(answers: Sequence[str]) -> Iterator[Pair]:
    """Responses that cannot be scored without algebra: rewritten and wrong golds in alternation, endlessly."""
    again = itertools.chain.from_iterable(itertools.repeat([pair for _, pair in rewrite_notations(answers)]))
    for pairs in zip(again, mismatched_golds(answers, 10**9), strict=False):
        yield from (pair for pair in pairs if same(pair[0], pair[1][len(r"\boxed{") : -1]) is None)


def with_bombs(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with every hundredth replaced by a bomb, at even and odd indices in turn: each process gets some."""
    bomb = ("12", r"\boxed{9^{9^{9^9}}}")
    return [bomb if index % 100 == 50 + index // 100 % 2 else pair for index, pair in enumerate(pairs)]


def _processes(*, with_comparers: bool = True) -> ProcessPoolExecutor:
    """A pool of processes. Without `with_comparers` they do not start comparers, which would use a core at first."""
    start = _start if with_comparers else None
    return ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"), initializer=start)


def _start() -> None:
    """Start the comparers of this process, so that the first comparison does not wait for them."""
    _MATH.pool.compare("x", "1", timeout_s=START_S)


def _wall_s(pairs: Sequence[Pair], num_before: int) -> float:
    """Wall time of scoring the pairs after the first `num_before`."""
    for pair in pairs[:num_before]:
        score_pair(pair)
    began = time.monotonic()
    for pair in pairs[num_before:]:
        score_pair(pair)
    return time.monotonic() - began


def _cpu_s(pairs: Sequence[Pair]) -> float:
    """CPU time of scoring the pairs."""
    began = time.process_time()
    for pair in pairs:
        score_pair(pair)
    return time.process_time() - began


def _rate(label: str, pairs: Sequence[Pair], *, num_before: int = 20, with_comparers: bool = True) -> float:
    """Responses per second of all processes, by the slower one, after `num_before` warm-up pairs in each."""
    shares = [pairs[index::PROCESSES] for index in range(PROCESSES)]
    with _processes(with_comparers=with_comparers) as pool:
        spent_s = max(pool.map(_wall_s, shares, [num_before] * PROCESSES))
    rate = (len(pairs) - PROCESSES * num_before) / spent_s
    typer.echo(f"{label}: {rate:,.0f} responses/s")
    return rate
