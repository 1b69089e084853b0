"""Domains with their own recipes: each is credited as if it were alone."""

from dataclasses import asdict, replace

import msgspec
import pytest
import torch

from roll.algorithms.credit import AlgorithmState, assign_credit, minibatches, with_loss_weights
from roll.algorithms.partition import take
from roll.algorithms.recipe import Recipe
from roll.algorithms.shaping import RunningStats
from roll.config.algorithm import Kl
from roll.config.section import SpecConfig
from roll.data.collate import collate
from roll.types import Batch, Finish, Group, Score, Segment, Spec, Status, Task, Trajectory, Turn

PLAIN = Recipe(advantage=Spec("group_normalised"), loss=Spec("clipped"), aggregation=Spec("token_mean"))
RUNNING = Spec("normalised", {"mean": "running", "std": "running"})
OWN = replace(
    PLAIN,
    shaping=(Spec("scaled", {"factor": 3.0}), RUNNING),
    advantage=Spec("batch_normalised"),
    whiten=True,
    advantage_clip=1.5,
    advantage_weights=(Spec("difficulty"), Spec("length")),
    masks=(Spec("truncated"),),
    weight=2.0,
)
"""Every setting that a domain may override, using batch-wide variants wherever there is a choice."""


def turn(seed: int, reward: float) -> Turn:
    sizes = torch.Generator().manual_seed(seed)
    seen, said = (int(torch.randint(1, 5, (), generator=sizes)) for _ in range(2))
    return Turn(
        observation=torch.arange(seen).int().numpy(),
        sampled=torch.arange(said).int().numpy(),
        sampler_logprobs=-torch.rand(said, generator=sizes).numpy(),
        versions=torch.zeros(said, dtype=torch.int32).numpy(),
        finish=Finish.STOP,
        reward=reward,
    )


def group(number: int, domain: str, outcomes: list[float], *, scale: float = 1.0) -> Group:
    """Siblings of one to three turns in one or two segments, the last of them truncated."""
    trajectories: list[Trajectory] = []
    for sibling, outcome in enumerate(outcomes):
        seed = 100 * number + 10 * sibling
        turns = tuple(turn(seed + place, 0.1 * place * scale) for place in range(1 + (number + sibling) % 3))
        segments = (Segment(turns=turns[:1]), Segment(turns=turns[1:])) if len(turns) > 1 else (Segment(turns=turns),)
        trajectories.append(
            Trajectory(
                task=Task(id=str(number), domain=domain),
                sibling=sibling,
                segments=segments,
                status=Status.TRUNCATED if sibling + 1 == len(outcomes) else Status.FINISHED,
                score=Score(scale * outcome, {f"part of {domain}": outcome}),
            )
        )
    return Group(id=number, birth=0, trajectories=tuple(trajectories))


