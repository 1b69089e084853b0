"""Processes that tests of many ranks share."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def team() -> Iterator[Any]:
    """Ranks, each started when a test first asks for it."""
    from tests.engines.fsdp_team import Team

    found = Team()
    yield found
    found.close()
