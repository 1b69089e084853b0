"""The built-in generator of GPUs: decode steps as CUDA graphs over paged keys and values, in the caller's thread.

The host starts the next steps before it reads the tokens of the last ones, and admits and removes requests in between,
so the device does not wait for Python. Siblings share the pages of their prompt. The noise of a token is that of the
generator for CPUs; other requests in the batch may change the last bits of logits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roll.engines.base import ActiveRequest, Output, Part, Request, Statistics, SteppedGenerator
from roll.engines.native.decode_rows import MOST_STOPS, Decoded, DecodeRows
from roll.engines.native.decoder import Decoder
from roll.engines.native.generator import NativeGeneratorSettings, probe_output, receive_weights
from roll.engines.native.mixed import Precision, hidden
from roll.engines.native.packed import to_device
from roll.engines.native.pages import PAGE, PagedCache, PagePool
from roll.engines.native.sampling import score
from roll.errors import ConfigError, EngineFailed
from roll.types import Finish, Sampling
from roll.weights.channel import Channel
from roll.weights.digest import Digest


@dataclass(slots=True)
class _Prompt:
    """The tokens of a prompt but the last one, whose keys and values are in pages."""

    pages: list[int]
    """The full pages, which its requests share, and the last one, of which each has a copy."""
    num_shared: int
    users: int = 0


@dataclass(slots=True, kw_only=True)
class _Row(ActiveRequest):
    """A request that is decoded."""

    prompt: _Prompt
    pages: list[int]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Started:
    """Steps that the device runs, and the request of each row at that time."""

    rows: list[_Row | None]
    decoded: Decoded


class PagedGenerator(SteppedGenerator):
    """`Generator`, `Probeable`, `HasStatistics` and `Offloadable` over one decoder."""

    def __init__(self, decoder: Decoder, settings: NativeGeneratorSettings, channel: Channel) -> None:
        super().__init__(settings.max_seq_len)
        self.decoder, self.settings, self.channel = decoder.to(settings.dtype), settings, channel
        self._queue: deque[Request] = deque()
        self._rows: list[_Row | None] = []
        self._prompts: dict[tuple[int, ...], _Prompt] = {}
        self._started: deque[_Started] = deque()
        self._device_rows: DecodeRows | None = None
        self._pool = PagePool(1)

    @property
    def _busy(self) -> bool:
        return bool(self._queue) or any(row is not None for row in self._rows)

    @property
    def num_pages(self) -> int:
        """Pages of the cache, with the one that is never handed out."""
        settings, shape = self.settings, self.decoder.cache_shape
        pages = settings.max_num_seqs * (_pages_for(settings.max_seq_len) + 1)
        if settings.kv_cache_gib is not None:
            token = shape.layers * shape.kv_heads * (shape.key_dim + shape.value_dim) * settings.dtype.itemsize
            pages = min(pages, int(settings.kv_cache_gib * 2**30) // (token * PAGE))
        return pages + 1

    @property
    def num_free_pages(self) -> int:
        return self._pool.num_free

    async def start(self) -> None:
        self.decoder.to(self.settings.device)
        await self.onload(["kv"])

    async def stop(self) -> None:
        self._end_stepping()
        self._started.clear()
        self._device_rows = None

    async def submit(self, requests: Sequence[Request]) -> None:
        self._check_lengths(requests)
        for request in requests:
            if (number := len(request.stop)) > MOST_STOPS:
                raise EngineFailed(
                    f"request {request.id}: has {number} stop tokens, and the limit is {MOST_STOPS}; use "
                    "actor_infer.backend vllm"
                )
        self._queue.extend(requests)
        self._changed.set()

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        names = None if ids is None else set(ids)
        self._read_all()
        for request in self._queue:
            if names is None or request.id in names:
                self._report(ActiveRequest(request=request), Finish.ABORT)
        self._queue = deque(request for request in self._queue if names is not None and request.id not in names)
        ended = [
            at for at, row in enumerate(self._rows) if row is not None and (names is None or row.request.id in names)
        ]
        for at in ended:
            self._finish(at, Finish.ABORT)
        if ended and self._device_rows is not None:
            self._device_rows.end(ended)
        self._changed.set()

    async def receive(self, version: int) -> Digest:
        assert self._paused and not self._busy, "weights change only while nothing is served"
        return receive_weights(self.decoder, self.channel, version)

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        assert self._paused and not self._busy, "probes run only while nothing is served"
        before, self._outputs = self._outputs, []
        device = self.settings.device
        with torch.inference_mode():
            prompt = _Prompt(self._pool.take(_pages_for(len(ids))), num_shared=(len(ids) - 1) // PAGE)
            states = self._prefill({tuple(ids): prompt})
            self._prompts[tuple(ids[:-1])] = prompt  # the request below continues in these pages
            head, targets = self.decoder.head, torch.tensor(ids[1:], device=device)
            read = score(states[:-1], head, targets, Sampling(), cap=self.decoder.logit_cap)[0].tolist()
        greedy, nowhere = Sampling(temperature=0), frozenset[int]()
        self._queue.append(
            Request(id="probe", ids=tuple(ids), max_new_tokens=num_new, sampling=greedy, stop=nowhere, key=0)
        )
        while self._busy:
            self._advance()
        outputs, self._outputs = self._outputs, before
        return probe_output(ids, read, outputs, self._version)

    async def statistics(self) -> Statistics:
        return Statistics()  # pages for the longest response are taken at admission, so requests are never evicted

    async def offload(self, parts: Sequence[Part]) -> None:
        assert not self._busy, "abort before offloading"
        if {"kv", "weights"} & set(parts):  # graphs contain the addresses of both
            self._device_rows = None
            self._started.clear()
        if "weights" in parts:
            self.decoder.to("cpu")

    async def onload(self, parts: Sequence[Part]) -> None:
        if "weights" in parts:
            self.decoder.to(self.settings.device)
        if "kv" in parts and self._device_rows is None:
            self._build()

    @torch.inference_mode()
    def _build(self) -> None:
        settings, needed = self.settings, _pages_for(self.settings.max_seq_len) + 1
        if needed >= self.num_pages:
            raise ConfigError(
                f"actor_infer.kv_cache_gib: a sequence of rollout.max_seq_len takes {needed} pages of {PAGE} tokens "
                f"and there are {self.num_pages - 1} (got {settings.kv_cache_gib:g}); raise it"
            )
        self._pool, self._rows, self._prompts = PagePool(self.num_pages), [], {}
        cache = PagedCache(
            self.decoder.cache_shape, num_pages=self.num_pages, dtype=settings.dtype, device=settings.device
        )
        self._device_rows = DecodeRows(
            self.decoder,
            cache,
            num_rows=settings.max_num_seqs,
            most_pages=_pages_for(settings.max_seq_len),
            most_steps=settings.steps_per_read,
        )
        self._device_rows.capture()

    @torch.inference_mode()
    def _advance(self) -> None:
        """Admit requests that fit, start steps, and read those that were started before."""
        assert self._device_rows is not None
        self._admit()
        if running := [row for row in self._rows if row is not None]:
            left = max(row.request.max_new_tokens - len(row.ids) for row in running)
            steps = min(self.settings.steps_per_read, left)
            samplings = [Sampling() if row is None else row.request.sampling for row in self._rows]
            self._started.append(_Started(list(self._rows), self._device_rows.decode(samplings, steps)))
        if len(self._started) > 1 or not running:
            self._read()

    def _admit(self) -> None:
        """Prefill queued requests; a prompt is prefilled once, and its full pages are shared."""
        assert self._device_rows is not None
        free = [at for at, row in enumerate(self._rows) if row is None]
        room = len(free) + self.settings.max_num_seqs - len(self._rows)
        fresh: dict[tuple[int, ...], _Prompt] = {}
        num_tokens = 0
        admitted: list[_Row] = []
        while self._queue and len(admitted) < room:
            request = self._queue[0]
            context, needed = request.ids[:-1], _pages_for(len(request.ids) + request.max_new_tokens)
            prompt = self._prompts.get(context)
            num_shared = len(context) // PAGE
            if prompt is None and fresh and num_tokens + len(context) > self.settings.max_num_batched_tokens:
                break
            if needed - num_shared + (num_shared + 1 if prompt is None else 0) > self._pool.num_free:
                break
            if prompt is None:
                prompt = _Prompt(self._pool.take(num_shared + 1), num_shared)
                self._prompts[context] = fresh[context] = prompt
                num_tokens += len(context)
            shared = prompt.pages[: prompt.num_shared]
            self._pool.share(shared)
            prompt.users += 1
            pages = [*shared, *self._pool.take(needed - num_shared)]
            admitted.append(_Row(request=self._queue.popleft(), prompt=prompt, pages=pages))
        if not admitted:
            return
        if fresh:
            self._prefill(fresh)
        self._device_rows.cache.copy(
            [row.prompt.pages[-1] for row in admitted], [row.pages[row.prompt.num_shared] for row in admitted]
        )
        self._rows += [None] * (len(admitted) - len(free))
        at = [*free, *range(len(self._rows) - max(0, len(admitted) - len(free)), len(self._rows))][: len(admitted)]
        for index, row in zip(at, admitted, strict=True):
            self._rows[index] = row
        self._device_rows.write(at, [row.request for row in admitted], [row.pages for row in admitted])

    def _prefill(self, contexts: dict[tuple[int, ...], _Prompt]) -> torch.Tensor:
        """Hidden states after each token of the contexts, whose keys and values are then in their pages."""
        assert self._device_rows is not None
        device = self.settings.device
        contexts = {ids: prompt for ids, prompt in contexts.items() if ids}
        if not contexts:
            return torch.empty(0)
        attend, positions = self._device_rows.cache.prefill_attention(
            [len(ids) for ids in contexts], [prompt.pages for prompt in contexts.values()]
        )
        flat = to_device(torch.tensor([token for ids in contexts for token in ids]), device)
        return hidden(self.decoder, flat, positions, attend, Precision(dtype=self.settings.dtype))

    def _read(self) -> None:
        """Take the tokens of the steps that were started first."""
        started = self._started.popleft()
        if all(row is None or row.ended for row in started.rows):
            return
        started.decoded.wait()
        counts, alive = started.decoded.counts.tolist(), started.decoded.alive.tolist()
        ids, logprobs = started.decoded.ids.t().tolist(), started.decoded.logprobs.t().tolist()
        for at, row in enumerate(started.rows):
            if row is None or row.ended:
                continue
            new = counts[at] - len(row.ids)
            row.ids += ids[at][:new]
            row.logprobs += logprobs[at][:new]
            if not alive[at]:
                self._finish(self._rows.index(row), Finish.STOP if row.ids[-1] in row.request.stop else Finish.LENGTH)
            elif len(row.ids) - row.num_reported >= self.settings.progress_interval:
                self._report(row, None)
        self._compact()

    def _read_all(self) -> None:
        while self._started:
            self._read()

    def _finish(self, at: int, finish: Finish) -> None:
        """Report a row's request, and free the row and its pages."""
        row = self._rows[at]
        assert row is not None
        self._report(row, finish)
        row.ended, self._rows[at] = True, None
        self._pool.release(row.pages)
        row.prompt.users -= 1
        if not row.prompt.users:
            self._pool.release(row.prompt.pages)
            del self._prompts[row.request.ids[:-1]]

    def _compact(self) -> None:
        """Move the running rows to the front where a graph with fewer rows then suffices."""
        assert self._device_rows is not None
        running = [at for at, row in enumerate(self._rows) if row is not None]
        sizes = self._device_rows.sizes
        if not running:
            self._rows = []
        elif next(s for s in sizes if s >= len(running)) < next(s for s in sizes if s >= len(self._rows)):
            self._device_rows.arrange(running)
            self._rows = [self._rows[at] for at in running]


def _pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE)
