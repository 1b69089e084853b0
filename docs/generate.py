"""Writes the generated pages: `make docs`. A test compares them with the files on disk."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import faults_page, results_page, trainer_matrix
from benchmarks.surface_forms.peer import listing
from benchmarks.surface_forms.row import Row, read_rows
from roll.config.knobs import knobs, sections_at
from roll.config.schema import Run
from roll.config.section import Section, SpecConfig
from roll.signature import field_notes
from roll.tracking.glossary import page as metrics_page
from roll.tracking.notices.catalogue import page as notices_table

ROOT = Path(__file__).parents[1]
CORPORA = ROOT / "tests/rewards/corpus"
FILES = ("roll/types.py", "roll/envs/base.py", "roll/data/tools.py")
RECORDS = (
    *("Message", "Task", "Score", "Span", "Turn", "Segment", "Trajectory", "Group", "Batch", "Tokens", "Sampling"),
    *("Finish", "Status", "Env", "StepResult", "ToolEnv", "Tool", "ToolCall", "ParsedResponse"),
)
"""Records of these files that user code receives or returns."""
CALLS = """\
| user code | call | returns |
|---|---|---|
| reward function | `score(task: Task, response: str, **arguments)` | a number or a `Score`; may be `async` |
| reward class | `Class(**arguments)`, then `score(task, response)` | the same; `start()` and `stop()` are optional |
| environment | `Class(task: Task, **arguments)`, then `start`, `step`, `close` of `Env` | `StepResult` |
| dataset | `function(**arguments)` | an iterable of `Task` |
| filter | `function(group: Group, **arguments)` | the reason to replace the group; empty to train on it |
| shaping | `function(batch: Batch, stats: RunningStats, **arguments)` | new rewards, `[trajectories]` |
| advantage | `function(batch: Batch, **arguments)` | advantages, `[tokens]` |
| advantage weight | `function(batch: Batch, **arguments)` | factors of the advantages, `[trajectories]` |
| mask | `function(batch: Batch, **arguments)` | True for trajectories to train on, `[trajectories]` |
| correction | `function(tokens: Tokens, **arguments)` | factors of the loss, `[tokens]` |
| estimator of KL | `function(d, **arguments)`, d is logp minus ref | penalties, `[tokens]` |
| loss | `function(tokens: Tokens, **arguments)` | `(loss, metrics)`: losses `[tokens]`, and `[tokens]` by name |
| aggregation | `function(batch: Batch, **arguments)` | factors of the losses in their sum, `[tokens]` |
"""


def pages() -> dict[Path, str]:
    """Every generated page by its file."""
    written = {
        "metrics.md": metrics_page(),
        "notices.md": notices_page(),
        "engines.md": engines_page(),
        "reference/config.md": config_page(),
        "reference/types.md": types_page(),
        "reference/verifiers.md": verifiers_page(),
        **results_page.pages(ROOT / "docs/results"),
        **faults_page.pages(ROOT / "docs/results"),
    }
    return {ROOT / "README.md": readme(), **{ROOT / "docs" / name: text for name, text in written.items()}}


def readme() -> str:
    """The README with the table of models from `docs/models.md`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, start, rest = text.partition("<!-- models: from docs/models.md -->\n")
    _, end, after = rest.partition("<!-- end of models -->\n")
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| `.+?` \| .+? \| .+? \| yes \| yes \| yes \| (.+?) \|$", page, re.MULTILINE)
    served = [family for family, vllm in rows if vllm == "ok"]
    others = [f"{family} ({vllm})" for family, vllm in rows if vllm != "ok"]
    table = f"""\
| {len(rows)} families of models | trained, saved and sampled as `transformers` does |
|---|---|
| and as vLLM does, on the CPU | {", ".join(served)} |
| differently in vLLM, on the CPU | {", ".join(others) or "none"} |
"""
    return f"{before}{start}{table}{end}{after}"


