"""The notebook runs as a reader runs it, and shows what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "deploy" / "notebook" / "first_table.ipynb"
MOST_BYTES = 50_000


def shown(cells: list[Any]) -> list[list[str]]:
    """The text of each output, without what differs from run to run: HTML has times of commits."""
    return [
        [re.sub(r"\s+", " ", "".join(output["data"]["text/plain"])) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def test_the_stored_notebook_is_small_and_names_no_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"/(home|root|tmp|work|Users|opt)/|localhost|127\.0\.0\.1", text)
    cells = json.loads(text)["cells"]
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    tables = [output["data"] for cell in cells for output in cell.get("outputs", ()) if "text/html" in output["data"]]
    assert len(tables) >= 4
    assert not any("<script" in "".join(data["text/html"]) for data in tables)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_shows_what_is_stored(tmp_path: Path) -> None:
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    where = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=240, startup_timeout=240, kernel_name="python3", resources=where).execute()
    assert shown(notebook.cells) == shown(stored)
