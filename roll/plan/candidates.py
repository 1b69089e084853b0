"""Configurations that `roll plan` compares: what it may change in a file, and which of it fits the memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from roll.config.schema import Run
from roll.errors import ConfigError
from roll.placement.facts import RoleFacts, RunFacts
from roll.placement.planner import plan_devices
from roll.placement.records import Inventory, Placement

_TP = (1, 2, 4, 8)
_STALENESS = (0.0, 0.5, 1.0, 2.0, 4.0)
_TOO_MUCH = re.compile(r"(\w+)\.devices: .* and the (\w+) needs")
_REDUNDANCY = 8
"""Groups per redundant group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBounds:
    """What a plan may use."""

    num_devices: int
    max_staleness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """A placement that fits: everything but the keys of `rollout`."""

    overrides: tuple[str, ...]
    """Keys of the file that it changes."""
    kind: tuple[int, ...]
    """Its position along each dimension, by which neighbours are found."""
    facts: RunFacts
    placement: Placement
    num_changes: int
    """Settings other than devices that differ from those of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCandidate:
    """A placement with the keys of `rollout`."""

    placed: PlacedRun
    max_staleness: float
    redundant_groups: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """All keys that it sets."""
        return (
            *self.placed.overrides,
            f"rollout.max_staleness={self.max_staleness:g}",
            f"rollout.redundant_groups={self.redundant_groups}",
        )


def staleness_choices(run: Run, bounds: PlanBounds) -> list[float]:
    """Bounds on staleness to try; `ConfigError` if there is none."""
    choices = sorted({value for value in (*_STALENESS, run.rollout.max_staleness) if value <= bounds.max_staleness})
    if not choices:
        raise ConfigError(f"--max-staleness: no staleness is at most {bounds.max_staleness:g}; give 0 or more")
    return choices


def redundancy_choices(run: Run) -> list[int]:
    """Numbers of redundant groups to try."""
    return sorted({0, run.rollout.redundant_groups, run.rollout.groups_per_step // _REDUNDANCY})


def placed_runs(facts: RunFacts, inventory: Inventory, bounds: PlanBounds) -> tuple[list[PlacedRun], dict[str, int]]:
    """The placements that fit, and how many do not, by reason. `ConfigError` if none fits."""
    fitting, refused = list[PlacedRun](), dict[str, int]()
    first = ""
    for option in _options(facts, inventory, bounds):
        try:
            placement = plan_devices(option.facts, inventory)
        except ConfigError as error:
            first = first or str(error)
            reason = _reason(str(error))
            refused[reason] = refused.get(reason, 0) + 1
            continue
        fitting.append(
            PlacedRun(
                overrides=option.overrides,
                kind=option.kind,
                facts=option.facts,
                placement=placement,
                num_changes=_num_changes(facts, option.facts),
            )
        )
    if not fitting:
        text = first or f"no division of {bounds.num_devices} devices is possible"
        raise ConfigError(f"roll plan: nothing fits ({sum(refused.values())} placements tried); the first: {text}")
    return fitting, refused


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One way to change a file."""

    kind: tuple[int, ...]
    overrides: tuple[str, ...]
    facts: RunFacts


def _num_changes(before: RunFacts, after: RunFacts) -> int:
    names = ("tp", "tokens", "offload")
    roles = [(before.role(role), after.role(role)) for role in ("actor_train", "actor_infer")]
    return sum(getattr(old, name) != getattr(new, name) for old, new in roles for name in names)


def _reason(text: str) -> str:
    """The kind of an error, without its numbers."""
    if (match := _TOO_MUCH.match(text)) is not None:
        return f"{match[1]}: {match[2]} needs more memory than there is"
    return text.partition("\n")[0].partition(";")[0].partition("(got")[0].strip()[:100]


