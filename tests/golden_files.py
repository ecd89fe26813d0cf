"""Golden files: what the terminal shows, as it was accepted. ``OVERWRITE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from probe import __version__

FOLDER = Path(__file__).parent / "golden"
NOT_PART_OF_IT = (
    (r"\b[0-9a-f]{32}\b", "<run id>"),
    (r"\d{4}-\d\d-\d\dT[\d:]+[+-]\d+", "<time>"),
    (rf"numpy {re.escape(np.__version__)}", "numpy <version>"),
    (r"(\.py):\d+", r"\1:<line>"),
    (rf"probe {re.escape(__version__)}", "probe <version>"),
)


def golden(name: str, text: str, *also: tuple[str, str]) -> None:
    """Hold a text against a golden file, without run ids, times, versions and what further patterns (pattern, put) match."""
    for pattern, put in (*NOT_PART_OF_IT, *also):
        text = re.sub(pattern, put, text)
    file = FOLDER / f"{name}.txt"
    if os.environ.get("OVERWRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"OVERWRITE_GOLDEN=1 writes {file.name} anew"
