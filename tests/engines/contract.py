"""Contracts of engines as plain functions; each takes a new engine and fails if it violates the contract."""

import asyncio
from pathlib import Path

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.engines.base import Generator, Offloadable, Probeable, Trainer
from roll.errors import EngineFailed
from roll.types import Finish, Spec
from tests.engines.models import batch_of, collect, request

CONTEXT = 128
"""Maximal sequence length of generators under contract."""
LOSS = Objective(loss=Spec("policy_gradient"))
ROWS = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11]]


async def replies_end_by_length_or_by_a_stop_token(engine: Generator) -> None:
    await engine.start()
    free = [request(f"free-{number}", range(1, 3 + number), 5 + number) for number in range(6)]
    await engine.submit(free)
    actual = await collect(engine, 6)
    for contexts in free:
        assert (actual[contexts.id].finish, len(actual[contexts.id].ids)) == (Finish.LENGTH, contexts.max_new_tokens)
    probe = actual["free-5"]
    again = request("again", range(1, 8), 10, key=free[5].key, stop=frozenset({probe.ids[3]}))
    await engine.submit([again])
    stopped = (await collect(engine, 1))["again"]
    cut = probe.ids.index(probe.ids[3]) + 1
    assert (stopped.ids, stopped.finish) == (probe.ids[:cut], Finish.STOP)
    for output in (*actual.values(), stopped):
        assert len(output.ids) == len(output.logprobs) and all(value <= 0 for value in output.logprobs)
    await engine.stop()


async def abort_brings_back_what_ran_and_what_queued(engine: Generator) -> None:
    await engine.start()
    contexts = [request(f"r{number}", [1, 2, number], 40) for number in range(20)]
    await engine.submit(contexts)
    whole = await collect(engine, 20)
    await engine.submit(contexts)
    await _work(engine, 5)
    await engine.abort(None)
    actual = await collect(engine, 20)
    assert all(output.finish is Finish.ABORT for output in actual.values())
    assert any(output.ids for output in actual.values())
    for name, output in actual.items():
        assert len(output.ids) < 40 and len(output.logprobs) == len(output.ids)
        assert output.ids == whole[name].ids[: len(output.ids)]
    assert await engine.events(0.01) == []
    await engine.stop()


async def abort_by_name_leaves_the_others_alone(engine: Generator) -> None:
    await engine.start()
    await engine.submit([request(f"r{number}", [1, 2, number], 12) for number in range(20)])
    await _work(engine, 3)
    await engine.abort(["r0", "r19", "nobody"])
    actual = await collect(engine, 20)
    assert {name for name, output in actual.items() if output.finish is Finish.ABORT} == {"r0", "r19"}
    assert all(len(output.ids) == 12 for name, output in actual.items() if name not in ("r0", "r19"))
    await engine.stop()


async def abort_of_nobody_does_nothing(engine: Generator) -> None:
    await engine.start()
    await engine.abort(["nobody"])
    await engine.abort(None)
    assert await engine.events(0.01) == []
    await engine.submit([request("r", [1], 3)])
    await engine.abort(["nobody"])
    assert (await collect(engine, 1))["r"].finish is Finish.LENGTH
    await engine.stop()


async def nothing_is_sampled_while_paused_and_resume_names_the_version(engine: Generator) -> None:
    await engine.start()
    await engine.pause()
    await engine.submit([request("r", [1, 2], 4)])
    assert await engine.events(0.02) == []
    await engine.resume(7)
    assert (await collect(engine, 1))["r"].version == 7
    await engine.pause()
    await engine.resume(9)
    await engine.submit([request("s", [1, 2], 4)])
    assert (await collect(engine, 1))["s"].version == 9
    await engine.stop()


async def weights_arrive_only_while_nothing_is_served(engine: Generator) -> None:
    await engine.start()
    with pytest.raises(AssertionError, match="nothing is served"):
        await engine.receive(1)
    await engine.submit([request("r", [1, 2], 4)])
    await engine.pause()
    with pytest.raises(AssertionError, match="nothing is served"):
        await engine.receive(1)
    await engine.abort(None)
    await collect(engine, 1)
    assert await engine.receive(1) == await engine.receive(1)
    await engine.stop()


async def a_request_too_long_is_refused_and_harms_nobody(engine: Generator) -> None:
    await engine.start()
    with pytest.raises(EngineFailed, match="max_seq_len"):
        await engine.submit([request("good", [1], 4), request("long", [1] * CONTEXT, 1)])
    with pytest.raises(EngineFailed):
        await engine.submit([request("empty", [], 4)])
    assert await engine.events(0.02) == []
    await engine.submit([request("exact", [1] * (CONTEXT - 4), 4)])
    assert len((await collect(engine, 1))["exact"].ids) == 4
    await engine.stop()


