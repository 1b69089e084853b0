"""The whole configuration, typed. Importing this module imports neither torch nor ray nor an engine.

Validation is pure: it reads no environment variable, clock, device or file. `roll.preflight` checks files and names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roll.config.algorithm import COMPARING, Algorithm
from roll.config.backends import Infer, Train, check_dtypes, check_logprobs, check_ranks, check_sglang
from roll.config.distillation import Distill, check_distill
from roll.config.envs import Envs, ProxyConfig
from roll.config.interrupt import InterruptConfig
from roll.config.lending import check_lending
from roll.config.lora import check_lora
from roll.config.model import SPECIAL_TOKENS as SPECIAL_TOKENS
from roll.config.model import Model as Model
from roll.config.model import Shape as Shape
from roll.config.monitoring import LoggingConfig, MetricsConfig
from roll.config.notices import NoticeKind
from roll.config.policies import Policy, check_policies
from roll.config.preferences import Dpo, RewardTraining, check_dpo, check_reward_training
from roll.config.quantization import check_quantization
from roll.config.roles import (
    ROLES,
    Critic,
    NativeInfer,
    NativeTrain,
    Optimizer,
    Ray,
    Reference,
    RewardModel,
    RoleConfig,
    Teacher,
    WeightSync,
    check_elastic,
    check_placement,
    check_transport,
)
from roll.config.rollout import Rollout as Rollout
from roll.config.rollout import check_adapt, check_reuse
from roll.config.section import Section, SpecConfig
from roll.config.sources import TaskSourceConfig, share_fault


class Rewards(Section):
    """The processes that score responses."""

    workers: int = Field(default=0, ge=0)
    """Processes; 0: the controller's own thread, where breakpoints work and a blocking reward blocks the run."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds per score, after which it fails and its process is killed; needs workers. `code` limits its own runs."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds to start a reward in a process: its import, and the `start` method of a class that has one."""
    max_retries: int = Field(default=2, ge=0)
    """Retries of a score after an infrastructure failure: its process died, or a sandbox or service failed. As many
    processes may die in place of a worker before its first start has succeeded."""
    audit: int = Field(default=8, ge=0)
    """Tasks per source on which the start of a run tries references and known cheats on built-in rewards; 0: none."""


class Validation(Section):
    """Evaluation on held-out tasks, greedy by default, with one version of the weights throughout."""

    tasks: tuple[TaskSourceConfig, ...] = ()
    every: int = Field(default=0, ge=0)
    """Steps between two validations; 0: only before the first and after the last step."""
    at_start: bool = True
    """Also validate the initial weights."""
    max_new_tokens: int | None = Field(default=None, gt=0)
    """None: as in training."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    samples: int = Field(default=1, gt=0)
    """Attempts per task; with several, pass@k and the accuracy of the majority vote are measured too."""

    @model_validator(mode="after")
    def _samples_differ(self) -> Validation:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples ({self.samples}) would all be the same at temperature 0; set a temperature, or samples to 1"
            )
        return self


class Checkpoint(Section):
    """When to save checkpoints, and which to keep."""

    every: int = Field(default=50, ge=0)
    """Steps between two checkpoints; 0: only at the end and on an interrupt."""
    every_minutes: float | None = Field(default=None, gt=0)
    """A checkpoint is also written after the step that ends so many minutes after the last one. None: never."""
    keep: int = Field(default=2, gt=0)
    """Number of newest checkpoints to keep, in addition to the best."""
    best_metric: str = "validation/reward"
    """The best checkpoint is the one with the highest value of this metric."""
    mirror: str | None = Field(default=None, pattern=r"^[a-z0-9+.-]+://.")
    """URL to which each checkpoint is copied, such as `s3://bucket/runs`; the run's name is appended. None: no copy."""


class Tracking(Section):
    """Outputs of a run in addition to the terminal and `metrics.jsonl`."""

    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: str | None = None
    """Project name; needs the extra `roll-rl[wandb]`."""
    swanlab: str | None = None
    """Project name; needs the extra `roll-rl[swanlab]`."""
    slow_phase_s: float = Field(default=30.0, gt=0)
    """Seconds after which a phase of a step is reported as slow, and at least five times its median so far."""
    silenced: tuple[NoticeKind, ...] = ()
    """Kinds of notices that are neither shown nor recorded."""
    sinks: tuple[SpecConfig, ...] = ()
    """Your own classes with `write(step, metrics)` and `close()`."""


