"""The program in a response: one block and those it builds on, chosen by form and names, never by test results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<lead>(?:[ \t]|>|[-*+][ \t]|[0-9]{1,9}[.)][ \t])*)(?P<mark>`{3,}|~{3,})(?P<info>.*)$")
_BINDING = re.compile(
    r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^([A-Z][A-Z0-9_]*)[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|^(?:from[ \t]+\S+[ \t]+)?import[ \t]+([^\n#]+)",
    re.MULTILINE,
)
_CODE_START = re.compile(
    r"^(?:(?:async[ \t]+)?def|class)[ \t]+\w+[ \t]*[(:]|^import[ \t]+\w|^from[ \t]+\S+[ \t]+import\b|^@\w", re.MULTILINE
)
_PROSE = re.compile(r"(?!.*[=])(?:[A-Z][\w'\u2019]*[,!]?[ ][\w`\"(*]|[A-Z]\w*!)")
"""A line that begins like a sentence, which no statement does."""
_TAG_LINE = re.compile(r"^[ \t]*</?[A-Za-z]\w*>[ \t]*$", re.MULTILINE)
_NOT_PROGRAMS = frozenset({
    *("text", "txt", "plaintext", "plain", "output", "out", "stdout", "stdin", "input", "console", "terminal", "log"),
    *("shell-session", "shellsession", "pycon", "traceback", "markdown", "md", "diff", "json", "yaml", "toml", "csv"),
})  # fmt: skip
"""Tags of blocks that hold no program in any language."""
_TAGS = {
    "python": frozenset({"python", "py", "python3", "py3"}),
    "javascript": frozenset({"javascript", "js", "node", "mjs"}),
    "bash": frozenset({"bash", "sh", "shell", "zsh"}),
    "perl": frozenset({"perl", "pl"}),
    "ruby": frozenset({"ruby", "rb"}),
    "c": frozenset({"c", "h"}),
    "c++": frozenset({"c++", "cpp", "cc", "cxx"}),
}
"""Tags of blocks in a language."""
_ALL_TAGS = frozenset[str]().union(*_TAGS.values())
_READS_INPUT = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b|\bfileinput\b")


@dataclass(frozen=True, slots=True)
class _Block:
    tag: str
    code: str

    def defines(self, name: str, *, imports: bool = True) -> bool:
        """Whether a line without indentation binds this name; the text is not parsed, because it is untrusted."""
        word = re.escape(name)
        binding = rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{word}\b|^{word}[ \t]*(?::[^=\n]*)?=(?!=)"
        imported = rf"|^(?:from[ \t]+\S+[ \t]+)?import\b[^\n]*\b{word}\b"
        return re.search(binding + imported * imports, self.code, re.MULTILINE) is not None

    def bindings(self) -> set[str]:
        """Functions, classes, constants and modules that lines without indentation bind."""
        parts = [part for match in _BINDING.finditer(self.code) for part in match.groups("")]
        return {word.split()[-1].strip("()") for part in parts for word in part.split(",") if word.strip()}

    def names(self) -> set[str]:
        """All names, except those of attributes."""
        return set(re.findall(r"(?<![\w.])[^\W\d]\w*", self.code))


def extract_code(
    response: str, *, language: str = "python", needed: Sequence[str] = (), reads_input: bool = False
) -> str:
    """The program after the thinking: one fenced block, or all text if there is no fence; the last may be unclosed.

    Blocks tagged as output, as data or as another language are left out. Of the others it is the last that defines all
    names of `needed` (of a Python program), rather than importing them; else the last that defines one of them; else,
    with `reads_input`, the last that reads its input; else the last tagged with the language; else the last. A Python
    program begins with the blocks before it whose functions, classes, constants or modules it uses and does not define.
    """
    _, closed, text = response.rpartition("</think>")
    if not closed and "<think>" in response:
        return ""
    blocks = _blocks(text)
    if not blocks:
        return _without_prose(text) if language == "python" else text
    tags = _TAGS.get(language, frozenset[str]())
    excluded = _NOT_PROGRAMS | (_ALL_TAGS - tags if tags else frozenset[str]())
    usable = [block for block in blocks if block.tag not in excluded] or blocks
    preferences = [
        [block for block in usable if needed and all(block.defines(name, imports=False) for name in needed)],
        [block for block in usable if any(block.defines(name, imports=False) for name in needed)],
        [block for block in usable if needed and all(block.defines(name) for name in needed)],
        [block for block in usable if any(block.defines(name) for name in needed)],
        [block for block in usable if reads_input and language == "python" and _READS_INPUT.search(block.code)],
        [block for block in usable if block.tag in tags],
    ]
    program = next(filter(None, preferences), usable)[-1]
    if language != "python":
        return program.code
    before = usable[: next(n for n, block in enumerate(usable) if block is program)]
    return "\n".join(block.code for block in _with_used(program, before))


def _with_used(program: _Block, before: Sequence[_Block]) -> list[_Block]:
    """The blocks that this program builds on, and the program; those that read input are programs of their own."""
    parts, bindings, names = [program], program.bindings(), program.names()
    for block in reversed(before):
        if not _READS_INPUT.search(block.code) and (block.bindings() - bindings) & names:
            parts = [block, *parts]
            bindings, names = bindings | block.bindings(), names | block.names()
    return parts


def _without_prose(text: str) -> str:
    """Text without fences: from its first definition or import, if sentences come before, to the next sentence."""
    text = _TAG_LINE.sub("", text.lstrip("\ufeff"))
    start = _CODE_START.search(text)
    if start is None:
        return text
    lines = (text[start.start() :] if _PROSE.match(text.lstrip()) else text).split("\n")
    quotes = 0
    for number, line in enumerate(lines):
        if number and not lines[number - 1].strip() and quotes % 2 == 0 and _PROSE.match(line):
            return "\n".join(lines[:number])
        quotes += line.count('"""') + line.count("'''")
    return "\n".join(lines)


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks, with the indentation of their opening fence removed: a fence may be in a list or a quotation."""
    blocks: list[_Block] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line.rstrip("\r"))
        if opened is None:
            opened, lines = fence or _late_fence(line), []
        elif fence is not None and _closes(opened, fence):
            blocks.append(_block(opened, lines))
            opened, lines = (fence if fence["info"].strip() else None), []
        elif fence is None and _ends_with(line, opened["mark"]):
            blocks.append(_block(opened, [*lines, line.rstrip()[: -len(opened["mark"])]]))
            opened = None
        else:
            lines.append(line)
    return blocks if opened is None else [*blocks, _block(opened, lines)]


def _late_fence(line: str) -> re.Match[str] | None:
    """An opening fence after text on its line; it needs the tag of a language."""
    at = line.find("```")
    match = _FENCE.match(line[at:].rstrip()) if at > 0 else None
    return match if match is not None and match["info"].strip().lower() in _ALL_TAGS else None


def _ends_with(line: str, mark: str) -> bool:
    """Whether a line of code ends with the closing fence."""
    return line.rstrip().endswith(mark) and line.count(mark[0]) == len(mark)


def _closes(opened: re.Match[str], fence: re.Match[str]) -> bool:
    """Whether a fence ends an open block; one with a tag also opens the next, unless it is indented as content."""
    same = fence["mark"][0] == opened["mark"][0]
    if fence["info"].strip():
        return same and len(fence["lead"]) <= len(opened["lead"]) and len(fence["mark"]) == len(opened["mark"])
    near = len(fence["lead"]) <= len(opened["lead"]) + 3  # further in, it is part of a text within the program
    return same and near and len(fence["mark"]) >= len(opened["mark"])


def _block(opened: re.Match[str], lines: Sequence[str]) -> _Block:
    words = opened["info"].strip().strip("{}.").lower().split()
    quoted = ">" in opened["lead"]
    width = len(opened["lead"].expandtabs(4))
    return _Block(words[0].strip("{}.,") if words else "", "\n".join(_outdent(line, width, quoted) for line in lines))


def _outdent(line: str, width: int, quoted: bool) -> str:
    """The line without the first `width` columns, as far as they are blank or the marks of a quotation."""
    if not width:
        return line
    marks = " \t>" if quoted else " \t"
    line = line.expandtabs(4) if line[:width].strip(marks) == "" and "\t" in line[:width] else line
    kept = line[:width].lstrip(marks)
    return kept + line[width:]
