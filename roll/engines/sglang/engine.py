"""SGLang's scheduler in this process, stepped by its caller.

SGLang's own engine runs its scheduler in another process and talks to it through sockets. The scheduler needs neither:
`InProcess` has no channels and no output stream, and `step` is the body of its event loop. Tokens are read from the
request objects of SGLang, and weights are passed by reference.
"""

from __future__ import annotations

import importlib
import logging
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from roll.engines.base import ActiveRequest
from roll.engines.native.sampling import draw_each, uniforms
from roll.errors import ConfigError

_NEVER_S = 1e9
"""Time limit of SGLang's watchdog, which would end this process while a generator is paused."""


def sglang(module: str) -> Any:
    """A module of SGLang's runtime, which is installed only where this backend is used."""
    return importlib.import_module(f"sglang.srt.{module}")


class Engine:
    """One scheduler with its model. A process has at most one at a time, because SGLang's settings are global."""

    _live: ClassVar[bool] = False

    def __init__(self, path: Path, arguments: dict[str, Any]) -> None:
        if Engine._live:
            raise ConfigError("actor_infer: a process has one engine of SGLang at a time; set executor to ray")
        Engine._live = True
        try:
            self._start(path, arguments)
        except BaseException:
            Engine._live = False
            with suppress(ImportError, AttributeError, RuntimeError, AssertionError):
                _leave_groups()  # those that exist by now
            raise

    def _start(self, path: Path, arguments: dict[str, Any]) -> None:
        logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)  # else one line per unused family
        server = sglang("server_args")
        settings = server.ServerArgs(
            model_path=str(path),
            skip_tokenizer_init=True,
            skip_server_warmup=True,
            disable_overlap_schedule=True,
            sampling_backend="pytorch",
            grammar_backend="none",
            watchdog_timeout=_NEVER_S,
            random_seed=0,
            **arguments,
        )
        sglang("runtime_context").publish(settings, role="scheduler")
        ports = server.PortArgs(
            tokenizer_ipc_name="",
            scheduler_input_ipc_name="",
            detokenizer_ipc_name="",
            nccl_port=sglang("utils.network").get_free_port(),
            rpc_ipc_name="",
            metrics_ipc_name="",
            tokenizer_worker_ipc_name=None,
            decoupled_spec_ipc_config=None,
        )
        self.scheduler = _scheduler_class()(settings, ports, 0, 0, 0, 0, 0, 0, None)
        if self.scheduler.device == "cpu":
            self.scheduler.schedule_stream.synchronize = lambda: None
        runner = self.scheduler.tp_worker.model_runner
        self.model: torch.nn.Module = runner.model
        self._sampler = runner.sampler = _sampler_class()()  # on the CPU SGLang accepts no registered one

    @property
    def idle(self) -> bool:
        """Whether no request is left, not even one that was aborted and has not run its last step."""
        return self.scheduler.is_fully_idle()

    @property
    def num_preempted(self) -> int:
        """Requests evicted from memory since the start."""
        return self.scheduler.num_preempted

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.scheduler.max_total_num_tokens

    def add(self, name: str, row: ActiveRequest, *, prompt_logprobs: bool = False) -> Any:
        """SGLang's object of a new request; its `to_finish` is set if SGLang refuses it."""
        request = row.request
        params = sglang("sampling.sampling_params").SamplingParams(
            max_new_tokens=request.max_new_tokens, stop_token_ids=set(request.stop)
        )
        params.normalize(None)
        self.scheduler.handle_generate_request(
            sglang("managers.io_struct").TokenizedGenerateReqInput(
                rid=name,
                input_text=None,
                input_ids=array("q", request.ids),
                input_embeds=None,
                mm_inputs=None,
                token_type_ids=None,
                sampling_params=params,
                return_logprob=True,
                logprob_start_len=0 if prompt_logprobs else -1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                stream=False,
            )
        )
        added = self.scheduler.waiting_queue[-1]
        added.eos_token_ids = None  # `ignore_eos` would ignore the stop tokens of the request too
        return added

    def abort(self, name: str | None) -> None:
        """End a request, or all: those that run keep their memory until the next step."""
        kind = sglang("managers.io_struct").AbortReq
        self.scheduler.abort_request(kind(abort_all=True) if name is None else kind(rid=name))

    def step(self, rows: Mapping[str, ActiveRequest]) -> list[Any]:
        """One pass over a batch; SGLang's objects of its requests. `rows` are those that are not aborted, by name."""
        scheduler = self.scheduler
        with torch.no_grad():
            plan = scheduler.get_next_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
            )
            scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
            scheduler.cur_batch_for_debug = scheduler.last_batch = batch
            if not batch:
                return []
            requests = list(batch.reqs)
            self._sampler.rows = [rows.get(request.rid) for request in requests]
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        return requests

    def drain(self) -> None:
        """Run the last step of aborted requests, which frees their memory."""
        while not self.idle:
            self.step({})

    def reset_prefix_cache(self) -> bool:
        """Forget all keys and values; whether that was possible."""
        self.drain()
        return self.scheduler.flush_cache()

    def stop(self) -> None:
        """Free the model, and SGLang's process groups, of which a process has one set."""
        self.scheduler.release_host_resources()
        _leave_groups()
        del self.scheduler, self.model, self._sampler

    def packed(self) -> Iterator[str]:
        """Modules whose weights SGLang has packed for kernels of the CPU, so that they cannot be replaced."""
        for name, module in self.model.named_modules():
            if getattr(module, "use_intel_amx_backend", False):
                yield name


