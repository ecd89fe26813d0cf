"""Which rung of the noise ladder judges, from the options of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from probe.comparison.measured import FurtherRuns, Reference
from probe.comparison.noise import Noise
from probe.comparison.other_runs import OtherRun
from probe.errors import ConfigError
from probe.store.reader import Reader


@contextmanager
def ladder(
    a: Reader, b: Reader, noise: str | Path | Sequence[str | Path] = (), reference: str | Path | None = None
) -> Iterator[Noise]:
    """Open what the rung needs.

    Raises
    ------
    ConfigError
        options that contradict each other, or recordings that are none of A's model
    StoreError, FormatError
        a recording cannot be read
    """
    paths = [noise] if isinstance(noise, (str, Path)) else list(noise)
    if paths and reference is not None:
        raise ConfigError("noise= and reference= judge in two ways: expected one of them, compare twice to see both")
    with ExitStack() as opened:
        runs = []
        for path, option in [*((path, "noise") for path in paths), *([(reference, "reference")] if reference else [])]:
            runs.append(OtherRun(path, option, a, b))
            opened.callback(runs[-1].reader.close)
        ids = [run.reader.info.run_id for run in runs]
        if len(set(ids)) < len(ids):
            raise ConfigError("noise= names the same run twice: expected runs that differ")
        yield Reference(runs[0]) if reference else FurtherRuns(runs) if runs else Noise()
