"""How plainly the project is written: idioms, class names, locals, function names, sentence lengths in docs."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, nodes, texts

pytestmark = pytest.mark.xdist_group("sources")

IDIOMS = re.compile(
    r"\b(told|hears?|heard|whoever|whosever|whatever|nobody|stands?|stood|beside|so many|anew|goes on|go on|under way|"
    r"mend(?:ed|s|ing)?|for ever|of (?:its|their|one's) own|limits? of time|comes? round|gives? way|dearer|"
    r"is to be|are to be|laid over|by itself|founders?)\b",
    re.IGNORECASE,
)
OPAQUE = {"found", "given", "own", "said", "told", "heard", "asked", "made", "wanted", "meant", "kept", "taken", "laid"}
PARTICIPLES = {
    "found", "said", "told", "kept", "held", "heard", "made", "met", "sent", "lost", "won", "put", "cut", "given",
    "taken", "drawn", "shown", "known", "written", "spoken", "broken", "chosen", "begun", "done", "gone", "laid",
    "left", "meant", "built", "bound", "spread", "split",
}  # fmt: skip
IDIOMS_PER_1000_WORDS, CLASSES_TWICE, OPAQUE_PER_1000, PARTICIPLE_PERCENT, WORDS_PER_SENTENCE = 0.5, 8, 2.0, 5.0, 22
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "docs/start", "docs/tutorials") for page in sorted((ROOT / folder).glob("*.md"))),
]


def prose(source: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Docstrings, field docstrings and comments."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def named_by_a_participle(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    return (first.endswith("ed") and len(first) > 3) or first in PARTICIPLES


def functions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of functions and methods; properties and dunder methods are left out."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            marks = {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}
            if not marks & {"property", "cached_property"}:
                yield node.name


def stores(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that are assigned to."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def sentences(page: str) -> list[int]:
    """Words per sentence of a page in Markdown, without code, tables and headings."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    paragraphs: list[str] = [""]
    for line in text.splitlines():
        if not line.strip() or line.startswith(("|", "#", "<!--", "!")):
            paragraphs.append("")
        elif re.match(r"\s*([-*]|\d+\.) ", line):
            paragraphs.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line))
        else:
            paragraphs[-1] += " " + line
    parts = (part for paragraph in paragraphs for part in re.split(r"(?<=[.!?])\s+", paragraph))
    return [len(part.split()) for part in parts if part.split()]


@pytest.mark.slow
def test_docstrings_and_comments_are_free_of_idioms() -> None:
    passages = [(name, text) for name, source in texts().items() for text in prose(source, nodes()[name])]
    hits = [(name, hit) for name, text in passages for hit in IDIOMS.findall(text)]
    words = sum(len(text.split()) for _, text in passages)
    assert 1000 * len(hits) / words <= IDIOMS_PER_1000_WORDS, hits


def test_few_class_names_are_defined_twice() -> None:
    every = (node for module in nodes().values() for node in module)
    classes = Counter(node.name.lstrip("_") for node in every if isinstance(node, ast.ClassDef))
    twice = sorted(name for name, count in classes.items() if count > 1)
    assert len(twice) <= CLASSES_TWICE, twice


def test_locals_are_named_by_what_they_hold() -> None:
    names = [(file, name) for file, module in nodes().items() for name in stores(module)]
    opaque = [(file, name) for file, name in names if name in OPAQUE]
    assert 1000 * len(opaque) / len(names) <= OPAQUE_PER_1000, opaque


def test_functions_are_named_by_verbs() -> None:
    names = [(file, name) for file, module in nodes().items() for name in functions(module)]
    participles = [(file, name) for file, name in names if named_by_a_participle(name)]
    assert 100 * len(participles) / len(names) <= PARTICIPLE_PERCENT, participles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_of_a_page_are_short_on_average(page: Path) -> None:
    lengths = sentences(page.read_text(encoding="utf-8"))
    assert sum(lengths) / len(lengths) <= WORDS_PER_SENTENCE


@pytest.mark.parametrize("folder", ["start", "tutorials"])
def test_lines_of_a_page_have_at_most_120_characters(folder: str) -> None:
    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    code = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    lines = [(page.name, line) for page in pages for line in code.sub("", page.read_text("utf-8")).splitlines()]
    assert [line for line in lines if len(line[1]) > 120 and not line[1].startswith("|")] == []


def test_the_changelog_has_at_most_twenty_lines_per_release() -> None:
    releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    lines = {release.splitlines()[0]: len([line for line in release.splitlines()[1:] if line]) for release in releases}
    assert lines and all(count <= 20 for count in lines.values()), lines


def test_the_measures_count_what_they_should() -> None:
    source = '''def _settled():\n    """It goes on beside it."""\n    found = 1  # nobody\n'''
    parsed = list(ast.walk(ast.parse(source)))
    assert len(IDIOMS.findall(" ".join(prose(source, parsed)))) == 3
    assert list(stores(parsed)) == ["found"]
    assert [named_by_a_participle(name) for name in ("_settled", "kept_rows", "red", "settle")] == [
        True,
        True,
        False,
        False,
    ]
    assert sentences("# T\n\nOne two. Three four five!\n\n- six\n\n| a | b |\n\n```sh\nx y z\n```\n") == [2, 3, 1]
