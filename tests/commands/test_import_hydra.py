"""Hydra composition without Hydra: defaults lists, `${...}`, device lists; bad input is one line."""

import os
from pathlib import Path
from typing import Any

import pytest

from roll.commands.importing.device_lists import format_devices, parse_devices
from roll.commands.importing.hydra import compose, leaves
from roll.errors import ConfigError


def write(folder: Path, **files: str) -> Path:
    """Files by name; `__` in a name is a directory. The path of `main`."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / "main.yaml"


def composed(folder: Path, **files: str) -> dict[str, Any]:
    return compose(write(folder, **files)).tree


def test_later_entries_override_earlier_ones_and_the_file_overrides_all(tmp_path: Path) -> None:
    main = "defaults: [lib__a@_here_, lib__b@_here_]\nsection: {three: main}".replace("__", "/")
    a, b = "section: {one: a, two: a, three: a}", "section: {two: b, three: b}\nlist: [1]"
    expected = {"section": {"one": "a", "two": "b", "three": "main"}, "list": [1]}
    assert composed(tmp_path, main=main, lib__a=a, lib__b=b) == expected


def test_self_says_where_the_file_itself_comes(tmp_path: Path) -> None:
    assert composed(tmp_path, main="defaults: [_self_, a]\nx: main", a="x: a") == {"x": "a"}


@pytest.mark.parametrize(
    ("entry", "tree"),
    [
        ("db/mysql", {"db": {"port": 1}}),
        ("db: mysql", {"db": {"port": 1}}),
        ("db@store.main: mysql", {"store": {"main": {"port": 1}}}),
        ("db/mysql@_global_", {"port": 1}),
        ("db/mysql@store", {"store": {"port": 1}}),
        ("db: null", {}),
        ("optional db: sqlite", {}),
        ("db/headed", {"port": 2}),
        ("db/nested", {"db": {"port": 1, "more": 3}}),
    ],
)
def test_an_entry_says_where_its_keys_go(tmp_path: Path, entry: str, tree: dict[str, Any]) -> None:
    files = {"mysql": "port: 1", "headed": "# @package _global_\nport: 2", "nested": "defaults: [mysql]\nmore: 3"}
    main = write(tmp_path, main=f"defaults:\n  - {entry}", **{f"db__{name}": text for name, text in files.items()})
    assert compose(main).tree == tree


def test_entries_about_hydra_itself_are_reported(tmp_path: Path) -> None:
    main = "defaults: [{override hydra/job_logging: none}, hydra/help]\nx: 1"
    assert compose(write(tmp_path, main=main)).skipped == ("override hydra/job_logging", "hydra/help")


def test_references_keep_types_and_sections(tmp_path: Path) -> None:
    main = """\
length: 64
flag: true
name: run-${length}
copy: {tokens: "${length}", on: "${flag}", near: "${.tokens}", above: "${..name}"}
whole: ${copy}
through: ${whole.tokens}
list: [1, "${length}"]
item: ${list[1]}
key: length
nested: ${${key}}
env: ${oc.env:PATH}
fallback: ${oc.env:ROLL_TEST_UNSET, 'some/path'}
nothing: ${oc.env:ROLL_TEST_UNSET,null}
"""
    copy = {"tokens": 64, "on": True, "near": 64, "above": "run-64"}
    tree = composed(tmp_path, main=main)
    assert tree["copy"] == tree["whole"] == copy
    assert (tree["through"], tree["list"], tree["item"], tree["nested"]) == (64, [1, 64], 64, 64)
    assert (tree["env"], tree["fallback"], tree["nothing"]) == (os.environ["PATH"], "some/path", None)


def test_values_that_other_programs_give_stay_as_they_are(tmp_path: Path) -> None:
    main = "day: ${now:%Y}\ndir: ${hydra:run.dir}\ntwice: x-${day}\nenv: ${oc.env:ROLL_TEST_UNSET}\nfine: 1"
    result = compose(write(tmp_path, main=main))
    assert set(result.unresolved) == {("day",), ("dir",), ("twice",), ("env",)}
    assert "'now'" in result.unresolved["twice",] and "ROLL_TEST_UNSET is not set" in result.unresolved["env",]
    assert result.tree["day"] == "${now:%Y}" and result.tree["fine"] == 1


_DOUBLING = "\n".join(["a0: [x, x]", *(f"a{index + 1}: ['${{a{index}}}', '${{a{index}}}']" for index in range(40))])
_TEXT = "\n".join(["a0: xxxxxxxxxx", *(f"a{index + 1}: ${{a{index}}}${{a{index}}}" for index in range(40))])
_ALIASES = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{index + 1}: &a{index + 1} [*a{index}, *a{index}]" for index in range(40))]
)
FAULTS = {
    "a: ${b}\nb: ${a}": "in a circle: b -> a -> b",
    "a: {b: '${a}'}": "in a circle",
    "a: ${missing}\nmising: 1": "names no key; did you mean 'mising'",
    "a: x${b}\nb: [1]": "cannot be part of a text",
    "defaults: [gone@_here_]": "no such file",
    "defaults: [main@_here_]": "leads back to itself",
    "defaults: gone": "must be a list",
    "defaults: [3]": "an entry is a file",
    "defaults: [{}]": "an entry is a file",
    "defaults: [{a: b, c: d}]": "an entry is a file",
    "defaults: [../gone]": "no such file",
    "[1, 2]": "must hold keys and values",
    "a: [": "main.yaml:",
    "a: !!python/object/apply:os.system [true]": "tags are not supported",
    "a: 1\na: 2": "is given twice",
    _DOUBLING: "has more than",
    _TEXT: "has more than",
    _ALIASES: "has more than",
}


@pytest.mark.parametrize("text", FAULTS)
def test_malformed_input_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(write(tmp_path, main=text))
    assert FAULTS[text] in str(caught.value) and "\n" not in str(caught.value)


def test_a_chain_of_references_is_bounded(tmp_path: Path) -> None:
    chain = [f"a{index}: ${{a{index + 1}}}" for index in range(5000)]
    with pytest.raises(ConfigError, match="nested too deeply"):
        compose(write(tmp_path, main="\n".join([*chain, "a5000: 1"])))


def test_every_key_without_further_keys_is_a_leaf() -> None:
    tree = {"a": {"b": 1, "c": {}}, "d": [{"e": 1}], ".": None}
    assert dict(leaves(tree)) == {("a", "b"): 1, ("a", "c"): {}, ("d",): [{"e": 1}], (".",): None}


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("list(range(0,8))", tuple(range(8))),
        (" list( range(0, 8, 2) ) ", (0, 2, 4, 6)),
        ("list(range(2))", (0, 1)),
        ("[0, 2,]", (0, 2)),
        ([4], (4,)),
        (3, (3,)),
        ("list(range(0,2)) + [6] + list(range(8,10))", (0, 1, 6, 8, 9)),
    ],
)
def test_device_lists_are_parsed_without_evaluation(value: Any, devices: tuple[int, ...]) -> None:
    assert parse_devices(value) == devices


@pytest.mark.parametrize(
    "value",
    [
        *("", "[]", "list(range(4,0))", "list(range(0,4,0))", "list(range(0,999999))", "[0,0]", "range(4)", "0+"),
        *("__import__('os').system('true')", "[i for i in range(4)]", "list(range(0,10**9))", [-1], [True], {}, 1.5),
    ],
)
def test_other_device_lists_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_devices(value)


def test_devices_are_written_as_a_range_where_they_are_one() -> None:
    assert [format_devices(ids) for ids in ((0, 1, 2), (0, 2), (4,))] == ["0-2", [0, 2], [4]]
