import pytest

from roll.config.schema import Optimizer
from roll.engines.native.trainer import lr_at


def rates(total: int, **knobs: object) -> list[float]:
    optimizer = Optimizer.model_validate({"lr": 1.0, **knobs})
    return [lr_at(step, total, optimizer) for step in range(total)]


def test_constant_stays_where_the_warm_up_ends() -> None:
    assert rates(5, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_linear_falls_by_equal_steps_to_the_final_rate() -> None:
    assert rates(4, schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates(4, schedule="linear", final_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])
    assert rates(5, schedule="linear", warmup_steps=1) == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25])


def test_cosine_is_halfway_at_half_time() -> None:
    # (1 + cos 45 degrees) / 2 = 0.85355
    assert rates(4, schedule="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_past_the_last_step_the_final_rate_holds() -> None:
    optimizer = Optimizer(lr=2.0, schedule="cosine", final_lr_ratio=0.1)
    assert lr_at(4, 4, optimizer) == lr_at(9, 4, optimizer) == pytest.approx(0.2)


def test_a_warm_up_longer_than_the_run_ends_below_the_rate() -> None:
    assert rates(2, schedule="linear", warmup_steps=3) == pytest.approx([0.25, 0.5])
