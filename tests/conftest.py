"""Which tests are whole processes or whole runs: `make test` runs them, `make check` leaves them out."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = (
    "bench/test_environment.py",
    "cli",
    "cluster/test_faults.py",
    "cluster/test_host.py",
    "cluster/test_processes.py",
    "cluster/test_ray.py",
    "cluster/test_ray_envs.py",
    "cluster/test_ray_runs.py",
    "conformance",
    "envs/test_faults.py",
    "rewards/test_code.py",
    "bench/test_sandbox.py",
    "bench/test_reward_pool.py",
    "rewards/test_hostile.py",
    "rewards/test_ifeval.py",
    "rewards/test_math_process.py",
    "rewards/test_math_verify.py",
    "rewards/test_patterns.py",
    "rollout/test_env_pool.py",
    "rollout/test_killed.py",
    "rollout/test_pool.py",
    "sandbox",
    "tracking/test_sinks.py",
    "test_determinism.py",
    "test_examples",
    "test_readme.py",
    "test_score.py",
)
TOGETHER = {f"cluster/test_{name}.py": "ray" for name in ("faults", "ray", "ray_envs", "ray_runs")}
"""Files whose tests share something that takes long to make, by its name; those of each run in one process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = str(item.path.relative_to(HERE))
        if name.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if name in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(TOGETHER[name]))
