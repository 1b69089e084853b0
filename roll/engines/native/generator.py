"""The built-in generator: continuous batching over a slot cache, in the caller's thread.

A request waits in the queue, is prefilled into a slot between two decode steps, gains one token per step together with
all others, and leaves as soon as it ends; the request of the last slot then moves into the free one. Siblings share one
prefill. Samples depend only on a request's key and the weights: the arithmetic is arranged so that other requests in
the batch change no bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.base import ActiveRequest, Output, Part, Request, Statistics, SteppedGenerator
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native import lora
from roll.engines.native.attention import SlotCache
from roll.engines.native.decoder import Decoder
from roll.engines.native.sampling import cap_logits, draw_each, score, uniforms
from roll.types import Finish, Sampling
from roll.weights.channel import Channel
from roll.weights.digest import Digest, StreamingDigest, digest, published_tensors

MIN_ROWS = 16
"""Matrix products with fewer rows may take another path through the BLAS and round differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeGeneratorSettings:
    """Settings of a native generator."""

    max_num_seqs: int
    max_seq_len: int
    max_num_batched_tokens: int
    """Most tokens per prefill."""
    progress_interval: int
    """Tokens of a request per partial output."""
    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of weights, keys and values. With 16 bits, `PagedGenerator` is the generator."""
    kv_cache_gib: float | None = None
    """Of `PagedGenerator`; None: `max_num_seqs` sequences of full length."""
    steps_per_read: int = 8
    """Of `PagedGenerator`: decode steps that the device runs before their tokens are read."""


@dataclass(slots=True, kw_only=True)
class _SlotRequest(ActiveRequest):
    """A request in its slot."""

    after_prompt: Tensor
    """[hidden] state after the last token of `request.ids`, with which siblings skip their prefill."""
    due: int
    """Number of tokens at which the next output is due."""

    @property
    def length(self) -> int:
        """Tokens whose keys and values are in the cache, or will be after the next step."""
        return len(self.request.ids) + len(self.ids)


class NativeGenerator(SteppedGenerator):
    """`Generator`, `Probeable`, `HasStatistics` and `Offloadable` over one decoder."""

    def __init__(
        self, decoder: Decoder | HuggingFaceDecoder, settings: NativeGeneratorSettings, channel: Channel
    ) -> None:
        super().__init__(settings.max_seq_len)
        self.decoder, self.settings, self.channel = decoder, settings, channel
        self._queue: deque[Request] = deque()
        self._running: list[_SlotRequest] = []  # by slot
        self._cache: SlotCache | None = None

    @property
    def _busy(self) -> bool:
        return bool(self._queue or self._running)

    async def start(self) -> None:
        self.decoder.to(self.settings.device)
        await self.onload(["kv"])

    async def stop(self) -> None:
        self._end_stepping()
        self._cache = None

    async def submit(self, requests: Sequence[Request]) -> None:
        self._check_lengths(requests)
        self._queue.extend(requests)
        self._changed.set()

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        names = None if ids is None else set(ids)
        for request in self._queue:
            if names is None or request.id in names:
                self._report(ActiveRequest(request=request), Finish.ABORT)
        self._queue = deque(request for request in self._queue if names is not None and request.id not in names)
        ended = [at for at, row in enumerate(self._running) if names is None or row.request.id in names]
        for slot in ended:
            self._report(self._running[slot], Finish.ABORT)
        self._vacate(ended)
        self._changed.set()

    async def receive(self, version: int) -> Digest:
        assert self._paused and not self._running and not self._queue, "weights change only while nothing is served"
        if self.decoder.lora is None:
            return receive_weights(self.decoder, self.channel, version)
        arriving = iter(self.channel.receive(version=version))
        if (first := next(arriving, None)) is not None:
            lora.load_adapter(self.decoder, chain([first], arriving), where=f"version {version}")
        return lora.digest_served(self.decoder, torch.float32)

    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        """Logprobs of the given tokens come from their own prefill; this generator caches no prefixes."""
        assert self._paused and not self._running and not self._queue, "probes run only while nothing is served"
        before, self._outputs = self._outputs, []
        greedy, nowhere = Sampling(temperature=0), frozenset[int]()
        request = Request(id="probe", ids=tuple(ids), max_new_tokens=num_new, sampling=greedy, stop=nowhere, key=0)
        targets = torch.tensor(ids[1:], device=self.settings.device)
        with torch.inference_mode():
            hidden = self._run_prefill({request.ids: [0]})[0][: len(ids)]
            read: list[float] = score(hidden[:-1], self.decoder.head, targets, Sampling(), cap=self.decoder.logit_cap)[
                0
            ].tolist()
            self._running.append(_SlotRequest(request=request, after_prompt=hidden[-1], due=num_new))
            self._sample(hidden[-1:], 0)
            while self._running:
                self._decode()
        outputs, self._outputs = self._outputs, before
        return probe_output(ids, read, outputs, self._version)

    async def statistics(self) -> Statistics:
        return Statistics()  # requests are never evicted from their slots

    async def offload(self, parts: Sequence[Part]) -> None:
        assert not self._running, "abort before offloading"
        if "kv" in parts:
            self._cache = None
        if "weights" in parts:
            self.decoder.to("cpu")

    async def onload(self, parts: Sequence[Part]) -> None:
        if "weights" in parts:
            self.decoder.to(self.settings.device)
        if "kv" in parts and self._cache is None:
            slots = max(self.settings.max_num_seqs, MIN_ROWS)
            with torch.inference_mode():
                self._cache = SlotCache(
                    self.decoder.cache_shape,
                    slots=slots,
                    max_seq_len=self.settings.max_seq_len,
                    device=self.settings.device,
                )

    @torch.inference_mode()
    def _advance(self) -> None:
        """Admit requests that fit, then decode one token of every request."""
        if self._queue and len(self._running) < self.settings.max_num_seqs:
            self._admit()
        if self._running:
            self._decode()

    def _admit(self) -> None:
        """Prefill queued requests into free slots; a context is prefilled once, and copied if a slot already has it."""
        assert self._cache is not None
        known = {row.request.ids: slot for slot, row in enumerate(self._running)}
        fresh: dict[tuple[int, ...], list[int]] = {}
        admitted: list[Request] = []
        num_tokens, first = 0, len(self._running)
        while self._queue and first + len(admitted) < self.settings.max_num_seqs:
            request = self._queue[0]
            if request.ids not in known and request.ids not in fresh:
                if fresh and num_tokens + len(request.ids) > self.settings.max_num_batched_tokens:
                    break
                num_tokens += len(request.ids)
            if request.ids not in known:
                fresh.setdefault(request.ids, []).append(first + len(admitted))
            admitted.append(self._queue.popleft())
        hidden = self._prefill(fresh) if fresh else {}
        for slot, request in enumerate(admitted, first):
            if request.ids in known:
                self._cache.copy(known[request.ids], [slot], len(request.ids))
                after_prompt = self._running[known[request.ids]].after_prompt
            else:
                after_prompt = hidden[request.ids]
            due = min(request.max_new_tokens, self.settings.progress_interval)
            self._running.append(_SlotRequest(request=request, after_prompt=after_prompt, due=due))
        self._sample(torch.stack([row.after_prompt for row in self._running[first:]]), first)

    def _prefill(self, fresh: dict[tuple[int, ...], list[int]]) -> dict[tuple[int, ...], Tensor]:
        """Fill the slots of each context; returns the hidden state after it."""
        shortest_first = dict(sorted(fresh.items(), key=lambda item: len(item[0])))
        hidden, last = self._run_prefill(shortest_first)
        return dict(zip(shortest_first, hidden[last], strict=False))

    def _run_prefill(self, fresh: dict[tuple[int, ...], list[int]]) -> tuple[Tensor, Tensor]:
        """Hidden states after each token of contexts, the shortest first, and the index of each one's last token."""
        assert self._cache is not None
        device, slots = self.settings.device, list(fresh.values())
        lengths = [len(context) for context in fresh]
        ids = [token for context in fresh for token in context]
        if len(ids) < MIN_ROWS:
            lengths.append(MIN_ROWS)
            ids += [0] * MIN_ROWS
            slots.append([])
        sizes = torch.tensor(lengths)
        ends = sizes.cumsum(0)
        positions = torch.arange(len(ids)) - (ends - sizes).repeat_interleave(sizes)
        attend = self._cache.prefill_attention(lengths, slots)
        hidden = self.decoder.hidden(torch.tensor(ids, device=device), positions.to(device), attend)
        return hidden, (ends - 1).to(device)

    def _decode(self) -> None:
        assert self._cache is not None
        num = max(len(self._running), MIN_ROWS)
        padding = [0] * (num - len(self._running))
        ids = torch.tensor([row.ids[-1] for row in self._running] + padding, device=self.settings.device)
        positions = torch.tensor([row.length - 1 for row in self._running] + padding, device=self.settings.device)
        hidden = self.decoder.hidden(ids, positions, self._cache.decode_attention(positions))
        self._sample(hidden, 0)

    def _sample(self, hidden: Tensor, first: int) -> None:
        """Sample a token for each running request from slot `first` on, from the rows of `hidden`; free ended slots."""
        rows = self._running[first:]
        if len(hidden) < MIN_ROWS:
            hidden = F.pad(hidden, (0, 0, 0, MIN_ROWS - len(hidden)))
        logits = cap_logits(F.linear(hidden, self.decoder.head)[: len(rows)], self.decoder.logit_cap)
        keys = np.array([row.request.key for row in rows], np.uint64)
        positions = np.array([row.request.produced + len(row.ids) for row in rows], np.uint64)
        noise = torch.from_numpy(uniforms(keys, positions)).to(self.settings.device)
        ids, logprobs = draw_each(logits, [row.request.sampling for row in rows], noise)
        ended: list[int] = []
        for slot, row, token, logprob in zip(count(first), rows, ids.tolist(), logprobs.tolist(), strict=False):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if (len(row.ids) >= row.due or token in row.request.stop) and self._report_due(row):
                ended.append(slot)
        self._vacate(ended)

    def _report_due(self, row: _SlotRequest) -> bool:
        """Report the tokens that are due; returns whether the request has ended."""
        if row.ids[-1] in row.request.stop:
            self._report(row, Finish.STOP)
        elif len(row.ids) == row.request.max_new_tokens:
            self._report(row, Finish.LENGTH)
        else:
            self._report(row, None)
            row.due = min(row.request.max_new_tokens, row.num_reported + self.settings.progress_interval)
            return False
        return True

    @torch.inference_mode()
    def _vacate(self, slots: Sequence[int]) -> None:
        """Free these slots; requests of the last slots move into them, so that the used slots stay the first ones."""
        for slot in sorted(slots, reverse=True):
            last = self._running.pop()
            if slot < len(self._running):
                assert self._cache is not None
                self._cache.copy(len(self._running), [slot], last.length)
                self._running[slot] = last


def receive_weights(decoder: Decoder | HuggingFaceDecoder, channel: Channel, version: int) -> Digest:
    """Load the weights of a version into the decoder; the digest of all of them."""
    arriving = iter(channel.receive(version=version))
    if (first := next(arriving, None)) is None:  # both sides share a module
        return digest(tensor for _, tensor in published_tensors(decoder))
    with StreamingDigest(decoder.device) as streaming:
        tensors = streaming.watch(chain([first], arriving), dict(decoder.named_tensors()))
        decoder.load(tensors, where=f"version {version}")
        return streaming.digest()


def probe_output(ids: Sequence[int], read: Sequence[float], outputs: Sequence[Output], version: int) -> Output:
    """The result of a probe: the given tokens after the first with the logprobs `read`, then the sampled ones."""
    return Output.of(
        "probe",
        (*ids[1:], *(token for output in outputs for token in output.ids.tolist())),
        (*read, *(logprob for output in outputs for logprob in output.logprobs.tolist())),
        version=version,
        finish=Finish.LENGTH,
    )
