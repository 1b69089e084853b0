"""Every divergence against its formula, and planted bugs that the comparison reports."""

from typing import Any

import pytest
import torch

from benchmarks.built_ins import DIVERGENCES, describe
from roll import registry
from roll.algorithms.distillation import Distillation, class_logprobs, distillation_rows, most_likely
from roll.conformance.divergences import FORMULAS, VOCAB, check_divergence, distillation_case, package_step
from roll.errors import ConfigError
from roll.types import Spec
from tests.conformance.planted_divergences import OPTIONS, STEPS


def test_every_divergence_of_the_table_has_a_formula():
    assert set(FORMULAS) == set(registry.DIVERGENCES.targets) == {each.name for each in DIVERGENCES}


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=describe)
@pytest.mark.parametrize("top_k", [None, 3, VOCAB])
def test_values_and_gradients_are_those_of_the_formula(divergence: Spec, top_k: int | None):
    assert check_divergence(divergence.name, top_k=top_k, temperature=1.7, sft_weight=0.3, **divergence.kwargs) == []


@pytest.mark.parametrize("name", FORMULAS)
def test_all_tokens_as_the_most_likely_ones_are_the_whole_distribution(name: str):
    objective = Distillation(divergence=Spec(name), temperature=2.0, vocab=VOCAB)
    whole, chosen = (package_step(distillation_case(0, top_k), objective) for top_k in (None, VOCAB))
    for one, other in zip(whole, chosen, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl"])
def test_a_faulty_step_is_reported(step: Any, name: str):
    faults = check_divergence(name, step=step, **OPTIONS)
    assert len(faults) == 1 and f"differs from the formula of {name}" in faults[0]


def test_the_last_column_has_the_mass_of_all_other_tokens_however_small():
    logits = torch.tensor([[60.0, 0.0, 0.0, -1.0]])
    ids, logprobs = most_likely(logits, 1.0, 1)
    exact = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64).logsumexp(0) - 60.0
    assert ids.tolist() == [[0]] and logprobs.tolist()[0] == pytest.approx([0.0, float(exact)], abs=1e-5)
    assert class_logprobs(logits, 1.0, torch.tensor([[3, 1, 0, 2]])).shape == (1, 4)


def test_a_model_with_more_rows_than_the_other_is_compared_on_the_common_ones():
    student, teacher = torch.randn(5, 7), torch.randn(5, 9)
    objective = Distillation(divergence=Spec("reverse_kl"), vocab=7)
    ids = torch.tensor([0, 1, 2, 3, 6])
    cut = distillation_rows(student, ids, teacher[:, :7], objective)
    assert torch.equal(distillation_rows(student, ids, teacher, objective), cut)


@pytest.mark.parametrize(
    ("name", "arguments"), [("jensen_shannon", {"weight": 0.0}), ("skewed_reverse_kl", {"skew": 1.0})]
)
def test_shares_outside_of_0_to_1_are_refused(name: str, arguments: dict[str, float]):
    with pytest.raises(ConfigError, match=f"{name}: .* must be above 0 and below 1"):
        check_divergence(name, **arguments)


def detached(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return (student.detach() - teacher).sum(-1)


def test_a_divergence_without_gradient_is_refused():
    with pytest.raises(ConfigError, match="its result has no gradient; compute it from the student's logprobs"):
        check_divergence(detached, like="forward_kl")
