"""Two policies in one run: each is trained, published, saved and resumed separately; a mix-up ends the run by name."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.cluster.inline import InlineCluster
from roll.commands import train as commands
from roll.commands.evaluate import evaluate
from roll.commands.lifecycle import Embedded
from roll.commands.sft import sft
from roll.config.load import LoadedRun, load
from roll.config.schema import Run
from roll.engines.base import Generator, Trainer
from roll.engines.native.decoder import Decoder
from roll.envs.tic_tac_toe import TicTacToe
from roll.errors import ConfigError, RunStopped
from roll.explain.run import explain
from roll.journal.events import WeightsPublished
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Journal, Reader
from roll.preflight import preflight
from roll.report.samples import SampleQuery, show
from roll.serving.publisher import Publisher
from roll.serving.router import Router
from roll.weights.channel import Mailbox
from roll.weights.huggingface import read_tensors
from roll.wiring.models import build_roles
from roll.wiring.run import build_publisher
from tests.engines.models import small, trainer
from tests.serving.test_attestation import CANARY, Turned, serving

pytestmark = pytest.mark.slow

FUSE: list[Callable[[], None]] = []
"""Called at the start of the next games, last entry first."""
RUN = f"""\
name: run
deterministic: true
threads: 1
steps: 3
model:
  template: last
  shape: {{alphabet: "xo012345678", hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 16, max_seq_len: 16}}
algorithm: {{recipe: gigpo, minibatches: 2}}
tasks: [{{name: game, env: {{kind: "{__name__}:Game", terse: true}}}}]
rollout: {{groups_per_step: 4, group_size: 4, max_seq_len: 16, max_new_tokens: 2, stop: ["0", "1", "2", "3", "4", "5"]}}
actor_train: {{optimizer: {{lr: 0.01}}}}
policies:
  - {{name: crosses, agents: [x]}}
  - {{name: rounds, agents: [o], optimizer: {{lr: 0.02}}}}
validation:
  tasks:
    - {{name: game, data: {{kind: seeds, count: 4}}, env: {{kind: "{__name__}:Game", opponent: random, terse: true}}}}
