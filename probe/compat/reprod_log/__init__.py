"""reprod_log 1.0.1 without its blind spots: change the import, keep the script, its files and its logs.

Other than there, NaN never passes, shapes are neither broadcast nor transposed, each method is judged by itself,
integers do not wrap around, files cannot run code, and what checks returns whether all passed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.checkpoints.unpickling import ObjectUnpickler
from probe.compat.reprod_log import compare
from probe.compat.reprod_log.compare import Info, check_print_diff, compute_diff
from probe.damage import reading
from probe.errors import ConfigError, ConversionError, FormatError, StoreError

__all__ = ["ReprodDiffHelper", "ReprodLogger", "compare"]
_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class ReprodLogger:
    """Gathers arrays by name, and writes them as one ``.npy`` file."""

    def __init__(self) -> None:
        self._data: dict[Any, np.ndarray] = {}

    @property
    def data(self) -> dict[Any, np.ndarray]:
        """What was added."""
        return self._data

    def add(self, key: Any, val: np.ndarray) -> None:
        """Add an array as it is now, whatever is written to it later. Raises ConfigError where it is none."""
        if not isinstance(val, np.ndarray):
            raise ConfigError(
                f"{key}: expected a numpy array, got {type(val).__module__}.{type(val).__qualname__}; "
                "of a tensor: tensor.detach().cpu().numpy() (PyTorch), tensor.numpy() (PaddlePaddle)"
            )
        self._data[key] = np.array(val)

    def remove(self, key: Any) -> None:
        """Remove an array; that there is none is said."""
        if self._data.pop(key, None) is None:
            print(f"{key} is not in {self._data.keys()}")

    def clear(self) -> None:
        """Remove all."""
        self._data.clear()

    def save(self, path: str | Path) -> None:
        """Write a ``.npy`` file that `ReprodDiffHelper.load_info` and reprod_log read. Raises StoreError."""
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

    def load_info(self, path: str | Path) -> dict[Any, Any]:
        """Return the arrays of a file.

        Raises StoreError, FormatError or ConversionError where it is not what `ReprodLogger.save` writes.
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

        Raises ConfigError where a name is on one side only, or a value is no array.
        """
        self.diff_dict = compute_diff(info1, info2)

    def report(
        self,
        diff_method: str | Sequence[str] = "mean",
        diff_threshold: float = 1e-6,
        path: str | Path | None = "./diff.txt",
    ) -> bool:
        """Print the differences, write them to a file unless ``path`` is None, and return whether all are small enough.

        ``diff_method`` is ``mean``, ``max``, ``min``, ``all``, or several of the first three. Raises ConfigError where it
        is none, StoreError where the file cannot be written.
        """
        texts: list[str] = []
        passed = check_print_diff(self.diff_dict, diff_method, diff_threshold, texts.append)
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