def notices_page() -> str:
    """The page about notices with the table of all kinds."""
    text = (ROOT / "docs/notices.md").read_text(encoding="utf-8")
    before, start, rest = text.partition("<!-- notices: from roll/tracking/notices/catalogue.py -->\n")
    _, end, after = rest.partition("<!-- end of notices -->\n")
    return f"{before}{start}{notices_table()}{end}{after}"


def engines_page() -> str:
    """The page about engines with the matrix of trainers over ranks."""
    text = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
    before, start, rest = text.partition("<!-- trainers: from benchmarks/trainer_matrix.py -->\n")
    _, end, after = rest.partition("<!-- end of trainers -->\n")
    return f"{before}{start}{trainer_matrix.tables()}{end}{after}"


def config_page() -> str:
    """Every key of the schema, with one table per section."""
    places: dict[type[Section], dict[str, None]] = defaultdict(dict)
    for place, section in _sections((), Run):
        places[section][place] = None
    head = """\
# Configuration keys

Generated by `make docs` from `roll/config`. A table has the keys of one section; its heading has the places of the
section. `N` is the index of an entry in a list. A `spec` is a name, `package.module:attribute`, or
`{kind: name, argument: value}`; `roll list` prints the names and `roll list losses clipped` the arguments of one.
"""
    return head + "".join(_key_table(section, list(keys)) for section, keys in places.items())


