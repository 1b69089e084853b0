"""Names in a config file become objects here, in whichever process asks."""

from __future__ import annotations

import importlib
import importlib.util
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from roll.errors import ConfigError, UnknownName, did_you_mean
from roll.signature import Signature, defined, signature_of

T = TypeVar("T")


class Table(Generic[T]):
    """Short names for importable objects.

    A value is `package.module:attribute`, imported on first use, so listing a backend costs nothing and another
    process resolves the same name without anyone having registered anything in it. The caller gives the first
    `supplied` parameters of such an object itself, by position, or if it is a class the first `supplied_to_class`; the
    others are a config file's. With `others_give`, what one of the user's own needs besides is given later, by others.
    """

    def __init__(
        self,
        kind: str,
        supplied: int = 0,
        *,
        supplied_to_class: int | None = None,
        others_give: bool = False,
        **targets: str,
    ) -> None:
        self.kind, self.supplied, self.targets, self.others_give = kind, supplied, targets, others_give
        self.supplied_to_class = supplied if supplied_to_class is None else supplied_to_class
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._found:
            self._found[name] = self._resolved(name)
        return self._found[name]

    def _resolved(self, name: str) -> T:
        module, attribute = self.locate(name)
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise  # the module is there; something it imports is not
            raise ConfigError(self._missing(name, module)) from None
        if not hasattr(found, attribute):
            offer = did_you_mean(attribute, [known for known in dir(found) if not known.startswith("_")])
            raise ConfigError(f"{self.kind} {name!r}: module {module} has no {attribute!r}{offer}")
        return cast(T, getattr(found, attribute))

    def locate(self, name: str) -> tuple[str, str]:
        """Module and attribute that `name` stands for; nothing is imported."""
        target = name if ":" in name else self.targets.get(name)
        if target is None:
            raise UnknownName(self.kind, name, self.targets)
        module, _, attribute = target.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise ConfigError(f"{self.kind} {name!r} is not a name; write package.module:attribute")
        return module, attribute

    def faults(self, name: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Why `name` cannot be called with `arguments`: the argument at fault, or "" for the name itself, and a text.

        Reads source text; imports only parent packages.
        """
        try:
            signature = self._signature(name)
        except ConfigError as error:
            return [("", str(error))]
        unknown = [] if signature.open else [key for key in arguments if key not in signature.hints]
        missing = [] if self.others_give and ":" in name else sorted(signature.required - set(arguments))
        wanted = {key: signature.expected(key, value) for key, value in arguments.items()}
        return [
            *((key, f"{self.kind} {name!r} takes no {key!r}{_offer(key, signature.hints)}") for key in unknown),
            *(("", f"{self.kind} {name!r} needs {key!r}; add it") for key in missing),
            *(
                (key, f"{self.kind} {name!r} takes {words} as {key!r} (got {reprlib.repr(arguments[key])}); change it")
                for key, words in wanted.items()
                if words
            ),
        ]

    def takes(self, name: str, argument: str) -> bool:
        """Whether a config file may give `argument` to what `name` stands for."""
        signature = self._signature(name)
        return signature.open or argument in signature.hints

    def summaries(self) -> dict[str, str]:
        """Every short name, and the first line of what it stands for, read from source text."""
        return {name: self._summary(name) for name in self.targets}

    def _summary(self, name: str) -> str:
        source, attribute = self._source(name)
        return defined(source).get(attribute, "")

    def _source(self, name: str) -> tuple[Path, str]:
        """The file that `name` is defined in, and what it is called there."""
        module, attribute = self.locate(name)
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None:
            raise ConfigError(self._missing(name, module))
        return Path(spec.origin), attribute

    def _signature(self, name: str) -> Signature:
        source, attribute = self._source(name)
        signature = signature_of(source, attribute, self.supplied, self.supplied_to_class)
        if signature is None:
            offer, (module, _) = did_you_mean(attribute, defined(source)), self.locate(name)
            raise ConfigError(f"{self.kind} {name!r}: module {module} has no {attribute!r}{offer}")
        return signature

    def _missing(self, name: str, module: str) -> str:
        return f"{self.kind} {name!r}: no module named {module!r}; put it beside the YAML file or install it"


def _offer(key: str, accepted: Iterable[str]) -> str:
    return did_you_mean(key, accepted) or "; it takes no arguments"


ADVANTAGES: Table[Any] = Table(
    "advantage",
    supplied=1,
    group_normalised="roll.algorithms.advantages:group_normalised",
    group_centred_batch_scaled="roll.algorithms.advantages:group_centred_batch_scaled",
    leave_one_out="roll.algorithms.advantages:leave_one_out",
    batch_centred="roll.algorithms.advantages:batch_centred",
    batch_normalised="roll.algorithms.advantages:batch_normalised",
    discounted="roll.algorithms.advantages:discounted",
    gae="roll.algorithms.advantages:gae",
    gigpo="roll.algorithms.advantages:gigpo",
    distilled="roll.algorithms.advantages:distilled",
)
LOSSES: Table[Any] = Table(
    "loss",
    supplied=1,
    clipped="roll.algorithms.losses:clipped",
    policy_gradient="roll.algorithms.losses:policy_gradient",
    sequence_clipped="roll.algorithms.losses:sequence_clipped",
    geometric_clipped="roll.algorithms.losses:geometric_clipped",
    cispo="roll.algorithms.losses:cispo",
    truncated_importance="roll.algorithms.losses:truncated_importance",
    topr="roll.algorithms.losses:topr",
    raft="roll.algorithms.losses:raft",
    kimi="roll.algorithms.losses:kimi",
    sapo="roll.algorithms.losses:sapo",
    decoupled="roll.algorithms.losses:decoupled",
    squared_value="roll.algorithms.losses:squared_value",
)
CORRECTIONS: Table[Any] = Table(
    "correction",
    supplied=1,
    truncate="roll.algorithms.correction:truncate",
    mask="roll.algorithms.correction:mask",
    reject="roll.algorithms.correction:reject",
)
ESTIMATORS: Table[Any] = Table(
    "estimator of KL",
    supplied=1,
    k1="roll.algorithms.kl:k1",
    k2="roll.algorithms.kl:k2",
    k3="roll.algorithms.kl:k3",
)
AGGREGATIONS: Table[Any] = Table(
    "aggregation",
    supplied=1,
    token_mean="roll.algorithms.aggregation:token_mean",
    sequence_mean_token_mean="roll.algorithms.aggregation:sequence_mean_token_mean",
    sequence_mean_token_sum="roll.algorithms.aggregation:sequence_mean_token_sum",
    constant="roll.algorithms.aggregation:constant",
)
SHAPINGS: Table[Any] = Table(
    "reward shaping",
    supplied=2,
    clipped="roll.algorithms.shaping:clipped",
    scaled="roll.algorithms.shaping:scaled",
    normalised="roll.algorithms.shaping:normalised",
    overlong="roll.algorithms.shaping:overlong",
    format="roll.algorithms.shaping:format",
)
MASKS: Table[Any] = Table(
    "mask",
    supplied=1,
    truncated="roll.algorithms.masks:truncated",
    difficulty="roll.algorithms.masks:difficulty",
    overlong_wrong="roll.algorithms.masks:overlong_wrong",
)
EMPHASES: Table[Any] = Table(
    "emphasis",
    supplied=1,
    difficulty="roll.algorithms.advantage_weights:difficulty",
    length="roll.algorithms.advantage_weights:length",
)
FILTERS: Table[Any] = Table(
    "group filter",
    supplied=1,
    mixed="roll.algorithms.filters:mixed",
    mean_between="roll.algorithms.filters:mean_between",
)
DATASETS: Table[Any] = Table(
    "dataset",
    jsonl="roll.data.tasks:jsonl",
    parquet="roll.data.tables:parquet",
    hf="roll.data.tables:hf",
    arithmetic="roll.data.arithmetic:sums",
    seeds="roll.data.tasks:seeds",
)
REWARDS: Table[Any] = Table(
    "reward",
    supplied=2,
    supplied_to_class=0,
    exact="roll.rewards.exact:score",
    math="roll.rewards.math:Math",
    code="roll.rewards.code:score",
    choice="roll.rewards.choice:score",
    f1="roll.rewards.f1:score",
    ifeval="roll.rewards.ifeval:score",
    regex="roll.rewards.regex:score",
    json_schema="roll.rewards.json_schema:score",
    format="roll.rewards.format:score",
    length="roll.rewards.length:score",
    repetition="roll.rewards.repetition:score",
    reasoning_gym="roll.rewards.reasoning_gym:score",
    weighted="roll.rewards.weighted:Weighted",
    judge="roll.rewards.judge:Judge",
    model="roll.rewards.model:RewardModel",
    remote="roll.rewards.remote:Remote",
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
    calculator="roll.envs.calculator:Calculator",
    tool_use="roll.envs.tool_use:ToolUse",
    function_calling="roll.envs.function_calling:FunctionCalling",
    gymnasium="roll.envs.gymnasium:Gymnasium",
    gem="roll.envs.gem:Gem",
    verifiers="roll.envs.verifiers:Verifiers",
    http="roll.envs.http:Http",
)
PLAYERS: Table[Any] = Table(
    "player",
    supplied=1,
    guess_number="roll.envs.players:guess_number",
    frozen_lake="roll.envs.players:frozen_lake",
    sokoban="roll.envs.players:sokoban",
    calculator="roll.envs.players:calculator",
)
TOOLS: Table[Any] = Table(
    "set of tools",
    others_give=True,
    python="roll.tools.programs:Python",
    shell="roll.tools.programs:Shell",
    calculator="roll.tools.calculator:Calculator",
    retrieval="roll.tools.retrieval:Retrieval",
    mcp="roll.tools.mcp:Mcp",
)
CHANNELS: Table[Any] = Table(
    "weight channel",
    supplied=1,
    disk="roll.weights.disk:disk",
    gloo="roll.weights.gloo:gloo",
    ipc="roll.weights.ipc:ipc",
    nccl="roll.weights.nccl:nccl",
)
TABLES: dict[str, Table[Any]] = {
    "rewards": REWARDS,
    "environments": ENVS,
    "players": PLAYERS,
    "tools": TOOLS,
    "datasets": DATASETS,
    "advantages": ADVANTAGES,
    "losses": LOSSES,
    "aggregations": AGGREGATIONS,
    "corrections": CORRECTIONS,
    "estimators": ESTIMATORS,
    "shapings": SHAPINGS,
    "masks": MASKS,
    "emphases": EMPHASES,
    "filters": FILTERS,
}
"""What a file may name, by what the names are names of."""
