"""Where an error sits: in one head, column, token or sample, in what is padding."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from probe.comparison.notes import Note, note
from probe.diagnosis.evidence import Evidence, Values, squeezed
from probe.diagnosis.grades import Found, strong, verified, weak
from probe.records import Role
from probe.verdict.side import PARAMETER_ROLES

_ALL = 0.999
"""share of the squared error that is all of it"""
_MOST = 0.5
"""of the indices of an axis at most these are a part"""
_FEW = 4
"""indices that an axis has at least"""
_NAMED = 6
_BY_POSITION = ("*Linear", "*Dense", "*RMSNorm*", "*LayerNorm*", "*GELU*", "*SiLU*", "*ReLU*")
"""classes that treat each position by itself"""


def _energy(values: Values, axis: int) -> np.ndarray:
    squares = values.difference**2
    return squares.sum(axis=tuple(k for k in range(squares.ndim) if k != axis))


def _indices(evidence: Evidence, axis: int) -> np.ndarray | None:
    """Return the indices of an axis that hold all of the error, where they are few and the rest agrees."""
    values = evidence.values
    if values is None or not values.is_whole or values.a.shape[axis] < 2:
        return None
    energy = _energy(values, axis)
    order = np.argsort(energy)[::-1]
    total = energy.sum()
    count = int(np.searchsorted(np.cumsum(energy[order]), _ALL * total)) + 1
    if not total or count > _MOST * len(energy):
        return None
    found = np.sort(order[:count])
    rest = np.delete(np.arange(len(energy)), found)
    a, b = (np.take(each, rest, axis=axis) for each in (values.a, values.b))
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    agrees = float(np.linalg.norm(a - b)) <= evidence.tolerance * size
    return found if agrees and size else None


def _listed(indices: np.ndarray) -> Note:
    """Return runs of indices, the first of them by their ends."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    return note(
        "runs", runs=tuple((int(run[0]), int(run[-1])) for run in runs[:_NAMED]), more=max(0, len(runs) - _NAMED)
    )


# Positions and samples


def padding(evidence: Evidence) -> Found | None:
    """All of the error sits where a mask that the model was given has zeros, or where the tokens are the padding."""
    values = evidence.values
    if values is None:
        return _padding_by_statistics(evidence)
    if not values.is_whole or evidence.tokens is None or evidence.role in PARAMETER_ROLES:
        return None
    errors = _by_token(evidence, values)
    if errors is None:
        return None
    for slot, mask in evidence.model_inputs(evidence.a):
        is_mask = mask.shape == errors.shape and set(np.unique(mask)) == {0, 1}
        if is_mask and errors[mask == 0].sum() >= _ALL * errors.sum() and not _beyond(evidence, values, mask == 0):
            return verified(note("error-in-padding", mask=slot), mask=slot)
    return None


def _padding_by_statistics(evidence: Evidence) -> Found | None:
    found = zero_rows(evidence)
    if found is None:
        return None
    rows, side, slot, masked = found
    return weak(note("zero-tokens-may-be-padding", rows=rows, side=side, mask=slot, masked=masked), rows=rows)


def zero_rows(evidence: Evidence) -> tuple[int, str, str, int] | None:
    """Return how many tokens more are zero on one side, if they may be padding: with the side, the mask, and its zeros."""
    tokens = evidence.tokens
    if evidence.is_one_sided or tokens is None or evidence.role not in (Role.INPUT, Role.OUTPUT):
        return None
    shapes = [half.tensor.shape for half in evidence.halves]
    are_numbers = all(half.tensor.u for half in evidence.halves)  # a zero among integers is one of their values
    if not are_numbers or any(len(shape) < 2 for shape in shapes) or shapes[0][-1] != shapes[1][-1]:
        return None
    zeros = [int(half.tensor.zeros) for half in evidence.halves]
    rows, rest = divmod(abs(zeros[0] - zeros[1]), shapes[0][-1])
    norms = [float(half.tensor.norm) for half in evidence.halves]
    if zeros[0] < zeros[1]:
        norms.reverse()
    if not rows or rest or norms[0] > norms[1]:  # a dropout makes the others larger for what it leaves out
        return None
    for slot, given in evidence.given_to_model(evidence.a):
        if given.shape == tokens and (given.low, given.high) == (0, 1) and rows <= given.zeros:
            return rows, "A" if zeros[0] > zeros[1] else "B", slot, int(given.zeros)
    return None


