"""A pointer of Git LFS, which stands where a large file should, is called one by everything that opens files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.checkpoints import open_checkpoint
from probe.curve_comparison.reading.files import read_curves
from probe.errors import ProbeError
from probe.settings.reading.files import read
from probe.structure.printed import record_printed

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 4976698672\n"
OPENS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a recording": ("a.h5", probe.open),
    "weights": ("model.safetensors", open_checkpoint),
    "weights of torch": ("pytorch_model.bin", open_checkpoint),
    "an index": ("model.safetensors.index.json", open_checkpoint),
    "a configuration": ("config.json", lambda path: read(str(path))),
    "a script": ("run.sh", lambda path: read(str(path))),
    "a log": ("train.log", read_curves),
    "a tree": ("tree.txt", lambda path: record_printed(path, path.with_suffix(".h5"))),
}


@pytest.mark.parametrize("case", OPENS)
def test_a_pointer_is_called_one(case: str, tmp_path: Path) -> None:
    name, opens = OPENS[case]
    path = tmp_path / name
    path.write_text(POINTER)
    with pytest.raises(ProbeError, match=f"{name} is a pointer of Git LFS, not the file itself: run git lfs pull"):
        opens(path)
