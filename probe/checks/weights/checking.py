"""`check_weights`: two trained checkpoints, weight by weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.checkpoints import Checkpoint, Stored, open_checkpoint
from probe.checks.outcome import CheckResult, Line, State, fine, unchecked
from probe.checks.weights.explaining import Held, explained_lines, explanations
from probe.checks.weights.judging import finite_lines, loaded_lines, never_loaded, size_lines
from probe.checks.weights.measuring import WeightRow, measured
from probe.checks.weights.pairing import Pairing, WeightPair, paired_weights
from probe.errors import ConversionError
from probe.notes import note
from probe.numbers.statistics import is_float
from probe.records import DirectionName

_TOPIC = "pairs"
_FEW = 0.5
"""share of the weights of the smaller side that are paired, below which nothing is said of them"""


@dataclass(frozen=True, repr=False)
class Weights(CheckResult):
    """What two sets of trained weights tell of each other."""

    check = "weights"
    weights: tuple[WeightRow, ...] = ()
    """in the order of B"""
    never_loaded: tuple[str, ...] = ()
    """B's weights that were never loaded, or trained"""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    explained: dict[str, str] = field(default_factory=dict)
    """codes of `probe.checks.weights.explaining.EXPLANATIONS`, by the names of B's weights"""


def check_weights(
    a: str | Path, b: str | Path, mapping: str | Path | Mapping[str, Any] | None = None, *, source: Any = None,
    like: Any = None, init: str | Path | None = None, before: str | Path | None = None, base: str | Path | None = None,
    direction: DirectionName | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Weights:  # fmt: skip
    """Hold the weights of two trained checkpoints against each other: mean, variance and norm of each.

    Parameters
    ----------
    a, b
        files of weights, indices of several, or folders; A is the side that you trust
    mapping
        a layer mapping between the two models, as `probe.convert_weights` takes it
    source, like
        recordings of A's and of B's model (``task="structure"`` is enough), or the models: needed where the mapping names classes,
        or one side packs what the other keeps apart
    init
        a checkpoint of B's model as it was before anything was loaded: what is still equal to it was never loaded
    before
        A's weights before the last update: which of B's are these
    base
        what A was tuned from: whether B has k times the difference; ``before`` if it is not given
    direction
        which side the mapping is written from
    progress
        called with (done, total) weights

    Raises
    ------
    ConversionError
        a checkpoint cannot be read
    MappingError
        the mapping cannot be used
    """
    first, second = open_checkpoint(a), open_checkpoint(b)
    pairing = paired_weights(first, second, mapping, source, like, direction)
    pairs = [pair for pair in pairing.pairs if is_float(second.tensors[pair.name_b].dtype)]
    files = (str(a), str(b))
    least = min(_floats(first.tensors), _floats(second.tensors))
    if not pairs or len(pairs) < _FEW * least:
        said = note("weights-not-paired", paired=len(pairs), total=least, has_mapping=mapping is not None)
        return Weights(files, (Line(_TOPIC, State.UNKNOWN, said),), (), (), pairing.only_a, pairing.only_b)
    rows = []
    for done, pair in enumerate(pairs, 1):
        rows.append(measured(pair))
        progress(done, len(pairs))
    earlier = [_earlier(file, second, mapping, source, like, direction) for file in (before, base)]
    differing = [pair for pair, row in zip(pairs, rows, strict=True) if not (row.is_equal or row.a.bad or row.b.bad)]
    found = explanations((pair.name_b, _held(pair, *earlier)) for pair in differing)
    others = [row for row in rows if row.name_b not in found]
    fresh = never_loaded(others, [] if init is None else _still_fresh(pairs, open_checkpoint(init)))
    names = tuple(row.name_b for row, _ in fresh)
    trained = [row for row in others if row.name_b not in names]
    are_same = before is not None or base is not None
    left = [pair.name_b for pair in differing if (are_same or found) and pair.name_b not in (*found, *names)]
    lines = [*finite_lines(rows), *explained_lines(found, left, are_same)]
    if others:
        lines += [*loaded_lines(others, fresh), *size_lines(trained)]
    lines += _pairs(pairing, len(pairs))
    codes = {name: code for name, (code, _) in found.items()}
    return Weights(files, tuple(lines), tuple(rows), names, pairing.only_a, pairing.only_b, codes)


def _earlier(file: str | Path | None, second: Checkpoint, *how: Any) -> Mapping[str, Any]:
    """Return what reads the weights of a third file, by B's names; the file has A's names or B's."""
    if file is None:
        return {}
    third = open_checkpoint(file)
    found = paired_weights(third, second, *how).pairs or paired_weights(third, second).pairs
    if not found:
        raise ConversionError(f"no weight of {file} has a counterpart in B: expected A's names, or B's")
    return {pair.name_b: pair.a for pair in found}


def _held(pair: WeightPair, before: Mapping[str, Any], base: Mapping[str, Any]) -> Held:
    return Held(pair.a(), pair.b(), *(each[pair.name_b]() if pair.name_b in each else None for each in (before, base)))


def _floats(tensors: Mapping[str, Stored]) -> int:
    return sum(is_float(stored.dtype) for stored in tensors.values())


def _still_fresh(pairs: list[WeightPair], init: Checkpoint) -> Iterator[str]:
    """Yield the names of B's weights that are equal to a fresh initialisation."""
    for pair in pairs:
        if pair.name_b in init.tensors:
            fresh, now = init.read(pair.name_b), pair.b()
            if fresh.shape == now.shape and fresh.dtype == now.dtype and fresh.tobytes() == now.tobytes():
                yield pair.name_b


def _pairs(pairing: Pairing, count: int) -> Iterator[Line]:
    """Yield what could not be held against anything."""
    if pairing.only_a or pairing.only_b:
        yield unchecked(_TOPIC, "parameters-without-counterpart", a=pairing.only_a, b=pairing.only_b)
    if pairing.misshapen:
        yield unchecked(_TOPIC, "weights-misshapen", texts=pairing.misshapen)
    if not (pairing.only_a or pairing.only_b or pairing.misshapen):
        yield fine(_TOPIC, "weights-all-paired", count=count)