def _by_token(evidence: Evidence, values: Values) -> np.ndarray | None:
    """Return the squared error of each token, as [samples, positions]."""
    if evidence.tokens is None or values.a.ndim != 3:
        return None
    squares = (values.difference**2).sum(axis=2)
    if squares.shape == evidence.tokens:
        return squares
    return squares.T if squares.shape[::-1] == evidence.tokens else None


def _beyond(evidence: Evidence, values: Values, places: np.ndarray) -> bool:
    """Tell whether the tokens elsewhere differ by more than noise."""
    kept = ~places if values.a.shape[:2] == places.shape else ~places.T
    a, b = values.a[kept], values.b[kept]
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) > evidence.limit * size


def _positions(evidence: Evidence) -> tuple[np.ndarray, int] | None:
    """Return which positions hold all of the error, and of how many."""
    values = evidence.values
    axis = None if values is None else evidence.axis_of_positions(values.a.shape)
    if values is None or axis is None or values.a.shape[axis] < _FEW:
        return None
    found = _indices(evidence, axis)
    return None if found is None else (found, values.a.shape[axis])


def one_position(evidence: Evidence, at: int, code: str) -> Found | None:
    """Only one position, the first or the last."""
    found = _positions(evidence)
    if found is None or list(found[0]) != [at % found[1]] or treats_each_alone(evidence):
        return None
    return strong(Note(code, {"size": found[1]}), positions=[at % found[1]])


def from_position(evidence: Evidence) -> Found | None:
    """All positions from one on, and none before it."""
    return None if treats_each_alone(evidence) else _from_position(evidence)


def positions_alone(evidence: Evidence) -> Found | None:
    """Some positions, in a layer that treats each by itself."""
    return (_some_positions(evidence) or _from_position(evidence)) if treats_each_alone(evidence) else None


def treats_each_alone(evidence: Evidence) -> bool:
    """Tell whether the wrong output is that of a layer in which no position knows of another, nor which it is."""
    return evidence.role is Role.OUTPUT and all(
        any(fnmatchcase(name, pattern) for pattern in _BY_POSITION) for name in evidence.classes
    )


def _from_position(evidence: Evidence) -> Found | None:
    values = evidence.values
    axis = None if values is None else evidence.axis_of_positions(values.a.shape)
    if values is None or axis is None or not values.is_whole or values.a.shape[axis] < 2 * _FEW:
        return None
    squares = [_squares(each, axis) for each in (values.difference, values.a, values.b)]
    errors = np.sqrt(squares[0] / np.maximum(np.maximum(squares[1], squares[2]), 1e-300))
    differs = errors > evidence.limit
    start = int(differs.argmax())
    if not 2 <= start <= len(errors) - 2 or not differs[start:].all():
        return None
    return strong(note("differs-from-position-on", start=start, size=len(errors)), start=start)


def _squares(array: np.ndarray, axis: int) -> np.ndarray:
    return (array * array).sum(axis=tuple(k for k in range(array.ndim) if k != axis))


def some_positions(evidence: Evidence) -> Found | None:
    """A few positions, the same in all samples."""
    return None if treats_each_alone(evidence) else _some_positions(evidence)


def _some_positions(evidence: Evidence) -> Found | None:
    found = _positions(evidence)
    if found is None:
        return None
    said = note("only-some-positions", count=len(found[0]), size=found[1], which=_listed(found[0]))
    return strong(said, positions=found[0].tolist()[:_NAMED])


