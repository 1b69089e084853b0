"""The section `envs`: its checks and its explanation."""

from pathlib import Path
from typing import Any

import pytest

from roll.config.load import load
from roll.config.schema import Run
from roll.errors import ConfigError
from roll.explain.run import explain
from roll.rollout.env_pool import EnvPool
from roll.rollout.environments import InlineEnvs
from roll.wiring.services import build_environments

TEXT = """\
model: {shape: {}}
algorithm: grpo
tasks: [{name: guess, env: guess_number}]
rollout: {max_seq_len: 64, max_new_tokens: 8}
"""


def run(folder: Path, *overrides: str) -> Run:
    (folder / "run.yaml").write_text(TEXT)
    return load(folder / "run.yaml", overrides).run


def test_memory_without_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory_mb: the controller's own memory has no limit; set workers"):
        run(tmp_path, "envs.memory_mb=100")


@pytest.mark.parametrize(
    "overrides, expected",
    [
        ([], "in the controller's thread; without a timeout"),
        (
            ["envs.workers=2", "envs.max_concurrent_starts=4", "rollout.env_timeout_s=3"],
            "in 2 separate processes, 4 starting at once; a call over 3 s has failed; a process that does not stop it "
            "within 10 s is killed",
        ),
        (["executor=ray", "envs={workers: 2, executor: ray}"], "in 2 Ray processes; without a timeout"),
    ],
)
def test_the_processes_of_environments_are_explained(tmp_path: Path, overrides: list[str], expected: str) -> None:
    text = " ".join(explain(run(tmp_path, *overrides)).split())
    assert f"environments {expected}" in text


def test_the_keys_reach_the_pool_of_environments(tmp_path: Path) -> None:
    pool: Any = build_environments(
        run(tmp_path, "envs.workers=2", "envs.memory_mb=100", "envs.grace_s=3", "envs.start_timeout_s=7")
    )
    assert isinstance(pool, EnvPool)
    assert (pool.limits.memory_bytes, pool.limits.grace_s, pool.limits.start_timeout_s) == (100 * 2**20, 3.0, 7.0)
    assert (pool.limits.first_start.max_deaths, pool.limits.first_start.setting) == (2, "rollout.max_retries")
    assert isinstance(build_environments(run(tmp_path)), InlineEnvs)
