"""Ranks that are one worker: all do every call, one at a time, and the first answers."""

import asyncio

import pytest

from roll.cluster.inline import InlineCluster
from roll.cluster.rank_group import Gang


class Rank:
    def __init__(self, rank: int) -> None:
        self.rank, self.heard, self.busy = rank, list[str](), False

    async def say(self, word: str, *, loud: bool = False) -> str:
        assert not self.busy, "two calls at once"
        self.busy = True
        for _ in range(3 - self.rank):
            await asyncio.sleep(0)
        self.busy = False
        self.heard.append(word)
        return f"{self.rank}: {word.upper() if loud else word}"

    async def fail(self) -> None:
        if self.rank == 1:
            raise ValueError("rank 1")


def gang() -> tuple[Gang[Rank], list[Rank]]:
    ranks = [Rank(rank) for rank in range(3)]
    return Gang(InlineCluster(ranks)), ranks


def test_every_rank_hears_every_call_and_rank_0_answers() -> None:
    one, ranks = gang()

    async def use() -> None:
        assert one.size == 1
        assert await one.each(Rank.say, "a", loud=True) == ["0: A"]
        assert await one.scatter(Rank.say, ["b"], loud=False) == ["0: b"]
        assert await one.at(0, Rank.say, "c") == "0: c"
        assert await one.any(Rank.say, "d") == "0: d"

    asyncio.run(use())
    assert [rank.heard for rank in ranks] == [["a", "b", "c", "d"]] * 3


def test_calls_made_at_once_reach_all_ranks_in_one_order() -> None:
    one, ranks = gang()

    async def use() -> None:
        await asyncio.gather(*(one.at(0, Rank.say, word) for word in "abcde"))

    asyncio.run(use())
    assert [rank.heard for rank in ranks] == [list("abcde")] * 3


def test_what_any_rank_raises_is_raised_and_there_is_one_worker_to_be_asked() -> None:
    one, _ = gang()
    with pytest.raises(ValueError, match="rank 1"):
        asyncio.run(one.at(0, Rank.fail))
    with pytest.raises(AssertionError, match="2 shards"):
        asyncio.run(one.scatter(Rank.say, ["a", "b"]))
    with pytest.raises(AssertionError, match="one worker"):
        asyncio.run(one.at(1, Rank.say, "a"))
