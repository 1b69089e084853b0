"""How many requests a second the agent proxy answers with 200 sessions at once, and what it adds to an answer's time.

Everything is real but the engine, a stub that has every reply at once: sockets, matching of messages, the chat
template, the tokenizer, the router and the journal. The clients are in a process of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from benchmarks.result import Result
from roll.allocator import startup_set_aside
from roll.cluster.inline import InlineCluster
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request
from roll.engines.fake import FakeGenerator
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.proxy.server import Proxy, Settings
from roll.rollout.episode.runner import Attempt, EpisodeRunner, Limits
from roll.serving.router import Router
from roll.types import Finish, Sampling, Task, record

SESSIONS, GOAL, GOAL_MS = 200, 500.0, 10.0
WARM_UP_S, PACED_S, FULL_S = 2.0, 10.0, 8.0
REPLY = "It is the same with all of them, but for the first, which is half as long."
CHAT = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content + '<eos>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
LETTERS = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?<>"


class Stub(FakeGenerator):
    """`Generator` that has the same reply to every request, at once."""

    def __init__(self, reply: Sequence[int]) -> None:
        super().__init__(context=1 << 20)
        self._reply, self._logprobs = list(reply), [-0.5] * len(reply)
        self._some = asyncio.Event()

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._outputs.append(
                Output.of(request.id, self._reply, self._logprobs, version=self.version, finish=Finish.STOP)
            )
        self._some.set()

    async def events(self, max_wait_s: float) -> list[Output]:
        await self._some.wait()
        self._some.clear()
        outputs, self._outputs = self._outputs, []
        return outputs


@record
class _Scribe:
    """Every reply goes to the journal, as in a run."""

    journal: Journal
    group: int

    def part(self, turn: int, context: int, output: Output) -> None:
        self.journal.note(
            Chunk(
                group=self.group,
                sibling=0,
                attempt=0,
                turn=turn,
                context=context,
                ids=output.ids,
                logprobs=output.logprobs,
                version=output.version,
            )
        )

    def diverged(self, turn: int) -> None: ...


def run() -> Result:
    """Requests a second, after a measurement at the goal's rate of how long answers take."""
    _, paced, full = asyncio.run(measured([(GOAL, WARM_UP_S), (GOAL, PACED_S), (0.0, FULL_S)]))
    typer.echo(
        f"paced: {paced['rate']:.0f} requests/s, median {paced['median_ms']:.2f} ms, p99 {paced['p99_ms']:.2f} ms"
    )
    typer.echo(f"as many as there can be: {full['rate']:.0f} requests/s, median {full['median_ms']:.1f} ms")
    return Result(
        name="proxy",
        unit="requests/s",
        higher_is_better=True,
        ours=full["rate"],
        bound=GOAL,
        details={
            "sessions": SESSIONS,
            "paced_requests_per_s": round(paced["rate"], 1),
            "paced_median_ms": round(paced["median_ms"], 2),
            "paced_p99_ms": round(paced["p99_ms"], 2),
            "paced_median_goal_ms": GOAL_MS,
            "full_median_ms": round(full["median_ms"], 1),
            "server_cpu_ms_per_request": round(full["cpu_ms"], 3),
        },
    )


async def measured(loads: Sequence[tuple[float, float]], sessions: int = SESSIONS) -> list[dict[str, Any]]:
    """What the clients saw under each load: so many requests a second, for so many seconds; 0: as many as can be."""
    template = _template()
    router = Router(InlineCluster[Generator]([Stub(template.answer(REPLY, place="the reply").tolist())]))
    limits = Limits(sampling=Sampling(), context=1 << 19, max_new_tokens=256, max_turns=1 << 30, stop=template.eos_ids)
    runner = EpisodeRunner(router=router, template=template, limits=limits)
    proxy = Proxy(Settings(models=("tiny",), requests_per_s=1e6))
    routing = asyncio.create_task(router.run())
    await router.release(0)
    await proxy.start()
    try:
        with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "journal.db")) as journal:
            attempts = [(runner, _Scribe(journal=journal, group=number)) for number in range(sessions)]
            with startup_set_aside():  # as in a run
                return [await _loaded(proxy, attempts, rate=rate, seconds=seconds) for rate, seconds in loads]
    finally:
        await proxy.stop()
        routing.cancel()
        await asyncio.gather(routing, return_exceptions=True)


async def _loaded(
    proxy: Proxy, attempts: Sequence[tuple[EpisodeRunner, _Scribe]], *, rate: float, seconds: float
) -> dict[str, Any]:
    """What clients in a process of their own saw, one for each attempt."""
    sessions = [
        proxy.open(
            runner,
            Attempt(
                task=Task(id=f"t{scribe.group}", domain="d"),
                sibling=0,
                number=0,
                purpose="train",
                seed=0,
                scribe=scribe,
            ),
        )
        for runner, scribe in attempts
    ]
    host, _, port = proxy.url.removeprefix("http://").removesuffix("/v1").rpartition(":")
    given = {
        "host": host,
        "port": int(port),
        "model": "tiny",
        "keys": [proxy.key_of(session) for session in sessions],
        "rate": rate,
        "seconds": seconds,
    }
    began_s = time.process_time()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.proxy_load",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    written, _ = await child.communicate(json.dumps(given).encode())
    found: dict[str, Any] = json.loads(written)
    for session in sessions:
        proxy.close(session)
    return found | {"cpu_ms": 1000 * (time.process_time() - began_s) / found["requests"]}


def _template() -> Template:
    """A chat template over single characters: far more tokens to a text than a model's own tokenizer would make."""
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template = CHAT
    return Template(tokenizer)
