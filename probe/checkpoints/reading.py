"""A checkpoint: one file of weights, or several with an index."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from probe.checkpoints.ckpt import CkptFile
from probe.checkpoints.pdparams import PdparamsFile
from probe.checkpoints.safetensors import SafetensorsFile
from probe.checkpoints.stored import Stored, WeightFile
from probe.checkpoints.torch_pickle import TorchFile
from probe.damage import Damaged, parsed, reading, refuse_pointer
from probe.errors import ConversionError

_READERS: dict[str, type[WeightFile]] = {
    ".safetensors": SafetensorsFile, ".bin": TorchFile, ".pt": TorchFile, ".pth": TorchFile,
    ".pdparams": PdparamsFile, ".ckpt": CkptFile,
}  # fmt: skip
_INDEX = ".index.json"
_MAIN = ("model.safetensors", "pytorch_model.bin", "model_state.pdparams", "model.ckpt")
"""what a folder's weights are called, from the one to be preferred on; with an index, its name before ``.index.json``"""


class Checkpoint:
    """Tensors by name, whatever files they lie in."""

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path, self.files = path, files
        self._opened = [_opened(file) for file in files]
        self.suffix = files[0].suffix
        """of its files: which format it has"""
        self.tensors: dict[str, Stored] = {}
        self.shard_of: dict[str, int] = {}
        """number of the file that a tensor lies in"""
        for number, opened in enumerate(self._opened):
            for name, stored in opened.tensors.items():
                if name in self.tensors:
                    raise ConversionError(f"{name} is in {files[self.shard_of[name]].name} and in {files[number].name}")
                self.tensors[name], self.shard_of[name] = stored, number

    @property
    def framework(self) -> str:
        """Whose weights they are; ``""`` when the files do not tell."""
        return self._opened[0].framework

    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor; bfloat16 and float8 as ml_dtypes."""
        number = self.shard_of[name]
        for other, opened in enumerate(self._opened):
            if other != number:
                opened.forget()
        with reading(self.files[number], name, kind=ConversionError):
            return self._opened[number].read(name)


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a file of weights, an index of several, or a folder that holds one or the other.

    Raises ConversionError where there is none, it is damaged, or it holds more than weights.
    """
    path = Path(source)
    if not path.exists():
        raise ConversionError(f"there is no {source}")
    main = _main_of(path) if path.is_dir() else path
    refuse_pointer(main, ConversionError)
    if not main.name.endswith(_INDEX):
        return Checkpoint(path, [main])
    try:
        weight_map = parsed(main.read_bytes())["weight_map"]
        files = [main.parent / Path(file).name for file in sorted(set(weight_map.values()))]
    except (Damaged, ValueError, KeyError, TypeError, AttributeError):
        raise ConversionError(f"{main} is no index of weights: expected JSON with a weight_map") from None
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ConversionError(f"{main} names {', '.join(missing) or 'no file'}, which is not beside it")
    found = Checkpoint(path, files)
    lost = [name for name in weight_map if name not in found.tensors]
    if lost:
        raise ConversionError(f"{main} names {lost[0]} in {weight_map[lost[0]]}, which does not hold it")
    return found


def _main_of(folder: Path) -> Path:
    for name in _MAIN:
        for candidate in (f"{name}{_INDEX}", name):
            if (folder / candidate).is_file():
                return folder / candidate
    single = [path for suffix in (".safetensors", ".ckpt", ".pdparams") for path in sorted(folder.glob(f"*{suffix}"))]
    if len(single) == 1:
        return single[0]
    raise ConversionError(
        f"{folder} holds {len(single)} files of weights: expected {', '.join(_MAIN)}, an index of them, or one file"
        if single
        else f"{folder} holds no weights: expected {', '.join(_MAIN)}, or an index of them"
    )


def _opened(path: Path) -> WeightFile:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise ConversionError(f"cannot tell the format of {path}: expected {', '.join(_READERS)} or a folder")
    refuse_pointer(path, ConversionError)
    with reading(path, kind=ConversionError):
        return reader(path)
