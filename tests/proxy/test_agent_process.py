"""Agents in separate processes: their input, their scoring, and the handling of bad ones."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from roll.data.templates import Template, character_tokenizer
from roll.proxy.agent_process import AgentProcessRunner, read_reward, stderr_excerpt
from roll.proxy.launcher import ProgramLauncher
from roll.rollout.episode.runner import Attempt
from roll.rollout.source import TaskSource
from roll.types import Score, Spec, Status, Task, Trajectory
from tests.proxy.rig import MODEL, TASK, Served, serving

pytestmark = pytest.mark.slow

TEMPLATE = Template(character_tokenizer("0123456789+=? abcdefghijklmnopqrstuvwxyz"))
ASK = """
import json, os, subprocess, sys, time, urllib.request
def ask(text, **more):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}], **more}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""


def length(task: Task, reply: str) -> Score:
    """Number of characters."""
    return Score(float(len(reply)), {"two": float(reply == "two")})


def launcher(served: Served) -> ProgramLauncher:
    """Starts agents; stops with the proxy."""
    launcher = ProgramLauncher()
    served.proxy.services.append(launcher)
    return launcher


async def attempted(served: Served, code: str, task: Task = TASK, **options: Any) -> Trajectory:
    """One attempt by an agent of that code, scored."""
    player = AgentProcessRunner(
        proxy=served.proxy,
        launcher=launcher(served),
        command=("python", "-c", ASK + code),
        slots=asyncio.Semaphore(2),
        **options,
    )
    reward = None if options.get("result") == "reward" else Spec(f"{__name__}:length")
    source = TaskSource(name="d", tasks=[task], env=Spec("single_turn"), reward=reward, attempt_runner=player)
    return await source.attempt(served.runner, Attempt(task=task, sibling=0, number=0, purpose="train", seed=1))


def play(folder: Path, code: str, *replies: str | None, task: Task = TASK, **options: Any) -> Trajectory:
    ids = [None if text is None else TEMPLATE.answer(text, where="a test").tolist() for text in replies]
    limits = {name: options.pop(name) for name in ("max_seq_len", "max_new_tokens") if name in options}

    async def inside() -> Trajectory:
        async with asyncio.timeout(300), serving(folder, TEMPLATE, ids, **limits) as served:
            found = await attempted(served, code, task, **options)
            assert served.router.inflight_counts() == {}, "nobody waits for anything any more"
            return found

    return asyncio.run(inside())


def test_an_agent_receives_its_task_and_is_scored_by_the_last_response(tmp_path: Path) -> None:
    code = 'task = json.load(sys.stdin); assert "answer" not in task; ask(task["messages"][0]["content"]); ask("more")'
    found = play(tmp_path, code, "one", "two")
    assert (found.status, found.reward, found.reason) == (Status.FINISHED, 3.0, "")
    assert found.score is not None and found.score.parts == {"two": 1.0}
    assert found.metrics == {"responses": 2.0, "branches": 2.0}, "two questions that have nothing in common"
    assert TEMPLATE.decode(found.segments[0].ids) == "what is 1+1?one"


def test_an_agent_can_be_scored_by_its_output(tmp_path: Path) -> None:
    assert play(tmp_path, 'print("said:", ask("a"))', "x", result="stdout").reward == len("said: x")


def test_an_agent_that_reports_its_reward_receives_the_answer(tmp_path: Path) -> None:
    code = 'task = json.load(sys.stdin); ask("a"); print("log"); print(json.dumps({"reward": int(task["answer"]) / 4}))'
    assert play(tmp_path, code, "x", result="reward").reward == 0.5


@pytest.mark.parametrize(
    ("written", "reward"),
    [
        ('{"reward": 1}\n', 1.0),
        ('x\n{"reward": -0.5, "more": []}', -0.5),
        ("", None),
        ("0.5", None),
        ('{"reward": true}', None),
        ('{"reward": NaN}', None),
        ('{"reward": 1e300}', None),
        ('{"reward": 1}\nx', None),
        ("[" * 100_000, None),
    ],
)
def test_a_reward_is_a_number_in_the_last_line(written: str, reward: float | None) -> None:
    assert read_reward(written) == reward


def test_an_agent_without_the_expected_reward_has_failed(tmp_path: Path) -> None:
    found = play(tmp_path, 'ask("a"); print("done")', "x", result="reward")
    assert found.status is Status.ENV_FAILED and "its last line is 'done'" in found.reason and found.score is None


def test_a_crashed_agent_has_failed_with_its_stderr_but_not_its_key(tmp_path: Path) -> None:
    code = 'ask("a"); print(os.environ["OPENAI_API_KEY"], file=sys.stderr); raise SystemExit("no luck")'
    found = play(tmp_path, code, "x")
    assert found.status is Status.ENV_FAILED and found.score is None
    assert found.reason == "agent of task 't1': exit code 1; standard error ends with: *** | no luck"


def test_an_agent_that_hangs_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    code = f'child = subprocess.Popen(["sleep", "60"]); open({str(mark)!r}, "w").write(str(child.pid)); ask("a")'
    began = time.monotonic()
    found = play(tmp_path, code, None, timeout_s=4)
    assert found.status is Status.ENV_FAILED and "killed after 4 s" in found.reason
    assert time.monotonic() - began < 40
    with pytest.raises(ProcessLookupError):
        while True:  # the group is gone once its reaper has been there
            os.kill(int(mark.read_text()), 0)
            time.sleep(0.05)
            assert time.monotonic() - began < 50


