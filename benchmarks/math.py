"""Whether the reward `math` can be trusted, and how fast it is: golds in other forms, mixed-up golds, bombs, rates.

The golds are those of GSM8K, SVAMP and DeepMath in the folder that `ROLL_DATA` names.
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
from roll.rewards.math import score
from roll.rewards.math_exact import normalised, same
from roll.rewards.math_process import COMPARERS
from roll.types import Score, Task

PROCESSES = 2
BOUND = 20_000.0
LIMIT_S = 2.0
START_S = 60.0
NUM_MIXED = 4_000
NUM_BOMBED = 2_000
NUM_COMPARED = 6_000
NUM_LEARNT = 1_000
"""Of them, what each comparer reads before the clock starts: parsing is slower until it has met most shapes."""
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
"""A gold answer and a reply."""


def run() -> Result:
    """Replies a second that need no algebra, on two cores; everything else stands in the details."""
    folder = os.environ.get("ROLL_DATA")
    if not folder:
        return _result(skipped="ROLL_DATA names no folder with data")
    worded = [answer for name in WORDED for answer in golds(Path(folder), name)]
    deep = golds(Path(folder), "deepmath5k_train")
    details = _surface(worded)
    easy = [(gold, form) for gold in worded[:2000] for form in surface_forms(gold)]
    details["fast_cpu_us"] = round(1e6 * _cpu_s(easy[:5000]) / 5000, 1)
    speed = _rate("fast path", easy, comparing=False)
    if importlib.util.find_spec("math_verify") is None:
        why = "math-verify is not installed; run `pip install math-verify`"
        return _result(skipped=why, details=details | {"fast_per_s": round(speed)})
    _start()
    details |= _false_positives(deep) | _notation(deep) | _overruns()
    hard = list(itertools.islice(undecided(deep), NUM_COMPARED))
    details["math_verify_first_per_s"] = round(_rate("through math-verify, at first", hard[:NUM_LEARNT]))
    details["math_verify_per_s"] = round(_rate("through math-verify", hard, num_before=NUM_LEARNT))
    details["with_bombs_per_s"] = round(_rate("with 1 % bombs", with_bombs(hard[:NUM_BOMBED])))
    details["load_average"] = round(os.getloadavg()[0], 1)
    return _result(ours=speed, details=details)


def _result(*, ours: float | None = None, details: dict[str, Any] | None = None, skipped: str = "") -> Result:
    return Result(
        name="math",
        unit="replies/s",
        higher_is_better=True,
        ours=ours,
        bound=BOUND,
        details=details or {},
        skipped=skipped,
    )


def golds(folder: Path, name: str) -> list[str]:
    """All answers of one file."""
    with (folder / "math" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [str(json.loads(line)["answer"]) for line in lines]


def judged(pair: Pair) -> Score:
    """The score of one reply."""
    return score(Task(id="bench", domain="math", answer=pair[0]), pair[1], timeout_s=LIMIT_S)


def surface_forms(number: str) -> list[str]:
    """Ten replies that give one number as their answer."""
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


def changed(number: str) -> str:
    """Another number, near by."""
    return f"{number}7" if "." in number else str(int(number) + 1)


def _surface(answers: Sequence[str]) -> dict[str, Any]:
    forms = [(gold, form) for gold in answers for form in surface_forms(gold)]
    others = [(gold, form) for gold in answers for form in surface_forms(changed(gold))]
    wrong = sum(judged(pair).value != 1.0 for pair in forms)
    fooled = sum(judged(pair).value != 0.0 for pair in others)
    typer.echo(f"{len(forms)} right surface forms: {wrong} refused; {len(others)} changed ones: {fooled} accepted")
    return {"surface_forms": len(forms), "surface_refused": wrong, "changed": len(others), "changed_accepted": fooled}


def mixed(answers: Sequence[str], num: int, seed: int = 0) -> Iterator[Pair]:
    """Replies that give the gold answer of another task, written differently from the task's own."""
    source, distinct = random.Random(seed), sorted(set(answers))
    while num:
        gold, other = source.sample(distinct, 2)
        if normalised(gold) != normalised(other):
            num -= 1
            yield gold, rf"\boxed{{{other}}}"


def _false_positives(answers: Sequence[str]) -> dict[str, Any]:
    pairs = list(mixed(answers, NUM_MIXED))
    found = [pair for pair in pairs if judged(pair).value == 1.0]
    typer.echo(f"{len(pairs)} mixed-up golds: {len(found)} accepted")
    return {"mixed": len(pairs), "false_positive_rate": len(found) / len(pairs), "accepted": found[:20]}