def some_tokens(evidence: Evidence) -> Found | None:
    """All rows of some token ids, and no others."""
    values = evidence.values
    ids = [x for x in evidence.a.given(kind="integer") if values is not None and x.shape == values.a.shape[:-1]]
    if values is None or not values.is_whole or not ids or evidence.role is not Role.OUTPUT:
        return None
    errors = np.sqrt((values.difference**2).sum(axis=-1))
    sizes = np.sqrt(np.maximum((values.a**2).sum(axis=-1), (values.b**2).sum(axis=-1)))
    differs = errors > evidence.limit * np.maximum(sizes, 1e-300)
    wrong, right = np.unique(ids[0][differs]), np.unique(ids[0][~differs])
    if (
        not len(wrong)
        or not len(right)
        or np.intersect1d(wrong, right).size
        or len(wrong) > _MOST * (len(wrong) + len(right))
    ):
        return None
    return verified(note("only-some-ids", which=_listed(wrong)), ids=wrong.tolist()[:_NAMED])


def some_samples(evidence: Evidence) -> Found | None:
    """A part of the batch."""
    values = evidence.values
    if values is None or evidence.tokens is None or values.a.ndim != 3 or evidence.role in PARAMETER_ROLES:
        return None
    position = evidence.axis_of_positions(values.a.shape)
    if position is None:
        return None
    axis = 1 - position
    found = _indices(evidence, axis)
    if found is None:
        return None
    said = note("only-some-samples", count=len(found), size=values.a.shape[axis], which=_listed(found))
    return strong(said, samples=found.tolist()[:_NAMED])


# Columns, rows and heads


def some_heads(evidence: Evidence) -> Found | None:
    """Whole heads, where a configuration says how many there are or the module's name does that it has some."""
    values = evidence.values
    if values is None:
        return None
    axis = 0 if evidence.role in PARAMETER_ROLES else values.a.ndim - 1
    width = values.a.shape[axis]
    found = _indices(evidence, axis)
    if found is None or len(found) < 2 or not (evidence.has_known_heads or "att" in evidence.names):
        return None
    for number in evidence.heads(width):
        size = width // number
        heads = np.unique(found // size)
        if number < 2 or size < 2 or not len(heads) <= _MOST * number:
            continue
        if len(found) > 0.5 * size * len(heads) and all(
            np.count_nonzero(found // size == head) > 0.5 * size for head in heads
        ):
            said = note("only-some-heads", count=len(heads), which=_listed(heads), size=number, channels=size)
            return strong(said, heads=heads.tolist(), number=number)
    return None


def some_indices(evidence: Evidence, axis: int, code: str) -> Found | None:
    """A few indices of the last axis, or of the first one of what belongs to a parameter."""
    values = evidence.values
    if axis == 0 and evidence.role not in PARAMETER_ROLES:
        return None
    if values is None or values.a.ndim < 1 or len(squeezed(values.a.shape)) < (1 if axis else 2):
        return None
    axis %= values.a.ndim
    if values.a.shape[axis] < _FEW:
        return None
    found = _indices(evidence, axis)
    if found is None:
        return None
    size = values.a.shape[axis]
    said = Note(code, {"count": len(found), "size": size, "which": _listed(found)})
    return strong(said, indices=found.tolist()[:_NAMED], number=len(found))


def few_elements(evidence: Evidence) -> Found | None:
    """Single elements that lie in no row or column."""
    values = evidence.values
    if values is None or values.a.size < 64:
        return None
    differs = np.abs(values.difference) > evidence.limit * np.maximum(np.abs(values.a), np.abs(values.b))
    count = int(np.count_nonzero(differs))
    if not 0 < count <= max(1, values.a.size // 1000):
        return None
    first = [int(k) for k in np.argwhere(differs)[0]]
    said = note("only-some-elements", count=count, size=values.a.size, first=tuple(first))
    return strong(said, count=count, first=first)
