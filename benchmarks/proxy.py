"""Requests per second of the agent proxy with 200 concurrent sessions, and the latency that it adds.

Only the engine is a stub, which answers immediately. Sockets, message matching, the chat template, the tokenizer, the
router and the journal are real. The clients run in a separate process.
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
from roll.allocator import freeze_startup_objects
from roll.cluster.inline import InlineCluster
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request
from roll.engines.fake import FakeGenerator
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.proxy.server import Proxy, ProxySettings
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.serving.router import Router
from roll.types import Finish, Sampling, Task, record

SESSIONS, GOAL, GOAL_MS = 200, 500.0, 10.0
WARM_UP_S, PACED_S, FULL_S = 2.0, 10.0, 8.0
RESPONSE = "It is the same with all of them, but for the first, which is half as long."
CHAT = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content + '<eos>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
LETTERS = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?<>"


class ConstantGenerator(FakeGenerator):
    """`Generator` that answers every request immediately with the same response."""

    def __init__(self, response: Sequence[int]) -> None:
        super().__init__(max_seq_len=1 << 20)
        self._response, self._logprobs = list(response), [-0.5] * len(response)
        self._has_outputs = asyncio.Event()

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._outputs.append(
                Output.of(request.id, self._response, self._logprobs, version=self.version, finish=Finish.STOP)
            )
        self._has_outputs.set()

    async def events(self, max_wait_s: float) -> list[Output]:
        await self._has_outputs.wait()
        self._has_outputs.clear()
        outputs, self._outputs = self._outputs, []
        return outputs


@record
class _JournalRecorder:
    """`ProgressRecorder` that writes every response to the journal, as in a run."""

    journal: Journal
    group: int

    def record_output(self, turn: int, checksum: int, output: Output) -> None:
        self.journal.record_progress(
            Chunk(
                group=self.group,
                sibling=0,
                attempt=0,
                turn=turn,
                context=checksum,
                ids=output.ids,
                logprobs=output.logprobs,
                version=output.version,
            )
        )

    def record_divergence(self, turn: int) -> None: ...


def run() -> Result:
    """Requests per second at full load; latency is measured at the rate of the goal."""
    _, paced, full = asyncio.run(measure([(GOAL, WARM_UP_S), (GOAL, PACED_S), (0.0, FULL_S)]))
    typer.echo(
        f"paced: {paced['rate']:.0f} requests/s, median {paced['median_ms']:.2f} ms, p99 {paced['p99_ms']:.2f} ms"
    )
    typer.echo(f"full load: {full['rate']:.0f} requests/s, median {full['median_ms']:.1f} ms")
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


async def measure(loads: Sequence[tuple[float, float]], sessions: int = SESSIONS) -> list[dict[str, Any]]:
    """The clients' measurements under each load (requests per second, seconds); rate 0 is full load."""
    template = _template()
    router = Router(
        InlineCluster[Generator]([ConstantGenerator(template.answer(RESPONSE, where="the response").tolist())])
    )
    limits = EpisodeLimits(
        sampling=Sampling(), max_seq_len=1 << 19, max_new_tokens=256, max_turns=1 << 30, stop=template.eos_ids
    )
    runner = EpisodeRunner(router=router, template=template, limits=limits)
    proxy = Proxy(ProxySettings(models=("tiny",), requests_per_s=1e6))
    routing = asyncio.create_task(router.run())
    await router.release(0)
    await proxy.start()
    try:
        with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "journal.db")) as journal:
            attempts = [(runner, _JournalRecorder(journal=journal, group=number)) for number in range(sessions)]
            with freeze_startup_objects():  # as in a run
                return [await _run_clients(proxy, attempts, rate=rate, seconds=seconds) for rate, seconds in loads]
    finally:
        await proxy.stop()
        routing.cancel()
        await asyncio.gather(routing, return_exceptions=True)


async def _run_clients(
    proxy: Proxy, attempts: Sequence[tuple[EpisodeRunner, _JournalRecorder]], *, rate: float, seconds: float
) -> dict[str, Any]:
    """Measurements of one client per attempt, in a separate process, and the CPU time of the proxy per request."""
    sessions = [
        proxy.open(
            runner,
            Attempt(
                task=Task(id=f"t{recorder.group}", domain="d"),
                sibling=0,
                number=0,
                purpose="train",
                seed=0,
                recorder=recorder,
            ),
        )
        for runner, recorder in attempts
    ]
    host, _, port = proxy.url.removeprefix("http://").removesuffix("/v1").rpartition(":")
    load = {
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
    stdout, _ = await child.communicate(json.dumps(load).encode())
    numbers: dict[str, Any] = json.loads(stdout)
    for session in sessions:
        proxy.close(session)
    return numbers | {"cpu_ms": 1000 * (time.process_time() - began_s) / numbers["requests"]}


def _template() -> Template:
    """A chat template over single characters, with far more tokens per text than a model's tokenizer."""
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template = CHAT
    return Template(tokenizer)
