"""What can happen to a run, as typed records. Nothing here is ever taken back: an undo is an event of its own.

`step` says how many steps are done once the thing has happened: the first batch is trained in step 1, and a checkpoint
of step N contains the steps 1 to N.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roll.types import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Anything that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The controller began, or began again."""

    config_digest: str
    resumed_from: int | None = None
    """Step of the checkpoint it continues; None for a fresh run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Event):
    """A group took a slot."""

    group: int
    task: str
    domain: str
    birth: int
    """The version that was published then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEnded(Event):
    """An attempt came to its end, good or bad. It is never recorded by itself: the trajectory that is kept says it."""

    group: int
    sibling: int
    status: Status
    reward: float | None
    """None for attempts that failed: they have no reward, which is not a reward of zero."""
    reason: str
    num_tokens: int
    """Sampled ones."""
    versions: tuple[int, int] | None
    """Oldest and newest version that sampled a token; None without tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Event):
    """A failed attempt is made anew."""

    group: int
    sibling: int
    status: Status
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady(Event):
    """All siblings are valid."""

    group: int
    siblings: tuple[int, ...] = ()
    """Those that make it up, where more were attempted; empty where none was to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed(Event):
    """A group was given up; its replacement is a new admission."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiltered(Event):
    """A complete group was found not worth training on; its replacement is a new admission."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStale(Event):
    """A group became too old to be trained on; its task is attempted again before others."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged(Event):
    """After a restart an environment said something else than before; what was sampled from this turn on is void."""

    group: int
    sibling: int
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Event):
    """A step begins to train on these groups."""

    step: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated(Event):
    """The step's update was made, or refused for not being finite."""

    step: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """Every generator holds this version."""

    version: int
    step: int
    digest: str
    """What the receivers attested, as text."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """What the change took, by part: hold, send, receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced(Event):
    """A generator died, and another serves in its place."""

    generator: int
    version: int
    """What it was brought to before it served."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """Replies that a change of version had cut go on with it."""

    version: int
    requests: int
    tokens: int
    """Contexts and partial replies that had to be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated(Event):
    """What all generators sampled since the last such event."""

    step: int
    tokens: int
    aborted: int
    """Of these, tokens that belong to no attempt any more: broken off, or answered too late."""
    late: int
    """Answers that nobody was waiting for."""
    bad: int
    """Answers that could not be true."""
    redispatched: int
    """Requests sent elsewhere for want of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """The step's slots are free."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Event):
    """Held-out tasks were attempted with one version."""

    step: int
    version: int
    metrics: dict[str, float | None]
    """None where a number was not finite."""
    num_tokens: int = 0
    """Sampled for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRefused(Event):
    """A client of the proxy got no reply to a request, or went away before it came; the run goes on."""

    session: str
    """Which attempt's; empty where the request named none that is known."""
    status: int
    """As HTTP has it; 499 for a client that went away."""
    why: str
    times: int = 1
    """So often since the last such event: of many alike only the first is written down at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """A checkpoint is durable."""

    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """What later steps than `to_step` did no longer counts."""

    to_step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The controller left in good order."""

    step: int
    why: str


KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
