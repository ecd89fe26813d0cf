"""Converting weights from one framework to another: `probe.convert_weights` and ``probe convert``."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from probe.adapters.base import adapters_in_use
from probe.checkpoints import SUFFIXES, Checkpoint, Stored, open_checkpoint, write_checkpoint, written_whole
from probe.checkpoints.writing import write_file
from probe.conversion.name_mappings import has_name_mappings, planned_by_names
from probe.conversion.plan import Move, Part, Plan, both_structures, planned
from probe.conversion.structure import Structure, structure_of
from probe.defaults import FRAMEWORKS
from probe.errors import ConversionError
from probe.mapping import load_mapping
from probe.matching import Direction
from probe.numbers import fused
from probe.records import DirectionName, FrameworkName, WeightsDtypeName

Read = Callable[[str], np.ndarray]

_AS_PACONVERT = "names and sizes are those of paddle.compat.nn, which PaConvert writes: nothing is transposed"
_AS_PADDLE = (
    "weights lie as in paddle.nn; for a model of PaConvert's (paddle.compat.nn) give a recording of it too, with --like"
)

_COPIED = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
"""configuration and tokenizer files; not the indices of weights"""


def convert_weights(
    state: Mapping[str, Any], mapping: Any = None, *, to: FrameworkName, source: Any = None, like: Any = None,
    dtype: WeightsDtypeName | None = None, allow_missing: Iterable[str] = (), allow_extra: Iterable[str] = (),
    direction: DirectionName | None = None, config: Any = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return a state_dict as another framework has it, as numpy arrays (bfloat16 as ml_dtypes).

    Parameters
    ----------
    state
        tensors of any framework, or arrays, by name
    mapping
        layer mapping between the two models: a file, the name of one that comes with probe, a dict, None; or a class
        of PaddleNLP with ``_get_name_mappings``, or the list that this returns
    to
        ``torch``, ``paddle`` or ``mindspore``
    source, like
        the source's model and the target's, or recordings of them (``task="structure"`` is enough). One of them is
        enough as long as probe knows the counterparts of all classes that have weights to transpose; ``source`` may
        then be the name of the framework alone
    dtype
        that floating-point weights are to have: ``bfloat16``, ``float16``, ``float32``; None for what they have
    allow_missing, allow_extra
        names or globs of what the source need not have, of what the target need not take
    direction
        which side the mapping is written from, ``a-to-b`` or ``b-to-a``; found out when None
    config
        what ``_get_name_mappings`` is to be given

    Raises
    ------
    ConversionError
        a tensor is missing, extra or misshapen, or the classes of the modules are not known
    """
    read, stored, framework = _arrays(state)
    plan = plan_for(
        stored, mapping, to=to, source=framework if source is None else source, like=like, dtype=dtype, allow_missing=allow_missing,
        allow_extra=allow_extra, direction=direction, config=config,
    )  # fmt: skip
    check_tied(plan, read)
    return {move.target.name: made(move, read) for move in plan.moves}


def plan_for(
    stored: Mapping[str, Stored], mapping: Any = None, *, to: FrameworkName, source: Any = None, like: Any = None,
    dtype: WeightsDtypeName | None = None, allow_missing: Iterable[str] = (), allow_extra: Iterable[str] = (),
    direction: DirectionName | None = None, config: Any = None,
) -> Plan:  # fmt: skip
    """Return what `convert_weights` with the same arguments will do with tensors."""
    if to not in FRAMEWORKS:
        raise ConversionError(f"cannot convert to {to!r}: expected {', '.join(FRAMEWORKS)}")
    if dtype is not None and dtype not in get_args(WeightsDtypeName):
        raise ConversionError(
            f"cannot convert to the dtype {dtype!r}: expected {', '.join(get_args(WeightsDtypeName))}"
        )
    allowed = {"allow_missing": tuple(allow_missing), "allow_extra": tuple(allow_extra)}
    if has_name_mappings(mapping):
        return planned_by_names(stored, mapping, config, dtype=dtype, **allowed)
    is_named = isinstance(source, str) and source in ("", *FRAMEWORKS)
    here = None if is_named else _structure(source)
    there = _structure(like)
    if there is not None and there.framework != to:
        raise ConversionError(f"--like is a {there.framework} model, and the weights are to be converted to {to}")
    framework = here.framework if here else (source if is_named else "")
    if there is not None and not framework:
        raise ConversionError(
            "nothing tells which framework the weights come from: give its name, or a recording of the source's model, with "
            "--from"
        )
    layer_mapping = load_mapping(mapping)
    chosen = Direction(direction) if direction else None

    def plan(by_paconvert: bool) -> Plan:
        sides = both_structures(here, there, framework, to, layer_mapping, chosen, by_paconvert)
        return planned(stored, sides, dtype=dtype, **allowed)

    try:
        found = plan(by_paconvert=False)
    except ConversionError:
        if here is not None or framework != "paddle":
            raise
        with contextlib.suppress(ConversionError):  # the sizes and names may be those of torch's classes
            return replace(plan(by_paconvert=True), said=(_AS_PACONVERT,))
        raise
    is_laid = there is None and to == "paddle" and any("transpose" in move.action for move in found.moves)
    return replace(found, said=(*found.said, _AS_PADDLE)) if is_laid else found


