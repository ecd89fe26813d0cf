"""Where an error sits: in one head, column, token or sample, in what is padding."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from probe.diagnosis.evidence import Evidence, Values, distance
from probe.diagnosis.hint import Found, strong, verified, weak
from probe.notes import Note, note
from probe.numbers.axis_sums import squeezed
from probe.records import Role
from probe.verdict.side import PARAMETER_ROLES

_ALL = 0.999
"""share of the squared error that is all of it"""
_MOST = 0.5
"""of the indices of an axis at most these are a part"""
_FEW = 4
"""indices that an axis has at least"""
_MANY = 6
"""positions from which on an error may grow with them"""
_GROWS = 0.8
"""rank correlation from which an error grows with the position"""
_JUMP = 8.0
"""by how much an error is larger than noise, and than before it, at the position at which it begins"""
_NAMED = 6
_BY_POSITION = ("*Linear", "*Dense", "*RMSNorm*", "*LayerNorm*", "*GELU*", "*SiLU*", "*ReLU*")
"""classes that treat each position by itself"""


def _indices(evidence: Evidence, axis: int) -> np.ndarray | None:
    """Return the indices of an axis that hold all of the error, where they are few and the rest agrees."""
    values = evidence.values
    if values is None or not values.is_whole or values.a.shape[axis] < 2:
        return None
    energy = values.squares(axis)[0]
    order = np.argsort(energy)[::-1]
    total = energy.sum()
    count = int(np.searchsorted(np.cumsum(energy[order]), _ALL * total)) + 1
    if not total or count > _MOST * len(energy):
        return None
    found = np.sort(order[:count])
    a, b = (np.delete(each, found, axis=axis) for each in (values.a, values.b))
    return found if (a.any() or b.any()) and distance(a, b) <= evidence.tolerance else None


def _few_indices(evidence: Evidence, axis: int, code: str, least: int = _FEW) -> tuple[Note, list[int]] | None:
    """Say which indices of an axis hold all of the error; with the first of them."""
    size = evidence.values.a.shape[axis] if evidence.values is not None else 0
    found = _indices(evidence, axis) if size >= least else None
    if found is None:
        return None
    return Note(code, {"count": len(found), "size": size, "which": _listed(found)}), found.tolist()[:_NAMED]


def _listed(indices: np.ndarray) -> Note:
    """Return runs of indices, the first of them by their ends."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    return note(
        "runs", runs=tuple((int(run[0]), int(run[-1])) for run in runs[:_NAMED]), more=max(0, len(runs) - _NAMED)
    )


# Positions and samples


def padding(evidence: Evidence) -> Found | None:
    """All of the error is at padding, by the mask or the tokens."""
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
        if is_mask and errors[mask == 0].sum() >= _ALL * errors.sum():
            kept = mask != 0 if values.a.shape[:2] == mask.shape else mask.T != 0
            if distance(values.a[kept], values.b[kept]) <= evidence.limit:
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
    if tokens is None or evidence.role not in (Role.INPUT, Role.OUTPUT):
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


def _positions(evidence: Evidence) -> int | None:
    """Return the axis of positions of tensors that are known as a whole."""
    values = evidence.values
    return None if values is None or not values.is_whole else evidence.axis_of_positions(values.a.shape)


def _by_position(evidence: Evidence) -> np.ndarray | None:
    """Return the relative error at each position."""
    values, axis = evidence.values, _positions(evidence)
    if values is None or axis is None:
        return None
    error, size = values.squares(axis)
    return np.sqrt(error / size)


def treats_each_alone(evidence: Evidence) -> bool:
    """Return True if the wrong output is that of a layer in which no position knows of another, nor which it is."""
    return evidence.role is Role.OUTPUT and all(
        any(fnmatchcase(name, pattern) for pattern in _BY_POSITION) for name in evidence.classes
    )


def some_positions(evidence: Evidence, at: int | None = None, code: str = "only-some-positions") -> Found | None:
    """A few positions, the same in all samples."""
    axis = _positions(evidence)
    found = None if axis is None else _few_indices(evidence, axis, code)
    if found is None or at is None:
        return None if found is None else strong(found[0], positions=found[1])
    size = found[0].facts["size"]
    return strong(Note(code, {"size": size}), positions=found[1]) if found[1] == [at % size] else None


def positions_alone(evidence: Evidence) -> Found | None:
    """Some positions, in a layer that treats each by itself."""
    return (some_positions(evidence) or from_position(evidence)) if treats_each_alone(evidence) else None


def from_position(evidence: Evidence) -> Found | None:
    """All positions from one on, and none before it."""
    errors = _by_position(evidence)
    if errors is None or len(errors) < 2 * _FEW:
        return None
    differs = errors > evidence.limit
    start = int(differs.argmax())
    if not 2 <= start <= len(errors) - 2 or not differs[start:].all():
        return None
    return strong(note("differs-from-position-on", start=start, size=len(errors)), start=start)


