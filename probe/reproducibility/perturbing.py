"""`noise_run`: the baseline once more with weights that are off by rounding, as a floor of noise without a second device."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from probe.adapters.base import Adapter, Group, NamedTensor, adapter_for
from probe.config import RecordOptions
from probe.errors import ConfigError, warn
from probe.numbers.statistics import as_real, is_float
from probe.records import AutocastName
from probe.session import capture

_SEEDS = 2**32
_SIXTEEN_BIT_SHARE = 16
"""of this many elements of a 16-bit weight one is moved: kernels that sum in float32 round few of them otherwise"""
_NARROWER = {"": 0, "bfloat16": 16, "float16": 13}
"""bits of float32 that a cast takes away"""
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@contextlib.contextmanager
def noise_run(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    dtype: AutocastName = "",
    **options: Unpack[RecordOptions],
) -> Iterator[Path | None]:
    """Record what runs inside a ``with`` block, with weights that are moved by one unit in the last place at random.

    Run the same steps as in the recording A; ``probe.compare(a, b, noise=path)`` then takes what differs as noise. At the end
    of the block weights, buffers, gradients, random numbers and every optimizer that made a step in it are as they were
    before, bit for bit; learning rate schedules and data loaders are the program's own.

    Parameters
    ----------
    model, path, options
        as for `probe.capture`
    seed
        which elements are moved, and where to: another one gives another run
    dtype
        what autocast computes in, ``"bfloat16"`` or ``"float16"``: weights in float32 are then moved by a unit of that, since
        smaller moves are lost when they are cast

    Raises
    ------
    ConfigError
        the seed or the dtype is none
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < _SEEDS:
        raise ConfigError(f"seed={seed!r} cannot be used; expected an integer from 0 to {_SEEDS - 1}")
    if dtype not in _NARROWER:
        raise ConfigError(f"dtype={dtype!r} cannot be used; expected 'bfloat16' or 'float16', or none without autocast")
    with contextlib.ExitStack() as undone:
        for number, part in enumerate(model if isinstance(model, (list, tuple)) else [model]):
            _Perturbed(adapter_for(part), part, undone).perturb(np.random.default_rng([int(seed), number]), dtype)
        with capture(model, path, **options) as target:
            yield target


class _Perturbed:
    """A model whose weights are moved, and what undoes all that a training step changes."""

    def __init__(self, adapter: Adapter, model: Any, undone: contextlib.ExitStack) -> None:
        self.adapter, self._undone = adapter, undone
        self._tensors = list(adapter.parameters(model))
        self._seen: list[object] = []
        for state, put_back in ((random.getstate(), random.setstate), (np.random.get_state(), np.random.set_state)):
            undone.callback(put_back, state)
        self._keep("the random numbers and gradients", adapter.keep([each.tensor for each in self._tensors]))
        for each in self._tensors:
            undone.callback(self._assign, each, self._values(each))
        undone.callback(adapter.on_update(None, self._keep_optimizers, lambda groups: None))

    def perturb(self, generator: np.random.Generator, dtype: str) -> None:
        """Move the weights of two dimensions and more; a norm's scale is no sum in which the moves cancel."""
        for each in self._tensors:
            if not each.is_buffer and len(self.adapter.facts(each.tensor).shape) > 1:
                values = self._values(each)
                if move(values, generator, dtype):
                    self._assign(each, values)

    def _values(self, each: NamedTensor) -> np.ndarray:
        with self.adapter.quiet():
            return self.adapter.values(each.tensor)

    def _assign(self, each: NamedTensor, values: np.ndarray) -> None:
        with self.adapter.quiet():
            self.adapter.assign(each.tensor, values)

    def _keep_optimizers(self, groups: list[Group], why_not: str) -> None:
        for optimizer in {id(group.optimizer): group.optimizer for group in groups}.values():
            if not any(optimizer is seen for seen in self._seen):
                self._seen.append(optimizer)
                self._keep(f"the state of {type(optimizer).__name__}", self.adapter.keep_optimizer(optimizer))

    def _keep(self, what: str, undo: Callable[[], None] | None) -> None:
        if undo is None:
            warn(f"noise_run puts back the weights; {what} it cannot put back under {self.adapter.framework}")
        else:
            self._undone.callback(undo)


def move(values: np.ndarray, generator: np.random.Generator, dtype: str = "") -> bool:
    """Move elements to a neighbouring number, in place: all of them, of 16-bit dtypes a share. Tell whether any was.

    Those of float32 that are cast to a narrower dtype are moved by a unit of that, and are as few.
    """
    real = as_real(values).reshape(-1) if is_float(values.dtype) or values.dtype.kind == "c" else np.empty(0)
    if not real.size or real.dtype.itemsize not in (2, 4, 8):
        return False
    chosen = np.ones(real.size, bool)
    if real.dtype.itemsize == 2 or _lost(real, dtype):
        chosen = generator.integers(0, _SIXTEEN_BIT_SHARE, real.size) == 0
    return _to_neighbours(real, generator.integers(0, 2, real.size), chosen, dtype)


def moved(values: np.ndarray, generator: np.random.Generator, autocast: str = "") -> np.ndarray:
    """Return values each of which is one unit in the last place larger or smaller, at random; zeros and integers stay.

    What code makes of them shows how much of an error of its own is noise.

    Parameters
    ----------
    autocast
        dtype that operations on float32 are cast to: the unit is then that of it, since smaller moves are lost
    """
    if not (is_float(values.dtype) or values.dtype.kind == "c") or not values.size:
        return values
    real = np.array(as_real(values), order="C")
    flat = real.reshape(-1)
    _to_neighbours(flat, generator.integers(0, 2, flat.size, dtype=np.uint8), np.ones(flat.size, bool), autocast)
    if values.dtype.kind == "c":
        return (real[..., 0] + 1j * real[..., 1]).astype(values.dtype)
    return real.reshape(values.shape)


def _lost(real: np.ndarray, autocast: str) -> int:
    """Return how many bits of numbers a cast takes away."""
    return _NARROWER.get(autocast, 0) if real.dtype == np.float32 else 0


def _to_neighbours(real: np.ndarray, up: np.ndarray, chosen: np.ndarray, autocast: str) -> bool:
    """Move chosen numbers to the neighbour above (1) or below (0) in place. Tell whether any was."""
    words = real.view(_BITS[real.dtype.itemsize])
    steps = (up.astype(words.dtype) * 2 - 1) << np.array(_lost(real, autocast), words.dtype)
    is_moved, before = np.isfinite(real) & (real != 0) & chosen, words.copy()
    words[is_moved] += steps[is_moved]
    left = ~np.isfinite(real) | ((real == 0) & is_moved)  # the largest and the smallest number have one neighbour
    words[left] = before[left]
    return bool(is_moved.any())