async def a_wait_that_is_cancelled_ends_although_it_was_woken_in_the_same_moment(engine: Generator) -> None:
    await engine.start()
    for delay in range(4):
        waiting = asyncio.ensure_future(engine.events(5.0))
        for _ in range(5):
            await asyncio.sleep(0)
        await engine.resume(0)
        for _ in range(delay):
            await asyncio.sleep(0)
        cancelled = waiting.cancel()
        await asyncio.wait({waiting}, timeout=10)
        assert waiting.cancelled() or not cancelled, "whoever waits in a loop would never end"
    await engine.stop()


async def a_probe_speaks_of_every_token_and_leaves_nothing_behind(engine: Generator, probed: Probeable) -> None:
    """`engine` and `probed` are one object."""
    await engine.start()
    with pytest.raises(AssertionError, match="nothing is served"):
        await probed.probe([1, 2, 3], 2)
    await engine.pause()
    actual = await probed.probe([5, 6, 7, 8], 3)
    assert actual.ids.tolist()[:3] == [6, 7, 8] and len(actual.ids) == len(actual.logprobs) == 6
    assert (actual.logprobs <= 0).all()
    again = await probed.probe([5, 6, 7, 8], 3)
    assert again.ids.tolist() == actual.ids.tolist() and abs(again.logprobs - actual.logprobs).max() < 1e-5
    assert await engine.events(0.01) == []
    await engine.resume(2)
    await engine.submit([request("r", [1, 2], 4)])
    assert set(await collect(engine, 1)) == {"r"}
    await engine.stop()


async def replies_are_the_same_after_offload_and_onload(engine: Generator, resident: Offloadable) -> None:
    """`engine` and `resident` are one object."""
    await engine.start()
    await engine.submit([request("r", [1, 2, 3], 6)])
    before = (await collect(engine, 1))["r"]
    await resident.offload(["kv", "weights"])
    await resident.onload(["weights", "kv"])
    await engine.submit([request("r", [1, 2, 3], 6)])
    assert (await collect(engine, 1))["r"] == before
    await engine.stop()


async def logprobs_are_about_their_own_token(engine: Trainer) -> None:
    await engine.start()
    batch = batch_of(ROWS, sampler_logprobs=torch.tensor([0.0, -1, -2, -3, 0, -1, 0, -1, -2, -3, -4]))
    actual = await engine.logprobs(batch)
    assert actual.shape == (11,) and actual.dtype == torch.float32
    assert actual[[0, 4, 6]].tolist() == [0.0, 0.0, 0.0]
    assert (actual[[1, 2, 3, 5, 7, 8, 9, 10]] < 0).all()
    torch.testing.assert_close(await engine.logprobs(batch.select([2, 0])), torch.cat([actual[6:], actual[:4]]))
    await engine.stop()


async def an_update_that_is_not_finite_changes_nothing(engine: Trainer) -> None:
    await engine.start()
    sound = batch_of(ROWS)
    before = await engine.send(0)
    poisoned = batch_of(ROWS, advantages=torch.where(sound.trained, torch.nan, 0.0))
    assert (await engine.update(poisoned, LOSS))["loss/refused"] == 1
    scores = await engine.logprobs(sound)
    assert torch.isfinite(scores).all()
    assert await engine.send(0) == before
    assert (await engine.update(sound, LOSS))["loss/refused"] == 0
    await engine.stop()


async def a_loaded_trainer_goes_on_as_the_saved_one(engine: Trainer, other: Trainer, path: Path) -> None:
    await engine.start()
    await other.start()
    batch = batch_of(ROWS)
    for _ in range(2):
        await engine.update(batch, LOSS)
    await engine.save(path)
    await other.load(path)
    ahead, caught_up = await engine.update(batch, LOSS), await other.update(batch, LOSS)
    assert ahead == caught_up
    assert await engine.send(3) == await other.send(3)
    assert torch.equal(await engine.logprobs(batch), await other.logprobs(batch))
    await engine.stop()
    await other.stop()


async def updates_are_the_same_after_offload_and_onload(engine: Trainer, other: Trainer, resident: Offloadable) -> None:
    """`engine` and `resident` are one object; `other` is an equal one that is never offloaded."""
    await engine.start()
    await other.start()
    for _ in range(2):
        await resident.offload(["weights", "optimizer"])
        await resident.onload(["optimizer", "weights"])
        assert await engine.update(batch_of(ROWS), LOSS) == await other.update(batch_of(ROWS), LOSS)
    assert await engine.send(1) == await other.send(1)


async def _work(engine: Generator, steps: int) -> None:
    """Run the engine for a few steps in which no request ends."""
    for _ in range(steps):
        working = asyncio.ensure_future(engine.events(5.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not working.done() or working.result() == []
        working.cancel()


GENERATOR = (
    replies_end_by_length_or_by_a_stop_token,
    abort_brings_back_what_ran_and_what_queued,
    abort_by_name_leaves_the_others_alone,
    abort_of_nobody_does_nothing,
    nothing_is_sampled_while_paused_and_resume_names_the_version,
    weights_arrive_only_while_nothing_is_served,
    a_request_too_long_is_refused_and_harms_nobody,
    a_wait_that_is_cancelled_ends_although_it_was_woken_in_the_same_moment,
)
"""The promises of every generator."""
