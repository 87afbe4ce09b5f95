"""examples/tour.ipynb runs from its first cell to its last, but for the installation."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conformance.serving import ROOT, free_port

TOUR = ROOT / "examples" / "tour.ipynb"


def test_the_tour_runs_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", str(free_port()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(TOUR, as_version=4)
    notebook.cells = [
        cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())
    ]

    NotebookClient(
        notebook, timeout=180, resources={"metadata": {"path": str(Path(TOUR).parent)}}
    ).execute()

    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    assert sum("image/png" in each.get("data", ()) for each in outputs) == 4
    assert not [each for each in outputs if each.output_type == "error"]
