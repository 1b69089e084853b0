"""Ranks used as one worker: all run every call, one at a time, and the result of rank 0 is returned."""

import asyncio

import pytest

from roll.cluster.handle import RankGroup
from roll.cluster.inline import InlineCluster
from roll.errors import PeerLost, WorkerDied


class Rank:
    def __init__(self, rank: int) -> None:
        self.rank, self.received, self.busy = rank, list[str](), False

    async def say(self, word: str, *, loud: bool = False) -> str:
        assert not self.busy, "two calls at once"
        self.busy = True
        for _ in range(3 - self.rank):
            await asyncio.sleep(0)
        self.busy = False
        self.received.append(word)
        return f"{self.rank}: {word.upper() if loud else word}"

    async def fail(self) -> None:
        if self.rank == 1:
            raise ValueError("rank 1")

    async def die(self) -> None:
        if self.rank == 2:
            await asyncio.sleep(0.05)
            raise WorkerDied("rank 2: its process ended")
        raise PeerLost(f"rank {self.rank}: lost another rank")

    async def raise_or_wait(self) -> None:
        if self.rank == 1:
            raise ValueError("rank 1")
        await asyncio.sleep(0.05)
        raise WorkerDied(f"rank {self.rank}: did not respond and was killed")

    async def raise_or_hang(self) -> None:
        if self.rank == 1:
            raise ValueError("rank 1")
        await asyncio.sleep(60)

    async def fill(self) -> None:
        await asyncio.sleep(0.05 * self.rank)
        raise OSError("full")

    async def stop(self) -> None:
        pass


def rank_group() -> tuple[RankGroup[Rank], list[Rank]]:
    ranks = [Rank(rank) for rank in range(3)]
    return RankGroup(InlineCluster(ranks)), ranks


def test_every_rank_gets_every_call_and_the_result_is_that_of_rank_0() -> None:
    one, ranks = rank_group()

    async def use() -> None:
        assert one.size == 1
        assert await one.each(Rank.say, "a", loud=True) == ["0: A"]
        assert await one.scatter(Rank.say, ["b"], loud=False) == ["0: b"]
        assert await one.at(0, Rank.say, "c") == "0: c"

    asyncio.run(use())
    assert [rank.received for rank in ranks] == [["a", "b", "c"]] * 3


def test_concurrent_calls_reach_all_ranks_in_the_same_order() -> None:
    one, ranks = rank_group()

    async def use() -> None:
        await asyncio.gather(*(one.at(0, Rank.say, word) for word in "abcde"))

    asyncio.run(use())
    assert [rank.received for rank in ranks] == [list("abcde")] * 3


def test_an_error_of_any_rank_is_raised_and_the_group_counts_as_one_worker() -> None:
    one, _ = rank_group()
    with pytest.raises(ValueError, match="rank 1"):
        asyncio.run(one.at(0, Rank.fail))
    with pytest.raises(AssertionError, match="2 shards"):
        asyncio.run(one.scatter(Rank.say, ["a", "b"]))
    with pytest.raises(AssertionError, match="one worker"):
        asyncio.run(one.at(1, Rank.say, "a"))


def test_the_rank_that_died_is_named_even_if_the_errors_of_its_peers_arrive_first() -> None:
    one, _ = rank_group()
    with pytest.raises(WorkerDied, match="rank 2: its process ended"):
        asyncio.run(one.at(0, Rank.die))


def test_an_exception_is_raised_although_its_peers_wait_for_that_rank_until_they_are_killed() -> None:
    one, _ = rank_group()
    with pytest.raises(ValueError, match="rank 1"):
        asyncio.run(one.at(0, Rank.raise_or_wait))


def test_no_call_follows_one_that_some_ranks_have_not_ended() -> None:
    """The other ranks would still be in its collective operations."""
    one, ranks = rank_group()

    async def use() -> None:
        with pytest.raises(ValueError, match="rank 1"):
            await one.at(0, Rank.raise_or_hang)
        with pytest.raises(ValueError, match="rank 1"):
            await one.at(0, Rank.say, "a")
        with pytest.raises(ValueError, match="rank 1"):
            await one.at(0, Rank.fail)
        await one.at(0, Rank.stop)

    asyncio.run(use())
    assert not any(rank.received for rank in ranks)


def test_calls_follow_an_error_that_all_ranks_have_raised() -> None:
    one, ranks = rank_group()

    async def use() -> None:
        with pytest.raises(OSError, match="full"):
            await one.at(0, Rank.fill)
        await one.at(0, Rank.say, "a")

    asyncio.run(use())
    assert [rank.received for rank in ranks] == [["a"]] * 3


def test_a_call_that_is_cancelled_leaves_ranks_at_different_places() -> None:
    one, ranks = rank_group()

    async def use() -> None:
        call = asyncio.ensure_future(one.at(0, Rank.say, "a"))
        for _ in range(8):
            await asyncio.sleep(0)
            if ranks[2].received:
                break
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(WorkerDied, match="say was cancelled"):  # which a recovering cluster replaces
            await one.at(0, Rank.say, "b")

    asyncio.run(use())
    assert ranks[2].received == ["a"] and ranks[0].received == []
