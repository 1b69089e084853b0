"""Ranks shared by the tests of backend megatron, which are skipped where megatron-core is not installed."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("megatron") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def processes() -> Iterator[Any]:
    """Four processes, started on first use."""
    from benchmarks.layout_ranks import RankProcesses

    result = RankProcesses()
    yield result
    result.close()
