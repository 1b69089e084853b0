"""Which tests are whole processes or whole runs: `make test` runs them, `make check` leaves them out."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = (
    "bench/test_environment.py",
    "cli",
    "cluster/test_processes.py",
    "conformance",
    "rewards/test_code.py",
    "bench/test_sandbox.py",
    "bench/test_reward_pool.py",
    "rewards/test_hostile.py",
    "rewards/test_ifeval.py",
    "rewards/test_math_process.py",
    "rewards/test_math_verify.py",
    "rewards/test_patterns.py",
    "rollout/test_killed.py",
    "rollout/test_pool.py",
    "sandbox",
    "tracking/test_sinks.py",
    "test_determinism.py",
    "test_examples",
    "test_readme.py",
    "test_score.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path.relative_to(HERE)).startswith(SLOW):
            item.add_marker(pytest.mark.slow)
