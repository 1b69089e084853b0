"""Tables of short names for rewards, environments, losses and so on; the process that uses a name resolves it."""

from __future__ import annotations

import importlib
import importlib.util
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from roll.errors import ConfigError, UnknownName, did_you_mean
from roll.signature import Signature, public_names, signature_of

T = TypeVar("T")
PASSED = "passed_"
"""Start of the name of a module with an object that a caller of `roll.train` passed."""
_CALLS = {
    "loss": "f(tokens, **arguments)",
    "preference loss": "f(pairs, **arguments)",
    "reward loss": "f(pairs, **arguments)",
    "divergence": "f(student, teacher, **arguments)",
    "advantage": "f(batch, **arguments)",
    "reward": "f(task, response, **arguments)",
    "environment": "Class(task, **arguments)",
}
"""How the code calls an object of a kind with the arguments in the file."""
_METHODS = {
    "environment": ("async start", "async step", "async close"),
    "reward": ("score",),
    "callback": ("on_step",),
    "metric sink": ("write", "close"),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """A function or class by name, with keyword arguments for it; pickles, and any process can resolve it."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


class Table(Generic[T]):
    """Short names for importable objects.

    A value is `package.module:attribute`, imported on first use: listing a backend costs nothing, and any process can
    resolve a name without registration. The code passes the first `supplied` parameters by position
    (`supplied_to_class` for a class); a config file gives the others. With `partial`, a user's own object may require
    further arguments, which the code passes later.
    """

    def __init__(
        self,
        kind: str,
        supplied: int = 0,
        *,
        supplied_to_class: int | None = None,
        partial: bool = False,
        **targets: str,
    ) -> None:
        self.kind, self.supplied, self.targets, self.partial = kind, supplied, targets, partial
        self.supplied_to_class = supplied if supplied_to_class is None else supplied_to_class
        self._objects: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if ":" in name:  # Python remembers the module, unless it exists for one call only
            return self._resolve(name)
        if name not in self._objects:
            self._objects[name] = self._resolve(name)
        return self._objects[name]

    def _resolve(self, name: str) -> T:
        path, attribute = self.locate(name)
        try:
            module: Any = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
                raise  # the module exists, but one that it imports does not
            raise ConfigError(self._missing(name, path)) from None
        if not hasattr(module, attribute):
            offer = did_you_mean(attribute, [known for known in dir(module) if not known.startswith("_")])
            raise ConfigError(f"{self.kind} {name!r}: module {path} has no {attribute!r}{offer}")
        return cast(T, getattr(module, attribute))

    def locate(self, name: str) -> tuple[str, str]:
        """Module and attribute of `name`; imports nothing."""
        target = name if ":" in name else self.targets.get(name)
        if target is None:
            module, _, last = name.rpartition(".")
            if module or self.targets:
                raise UnknownName(self.kind, name, [f"{module}:{last}"] if module else self.targets)
            raise ConfigError(f"{self.kind} {name!r} names no module; write package.module:attribute")
        module, _, attribute = target.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise ConfigError(f"{self.kind} {name!r} is not a name; write package.module:attribute")
        return module, attribute

    def faults(self, name: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Errors in a call of `name` with `arguments`: the argument ("" for the name itself) and a text for each.

        Reads source text; imports only parent packages.
        """
        try:
            signature = self.signature(name)
        except ConfigError as error:
            return [("", str(error))]
        unknown = [] if signature.open else [key for key in arguments if key not in signature.hints]
        missing = [] if self.partial and ":" in name else sorted(signature.required - set(arguments))
        absent = [method for method in _METHODS.get(self.kind, ()) if not signature.has(method)]
        expected = {key: signature.expected(key, value) for key, value in arguments.items()}
        offers = {key: did_you_mean(key, signature.hints) or "; it takes no arguments" for key in unknown}
        return [
            *((key, f"{self.kind} {name!r} takes no {key!r}{offer}") for key, offer in offers.items()),
            *(("", f"{self.kind} {name!r} needs {key!r}; add it{self._call(name)}") for key in missing),
            *(("", f"{self.kind} {name!r} has no method `{method}`; add it to the class") for method in absent),
            *(
                (key, f"{self.kind} {name!r} takes {text} as {key!r} (got {reprlib.repr(arguments[key])}); change it")
                for key, text in expected.items()
                if text
            ),
        ]

    def takes(self, name: str, argument: str) -> bool:
        """Whether a config file may pass `argument` to `name`."""
        signature = self.signature(name)
        return signature.open or argument in signature.hints

    def summaries(self) -> dict[str, str]:
        """First paragraph of the docstring of every short name, read from source text."""
        return {name: self.signature(name).summary for name in self.targets}

    def signature(self, name: str) -> Signature:
        """Keyword arguments and docstring of `name`, read from source text; ConfigError if it does not exist."""
        module, attribute = self.locate(name)
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None:
            raise ConfigError(self._missing(name, module))
        source = Path(spec.origin)
        if source.suffix != ".py" and not hasattr(importlib.import_module(module), attribute):
            raise ConfigError(f"{self.kind} {name!r}: module {module} has no {attribute!r}; name another")
        signature = signature_of(source, attribute, self.supplied, self.supplied_to_class)
        if signature is None:
            offer = did_you_mean(attribute, public_names(source))
            raise ConfigError(f"{self.kind} {name!r}: module {module} has no {attribute!r}{offer}")
        return signature

    def _call(self, name: str) -> str:
        """Advice about a function of the user's that requires an argument too many."""
        return (
            f", or change its definition: it is called as {_CALLS[self.kind]}"
            if ":" in name and self.kind in _CALLS
            else ""
        )

    def _missing(self, name: str, module: str) -> str:
        if module.startswith(PASSED):
            shown = module.removeprefix(PASSED)
            return f"{self.kind} {shown!r}: was passed as a Python object; pass it again, as in roll.resume(run, ...)"
        return f"{self.kind} {name!r}: no module named {module!r}; put it next to the YAML file or install it"


def _functions(kind: str, module: str, names: str, *, supplied: int = 1) -> Table[Any]:
    """A table of functions of one module under their own names, which `names` separates by spaces."""
    targets: dict[str, Any] = {name: f"{module}:{name}" for name in names.split()}
    return Table(kind, supplied, **targets)


ADVANTAGES = _functions(
    "advantage",
    "roll.algorithms.advantages",
    "group_normalised group_normalised_process group_centred_batch_scaled leave_one_out batch_centred "
    "batch_normalised discounted gae gigpo distilled",
)
LOSSES = _functions(
    "loss",
    "roll.algorithms.losses",
    "clipped policy_gradient sequence_clipped geometric_clipped cispo truncated_importance topr raft kimi sapo "
    "decoupled squared_value",
)
PREFERENCE_LOSSES = _functions(
    "preference loss", "roll.algorithms.preferences", "dpo cdpo ipo apo_zero apo_down orpo simpo kto"
)
REWARD_LOSSES = _functions(
    "reward loss", "roll.algorithms.reward_losses", "bradley_terry regression classification process"
)
DIVERGENCES = _functions(
    "divergence",
    "roll.algorithms.divergences",
    "forward_kl reverse_kl jensen_shannon skewed_forward_kl skewed_reverse_kl",
    supplied=2,
)
CORRECTIONS = _functions("correction", "roll.algorithms.correction", "truncate mask reject")
ESTIMATORS = _functions("estimator of KL", "roll.algorithms.kl", "k1 k2 k3")
AGGREGATIONS = _functions(
    "aggregation",
    "roll.algorithms.segments",
    "token_mean sequence_mean_token_mean sequence_mean_token_sum constant",
)
SHAPINGS = _functions(
    "reward shaping", "roll.algorithms.shaping", "clipped scaled normalised overlong format", supplied=2
)
MASKS = _functions("mask", "roll.algorithms.masks", "truncated difficulty overlong_wrong")
ADVANTAGE_WEIGHTS = _functions("advantage weight", "roll.algorithms.advantage_weights", "difficulty length")
FILTERS = _functions("group filter", "roll.algorithms.filters", "mixed mean_between")
DATASETS: Table[Any] = Table(
    "dataset",
    jsonl="roll.data.tasks:jsonl",
    parquet="roll.data.tasks:parquet",
    hf="roll.data.tasks:hf",
    arithmetic="roll.data.arithmetic:sums",
    seeds="roll.data.tasks:seeds",
)
PREFERENCE_DATASETS: Table[Any] = Table(
    "preference dataset",
    jsonl="roll.data.preferences:jsonl",
    arithmetic="roll.data.arithmetic:answer_pairs",
)
REWARDS: Table[Any] = Table(
    "reward",
    supplied=2,
    supplied_to_class=0,
    exact="roll.rewards.text:exact",
    math="roll.rewards.math.reward:Math",
    code="roll.rewards.code.reward:score",
    choice="roll.rewards.choice.reward:score",
    f1="roll.rewards.text:f1",
    ifeval="roll.rewards.ifeval.reward:score",
    regex="roll.rewards.text:regex",
    json_schema="roll.rewards.json_schema:score",
    format="roll.rewards.text:tag_format",
    length="roll.rewards.text:length",
    repetition="roll.rewards.text:repetition",
    reasoning_gym="roll.rewards.reasoning_gym:score",
    weighted="roll.rewards.weighted:Weighted",
    judge="roll.rewards.judge.reward:Judge",
    model="roll.rewards.model:ClassifierReward",
    remote="roll.rewards.remote:RemoteReward",
)
ENVS: Table[Any] = Table(
    "environment",
    supplied=1,
    single_turn="roll.envs.single_turn:SingleTurn",
    guess_number="roll.envs.guess_number:GuessNumber",
    frozen_lake="roll.envs.frozen_lake:FrozenLake",
    sokoban="roll.envs.sokoban:Sokoban",
    tic_tac_toe="roll.envs.tic_tac_toe:TicTacToe",
    negotiation="roll.envs.negotiation:Negotiation",
    alfworld="roll.envs.alfworld.env:ALFWorld",
    webshop="roll.envs.webshop.env:WebShop",
    repair="roll.envs.repair.env:Repair",
    sql="roll.envs.sql.env:SQL",
    retail="roll.envs.retail.env:Retail",
    calculator="roll.envs.calculator:CalculatorEnv",
    tool_use="roll.envs.tool_use:ToolUse",
    function_calling="roll.envs.function_calling:FunctionCalling",
    gymnasium="roll.envs.gymnasium:Gymnasium",
    gem="roll.envs.gymnasium:Gem",
    verifiers="roll.envs.verifiers:Verifiers",
    http="roll.envs.http:Http",
)
SCRIPTED_AGENTS = _functions(
    "scripted agent", "roll.envs.scripted_agents", "guess_number frozen_lake sokoban calculator"
)
TOOLS: Table[Any] = Table(
    "set of tools",
    partial=True,
    python="roll.tools.programs:Python",
    shell="roll.tools.programs:Shell",
    calculator="roll.tools.calculator:CalculatorTool",
    retrieval="roll.tools.retrieval:Retrieval",
    mcp="roll.tools.mcp:Mcp",
)
CHANNELS: Table[Any] = Table(
    "weight channel",
    supplied=1,
    disk="roll.weights.channel:disk",
    gloo="roll.weights.broadcast:gloo",
    ipc="roll.weights.ipc:ipc",
    nccl="roll.weights.broadcast:nccl",
)
CALLBACKS: Table[Any] = Table("callback")
SINKS: Table[Any] = Table("metric sink")
OPTIMIZERS: Table[Any] = Table("optimizer", supplied=1)
"""These three list no names: the classes are the user's."""
PARTS: dict[str, Table[Any]] = {
    "filters": FILTERS,
    "shaping": SHAPINGS,
    "estimator": ESTIMATORS,
    "advantage": ADVANTAGES,
    "advantage_weights": ADVANTAGE_WEIGHTS,
    "masks": MASKS,
    "correction": CORRECTIONS,
    "loss": LOSSES,
    "aggregation": AGGREGATIONS,
}
"""Tables of functions of an algorithm, by the key that names them."""
TABLES: dict[str, Table[Any]] = {
    "rewards": REWARDS,
    "environments": ENVS,
    "scripted_agents": SCRIPTED_AGENTS,
    "tools": TOOLS,
    "datasets": DATASETS,
    "advantages": ADVANTAGES,
    "losses": LOSSES,
    "preference_losses": PREFERENCE_LOSSES,
    "preference_datasets": PREFERENCE_DATASETS,
    "divergences": DIVERGENCES,
    "aggregations": AGGREGATIONS,
    "corrections": CORRECTIONS,
    "estimators": ESTIMATORS,
    "shapings": SHAPINGS,
    "masks": MASKS,
    "advantage_weights": ADVANTAGE_WEIGHTS,
    "filters": FILTERS,
}
"""All tables, by the plural of what they list."""
