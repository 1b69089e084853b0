"""One spelling for the many of a text: characters, strike-outs, HTML, LaTeX and Markdown. Case and lines are kept."""

from __future__ import annotations

import functools
import re
import unicodedata

_CHARACTERS = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\u300c\u300d\u300e\u300f\u300a\u300b", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63", "-"),
    **dict.fromkeys("\u2014\u2015", " - "),
    **dict.fromkeys("\u00d7\u00b7\u22c5\u2217", "*"),
    **dict.fromkeys("\u2713\u2714\u2611\u2705\U0001f5f8", " ✓ "),
    **dict.fromkeys("\u2717\u2718\u274c\u2716\u274e\u2612", " ✗ "),
    **dict.fromkeys("\u2192\u21d2\u2794\u279c\u27f6\u27f9\U0001f449", " -> "),
    "\u00f7": "/",
    "\u2044": "/",
    "\u3002": ". ",
    "\u3001": ", ",
    "\u3010": "[",
    "\u3011": "]",
    "\u2022": "-",
}
_LETTER_BLOCKS = (0x1F150, 0x1F170)
"""White letters on a disc or a square: Unicode gives them no plain equivalent."""
_STRUCK = re.compile(
    r"~~[^~\n]{0,400}~~|<(del|s|strike)>[^<\n]{0,400}</\1>|\\(?:sout|cancel|xcancel|bcancel)\{[^{}\n]{0,400}\}"
)
_BREAK = re.compile(r"<br ?/?>|</(?:p|div|li|h[1-6])>|\\\\|\r\n?|\x0b|\x0c|\u2028|\u2029", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:b|strong|i|em|u|p|span|div|mark|code|center|li|ul|ol|h[1-6]|small|font|tt|big|pre)(?: [^<>\n]{0,80})?>"
    r"|&nbsp;",
    re.IGNORECASE,
)
_BRACED_LETTER = re.compile(r"(?<![\w\\}^)\]])[<{]([A-Z])[>}](?![\w{])")
_TOKEN = re.compile(r"<\|\w{1,24}\|>|</s>|<(?:eos|pad|end_of_turn)>")
"""Special tokens of a chat template that were not removed."""
_WRAPPED = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textup|emph|underline|mathrm|mathbf|mathit|mathsf|mathtt|mathbb"
    r"|mathcal|bm|boldsymbol|operatorname|mbox|hbox|mathord|bf|rm)[ ]{0,3}\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\[dt]?frac[ ]{0,3}(?:\{([^{}]{0,200})\}|(\w))[ ]{0,3}(?:\{([^{}]{0,200})\}|(\w))")
_ROOT = re.compile(r"\\sqrt[ ]{0,3}(?:\{([^{}]{0,200})\}|(\w))")
_POWER = re.compile(r"([\^_])\{([^{}]{0,100})\}")
_COMMANDS = (
    (re.compile(r"(?<=\d)(?:\\[,;:! ]|~)(?=\d{3}(?!\d))"), ""),
    (
        re.compile(
            r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|bf|rm|it|sf|tt|quad|qquad|hspace\{[^{}]*\})(?![A-Za-z])"
        ),
        " ",
    ),
    (re.compile(r"\\[,;:! ]|(?<!~)~(?!~)"), " "),
    (re.compile(r"\\[()\[\]$]|\$"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\\circ|\\degree(?![A-Za-z])|\^\{\\circ\}"), "°"),
    (re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"(?<=[\s(=$]-)\\(sin|cos|tan|cot|sec|csc|log|ln|exp)(?![A-Za-z])"), r"\1 "),
    (re.compile(r"\\(sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|lim|det)(?![A-Za-z])"), r" \1 "),
    (re.compile(r"\\leq?(?![A-Za-z])"), "≤"),
    (re.compile(r"\\geq?(?![A-Za-z])"), "≥"),
    (re.compile(r"\\neq?(?![A-Za-z])"), "≠"),
    (re.compile(r"\\pm(?![A-Za-z])"), "±"),
    (re.compile(r"\\pi(?![A-Za-z])"), "π"),
    (re.compile(r"\\infty(?![A-Za-z])"), "∞"),
    (re.compile(r"\\(?:rightarrow|to|implies|Rightarrow|longrightarrow)(?![A-Za-z])"), " -> "),
    (re.compile(r"\\([%{}#&_])"), r"\1"),
)
_EMPHASIS = re.compile(
    r"(?<![\w)])\*{1,3}|\*{1,3}(?![\w(\-\\])|(?<![A-Za-z0-9_])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?![A-Za-z0-9_])"
)
_LINE_MARK = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?)+|^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", re.MULTILINE)
_QUOTED = re.compile(r"(?<![\w'])'([^'\n]{1,200})'(?![\w'])")
_LONG_GAP = re.compile(r"[^\S\n]{4,}")
_SPACES = re.compile(r"[^\S\n]+")


def plain(text: str) -> str:
    """The text in plain spelling: full-width and styled letters, curly quotes, markup and LaTeX are simplified.

    Signs, brackets, exponents and the case of letters stay. Struck-out text is removed.
    """
    text = _LONG_GAP.sub("   ", unicodedata.normalize("NFC", text))
    if not text.isascii():
        text = text.translate({ord(char): _plain_character(char) for char in set(text) if char > "\x7f"})
    text = _TOKEN.sub("", _STRUCK.sub(" ", _BRACED_LETTER.sub(r"(\1)", text)))
    text = _TAG.sub("", _BREAK.sub("\n", text))
    if "\\" in text or "$" in text or "{" in text or "~" in text:
        text = _plain_latex(text)
    text = _EMPHASIS.sub("", text.replace("`", "").replace('"', ""))
    return _SPACES.sub(" ", _QUOTED.sub(r"\1", _LINE_MARK.sub("", text)))


def _plain_latex(text: str) -> str:
    for _ in range(4):
        shorter = _WRAPPED.sub(r"\1", text)
        shorter = _FRACTION.sub(_plain_fraction, _ROOT.sub(_plain_root, shorter))
        shorter = _POWER.sub(lambda match: match[1] + _grouped(match[2]), shorter)
        if shorter == text:
            break
        text = shorter
    for pattern, replacement in _COMMANDS:
        text = pattern.sub(replacement, text)
    return text


def _plain_fraction(match: re.Match[str]) -> str:
    return f"{_grouped(match[1] or match[2] or '')}/{_grouped(match[3] or match[4] or '')}"


def _plain_root(match: re.Match[str]) -> str:
    return f"√{_grouped(match[1] or match[2] or '')}"


def _grouped(text: str) -> str:
    text = text.strip()
    return text if re.fullmatch(r"\w*|\\[a-z]+", text) else f"({text})"


@functools.lru_cache(maxsize=4096)
def _plain_character(char: str) -> str:
    replacement = _CHARACTERS.get(char)
    if replacement is not None:
        return replacement
    for block in _LETTER_BLOCKS:
        if block <= ord(char) < block + 26:
            return chr(ord(char) - block + ord("A"))
    category = unicodedata.category(char)
    if category == "Cf" or "\ufe00" <= char <= "\ufe0f":
        return ""
    if category == "Zs":
        return " "
    kind = unicodedata.decomposition(char).partition(" ")[0]
    simple = unicodedata.normalize("NFKC", char).replace("\u2044", "/") if kind.startswith("<") else char
    return {"<super>": "^", "<sub>": "_", "<fraction>": " "}.get(kind, "") + simple