def _leave_groups() -> None:
    """Let another engine start in this process."""
    state = sglang("distributed.parallel_state")
    state.destroy_model_parallel()
    state.destroy_distributed_environment()
    Engine._live = False


@cache
def _scheduler_class() -> Any:
    """A scheduler that is called instead of calling."""
    channels = sglang("managers.scheduler_components.ipc_channels").SchedulerIpcChannels
    sender = sglang("managers.scheduler_components.output_sender").SenderWrapper

    class Silent(sglang("managers.scheduler_components.output_streamer").SchedulerOutputStreamer):
        def stream_output(self, *_: Any, **__: Any) -> None:
            """Tokens are read from the requests."""

    class InProcess(sglang("managers.scheduler").Scheduler):
        num_preempted = 0

        def init_ipc_channels(self, port_args: Any) -> None:
            self.ipc_channels = channels(
                recv_from_tokenizer=None,
                recv_from_rpc=None,
                send_to_tokenizer=sender(None),
                send_to_detokenizer=sender(None),
                send_metrics_from_scheduler=None,
            )
            self.load_snapshot_writer = self.recv_from_tokenizer = None

        def get_output_streamer_class(self) -> Any:
            return Silent

        def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
            self.num_preempted += is_retracted
            super()._add_request_to_queue(req, is_retracted=is_retracted)

    return InProcess


@cache
def _sampler_class() -> Any:
    """A sampler in place of SGLang's."""

    class Sampler(sglang("layers.sampler").Sampler):
        """Samples as the native generator does: by a request's key and position, from roll's own distribution.

        SGLang's sampler would return logprobs without top-k and top-p, and seeds only in its deterministic mode.
        """

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[ActiveRequest | None] = []
            """Of the batch that runs; None for requests whose tokens are not read."""

        def forward(self, logits_output: Any, *_: Any, **__: Any) -> torch.Tensor:
            logits = logits_output.next_token_logits
            ids = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            logprobs = torch.zeros(len(logits), device=logits.device)
            known = [(at, row) for at, row in enumerate(self.rows) if row is not None]
            if known:
                keys = np.array([row.request.key for _, row in known], np.uint64)
                positions = np.array([row.request.produced + len(row.ids) for _, row in known], np.uint64)
                noise = torch.from_numpy(uniforms(keys, positions)).to(logits.device)
                at = torch.tensor([at for at, _ in known], device=logits.device)
                ids[at], logprobs[at] = draw_each(logits[at], [row.request.sampling for _, row in known], noise)
            logits_output.next_token_logprobs = logprobs
            return ids

    return Sampler
