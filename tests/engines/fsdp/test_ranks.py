"""Where a rank stands among the others, and what is said of one that is gone; no process is started here."""

import pytest
import torch.distributed as dist

from roll.engines.fsdp.model import SpreadDecoder
from roll.engines.fsdp.ranks import Ranks, Spread
from roll.errors import ConfigError, WorkerDied
from tests.engines.models import config


def ranks(size: int, rank: int = 0, *, tp: int = 1, cp: int = 1) -> Ranks:
    return Ranks(Spread(url="file:///nowhere", size=size, tp=tp, cp=cp), rank)


def test_ranks_that_share_are_neighbours() -> None:
    found = [ranks(8, rank, tp=2, cp=2) for rank in range(8)]
    assert [each.dp_rank for each in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [each.cp_rank for each in found] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [each.tp_rank for each in found] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [each.shard for each in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found[0].spread.dp == 2


def test_a_model_that_cannot_be_shared_so_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 do not divide into groups of tp 2 times cp 1"):
        ranks(3, tp=2)
    with pytest.raises(ConfigError, match="2 heads of keys and values do not divide by tp 2 times cp 2"):
        SpreadDecoder(config(), ranks(4, tp=2, cp=2))
    with pytest.raises(ConfigError, match="a feed-forward of 63 does not divide by 2"):
        SpreadDecoder(config(intermediate_size=63), ranks(2, tp=2))


def test_slices_of_tokens_are_equal_and_cover_all() -> None:
    decoders = [SpreadDecoder(config(), ranks(2, rank, cp=2)) for rank in range(2)]
    assert [decoder.slice_of(7) for decoder in decoders] == [(0, 4), (4, 4)]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[pair.cc:547] gloo: Connection closed by peer [127.0.0.1]:1"),
        dist.DistNetworkError("timed out\nand more"),
    ],
)
def test_a_rank_that_is_gone_is_a_death_in_one_line(error: Exception) -> None:
    said = r"actor_train 1: lost another rank during an update \(.*\); see"
    with pytest.raises(WorkerDied, match=said) as raised, ranks(2, 1).together("an update"):
        raise error
    assert "\n" not in str(raised.value)


def test_what_is_no_death_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), ranks(2).together("an update"):
        raise RuntimeError("out of memory")