def growth(evidence: Evidence) -> Found | None:
    """The first position agrees; the error grows behind it."""
    errors = _by_position(evidence)
    if errors is None or len(errors) < _MANY or errors[0] > evidence.limit:
        return None
    begin = int((errors > evidence.limit).argmax())
    jump = _JUMP * max(evidence.limit, float(errors[: max(begin, 1)].max()))
    correlation = _trend(errors, evidence.limit)
    # some first positions agree and it jumps up behind them; embeddings of positions err from the second on
    if correlation < _GROWS or (begin > 1 and float(errors[begin]) > jump):
        return None
    said = note("error-grows-with-position", correlation=correlation, last=float(errors[-1]))
    return strong(said, correlation=correlation)


def looks_ahead(evidence: Evidence) -> Found | None:
    """The last position agrees; the error grows towards the first."""
    errors = _by_position(evidence)
    if errors is None or len(errors) < _MANY or errors[-1] > evidence.limit or "att" not in evidence.names:
        return None
    correlation = _trend(errors, evidence.limit)
    if correlation > -_GROWS:
        return None
    return strong(note("error-grows-towards-first-position"), correlation=correlation)


def _trend(errors: np.ndarray, limit: float) -> float:
    """Return the rank correlation of errors with positions, 0 where less than half of them differ."""
    if np.count_nonzero(errors > limit) < len(errors) // 2:
        return 0.0
    ranks = np.argsort(np.argsort(errors)).astype(np.float64)
    return float(np.corrcoef(ranks, np.arange(len(errors)))[0, 1])


def some_tokens(evidence: Evidence) -> Found | None:
    """All rows of some token ids, and no others."""
    values = evidence.values
    ids = [x for x in evidence.a.given(kind="integer") if values is not None and x.shape == values.a.shape[:-1]]
    if values is None or not values.is_whole or not ids:
        return None
    errors = np.sqrt((values.difference**2).sum(axis=-1))
    sizes = np.sqrt(np.maximum((values.a**2).sum(axis=-1), (values.b**2).sum(axis=-1)))
    differs = errors > evidence.limit * np.maximum(sizes, 1e-300)
    wrong, right = np.unique(ids[0][differs]), np.unique(ids[0][~differs])
    is_part = len(wrong) and len(right) and len(wrong) <= _MOST * (len(wrong) + len(right))
    if not is_part or np.intersect1d(wrong, right).size:
        return None
    return verified(note("only-some-ids", which=_listed(wrong)), ids=wrong.tolist()[:_NAMED])


def some_samples(evidence: Evidence) -> Found | None:
    """A part of the batch."""
    values, position = evidence.values, _positions(evidence)
    if values is None or position not in (0, 1) or evidence.tokens is None or values.a.ndim != 3:
        return None
    found = _few_indices(evidence, 1 - position, "only-some-samples", least=2)
    return None if found is None else strong(found[0], samples=found[1])


# Columns, rows and heads


def some_heads(evidence: Evidence) -> Found | None:
    """Whole heads; a configuration or the module's name tells how many there are."""
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
        if number < 2 or size < 2 or len(heads) > _MOST * number:
            continue
        if all(np.count_nonzero(found // size == head) > 0.5 * size for head in heads):
            said = note("only-some-heads", count=len(heads), which=_listed(heads), size=number, channels=size)
            return strong(said, heads=heads.tolist(), number=number)
    return None


def some_indices(evidence: Evidence, axis: int, code: str) -> Found | None:
    """A few indices of the last axis, or of a parameter's first."""
    values = evidence.values
    is_other = axis == 0 and evidence.role not in PARAMETER_ROLES
    if is_other or values is None or not values.a.ndim or len(squeezed(values.a.shape)) < (1 if axis else 2):
        return None
    found = _few_indices(evidence, axis % values.a.ndim, code)
    return None if found is None else strong(found[0], indices=found[1], number=found[0].facts["count"])


def few_elements(evidence: Evidence) -> Found | None:
    """Single elements that lie in no row or column."""
    values = evidence.values
    if values is None or values.a.size < 64:
        return None
    differs = np.abs(values.difference) > evidence.limit * np.maximum(np.abs(values.a), np.abs(values.b))
    count, rest = int(np.count_nonzero(differs)), np.linalg.norm(values.difference[~differs])
    if not 0 < count <= max(1, values.a.size // 1000) or rest > np.linalg.norm(values.difference[differs]):
        return None
    first = [int(k) for k in np.argwhere(differs)[0]]
    said = note("only-some-elements", count=count, size=values.a.size, first=tuple(first))
    return strong(said, count=count, first=first)
