"""The benchmark that counts checks without a fault. It is whole only where it is run; here the trainer's part is."""

import asyncio

from roll.bench.catalogue import CATALOGUE
from roll.bench.conformance import VOCAB, native
from roll.conformance.trainers import check_logprobs


def test_its_trainers_are_fresh_and_keep_the_laws_of_logprobs() -> None:
    make = native()
    assert make(64) is not make(64)
    assert asyncio.run(check_logprobs(make, vocab=VOCAB)) == []


def test_nothing_less_than_all_is_its_goal() -> None:
    assert CATALOGUE["conformance"].goal == "all of them"
    assert not CATALOGUE["conformance"].needs_gpu
