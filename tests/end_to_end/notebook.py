"""The notebooks of docs/examples, executed; `python -m tests.end_to_end.notebook [NAME ...]` writes their outputs."""

import copy
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.end_to_end.conftest import REPOSITORY

NOTEBOOKS = {path.stem: path for path in sorted((REPOSITORY / "docs" / "examples").glob("*.ipynb"))}


def read(path: Path) -> Any:
    """Read a notebook as it stands."""
    return nbformat.read(path, as_version=4)


def executed(path: Path) -> Any:
    """Return the notebook with fresh outputs, without stderr, where libraries write.

    Raises CellExecutionError if a cell fails.
    """
    notebook = read(path)
    about = copy.deepcopy(notebook.metadata)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(path.parent)}}).execute()
    notebook.metadata = about  # without the version of Python
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = _whole([output for output in cell.outputs if output.get("name") != "stderr"])
    return notebook


def _whole(outputs: list[Any]) -> list[Any]:
    """Return the outputs with what a cell prints in one piece: the kernel cuts it wherever it sends a message."""
    whole: list[Any] = []
    for output in outputs:
        if whole and output.output_type == whole[-1].output_type == "stream":
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def outline(notebook: Any) -> list[list[str]]:
    """Return the texts that each cell of code prints, with `#` for what differs between machines: numbers with a point,
    and the widths of columns. A picture counts as its size in pixels. Cells tagged `varies` are left out: their
    outputs name the best of many, which rounding may change."""
    return [
        [f"{output.output_type}: {_plain(_text(output))}" for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code" and "varies" not in cell.metadata.get("tags", ())
    ]


def _text(output: Any) -> str:
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])


def _plain(text: str) -> str:
    return " ".join(re.sub(r"-?\d+\.\d*(e[+-]\d+)?", "#", text).split())


if __name__ == "__main__":
    for name in sys.argv[1:] or NOTEBOOKS:
        nbformat.write(executed(NOTEBOOKS[name]), NOTEBOOKS[name])
