"""Hooks of the documentation site: navigation from `docs/README.md`, and pages for linked files of the repository.

Pages in `docs` link to files outside it, such as `../examples/gsm8k.yaml`. The site has no such files, so each of them
becomes a page below `repository/`, and the links lead there. Nothing is written into `docs`.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
COPIES = "repository"
"""Folder of the site with the files of the repository that pages link to."""
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
"""A Markdown link with a relative target: before, path, after."""
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".json": "json", ".toml": "toml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: the sections and links of `docs/README.md`, and all decision records."""
    config.nav = navigation((ROOT / DOCS / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for every linked file of the repository, and an index of the decision records."""
    for target in linked_files(ROOT / DOCS):
        files.append(File.generated(config, site_path(target), content=page_of(target)))
    for notebook in sorted((ROOT / DOCS).glob("*.ipynb")):
        page = notebook_page(json.loads(notebook.read_text(encoding="utf-8")), notebook.name)
        files.append(File.generated(config, f"{notebook.stem}.md", content=page))
    files.append(File.generated(config, "decisions/index.md", content=decision_index()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of `docs` to the pages of those files."""
    source = page.file.src_uri
    here = source.removeprefix(f"{COPIES}/") if source.startswith(f"{COPIES}/") else f"{DOCS}/{source}"
    return relink(markdown, here, source)


def navigation(index: str) -> list[Any]:
    """One section per heading of the index, with the pages that its list links to."""
    sections: list[Any] = [{"Home": "README.md"}]
    for part in index.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        links = re.findall(r"^- \[([^\]]+)\]\(([\w./-]+\.(?:md|ipynb))\)", body, re.MULTILINE)
        inside: list[Any] = [{name: page_path(path)} for name, path in links if not path.startswith("../")]
        if "(decisions)" in body:
            records = sorted(path.name for path in (ROOT / DOCS / "decisions").glob("*.md"))
            inside.append({"Decision records": ["decisions/index.md", *(f"decisions/{name}" for name in records)]})
        sections.append({title: inside})
    return sections


def page_path(path: str) -> str:
    """The page of a file of `docs`: a notebook becomes a Markdown page."""
    return re.sub(r"\.ipynb$", ".md", path)


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """The cells of an executed notebook with their outputs; pictures are in the page itself."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [text for output in cell.get("outputs", ()) if (text := output_text(output))]
    return "\n\n".join([*parts, f"The file is `{DOCS}/{name}`.", ""])


def output_text(output: dict[str, Any]) -> str:
    """One output of a cell: a picture, or its text."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        encoded = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return f"![Curves of the run](data:image/svg+xml;base64,{encoded})"
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"```text\n{text}\n```" if text else ""


def decision_index() -> str:
    """A page with the titles of all decision records."""
    paths = sorted((ROOT / DOCS / "decisions").glob("*.md"))
    titles = [(path.name, path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")) for path in paths]
    return "# Decision records\n\n" + "".join(f"- [{title}]({name})\n" for name, title in titles)


def linked_files(folder: Path) -> list[str]:
    """Files of the repository outside `docs` that its pages link to, directly or through such a file."""
    waiting = [path.relative_to(ROOT).as_posix() for path in sorted(folder.rglob("*.md"))]
    seen = set(waiting)
    for name in waiting:  # grows while it is read
        for target in targets(name) - seen:
            seen.add(target)
            waiting.append(target)
    return [name for name in waiting if not name.startswith(f"{DOCS}/")]


def targets(name: str) -> set[str]:
    """Files of the repository that a Markdown file links to."""
    if not name.endswith(".md"):
        return set()
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = {posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2])) for match in LINK.finditer(text)}
    return {path for path in paths if (ROOT / path).is_file() and not path.endswith((".svg", ".png"))}


def site_path(target: str) -> str:
    """Source path in the site of a file of the repository."""
    if target.startswith(f"{DOCS}/"):
        return page_path(target.removeprefix(f"{DOCS}/"))
    if (ROOT / target).is_dir():
        return f"{COPIES}/{target}"
    return f"{COPIES}/{target}" if target.endswith(".md") else f"{COPIES}/{target}.md"


def page_of(target: str) -> str:
    """The text of a Markdown file, or a page with the content of another."""
    text = (ROOT / target).read_text(encoding="utf-8")
    if target.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(target).suffix, "text")
    return f"# {target}\n\n````{language}\n{text.rstrip()}\n````\n"


def relink(markdown: str, here: str, source: str) -> str:
    """The text of the file `here` of the repository, with links for its page `source`; code stays."""

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[2]))
        if target == f"{DOCS}/decisions":
            target = f"{DOCS}/decisions/index.md"
        path = posixpath.relpath(site_path(target), posixpath.dirname(source) or ".")
        return f"{match[1]}{path}{match[3]}"

    parts = FENCE.split(markdown)
    return "".join(part if index % 2 else LINK.sub(lead, part) for index, part in enumerate(parts))
