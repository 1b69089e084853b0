"""The benchmark that counts checks without a fault."""

import asyncio

import pytest

from benchmarks.conformance import VOCAB, count_passes, native
from roll.conformance.trainers import check_logprobs


@pytest.mark.slow
def test_its_trainers_are_new_objects_and_pass_the_checks_of_logprobs() -> None:
    make = native()
    assert make(64) is not make(64)
    assert asyncio.run(check_logprobs(make, vocab=VOCAB)) == []


def test_a_fault_is_printed_counted_and_in_the_details(capsys: pytest.CaptureFixture[str]) -> None:
    result = count_passes([("loss a()", []), ("loss b()", ["b: differs", "b: depends"]), ("loss c()", [])])
    assert (result.ours, result.bound, result.details) == (2.0, 3.0, {"faults": ["b: differs", "b: depends"]})
    assert capsys.readouterr().out.splitlines() == ["loss a(): ok", "loss b(): b: differs; b: depends", "loss c(): ok"]
