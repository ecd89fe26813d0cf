"""The environment in a recording, as advice is given on it."""

from __future__ import annotations

from pathlib import Path

from probe.ranks.opening import open_reader
from probe.settings.advising import Environment, of_recording
from probe.settings.reading.recordings import source_of_reader
from probe.settings.source import Source


def environment_of(path: str | Path) -> tuple[Source, Environment]:
    """Return the settings that a recording holds, and its environment with the dtypes that were computed in.

    Raises
    ------
    StoreError, FormatError
        it cannot be read
    """
    with open_reader(path) as reader:
        source = source_of_reader(reader)
        dtypes = {each.dtype for each in reader.parameters} | {
            name.decode() for name in set(reader.calls["autocast"].tolist())
        }
        return source, of_recording(source, str(reader.path), tuple(sorted(dtypes - {""})))
