"""The benchmark that counts checks without a fault."""

import asyncio

import pytest

from benchmarks.conformance import VOCAB, counted, native
from roll.conformance.trainers import check_logprobs


def test_its_trainers_are_fresh_and_keep_the_laws_of_logprobs() -> None:
    make = native()
    assert make(64) is not make(64)
    assert asyncio.run(check_logprobs(make, vocab=VOCAB)) == []


def test_a_fault_is_told_counted_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    result = counted([("loss a()", []), ("loss b()", ["b: differs", "b: depends"]), ("loss c()", [])])
    assert (result.ours, result.bound, result.details) == (2.0, 3.0, {"faults": ["b: differs", "b: depends"]})
    assert capsys.readouterr().out.splitlines() == ["loss a(): ok", "loss b(): b: differs; b: depends", "loss c(): ok"]
