"""The reward behind HTTP: its wire, its failures, and the breaker that leaves a dead service alone."""

import asyncio
from typing import Any

import pytest

from roll.errors import ConfigError, RewardFailed
from roll.rewards.base import score_once
from roll.rewards.remote import CircuitBreaker, RemoteReward
from roll.rewards.result import RewardFault, Unscored
from roll.types import Message, Score, Span, Spec, Task
from tests.chat.server import Said, Served, nobody, server

TASK = Task(id="t7", domain="d", messages=(Message("user", "6 x 7?"),), answer=["42"], metadata={"level": 2})


def scored(served: Served, **options: Any) -> Score:
    return asyncio.run(
        RemoteReward(url=f"{served.url}/score", **{"max_retries": 0, **options}).score(TASK, "It is 42.")
    )


def test_the_service_gets_the_task_and_the_reply_and_its_score_is_taken() -> None:
    with server(Said(body={"score": 0.5, "parts": {"clarity": 1}, "comment": "Clear, but wrong."})) as served:
        assert scored(served) == Score(0.5, {"clarity": 1.0}, "Clear, but wrong.")
    task = {"id": "t7", "domain": "d", "messages": [{"role": "user", "content": "6 x 7?"}], "answer": ["42"]}
    assert served.asked == [{"task": {**task, "metadata": {"level": 2}}, "response": "It is 42."}]
    assert served.paths == ["/score"]


def test_the_service_may_give_rewards_of_spans() -> None:
    with server(Said(body={"score": 0.5, "spans": [[0, 5, 1], [6, 9, -0.25]]})) as served:
        assert scored(served).spans == (Span(0, 5, 1.0), Span(6, 9, -0.25))
    with server(Said(body={"score": 0.5, "spans": [[0, 99, 1]]})) as served:
        outcome = asyncio.run(score_once(Spec("remote", {"url": served.url, "max_retries": 0}), TASK, "It is 42."))
    assert "'remote' on task 't7': a span is not within the response (got 0 to 99 of 9 characters)" in outcome.reason


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"ok", "Expecting value"),
        (b"", "Expecting value"),
        ([0.5], "not an object"),
        ({}, "no field 'score'"),
        ({"score": "1"}, "'score' is not a finite number"),
        ({"score": True}, "'score' is not a finite number"),
        ({"score": None}, "'score' is not a finite number"),
        (b'{"score": NaN}', "'score' is not a finite number"),
        (b'{"score": 1e999}', "'score' is not a finite number"),
        ({"score": 1, "reason": "good"}, "unknown field 'reason'"),
        ({"score": 1, "parts": [1]}, "'parts' is not an object"),
        ({"score": 1, "parts": {"a": "b"}}, "'a' is not a finite number"),
        ({"score": 1, "comment": 3}, "'comment' is not text"),
        ({"score": 1, "spans": {}}, "'spans' is not a list of"),
        ({"score": 1, "spans": [[0, 1]]}, "'spans' is not a list of"),
        ({"score": 1, "spans": [[0, 1, "a"]]}, "'spans' is not a finite number"),
        (b"[" * 200_000, "maximum recursion depth"),
    ],
)
def test_an_answer_of_another_form_gives_no_score(body: Any, why: str) -> None:
    with server(Said(body=body)) as served, pytest.raises(RewardFailed, match=why):
        scored(served)


def test_a_request_that_fails_is_retried() -> None:
    with server(Said(status=503, body={}, headers={"Retry-After": "0"}), Said(body={"score": 1})) as served:
        assert scored(served, max_retries=1).value == 1.0
        assert len(served.asked) == 2


def test_a_service_that_hangs_is_given_up_at_the_limit() -> None:
    with server(Said(body={"score": 1}, after_s=30)) as served, pytest.raises(RewardFailed, match="no answer within"):
        scored(served, timeout_s=0.2)


