"""Processes shared by tests of many ranks."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def team() -> Iterator[Any]:
    """Ranks, each started on first use."""
    from tests.engines.fsdp_team import Team

    result = Team()
    yield result
    result.close()
