"""The warning about steps that take longer than the grace time of the cluster."""

from roll.tracking.grace import GraceCheck


def warnings_of(*step_times: float) -> list[str]:
    notices: list[str] = []
    check = GraceCheck(30.0, notices.append)
    for step, seconds in enumerate(step_times):
        check.write(step, {"time/step": seconds})
    return notices


def test_steps_longer_than_the_grace_time_are_pointed_out_once_with_both_numbers() -> None:
    (line,) = warnings_of(40.0, 45.0, 50.0, 50.0)
    assert line.startswith("warning: a step takes 45 s (median), more than interrupt.grace_s (30 s)")
    assert "; raise the grace time" in line and "\n" not in line


def test_one_long_step_and_the_metrics_of_a_validation_alone_are_no_reason_for_it() -> None:
    assert warnings_of(90.0, 20.0, 20.0, 20.0) == []
    GraceCheck(30.0, print).write(0, {"validation/accuracy": 0.5})
