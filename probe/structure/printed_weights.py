"""What the text of a module in ``print(model)`` tells about its parameters: their names and shapes.

Only what the text really says is taken: ``Linear(in_features=3, out_features=4, bias=True)`` has a weight [4, 3] and a bias
[4], ``RMSNorm()`` has a weight of which nothing is known. PaddlePaddle's Linear does not say whether it has a bias,
``paddle.compat.nn.Linear`` does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

Shape = tuple[int, ...]

_STATED = re.compile(r"Parameter ?\(name=(?:[^ ,]*\.)?(?P<slot>\w+), shape=(?P<shape>\([\d, ]*\)), dtype=(?P<dtype>\w+), "
                     r"requires_grad=(?P<grad>\w+)\)")  # fmt: skip
_ARGUMENT = re.compile(r"(?:(?P<name>\w+) ?= ?)?(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter or buffer of a module."""

    name: str
    shape: Shape
    dtype: str = "float32"
    is_buffer: bool = False


class Arguments:
    """The text between the brackets behind a class: values by place and by name."""

    def __init__(self, text: str) -> None:
        self.by_place: list[object] = []
        self.by_name: dict[str, object] = {}
        for part in _parts(text):
            found = _ARGUMENT.fullmatch(part.strip())
            if found is None or not part.strip():
                continue
            if found["name"]:
                self.by_name[found["name"]] = _value(found["value"])
            else:
                self.by_place.append(_value(found["value"]))

    def number(self, place: int, *names: str) -> int | None:
        """Return a size that is given by place or by one of these names."""
        found = self.any(place, *names)
        return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None

    def shape(self, place: int, *names: str) -> Shape | None:
        """Return a shape, or a single size as one."""
        found = self.any(place, *names)
        if isinstance(found, (tuple, list)) and all(isinstance(size, int) and size >= 0 for size in found):
            return tuple(found)
        number = self.number(place, *names)
        return None if number is None else (number,)

    def any(self, place: int, *names: str) -> object:
        """Return what is given by place or by one of these names, or None."""
        for name in names:
            if name in self.by_name:
                return self.by_name[name]
        return self.by_place[place] if 0 <= place < len(self.by_place) else None

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch."""
        found = self.by_name.get(name, default)
        return found if isinstance(found, bool) else default


def kind_of(framework: str, class_name: str, text: str) -> str:
    """Return a class as `probe.numbers.layouts.layout_of` takes it."""
    is_like_torch = framework == "paddle" and class_name == "Linear" and "bias" in Arguments(text).by_name
    return f"paddle.compat.nn.{class_name}" if is_like_torch else class_name


def slots_of(framework: str, class_name: str, text: str) -> list[Slot]:
    """Return the parameters and buffers that the text of a module tells.

    Parameters
    ----------
    framework
        ``torch``, ``paddle`` or ``mindspore``: whose print it is
    class_name
        its class
    text
        what stands between the brackets behind it
    """
    arguments = Arguments(text)
    stated = [
        Slot(found["slot"], ast.literal_eval(found["shape"]), found["dtype"].lower(), found["grad"] == "False")
        for found in _STATED.finditer(text)
    ]
    if stated:
        return stated
    for kind, slots in _KINDS[framework]:
        if re.search(kind, class_name):
            return slots(arguments)
    names = arguments.by_name
    return _linear(framework)(arguments) if {"in_features", "out_features"} <= names.keys() else []


def _parts(text: str) -> list[str]:
    """Split at commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _slots(bias: bool, *named: tuple[str, Shape | None]) -> list[Slot]:
    return [Slot(name, shape) for name, shape in named if shape is not None and (bias or name not in ("bias", "beta"))]


def _linear(framework: str) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        rows, columns = a.number(1, "out_features", "out_channels"), a.number(0, "in_features", "in_channels")
        if framework == "mindspore":
            rows, columns = a.number(1, "output_channels"), a.number(0, "input_channels")
        if not rows or not columns or a.by_name.get("TP", 1) != 1:
            return []
        if framework == "paddle" and "bias" not in a.by_name:
            return [Slot("weight", (columns, rows))]
        bias = a.flag("bias", False) or a.flag("has_bias", False)
        return _slots(bias, ("weight", (rows, columns)), ("bias", (rows,)))

    return slots


def _conv1d_of_transformers(a: Arguments) -> list[Slot]:
    rows, columns = a.number(0, "nf"), a.number(1, "nx")
    return _slots(True, ("weight", (columns, rows)), ("bias", (rows,))) if rows and columns else []


def _embedding(slot: str) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        rows, columns = a.number(0, "num_embeddings", "vocab_size"), a.number(1, "embedding_dim", "embedding_size")
        return [Slot(slot, (rows, columns))] if rows and columns else []

    return slots


