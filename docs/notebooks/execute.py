"""Execute the notebooks of this folder and store them with their outputs: python docs/notebooks/execute.py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
_QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}
"""what progress bars say without their widgets, with paths of the machine"""
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def executed(name: str, folder: str | Path) -> NotebookNode:
    """Return a notebook as it is when it has just been executed in a folder; nothing is stored.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        a cell ended with an exception
    """
    notebook = nbformat.read(FOLDER / name, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else how a cell's lines arrive is how they are stored: in one piece or in several
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | _QUIET)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    """Execute and store all."""
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(name, folder)
        (FOLDER / name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(f"{name}: {(FOLDER / name).stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
