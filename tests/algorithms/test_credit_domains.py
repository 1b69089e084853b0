"""Domains that give credit in a way of their own: each as if it were alone, whatever stands beside it."""

from dataclasses import asdict, replace

import msgspec
import pytest
import torch

from roll.algorithms.credit import Memory, assign_credit, minibatches, weigh
from roll.algorithms.partition import parted
from roll.algorithms.recipe import Kl, Recipe
from roll.algorithms.running_stats import Moments
from roll.data.collate import collate
from roll.types import Batch, Call, Finish, Group, Score, Segment, Status, Task, Trajectory, Turn

PLAIN = Recipe(advantage=Call("group_normalised"), loss=Call("clipped"), aggregation=Call("token_mean"))
RUNNING = Call("normalised", {"mean": "running", "std": "running"})
OWN = replace(
    PLAIN,
    shaping=(Call("scaled", {"factor": 3.0}), RUNNING),
    advantage=Call("batch_normalised"),
    whiten=True,
    clip=1.5,
    emphasis=(Call("difficulty"), Call("length")),
    masks=(Call("truncated"),),
    weight=2.0,
)
"""Everything that a domain may have for itself, and what looks beyond a trajectory wherever there is a choice."""


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
    """Groups numbered as they come, whose outcomes are those of their domain's first, second, ..."""
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
    """A batch whose rows beyond the samples are functions of the token, so that a part of it has the same."""
    found = collate(groups(*order))
    noise = torch.sin(found.ids * 7.0 + found.sampler_logprobs * 100)
    return replace(found, old_logprobs=found.sampler_logprobs + 0.1 * noise, ref_logprobs=noise - 1, values=0.3 * noise)


def alone(batch: Batch, *domains: str) -> Batch:
    return parted(batch, torch.tensor([domain in domains for domain in batch.domains])).batch


def rows_of(batch: Batch, *domains: str) -> torch.Tensor:
    """[tokens] bool: those of the domains."""
    return torch.tensor([batch.domains[owner] in domains for owner in batch.turn_trajectory[batch.turn].tolist()])


