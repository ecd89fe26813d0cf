"""Reading pickles of weights without running what else may stand in them."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from probe.errors import ConversionError

try:  # numpy 2 moved it
    from numpy._core.multiarray import _reconstruct
except ImportError:
    from numpy.core.multiarray import _reconstruct


def _encoded(text: str, encoding: str) -> bytes:
    """Return the bytes of an array as protocols before 3 pickle them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return text.encode(encoding)


_ARRAYS: dict[str, Any] = {
    "_codecs.encode": _encoded,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "builtins.tuple": tuple,
    "collections.OrderedDict": collections.OrderedDict,
}


class WeightsUnpickler(pickle.Unpickler):
    """Builds arrays and containers, and what else it is told to; all other classes and functions are refused."""

    def __init__(
        self, file: IO[bytes], path: Path, also: Callable[[str], Any] = lambda name: None,
        storage: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(file, encoding="latin1")
        self._path, self._also, self._storage = path, also, storage

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle refers to, when it is harmless."""
        full = f"{module}.{name}"
        found = _ARRAYS.get(full) or self._also(full)
        if found is None:
            raise ConversionError(
                f"{self._path} does not hold weights alone: it refers to {full}, which a pickle can use to run any "
                "program; load it where you trust it, and save its state_dict"
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Return a storage that a pickle of torch refers to."""
        if self._storage is None:
            raise ConversionError(f"{self._path} refers to {pid!r}, which is not in it")
        return self._storage(pid)

    def load(self) -> Any:
        """Return the object."""
        try:
            return super().load()
        except ConversionError:
            raise
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise ConversionError(f"{self._path} is damaged, or no file of weights: {error}") from error


def state_dict_in(found: Any, path: Path, kind: type) -> Mapping[str, Any]:
    """Return the dict of tensors that a file holds, at its top or under ``state_dict``, ``model`` or ``module``."""
    for inner in ("state_dict", "model", "module"):
        if isinstance(found, Mapping) and isinstance(found.get(inner), Mapping):
            found = found[inner]
    if not isinstance(found, Mapping) or not found or not all(isinstance(name, str) for name in found):
        raise ConversionError(f"{path} holds no state_dict: expected tensors by name, got {type(found).__name__}")
    others = [name for name, value in found.items() if not isinstance(value, kind)]
    if others:
        raise ConversionError(
            f"{path}: {others[0]} is a {type(found[others[0]]).__name__}, not a tensor: expected the state_dict of a "
            "model, not a training checkpoint"
        )
    return found
