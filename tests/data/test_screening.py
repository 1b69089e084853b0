"""Nothing is left out without being counted."""

from typing import Any

from roll.data.screening import ScreeningCounts, fingerprint, screen
from roll.data.tasks import seeds
from roll.types import Message, Task


def task(text: str, *, id: str = "", system: str = "") -> Task:
    messages = (Message("system", system), Message("user", text)) if system else (Message("user", text),)
    return Task(id=id or text, domain="d", messages=messages)


def length(found: Task) -> int:
    return len(found.messages[-1].content)


TASKS = [task("one"), task("two"), task("one", id="again"), task("ONE "), task("held"), task("very long indeed")]
HELD = [task("held"), task("never drawn")]


def kept(**screening: Any) -> tuple[list[str], ScreeningCounts]:
    found, account = screen("math", TASKS, **screening, held_out=HELD, length_of=length)
    return [each.id for each in found], account


def test_by_default_nothing_is_left_out_and_overlaps_are_counted():
    ids, account = kept()
    assert ids == ["one", "two", "again", "ONE ", "held", "very long indeed"]
    assert account == ScreeningCounts(source="math", total=6, kept=6, overlaps=1)
    assert str(account) == "math: 6 of 6 tasks: 1 held out for validation, and kept: set dedup"


def test_the_first_of_equal_prompts_remains_and_held_out_prompts_do_not():
    ids, account = kept(dedup="exact")
    assert ids == ["one", "two", "ONE ", "very long indeed"]
    assert account == ScreeningCounts(source="math", total=6, kept=4, duplicates=1, overlaps=1)
    assert str(account) == "math: 4 of 6 tasks: 1 duplicates, 1 held out for validation"


def test_normalised_prompts_are_equal_up_to_case_spaces_and_unicode_forms():
    ids, account = kept(dedup="normalised")
    assert ids == ["one", "two", "very long indeed"] and account.duplicates == 2
    assert fingerprint(task("ﬁ  x"), "normalised") == fingerprint(task("FI X"), "normalised")
    assert fingerprint(task("2+3"), "normalised") != fingerprint(task("2-3"), "normalised")


def test_long_prompts_are_left_out_and_counted():
    ids, account = kept(max_prompt_tokens=4)
    assert "very long indeed" not in ids
    assert account == ScreeningCounts(source="math", total=6, kept=5, overlaps=1, too_long=1)


def test_every_task_is_counted_once():
    _, account = kept(dedup="normalised", max_prompt_tokens=3)
    assert account.kept + account.duplicates + account.overlaps + account.too_long == account.total == 6
    assert (account.kept, account.duplicates, account.overlaps, account.too_long) == (2, 2, 0, 2)


def test_system_messages_are_ignored():
    assert fingerprint(task("q", system="be brief"), "exact") == fingerprint(task("q"), "exact")


def test_tasks_without_messages_are_never_duplicates():
    worlds = [Task(id=str(number), domain="d", metadata={"level": "#"}) for number in range(3)]
    found, account = screen("d", worlds, dedup="exact", held_out=worlds, length_of=lambda _: 0)
    assert len(found) == 3 and account.overlaps == 0


def test_screening_a_million_seeds_does_not_create_them():
    found, account = screen("game", seeds(), dedup="exact", max_prompt_tokens=1, length_of=length)
    assert account.kept == len(found) == 1_000_000
