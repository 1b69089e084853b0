"""Test selection: files marked slow as a whole are not even imported where slow tests are deselected."""

import re
from pathlib import Path

import pytest

_SLOW_FILE = re.compile(r"^pytestmark = (\[[^\]]*|[^\[\n]*)\bmark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing a slow file takes seconds, so `-m "not slow"` leaves it out before the import."""
    deselected = "not slow" in config.getoption("markexpr") and collection_path.suffix == ".py"
    return True if deselected and _SLOW_FILE.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that no worker ends with one alone."""
    items.sort(key=lambda item: item.get_closest_marker("learns") is None)
