"""`ReprodLogger` and `ReprodDiffHelper` of reprod_log, without its blind spots: change the import, keep the script and its files.

Other than there, NaN never passes, shapes are never broadcast, each method is judged by itself, unsigned integers do not wrap
around, files cannot run code, and `ReprodDiffHelper.report` returns whether all passed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.checkpoints.unpickling import ObjectUnpickler
from probe.damage import reading
from probe.errors import ConfigError, ConversionError, FormatError, StoreError

_METHODS = ("min", "max", "mean")
_TAB = "\t"
_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

Info = Mapping[Any, Any]
"""arrays by name, or further mappings"""


class ReprodLogger:
    """Gathers arrays by name, and writes them as one ``.npy`` file."""

    def __init__(self) -> None:
        self._data: dict[Any, np.ndarray] = {}

    @property
    def data(self) -> dict[Any, np.ndarray]:
        """What was added."""
        return self._data

    def add(self, key: Any, val: np.ndarray) -> None:
        """Add an array.

        Raises
        ------
        ConfigError
            it is none
        """
        if not isinstance(val, np.ndarray):
            raise ConfigError(
                f"{key}: expected a numpy array, got {type(val).__module__}.{type(val).__qualname__}; "
                "of a tensor: tensor.detach().cpu().numpy() (PyTorch), tensor.numpy() (PaddlePaddle)"
            )
        self._data[key] = val

    def remove(self, key: Any) -> None:
        """Remove an array; that there is none is said."""
        if self._data.pop(key, None) is None:
            print(f"{key} is not in {self._data.keys()}")

    def clear(self) -> None:
        """Remove all."""
        self._data.clear()

    def save(self, path: str | Path) -> None:
        """Write a ``.npy`` file that `ReprodDiffHelper.load_info`, and reprod_log, read.

        Raises
        ------
        StoreError
            it cannot be written
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            np.save(path, self._data)  # type: ignore[arg-type]
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None


class ReprodDiffHelper:
    """Holds the arrays of two programs against each other."""

    def __init__(self) -> None:
        self.diff_dict: dict[Any, Any] = {}
        """by name: ``mean``, ``max`` and ``min`` of the absolute differences"""
        self._remarks: dict[str, str] = {}
        """by place"""

    def load_info(self, path: str | Path) -> dict[Any, Any]:
        """Return the arrays of a file.

        Raises
        ------
        StoreError, FormatError, ConversionError
            it cannot be read, or is not what `ReprodLogger.save` writes
        """
        path = Path(path)
        if not path.is_file():
            raise StoreError(f"there is no file {path}")
        with reading(path), path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version not in _VERSIONS or not _VERSIONS[version](file)[2].hasobject:
                raise FormatError(f"{path} holds an array; expected the dict that ReprodLogger.save writes")
            found = ObjectUnpickler(file, path).load()
        if not isinstance(found, dict):
            raise ConversionError(
                f"{path} holds a {type(found).__name__}; expected the dict that ReprodLogger.save writes"
            )
        return found

    def compare_info(self, info1: Info, info2: Info) -> None:
        """Compute the differences of arrays of the same names; ``diff_dict`` has them.

        Raises
        ------
        ConfigError
            a name is on one side only, or a value is no array
        """
        self._remarks = {}
        self.diff_dict = self._differences(info1, info2, "")

    def report(
        self,
        diff_method: str | Sequence[str] = "mean",
        diff_threshold: float = 1e-6,
        path: str | Path | None = "./diff.txt",
    ) -> bool:
        """Print the differences, write them to a file, and tell whether all are within the threshold.

        Parameters
        ----------
        diff_method
            ``mean``, ``max``, ``min``, ``all``, or several of the first three
        diff_threshold
            what a difference may be
        path
            the file; None writes none

        Raises
        ------
        ConfigError
            the method is none
        StoreError
            the file cannot be written
        """
        methods = [diff_method] if isinstance(diff_method, str) else list(diff_method)
        methods = list(_METHODS) if methods == ["all"] else methods
        unknown = [method for method in methods if method not in _METHODS]
        if unknown or not methods:
            raise ConfigError(f"diff_method={diff_method!r} is not known; expected {', '.join(_METHODS)} or all")
        texts: list[str] = []
        passed = self._judged(self.diff_dict, methods, diff_threshold, "", 0, texts) and bool(self.diff_dict)
        texts.append(f"diff check {'passed' if passed else 'failed'}")
        now = time.strftime("%Y/%m/%d %H:%M:%S")
        lines = "".join(f"[{now}] root INFO: {text}\n" for text in texts)
        sys.stdout.write(lines)
        if path is not None:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_text(lines, encoding="utf-8")
            except OSError as error:
                raise StoreError(f"cannot write {path}: {error.strerror}") from None
        return passed

    def _differences(self, a: Info, b: Info, place: str) -> dict[Any, Any]:
        alone = [*(f"{place}{key}" for key in a if key not in b), *(f"{place}{key}" for key in b if key not in a)]
        if alone:
            raise ConfigError(f"on one side only: {', '.join(alone)}; both programs add arrays of the same names")
        found: dict[Any, Any] = {}
        for key in a:
            both = a[key], b[key]
            if all(isinstance(each, Mapping) for each in both):
                found[key] = self._differences(*both, f"{place}{key}.")
            elif all(isinstance(each, np.ndarray) for each in both):
                found[key], remark = _difference(*both)
                self._remarks |= {f"{place}{key}": remark} if remark else {}
            else:
                kinds = " and ".join(type(each).__name__ for each in both)
                raise ConfigError(f"{place}{key}: expected numpy arrays, got {kinds}")
        return found

    def _judged(self, diffs: Info, methods: list[str], most: float, place: str, level: int, texts: list[str]) -> bool:
        """Add the lines of each array; tell whether all are within the threshold. NaN is not."""
        passed = True
        for key, diff in diffs.items():
            here = f"{place}{key}"
            if set(diff) != {"mean", "max", "min"}:
                texts.append(f"{_TAB * level}{key}")
                passed &= self._judged(diff, methods, most, f"{here}.", level + 1, texts)
                continue
            texts.append(f"{_TAB * level}{key}: ")
            texts += [f"{_TAB * (level + 1)}{self._remarks[here]}"] if here in self._remarks else []
            for method in methods:
                is_within = diff[method] <= most
                texts.append(f"{_TAB * (level + 1)}{method} diff: check passed: {is_within}, value: {diff[method]}")
                passed &= is_within
        return passed


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[dict[str, float], str]:
    """Return mean, max and min of the absolute differences of two arrays, and a remark."""
    remark = ""
    if a.shape != b.shape and a.T.shape == b.shape:
        a, remark = a.T, "transpose sub_data1"
    elif (
        a.shape != b.shape and a.squeeze().shape == b.squeeze().shape
    ):  # a loss: () in PyTorch, (1,) in older PaddlePaddle
        b, remark = b.reshape(a.shape), f"shapes {a.shape} and {b.shape}: axes of size 1 left out"
    if a.shape != b.shape or not a.size:
        return dict.fromkeys(("mean", "max", "min"), float("nan")), f"shapes {a.shape} and {b.shape}: not compared"
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    with np.errstate(invalid="ignore"):
        diff = np.abs(a.astype(wide) - b.astype(wide))
    diff = np.where(np.asarray(a == b), 0.0, diff)  # infinite on both sides
    return {"mean": float(diff.mean()), "max": float(diff.max()), "min": float(diff.min())}, remark
