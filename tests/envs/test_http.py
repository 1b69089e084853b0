"""An environment behind a real local server, and servers that misbehave."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from roll.envs.base import StepResult
from roll.envs.guarded import GuardedEnv
from roll.envs.guess_number import GuessNumber
from roll.errors import ConfigError, EnvFailed
from roll.registry import ENVS
from roll.types import Message, Spec, Task
from tests.chat.server import Said, nobody, server

TASK = Task(id="t", domain="d", seed=3)


class Games:
    """The server's part: one game per start."""

    def __init__(self) -> None:
        self.open: dict[str, GuessNumber] = {}
        self.tasks: list[dict[str, Any]] = []

    async def start(self, task: dict[str, Any]) -> dict[str, Any]:
        self.tasks.append(task)
        name = f"game-{len(self.tasks)}"
        self.open[name] = GuessNumber(Task(id=task["id"], domain=task["domain"], seed=task["seed"]))
        return {"id": name, "messages": plain(await self.open[name].start())}

    async def step(self, id: str, response: str) -> dict[str, Any]:
        result = await self.open[id].step(response)
        fields = {"reward": result.reward, "done": result.done, "state": result.state, "metrics": result.metrics}
        return {"messages": plain(result.messages), **fields}

    async def close(self, id: str) -> dict[str, Any]:
        del self.open[id]
        return {}


def plain(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


@contextlib.contextmanager
def served(games: Games) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(asyncio.run(getattr(games, self.path.rpartition("/")[2])(**asked))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    service = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.daemon_threads = True
    thread = threading.Thread(target=service.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{service.server_address[1]}/games/"
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


async def play(env: Any, *replies: str) -> tuple[tuple[Message, ...], list[StepResult]]:
    opening = await env.start()
    results = [await env.step(reply) for reply in replies]
    await env.close()
    await env.close()
    return opening, results


def test_a_game_behind_http_is_the_game_itself() -> None:
    replies = ("5", "x", "2", "9")
    games = Games()
    with served(games) as url:
        there = asyncio.run(play(ENVS["http"](TASK, url=url), *replies))
        assert not games.open, "and it is closed"
    assert there == asyncio.run(play(GuessNumber(TASK), *replies))
    assert games.tasks == [{"id": "t", "domain": "d", "messages": [], "answer": None, "metadata": {}, "seed": 3}]


def test_the_messages_of_a_chat_arrive_in_the_openai_format_without_the_reply_to_learn_from() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    called = Message("assistant", "", json.dumps({"tool_calls": [call]}))
    games, task = Games(), replace(TASK, messages=(Message("user", "2?"), called), reply=Message("assistant", "2"))
    with served(games) as url:
        asyncio.run(play(ENVS["http"](task, url=url)))
    assert games.tasks[0].keys() == {"id", "domain", "messages", "answer", "metadata", "seed"}
    assert games.tasks[0]["messages"] == [
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


def test_a_game_that_is_done_cannot_go_on_and_one_that_never_began_needs_no_close() -> None:
    with served(Games()) as url:
        env = ENVS["http"](TASK, url=url)
        asyncio.run(env.close())
        with pytest.raises(AssertionError, match="single-use"):
            asyncio.run(env.step("5"))


OPEN = Said(body={"id": "1", "messages": [{"role": "user", "content": "?"}]})


def reason(*answers: Said, steps: int = 1, **arguments: Any) -> tuple[str, list[str]]:
    """Why an attempt at this server fails, and the requested paths."""

    async def attempt(url: str) -> None:
        env = GuardedEnv(Spec("http", {"url": url, **arguments}), TASK)
        try:
            await env.start()
            for _ in range(steps):
                await env.step("5")
        finally:
            await env.close()

    with server(*answers) as found, pytest.raises(EnvFailed) as failed:
        asyncio.run(attempt(found.url))
    return str(failed.value), found.paths


def test_a_start_is_asked_for_again_and_a_step_never() -> None:
    down = Said(status=503, body={}, headers={"Retry-After": "0"})
    failed, paths = reason(down, OPEN, down)
    assert failed.startswith("environment 'http' of task 't', turn 0: ") and "status 503" in failed
    assert paths == ["/start", "/start", "/step", "/close"]


@pytest.mark.parametrize(
    "said, message",
    [
        (Said(body={"messages": [], "reward": "much", "done": False}), "reward is no finite number"),
        (Said(body={"messages": [], "reward": 0.0, "done": "no"}), "`done` must be true or false"),
        (Said(body={"messages": "hm", "reward": 0.0, "done": False, "metrics": []}), "metrics are not numbers by name"),
        (Said(body={"messages": [{"role": "user", "content": 3}], "reward": 0.0, "done": True}), "more than text"),
        (Said(body={"messages": []}), "no 'reward', or no 'done'"),
        (Said(body={"messages": [], "reward": 0.0, "done": False, "extra": 1}), "unknown field 'extra'"),
        (Said(body=[1]), "not an object"),
        (Said(raw=b"hello"), "ClientResponseError"),
        (Said(status=404, body={}), "nothing answers there"),
        (Said(body={}, after_s=5.0), "no answer within 0.2 s"),
    ],
)
def test_a_server_that_answers_strangely_costs_the_attempt_and_says_so(said: Said, message: str) -> None:
    failed, _ = reason(OPEN, said, timeout_s=0.2)
    assert message in failed and "turn 0" in failed


def test_a_server_that_is_not_there_is_named() -> None:
    async def start() -> None:
        await GuardedEnv(Spec("http", {"url": nobody(), "max_retries": 0}), TASK).start()

    with pytest.raises(EnvFailed, match=r"starting: RequestFailed: http://127.0.0.1:\d+/start: "):
        asyncio.run(start())


def test_arguments_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs timeout_s above 0"):
        ENVS["http"](TASK, url="http://127.0.0.1:1", timeout_s=0)
