"""Every knob, typed. Importing this module imports neither torch nor ray nor an engine.

Validation is pure: no environment, clock, device or file. What can only be known by looking at files and names is
`roll.preflight`'s.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from roll.config.algorithm import COMPARING, Algorithm
from roll.config.envs import Envs
from roll.config.fsdp import Train, check_ranks
from roll.config.lora import check_lora
from roll.config.policies import Policy, check_policies
from roll.config.proxy import Proxy
from roll.config.publication import Publication
from roll.config.roles import (
    ROLES,
    Critic,
    NativeInfer,
    NativeTrain,
    Optimizer,
    Ray,
    Reference,
    RewardModel,
    Teacher,
    check_places,
)
from roll.config.section import Named as Named
from roll.config.section import Section
from roll.config.sources import Source
from roll.config.vllm import Infer, VllmInfer, check_dtypes, check_logprobs


class Shape(Section):
    """A small model built from scratch, with a tokenizer of one token a character."""

    architecture: Literal["llama", "qwen2", "qwen3"] = "qwen3"
    alphabet: str = Field(default="0123456789+-*/=() abcdefghijklmnopqrstuvwxyz.,?!:\n", min_length=1)
    hidden: int = Field(default=128, gt=0)
    layers: int = Field(default=4, gt=0)
    heads: int = Field(default=4, gt=0)
    kv_heads: int = Field(default=2, gt=0)
    mlp: int = Field(default=384, gt=0)
    """Width of the feed-forward layer."""
    context: int = Field(default=512, gt=1)
    """Longest sequence the model is made for."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Shape:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden ({self.hidden}) must be an even multiple of heads ({self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self


class Model(Section):
    """Which weights to start from: a Hugging Face directory, or a shape to initialise."""

    path: str | None = None
    """A directory with config.json, *.safetensors and a tokenizer."""
    shape: Shape | None = None
    template: Literal["auto", "chat", "plain", "last"] = "auto"
    """How messages become text: the tokenizer's chat template, or contents end to end. `auto`: chat if there is one.
    `last`: the last message alone, for environments that show all there is to know in each."""

    @model_validator(mode="after")
    def _one_origin(self) -> Model:
        if (self.path is None) == (self.shape is None):
            raise ValueError("give exactly one of 'path' (a model directory) and 'shape' (a model to build)")
        return self


class Rollout(Section):
    """How much is generated for one step, how, and how far ahead."""

    groups_per_step: int = Field(default=8, gt=0)
    group_size: int = Field(default=8, gt=0)
    """Attempts at one task; baselines are taken across them."""
    max_staleness: float = Field(default=0.0, ge=0)
    """Most steps that may lie between the weights that sampled a token and the step that trains it; 0: synchronous."""
    context: int = Field(default=1024, gt=1)
    """Most tokens of one sequence, prompt and replies together."""
    context_policy: Literal["stop", "drop_oldest"] = "stop"
    """What becomes of an attempt without room for another turn: it is cut there, or goes on without its oldest turns,
    in a new sequence. What the environment opened with is never dropped."""
    segment_per: Literal["trajectory", "turn"] = "trajectory"
    """What a trained sequence is: a trajectory, as far as what is said can be appended to it, or each turn of it after
    all that stood before."""
    max_new_tokens: int = Field(default=256, gt=0)
    """Most tokens of one reply."""
    max_turns: int = Field(default=32, gt=0)
    """Most replies of one trajectory, whatever its environment says."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 means all tokens."""
    stop: tuple[str, ...] = ()
    """Tokens that end a reply besides the model's end-of-sequence."""
    max_retries: int = Field(default=2, ge=0)
    """How often a failed attempt is made anew before its group is given up and replaced."""
    max_failed_groups: int = Field(default=16, ge=0)
    """Groups given up in a row before the run stops: by then it is not bad luck."""
    max_filtered_groups: int = Field(default=256, ge=0)
    """Groups filtered in a row before the run stops: by then there is nothing left to learn from these tasks."""
    redundant_groups: int = Field(default=0, ge=0)
    """Groups under way beyond those that staleness allows; the first to be complete are trained on."""
    redundant_siblings: int = Field(default=0, ge=0)
    """Attempts of a group beyond `group_size`; the first to end well are trained on."""
    concurrency: Annotated[int, Field(gt=0)] | Literal["adaptive"] | None = None
    """Most requests that one generator holds; `adaptive` finds it by how often memory runs out. None: no limit."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without a sign of life after which a request is sent to another generator, with its tokens."""
    env_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds after which an environment that has not answered has failed. None: it may take for ever."""

    @property
    def num_slots(self) -> int:
        """Groups that may be under way: admitted and not yet part of published weights."""
        return math.floor((self.max_staleness + 1) * self.groups_per_step)


class Rewards(Section):
    """Where replies are scored."""

    workers: int = Field(default=0, ge=0)
    """Processes that score; 0 scores in the controller's own thread: a breakpoint works, and what hangs, hangs."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds after which a score that has not come is given up and its process killed; needs workers."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """The same for the start of a reward in a process: its import, and its `start` if it is a class that has one."""
    max_retries: int = Field(default=2, ge=0)
    """How often a score is asked for again after a failure of ours: its process died, a sandbox or a service failed."""