def groups(*order: str) -> list[Group]:
    """Groups numbered in order; the n-th group of a domain always has the same outcomes."""
    outcomes = {
        "math": [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
        "code": [[0.2, 0.9], [0.4, 0.4], [0.0, 1.0]],
        "qa": [[0.5, 0.1]],
    }
    scales = {"math": 1.0, "code": 10.0, "qa": 0.5}
    return [
        group(number, domain, outcomes[domain][order[:number].count(domain)], scale=scales[domain])
        for number, domain in enumerate(order)
    ]


MIXED = ("math", "code", "qa", "code", "math", "code")


def whole(*order: str) -> Batch:
    """A batch whose extra rows are functions of the token, so that a part of it has the same values."""
    result = collate(groups(*order))
    noise = torch.sin(result.ids * 7.0 + result.sampler_logprobs * 100)
    return replace(
        result, old_logprobs=result.sampler_logprobs + 0.1 * noise, ref_logprobs=noise - 1, values=0.3 * noise
    )


def alone(batch: Batch, *domains: str) -> Batch:
    return take(batch, torch.tensor([domain in domains for domain in batch.domains])).batch


def rows_of(batch: Batch, *domains: str) -> torch.Tensor:
    """[tokens] bool: tokens of these domains."""
    return torch.tensor([batch.domains[owner] in domains for owner in batch.turn_trajectory[batch.turn].tolist()])


def assert_equal_where(result: Batch, expected: Batch, here: torch.Tensor) -> None:
    """Check that all rows computed by credit assignment are bitwise equal."""
    for name in ("advantages", "returns", "trained", "penalties"):
        one, other = getattr(result, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert torch.equal(one[here], other), name


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_domain_is_credited_as_if_alone_and_the_others_as_if_it_were_absent(place: str) -> None:
    kl = Kl(estimator=SpecConfig(kind="k1"), coefficient=0.5, apply_to=place)  # type: ignore[arg-type]
    run = replace(PLAIN, kl=kl, shaping=(RUNNING,), domains={"code": replace(OWN, kl=kl)})
    state = AlgorithmState(
        kl_coefficient=0.5,
        reward_stats=RunningStats(count=3, mean=0.2, sum_squares=0.1),
        domains={"code": RunningStats(count=2, mean=7.0, sum_squares=5.0)},
    )
    batch = whole(*MIXED)
    result, after, _ = assign_credit(batch, run, state)

    domain_recipe, own_after, _ = assign_credit(
        alone(batch, "code"), replace(OWN, kl=kl), replace(state, reward_stats=state.domains["code"])
    )
    rest, rest_after, _ = assign_credit(alone(batch, "math", "qa"), replace(run, domains={}), state)
    assert_equal_where(result, domain_recipe, rows_of(batch, "code"))
    assert_equal_where(result, rest, rows_of(batch, "math", "qa"))
    assert after.reward_stats == rest_after.reward_stats
    assert after.domains == {"code": own_after.reward_stats}
    assert result.advantages is not None and result.advantages[rows_of(batch, "code")].abs().sum() > 0


def test_the_order_of_domains_in_a_batch_does_not_matter() -> None:
    run = replace(PLAIN, domains={"code": OWN, "qa": replace(OWN, whiten=False)})
    one, other = whole(*MIXED), whole(*reversed(MIXED))
    result, after, _ = assign_credit(one, run, AlgorithmState())
    turned, turned_after, _ = assign_credit(other, run, AlgorithmState())
    assert after.domains.keys() == turned_after.domains.keys() == {"code", "qa"}
    for domain in ("math", "code", "qa"):
        mine, theirs = alone(one, domain), alone(other, domain)
        first, second = (
            assign_credit(each, run.domains.get(domain, PLAIN), AlgorithmState())[0] for each in (mine, theirs)
        )
        assert_equal_where(result, first, rows_of(one, domain))
        assert_equal_where(turned, second, rows_of(other, domain))


def test_a_sub_batch_equals_the_batch_of_its_groups_alone() -> None:
    batch = collate(groups(*MIXED))
    domain_recipe = collate([each for each in groups(*MIXED) if each.trajectories[0].task.domain == "code"])
    result = alone(batch, "code")
    assert (result.lengths, result.domains) == (domain_recipe.lengths, domain_recipe.domains)
    for name in (
        "ids",
        "trained",
        "sampler_logprobs",
        "trajectory",
        "group",
        "rewards",
        "truncated",
        "turn",
        "turn_trajectory",
        "turn_rewards",
    ):
        assert torch.equal(getattr(result, name), getattr(domain_recipe, name)), name
    assert result.parts.keys() == domain_recipe.parts.keys() == {"part of code"}
    assert torch.equal(result.parts["part of code"], domain_recipe.parts["part of code"])


def test_domains_without_a_recipe_are_credited_together() -> None:
    batch = whole(*MIXED)
    result, state, metrics = assign_credit(batch, replace(PLAIN, advantage=Spec("batch_normalised")), AlgorithmState())
    nameless, same, counted = assign_credit(
        replace(batch, domains=()), replace(PLAIN, advantage=Spec("batch_normalised")), AlgorithmState()
    )
    assert_equal_where(result, nameless, torch.ones(batch.num_tokens, dtype=torch.bool))
    assert (state, metrics) == (same, counted)
    assert state.reward_stats.count == len(batch.rewards) and state.domains == {}


def test_a_domain_absent_from_a_step_keeps_its_statistics() -> None:
    known = RunningStats(count=5, mean=1.0, sum_squares=2.0)
    run = replace(PLAIN, domains={"code": OWN})
    _, state, _ = assign_credit(whole("math", "math"), run, AlgorithmState(domains={"code": known}))
    assert state.domains == {"code": known}
    assert state.reward_stats.count == 6


def test_the_state_survives_a_checkpoint_and_domains_are_optional_in_it() -> None:
    _, state, _ = assign_credit(whole(*MIXED), replace(PLAIN, domains={"code": OWN}), AlgorithmState())
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(asdict(state))), AlgorithmState) == state
    old = {"kl_coefficient": 0.1, "reward_stats": {"count": 1, "mean": 2.0, "sum_squares": 0.0}}
    assert msgspec.convert(old, AlgorithmState).domains == {}


def test_masked_tokens_are_counted_over_all_domains() -> None:
    batch = whole("math", "code")
    _, _, metrics = assign_credit(batch, replace(PLAIN, domains={"code": OWN}), AlgorithmState())
    cut = batch.trained & batch.truncated[batch.turn_trajectory[batch.turn]] & rows_of(batch, "code")
    assert metrics["reward/masked"] == pytest.approx(float(cut.sum() / batch.trained.sum()))
    assert cut.any()


def test_the_weight_of_a_domain_multiplies_its_losses_and_no_denominator() -> None:
    batch = whole(*MIXED)
    for part in (batch, *minibatches(batch, 3, seed=1)):
        even, heavy = (
            with_loss_weights(part, Spec("token_mean")).weights,
            with_loss_weights(part, Spec("token_mean"), {"code": OWN}).weights,
        )
        assert even is not None and heavy is not None
        here = rows_of(part, "code")
        assert torch.equal(heavy[here], 2 * even[here])
        assert torch.equal(heavy[~here], even[~here])


def test_domains_of_weight_1_change_no_bit_of_the_weights() -> None:
    batch = whole(*MIXED)
    plain = with_loss_weights(batch, Spec("sequence_mean_token_mean")).weights
    assert plain is not None
    result = with_loss_weights(batch, Spec("sequence_mean_token_mean"), {"code": PLAIN}).weights
    assert result is not None and torch.equal(result, plain)
