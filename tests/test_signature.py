"""Arguments are judged by the hints of whatever takes them, which is read and never run."""

from pathlib import Path
from typing import Any

import pytest

from roll.registry import ENVS, REWARDS
from roll.signature import Signature, signature_of

SOURCE = """\
from typing import Annotated, Literal, Optional, Union, TypeAlias
raise SystemExit("run")

Side: TypeAlias = Literal["left", "right"]
Wide = Narrow
Narrow = Wide

def draw(task, *, whole: int, part: float = 0.5, word: "str" = "a", sure: bool = False, late: int = None,
         side: Side = "left", many: list[int] = (), pairs: tuple[str, ...] = (), pair: tuple[int, str] = (1, "a"),
         some: Optional[float] = None, either: Union[int, str] = 0, noted: Annotated[int, "at least 1"] = 1,
         bare: list = (), strange: Wide = 0, table: dict[str, int] = {}, mixed: "list[" = 0, loose=0,
         either_or: int | Path = 0): ...

class Drawing:
    size: int
    name: str | None = None
"""


@pytest.fixture
def read(tmp_path: Path) -> Signature:
    (tmp_path / "drawing.py").write_text(SOURCE)
    found = signature_of(tmp_path / "drawing.py", "draw", 1, 0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("whole", "abc", "a whole number"),
        ("whole", 2.0, "a whole number"),
        ("whole", True, "a whole number"),
        ("whole", None, "a whole number"),
        ("part", "abc", "a number"),
        ("part", False, "a number"),
        ("word", 5, "text"),
        ("sure", 1, "true or false"),
        ("late", "soon", "a whole number or null"),
        ("side", "top", "'left' or 'right'"),
        ("many", 3, "a list, each entry a whole number"),
        ("many", [1, "2"], "a list, each entry a whole number"),
        ("pairs", ["a", 1], "a list, each entry text"),
        ("pair", "ab", "a list"),
        ("some", "x", "a number or null"),
        ("either", 0.5, "a whole number or text"),
        ("noted", "x", "a whole number"),
        ("bare", "x", "a list"),
    ],
)
def test_an_invalid_value_gets_a_description_of_valid_ones(read: Signature, key: str, value: Any, words: str) -> None:
    assert read.expected(key, value) == words


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("whole", 3),
        ("part", 3),
        ("part", 0.25),
        ("word", "b"),
        ("sure", True),
        ("late", None),
        ("side", "right"),
        ("many", []),
        ("many", [1, 2]),
        ("pair", [1, "a"]),
        ("some", None),
        ("either", "a"),
        ("bare", ["a", 1]),
    ],
)
def test_a_valid_value_passes(read: Signature, key: str, value: Any) -> None:
    assert read.expected(key, value) == ""


@pytest.mark.parametrize("key", ["strange", "table", "mixed", "loose", "either_or", "unknown"])
def test_values_of_other_hints_are_not_judged(read: Signature, key: str) -> None:
    for value in (None, 1, 0.5, "a", [1], {"a": 1}):
        assert read.expected(key, value) == ""


def test_the_fields_of_a_dataclass_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(SOURCE)
    found = signature_of(tmp_path / "drawing.py", "Drawing", 0, 0)
    assert found is not None and found.required == {"size"}
    assert found.expected("size", "x") == "a whole number"
    assert found.expected("name", 1) == "text or null"


CAREFUL = """\
from dataclasses import dataclass, field
from typing import Collection, Iterable, Literal, overload

try:
    Number = float
except NameError:
    Number = int

@overload
def spoken(task, *, mode: Literal["a"]): ...
@overload
def spoken(task, *, mode: Literal["b"]): ...
def spoken(task, *, mode): ...

def drawn(task, *, size: Number = 0, way: int = "auto", step: Literal[0.5, 1.0] = 1.0, none: list[()] = (),
          words: Iterable[str] = (), names: Collection[str] = ()): ...

@dataclass
class Drawing:
    late: int = field(default=None)
"""


@pytest.mark.parametrize(
    ("attribute", "key", "value"),
    [
        ("spoken", "mode", "b"),
        ("drawn", "size", 0.5),
        ("drawn", "way", "auto"),
        ("drawn", "step", 1),
        ("drawn", "none", [1]),
        ("drawn", "words", {"a": 1}),
        ("drawn", "names", "abc"),
        ("Drawing", "late", None),
    ],
)
def test_no_value_is_refused_if_the_hint_may_be_incomplete(
    attribute: str, key: str, value: Any, tmp_path: Path
) -> None:
    (tmp_path / "careful.py").write_text(CAREFUL)
    found = signature_of(tmp_path / "careful.py", attribute, 0 if attribute == "Drawing" else 1, 0)
    assert found is not None and found.expected(key, value) == ""


def test_a_default_outside_its_hint_is_valid_too(tmp_path: Path) -> None:
    (tmp_path / "careful.py").write_text(CAREFUL)
    found = signature_of(tmp_path / "careful.py", "drawn", 1, 0)
    assert found is not None and found.expected("way", "other") == "a whole number or 'auto'"


CLASSES = """\
class Whole:
    name: str = ""
    async def start(self): ...
    async def step(self, response): ...
    async def close(self): ...

class Gym:
    def reset(self): ...
    def step(self, response): ...
    async def close(self): ...

class Heir(Gym): ...

class Assigned:
    start = step = close = None

class Judge:
    def __call__(self, task, response): ...
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("Whole", []),
        (
            "Gym",
            ["has no method `async start`; add it to the class", "has no method `async step`; add it to the class"],
        ),
        ("Heir", []),
        ("Assigned", []),
    ],
)
def test_an_environment_without_a_method_of_the_protocol_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lines: list[str]
) -> None:
    (tmp_path / "worlds_beside.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    kind = f"worlds_beside:{name}"
    assert ENVS.faults(kind, {}) == [("", f"environment {kind!r} {line}") for line in lines]


def test_a_reward_class_without_score_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges_beside.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    ((_, line),) = REWARDS.faults("judges_beside:Judge", {})
    assert line == "reward 'judges_beside:Judge' has no method `score`; add it to the class"


def test_no_built_in_environment_or_reward_lacks_a_method() -> None:
    for table in (ENVS, REWARDS):
        faults = [line for name in table.targets for _, line in table.faults(name, {})]
        assert not [line for line in faults if "has no method" in line]