class Validation(Section):
    """Evaluation on held-out tasks, greedy unless said, pinned to one version of the weights."""

    tasks: tuple[Source, ...] = ()
    every: int = Field(default=0, ge=0)
    """Steps between two validations; 0 means only before the first and after the last."""
    at_start: bool = True
    max_new_tokens: int | None = Field(default=None, gt=0)
    """None: as in training."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    samples: int = Field(default=1, gt=0)
    """Attempts at each task; with several, pass@k and the majority's accuracy are measured too."""

    @model_validator(mode="after")
    def _samples_differ(self) -> Validation:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples ({self.samples}) would all be the same at temperature 0; set a temperature, or samples to 1"
            )
        return self


class Checkpoint(Section):
    """What survives."""

    every: int = Field(default=50, ge=0)
    """Steps between two checkpoints; 0 means only at the end and on an interrupt."""
    keep: int = Field(default=2, gt=0)
    """Newest checkpoints that are kept, besides the best."""
    best: str = "validation/reward"
    """The metric whose highest value marks the best checkpoint."""


class Tracking(Section):
    """Where metrics go besides the terminal and `metrics.jsonl`."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project name; needs the extra `roll[wandb]`."""
    swanlab: str | None = None
    """Project name; needs the extra `roll[swanlab]`."""


class Journal(Section):
    """The record of every sample."""

    keep_steps: int | None = Field(default=None, gt=0)
    """Trajectories of older steps lose their tokens; their events stay. None keeps all."""


class Sft(Section):
    """The supervised warm start of `roll sft`: the answers of `tasks`, token by token."""

    tasks: tuple[Source, ...] = ()
    """Empty: those of the run."""
    steps: int = Field(default=200, gt=0)
    batch_size: int = Field(default=64, gt=0)
    validate_every: int = Field(default=10, gt=0)
    stop_at: float | None = Field(default=None, gt=0, le=1)
    """Stop once held-out accuracy has reached this."""
    player: Named | None = None
    """Plays the tasks, which have an environment, and its replies are learnt; None: tasks have answers of their own."""
    optimizer: Optimizer = Optimizer(lr=1e-3)


