"""Everything that `roll explain` says about a run, as records: the text and `--json` are two forms of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roll.placement.pipeline import TrainTimes
from roll.placement.records import Node, Offload, Phase
from roll.placement.stages import StageBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One labelled sentence."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Rows under one title."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """Amounts of one step, and the calls of the models in it."""

    groups: int
    attempts_per_group: int
    trajectories: int
    max_new_tokens: int
    max_seq_len: int
    max_staleness: float
    groups_in_flight: int
    updates: int
    """Optimizer steps of the actor."""
    tokens_per_microbatch: int
    max_microbatches: int
    """Forward and backward passes over the batch, if every attempt has `max_seq_len` tokens."""
    scored_by: tuple[str, ...]
    """Models and inputs that need one more forward pass over the batch each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """Workers, devices and memory of one role."""

    role: str
    backend: str
    workers: int
    devices: tuple[int, ...]
    """Numbers in the cluster; empty: the CPU of a machine with GPUs."""
    nodes: tuple[int, ...]
    tp: int
    cp: int
    bytes: Mapping[Phase, int] | None
    """Bytes of one worker per device, by phase; None if they are unknown."""
    pp: int = 1
    ep: int = 1
    stages: tuple[StageBytes, ...] = ()
    """Bytes of each rank by stage and part; only for trainers of backend megatron."""
    times: TrainTimes | None = None
    """Estimated seconds per step by part, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """The placement of a run on a cluster, or the fault that prevents it on this machine."""

    nodes: tuple[Node, ...] = ()
    known: bool = True
    """Whether the run will use these nodes; false if its cluster is another one."""
    roles: tuple[RolePlan, ...] = ()
    fullest: Mapping[Phase, int] | None = None
    """Most bytes on any device, by phase; None if they are unknown."""
    offloads: tuple[Offload, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about memory, adapters, offloading and overlap."""
    reasons: tuple[str, ...] = ()
    """Reasons for the choices of `auto`."""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole document."""

    name: str
    step: StepSize
    paragraphs: tuple[Paragraph, ...]
    placement: PlacementPlan
    warnings: tuple[str, ...]