checkpoint: {{every: 1}}
tracking: {{tensorboard: false}}
"""


class Game(TicTacToe):
    """Tic-tac-toe that may be interrupted."""

    async def start(self) -> Any:
        if FUSE:
            FUSE.pop()()
        return await super().start()


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    FUSE.clear()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def loaded(folder: Path, *changes: str) -> LoadedRun:
    (folder / "run.yaml").write_text(RUN, encoding="utf-8")
    run = load(folder / "run.yaml", [f"directory={folder}", *changes])
    preflight(run)
    return run


def model(run: Path, policy: str) -> dict[str, torch.Tensor]:
    return dict(read_tensors(run / "model" / "policies" / policy))


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def lines(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith(("time", "speed/"))} for row in rows]


def test_each_policy_learns_from_its_own_agent_with_its_own_optimizer(tmp_path: Path) -> None:
    commands.train(loaded(tmp_path), overwrite=False)
    run = tmp_path / "run"
    last = lines(run)[-1]
    for name, lr in (("crosses", 0.01), ("rounds", 0.02)):
        assert last[f"policy/{name}/loss/lr"] == lr and last[f"policy/{name}/loss/grad_norm"] > 0
        assert last[f"policy/{name}/sampler_mismatch/max"] < 1e-4, "its tokens were sampled by its own weights"
    assert "loss/lr" not in last and last["tokens/trained"] == sum(
        last[f"policy/{name}/tokens/trained"] for name in ("crosses", "rounds")
    )
    assert not equal(model(run, "crosses"), model(run, "rounds"))
    with closing(Reader(run / "journal.db")) as journal:
        published = [entry.event for entry in journal.events(WeightsPublished)]
        trajectories = [
            each.trajectory for each in journal.trajectories(TrajectoryQuery(step=3)) if each.trajectory is not None
        ]
    assert [(event.version, event.digest.split()[0]) for event in published] == [
        (version, name) for version in range(4) for name in ("crosses", "rounds")
    ]
    assert len({event.digest for event in published}) == 8
    assert {segment.agent for each in trajectories for segment in each.segments} == {"x", "o"}
    assert any("--- o, turn 1: sampled" in text and "x " in text for text in show(run, SampleQuery(last=20)))


@pytest.mark.parametrize("staleness", [0, 1])
def test_both_policies_train_above_staleness_0_too(staleness: int, tmp_path: Path) -> None:
    changes = [f"rollout.max_staleness={staleness}", f"deterministic={'false' if staleness else 'true'}", "steps=2"]
    commands.train(loaded(tmp_path, *changes), overwrite=False)
    last = lines(tmp_path / "run")[-1]
    assert last["staleness/max"] <= staleness and last["policy/crosses/loss/grad_norm"] > 0


def nothing() -> None: ...


def press_ctrl_c(_: Path) -> None:
    signal.raise_signal(signal.SIGINT)


def pull_the_plug(run: Path) -> None:
    deadline = time.monotonic() + 60
    while not (run / "checkpoints/step-1").exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # another thread writes it
    raise KeyboardInterrupt


@pytest.mark.parametrize("event", [press_ctrl_c, pull_the_plug], ids=["asked to leave", "killed"])
def test_a_resumed_run_of_two_policies_equals_the_unbroken_one(event: Callable[[Path], None], tmp_path: Path) -> None:
    commands.train(loaded(tmp_path, "name=whole"), overwrite=False)
    FUSE[:] = [
        partial(event, tmp_path / "broken"),
        *[nothing] * (4 + 16 + 6),
    ]  # in the second step, after 4 validation games and 16 of the first step
    with contextlib.suppress(KeyboardInterrupt):
        commands.train(loaded(tmp_path, "name=broken"), overwrite=False, embedded=Embedded())
    assert not FUSE and not (tmp_path / "broken" / "model").exists(), "the run was interrupted"
    commands.resume(tmp_path / "broken", [])
    for name in ("crosses", "rounds"):
        assert equal(model(tmp_path / "whole", name), model(tmp_path / "broken", name))
    assert lines(tmp_path / "whole") == lines(tmp_path / "broken")


def test_exported_policies_can_be_loaded_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.train(loaded(tmp_path, "steps=1"), overwrite=False)
    models = enumerate(("crosses", "rounds"))
    paths = [f"policies.{index}.path={tmp_path}/run/model/policies/{name}" for index, name in models]
    rows = tmp_path / "rows.jsonl"
    evaluate(loaded(tmp_path, *paths), output=rows)
    assert "chance" not in capsys.readouterr().err
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == 4 and all(row["metrics"]["won"] + row["metrics"]["lost"] <= 1 for row in found)


class Crossed(Mailbox):
    """Delivers the weights of another policy."""

    def __init__(self, other: Decoder) -> None:
        super().__init__()
        self.other = other

    def receive(self, *, version: int) -> Iterable[tuple[str, torch.Tensor]]:
        return list(self.other.named_tensors())


async def published(run: Run, folder: Path, cross: Callable[[Any, Any], None]) -> None:
    """Publish both policies once, after `cross` has mixed up their generators or channels."""
    roles = build_roles(run, run.actor_train.optimizer, 1, supervised=True)
    first, second = (each.generators._workers[0] for each in roles.policies.values())
    cross(first, second)
    await roles.start()
    with closing(Journal(folder / "journal.db")) as journal:
        publishers = [build_publisher(each, journal, name) for name, each in roles.policies.items()]
        for publisher in publishers:
            await publisher.publish(0)


def swap_modules(first: Any, second: Any) -> None:
    first.decoder, second.decoder = second.decoder, first.decoder


def cross_mail(first: Any, second: Any) -> None:
    first.channel, second.channel = Crossed(second.decoder), Crossed(first.decoder)


def test_right_weights_are_published_and_attested(tmp_path: Path) -> None:
    asyncio.run(published(loaded(tmp_path).run, tmp_path, lambda first, second: None))


@pytest.mark.parametrize(("staleness", "cross"), [(0, swap_modules), (1, cross_mail)], ids=["shared", "travelling"])
def test_the_weights_of_another_policy_are_refused_by_name(
    staleness: int, cross: Callable[[Any, Any], None], tmp_path: Path
) -> None:
    run = loaded(tmp_path, f"rollout.max_staleness={staleness}", "deterministic=false").run
    with pytest.raises(RunStopped, match="policy 'crosses', version 0: generator 0 does not hold"):
        asyncio.run(published(run, tmp_path, cross))


def test_a_frozen_policy_plays_and_does_not_change(tmp_path: Path) -> None:
    commands.train(loaded(tmp_path, "policies.1={name: rounds, agents: [o], frozen: true}"), overwrite=False)
    last = lines(tmp_path / "run")[-1]
    assert last["tokens/trained"] == last["policy/crosses/tokens/trained"] > 0
    assert not [name for name in last if name.startswith("policy/rounds")]
    with closing(Reader(tmp_path / "run" / "journal.db")) as journal:
        digests = [entry.event.digest for entry in journal.events(WeightsPublished)]
    assert len({digest for digest in digests if digest.startswith("crosses")}) == 4
    assert len({digest for digest in digests if digest.startswith("rounds")}) == 1


def test_the_canary_names_the_policy_that_computes_differently(tmp_path: Path) -> None:
    async def go(journal: Journal) -> None:
        channel, decoder = Mailbox(), small()
        learning = trainer(decoder, channel=channel)
        generators = InlineCluster[Generator]([serving(Turned, channel, decoder)])
        await learning.start()
        await generators.each(Generator.start)
        publisher = Publisher(
            trainers=InlineCluster[Trainer]([learning]),
            generators=generators,
            router=Router(generators),
            journal=journal,
            canary=CANARY,
            policy="rounds",
        )
        await publisher.publish(0)

    with (
        closing(Journal(tmp_path / "journal.db")) as journal,
        pytest.raises(RunStopped, match=r"policy 'rounds', version 0: generator 0 .* computes differently"),
    ):
        asyncio.run(go(journal))


def test_one_policy_for_both_agents_needs_no_section(tmp_path: Path) -> None:
    commands.train(loaded(tmp_path, "policies=[]", "steps=1"), overwrite=False)
    last = lines(tmp_path / "run")[-1]
    assert "loss/grad_norm" in last and not [name for name in last if name.startswith("policy/")]
    assert {"domain/game/reward/x", "domain/game/reward/o"} <= last.keys()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("policies.1.name=crosses", "policies: two policies share the name 'crosses'"),
        ("policies.1.agents=[x]", "policies: two policies play the agent 'x'"),
        ("policies=[{name: crosses, agents: [x, o], frozen: true}]", "policies: all of them are frozen"),
        ("actor_infer.backend=vllm", "policies: only native engines have several (got backend vllm)"),
        (
            "tasks.0={name: game, agent: {command: [play]}, reward: exact, data: tasks.jsonl}",
            "policies: an agent program runs game with one policy",
        ),
        ("algorithm=ppo", "policies: the algorithm needs a critic"),
        ("actor_train.lora={rank: 2}", "policies: each has whole weights"),
        ("policies.1.path=nowhere", "policies.1.path: no such directory: nowhere"),
        ("policies.1.agent=[x]", "unknown key 'policies.1.agent'; did you mean 'agents'?"),
    ],
)
def test_unsupported_settings_of_policies_are_refused_in_one_line(change: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, change)
    assert says in str(refused.value)


def test_agents_and_learning_rates_of_policies_are_explained(tmp_path: Path) -> None:
    text = " ".join(explain(loaded(tmp_path, "policies.0.frozen=true").run).split())
    assert "crosses agents x; initial weights of the run's model; frozen;" in text
    assert "rounds agents o; initial weights of the run's model; learning rate 0.02;" in text


def test_an_agent_without_a_policy_ends_the_run_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no policy plays the agent 'o'"):
        commands.train(loaded(tmp_path, "policies=[{name: crosses, agents: [x]}]"), overwrite=False)


def test_sft_of_several_policies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SFT trains one model"):
        sft(loaded(tmp_path), overwrite=False)
