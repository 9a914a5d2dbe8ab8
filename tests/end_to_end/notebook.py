"""docs/own-data.ipynb, executed; `python -m tests.end_to_end.notebook` writes its outputs afresh."""

import copy
import re
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.end_to_end.conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "own-data.ipynb"


def read() -> Any:
    """The notebook as it stands."""
    return nbformat.read(NOTEBOOK, as_version=4)


def executed() -> Any:
    """The notebook with outputs of its own, without what libraries say on stderr; raises CellExecutionError if a cell
    fails."""
    notebook = read()
    about = copy.deepcopy(notebook.metadata)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    notebook.metadata = about  # without the version of Python
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def outline(notebook: Any) -> list[list[str]]:
    """The texts that each cell of code has put out, with `#` for what differs between machines: numbers with a point,
    and the widths of columns."""
    return [
        [f"{output.output_type}: {_plain(_text(output))}" for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _text(output: Any) -> str:
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])


def _plain(text: str) -> str:
    return " ".join(re.sub(r"-?\d+\.\d*(e[+-]\d+)?", "#", text).split())


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
