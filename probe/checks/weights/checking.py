"""`check_weights`: two trained checkpoints, weight by weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.checkpoints import Checkpoint, Stored, open_checkpoint
from probe.checks.outcome import CheckResult, Line, State, fine, unchecked
from probe.checks.weights.judging import finite_lines, loaded_lines, never_loaded, size_lines
from probe.checks.weights.measuring import WeightRow, measured
from probe.checks.weights.pairing import Pairing, WeightPair, paired_weights
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


def check_weights(
    a: str | Path, b: str | Path, mapping: str | Path | Mapping[str, Any] | None = None, *, source: Any = None,
    like: Any = None, init: str | Path | None = None, direction: DirectionName | None = None,
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
    fresh = never_loaded(rows, [] if init is None else _still_fresh(pairs, open_checkpoint(init)))
    trained = [row for row in rows if row not in [each for each, _ in fresh]]
    lines = [*finite_lines(rows), *loaded_lines(rows, fresh), *size_lines(trained), *_pairs(pairing, len(pairs))]
    names = tuple(row.name_b for row, _ in fresh)
    return Weights(files, tuple(lines), tuple(rows), names, pairing.only_a, pairing.only_b)


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
