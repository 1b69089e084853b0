"""The entries of `tasks`: the data of one domain, the order of its tasks, and how attempts are rewarded."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from string import Formatter
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from roll.config.algorithm import DomainAlgorithm
from roll.config.envs import Agent
from roll.config.reward import Reward
from roll.config.section import Section, SpecConfig

_KINDS = {".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".parquet": "parquet"}
"""Dataset kinds by file extension."""


class Fields(Section):
    """Maps the parts of a task to fields of a row, by name or dotted path. Other fields become metadata."""

    prompt: str | None = Field(default=None, min_length=1)
    """The field with the prompt as text; None: `prompt`."""
    messages: str | None = Field(default=None, min_length=1)
    """The field with a list of role and content; None: `messages`."""
    answer: str | None = Field(default=None, min_length=1)
    """None: `answer`."""
    id: str | None = Field(default=None, min_length=1)
    """None: `id`, or the number of the row."""
    seed: str | None = Field(default=None, min_length=1)
    """None: `seed`, or the number of the row."""
    template: str | None = Field(default=None, min_length=1)
    """Builds the prompt: `{question}` is replaced by that field of the row; `{{` and `}}` are braces."""
    system: str | None = Field(default=None, min_length=1)
    """Content of a system message before all others."""
    metadata: dict[str, str] = Field(default={})
    """Further fields for rewards and environments: name in the metadata to path in the row."""
    constants: dict[str, Any] = Field(default={})
    """Fields that override those of every row."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Fields:
        origins = [name for name in ("prompt", "messages", "template") if getattr(self, name) is not None]
        if len(origins) > 1:
            raise ValueError(f"{' and '.join(map(repr, origins))} both make the prompt; keep one of them")
        return self

    @model_validator(mode="after")
    def _template_names_fields(self) -> Fields:
        try:
            pieces = list(Formatter().parse(self.template or ""))
        except ValueError as error:
            raise ValueError(f"template: {error}; write {{{{ and }}}} for braces") from None
        for _, name, form, conversion in pieces:
            if name is not None and (not name.strip() or form or conversion):
                raise ValueError(f"template: {{{name}}} names no field; write {{field}}, or {{{{ and }}}} for braces")
        return self


class Difficulty(Section):
    """Draws tasks with a pass rate near the target more often; a task without one counts as at the target."""

    kind: Literal["difficulty"] = "difficulty"
    """The only way to draw besides random permutations."""
    target: float = Field(default=0.5, ge=0, le=1)
    """The pass rate that is drawn most often."""
    exploration: float = Field(default=0.2, gt=0, le=1)
    """Fraction of the draws that go to the least drawn tasks, regardless of pass rate."""


class Curriculum(Section):
    """Easy tasks first: the fraction of tasks that can be drawn grows linearly."""

    by: str = Field(min_length=1)
    """The metadata field with the difficulty of a task, as a number."""
    steps: int = Field(gt=0)
    """Draws from this source until all of its tasks can be drawn."""


class ShareSchedule(Section):
    """Changes the share of a source linearly over the steps of a run, from `share` to `end`."""

    end: float = Field(ge=0)
    """Share from step `begin + steps` on."""
    steps: int = Field(gt=0)
    """Steps over which the share changes."""
    begin: int = Field(default=0, ge=0)
    """Number of finished steps at which the change begins."""


def share_at(share: float, schedule: ShareSchedule | None, step: int) -> Fraction:
    """The share after this many finished steps, exact for decimals: 0.1 is a tenth."""
    start = Fraction(str(share))
    if schedule is None:
        return start
    progress = min(Fraction(max(step - schedule.begin, 0), schedule.steps), Fraction(1))
    return start + (Fraction(str(schedule.end)) - start) * progress


def share_fault(sources: Sequence[TaskSourceConfig]) -> str:
    """Why the shares of these sources cannot divide the groups of every step; empty if they can."""
    schedules = [source.share_schedule for source in sources if source.share_schedule is not None]
    knots = {0, *(each.begin for each in schedules), *(each.begin + each.steps for each in schedules)}
    for step in sorted(knots):
        if not any(share_at(source.share, source.share_schedule, step) for source in sources):
            return f"all shares are 0 after step {step}; give a source a share there"
    return ""


