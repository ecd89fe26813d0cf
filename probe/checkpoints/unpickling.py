"""Reading pickles of weights without running what else may stand in them."""

from __future__ import annotations

import collections
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from probe.damage import CAUSES, Damaged
from probe.errors import ConversionError


def _encoded(text: str, encoding: str) -> bytes:
    """Return the bytes of an array as protocols before 3 pickle them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return text.encode(encoding)


class _Dtype:
    """A dtype as a pickle describes it. numpy's own believes whatever state it is given, and crashes."""

    def __init__(self, text: str, *_: Any) -> None:
        self.dtype = np.dtype(text) if text in ("O8", "O") or _PLAIN.fullmatch(text) else np.dtype("V1")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *inner = state
        if any(each is not None for each in inner[:3]) or order not in _ORDERS:
            raise Damaged("an array is not of numbers")
        self.dtype = self.dtype.newbyteorder(order) if order in "<>" else self.dtype


class _Array:
    """An array as a pickle describes it, made of its bytes and nothing else."""

    def __init__(self, *_: Any) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, data = state
        if kind.dtype.kind not in _NUMBERS:
            self.array = np.empty(0, kind.dtype)  # whoever asked for numbers says that these are none
            return
        data = data.encode("latin1") if isinstance(data, str) else data
        self.array = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if is_fortran else "C")


class _ArrayOrObject(_Array):
    """An array, or the only element of one that holds a Python object: how ``numpy.save`` writes a dict."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, _, data = state
        if kind.dtype.kind == "O" and shape == () and isinstance(data, list) and len(data) == 1:
            self.array = _with_arrays(data[0])
        else:
            super().__setstate__(state)


_NUMBERS = "biufc"
_ORDERS = ("<", ">", "|", "=")
_PLAIN = re.compile(r"[<>|=]?(\?|[biufcSU][0-9]{1,4})")
_ARRAYS: dict[str, Any] = {
    "_codecs.encode": _encoded,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": "ndarray",
    "numpy.dtype": _Dtype,
    "builtins.tuple": tuple,
    "collections.OrderedDict": collections.OrderedDict,
}


def _with_arrays(found: Any, made: dict[int, Any] | None = None) -> Any:
    """Return containers with arrays in the place of what stands for them; what stands in several places is made once."""
    made = {} if made is None else made
    if isinstance(found, _Array):
        return found.array
    if id(found) not in made and isinstance(found, dict):
        made[id(found)] = {key: _with_arrays(value, made) for key, value in found.items()}
    elif id(found) not in made and type(found) in (list, tuple):
        made[id(found)] = type(found)(_with_arrays(each, made) for each in found)
    return made.get(id(found), found)


class WeightsUnpickler(pickle._Unpickler):
    """Builds arrays and containers, and what else it is told to; all other classes and functions are refused.

    It is the one that is written in Python: the other one makes room for as many objects as a pickle says that it refers to.
    """

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
            return _with_arrays(super().load())
        except ConversionError:
            raise
        except (Damaged, *CAUSES) as error:
            raise ConversionError(f"{self._path} is damaged, or no file of weights: {error}") from None


class ObjectUnpickler(WeightsUnpickler):
    """The same of a file that ``numpy.save`` wrote of a dict of arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle refers to, when it is harmless."""
        found = super().find_class(module, name)
        return _ArrayOrObject if found is _Array else found


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
