"""The limits of `roll bench verifiers`: which class a response is in, and when a limit holds."""

from benchmarks.surface_forms.row import Row
from benchmarks.verifiers import LIMITS, VerdictCounts, class_of, held, rates


def row(response: str, expected: float = 1.0, *, verifier: str = "math", kind: str = "form") -> Row:
    return Row(verifier=verifier, kind=kind, answer="72", response=response, expected=expected)


def test_responses_are_classed_by_verifier_box_and_negation() -> None:
    classes = [
        class_of(each)
        for each in (row("\\boxed{72}"), row("It is 72."), row("Not 72.", kind="negation"), row("B", verifier="choice"))
    ]
    assert classes == ["math boxed", "math unboxed", "math negations", "choice"]


def test_wrong_verdicts_are_shares_of_the_responses_that_deserve_the_other() -> None:
    counts = VerdictCounts()
    for expected, score in ((1.0, 1.0), (1.0, 1.0), (1.0, 0.0), (1.0, None), (0.0, 0.0), (0.0, 1.0), (0.0, None)):
        counts.add(row("\\boxed{72}", expected), score)
    assert rates({"math boxed": counts}) == {
        "math boxed: false zeros": 2 / 4,
        "math boxed: false ones": 1 / 3,
    }
    assert counts.unscored == 2


def test_the_worst_limit_is_1_only_if_all_hold() -> None:
    within = dict(LIMITS)
    assert min(held(within).values()) == 1.0
    assert min(held({**within, "choice: false ones": 0.01}).values()) == 0.5
    assert min(held({**within, "code: forged": 1.0}).values()) == 0.0
