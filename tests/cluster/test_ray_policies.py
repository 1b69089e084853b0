"""Two policies in separate processes: the same run as in one process, each policy in its own workers."""

from pathlib import Path
from typing import Any

import pytest

from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from tests.cluster.test_ray_runs import _settings_of_torch, untimed  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

RUN = """\
deterministic: true
threads: 1
steps: 2
model:
  template: last
  shape: {alphabet: "xo012345678", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 16, max_seq_len: 16}
algorithm: gigpo
tasks: [{name: game, env: {kind: tic_tac_toe, terse: true}}]
rollout: {groups_per_step: 2, group_size: 6, max_seq_len: 16, max_new_tokens: 2, stop: ["0", "1", "2", "3", "4", "5"]}
actor_train: {optimizer: {lr: 0.01}}
policies: [{name: crosses, agents: [x]}, {name: rounds, agents: [o]}]
tracking: {tensorboard: false}
"""


@pytest.mark.sweep
@pytest.mark.usefixtures("_settings_of_torch")
def test_two_policies_on_ray_equal_two_inline_to_the_last_digit(ray_address: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    found: list[list[dict[str, Any]]] = []
    for executor in ("inline", "ray"):
        loaded = load(tmp_path / "run.yaml", [f"directory={tmp_path}", f"name={executor}", f"executor={executor}"])
        preflight(loaded)
        commands.train(loaded, overwrite=False)
        found.append(untimed(tmp_path / executor))
    assert found[0] == found[1] and found[0][-1]["policy/rounds/loss/grad_norm"] > 0
    logs = {path.name for path in (tmp_path / "ray" / "logs").iterdir()}
    assert logs == {f"{role}-{name}-0.log" for role in ("actor_train", "actor_infer") for name in ("crosses", "rounds")}
    assert not list((tmp_path / "ray").glob("weights*"))
