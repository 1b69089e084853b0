"""Optional trainers: their tests run where their packages are installed, and are skipped elsewhere."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.engines.fsdp_team import Team

NEEDS_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed; `make test-trainers` has it"
)


@pytest.fixture(scope="session")
def team() -> Iterator[Team]:
    ranks = Team()
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def processes() -> Iterator[Any]:
    """Four processes for backend megatron, started on first use."""
    from benchmarks.layout_ranks import RankProcesses

    result = RankProcesses()
    yield result
    result.close()
