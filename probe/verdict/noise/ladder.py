"""Which rung judges, from the options of a comparison."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from probe.errors import ConfigError
from probe.mapping.judging import JudgingRule, tolerance
from probe.store.reading.reader import Reader
from probe.verdict.noise.rung import Noise


@contextmanager
def ladder(
    a: Reader,
    b: Reader,
    of_mapping: Sequence[JudgingRule],
    noise: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    reference: str | os.PathLike[str] | None,
    rules: str | Path | Sequence[Mapping[str, Any]] | None,
    fixed: tuple[float | None, float | None, str | None],
) -> Iterator[Noise]:
    """Open what the rung needs, by the options of `probe.compare`.

    Parameters
    ----------
    of_mapping
        the rules in the layer mapping
    fixed
        atol, rtol and metric for all tensors

    Raises
    ------
    ConfigError
        options contradict each other, or recordings are none of A's model
    StoreError, FormatError
        a recording cannot be read
    """
    try:
        chosen = tolerance(*fixed) if any(each is not None for each in fixed) else None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    paths = [noise] if isinstance(noise, str | os.PathLike) or not isinstance(noise, Iterable) else list(noise)
    if paths and reference is not None:
        raise ConfigError("noise= and reference= judge in two ways: expected one of them, compare twice to see both")
    given = [*((path, "noise") for path in paths), *([] if reference is None else [(reference, "reference")])]
    if chosen is not None and given:
        told = "noise= and reference= would have nothing to judge"
        raise ConfigError(f"atol, rtol and metric judge every tensor: {told}")
    with ExitStack() as opened:
        below, found = _measured(given, a, b, opened) if given else Noise(), list(of_mapping)
        if rules is not None:
            from probe.mapping.judging_files import load_rules

            found = [*load_rules(rules), *found]
        if chosen is not None or found:
            from probe.verdict.noise.fixed import Fixed, title_of

            for_all = [JudgingRule(chosen, name="for all tensors")] if chosen is not None else []
            below = Fixed([*found, *for_all], below, title_of(found, chosen))
        yield below


def _measured(given: Sequence[tuple[str | os.PathLike[str], str]], a: Reader, b: Reader, opened: ExitStack) -> Noise:
    from probe.verdict.noise.measured import Measured
    from probe.verdict.noise.other_runs import OtherRun

    runs = []
    for path, option in given:
        runs.append(OtherRun(path, option, a, b))
        opened.callback(runs[-1].reader.close)
    if len({run.reader.info.run_id for run in runs}) < len(runs):
        raise ConfigError("noise= names the same run twice: expected runs that differ")
    return Measured(runs)