def convert_checkpoint(
    source: str | Path, target: str | Path | None = None, mapping: Any = None, *, to: FrameworkName,
    progress: Callable[[int, int], None] = lambda done, total: None, **options: Any,
) -> tuple[Path, Plan]:  # fmt: skip
    """Convert files of weights, shard by shard; return where they are, and what was done.

    Parameters
    ----------
    source
        a file, an index, or a folder; of a folder, configuration and tokenizer are copied
    target
        a file when the source is one, or a folder that holds its weights in one and this is called as a file of weights is; else a
        folder; ``<source>-<to>`` when None
    to, options
        as for `convert_weights`; ``source`` is called ``model`` here
    """
    checkpoint = open_checkpoint(source)
    options["source"] = options.pop("model", None) or checkpoint.framework
    plan = plan_for(checkpoint.tensors, mapping, to=to, **options)
    check_tied(plan, checkpoint.read)
    whole = _keeping_last(checkpoint.read, {part.stored.name for move in plan.moves for part in move.parts if part.cut})
    goal = Path(target) if target is not None else _default_target(Path(source), checkpoint, to)
    is_folder = _becomes_folder(Path(source), goal, checkpoint)
    suffix = _suffix(goal, checkpoint, to, is_folder)
    moves = {move.target.name: move for move in plan.moves}
    done = 0

    def read(name: str) -> np.ndarray:
        nonlocal done
        done += 1
        progress(done, len(moves))
        return made(moves[name], whole)

    with written_whole(goal) as partial:
        if is_folder:
            partial.mkdir()
            write_checkpoint(partial, suffix, _shards(plan, checkpoint), read, to)
            _copy_others(checkpoint.files[0].parent, partial, options.get("dtype"))
        else:
            named = partial.with_name(partial.name + suffix)
            try:
                write_file(named, [move.target for move in plan.moves], read, to)
                named.rename(partial)
            finally:
                named.unlink(missing_ok=True)
    return goal, plan


def _keeping_last(read: Read, names: Container[str]) -> Read:
    """Return what reads tensors, and keeps the last of some: those of which several are cut out, one after another."""
    held: dict[str, np.ndarray] = {}

    def reading(name: str) -> np.ndarray:
        if name not in names:
            return read(name)
        if name not in held:
            held.clear()
            held[name] = read(name)
        return held[name]

    return reading


def made(move: Move, read: Read) -> np.ndarray:
    """Return the values of a tensor of the target."""
    if not move.parts:
        return np.zeros(move.target.shape, move.target.dtype)
    parts = [_canonical(part, read) for part in move.parts]
    length = len(parts) // move.rows
    rows = [parts[start : start + length] for start in range(0, len(parts), length)]
    is_one = len(parts) == 1 and not move.fusion.stacked and not move.fusion.reorders
    whole = parts[0] if is_one else fused.fuse(rows, move.fusion)
    whole = whole.reshape(move.canonical_shape)
    if len(move.axes) == whole.ndim:
        whole = whole.transpose(np.argsort(move.axes))
    return whole.reshape(move.target.shape).astype(move.target.dtype, copy=False)


def _canonical(part: Part, read: Read) -> np.ndarray:
    """Return the values of a part in the canonical layout."""
    array = read(part.stored.name)
    if len(part.axes) == array.ndim:
        array = array.transpose(part.axes)
    if part.cut is not None:
        return fused.split(array, part.cut.shapes, part.cut.fusion)[part.cut.row][part.cut.column]
    return np.split(array, part.count)[part.index] if part.count > 1 else array