def _decimal(found: re.Match[str]) -> str | None:
    value = Fraction(int(found[1]), int(found[2]))
    return f"{float(value):.6f}".rstrip("0") if (value * 10**6).denominator == 1 else None


def _under_the_root(found: re.Match[str]) -> str:
    return rf"\sqrt{{{int(found[1]) ** 2 * int(found[2])}}}"


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
"""By name: what an answer has to look like, and what the rule makes of it."""


def renotated(answers: Sequence[str]) -> Iterator[tuple[str, Pair]]:
    """Every distinct answer, by every rule that changes it, as a boxed reply."""
    for gold in sorted(set(answers)):
        for name, (pattern, rewrite) in NOTATIONS.items():
            found = re.fullmatch(pattern, gold)
            if found is None or any(part.count("{") != part.count("}") for part in found.groups()):
                continue
            other = found.expand(rewrite) if isinstance(rewrite, str) else rewrite(found)
            if other is not None:
                yield name, (gold, rf"\boxed{{{other}}}")


def _notation(answers: Sequence[str]) -> dict[str, Any]:
    pairs = list(renotated(answers))
    refused = [(name, *pair) for name, pair in pairs if judged(pair).value != 1.0]
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
    judged(("12", rf"\boxed{{{bomb}}}"))
    return time.monotonic() - began - LIMIT_S


def _overruns() -> dict[str, Any]:
    """How far any bomb outlives its limit: here, from threads at once, and from other processes."""
    here = [_overrun_s(bomb) for bomb in BOMBS]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(_overrun_s, BOMBS[:4]))
    with _processes() as pool:
        there = list(pool.map(_overrun_s, BOMBS[:4]))
    worst = {"here": max(here), "threads": max(beside), "processes": max(there)}
    typer.echo(f"bombs outlive {LIMIT_S:g} s by {worst}")
    return {f"overrun_s_{where}": round(found, 3) for where, found in worst.items()}


def undecided(answers: Sequence[str]) -> Iterator[Pair]:
    """Replies that cannot be scored without algebra: notations and mixed-up golds in turn."""
    again = itertools.chain.from_iterable(itertools.repeat([pair for _, pair in renotated(answers)]))
    for pairs in zip(again, mixed(answers, 10**9), strict=False):
        yield from (pair for pair in pairs if same(pair[0], pair[1][len(r"\boxed{") : -1]) is None)


def with_bombs(pairs: Sequence[Pair]) -> list[Pair]:
    """The same, with a bomb for every hundredth, in turn at an even and an odd place, so that each process has some."""
    bomb = ("12", r"\boxed{9^{9^{9^9}}}")
    return [bomb if index % 100 == 50 + index // 100 % 2 else pair for index, pair in enumerate(pairs)]


def _processes(*, comparing: bool = True) -> ProcessPoolExecutor:
    """Without `comparing` they load no algebra, which keeps a processor busy for a while after the start."""
    start = _start if comparing else None
    return ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"), initializer=start)


def _start() -> None:
    """Let this process have its comparers, which else the first comparison would wait for."""
    COMPARERS.same("x", "1", timeout_s=START_S)


def _spend_s(pairs: Sequence[Pair], num_before: int) -> float:
    """Seconds over the pairs after the first `num_before`."""
    for pair in pairs[:num_before]:
        judged(pair)
    began = time.monotonic()
    for pair in pairs[num_before:]:
        judged(pair)
    return time.monotonic() - began


def _cpu_s(pairs: Sequence[Pair]) -> float:
    """Seconds of one processor over the pairs, whatever else the machine does."""
    began = time.process_time()
    for pair in pairs:
        judged(pair)
    return time.process_time() - began


def _rate(label: str, pairs: Sequence[Pair], *, num_before: int = 20, comparing: bool = True) -> float:
    """Replies a second over all processes, by the slower one, once each has scored `num_before`."""
    shares = [pairs[index::PROCESSES] for index in range(PROCESSES)]
    with _processes(comparing=comparing) as pool:
        spent_s = max(pool.map(_spend_s, shares, [num_before] * PROCESSES))
    rate = (len(pairs) - PROCESSES * num_before) / spent_s
    typer.echo(f"{label}: {rate:,.0f} replies/s")
    return rate
