"""Where the documents of a packed batch begin: by positions that start anew, by cumulated lengths, or by a mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_MASKING = -1e3
"""what an additive mask adds is at most this"""


def begins_of(slot: str, shape: tuple[int, ...], read: Callable[[], np.ndarray | None]) -> tuple[int, ...] | None:
    """Return at which tokens documents begin, counted over all samples, as an input of a model tells it; None if it tells nothing."""
    name = slot.casefold()
    values = read() if any(word in name for word in ("position", "cu_seq", "mask")) else None
    if values is None or not values.size or values.size != np.prod(shape) or values.dtype.kind == "c":
        return None
    if "cu_seq" in name and len(shape) == 1 and len(values) > 1 and values[0] == 0 and (np.diff(values) > 0).all():
        return tuple(values[:-1].tolist())
    if "position" in name and values.dtype.kind in "iu" and values.ndim:
        values = values.reshape(shape)[0] if len(shape) == 3 else values  # sections: text, height, width
        values = values.reshape(-1, shape[-1])
        return _of_samples((values == 0) & (np.roll(values, 1, axis=1) != 0))
    if "mask" in name and len(shape) > 2 and shape[-1] == shape[-2] > 1:
        table = values.reshape(*shape)[(slice(None), *[0] * (len(shape) - 3))]
        return begins_in_mask(table <= _MASKING if values.dtype.kind == "f" else table == 0)
    return None


def begins_in_mask(hidden: np.ndarray) -> tuple[int, ...] | None:
    """Return where the documents of [samples, positions, positions] begin, of a mask that is causal inside of each; None of others."""
    first = np.argmin(hidden, axis=-1)  # what a position sees first
    at = np.arange(hidden.shape[-1])
    meant = (at > at[:, None]) | (at < first[..., None])
    return _of_samples(first == at) if (meant == hidden).all() else None


def _of_samples(is_begin: np.ndarray) -> tuple[int, ...]:
    is_begin = is_begin.copy()
    is_begin[:, 0] = True
    return tuple(np.flatnonzero(is_begin.reshape(-1)).tolist())
