"""Arrays held against each other; two models in one process: outputs, then loss and gradients of steps of SGD."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probe.errors import ConfigError
from probe.numbers.layouts import class_names, layout_of

_METHODS = ("min", "max", "mean")

Info = Mapping[Any, Any]
"""arrays by name, or further mappings"""


class Difference(dict[str, Any]):
    """The ``mean``, ``max`` and ``min`` of the absolute differences of two arrays; NaN where there are none, and why."""

    def __init__(self, why: str = "") -> None:
        super().__init__(mean=math.nan, max=math.nan, min=math.nan)
        self.why = why


def check_print_diff(
    diff_dict: Info, diff_method: str | Sequence[str] = "mean", diff_threshold: float = 1e-6,
    print_func: Callable[[str], object] = print, indent: str = "\t", level: int = 0,
) -> bool:  # fmt: skip
    """Print the differences of each array; return True if there are some, and all are within the threshold. NaN is not.

    Raises ConfigError where the method is none.
    """
    methods = [diff_method] if isinstance(diff_method, str) else list(diff_method)
    methods = list(_METHODS) if methods == ["all"] else methods
    if not methods or any(method not in _METHODS for method in methods):
        raise ConfigError(f"diff_method={diff_method!r} is not known; expected {', '.join(_METHODS)} or all")
    passed, tabs = bool(diff_dict), indent * level
    for key, diff in diff_dict.items():
        if set(diff) != set(_METHODS) or any(isinstance(each, Mapping) for each in diff.values()):
            print_func(f"{tabs}{key}")
            passed &= check_print_diff(diff, methods, diff_threshold, print_func, indent, level + 1)
            continue
        print_func(f"{tabs}{key}: ")
        if why := getattr(diff, "why", ""):
            print_func(f"{tabs}{indent}{why}")
        for method in methods:
            is_within = bool(diff[method] <= diff_threshold)
            print_func(f"{tabs}{indent}{method} diff: check passed: {is_within}, value: {diff[method]}")
            passed &= is_within
    return passed


def check_data(data1: Info, data2: Info, place: str = "") -> None:
    """Raise ConfigError where a name is on one side only."""
    alone = [f"{place}{key}" for key in {**data1, **data2} if key not in data1 or key not in data2]
    if alone:
        raise ConfigError(f"on one side only: {', '.join(alone)}; both programs add arrays of the same names")


def compute_diff(data1: Info, data2: Info, place: str = "") -> dict[Any, Any]:
    """Return ``mean``, ``max`` and ``min`` of the absolute differences of arrays of the same names.

    Raises ConfigError where a name is on one side only, or a value is no array.
    """
    check_data(data1, data2, place)
    found: dict[Any, Any] = {}
    for key in data1:
        both = data1[key], data2[key]
        if all(isinstance(each, Mapping) for each in both):
            found[key] = compute_diff(*both, f"{place}{key}.")
        elif all(isinstance(each, np.ndarray) for each in both):
            found[key] = _difference(*both)
        else:
            kinds = " and ".join(type(each).__name__ for each in both)
            raise ConfigError(f"{place}{key}: expected numpy arrays, got {kinds}")
    return found


def _difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Return the difference of two arrays, in the dtype that numpy gives it where that is right."""
    shapes, found = f"shapes {a.shape} and {b.shape}", Difference()
    if a.shape != b.shape and a.squeeze().shape == b.squeeze().shape:
        if max(a.ndim, b.ndim) > 1:  # a loss, () in PyTorch and (1,) in older PaddlePaddle, is one number
            found.why = f"{shapes}: axes of size 1 left out"
        b = b.reshape(a.shape)
    if a.shape != b.shape or not a.size:
        turned = ", one is the other transposed" if a.size and a.shape[::-1] == b.shape else ""
        return Difference(f"{shapes}{turned}: not compared")
    apart = _apart(a, b)
    if count := int(np.isnan(apart).sum()):
        found.why = f"NaN in {count} of {apart.size} places"
    found |= {"mean": apart.mean(), "max": apart.max(), "min": apart.min()}
    return found


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the absolute differences; integers do not wrap around, and what is infinite on both sides is equal."""
    kinds, wide = {a.dtype.kind, b.dtype.kind}, np.dtype(np.float64)
    if kinds <= set("bfciu") and kinds != {"b"}:  # numpy has no difference of bool; bfloat16 adds up in 8 bits
        wide = np.result_type(a, b)
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        if wide.kind in "iu":
            return np.where(a > b, a - b, b - a).view(f"u{wide.itemsize}")
        apart = np.asarray(np.abs(a - b))
    apart[np.isinf(a) & (a == b)] = 0
    return apart


def compare_forward(
    torch_model: Any, paddle_model: Any, input_dict: Mapping[str, Any], diff_threshold: float = 1e-6,
    diff_method: str | Sequence[str] = "mean",
) -> bool:  # fmt: skip
    """Print how far apart the outputs of two models in evaluation mode are, and return whether they pass.

    ``input_dict`` has arguments by name. Raises ConfigError where the outputs have other names.
    """
    torch_input, paddle_input = _inputs(torch_model, paddle_model, input_dict)
    theirs, ours = _arrays(torch_model(**torch_input)), _arrays(paddle_model(**paddle_input))
    return _passes(theirs, ours, diff_threshold, diff_method, "")


def _inputs(torch_model: Any, paddle_model: Any, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Set both models to evaluation mode; yield their inputs, arrays in their dtypes."""
    torch_model.eval()
    paddle_model.eval()
    for make in (sys.modules["torch"].tensor, sys.modules["paddle"].to_tensor):
        yield {name: make(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}


def _arrays(data: Any) -> dict[str, np.ndarray]:
    """Return copies of what a model returns as arrays by name: ``output`` of one tensor, ``output_0`` … of several."""
    if isinstance(data, (list, tuple)):
        data = {f"output_{at}": value for at, value in enumerate(data)}
    named, found = data if isinstance(data, Mapping) else {"output": data}, {}
    for name, value in named.items():
        value = value.detach().cpu()
        if str(value.dtype).endswith("bfloat16"):  # which numpy does not have
            value = value.astype("float32") if hasattr(value, "astype") else value.float()
        found[name] = np.array(value)  # numpy() may share them with a tensor that is written to later
    return found


def _passes(a: Info, b: Info, most: float, method: str | Sequence[str], when: str) -> bool:
    passed = check_print_diff(compute_diff(a, b), method, most)
    print(f"diff check {'passed' if passed else 'failed'}{when}")
    return passed


def compare_loss_and_backward(
    torch_model: Any, paddle_model: Any, torch_loss: Any, paddle_loss: Any, input_dict: Mapping[str, Any],
    lr: float = 1e-3, steps: int = 10, diff_threshold: float = 1e-6, diff_method: str | Sequence[str] = "mean",
) -> bool:  # fmt: skip
    """Train two models with SGD; print how far apart loss and gradients are, step by step, up to one that fails.

    A loss is called with the inputs and outputs of its model, and gives a dict with a ``loss``. Gradients lie as
    PyTorch's: that of a Linear of PaddlePaddle is transposed, also a square one. Raises ConfigError as `compute_diff`.
    """
    torch_input, paddle_input = _inputs(torch_model, paddle_model, input_dict)
    theirs = sys.modules["torch"].optim.SGD(torch_model.parameters(), lr=lr)
    ours = sys.modules["paddle"].optimizer.SGD(learning_rate=lr, parameters=paddle_model.parameters())
    for step in range(steps):
        loss = paddle_loss(paddle_input, paddle_model(**paddle_input))["loss"]
        loss.backward()
        ours.step()
        of_paddle = _arrays({"loss": loss}) | _gradients("paddle", paddle_model.named_sublayers(include_self=True))
        ours.clear_grad()
        loss = torch_loss(torch_input, torch_model(**torch_input))["loss"]
        loss.backward()
        theirs.step()
        of_torch = _arrays({"loss": loss}) | _gradients("torch", torch_model.named_modules())
        theirs.zero_grad()
        if not _passes(of_paddle, of_torch, diff_threshold, diff_method, f" in iter {step}"):
            return False
    print("diff check passed")
    return True


def _gradients(framework: str, modules: Any) -> dict[str, np.ndarray]:
    """Return the gradients of parameters by name, with their axes in PyTorch's order."""
    found, known = {}, set[int]()
    for path, module in modules:
        for slot, parameter in module._parameters.items():
            if parameter is not None and parameter.grad is not None and id(parameter) not in known:
                known.add(id(parameter))
                value = _arrays(parameter.grad)["output"]
                axes = layout_of(framework, class_names(type(module)), slot).axes
                if len(axes) == value.ndim > 1:
                    print("transpose sub_data1")  # as reprod_log says it
                    value = value.transpose(axes)
                found[f"{path}.{slot}".lstrip(".")] = value
    return found
