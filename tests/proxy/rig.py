"""A proxy on a loopback port over a real router, whose generator says what the test tells it to."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from roll.cluster.inline import InlineCluster
from roll.data.templates import Template
from roll.engines.base import Generator, Output, Request
from roll.engines.fake import FakeGenerator
from roll.journal.events import ProxyRequestRefused
from roll.journal.store import Journal
from roll.proxy.server import Proxy, ProxySettings
from roll.proxy.session import Session
from roll.rollout.episode.conversation import SegmentBreaks
from roll.rollout.episode.runner import Attempt, EpisodeLimits, EpisodeRunner
from roll.serving.router import Router
from roll.types import Finish, Message, Sampling, Task

MODEL = "tiny"
Prepared: TypeAlias = Sequence[int] | Exception | None
TASK = Task(id="t1", domain="d", messages=(Message("user", "what is 1+1?"),), answer="2")


class Scripted(FakeGenerator):
    """`Generator` that gives prepared replies in turn, each in two pieces; None never ends, an error is raised."""

    def __init__(self, replies: Iterable[Prepared] = ()) -> None:
        super().__init__(max_seq_len=100_000)
        self.replies, self.asked, self.given = list(replies), list[Request](), list[list[int]]()
        self.aborted: list[str] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            reply = self.replies[len(self.asked)]
            self.asked.append(request)
            if isinstance(reply, Exception):
                raise reply
            if reply is None:
                self._requests[request.id] = (request, [], 10**9)
                continue
            ids = list(reply)[: request.max_new_tokens]
            self.given.append(ids)
            cut = len(ids) // 2
            finish = Finish.STOP if ids[-1] in request.stop else Finish.LENGTH
            for part, end in ((ids[:cut], None), (ids[cut:], finish)):
                numbers = [-0.25 * (1 + place) for place in range(len(part))]
                if part:
                    self._outputs.append(Output.of(request.id, part, numbers, version=self.version, finish=end))

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        self.aborted += [*self._requests] if ids is None else [id for id in ids if id in self._requests]
        await super().abort(ids)


@dataclass
class Served:
    """A proxy that listens, and all around it."""

    proxy: Proxy
    router: Router
    runner: EpisodeRunner
    generator: Scripted
    journal: Journal
    _clients: list[AsyncOpenAI] = field(default_factory=list[AsyncOpenAI])

    def open(self, **changes: Any) -> Session:
        """A session of one attempt."""
        given: dict[str, Any] = {"task": TASK, "sibling": 0, "number": 0, "purpose": "train", "seed": 1, **changes}
        return self.proxy.open(self.runner, Attempt(**given))

    def client(self, session: Session | None = None, *, key: str = "", **options: Any) -> AsyncOpenAI:
        """The real client, as an agent makes it, but for its patience."""
        key = key or ("" if session is None else self.proxy.key_of(session))
        # Loading certificates, unused here, would take most of the time to create a client.
        options = {
            "max_retries": 0,
            "timeout": 10.0,
            "http_client": DefaultAsyncHttpxClient(verify=False),
            **options,
        }
        self._clients.append(AsyncOpenAI(base_url=self.proxy.url, api_key=key, **options))
        return self._clients[-1]

    def refused(self) -> list[ProxyRequestRefused]:
        """What the journal says was refused."""
        self.proxy.refusals.flush()
        self.journal.flush()
        return [entry.event for entry in self.journal.events(ProxyRequestRefused)]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def serving(
    folder: Path,
    template: Template,
    replies: Iterable[Prepared] = (),
    *,
    settings: dict[str, Any] | None = None,
    token: str | None = None,
    **limits: Any,
) -> AsyncGenerator[Served]:
    """A proxy for the replies to come; `limits` are those of an attempt."""
    generator = Scripted(replies)
    router = Router(InlineCluster[Generator]([generator]), max_wait_s=0.05)
    numbers = {"max_seq_len": 50_000, "max_new_tokens": 1000, "max_turns": 100, "stop": template.eos_ids, **limits}
    runner = EpisodeRunner(
        router=router,
        template=template,
        limits=EpisodeLimits(sampling=Sampling(), **numbers),
        segment_breaks=SegmentBreaks(),
    )
    proxy = Proxy(ProxySettings(models=(MODEL, "alias"), **{"requests_per_s": 1000.0, **(settings or {})}), token)
    routing = asyncio.create_task(router.run())
    await router.release(0)
    await proxy.start()
    with closing(Journal(folder / "journal.db")) as journal, proxy.record_refusals(journal):
        served = Served(proxy, router, runner, generator, journal)
        try:
            yield served
        finally:
            await served.close()
            await proxy.stop()
            routing.cancel()
            await asyncio.gather(routing, return_exceptions=True)
