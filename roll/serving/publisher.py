"""Weight synchronisation: take requests back, move the weights, verify that they arrived, resume.

A generator serves a version only after its digest, and where configured the canary, have matched the trainer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import torch

from roll.cluster.handle import Cluster
from roll.engines.base import Generator, Offloadable, Probeable, Trainer
from roll.errors import NodeLost, RollError, RunStopped, StateLost, WorkerDied
from roll.journal.events import GeneratorReplaced, RequestsResumed, WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import Canary, CanaryScores, describe_version
from roll.serving.device_sharing import DeviceSharing
from roll.serving.node_wait import NodeWait
from roll.serving.recovery import RecoveringCluster
from roll.serving.router import Router
from roll.weights.channel import Transport
from roll.weights.digest import Digest
from roll.weights.meeting import cancel_transfer, open_meeting

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementPolicy:
    """How dead generators are replaced."""

    replace: Callable[[int], Awaitable[None]]
    """Starts a new worker at that rank."""
    max_replacements: int
    """Most replacements in one run."""
    notice: Callable[[str], None]
    """Callback for user-facing notices."""
    node_timeout_s: float = 600.0
    """Seconds to wait for a node with room for a generator whose node is lost, while fewer than `min_workers` serve."""
    min_workers: int | None = None
    """None: all."""


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Copies the trainer's weights to every generator of one policy. Versions are numbered upwards."""

    trainers: Cluster[Trainer]
    generators: Cluster[Generator]
    router: Router
    journal: Journal
    transport: Transport = field(default_factory=Transport)
    canary: Canary | None = None
    """None: only digests are compared. Where no weights move it is checked once, since no transfer can break it."""
    device_sharing: DeviceSharing | None = None
    """Offloading on shared devices; None: everything fits."""
    version: int = -1
    """The served version; -1 before the first publication."""
    step_of: dict[int, int] = field(default_factory=dict[int, int])
    """Training steps behind the weights of each version."""
    policy: str = ""
    """Name of the policy; empty in a run with one."""
    replacement: ReplacementPolicy | None = None
    """None: a dead generator ends the run."""
    _digests: dict[int, Digest] = field(default_factory=dict[int, Digest])
    """Digests by published version, to name the version that a faulty generator holds."""
    _scores: CanaryScores = field(default_factory=dict[tuple[int, ...], torch.Tensor])
    """The trainer's logprobs of the canary with the served version; it may hold another one by now."""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a generator is between two versions."""
    _num_failed: int = 0
    _last_tried: int = -1
    """The last version whose transfer began; members of a broadcast may have joined its group."""
    _interrupted: int | None = None
    """Step whose publication lost a generator; the replacement of that generator publishes it."""
    _completed: asyncio.Event = field(default_factory=asyncio.Event)
    _sender: int = 0
    """Generation of the trainer that sent the last version."""

    async def publish(self, step: int) -> None:
        """Serve the weights of step `step`. Rewards and environments keep running meanwhile."""
        async with self.changing:
            try:
                await self._publish(step)
                self._interrupted = None
            except _GeneratorLost:
                self._interrupted = step
                self._completed.clear()
        if self._interrupted is not None:
            await self._completed.wait()

    async def replace_generator(self, rank: int, died: WorkerDied) -> None:
        """Replace a dead generator by one with the served weights; raises `RunStopped` past the budget."""
        replacement = self.replacement
        self._num_failed += not isinstance(died, NodeLost)
        if replacement is None or self._num_failed > replacement.max_replacements:
            num = 0 if replacement is None else replacement.max_replacements
            raise RunStopped(f"{died} ({num} generators were replaced before, see ray.max_replacements)")
        began = time.monotonic()
        replacement.notice(f"generator {rank} is being replaced, its requests go to others or wait: {died.what}")
        if self.transport.concurrent:
            async with self.changing:  # every version needs all generators
                await self._start_replacement(replacement, rank)
                await self._give_weights(rank)
        else:
            await self._start_replacement(replacement, rank)
            async with self.changing:
                await self._give_weights(rank)
        seconds = time.monotonic() - began
        self.journal.record(GeneratorReplaced(generator=rank, version=self.version, reason=died.what, seconds=seconds))
        _LOG.info("generator %d was replaced; version %d is served", rank, self.version)

    async def _start_replacement(self, replacement: ReplacementPolicy, rank: int) -> None:
        wait = NodeWait(journal=self.journal, timeout_s=replacement.node_timeout_s, notice=replacement.notice)
        size, unavailable = self.generators.size, self.router.balancer.unavailable
        needed = size if replacement.min_workers is None else replacement.min_workers

        def enough() -> bool:
            return size - len(unavailable) >= needed

        await wait.start(f"generator {rank}", lambda: replacement.replace(rank), enough=enough)
        await self.generators.at(rank, Generator.start)

    async def _give_weights(self, rank: int) -> None:
        if not self._digests and self._interrupted is None:
            self.router.mark_ready(rank)  # this process has not published its first version yet
        elif self.transport.concurrent:
            await self._publish_to_replacement(rank)
        else:
            await self.catch_up(rank)

    async def _publish_to_replacement(self, rank: int) -> None:
        """Publish to all generators the interrupted step, or else the served one again."""
        step = self.step_of[self.version] if self._interrupted is None else self._interrupted
        try:
            await self._publish(step, joined=rank)
        except _GeneratorLost:  # another one died, whose replacement publishes
            self._interrupted = step
            self._completed.clear()
        else:
            self._interrupted = None
            self._completed.set()

    @property
    def attested(self) -> str:
        """Digest of the served version; empty before this process has published one."""
        return self._describe(self._digests[self.version]) if self.version in self._digests else ""

    async def catch_up(self, rank: int) -> None:
        """Give one generator the served weights and check them; the others keep running. Needs `changing`."""
        version, sent, canary = self.version, self._digests[self.version], self.canary
        await self.generators.at(rank, Generator.pause)
        received = await self.generators.at(rank, Generator.receive, version)
        self._attest(version, sent, {rank: received})
        if canary is not None and self._scores:
            output = await self.generators.at(rank, Probeable.probe, canary.ids, canary.num_new)
            canary.check({rank: output}, self._scores, version=version, dtypes=sent.sums, policy=self.policy)
        await self.generators.at(rank, Generator.resume, version)
        self.router.mark_ready(rank)

    async def _publish(self, step: int, *, joined: int | None = None) -> None:
        """`joined` is a new generator."""
        clock = LapTimer()
        await self.router.hold()
        if joined is not None:
            await self.generators.at(joined, Generator.pause)
            self.router.mark_ready(joined)
        clock.lap("hold")
        if self.device_sharing is not None:
            await self.device_sharing.enter("weight_sync")
            clock.lap("make room")
        version, sent, received = await self._transfer(clock, joined=joined is not None)
        self._attest(version, sent, received)
        if self.canary is not None and (self.transport.moves or not self._digests):
            canary = self.canary
            outputs = await self.router.each(
                lambda rank: self.generators.at(rank, Probeable.probe, canary.ids, canary.num_new)
            )
            self._scores = await canary.score(self.trainers, outputs.values())
            canary.check(outputs, self._scores, version=version, dtypes=sent.sums, policy=self.policy)
            clock.lap("canary")
        event = WeightsPublished(version=version, step=step, digest=self._describe(sent), seconds=clock.laps)
        self.journal.record(event)
        self.journal.flush(durable=True)
        self.version = version
        self.step_of[version] = step
        self._digests[version] = sent
        if self.device_sharing is not None:
            await self.device_sharing.enter("rollout")
        requests, tokens = await self.router.release(version)
        name, seconds = describe_version(version, self.policy), sum(clock.laps.values())
        _LOG.info("%s: serves the weights of step %d, published in %.1f s", name, step, seconds)
        self.journal.record(RequestsResumed(version=version, num_requests=requests, num_tokens=tokens))
        if isinstance(self.trainers, RecoveringCluster):
            self.trainers.snapshot_if_due()

    async def _transfer(self, clock: LapTimer, *, joined: bool) -> tuple[int, Digest, dict[int, Digest]]:
        """Move the weights as a new version, and again if the trainer was replaced during a broadcast.

        The version skips a number where a member is new and has missed the last one, and after a failed transfer, which
        only some members may have joined.
        """
        if self._last_tried < 0 and self.transport.meeting is not None:
            open_meeting(self.transport.meeting)
        while True:
            if self.transport.concurrent and self.router.balancer.unavailable:
                raise _GeneratorLost
            last = max(self.version, self._last_tried)
            renewed = self.transport.concurrent and self._generation != self._sender
            skips = joined or renewed or last != self.version
            if skips and isinstance(self.trainers, RecoveringCluster):
                await self.trainers.each(Offloadable.onload, ())  # does nothing, but a dead one is replaced before
            version, sender = last + (2 if skips else 1), self._generation
            self._last_tried = version
            try:
                sent, received = await self._move(version, clock)
            except StateLost:
                continue
            self._sender = sender
            return version, sent, received

    @property
    def _generation(self) -> int:
        return self.trainers.generation if isinstance(self.trainers, RecoveringCluster) else 0

    async def _move(self, version: int, clock: LapTimer) -> tuple[Digest, dict[int, Digest]]:
        """Transfer the weights; the trainer's digest, and each generator's after it has loaded them."""
        sending = self.trainers.each(Trainer.send, version)

        def receive(rank: int) -> Awaitable[Digest]:
            return self.generators.at(rank, Generator.receive, version)

        if self.transport.concurrent:
            sent, received = await self._broadcast(version, sending, receive)
            clock.lap("move")
            return sent, received
        sent = (await sending)[0]
        clock.lap("send")
        received = await self.router.each(receive)
        clock.lap("receive")
        return sent, received

    async def _broadcast(
        self, version: int, sending: Awaitable[list[Digest]], receive: Callable[[int], Awaitable[Digest]]
    ) -> tuple[Digest, dict[int, Digest]]:
        """Send and receive at the same time; raises `_GeneratorLost` if the death of a generator broke the transfer.

        It returns or raises only when no member is in the transfer any more, so that the next one finds all ready.
        An unexpected error, after which the run ends, is raised at once: the others would wait for their timeout.
        """
        errors: list[RunStopped] = []

        async def receive_or_record(rank: int) -> Digest | None:
            try:
                async with self._cancelling(version):
                    return await receive(rank)
            except RunStopped as error:
                errors.append(error)
                return None

        async def send() -> list[Digest]:
            async with self._cancelling(version):
                return await sending

        sender = asyncio.ensure_future(send())
        receivers = asyncio.ensure_future(self.router.each(receive_or_record))
        with contextlib.suppress(RollError):
            await asyncio.gather(sender, receivers)
        sent, received = await asyncio.gather(sender, receivers, return_exceptions=True)
        if isinstance(received, BaseException):
            raise received
        if isinstance(sent, RunStopped):
            errors.insert(0, sent)
        elif isinstance(sent, BaseException):
            raise sent
        if not errors and not isinstance(sent, BaseException):
            return sent[0], {rank: digest for rank, digest in received.items() if digest is not None}
        dead = await self._dead_generators()
        if not dead and not self.router.balancer.unavailable:
            raise errors[0]
        raise _GeneratorLost

    @contextlib.asynccontextmanager
    async def _cancelling(self, version: int) -> AsyncGenerator[None]:
        """If a member fails, those that still wait for it to arrive give up."""
        try:
            yield
        except RollError:
            if self.transport.meeting is not None:
                cancel_transfer(self.transport.meeting, version)
            raise

    async def _dead_generators(self) -> list[WorkerDied]:
        """Errors of the generators that have died since the router last called them."""
        dead: list[WorkerDied] = []

        async def check(rank: int) -> None:
            try:
                await self.generators.at(rank, Generator.pause)
            except WorkerDied as error:
                dead.append(error)
                raise

        await self.router.each(check, "pause")
        return dead

    def _describe(self, digest: Digest) -> str:
        return f"{self.policy} {_text(digest)}" if self.policy else _text(digest)

    def _attest(self, version: int, sent: Digest, received: Mapping[int, Digest]) -> None:
        """Raise `RunStopped` unless every generator holds the weights that the trainer sent."""
        for rank, digest in received.items():
            if digest != sent:
                where, fault = describe_version(version, self.policy), self._fault(digest, sent)
                raise RunStopped(
                    f"{where}: generator {rank} does not hold the trainer's weights: {fault} "
                    f"(trainer {_text(sent)}, generator {_text(digest)}); nothing was sampled with them"
                )

    def _fault(self, held: Digest, sent: Digest) -> str:
        """The likely cause of a mismatch, from the digest that the generator holds instead."""
        if held.sums.keys() != sent.sums.keys():
            dtypes = [", ".join(sorted(side.sums)) for side in (held, sent)]
            return f"it has {dtypes[0]} where {dtypes[1]} was sent, see actor_infer.dtype"
        for version, digest in self._digests.items():
            if digest == held:
                return f"nothing was delivered, it still holds version {version}"
        return "these weights were never published, so a part is stale or was changed in transit"


class _GeneratorLost(Exception):
    """A generator died, and a broadcast needs all of them; its replacement publishes."""


class LapTimer:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def _text(digest: Digest) -> str:
    return " ".join(f"{kind}:{first:08x}:{second:08x}" for kind, (first, second) in sorted(digest.sums.items()))