def assert_equal_where(found: Batch, expected: Batch, here: torch.Tensor) -> None:
    """Bit by bit, in all that credit makes."""
    for name in ("advantages", "returns", "trained", "penalties"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert torch.equal(one[here], other), name


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_domain_is_credited_as_if_it_were_alone_and_the_others_as_if_it_were_not_there(place: str) -> None:
    kl = Kl(estimator=Call("k1"), coefficient=0.5, place=place)  # type: ignore[arg-type]
    run = replace(PLAIN, kl=kl, shaping=(RUNNING,), domains={"code": replace(OWN, kl=kl)})
    memory = Memory(
        kl_coefficient=0.5,
        moments=Moments(count=3, mean=0.2, square=0.1),
        domains={"code": Moments(count=2, mean=7.0, square=5.0)},
    )
    batch = whole(*MIXED)
    found, after, _ = assign_credit(batch, run, memory)

    own, own_after, _ = assign_credit(
        alone(batch, "code"), replace(OWN, kl=kl), replace(memory, moments=memory.domains["code"])
    )
    rest, rest_after, _ = assign_credit(alone(batch, "math", "qa"), replace(run, domains={}), memory)
    assert_equal_where(found, own, rows_of(batch, "code"))
    assert_equal_where(found, rest, rows_of(batch, "math", "qa"))
    assert after.moments == rest_after.moments
    assert after.domains == {"code": own_after.moments}
    assert found.advantages is not None and found.advantages[rows_of(batch, "code")].abs().sum() > 0


def test_the_order_of_domains_in_a_batch_does_not_matter() -> None:
    run = replace(PLAIN, domains={"code": OWN, "qa": replace(OWN, whiten=False)})
    one, other = whole(*MIXED), whole(*reversed(MIXED))
    found, after, _ = assign_credit(one, run, Memory())
    turned, turned_after, _ = assign_credit(other, run, Memory())
    assert after.domains.keys() == turned_after.domains.keys() == {"code", "qa"}
    for domain in ("math", "code", "qa"):
        mine, theirs = alone(one, domain), alone(other, domain)
        first, second = (assign_credit(each, run.domains.get(domain, PLAIN), Memory())[0] for each in (mine, theirs))
        assert_equal_where(found, first, rows_of(one, domain))
        assert_equal_where(turned, second, rows_of(other, domain))


def test_a_part_is_the_batch_that_its_groups_alone_would_make() -> None:
    batch = collate(groups(*MIXED))
    own = collate([each for each in groups(*MIXED) if each.trajectories[0].task.domain == "code"])
    found = alone(batch, "code")
    assert (found.lengths, found.domains) == (own.lengths, own.domains)
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
        assert torch.equal(getattr(found, name), getattr(own, name)), name
    assert found.parts.keys() == own.parts.keys() == {"part of code"}
    assert torch.equal(found.parts["part of code"], own.parts["part of code"])


def test_without_recipes_of_their_own_domains_are_credited_together() -> None:
    batch = whole(*MIXED)
    found, memory, metrics = assign_credit(batch, replace(PLAIN, advantage=Call("batch_normalised")), Memory())
    nameless, same, counted = assign_credit(
        replace(batch, domains=()), replace(PLAIN, advantage=Call("batch_normalised")), Memory()
    )
    assert_equal_where(found, nameless, torch.ones(batch.num_tokens, dtype=torch.bool))
    assert (memory, metrics) == (same, counted)
    assert memory.moments.count == len(batch.rewards) and memory.domains == {}


def test_a_domain_that_a_step_has_nothing_of_keeps_its_memory() -> None:
    known = Moments(count=5, mean=1.0, square=2.0)
    run = replace(PLAIN, domains={"code": OWN})
    _, memory, _ = assign_credit(whole("math", "math"), run, Memory(domains={"code": known}))
    assert memory.domains == {"code": known}
    assert memory.moments.count == 6


def test_memory_survives_a_checkpoint_and_one_of_before_there_were_domains_is_read() -> None:
    _, memory, _ = assign_credit(whole(*MIXED), replace(PLAIN, domains={"code": OWN}), Memory())
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(asdict(memory))), Memory) == memory
    old = {"kl_coefficient": 0.1, "moments": {"count": 1, "mean": 2.0, "square": 0.0}}
    assert msgspec.convert(old, Memory).domains == {}


def test_masked_tokens_are_counted_over_all_domains() -> None:
    batch = whole("math", "code")
    _, _, metrics = assign_credit(batch, replace(PLAIN, domains={"code": OWN}), Memory())
    cut = batch.trained & batch.truncated[batch.turn_trajectory[batch.turn]] & rows_of(batch, "code")
    assert metrics["reward/masked"] == pytest.approx(float(cut.sum() / batch.trained.sum()))
    assert cut.any()


def test_the_weight_of_a_domain_multiplies_its_losses_and_no_denominator() -> None:
    batch = whole(*MIXED)
    for part in (batch, *minibatches(batch, 3, seed=1)):
        even, heavy = weigh(part, Call("token_mean")).weights, weigh(part, Call("token_mean"), {"code": OWN}).weights
        assert even is not None and heavy is not None
        here = rows_of(part, "code")
        assert torch.equal(heavy[here], 2 * even[here])
        assert torch.equal(heavy[~here], even[~here])


def test_domains_of_weight_1_leave_every_bit_of_the_weights() -> None:
    batch = whole(*MIXED)
    plain = weigh(batch, Call("sequence_mean_token_mean")).weights
    assert plain is not None
    found = weigh(batch, Call("sequence_mean_token_mean"), {"code": PLAIN}).weights
    assert found is not None and torch.equal(found, plain)