def _conv(transposed: bool, bias_name: str, has_bias: bool | None) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        inner, outer = a.number(0, "input_channels", "in_channels"), a.number(1, "output_channels", "out_channels")
        kernel = a.shape(2, "kernel_size")
        groups = a.number(-1, "groups", "group") or 1
        if not inner or not outer or kernel is None:
            return []
        sizes = (inner, outer // groups) if transposed else (outer, inner // groups)
        bias = has_bias is not None and a.flag(bias_name, has_bias)
        return _slots(bias, ("weight", (*sizes, *kernel)), ("bias", (outer,)))

    return slots


def _norm(has_bias: bool, names: tuple[str, str] = ("weight", "bias")) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        shape = a.shape(0, "normalized_shape", "hidden_size")
        if shape is None or 0 in shape or not a.flag("elementwise_affine", True):
            return []
        bias = has_bias and a.flag("bias", True)
        return _slots(bias, (names[0], shape), (names[1], shape))

    return slots


def _group_norm(a: Arguments) -> list[Slot]:
    channels = a.number(1, "num_channels")
    is_affine = a.flag("affine", True) and channels
    return _slots(a.flag("bias", True), ("weight", (channels,)), ("bias", (channels,))) if is_affine else []


def _batch_norm(affine: bool, mean: str, variance: str, counts: bool) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        size = a.number(0, "num_features")
        if size is None:
            return []
        found = []
        if a.flag("affine", affine):
            found = _slots(a.flag("bias", True), ("weight", (size,)), ("bias", (size,)))
        if a.flag("track_running_stats", affine):
            found += [Slot(name, (size,), is_buffer=True) for name in (mean, variance)]
            found += [Slot("num_batches_tracked", (), "int64", is_buffer=True)] if counts else []
        return found

    return slots


def _recurrent(gates: int) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        inner, hidden = a.number(0, "input_size"), a.number(1, "hidden_size")
        if not inner or not hidden or "proj_size" in a.by_name:
            return []
        directions = ["", "_reverse"][: 1 + a.flag("bidirectional", False)]
        found = []
        for layer in range(a.number(-1, "num_layers") or 1):
            width = inner if layer == 0 else hidden * len(directions)
            for end in (f"_l{layer}{direction}" for direction in directions):
                found += _cell(gates, width, hidden, a.flag("bias", True), end)
        return found

    return slots


def _recurrent_cell(gates: int) -> Callable[[Arguments], list[Slot]]:
    def slots(a: Arguments) -> list[Slot]:
        inner, hidden = a.number(0, "input_size"), a.number(1, "hidden_size")
        return _cell(gates, inner, hidden, a.flag("bias", True), "") if inner and hidden else []

    return slots


def _cell(gates: int, inner: int, hidden: int, bias: bool, end: str) -> list[Slot]:
    rows = gates * hidden
    found = [Slot(f"weight_ih{end}", (rows, inner)), Slot(f"weight_hh{end}", (rows, hidden))]
    return found + [Slot(f"bias_{which}{end}", (rows,)) for which in ("ih", "hh") if bias]


_RECURRENT = (
    (r"LSTM$", _recurrent(4)), (r"GRU$", _recurrent(3)), (r"^(Simple)?RNN$", _recurrent(1)),
    (r"LSTMCell$", _recurrent_cell(4)), (r"GRUCell$", _recurrent_cell(3)), (r"RNNCell$", _recurrent_cell(1)),
)  # fmt: skip
_KINDS: dict[str, tuple[tuple[str, Callable[[Arguments], list[Slot]]], ...]] = {
    "torch": (
        (r"^Conv1D$", _conv1d_of_transformers),
        (r"Embedding(Bag)?$", _embedding("weight")),
        (r"^(Lazy)?ConvTranspose\dd$", _conv(True, "bias", True)),
        (r"^(Lazy)?Conv\dd$", _conv(False, "bias", True)),
        (r"RMSNorm$", _norm(False)),
        (r"LayerNorm(2d)?$", _norm(True)),
        (r"GroupNorm$", _group_norm),
        (r"(Batch|SyncBatch)Norm(\dd)?$", _batch_norm(True, "running_mean", "running_var", True)),
        (r"InstanceNorm\dd$", _batch_norm(False, "running_mean", "running_var", True)),
        *_RECURRENT,
    ),
    "paddle": (
        (r"Embedding$", _embedding("weight")),
        (r"^Conv\dDTranspose$", _conv(True, "bias", None)),
        (r"^Conv\dD$", _conv(False, "bias", None)),
        (r"LayerNorm$", _norm(True)),
        (r"BatchNorm(\dD)?$", _batch_norm(True, "_mean", "_variance", False)),
        *_RECURRENT,
    ),
    "mindspore": (
        (r"^Dense$", _linear("mindspore")),
        (r"Embedding$", _embedding("embedding_table")),
        (r"^Conv\dd$", _conv(False, "has_bias", False)),
    ),
}  # fmt: skip
"""by the framework: what a class is called, and what its text says; the first that fits counts"""
