"""Formulas of the user's own that go wrong: one line says which, where and what, and ours are not excused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roll.algorithms.credit import Memory, assign_credit
from roll.algorithms.objective import evaluate
from roll.algorithms.recipe import Objective, Recipe
from roll.algorithms.user_code import asked
from roll.errors import ConfigError
from roll.registry import FILTERS, LOSSES
from roll.types import Call, Tokens
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


def valued(found: Any) -> torch.Tensor:
    return found.values * 2  # the line of valued


def line_of(name: str) -> str:
    """As an error tells it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# the line of {name}")]
    return f"({__file__}:{number})"


def refusal(name: str, seen: Tokens, **objective: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        evaluate(seen, torch.ones(len(seen.logprobs)), Objective(loss=Call(f"{__name__}:{name}"), **objective))
    return str(caught.value).removeprefix(f"loss '{__name__}:{name}': ")


@pytest.mark.parametrize(
    ("name", "what"), [("divides", "ZeroDivisionError: division by zero"), ("leaves", "SystemExit: enough")]
)
def test_a_loss_that_raises_is_told_with_its_line(name: str, what: str) -> None:
    assert refusal(name, tokens([-1.0])) == f"{what} {line_of(name)}; fix its code"


def test_the_line_is_the_user_s_however_deep_the_error_is() -> None:
    found = refusal("stacks", tokens([-1.0]))
    assert found.startswith("TypeError: ") and found.endswith(f" {line_of('stacks')}; fix its code")


def test_a_loss_that_reads_what_no_role_has_scored_is_told_what_it_needs() -> None:
    found = refusal("apart", tokens([-1.0]))
    assert found == (
        f"TypeError: unsupported operand type(s) for -: 'Tensor' and 'NoneType' {line_of('apart')}; "
        "ref_logprobs is None unless algorithm.needs has 'reference': add it there"
    )
    evaluate(tokens([-1.0], ref_logprobs=[-1.0]), torch.ones(1), Objective(loss=Call(f"{__name__}:apart")))


def test_another_mistake_of_a_loss_that_looks_whether_it_is_there_is_its_own() -> None:
    assert refusal("confused", tokens([-1.0])).endswith(f"{line_of('confused')}; fix its code")


def test_an_advantage_is_told_what_it_needs_too() -> None:
    recipe = Recipe(advantage=Call(f"{__name__}:valued"), loss=Call("clipped"), aggregation=Call("token_mean"))
    with pytest.raises(ConfigError) as caught:
        assign_credit(batch([1, 1], rewards=[1.0]), recipe, Memory())
    assert str(caught.value).startswith(f"advantage '{__name__}:valued': TypeError: unsupported operand type(s) for *")
    assert str(caught.value).endswith(
        f"{line_of('valued')}; values is None unless algorithm.needs has 'critic': add it there"
    )


def test_a_loss_without_a_gradient_is_refused_unless_something_else_has_one() -> None:
    seen = tokens([-1.0, -2.0], ref_logprobs=[-1.0, -1.0])
    found = refusal("detached", seen)
    assert found.startswith("what it returns has no gradient; compute it from the tokens' logprobs")
    assert found.endswith(f"without detach {line_of('detached')}")
    pulled = Objective(loss=Call(f"{__name__}:detached"), kl=Call("k1"), kl_coefficient=1.0)
    assert evaluate(seen, torch.ones(2), pulled)[0].requires_grad


def test_a_loss_that_is_only_measured_needs_no_gradient() -> None:
    with torch.no_grad():
        seen = tokens([-1.0])
        seen.logprobs.requires_grad_(False)
        found, _ = evaluate(seen, torch.ones(1), Objective(loss=Call(f"{__name__}:detached")))
    assert found.item() == -1.0


def test_what_is_refused_on_purpose_keeps_its_words() -> None:
    assert refusal("careful", tokens([-1.0])) == "beta: must be positive; raise it"


def test_a_call_that_does_not_fit_names_no_line_of_ours() -> None:
    with pytest.raises(ConfigError) as caught:
        asked(FILTERS, Call(f"{__name__}:divides", {"wide": 1}), SimpleNamespace())
    assert str(caught.value).endswith("got an unexpected keyword argument 'wide'; fix its code")


def test_what_one_of_ours_raises_stays_a_crash() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'clip'"):
        asked(LOSSES, Call("clipped", {"clip": 1}), tokens([-1.0]))
