"""Several agents in one attempt: each hears what is said to it, and earns what it earned."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from roll.data.collate import collate
from roll.data.templates import Template, character_tokenizer
from roll.errors import ConfigError
from roll.rollout.env_pool import EnvPool
from roll.rollout.environments import InlineEnvs, make_env
from roll.rollout.episode.runner import Attempt, EpisodeRunner, Limits
from roll.rollout.episode.transcripts import scripted
from roll.rollout.source import Source
from roll.types import Call, Group, Message, Sampling, Status, Task, Trajectory
from tests.rollout.sampler import Sampler
from tests.rollout.talking_envs import Talk
from tests.rollout.test_episode import Notes, play, said, template

WORDS = Template(character_tokenizer("0123456789abcdefgh"))
TASK = Task(id="t", domain="d")
ENVS = "tests.rollout.talking_envs"


def runner(sampler: Any, **changes: Any) -> EpisodeRunner:
    numbers: dict[str, Any] = {"context": 16, "max_new_tokens": 2, "max_turns": 9, **changes}
    limits = Limits(sampling=Sampling(), stop=frozenset({1}), **numbers)
    return EpisodeRunner(router=sampler, template=WORDS, limits=limits)


def attempted(env: str, make: Any = make_env) -> tuple[Trajectory, Sampler]:
    """An attempt through the border to environments, with replies 1, 2, 3 and 4."""
    sampler = Sampler([WORDS.tokenizer.encode(reply) for reply in "1234"])
    source = Source(name="d", tasks=[TASK], env=Call(f"{ENVS}:{env}"), reward=None, make=make)
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
    return asyncio.run(source.attempt(runner(sampler), attempt)), sampler


def spelled(found: Trajectory) -> list[tuple[str, str, str]]:
    """By segment, whose it is, all of it, and what of it is trained."""
    return [(each.agent, WORDS.decode(each.ids), WORDS.decode(each.ids[each.trained])) for each in found.segments]


def test_each_agent_has_a_conversation_of_its_own() -> None:
    found, sampler = attempted("Talk")
    assert spelled(found) == [("ann", "a1c3", "13"), ("bob", "b2d4", "24")]
    assert [WORDS.decode(asked.ids) for asked in sampler.asked] == ["a", "b", "a1c", "b2d"], "nobody hears the other"
    assert found.status.valid and found.metrics == {"success": 1.0}
    assert len({asked.key for asked in sampler.asked}) == 4, "noise of its own for every turn"


def test_a_reward_belongs_to_the_last_turn_of_whom_it_is_for() -> None:
    found, _ = attempted("Talk")
    ann, bob = found.by_agent().values()
    assert [turn.reward for turn in ann.turns] == [1.0, -4.5] and [turn.reward for turn in bob.turns] == [0.25, 2.0]
    assert (ann.reward, bob.reward, found.reward) == (-3.5, 2.25, -1.25)
    assert [[turn.state for turn in own.turns] for own in (ann, bob)] == [["start", "two"], ["one", "three"]]


def test_what_is_earned_before_the_first_turn_is_part_of_it() -> None:
    found, _ = attempted("Silent")
    assert [turn.reward for turn in found.by_agent()["bob"].turns] == [4.0]
    alone, _ = attempted("Never")
    assert list(alone.by_agent()) == ["ann"] and alone.reward == 1.0, "who never speaks earns nothing"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("Stranger", "turn 0: nobody in it is called 'eve' (agents: ann, bob)"),
        ("Twins", "two of its agents share a name"),
        ("Numbers", "its agents are no names"),
    ],
)
def test_an_environment_that_errs_about_its_agents_has_failed(env: str, says: str) -> None:
    found, _ = attempted(env)
    assert found.status is Status.ENV_FAILED and says in found.reason


def test_agents_are_known_through_processes_and_limited_starts() -> None:
    async def pooled() -> Trajectory:
        pool = EnvPool(1)
        await pool.start()
        try:
            sampler = Sampler([WORDS.tokenizer.encode(reply) for reply in "1234"])
            source = Source(name="d", tasks=[TASK], env=Call(f"{ENVS}:Talk"), reward=None, make=pool.make)
            attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
            return await source.attempt(runner(sampler), attempt)
        finally:
            await pool.stop()

    expected, _ = attempted("Talk")
    assert spelled(asyncio.run(pooled())) == spelled(expected)
    assert spelled(attempted("Talk", InlineEnvs(start_limit=1).make)[0]) == spelled(expected)


def test_agents_have_routers_of_their_own_where_they_have_policies() -> None:
    ann, bob = (Sampler([WORDS.tokenizer.encode(reply) for reply in replies]) for replies in ("13", "24"))
    playing = replace(runner(ann), router_of={"ann": ann, "bob": bob})  # pyright: ignore[reportArgumentType]
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
    found, _ = asyncio.run(playing.run(attempt, Talk(TASK)))
    assert spelled(found) == [("ann", "a1c3", "13"), ("bob", "b2d4", "24")]
    assert len(ann.asked) == len(bob.asked) == 2
    alone = replace(playing, router_of={"ann": Sampler([[5, 1]])})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"nobody plays the agent 'bob' \(played: ann\)"):
        asyncio.run(alone.run(attempt, Talk(TASK)))


def test_a_batch_has_a_trajectory_for_each_agent_and_compares_like_with_like() -> None:
    ours, _ = attempted("Talk")
    theirs = replace(attempted("Never")[0], sibling=1)
    found = collate([Group(id=3, birth=0, trajectories=(theirs, ours))])
    assert found.agents == ("ann", "bob", "ann") and found.group.tolist() == [0, 1, 0]
    assert found.rewards.tolist() == [-3.5, 2.25, 1.0] and found.turn_rewards.tolist() == [1.0, -4.5, 0.25, 2.0, 1.0]
    assert found.trajectory.tolist() == [0, 1, 2] and found.turn_trajectory.tolist() == [0, 0, 1, 1, 2]


def test_a_scripted_agent_hears_only_what_is_said_to_it_and_names_stand_in_the_transcript() -> None:
    heard: list[list[str]] = []

    def count(messages: Sequence[Message]) -> str:
        heard.append([message.content for message in messages])
        return str(len(messages))

    source = Source(name="d", tasks=[TASK], env=Call(f"{ENVS}:Talk"), reward=None)
    attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
    found = asyncio.run(scripted(source, lambda task, env: count, attempt, max_turns=9))
    assert heard == [["a"], ["b"], ["a", "1", "c"], ["b", "1", "d"]]
    assert [(each.role, each.content) for each in found.messages[:5]] == [
        ("to ann", "a"), ("ann", "1"), ("to bob", "b"), ("bob", "1"), ("to ann", "c"),
    ]  # fmt: skip
    assert found.reward == -1.25 and found.num_turns == 4


def test_after_a_restart_agents_go_on_from_the_last_token_of_whoever_spoke() -> None:
    notes, again = Notes(), Notes()
    whole, _ = play(Talk(TASK), template(), scribe=notes)
    assert [turn for turn, _, _ in notes.parts] == [0, 1, 2, 3]
    past = said(notes, cut=2)
    found, asked = play(Talk(TASK), template(), past=past, scribe=again)
    assert [turn.sampled.tolist() for turn in found.turns] == [turn.sampled.tolist() for turn in whole.turns]
    assert len(asked) == 3 and asked[0].produced == len(past[1].so_far.ids), "the first turn is not sampled again"
    assert again.void == [] and [turn for turn, _, _ in again.parts] == [1, 2, 3]
