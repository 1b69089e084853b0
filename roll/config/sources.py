"""The entries of `tasks`: where tasks of one domain come from, which of them are drawn, and how they are judged."""

from __future__ import annotations

from string import Formatter
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from roll.config.algorithm import OwnAlgorithm
from roll.config.proxy import Agent
from roll.config.reward import Reward
from roll.config.section import Named, Section

_KINDS = {".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".parquet": "parquet"}
"""The datasets that a file is, by how its name ends."""


class Fields(Section):
    """What a row calls the things a task is made of: names of fields, or dotted paths into nested ones."""

    prompt: str | None = Field(default=None, min_length=1)
    """The field with the question as text; None: `prompt`."""
    messages: str | None = Field(default=None, min_length=1)
    """The field with a list of role and content; None: `messages`."""
    answer: str | None = Field(default=None, min_length=1)
    """None: `answer`."""
    id: str | None = Field(default=None, min_length=1)
    """None: `id`, or the number of the row."""
    seed: str | None = Field(default=None, min_length=1)
    """None: `seed`, or the number of the row."""
    template: str | None = Field(default=None, min_length=1)
    """Makes the prompt: `{question}` stands for that field of the row, `{{` and `}}` for braces."""
    system: str | None = Field(default=None, min_length=1)
    """Said to the model before everything else."""
    metadata: dict[str, str] = Field(default={})
    """More fields that rewards and environments read: the name they know, and where the row has it."""
    constants: dict[str, Any] = Field(default={})
    """Fields that every row gets, in place of its own."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Fields:
        given = [name for name in ("prompt", "messages", "template") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(map(repr, given))} both make the prompt; keep one of them")
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
    """Tasks whose pass rate is near a target are drawn more often; unseen ones count as if they were at it."""

    kind: Literal["difficulty"] = "difficulty"
    target: float = Field(default=0.5, ge=0, le=1)
    """The pass rate to be drawn most often."""
    exploration: float = Field(default=0.2, gt=0, le=1)
    """Part of the draws that go to the tasks drawn least often, whatever their pass rate."""


class Curriculum(Section):
    """Easy tasks first: the part that can be drawn grows linearly."""

    by: str = Field(min_length=1)
    """The metadata field whose number says how hard a task is."""
    steps: int = Field(gt=0)
    """Draws from this source until all of its tasks can be drawn."""


class Source(Section):
    """Where tasks of one domain come from, and how attempts at them are judged."""

    name: str = Field(min_length=1)
    """The domain; metrics carry it."""
    data: Named | None = None
    """A .jsonl or .parquet file, a dataset by name (`{kind: hf, path: ..., split: ...}`), or a function that returns
    tasks. None: the environment makes them itself."""
    fields: Fields | None = None
    """What the rows of a file call the parts of a task; None: prompt or messages, answer, id, seed."""
    env: Named = Named(kind="single_turn")
    """What answers the policy; `single_turn` ends after one reply."""
    agent: Agent | None = None
    """A program that makes the attempts instead, through the proxy of the run."""
    reward: Reward | None = None
    """Scores the last reply; several in a list are weighted and added. None when the environment gives the rewards."""
    share: float = Field(default=1.0, gt=0)
    """Part of the groups of a step, relative to the other sources."""
    limit: int | None = Field(default=None, gt=0)
    """Use only so many tasks, the first ones."""
    dedup: Literal["exact", "normalised"] | None = None
    """Leave out prompts that came before, or that are held out: `exact` (or true) ones, or also those that differ in
    case, spaces and forms of characters only (`normalised`). None (or false) only counts the held-out ones."""
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    """Leave out longer prompts; None: a prompt that fills the context is an error."""
    sampling: Difficulty | None = None
    """Which task is next; None: all in random order, then all again in another."""
    curriculum: Curriculum | None = None
    max_new_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of one reply; None: as in rollout. So for the three keys below."""
    temperature: float | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    filters: tuple[Named, ...] | None = Field(default=None, strict=False)  # a list, once `_in_full` has seen it
    """Groups that are replaced instead of trained on; None: as in the algorithm."""
    algorithm: OwnAlgorithm | None = None
    """Parts of the algorithm laid over the run's for this domain alone, whose baselines and statistics are then over
    its own trajectories; and the weight of its loss."""

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        section = dict(cast(dict[str, Any], given))
        if isinstance(section.get("dedup"), bool):
            section["dedup"] = "exact" if section["dedup"] else None
        data = section.get("data")
        kinds = [kind for ending, kind in _KINDS.items() if isinstance(data, str) and data.endswith(ending)]
        return {**section, "data": {"kind": kinds[0], "path": data}} if kinds else section

    @model_validator(mode="after")
    def _judged(self) -> Source:
        if self.env.kind == "single_turn" and self.data is None and self.agent is None:
            raise ValueError("needs 'data': a .jsonl file or a dataset by name (or an 'env' that makes its own tasks)")
        if self.agent is not None:
            self._judged_by_agent(self.agent)
        elif self.env.kind == "single_turn" and self.reward is None:
            raise ValueError("needs 'reward': a verifier by name, or package.module:function")
        if self.env.kind == "tool_use" and (self.reward is None) != bool(self.env.arguments.get("exact")):
            raise ValueError("needs 'reward', or `exact: true` in its 'env', and not both; change one of them")
        return self

    def _judged_by_agent(self, agent: Agent) -> None:
        if self.env.kind != "single_turn":
            raise ValueError("has both 'agent' and 'env': an agent brings its own world; remove one of them")
        if (self.reward is None) != (agent.result == "reward"):
            raise ValueError("needs 'reward', or `result: reward` in its 'agent', and not both; change one of them")

    @model_validator(mode="after")
    def _has_rows(self) -> Source:
        if self.data is None and self.fields is not None:
            raise ValueError("'fields' is about rows, and there is no 'data'; remove it")
        if self.data is not None and "fields" in self.data.arguments:
            raise ValueError("'fields' stands beside 'data', not in it; move it there")
        return self

    def given(self, *names: str) -> list[str]:
        """Those of these keys that were set."""
        return [name for name in names if getattr(self, name) is not None]
