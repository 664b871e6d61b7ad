"""The notebook runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tour.ipynb"


def test_the_tour_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = [
        output.data
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type in ("execute_result", "display_data")
    ]
    assert any("hsl(" in data.get("text/html", "") for data in shown), "no chips were shown"
    assert any("image/png" in data for data in shown), "no figure was drawn"


def test_the_tour_is_kept_with_its_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not any(output.output_type == "error" for output in outputs)
    assert NOTEBOOK.stat().st_size < 500_000
