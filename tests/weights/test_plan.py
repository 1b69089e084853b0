import pytest

from roll.errors import RunStopped
from roll.weights.plan import plan

LAYOUT = {"embed": (40, 8), "norm": (8,), "head": (40, 8)}


def test_a_plan_carries_every_parameter_once() -> None:
    assert plan(LAYOUT, dict(reversed(LAYOUT.items()))).names == ("embed", "head", "norm")


@pytest.mark.parametrize(
    ("receiver", "words"),
    [
        ({**LAYOUT, "norm": (9,)}, r"norm: \(8,\) against \(9,\)"),
        ({**LAYOUT, "bias": (8,)}, r"bias: not sent against \(8,\)"),
        ({"embed": (40, 8), "norm": (8,)}, r"head: \(40, 8\) against not wanted"),
    ],
)
def test_sides_that_differ_are_refused_by_name(receiver: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(RunStopped, match=words):
        plan(LAYOUT, receiver)
