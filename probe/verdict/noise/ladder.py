"""Which rung judges, from the options of a comparison."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import ConfigError
from probe.mapping.judging import JudgingRule, Tolerance, tolerance
from probe.store.reading.reader import Reader
from probe.verdict.noise.rung import Noise


@dataclass(frozen=True, slots=True)
class NoiseOptions:
    """What `probe.compare` was told about noise; see there."""

    noise: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ()
    reference: str | os.PathLike[str] | None = None
    atol: float | None = None
    rtol: float | None = None
    metric: str | None = None
    rules: str | Path | Sequence[Mapping[str, Any]] | None = None


@contextmanager
def ladder(a: Reader, b: Reader, options: NoiseOptions, of_mapping: Sequence[JudgingRule]) -> Iterator[Noise]:
    """Open what the rung needs; ``of_mapping`` are the rules in the layer mapping.

    Raises
    ------
    ConfigError
        options contradict each other, or recordings are none of A's model
    StoreError, FormatError
        a recording cannot be read
    """
    noise, reference = options.noise, options.reference
    paths = [noise] if isinstance(noise, str | os.PathLike) or not isinstance(noise, Iterable) else list(noise)
    if paths and reference is not None:
        raise ConfigError("noise= and reference= judge in two ways: expected one of them, compare twice to see both")
    given = [*((path, "noise") for path in paths), *([] if reference is None else [(reference, "reference")])]
    with ExitStack() as opened:
        yield _fixed(options, of_mapping, _measured(given, a, b, opened) if given else Noise())


def _measured(given: Sequence[tuple[str | os.PathLike[str], str]], a: Reader, b: Reader, opened: ExitStack) -> Noise:
    from probe.verdict.noise.measured import Measured
    from probe.verdict.noise.other_runs import OtherRun

    runs = []
    for path, option in given:
        runs.append(OtherRun(path, option, a, b))
        opened.callback(runs[-1].reader.close)
    ids = [run.reader.info.run_id for run in runs]
    if len(set(ids)) < len(ids):
        raise ConfigError("noise= names the same run twice: expected runs that differ")
    return Measured(runs)


def _fixed(options: NoiseOptions, of_mapping: Sequence[JudgingRule], below: Noise) -> Noise:
    """Put fixed tolerances above a rung: single modules' first, then those for all."""
    rules = list(of_mapping)
    if options.rules is not None:
        from probe.mapping.judging_files import load_rules

        rules = [*load_rules(options.rules), *rules]
    chosen = _chosen(options)
    if chosen is None and not rules:
        return below
    from probe.verdict.noise.fixed import Fixed, title_of

    title = title_of(rules, chosen)
    if chosen is not None:
        rules.append(JudgingRule(chosen, name="for all tensors"))
    return Fixed(rules, below, title)


def _chosen(options: NoiseOptions) -> Tolerance | None:
    """Return the tolerance for all tensors."""
    if (options.atol, options.rtol, options.metric) == (None, None, None):
        return None
    try:
        chosen = tolerance(options.atol, options.rtol, options.metric)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if options.noise or options.reference is not None:
        raise ConfigError("atol, rtol and metric judge every tensor: noise= and reference= would have nothing to judge")
    return chosen
