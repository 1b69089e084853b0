"""Errors in user-defined formulas are reported in one line with their location."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roll.algorithms.credit import AlgorithmState, assign_credit
from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective, Recipe
from roll.algorithms.user_code import call
from roll.errors import ConfigError
from roll.registry import FILTERS, LOSSES
from roll.types import Spec, Tokens
from tests.algorithms.build import batch, tokens

Found = tuple[torch.Tensor, dict[str, torch.Tensor]]


def divides(seen: Tokens) -> Found:
    return seen.logprobs * (1 / 0), {}  # the line of divides


def stacks(seen: Any) -> Found:
    return torch.nn.functional.pad(seen.logprobs, seen), {}  # the line of stacks


def leaves(seen: Tokens) -> Found:
    raise SystemExit("enough")  # the line of leaves


def apart(seen: Any) -> Found:
    return seen.logprobs - seen.ref_logprobs, {}  # the line of apart


def confused(seen: Any) -> Found:
    pull = 0 if seen.ref_logprobs is None else seen.ref_logprobs
    return seen.logprobs + pull + "1", {}  # the line of confused


def detached(seen: Tokens) -> Found:  # the line of detached
    return seen.logprobs.detach(), {}


def careful(seen: Tokens) -> Found:
    raise ConfigError("beta: must be positive; raise it")


def valued(result: Any) -> torch.Tensor:
    return result.values * 2  # the line of valued


def uncertain(result: Any) -> torch.Tensor:
    entropies = result.entropies
    return entropies[result.trained]  # the line of uncertain


def insists(result: Any) -> torch.Tensor:
    assert result.entropies is not None  # the line of insists
    return result.entropies


def line_of(name: str) -> str:
    """Location as error messages show it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# the line of {name}")]
    return f"({__file__}:{number})"


def refusal(name: str, seen: Tokens, **objective: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        evaluate(seen, torch.ones(len(seen.logprobs)), Objective(loss=Spec(f"{__name__}:{name}"), **objective))
    return str(caught.value).removeprefix(f"loss '{__name__}:{name}': ")


@pytest.mark.parametrize(
    ("name", "what"), [("divides", "ZeroDivisionError: division by zero"), ("leaves", "SystemExit: enough")]
)
def test_the_error_of_a_loss_that_raises_names_its_line(name: str, what: str) -> None:
    assert refusal(name, tokens([-1.0])) == f"{what} {line_of(name)}; fix its code"


def test_the_named_line_is_in_user_code_however_deep_the_error_is() -> None:
    result = refusal("stacks", tokens([-1.0]))
    assert result.startswith("TypeError: ") and result.endswith(f" {line_of('stacks')}; fix its code")


def test_a_loss_that_reads_a_missing_row_gets_a_hint_about_needs() -> None:
    result = refusal("apart", tokens([-1.0]))
    assert result == (
        f"TypeError: unsupported operand type(s) for -: 'Tensor' and 'NoneType' {line_of('apart')}; "
        "ref_logprobs is None unless algorithm.needs has 'reference': add it there"
    )
    evaluate(tokens([-1.0], ref_logprobs=[-1.0]), torch.ones(1), Objective(loss=Spec(f"{__name__}:apart")))


def test_another_mistake_near_a_missing_row_gets_no_hint() -> None:
    assert refusal("confused", tokens([-1.0])).endswith(f"{line_of('confused')}; fix its code")


def test_an_advantage_that_reads_a_missing_row_gets_the_hint_too() -> None:
    recipe = Recipe(advantage=Spec(f"{__name__}:valued"), loss=Spec("clipped"), aggregation=Spec("token_mean"))
    with pytest.raises(ConfigError) as caught:
        assign_credit(batch([1, 1], rewards=[1.0]), recipe, AlgorithmState())
    assert str(caught.value).startswith(f"advantage '{__name__}:valued': TypeError: unsupported operand type(s) for *")
    assert str(caught.value).endswith(
        f"{line_of('valued')}; values is None unless algorithm.needs has 'critic': add it there"
    )


def test_a_loss_without_a_gradient_is_refused_unless_something_else_has_one() -> None:
    seen = tokens([-1.0, -2.0], ref_logprobs=[-1.0, -1.0])
    result = refusal("detached", seen)
    assert result.startswith("its result has no gradient; compute it from the tokens' logprobs")
    assert result.endswith(f"without detach {line_of('detached')}")
    pulled = Objective(loss=Spec(f"{__name__}:detached"), kl=Spec("k1"), kl_coefficient=1.0)
    assert evaluate(seen, torch.ones(2), pulled)[0].requires_grad


def test_a_loss_that_is_only_measured_needs_no_gradient() -> None:
    with torch.no_grad():
        seen = tokens([-1.0])
        seen.logprobs.requires_grad_(False)
        result, _ = evaluate(seen, torch.ones(1), Objective(loss=Spec(f"{__name__}:detached")))
    assert result.item() == -1.0


def test_a_config_error_of_user_code_keeps_its_message() -> None:
    assert refusal("careful", tokens([-1.0])) == "beta: must be positive; raise it"


def test_an_error_outside_user_code_names_no_line() -> None:
    with pytest.raises(ConfigError) as caught:
        call(FILTERS, Spec(f"{__name__}:divides", {"wide": 1}), SimpleNamespace())
    assert str(caught.value).endswith("got an unexpected keyword argument 'wide'; fix its code")


def test_an_exception_in_a_built_in_function_is_not_converted() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'clip'"):
        call(LOSSES, Spec("clipped", {"clip": 1}), tokens([-1.0]))


@pytest.mark.parametrize("name", ["uncertain", "insists"])
def test_the_hint_comes_wherever_the_function_has_read_the_row(name: str) -> None:
    recipe = Recipe(advantage=Spec(f"{__name__}:{name}"), loss=Spec("clipped"), aggregation=Spec("token_mean"))
    with pytest.raises(ConfigError) as caught:
        assign_credit(batch([1, 1], rewards=[1.0]), recipe, AlgorithmState())
    hint = "entropies is None unless algorithm.needs has 'entropies': add it there"
    assert str(caught.value).endswith(f"{line_of(name)}; {hint}")