def check_tied(plan: Plan, read: Read) -> None:
    """Raise `ConversionError` when what is one tensor in a model has two values in the source."""
    for first, other in plan.tied:
        if _canonical(first, read).tobytes() != _canonical(other, read).tobytes():
            raise ConversionError(
                f"{first.stored.name} and {other.stored.name} are one tensor in one of the models, but differ in the source"
            )


def _structure(given: Any) -> Structure | None:
    return given if given is None or isinstance(given, Structure) else structure_of(given)


def _arrays(state: Mapping[str, Any]) -> tuple[Read, dict[str, Stored], str]:
    """Return what reads a tensor of a state_dict, what is known of each, and the framework that they are of."""
    if not isinstance(state, Mapping):
        raise ConversionError(
            f"convert_weights takes a state_dict, tensors by name, and got {type(state).__name__}: files are converted by probe convert"
        )
    stored: dict[str, Stored] = {}
    arrays: dict[str, np.ndarray] = {}
    framework = ""
    adapters = adapters_in_use()
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            adapter = next((found for found in adapters if found.is_tensor(value)), None)
            if adapter is None:
                raise ConversionError(f"{name} is a {type(value).__name__}: expected a tensor or an array")
            arrays[name] = adapter.values(value)
            framework = adapter.framework
        stored[name] = Stored(name, arrays[name].dtype, arrays[name].shape)
    return arrays.__getitem__, stored, framework


def _default_target(source: Path, checkpoint: Checkpoint, to: str) -> Path:
    if len(checkpoint.files) > 1 or source.is_dir():
        folder = source.resolve() if source.is_dir() else source.resolve().parent
        return folder.with_name(f"{folder.name}-{to}")
    suffix = source.suffix if source.suffix == ".safetensors" else SUFFIXES[to]
    return source.with_name(f"{source.stem}-{to}{suffix}")


def _becomes_folder(source: Path, goal: Path, checkpoint: Checkpoint) -> bool:
    """Return True if a folder is written: for shards, and for a folder, unless the target is called as a file of weights is."""
    is_file = goal.suffix in SUFFIXES.values()
    if len(checkpoint.files) > 1 and is_file:
        raise ConversionError(
            f"{source} has its weights in {len(checkpoint.files)} files, and {goal} is the name of one: give a folder's"
        )
    return len(checkpoint.files) > 1 or (source.is_dir() and not is_file)


def _suffix(goal: Path, checkpoint: Checkpoint, to: str, is_folder: bool) -> str:
    """Return the format to write: that of safetensors stays, else the framework's own."""
    if is_folder:
        return checkpoint.suffix if checkpoint.suffix == ".safetensors" else SUFFIXES[to]
    if goal.suffix not in SUFFIXES.values():
        raise ConversionError(f"cannot tell the format of {goal}: expected {', '.join(SUFFIXES.values())}")
    return goal.suffix


def _shards(plan: Plan, checkpoint: Checkpoint) -> Sequence[Sequence[Stored]]:
    """Return the target's tensors by the file of the source that the first part of each lies in."""
    shards: list[list[Stored]] = [[] for _ in checkpoint.files]
    for move in plan.moves:
        number = checkpoint.shard_of[move.parts[0].stored.name] if move.parts else 0
        shards[number].append(move.target)
    return [shard for shard in shards if shard] or [[]]


def _copy_others(source: Path, target: Path, dtype: str | None) -> None:
    for path in sorted(source.iterdir()):
        if path.suffix not in _COPIED or path.name.endswith(".index.json") or not path.is_file():
            continue
        if path.name == "config.json":
            (target / path.name).write_text(_config(path, dtype), encoding="utf-8")
        else:
            shutil.copyfile(path, target / path.name)


def _config(path: Path, dtype: str | None) -> str:
    """Return a model's configuration, with ``torch_dtype`` as ``dtype``."""
    text = path.read_text(encoding="utf-8")
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConversionError(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        return text
    if "torch_dtype" in config:
        config = {"dtype" if key == "torch_dtype" else key: value for key, value in config.items()}
    if dtype is not None:
        config["dtype"] = dtype
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
