"""Configurations of absurd size: one line each, before they take time or memory."""

from pathlib import Path

import pytest

from roll.config.load import load
from roll.errors import ConfigError

GOOD = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 512}
"""
DIGITS = "9" * 5000
DEEP = "[" * 3000 + "]" * 3000


def faults(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def doubled(reference: str, first: str) -> str:
    """`vars` in which each of 40 entries has the one before it twice: 2**40 values."""
    entries = [f"  a0: &a0 {first}\n"]
    entries += [f"  a{n}: &a{n} {reference.format(n - 1)}\n" for n in range(1, 40)]
    return f"vars:\n{''.join(entries)}directory: ${{a39}}\n"


@pytest.mark.parametrize("number", [DIGITS, f"-{DIGITS}", f"0x{DIGITS}"])
def test_a_number_of_thousands_of_digits_is_refused_where_it_is(tmp_path: Path, number: str) -> None:
    text = f"steps: a whole number has at most 100 digits (got {len(number)}); put quotes around it if it is text"
    assert faults(tmp_path, f"{GOOD}steps: {number}\n") == [f"run.yaml:5: {text}"]
    assert faults(tmp_path, GOOD, f"steps={number}") == [f"command line: {text}"]


def test_a_long_number_in_quotes_is_text_and_as_an_index_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f'{GOOD}name: "{DIGITS}"\n')
    assert load(path).run.name == DIGITS
    (line,) = faults(tmp_path, GOOD, f"tasks.{DIGITS}.share=2")
    assert "'tasks' has entries 0 to 0" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference", "first"),
    [
        ("[*a{0}, *a{0}]", "[x]"),
        ("{{p: *a{0}, q: *a{0}}}", "{x: 1}"),
        ("{{p: *a{0}, <<: *a{0}}}", "{x: 1}"),
        ("${{a{0}}}${{a{0}}}", "x"),
        ("${{a{0}}}${{a{0}}}", "''"),
        ("['${{a{0}}}', '${{a{0}}}']", "[1]"),
    ],
)
def test_aliases_and_variables_that_multiply_are_refused(tmp_path: Path, reference: str, first: str) -> None:
    (line,) = faults(tmp_path, GOOD + doubled(reference, first))
    assert line.startswith("run.yaml: has more than 20,000 values or 10,000,000 characters")


@pytest.mark.slow
def test_a_long_text_behind_many_aliases_or_variables_is_refused(tmp_path: Path) -> None:
    long = "x" * 500_000
    for entry in ("*a", "'${a}'"):
        (line,) = faults(tmp_path, f"{GOOD}vars:\n  a: &a {long}\ndirectory: [{','.join([entry] * 100)}]\n")
        assert line.startswith("run.yaml: has more than 20,000 values or 10,000,000 characters")


def test_a_file_of_too_many_bytes_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: has more than 1,000,000 bytes"):
        load(Path("/dev/zero"))


@pytest.mark.slow
def test_a_file_of_too_many_keys_is_refused(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, GOOD + "".join(f"k{n}: 1\n" for n in range(90_000)))
    assert line.startswith("run.yaml: has more than 20,000 values")
    (line,) = faults(tmp_path, GOOD, f"directory=[{'1,' * 60_000}]")
    assert line.startswith("command line: directory: has more than 20,000 values")


@pytest.mark.slow
def test_of_many_faults_the_first_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    lines = faults(tmp_path, GOOD + "".join(f"k{n}: 1\n" for n in range(9_000)))
    assert len(lines) == 51 and lines[0].startswith("run.yaml:5: unknown key 'k0'")
    assert lines[-1] == "and 8950 more faults; fix these first"


@pytest.mark.parametrize(
    "text",
    [
        f"vars: {DEEP}\n",
        "vars:\n" + "".join(f"{' ' * n}a:\n" for n in range(1, 500)),
        doubled("[" * 30 + "*a{0}" + "]" * 30, "x"),
        doubled("[" * 30 + "'${{a{0}}}'" + "]" * 30, "x").replace("a39}", "a3}"),
    ],
)
def test_values_nested_too_deeply_are_refused(tmp_path: Path, text: str) -> None:
    (line,) = faults(tmp_path, GOOD + text)
    assert line == "run.yaml: is nested more than 50 levels deep; write it flatter"


def test_a_long_chain_of_variables_is_refused(tmp_path: Path) -> None:
    chain = "".join(f"  a{n}: ${{a{n - 1}}}\n" for n in range(1, 2000))
    (line,) = faults(tmp_path, f"{GOOD}vars:\n  a0: x\n{chain}directory: ${{a1999}}\n")
    assert line == "run.yaml:2006: directory: variables are nested too deeply; write them flatter"


@pytest.mark.slow
def test_overrides_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD, f"directory={DEEP}") == [
        "command line: directory: is nested more than 50 levels deep; write it flatter"
    ]
    (line,) = faults(tmp_path, GOOD, "x." * 3000 + "y=1")
    assert line.endswith("is not an override; write key.sub=value")
