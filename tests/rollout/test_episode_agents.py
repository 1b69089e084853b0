"""Several agents in one attempt: each sees its own messages and gets its own rewards."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from roll.data.collate import collate
from roll.data.templates import Template, character_tokenizer
from roll.errors import ConfigError
from roll.rollout.env_pool import EnvPool
from roll.rollout.environments import InlineEnvs, make_inline_env
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.rollout.episode.transcripts import record_agent
from roll.rollout.source import TaskSource
from roll.types import Group, Message, Sampling, Spec, Status, Task, Trajectory
from tests.rollout.sampler import Sampler
from tests.rollout.talking_envs import Talk
from tests.rollout.test_episode import Notes, play, said, template

WORDS = Template(character_tokenizer("0123456789abcdefgh"))
TASK = Task(id="t", domain="d")
ENVS = "tests.rollout.talking_envs"


def runner(sampler: Any, **changes: Any) -> EpisodeRunner:
    numbers: dict[str, Any] = {"max_seq_len": 16, "max_new_tokens": 2, "max_turns": 9, **changes}
    limits = EpisodeLimits(sampling=Sampling(), stop=frozenset({1}), **numbers)
    return EpisodeRunner(router=sampler, template=WORDS, limits=limits)


def attempted(env: str, make: Any = make_inline_env) -> tuple[Trajectory, Sampler]:
    """An attempt through the border to environments, with replies 1, 2, 3 and 4."""
    sampler = Sampler([WORDS.tokenizer.encode(reply) for reply in "1234"])
    source = TaskSource(name="d", tasks=[TASK], env=Spec(f"{ENVS}:{env}"), reward=None, make_env=make)
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
    return asyncio.run(source.attempt(runner(sampler), attempt)), sampler


def spelled(found: Trajectory) -> list[tuple[str, str, str]]:
    """By segment, whose it is, all of it, and what of it is trained."""
    return [(each.agent, WORDS.decode(each.ids), WORDS.decode(each.ids[each.trained])) for each in found.segments]


def test_each_agent_has_a_separate_conversation() -> None:
    found, sampler = attempted("Talk")
    assert spelled(found) == [("ann", "a1c3", "13"), ("bob", "b2d4", "24")]
    assert [WORDS.decode(asked.ids) for asked in sampler.asked] == ["a", "b", "a1c", "b2d"], "nobody hears the other"
    assert found.status.valid and found.metrics == {"success": 1.0}
    assert len({asked.key for asked in sampler.asked}) == 4, "noise of its own for every turn"


def test_a_reward_belongs_to_the_last_turn_of_its_agent() -> None:
    found, _ = attempted("Talk")
    ann, bob = found.by_agent().values()
    assert [turn.reward for turn in ann.turns] == [1.0, -4.5] and [turn.reward for turn in bob.turns] == [0.25, 2.0]
    assert (ann.reward, bob.reward, found.reward) == (-3.5, 2.25, -1.25)
    assert [[turn.state for turn in own.turns] for own in (ann, bob)] == [["start", "two"], ["one", "three"]]


def test_a_reward_before_the_first_turn_is_added_to_it() -> None:
    found, _ = attempted("Silent")
    assert [turn.reward for turn in found.by_agent()["bob"].turns] == [4.0]
    alone, _ = attempted("Never")
    assert list(alone.by_agent()) == ["ann"] and alone.reward == 1.0, "who never speaks earns nothing"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("Stranger", "turn 0: no agent is called 'eve' (agents: ann, bob)"),
        ("Twins", "two agents share a name"),
        ("Numbers", "agents must be non-empty names"),
    ],
)
def test_an_environment_with_wrong_agent_names_has_failed(env: str, says: str) -> None:
    found, _ = attempted(env)
    assert found.status is Status.ENV_FAILED and says in found.reason


def test_agents_are_known_through_processes_and_limited_starts() -> None:
    async def pooled() -> Trajectory:
        pool = EnvPool(1)
        await pool.start()
        try:
            sampler = Sampler([WORDS.tokenizer.encode(reply) for reply in "1234"])
            source = TaskSource(name="d", tasks=[TASK], env=Spec(f"{ENVS}:Talk"), reward=None, make_env=pool.make)
            attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
            return await source.attempt(runner(sampler), attempt)
        finally:
            await pool.stop()

    expected, _ = attempted("Talk")
    assert spelled(asyncio.run(pooled())) == spelled(expected)
    assert spelled(attempted("Talk", InlineEnvs(start_limit=1).make)[0]) == spelled(expected)


def test_agents_with_separate_policies_have_separate_routers() -> None:
    ann, bob = (Sampler([WORDS.tokenizer.encode(reply) for reply in replies]) for replies in ("13", "24"))
    playing = replace(runner(ann), router_by_agent={"ann": ann, "bob": bob})  # pyright: ignore[reportArgumentType]
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
    found, _ = asyncio.run(playing.run(attempt, Talk(TASK)))
    assert spelled(found) == [("ann", "a1c3", "13"), ("bob", "b2d4", "24")]
    assert len(ann.asked) == len(bob.asked) == 2
    alone = replace(playing, router_by_agent={"ann": Sampler([[5, 1]])})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"no policy plays the agent 'bob' \(played: ann\)"):
        asyncio.run(alone.run(attempt, Talk(TASK)))


def test_a_batch_has_a_trajectory_per_agent_and_groups_them_by_agent() -> None:
    ours, _ = attempted("Talk")
    theirs = replace(attempted("Never")[0], sibling=1)
    found = collate([Group(id=3, birth=0, trajectories=(theirs, ours))])
    assert found.agents == ("ann", "bob", "ann") and found.group.tolist() == [0, 1, 0]
    assert found.rewards.tolist() == [-3.5, 2.25, 1.0] and found.turn_rewards.tolist() == [1.0, -4.5, 0.25, 2.0, 1.0]
    assert found.trajectory.tolist() == [0, 1, 2] and found.turn_trajectory.tolist() == [0, 0, 1, 1, 2]


def test_a_scripted_agent_sees_only_its_own_messages_and_transcripts_show_names() -> None:
    heard: list[list[str]] = []

    def count(messages: Sequence[Message]) -> str:
        heard.append([message.content for message in messages])
        return str(len(messages))

    source = TaskSource(name="d", tasks=[TASK], env=Spec(f"{ENVS}:Talk"), reward=None)
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
    found = asyncio.run(record_agent(source, lambda task, env: count, attempt, max_turns=9))
    assert heard == [["a"], ["b"], ["a", "1", "c"], ["b", "1", "d"]]
    assert [(each.role, each.content) for each in found.messages[:5]] == [
        ("to ann", "a"), ("ann", "1"), ("to bob", "b"), ("bob", "1"), ("to ann", "c"),
    ]  # fmt: skip
    assert found.reward == -1.25 and found.num_turns == 4


def test_after_a_restart_agents_continue_from_the_last_sampled_token() -> None:
    notes, again = Notes(), Notes()
    whole, _ = play(Talk(TASK), template(), recorder=notes)
    assert [turn for turn, _, _ in notes.parts] == [0, 1, 2, 3]
    past = said(notes, cut=2)
    found, asked = play(Talk(TASK), template(), saved_turns=past, recorder=again)
    assert [turn.sampled.tolist() for turn in found.turns] == [turn.sampled.tolist() for turn in whole.turns]
    assert len(asked) == 3 and asked[0].produced == len(past[1].so_far.ids), "the first turn is not sampled again"
    assert again.void == [] and [turn for turn, _, _ in again.parts] == [1, 2, 3]
