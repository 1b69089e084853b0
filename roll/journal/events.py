"""Typed records of everything that can happen to a run. Events are never removed: an undo is another event.

`step` is the number of completed steps once the event has happened: the first batch is trained in step 1, and a
checkpoint of step N contains the steps 1 to N. Class and field names are on disk: changing one raises
`database.FORMAT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.journal.event import Event as Event
from roll.journal.lending import DevicesLent as DevicesLent
from roll.journal.lending import DevicesReturned as DevicesReturned
from roll.types import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The controller started, or started again."""

    config_digest: str
    resumed_from: int | None = None
    """Step of the checkpoint it continues; None for a fresh run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRestarted(Event):
    """A supervisor started the controller again; recorded by the new one."""

    number: int
    """Restarts by this supervisor so far, including this one."""
    cause: str
    seconds: float
    """From the last heartbeat of the earlier controller to the start of the loop in this one."""
    taken_up: Mapping[str, float] = field(default_factory=dict[str, float])
    """Workers of the earlier controller that this one uses, with the seconds until their last calls had ended."""
    started: Mapping[str, float] = field(default_factory=dict[str, float])
    """Workers that were started, with the seconds that their processes took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdmitted(Event):
    """A group took a slot."""

    group: int
    task: str
    domain: str
    birth: int
    """Version that was published at that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEnded(Event):
    """An attempt ended, validly or not. Derived from the stored trajectory, never recorded separately."""

    group: int
    sibling: int
    status: Status
    reward: float | None
    """None for failed attempts: they have no reward, which is not a reward of zero."""
    reason: str
    num_tokens: int
    """Sampled tokens."""
    versions: tuple[int, int] | None
    """Oldest and newest version that sampled a token; None without tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRetried(Event):
    """A failed attempt starts again."""

    group: int
    sibling: int
    status: Status
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady(Event):
    """All siblings of a group are valid."""

    group: int
    siblings: tuple[int, ...] = ()
    """The siblings of the group where more were attempted; empty where there is no surplus."""
    rewards: tuple[float, ...] = ()
    """Rewards that task sampling has observed now; empty where a process before a restart has done that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed(Event):
    """A group was abandoned; its replacement is a new admission."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuarantined(Event):
    """The groups of a task failed too often in a row; it is not drawn again."""

    task: str
    source: str
    index: int
    """Index of the task in its source."""
    num_failed: int
    """Groups of it that failed in a row."""
    reason: str
    """Why the last one failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiltered(Event):
    """A filter rejected a complete group; its replacement is a new admission."""

    group: int
    reason: str
    rewards: tuple[float, ...] = ()
    """As in `GroupReady`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStale(Event):
    """A group became too old to train on; its task is attempted again before others."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDiverged(Event):
    """After a restart an environment responded differently; tokens sampled from this turn on are void."""

    group: int
    sibling: int
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Event):
    """A step starts to train on these groups."""

    step: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantagesAssigned(Event):
    """The attempts of a step have advantages."""

    step: int
    advantages: dict[int, dict[int, float | None]]
    """Mean over the sampled tokens of an attempt, by group and sibling; None if it is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HackSuspected(Event):
    """The rewarded responses of a step show a sign of reward hacking."""

    step: int
    domain: str
    sign: str
    """`identical`, `vocabulary` or `rise`."""
    reason: str
    """What was measured, in words."""
    attempts: tuple[str, ...] = ()
    """Examples, as `group.sibling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemNoticed(Event):
    """The metrics show a problem of the run, which begins with this step."""

    step: int
    kind: str
    """One of `roll.config.notices`."""
    metric: str
    """The metric that shows it."""
    reason: str
    """What was measured, in words."""
    domain: str = ""
    """Empty: the whole run."""
    metrics: tuple[str, ...] = ()
    """Metrics to look at."""
    keys: tuple[str, ...] = ()
    """Configuration keys to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemEnded(Event):
    """The metrics do not show a problem any more that was noticed before."""

    step: int
    kind: str
    metric: str
    reason: str
    since: int
    """Step of the `ProblemNoticed` with this kind and metric."""
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsUpdated(Event):
    """The step's update was applied, or refused because it was not finite."""

    step: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished(Event):
    """Every generator holds this version."""

    version: int
    step: int
    digest: str
    """Digest that the receivers attested, as text."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Duration of the publication, by part: hold, send, receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorReplaced(Event):
    """A generator died, and a new one serves under its rank."""

    generator: int
    version: int
    """Version that it was updated to before it served."""
    reason: str
    seconds: float = 0.0
    """From the loss to the replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorJoined(Event):
    """A generator joined the running job and serves."""

    generator: int
    node: str
    """`address:port`; empty if it is not known."""
    version: int
    digest: str
    """Digest of this version that it attested before it served, as in `WeightsPublished`."""
    seconds: float
    """From the start of its process until it served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorLeft(Event):
    """A generator left the running job; its requests continue on others."""

    generator: int
    reason: str
    num_requests: int
    """Requests that it was working on."""
    num_tokens: int
    """Tokens of these requests so far, which are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorRefused(Event):
    """A generator could not join; the run continues without it. `node` is as in `GeneratorJoined`."""

    generator: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReplaced(Event):
    """A trainer, another model, or a worker of rewards or environments died, and a new process has its state."""

    worker: str
    """Role and rank, such as `actor_train 0`; the first rank of a model that is sharded over several."""
    reason: str
    seconds: float
    """From the loss to the end of the repeated updates."""
    num_updates: int
    """Updates since the last saved state, which were repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMoved(Event):
    """The replacement of a worker was placed on another node."""

    worker: str
    """Role and rank, such as `actor_infer 1`."""
    before: str
    """The node before, as `address:port`."""
    after: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAwaited(Event):
    """The replacement of a worker had to wait, since no node had room for it."""

    worker: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsResumed(Event):
    """Replies that a change of version interrupted continue with the new version."""

    version: int
    num_requests: int
    num_tokens: int
    """Tokens of contexts and partial responses that were prefilled again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensGenerated(Event):
    """Counts over all generators since the last such event."""

    step: int
    tokens: int
    """Sampled tokens."""
    unrecorded: int
    """Of these, tokens of held-out attempts, which are not in the journal."""
    discarded: int
    """Of these, tokens of no attempt: received too late, or after the end of their response."""
    late: int
    """Replies that no request was waiting for."""
    bad: int
    """Replies that were inconsistent with their request."""
    redispatched: int
    """Requests sent to another generator because no response came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReleased(Event):
    """The step's slots are free."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRatioChanged(Event):
    """After this step, generation may run further ahead of training, or less far."""

    step: int
    max_staleness: float
    redundant_groups: int
    reason: str
    """What was measured, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFinished(Event):
    """Held-out tasks were attempted with one version."""

    step: int
    version: int
    metrics: dict[str, float | None]
    """None for a number that was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequestRefused(Event):
    """The proxy refused a client's request, or the client disconnected before the response; the run continues."""

    session: str
    """The attempt's session; empty if the request named no known one."""
    status: int
    """HTTP status; 499 for a client that disconnected."""
    reason: str
    count: int = 1
    """Number of such refusals since the last such event: of many alike only the first is recorded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is durable."""

    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """Steps after `to_step` no longer count."""

    to_step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The controller shut down cleanly."""

    step: int
    reason: str


KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