def test_a_service_that_is_down_is_left_alone_after_failures_in_a_row() -> None:
    with server(Said(status=500, body={})) as served:
        remote = RemoteReward(url=served.url, max_retries=0, open_after=2, pause_s=60)
        for _ in range(2):
            with pytest.raises(Unscored, match="status 500") as failed:
                asyncio.run(remote.score(TASK, "42"))
            assert failed.value.fault is RewardFault.INFRASTRUCTURE
        for _ in range(3):
            with pytest.raises(RewardFailed, match="not asked after 2 failures in a row, tried again in 60 s"):
                asyncio.run(remote.score(TASK, "42"))
        assert len(served.asked) == 2


def test_a_service_that_refuses_a_reply_or_a_key_is_not_down() -> None:
    with server(Said(status=422, body={}), Said(status=401, body={}), Said(body={"score": 1})) as served:
        remote = RemoteReward(url=served.url, max_retries=0, open_after=1, pause_s=60)
        for status in (422, 401):
            with pytest.raises(Unscored, match=f"reward 'remote' on task 't7': .*status {status}") as failed:
                asyncio.run(remote.score(TASK, "42"))
            assert failed.value.fault is RewardFault.REWARD
        assert asyncio.run(remote.score(TASK, "42")).value == 1.0


def test_a_recovered_service_is_used_again() -> None:
    with server(Said(status=500, body={}), Said(body={"score": 1})) as served:
        remote = RemoteReward(url=served.url, max_retries=0, open_after=1, pause_s=0)
        with pytest.raises(RewardFailed):
            asyncio.run(remote.score(TASK, "42"))
        assert asyncio.run(remote.score(TASK, "42")).value == 1.0


def test_a_task_that_json_cannot_hold_says_nothing_about_the_service() -> None:
    with server(Said(body={"score": 1})) as served:
        remote = RemoteReward(url=served.url, open_after=1, pause_s=60)
        with pytest.raises(TypeError):
            asyncio.run(remote.score(Task(id="t", domain="d", answer={1, 2}), "42"))
        assert asyncio.run(remote.score(TASK, "42")).value == 1.0


def test_a_breaker_counts_failures_in_a_row_alone() -> None:
    breaker = CircuitBreaker(open_after=2, pause_s=10, clock=lambda: 0.0)
    for alive in (False, True, False, True, False, None):
        breaker.leave(alive=alive, trial=breaker.enter("x"))
    breaker.leave(alive=False, trial=breaker.enter("x"))
    with pytest.raises(RewardFailed, match="x: not asked after 2 failures"):
        breaker.enter("x")


def test_after_the_pause_one_is_let_in_to_try() -> None:
    now = [0.0]
    breaker = CircuitBreaker(open_after=1, pause_s=10, clock=lambda: now[0])
    breaker.leave(alive=False, trial=breaker.enter("x"))
    now[0] = 9.9
    with pytest.raises(RewardFailed):
        breaker.enter("x")
    now[0] = 10.0
    assert breaker.enter("x") is True
    with pytest.raises(RewardFailed, match="right now, by another"):
        breaker.enter("x")
    breaker.leave(alive=False, trial=True)
    with pytest.raises(RewardFailed, match="tried again in 10 s"):
        breaker.enter("x")
    now[0] = 20.0
    breaker.leave(alive=True, trial=breaker.enter("x"))
    assert breaker.enter("x") is False


def test_a_latecomer_does_not_end_the_trial_of_another() -> None:
    now = [0.0]
    breaker = CircuitBreaker(open_after=1, pause_s=10, clock=lambda: now[0])
    early, late = breaker.enter("x"), breaker.enter("x")
    breaker.leave(alive=False, trial=early)
    now[0] = 10.0
    assert breaker.enter("x") is True
    breaker.leave(alive=None, trial=late)
    with pytest.raises(RewardFailed):
        breaker.enter("x")


def test_a_remote_that_cannot_work_is_refused_when_it_is_made() -> None:
    for options in ({"url": "nowhere"}, {"url": nobody(), "timeout_s": 0}, {"url": nobody(), "open_after": 0}):
        with pytest.raises(ConfigError):
            RemoteReward(**options)
