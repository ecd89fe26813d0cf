"""Writing a checkpoint: under another name first, so that it is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from probe.checkpoints import ckpt, pdparams, safetensors
from probe.checkpoints.stored import Stored
from probe.errors import ConversionError

SUFFIXES = {"torch": ".safetensors", "paddle": ".pdparams", "mindspore": ".ckpt"}
"""the format that each framework's users expect"""
_WRITERS = {".safetensors": safetensors.write, ".pdparams": pdparams.write, ".ckpt": ckpt.write}
_STEMS = {".safetensors": "model", ".pdparams": "model_state", ".ckpt": "model"}

Shard = Sequence[Stored]
"""what one file holds, in its order"""


@contextlib.contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give a path beside the target; what stands there in the end is renamed to it. The target must not exist.

    Whatever happens in between, the target is there as a whole or not at all. A process that is killed leaves the other
    behind: ``.<name>.<number>.partial``.
    """
    if target.exists():
        raise ConversionError(f"{target} exists already: give another place with -o, or remove it")
    if not target.parent.is_dir():
        raise ConversionError(f"there is no folder {target.parent}")
    partial = target.parent / f".{target.name}.{os.getpid()}.partial"
    try:
        yield partial
        if target.exists():
            raise ConversionError(f"{target} was made by somebody else meanwhile: give another place with -o")
        partial.rename(target)
    except OSError as error:
        raise ConversionError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def write_checkpoint(
    folder: Path, suffix: str, shards: Sequence[Shard], read: Callable[[str], np.ndarray], framework: str
) -> None:
    """Write files of weights into a folder, and an index where they are several.

    The suffix is ``.safetensors``, ``.pdparams`` or ``.ckpt``. ``read`` gives the values of a tensor; it is called
    once for each, when its turn has come.
    """
    stem = _STEMS[suffix]
    if len(shards) == 1:
        write_file(folder / f"{stem}{suffix}", shards[0], read, framework)
        return
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"{stem}-{number:05d}-of-{len(shards):05d}{suffix}"
        write_file(folder / name, shard, read, framework)
        weight_map.update((stored.name, name) for stored in shard)
        total += sum(stored.nbytes for stored in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_file(path: Path, shard: Shard, read: Callable[[str], np.ndarray], framework: str) -> None:
    """Write one file of weights in the format that its name says."""
    _WRITERS[path.suffix](path, shard, (read(stored.name) for stored in shard), framework)
