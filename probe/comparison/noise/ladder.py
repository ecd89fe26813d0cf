"""Which rung of the noise ladder judges, from the options of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.comparison.noise.fixed import Fixed, title_of
from probe.comparison.noise.interface import Noise
from probe.comparison.noise.measured import FurtherRuns, Reference
from probe.comparison.noise.other_runs import OtherRun
from probe.errors import ConfigError
from probe.mapping.judging import JudgingRule, load_rules, tolerance
from probe.store.reading.reader import Reader


@dataclass(frozen=True, slots=True)
class NoiseOptions:
    """What `probe.compare` was told about noise; see there."""

    noise: str | Path | Sequence[str | Path] = ()
    reference: str | Path | None = None
    atol: float | None = None
    rtol: float | None = None
    metric: str | None = None
    rules: str | Path | Sequence[Mapping[str, Any]] | None = None


@contextmanager
def ladder(
    a: Reader, b: Reader, options: NoiseOptions, of_mapping: Sequence[JudgingRule] = ()
) -> Iterator[Noise]:  # fmt: skip
    """Open what the rung needs; ``of_mapping`` are the rules that stand in the layer mapping.

    Raises
    ------
    ConfigError
        options that contradict each other, or recordings that are none of A's model
    StoreError, FormatError
        a recording cannot be read
    """
    noise, reference = options.noise, options.reference
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
        measured = Reference(runs[0]) if reference is not None else FurtherRuns(runs) if runs else Noise()
        yield _fixed(options, of_mapping, measured)


def _fixed(options: NoiseOptions, of_mapping: Sequence[JudgingRule], below: Noise) -> Noise:
    """Put fixed tolerances above a rung: single modules' first, then those for all."""
    rules = [*load_rules(options.rules), *of_mapping]
    chosen = None
    if (options.atol, options.rtol, options.metric) != (None, None, None):
        try:
            chosen = tolerance(options.atol, options.rtol, options.metric)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if chosen is not None and (options.noise or options.reference is not None):
        raise ConfigError("atol, rtol and metric judge every tensor: noise= and reference= would have nothing to judge")
    title = title_of(rules, chosen)
    if chosen is not None:
        rules.append(JudgingRule(chosen, name="for all tensors"))
    return Fixed(rules, below, title) if rules else below