def test_an_agent_that_sends_no_request_has_failed(tmp_path: Path) -> None:
    found = play(tmp_path, "pass")
    assert found.status is Status.ENV_FAILED and "without a response of the model" in found.reason


def test_an_agent_that_cannot_be_started_has_failed(tmp_path: Path) -> None:
    async def inside() -> Trajectory:
        async with serving(tmp_path, TEMPLATE) as served:
            player = AgentProcessRunner(
                proxy=served.proxy, launcher=launcher(served), command=("no-such-agent",), slots=asyncio.Semaphore(1)
            )
            attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
            return (await player.run_attempt(served.runner, attempt))[0]

    found = asyncio.run(inside())
    assert found.status is Status.ENV_FAILED and "no-such-agent" in found.reason


def test_an_attempt_with_a_full_context_is_truncated_and_scored_even_if_the_agent_crashes(tmp_path: Path) -> None:
    found = play(tmp_path, 'ask("a"); ask("b" * 100)', "one", max_seq_len=60, max_new_tokens=20)
    assert (found.status, found.reason, found.reward) == (Status.TRUNCATED, "the context is full", 3.0)
    found = play(tmp_path, 'ask("a")', "long reply", max_new_tokens=4)
    assert (found.status, found.reason, found.reward) == (
        Status.TRUNCATED,
        "the last response reached max_new_tokens",
        4.0,
    )
    found = play(tmp_path, 'ask("a", max_tokens=4)', "long reply")
    assert (found.status, found.reason) == (Status.FINISHED, ""), "the agent wanted no more"


def test_a_cancelled_attempt_leaves_no_process_and_no_request(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f'ask("a"); open({str(mark)!r}, "w").write(str(os.getpid())); time.sleep(60)'

    async def inside() -> None:
        async with asyncio.timeout(300), serving(tmp_path, TEMPLATE, [TEMPLATE.answer("one", where="t")]) as served:
            playing = asyncio.ensure_future(attempted(served, code))
            while not mark.exists() or not mark.read_text():
                await asyncio.sleep(0.02)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            with pytest.raises(ProcessLookupError):
                os.kill(int(mark.read_text()), 0)
            assert served.router.counts.unrecorded == 4 and served.router.inflight_counts() == {}

    asyncio.run(inside())


def test_turns_of_an_earlier_process_are_replayed_without_sampling(tmp_path: Path) -> None:
    async def inside() -> None:
        replies = [TEMPLATE.answer(text, where="t").tolist() for text in ("one", "new")]
        async with asyncio.timeout(300), serving(tmp_path, TEMPLATE, replies) as served:
            first = await attempted(served, 'ask("a"); ask("b")')
            past = [_said(turn) for turn in first.turns]
            player = AgentProcessRunner(
                proxy=served.proxy,
                launcher=launcher(served),
                command=("python", "-c", ASK + 'ask("a"); ask("b")'),
                slots=asyncio.Semaphore(1),
            )
            again, _ = await player.run_attempt(
                served.runner,
                Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1, saved_turns=tuple(past)),
            )
            assert len(served.generator.asked) == 2, "nothing is sampled twice"
            assert [turn.sampled.tolist() for turn in again.turns] == replies

    asyncio.run(inside())


def _said(turn: Any) -> Any:
    from roll.rollout.episode.conversation import checksum
    from roll.rollout.episode.runner import SavedTurn
    from roll.serving.dispatch import Sampled

    so_far = Sampled(ids=turn.sampled, logprobs=turn.sampler_logprobs, versions=turn.versions)
    return SavedTurn(checksum=checksum(turn.observation.tolist()), so_far=so_far)


def test_an_agent_gets_the_address_and_no_secret_variables(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RUN_TOKEN", "a secret of the run")
    code = 'ask("a"); print(json.dumps([os.environ.get("RUN_TOKEN"), os.environ["OPENAI_MODEL"]]))'

    async def inside() -> str:
        async with serving(tmp_path, TEMPLATE, [TEMPLATE.answer("x", where="t")]) as served:
            player = AgentProcessRunner(
                proxy=served.proxy,
                launcher=launcher(served),
                command=("python", "-c", ASK + code),
                slots=asyncio.Semaphore(1),
                hidden_variables=frozenset({"RUN_TOKEN"}),
                result="stdout",
            )
            attempt = Attempt(task=TASK, sibling=0, number=0, purpose="train", seed=1)
            return (await player.run_attempt(served.runner, attempt))[1]

    assert json.loads(asyncio.run(inside())) == [None, MODEL]


def test_a_traceback_is_shortened_to_its_last_line_and_the_agents_frame() -> None:
    written = """Traceback (most recent call last):
  File "agent.py", line 5, in <module>
    client.ask()
  File "/x/site-packages/openai/client.py", line 1248, in request
    raise self._error(...)
openai.NotFoundError: no model 'x'
"""
    assert stderr_excerpt(written) == "openai.NotFoundError: no model 'x' (File \"agent.py\", line 5, in <module>)"
