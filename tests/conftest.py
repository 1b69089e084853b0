"""Test selection: files marked slow as a whole are not even imported where slow tests are deselected."""

import gc
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # how fast examples are made depends on what else the machine does

_SLOW_FILE = re.compile(r"^pytestmark = (\[[^\]]*|[^\[\n]*)\bmark\.slow\b", re.MULTILINE)

gc.disable()  # until all files are imported: what they create lives to the end


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude what the imports created from garbage collection: each full collection would scan all of it."""
    gc.freeze()
    gc.enable()
    grouped = getattr(session.config.option, "loadgroup", False)
    if any("@" not in item.nodeid for item in session.items if grouped and item.get_closest_marker("xdist_group")):
        raise pytest.UsageError("pytest-xdist ignores xdist_group with this version of pytest: install constraints.txt")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing a slow file takes seconds, so `-m "not slow"` leaves it out before the import."""
    deselected = "not slow" in config.getoption("markexpr") and collection_path.suffix == ".py"
    return True if deselected and _SLOW_FILE.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)  # before marks select tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the first `keep` cases of a sweep in `make test`; start the longest tests first."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sweep")
        if mark is not None and mark.kwargs:
            name = item.nodeid.partition("[")[0]
            seen[name] += 1
            if seen[name] <= mark.kwargs["keep"]:
                item.own_markers = [other for other in item.own_markers if other.name != "sweep"]
    items.sort(key=lambda item: item.get_closest_marker("learns") is None)
