"""Which tests are whole processes or whole runs: `make test` runs them, `make check` leaves them out."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = (
    "benchmarks/test_environment.py",
    "benchmarks/test_proxy.py",
    "benchmarks/test_reward_pool.py",
    "benchmarks/test_sandbox.py",
    "cli",
    "cluster/test_faults.py",
    "cluster/test_host.py",
    "cluster/test_processes.py",
    "cluster/test_ray.py",
    "cluster/test_ray_envs.py",
    "cluster/test_ray_policies.py",
    "cluster/test_ray_runs.py",
    "conformance",
    "data/test_detokenizer.py",
    "data/test_encoder.py",
    "data/test_tables.py",
    "engines/native/test_generator.py",
    "engines/native/test_lora.py",
    "engines/test_lora_run.py",
    "envs/test_faults.py",
    "envs/test_frozen_lake.py",
    "envs/test_repair.py",
    "envs/test_worlds_played.py",
    "journal/test_store.py",
    "placement/test_turns.py",
    "proxy/test_exactness.py",
    "proxy/test_agent_process.py",
    "proxy/test_server.py",
    "proxy/test_training.py",
    "proxy/test_warm.py",
    "rewards/test_choice.py",
    "rewards/test_code.py",
    "rewards/test_f1.py",
    "rewards/test_hostile.py",
    "rewards/test_ifeval.py",
    "rewards/test_json_schema.py",
    "rewards/test_math_process.py",
    "rewards/test_math_verify.py",
    "rewards/test_patterns.py",
    "rollout/test_env_pool.py",
    "rollout/test_episode_exactness.py",
    "rollout/test_killed.py",
    "rollout/test_reward_pool.py",
    "sandbox",
    "sim/test_run.py",
    "test_checkpoint.py",
    "test_determinism.py",
    "commands/test_doctor.py",
    "test_examples",
    "test_readme.py",
    "commands/test_score.py",
    "tools/test_mcp.py",
    "tools/test_programs.py",
    "tracking/test_sinks.py",
    "weights/test_gloo.py",
    "wiring/test_conversations.py",
    "commands/test_play.py",
    "wiring/test_policies.py",
    "wiring/test_proxy.py",
)
TOGETHER = {f"cluster/test_{name}.py": "ray" for name in ("faults", "ray", "ray_envs", "ray_runs")} | {
    "learning/test_arithmetic.py": "arithmetic"
}
"""Files whose tests share something that takes long to make, by its name; those of each run in one process."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Slow files that nobody wants are not even imported: that alone takes seconds."""
    unwanted = "not slow" in config.getoption("markexpr") and collection_path != HERE
    return True if unwanted and str(collection_path.relative_to(HERE)).startswith(SLOW) else None


@pytest.hookimpl(tryfirst=True)  # before groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = str(item.path.relative_to(HERE))
        if name.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if name in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(TOGETHER[name]))
    items.sort(key=lambda item: not item.path.match("learning/test_arithmetic.py"))  # the longest first
