"""Reading the curves of a run, whatever its file is: told by what stands in it, not by its name."""

from __future__ import annotations

import os
from pathlib import Path

from probe.curve_comparison.reading import events, logs, tables, trainer
from probe.curve_comparison.reading.recorded import read_recording
from probe.curve_comparison.reading.series import RunCurves
from probe.damage import reading, refuse_pointer
from probe.errors import FormatError, StoreError
from probe.ranks.layout.files import has_ranks
from probe.store.places import place_of
from probe.store.reading.opening import of_ranks

_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEAD = 1 << 12
_STATE = "trainer_state.json"
_EXPECTED = (
    "expected a recording of probe, a log of Megatron, MindFormers, PaddleNLP, transformers' Trainer or MindSpore's LossMonitor, a "
    "trainer_state.json, JSON lines, TensorBoard events or a CSV with a column “step”"
)


def read_curves(path: str | os.PathLike[str]) -> RunCurves:
    """Return all curves of a run.

    Parameters
    ----------
    path
        a recording, a log, a ``trainer_state.json``, JSON lines, a CSV, a TensorBoard event file, or a folder with
        event files or a ``trainer_state.json``

    Raises
    ------
    StoreError
        there is no such file, or it cannot be read
    FormatError
        it is none of these, or damaged; with what was expected, and the line
    """
    path = place_of(path)
    if has_ranks(path):
        return read_recording(path)
    if path.is_dir():
        return _of_folder(path)
    if not path.exists():
        raise StoreError(f"there is no file {path}{of_ranks(path)}")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    refuse_pointer(path)
    if head.startswith(_HDF5):
        return read_recording(path)
    with reading(path):
        return _of_curves(path, head)


def _of_curves(path: Path, head: bytes) -> RunCurves:
    if events.is_event_file(head):
        return events.read_events(path, [path])
    if b"\0" in head:
        raise FormatError(f"{path} is a file of bytes that probe does not know; {_EXPECTED}")
    return _of_text(path, path.read_text(encoding="utf-8", errors="replace"))


def _of_text(path: Path, text: str) -> RunCurves:
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise FormatError(f"{path} is empty; {_EXPECTED}")
    if logs.kind_of_log(text):
        return logs.read_log(path, text)
    if text.lstrip()[0] in "[{":
        return trainer.read_json(path, text)
    if tables.header_of(text):
        return tables.read_table(path, text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.strip())
    raise FormatError(
        f"{path}, line {line}: neither the header of a CSV with a column of steps ({', '.join(trainer.STEP_NAMES)}) nor "
        f"JSON, and no line of the file is one of a log: {logs.EXPECTED}"
    )


def _of_folder(folder: Path) -> RunCurves:
    files = sorted(file for file in folder.iterdir() if file.is_file() and _is_event_file(file))
    if files:
        with reading(folder):
            return events.read_events(folder, files)
    if (folder / _STATE).is_file():
        return read_curves(folder / _STATE)
    raise FormatError(f"{folder} is a folder with neither event files of TensorBoard nor a {_STATE}")


def _is_event_file(file: Path) -> bool:
    with file.open("rb") as opened:
        return events.is_event_file(opened.read(_HEAD))
