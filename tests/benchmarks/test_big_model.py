"""Memory of ranks that load and publish a model."""

import pytest

from benchmarks.big_model import TRANSPORTS, measure

pytestmark = pytest.mark.slow


def test_a_rank_that_loads_or_publishes_holds_little_more_than_its_share() -> None:
    """With 67 million weights, a rank that held all of them would exceed its share by 2 buckets in float32."""
    result = measure([4], ["fsdp2"])
    (size,) = result.details["sizes"]
    assert (size["backend"], size["share_mib"]) == ("fsdp2", 128)
    assert size["seconds"].keys() == size["excess_buckets"].keys() == {"load", *TRANSPORTS}
    assert max(size["excess_buckets"].values()) < 1.5