class Run(Section):
    """The whole file."""

    name: str = Field(default="run", pattern=r"^[\w+-][\w.+-]*$")
    directory: str = "runs"
    """Runs are kept in `directory/name`."""
    seed: int = Field(default=0, ge=0)
    deterministic: bool = False
    """Promise the same parameters and metrics for the same seed; refuses what cannot keep the promise."""
    executor: Literal["inline", "ray"] = "inline"
    """`inline` keeps all roles in one process and one thread; `ray` gives each processes of its own."""
    ray: Ray = Ray()
    threads: int = Field(default=0, ge=0)
    """CPU threads for tensor arithmetic; 0 leaves it to torch."""
    steps: int = Field(default=100, gt=0)
    model: Model
    algorithm: Algorithm
    tasks: tuple[Source, ...] = Field(min_length=1)
    rollout: Rollout = Rollout()
    actor_train: Train = NativeTrain()
    actor_infer: Infer = NativeInfer()
    publication: Publication = Publication()
    policies: tuple[Policy, ...] = ()
    """Which agents have weights of their own, where environments have several agents; empty: all have the same."""
    critic: Critic = Critic()
    reference: Reference = Reference()
    teacher: Teacher | None = None
    reward_model: RewardModel | None = None
    rewards: Rewards = Rewards()
    envs: Envs = Envs()
    proxy: Proxy = Proxy()
    validation: Validation = Validation()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    journal: Journal = Journal()
    sft: Sft = Sft()

    @property
    def needs(self) -> frozenset[str]:
        """What the algorithm reads beyond the batch; a reward model is asked wherever one is named."""
        judged = frozenset[str]() if self.reward_model is None else frozenset({"reward_model"})
        return self.algorithm.all_needs | judged

    @property
    def reference_is_base(self) -> bool:
        """Whether the reference is the actor without its adapters: no model of its own is started for it."""
        return self.actor_train.lora is not None and self.reference.path is None

    @model_validator(mode="after")
    def _sequences_fit(self) -> Run:
        if self.rollout.max_new_tokens >= self.rollout.context:
            raise ValueError(
                f"rollout.max_new_tokens ({self.rollout.max_new_tokens}) leaves no room for a prompt in "
                f"rollout.context ({self.rollout.context})"
            )
        if self.actor_train.tokens_per_microbatch < self.rollout.context:
            raise ValueError(
                f"actor_train.tokens_per_microbatch ({self.actor_train.tokens_per_microbatch}) is smaller than one "
                f"sequence may be; raise it to at least rollout.context ({self.rollout.context})"
            )
        if self.model.shape is not None and self.rollout.context > self.model.shape.context:
            raise ValueError(
                f"rollout.context ({self.rollout.context}) exceeds model.shape.context ({self.model.shape.context})"
            )
        return self

    @model_validator(mode="after")
    def _roles_are_described(self) -> Run:
        for role in ("teacher", "reward_model"):
            if role in self.needs and getattr(self, role) is None:
                raise ValueError(f"{role}: the algorithm needs one; add `{role}: {{path: ...}}`")
        if self.teacher is not None and "teacher" not in self.needs:
            raise ValueError("teacher: nothing in the algorithm asks one; leave it out, or take the recipe `opd`")
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
        check_places(self.executor, {role: getattr(self, role) for role in ROLES}, self.ray)
        check_ranks(self.executor, self.actor_train)
        check_policies(self.policies, self.tasks, needs=self.needs, engines=(self.actor_train, self.actor_infer))
        check_dtypes(self.actor_train.dtype, self.actor_infer)
        check_logprobs(self.actor_infer, self.algorithm, self.rollout.max_staleness)
        if self.actor_train.lora is not None:
            parallel = getattr(self.actor_train, "parallel", None)
            check_lora(self.actor_train.lora, shape=self.model.shape, parallel=parallel, reference=self.reference)
        return self

    @model_validator(mode="after")
    def _accuracy_can_be_measured(self) -> Run:
        if self.sft.stop_at is not None and not self.validation.tasks:
            raise ValueError("sft.stop_at: there is no held-out accuracy without validation.tasks; add some")
        return self

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Run:
        for where, sources in (("tasks", self.tasks), ("validation.tasks", self.validation.tasks)):
            names = [source.name for source in sources]
            if len(names) != len(set(names)):
                raise ValueError(f"{where}: two sources share a name; give each its own")
        return self

    @model_validator(mode="after")
    def _settings_are_read(self) -> Run:
        sampled = ("max_new_tokens", "temperature", "top_p", "top_k", "filters", "sampling", "algorithm")
        for where, sources, unread in (
            ("validation.tasks", self.validation.tasks, (*sampled, "curriculum")),
            ("sft.tasks", self.sft.tasks, sampled),
        ):
            for source in sources:
                if found := source.given(*unread):
                    raise ValueError(
                        f"{where}: {source.name!r} has {', '.join(found)}, which only training reads; remove it"
                    )
        for source in self.tasks:
            if (source.max_new_tokens or 0) >= self.rollout.context:
                raise ValueError(
                    f"tasks: max_new_tokens of {source.name!r} ({source.max_new_tokens}) leaves no room for a prompt "
                    f"in rollout.context ({self.rollout.context})"
                )
        return self

    @model_validator(mode="after")
    def _scores_can_be_repeated(self) -> Run:
        for where, sources in (("tasks", self.tasks), ("validation.tasks", self.validation.tasks)):
            for index, source in enumerate(sources):
                for named in source.reward.asked if self.deterministic and source.reward else ():
                    if named.kind in ("judge", "remote"):
                        raise ValueError(
                            f"{where}.{index}.reward: deterministic, and {named.kind!r} may say something else of the "
                            "same reply the next time; choose another reward, or set deterministic to false"
                        )
        return self

    @model_validator(mode="after")
    def _promise_can_be_kept(self) -> Run:
        if self.deterministic and self.rollout.max_staleness > 0:
            raise ValueError(
                f"deterministic needs rollout.max_staleness 0 (got {self.rollout.max_staleness}): "
                "above it the clock decides which weights sample a token; set one of the two to 0 or false"
            )
        for name in ("redundant_groups", "redundant_siblings"):
            if self.deterministic and getattr(self.rollout, name):
                raise ValueError(
                    f"deterministic needs rollout.{name} 0 (got {getattr(self.rollout, name)}): "
                    "otherwise the clock decides who wins; set one of the two to 0 or false"
                )
        if self.deterministic and self.rollout.env_timeout_s is not None:
            raise ValueError("deterministic: with rollout.env_timeout_s the clock decides what fails; leave it out")
        if self.deterministic and self.rollout.concurrency == "adaptive":
            raise ValueError(
                "deterministic: rollout.concurrency is adaptive to the clock; give a number, or leave it out"
            )
        if self.deterministic and isinstance(self.actor_infer, VllmInfer):
            raise ValueError(
                "deterministic: backend vllm draws its own noise and its tokens depend on their company; "
                "set actor_infer.backend to native, or deterministic to false"
            )
        if self.deterministic and self.rewards.workers:
            raise ValueError(
                f"deterministic needs rewards.workers 0 (got {self.rewards.workers}): "
                "with a limit of time the clock decides which scores there are; set one of the two to 0 or false"
            )
        return self