def _sections(parts: tuple[str, ...], section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Every place of a section, depth first, with the section there."""
    yield ".".join(parts), section
    for name, info in section.model_fields.items():
        for inner in ((*parts, name), (*parts, name, "N")):
            for below in sections_at(inner):  # also those of other sections in the same place
                if below is not SpecConfig and re.search(rf"\b{below.__name__}\b", str(info.annotation)):
                    yield from _sections(inner, below)


def _key_table(section: type[Section], places: list[str]) -> str:
    """The keys of a section; one that has no text has that of the sections it holds."""
    above = [part for part in places[0].split(".") if part]
    rows: list[tuple[str, ...]] = []
    for knob in (knob for knob in knobs(section) if "." not in knob.key):
        held = sections_at([*above, knob.key]) or sections_at([*above, knob.key, "N"])
        doc = knob.doc or " Or: ".join(_first_paragraph(each.__doc__) for each in held)
        default = "required" if knob.default == "required" else f"`{knob.default}`"
        rows.append((f"`{knob.key}`", f"`{_plain(knob.type)}`", default, knob.limits, doc))
    title = ", ".join(f"`{place}`" for place in places) if above else "Top level"
    if backend := re.search(r"'(\w+)'", str(getattr(section.model_fields.get("backend"), "annotation", ""))):
        title += f" with `backend: {backend[1]}`"
    return _chapter(title, _first_paragraph(section.__doc__), ("key", "type", "default", "limits", "meaning"), rows)


def types_page() -> str:
    """The fields of every record that user code receives or returns."""
    source = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in FILES)
    nodes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    head = f"""\
# Records

Generated by `make docs`: what user code receives and returns. A size in square brackets is that of a flat array:
`[tokens]` has one entry per token of the batch, and entry t describes token t. The records are those of
{", ".join(f"`{file}`" for file in FILES)}.

{CALLS}"""
    return head + "".join(_record_table(nodes[name], nodes) for name in RECORDS)


def _record_table(node: ast.ClassDef, nodes: dict[str, ast.ClassDef]) -> str:
    """The fields and methods of a record; a field that has no text has that of the record it holds."""
    notes = field_notes(nodes["Batch"]) | field_notes(node) if node.name == "Tokens" else field_notes(node)
    rows: list[tuple[str, ...]] = []
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=hint):
                default = "" if item.value is None else f"`{re.sub(r'^field.*', '{}', ast.unparse(item.value))}`"
                rows.append((name, ast.unparse(hint), default, notes.get(name) or _held(hint, nodes)))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
                rows.append((name, "str", f"`{value}`", notes.get(name, "")))
            case ast.FunctionDef(returns=hint) | ast.AsyncFunctionDef(returns=hint) if item.name[0] != "_" and hint:
                kind = "property" if item.decorator_list else "method"
                rows.append((item.name, ast.unparse(hint), kind, ast.get_docstring(item) or _held(hint, nodes)))
            case _:
                pass
    cells = [(f"`{name}`", f"`{hint}`", default, meaning) for name, hint, default, meaning in rows]
    return _chapter(f"`{node.name}`", ast.get_docstring(node) or "", ("name", "type", "default", "meaning"), cells)


def _held(hint: ast.expr, nodes: dict[str, ast.ClassDef]) -> str:
    names = [each.id for each in ast.walk(hint) if isinstance(each, ast.Name) and each.id in nodes]
    return _first_paragraph(ast.get_docstring(nodes[names[0]])) if names else ""


def verifiers_page() -> str:
    """What each verifier accepts and refuses, with an example per rule, from the corpora of its tests."""
    head = """\
# Verifiers

Generated by `make docs` from the corpora in `tests/rewards/corpus`: replies made by rules, with the score that each
must get. A test scores every row. Each table has one example per rule; a line break is written as `⏎`.
"""
    return head + "".join(_corpus_chapter(path) for path in sorted(CORPORA.glob("*.jsonl")))


def _corpus_chapter(path: Path) -> str:
    rows = read_rows(path)
    kinds: dict[str, dict[tuple[float, str], Row]] = defaultdict(dict)
    for row in rows:
        kinds[row.kind].setdefault((row.expected, row.note), row)
    tables = "".join(
        _chapter(
            f"`{rows[0].verifier}`: {kind}",
            f"{sum(row.kind == kind for row in rows):,} rows of {len(rows):,}.",
            ("score", "rule", "answer", "reply"),
            [_example(row) for _, row in sorted(examples.items(), key=lambda item: (-item[0][0], item[0][1]))],
        )
        for kind, examples in sorted(kinds.items())
    )
    return tables + (_disagreements(path, rows) if listing(path).exists() else "")


def _example(row: Row) -> tuple[str, ...]:
    answer = f"{row.answer}: {', '.join(row.options)}" if row.options else row.answer
    return f"{row.expected:g}", row.note, _code(answer), _code(row.response)


def _disagreements(path: Path, rows: list[Row]) -> str:
    """Rules under which math-verify alone scores a row otherwise; the expected score is the right one."""
    wrong: dict[tuple[str, str, float], list[Row]] = defaultdict(list)
    for line in listing(path).read_text(encoding="utf-8").split():
        row = rows[int(line) - 1]
        wrong[row.kind, row.note, row.expected].append(row)
    total = sum(map(len, wrong.values()))
    text = (
        f"math-verify alone, with its defaults, scores {total:,} of {len(rows):,} rows otherwise than expected. The "
        "score of this table is the right one; math-verify gives the other."
    )
    cells = [
        (kind, f"{expected:g}", note, str(len(found)), _code(found[0].answer), _code(found[0].response))
        for (kind, note, expected), found in sorted(wrong.items())
    ]
    return _chapter(
        f"`{rows[0].verifier}`: disagreements with math-verify",
        text,
        ("kind", "score", "rule", "rows", "answer", "reply"),
        cells,
    )


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text.replace(chr(10), '⏎')}{fence}" if text.strip() else ""


def _chapter(title: str, text: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [
        head,
        ("---",) * len(head),
        *([" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows),
    ]
    table = "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)
    return f"\n## {title}\n\n{text}\n\n{table}"


def _first_paragraph(doc: str | None) -> str:
    return " ".join((doc or "").partition("\n\n")[0].split())


def _plain(type_name: str) -> str:
    short = re.sub(r"roll\.[\w.]+\.(\w+)", r"\1", type_name)
    return re.sub(r"tuple\[(.+), \.\.\.\]", r"list of \1", short).replace("SpecConfig", "spec")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