def _options(facts: RunFacts, inventory: Inventory, bounds: PlanBounds) -> Iterator[_Option]:
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    if facts.inline or not inventory.gpus:
        yield from _cpu_options(facts, inventory, bounds)
        return
    node = min(each.num_devices for each in inventory.nodes)
    totals = _totals(min(bounds.num_devices, inventory.num_devices), node)
    sizes = [tp for tp in _TP if tp <= node and _divides_heads(infer, tp)] if infer.backend == "vllm" else [infer.tp]
    tokens = sorted({max(2, train.tokens // 2), train.tokens, 2 * train.tokens, 4 * train.tokens})
    splits = [(each, num) for each in totals for num in _train_counts(each, node, train)]
    for (total, num), (rank, tp), (micro, num_tokens) in product(splits, enumerate(sizes), enumerate(tokens)):
        for offload in (False, True) if train.backend == "fsdp2" else (train.offload,):
            if (total - num) % tp == 0:
                yield _option(
                    facts,
                    (total, num, rank, micro, int(offload)),
                    replace(train, tokens=num_tokens, offload=offload),
                    _moved(infer, tp, shared=num == 0),
                )


def _option(facts: RunFacts, kind: tuple[int, ...], train: RoleFacts, infer: RoleFacts) -> _Option:
    total, num = kind[:2]
    spans = ((0, num or total), (num, total))
    names = ("actor_train", "actor_infer")
    before = {name: facts.role(name) for name in names}
    after = {
        name: replace(role, devices=tuple(range(*span)), workers=None)
        for name, role, span in zip(names, (train, infer), spans, strict=True)
    }
    overrides = [f"{name}.devices={_text(*span)}" for name, span in zip(names, spans, strict=True)]
    if infer.tp != before["actor_infer"].tp:
        overrides.append(f"actor_infer.parallel.tp={infer.tp}")
    if train.tokens != before["actor_train"].tokens:
        overrides.append(f"actor_train.tokens_per_microbatch={train.tokens}")
    overrides += [
        f"{name}.offload={str(after[name].offload).lower()}"
        for name in names
        if after[name].offload != before[name].offload
    ]
    roles = tuple(after.get(role.role, role) for role in facts.roles)
    return _Option(kind=kind, overrides=tuple(overrides), facts=replace(facts, roles=roles))


def _moved(infer: RoleFacts, tp: int, *, shared: bool) -> RoleFacts:
    """A generator of this size; on shared devices vLLM moves to the host during updates."""
    if infer.backend != "vllm":
        return infer
    return replace(infer, tp=tp, offload=shared, movable=("kv", "weights") if shared else ())


def _cpu_options(facts: RunFacts, inventory: Inventory, bounds: PlanBounds) -> Iterator[_Option]:
    """Numbers of generators on CPU slots; an inline run has one placement."""
    train, infer = facts.role("actor_train"), facts.role("actor_infer")
    most = 1 if facts.inline else max(1, min(bounds.num_devices, inventory.num_devices) - 1)
    for num, (micro, num_tokens) in product(range(1, most + 1), enumerate((train.tokens // 2, train.tokens))):
        after = {"actor_train": replace(train, tokens=max(2, num_tokens))}
        workers = () if facts.inline else (f"actor_infer.workers={num}",)
        if not facts.inline:
            after["actor_infer"] = replace(infer, workers=num)
        tokens = () if num_tokens == train.tokens else (f"actor_train.tokens_per_microbatch={max(2, num_tokens)}",)
        roles = tuple(after.get(role.role, role) for role in facts.roles)
        yield _Option(kind=(num, micro), overrides=(*workers, *tokens), facts=replace(facts, roles=roles))


def _totals(most: int, node: int) -> list[int]:
    """Numbers of devices: all, and halves of it down to a quarter."""
    totals = {most, most // 2, most // 4} - {0}
    return sorted(total if total <= node else total // node * node for total in totals)


def _train_counts(total: int, node: int, train: RoleFacts) -> list[int]:
    """Numbers of training devices; 0 shares all."""
    if train.backend == "native":
        return [0, 1] if total > 1 else [0]
    step = node if total > 2 * node else max(1, total // 8)
    return [0, *range(step, total, step)]


def _divides_heads(infer: RoleFacts, tp: int) -> bool:
    return infer.model is None or infer.model.heads % tp == infer.model.kv_heads % tp == 0


def _text(first: int, end: int) -> str:
    return f"[{first}]" if end - first == 1 else f"'{first}-{end - 1}'"