class TaskSourceConfig(Section):
    """Tasks of one domain, with their environment and reward."""

    name: str = Field(min_length=1)
    """The domain, used in metrics."""
    data: SpecConfig | None = None
    """A .jsonl or .parquet file, a dataset by name (`{kind: hf, path: ..., split: ...}`), or a function that returns
    tasks. None: the environment generates them."""
    fields: Fields | None = None
    """Names of the parts of a task in the rows of a file; None: prompt or messages, answer, id, seed."""
    env: SpecConfig = SpecConfig(kind="single_turn")
    """Environment of each attempt; `single_turn` ends after one response."""
    agent: Agent | None = None
    """A program that runs each attempt through the proxy of the run, instead of an environment."""
    reward: Reward | None = None
    """Scores the last response; a list of rewards is a weighted sum. None if the environment gives the rewards."""
    share: float = Field(default=1.0, ge=0)
    """Share of the groups of a step, relative to the other sources; 0 only at the start of a schedule."""
    share_schedule: ShareSchedule | None = None
    """Course of the share over the run; None: it stays."""
    limit: int | None = Field(default=None, gt=0)
    """Use only the first `limit` tasks."""
    dedup: Literal["exact", "normalised"] | None = None
    """Leave out duplicates of earlier and of held-out prompts: `exact` (or true) ones, or also those that differ only
    in case, spaces and Unicode forms (`normalised`). None (or false): only count those of held-out prompts."""
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    """Leave out longer prompts; None: a prompt that fills `rollout.max_seq_len` is an error."""
    task_sampling: Difficulty | None = None
    """How the next task is drawn; None: random permutations of all tasks."""
    curriculum: Curriculum | None = None
    max_new_tokens: int | None = Field(default=None, gt=0)
    """Most tokens per response; here and in the three keys below, None: as in `rollout`."""
    temperature: float | None = Field(default=None, gt=0)
    """Divides the logits before sampling."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the smallest set of tokens with at least this probability."""
    top_k: int | None = Field(default=None, ge=0)
    """Sample from this many of the most likely tokens; 0: all tokens."""
    filters: tuple[SpecConfig, ...] | None = Field(default=None, strict=False)  # arrives as a list from `_expand`
    """Select groups that are replaced instead of trained on; None: as in the algorithm."""
    algorithm: DomainAlgorithm | None = None
    """Overrides of the run's algorithm for this domain. Baselines and statistics are then over its own trajectories."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        section = dict(cast(dict[str, Any], value))
        if isinstance(section.get("dedup"), bool):
            section["dedup"] = "exact" if section["dedup"] else None
        data = section.get("data")
        kinds = [kind for ending, kind in _KINDS.items() if isinstance(data, str) and data.endswith(ending)]
        return {**section, "data": {"kind": kinds[0], "path": data}} if kinds else section

    @model_validator(mode="after")
    def _check_reward(self) -> TaskSourceConfig:
        if self.env.kind == "single_turn" and self.data is None and self.agent is None:
            raise ValueError("needs 'data': a .jsonl file or a dataset by name (or an 'env' that makes its own tasks)")
        if self.agent is not None:
            self._check_agent(self.agent)
        elif self.env.kind == "single_turn" and self.reward is None:
            raise ValueError("needs 'reward': a verifier by name, or package.module:function")
        if self.env.kind == "tool_use" and (self.reward is None) != bool(self.env.kwargs.get("exact")):
            raise ValueError("needs 'reward', or `exact: true` in its 'env', and not both; change one of them")
        return self

    def _check_agent(self, agent: Agent) -> None:
        if self.env.kind != "single_turn":
            raise ValueError("has both 'agent' and 'env': an agent replaces the environment; remove one of them")
        if (self.reward is None) != (agent.result == "reward"):
            raise ValueError("needs 'reward', or `result: reward` in its 'agent', and not both; change one of them")

    @model_validator(mode="after")
    def _check_share(self) -> TaskSourceConfig:
        if self.share == 0 and (self.share_schedule is None or self.share_schedule.end == 0):
            raise ValueError("share: must be greater than 0, or have a share_schedule that raises it (got 0)")
        return self

    @model_validator(mode="after")
    def _check_fields(self) -> TaskSourceConfig:
        if self.data is None and self.fields is not None:
            raise ValueError("'fields' is about rows, and there is no 'data'; remove it")
        if self.data is not None and "fields" in self.data.kwargs:
            raise ValueError("'fields' is a key of the source, not of 'data'; move it out of 'data'")
        return self
