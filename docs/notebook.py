"""Executes `docs/notebook.ipynb` and stores its outputs: `make notebook`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_suffix(".ipynb")
TIMEOUT_S = 1800


def execute(notebook: Any, folder: Path) -> Any:
    """The notebook with the outputs of its cells, run in the folder; without what differs between machines."""
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(folder: Path) -> None:
    """Execute the notebook in a folder and store it."""
    notebook = execute(nbformat.read(NOTEBOOK, as_version=4), folder)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