class JournalConfig(Section):
    """Retention of the record of every sample."""

    keep_steps: int | None = Field(default=None, gt=0)
    """Newest steps whose trajectories keep their tokens; events are always kept. None: all steps."""


class Sft(Section):
    """The supervised warm start of `roll sft` on the answers of `tasks`."""

    tasks: tuple[TaskSourceConfig, ...] = ()
    """Empty: those of the run."""
    steps: int = Field(default=200, gt=0)
    """Optimizer steps."""
    batch_size: int = Field(default=64, gt=0)
    """Examples per step."""
    validate_every: int = Field(default=10, gt=0)
    """Steps between two validations."""
    stop_at_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Stop as soon as held-out accuracy reaches this value."""
    scripted_agent: SpecConfig | None = None
    """Runs the environments of the tasks; its responses are the training data. None: the answers of the tasks are."""
    target: Literal["last", "all"] = "last"
    """Which turns of the assistant in a chat are trained on: the last one, or all."""
    optimizer: Optimizer = Optimizer(lr=1e-3)


class Run(Section):
    """A whole configuration file."""

    name: str = Field(default="run", pattern=r"^[\w+-][\w.+-]*$")
    """Name of the run's directory."""
    directory: str = "runs"
    """The run is saved in `directory/name`."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random choices: initial weights, sampled tokens, order of tasks."""
    deterministic: bool = False
    """Guarantee the same parameters and metrics for the same seed; settings that prevent this are errors."""
    executor: Literal["inline", "ray"] = "inline"
    """`inline` runs all roles in one process and one thread; `ray` runs each in its own processes."""
    ray: Ray = Ray()
    threads: int = Field(default=0, ge=0)
    """CPU threads for tensor operations; 0: torch's default."""
    steps: int = Field(default=100, gt=0)
    """Training steps."""
    model: Model
    algorithm: Algorithm
    tasks: tuple[TaskSourceConfig, ...] = Field(min_length=1)
    rollout: Rollout = Rollout()
    actor_train: Train = NativeTrain()
    actor_infer: Infer = NativeInfer()
    weight_sync: WeightSync = WeightSync()
    policies: tuple[Policy, ...] = ()
    """Separate weights per agent, for environments with several agents; empty: all agents share the weights."""
    critic: Critic = Critic()
    reference: Reference = Reference()
    teacher: Teacher | None = None
    reward_model: RewardModel | None = None
    rewards: Rewards = Rewards()
    envs: Envs = Envs()
    proxy: ProxyConfig = ProxyConfig()
    validation: Validation = Validation()
    checkpoint: Checkpoint = Checkpoint()
    interrupt: InterruptConfig = InterruptConfig()
    tracking: Tracking = Tracking()
    callbacks: tuple[SpecConfig, ...] = ()
    """Your own classes with `on_step(step, metrics)`, called after each step in the process of the loop."""
    journal: JournalConfig = JournalConfig()
    metrics: MetricsConfig = MetricsConfig()
    logging: LoggingConfig = LoggingConfig()
    sft: Sft = Sft()
    dpo: Dpo | None = None
    reward_training: RewardTraining | None = None
    distill: Distill | None = None

    @property
    def needs(self) -> frozenset[str]:
        """Inputs of the algorithm beyond the batch; includes a reward model if the file has one."""
        scored = frozenset[str]() if self.reward_model is None else frozenset({"reward_model"})
        return self.algorithm.all_needs | scored

    @property
    def preference_sections(self) -> tuple[Dpo | RewardTraining, ...]:
        """The sections of commands that train on preferences."""
        return tuple(section for section in (self.dpo, self.reward_training) if section is not None)

    @property
    def num_actor_updates(self) -> int:
        """Optimizer steps of the actor in the whole run; it makes none while the critic is trained alone."""
        return max(0, self.steps - self.algorithm.critic_warmup) * self.algorithm.num_updates

    @property
    def shares_module(self) -> bool:
        """Whether trainer and generator are one module, which an optimizer step updates for both."""
        native = self.actor_infer.backend == "native" and self.actor_train.dtype == "float32"
        return native and self.executor == "inline" and self.rollout.max_age == 0

    @property
    def reference_is_base(self) -> bool:
        """Whether the reference is the actor without its adapters, so that no separate model is started for it."""
        return self.actor_train.lora is not None and self.reference.path is None

    @model_validator(mode="after")
    def _sequences_fit(self) -> Run:
        if self.rollout.max_new_tokens >= self.rollout.max_seq_len:
            raise ValueError(
                f"rollout.max_new_tokens ({self.rollout.max_new_tokens}) leaves no room for a prompt in "
                f"rollout.max_seq_len ({self.rollout.max_seq_len})"
            )
        if self.actor_train.tokens_per_microbatch < self.rollout.max_seq_len:
            raise ValueError(
                f"actor_train.tokens_per_microbatch ({self.actor_train.tokens_per_microbatch}) is smaller than one "
                f"sequence may be; raise it to at least rollout.max_seq_len ({self.rollout.max_seq_len})"
            )
        if self.model.shape is not None and self.rollout.max_seq_len > self.model.shape.max_seq_len:
            raise ValueError(
                f"rollout.max_seq_len ({self.rollout.max_seq_len}) exceeds model.shape.max_seq_len "
                f"({self.model.shape.max_seq_len})"
            )
        return self

    @model_validator(mode="after")
    def _roles_are_described(self) -> Run:
        for role in ("teacher", "reward_model"):
            if role in self.needs and getattr(self, role) is None:
                raise ValueError(f"{role}: the algorithm needs one; add `{role}: {{path: ...}}`")
        if self.teacher is not None and "teacher" not in self.needs and self.distill is None:
            raise ValueError(
                "teacher: the algorithm does not use one; leave it out, take the recipe `opd`, or add `distill`"
            )
        trajectories = self.rollout.groups_per_step * self.rollout.group_size
        if self.algorithm.minibatches > trajectories:
            raise ValueError(
                f"algorithm.minibatches ({self.algorithm.minibatches}): a step has only {trajectories} trajectories; "
                "lower it"
            )
        if self.rollout.group_size == 1 and self.algorithm.advantage.kind in COMPARING:
            raise ValueError(
                f"rollout.group_size (1): {self.algorithm.advantage.kind} compares attempts at one task with each "
                "other; make it 2 or more, or take another algorithm.advantage, such as batch_normalised"
            )
        return self

    @model_validator(mode="after")
    def _workers_can_be_placed(self) -> Run:
        if self.envs.executor == "ray" and self.executor != "ray":
            raise ValueError("envs.executor (ray): the run itself has no Ray; set executor to ray, or leave it out")
        roles = {role: getattr(self, role) for role in ROLES}
        check_placement(self.executor, roles, self.ray)
        actor: dict[str, RoleConfig] = {"actor_train": self.actor_train, "actor_infer": self.actor_infer}
        check_transport(self.executor, self.weight_sync.transport, actor)
        check_elastic(self.executor, self.weight_sync.transport, self.actor_infer, self.ray, len(self.policies))
        check_lending(self.executor, self.weight_sync.transport, self.actor_infer, self.rollout, len(self.policies))
        check_ranks(self.executor, roles)
        check_policies(self.policies, self.tasks, needs=self.needs, engines=(self.actor_train, self.actor_infer))
        check_sglang(self.executor, self.actor_infer, self.actor_train.lora, len(self.policies))
        check_dtypes(self.actor_train.dtype, self.actor_infer, self.actor_train.lora)
        check_quantization(self.actor_infer, self.actor_train, self.algorithm, self.actor_train.lora)
        check_logprobs(self.actor_infer, self.algorithm, self.rollout.staleness_bounds[1])
        check_reuse(self.rollout, self.algorithm)
        if self.dpo is not None:
            check_dpo(self.dpo, adapters=self.actor_train.lora is not None, reference_path=self.reference.path)
        if self.reward_training is not None:
            check_reward_training(self.reward_training, adapters=self.actor_train.lora is not None)
        if self.distill is not None:
            check_distill(self.distill, self.actor_train, self.teacher)
        check_adapt(self.rollout, self.steps, deterministic=self.deterministic)
        if self.actor_train.lora is not None:
            parallel = getattr(self.actor_train, "parallel", None)
            check_lora(self.actor_train.lora, shape=self.model.shape, parallel=parallel, reference=self.reference)
        return self

    @model_validator(mode="after")
    def _accuracy_can_be_measured(self) -> Run:
        if self.sft.stop_at_accuracy is not None and not self.validation.tasks:
            raise ValueError("sft.stop_at_accuracy: there is no held-out accuracy without validation.tasks; add some")
        return self

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Run:
        for where, sources in (("tasks", self.tasks), ("validation.tasks", self.validation.tasks)):
            names = [source.name for source in sources]
            if len(names) != len(set(names)):
                raise ValueError(f"{where}: two sources share a name; give each its own")
        if fault := share_fault(self.tasks):
            raise ValueError(f"tasks: {fault}")
        return self

    @model_validator(mode="after")
    def _settings_are_read(self) -> Run:
        sampled = ("max_new_tokens", "temperature", "top_p", "top_k", "filters", "task_sampling", "algorithm")
        ordered = ("curriculum", "share_schedule")
        for where, sources, unread in (
            ("validation.tasks", self.validation.tasks, (*sampled, *ordered)),
            ("sft.tasks", self.sft.tasks, sampled),
            ("distill.tasks", () if self.distill is None else self.distill.tasks, (*sampled, *ordered)),
        ):
            for source in sources:
                if names := [name for name in unread if getattr(source, name) is not None]:
                    raise ValueError(
                        f"{where}: {source.name!r} has {', '.join(names)}, which only training reads; remove it"
                    )
        for source in self.tasks:
            if (source.max_new_tokens or 0) >= self.rollout.max_seq_len:
                raise ValueError(
                    f"tasks: max_new_tokens of {source.name!r} ({source.max_new_tokens}) leaves no room for a prompt "
                    f"in rollout.max_seq_len ({self.rollout.max_seq_len})"
                )
        return self

    @model_validator(mode="after")
    def _scores_can_be_repeated(self) -> Run:
        for where, sources in (("tasks", self.tasks), ("validation.tasks", self.validation.tasks)):
            for index, source in enumerate(sources):
                for reward in source.reward.entries if self.deterministic and source.reward else ():
                    if reward.kind in ("judge", "remote"):
                        raise ValueError(
                            f"{where}.{index}.reward: deterministic, and {reward.kind!r} may score the same reply "
                            "differently the next time; choose another reward, or set deterministic to false"
                        )
        return self

    @model_validator(mode="after")
    def _check_deterministic(self) -> Run:
        rollout, attempts = self.rollout, "otherwise timing decides which attempts are used"
        zeros = (
            ("rollout.redundant_groups", rollout.redundant_groups, attempts),
            ("rollout.redundant_siblings", rollout.redundant_siblings, attempts),
            ("rewards.workers", self.rewards.workers, "with a timeout timing decides which scores there are"),
        )
        faults = [
            f" needs {key} 0 (got {number}): {reason}; set one of the two to 0 or false"
            for key, number, reason in zeros
            if number
        ]
        if rollout.max_staleness > rollout.replay_steps:
            faults.insert(
                0,
                f" needs rollout.max_staleness {rollout.replay_steps} (got {rollout.max_staleness}): above it timing "
                f"decides which weights sample a token; set one of the two to {rollout.replay_steps} or false",
            )
        if rollout.stop_quantile is not None:
            faults.append(": with rollout.stop_quantile timing decides which attempts are stopped; leave it out")
        if rollout.env_timeout_s is not None:
            faults.append(": with rollout.env_timeout_s timing decides what fails; leave it out")
        if rollout.concurrency == "adaptive":
            faults.append(": adaptive rollout.concurrency depends on timing; give a number, or leave it out")
        backend, dtype = self.actor_infer.backend, self.actor_train.dtype
        if backend != "native":
            reason = f"tokens of backend {backend} depend on the other requests of a batch"
            faults.append(f": {reason}; set actor_infer.backend to native, or deterministic to false")
        elif dtype != "float32":
            reason = f"with {dtype} tokens depend on the other requests of a batch"
            faults.append(f": {reason}; set actor_train.dtype to float32, or deterministic to false")
        if self.deterministic and faults:
            raise ValueError(f"deterministic{faults[0]}")
        return self
