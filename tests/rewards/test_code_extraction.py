"""Which block of a response is its program."""

import pytest

from roll.rewards.code.extraction import extract_code

F = "def f(x):\n    return x + 1"


def block(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}\n```\n"


def test_without_names_it_is_the_last_block_after_the_thinking_or_all_text() -> None:
    assert extract_code("x = 1") == "x = 1"
    assert extract_code("First\n```\na\n```\nthen\n```python\nb\nc\n```\ndone") == "b\nc"
    assert extract_code("```python\nopen") == "open"
    assert extract_code("<think>```python\nbad\n```</think>good") == "good"
    assert extract_code("<think>```python\nstill thinking\n```") == ""


@pytest.mark.parametrize(
    "after",
    [
        block("print(f(1))  # 2"),
        block("2", ""),
        block("2", "text"),
        block("$ python main.py", "bash"),
        block(">>> f(1)\n2", "pycon"),
        block("from solution import g\nassert f(1) == 2", "py"),
        block('{"f": 1}', "json"),
        block("result = f(3)\nif f == 1: pass"),
    ],
)
def test_an_example_after_the_program_does_not_replace_it(after: str) -> None:
    assert extract_code(f"{block(F)}For example:\n\n{after}Done.", needed=["f"]) == F


def test_the_last_definition_counts_so_that_a_response_has_one_guess() -> None:
    other = "def f(x):\n    return x"
    assert extract_code(block(F) + block(other), needed=["f"]) == other
    assert extract_code(block(F) + block(other, ""), needed=["f"]) == other
    both = f"{F}\ndef g(x): return 1"
    assert extract_code(block(both) + block(other), needed=["f", "g"]) == both


@pytest.mark.parametrize(
    "definition",
    ["def f(x): pass", "async def f(x): pass", "class f: pass", "f = abs", "f: int = 1", "from a import f"],
)
def test_a_name_is_defined_in_several_ways(definition: str) -> None:
    assert extract_code(block(definition) + block("print(1)"), needed=["f"]) == definition


@pytest.mark.parametrize("lead", ["   ", "1. ", "  - ", "> ", "\t", "10) "])
def test_the_indentation_of_a_list_or_a_quotation_is_removed(lead: str) -> None:
    rest = "> " if lead == "> " else " " * len(lead.expandtabs(4))
    lines = [f"{lead}```python", *(f"{rest}{line}" for line in F.split("\n")), f"{rest}```"]
    assert extract_code("Steps:\n\n" + "\n".join(lines) + "\n\nDone.", needed=["f"]) == F


def test_fences_within_the_program_do_not_end_it() -> None:
    code = 'def f(x):\n    """\n    ```python\n    f(1)\n    ```\n    """\n    return x + 1'
    assert extract_code(block(code), needed=["f"]) == code
    assert extract_code(f"~~~python\n{block(F)}~~~\n") == block(F).rstrip("\n")
    assert extract_code(f"```python\nx = 1\n{block(F)}") == F


def test_a_program_that_reads_input_is_preferred_where_there_is_input() -> None:
    program, example = "print(int(input()) + 1)", "print(2 + 1)"
    assert extract_code(block(program) + block(example), reads_input=True) == program
    assert extract_code(block(program) + block(example)) == example
    assert extract_code(block(program) + block("3", ""), reads_input=True) == program
    assert extract_code(block(example) + block("3", "")) == example


def test_blocks_of_other_languages_are_left_out() -> None:
    assert extract_code(block("read a", "bash") + block("print(1)"), language="bash") == "read a"
    assert extract_code(block("read a", "fish") + block("x", "output"), language="fish {file}") == "read a"
    assert extract_code(block("x", "output")) == "x"
