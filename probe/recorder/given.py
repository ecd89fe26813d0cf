"""Numbers and gradients as the user hands them over in ``probe.step()`` and ``probe.log()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.errors import ConfigError
from probe.recorder.run import Run

_NAMED = 5
"""names in one message"""


def as_number(value: Any) -> float:
    """Return a number, or the element of a tensor that has one; raises whatever the value raises where it is none."""
    item = getattr(value, "item", None)
    return float(item() if callable(item) else value)


def why_no_number(name: str, value: object, error: Exception) -> str:
    """Say what was expected of a value that `as_number` did not take."""
    expected = f"expected a number or a tensor with one element, got {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"{expected}; give each by its name: probe.step(**{name})"
    return f"{expected} ({error}); tensors are recorded by probe.log(name, tensor)"


def gradients_by_index(run: Run, grads: object) -> dict[int, Any]:
    """Return gradients by the indices of their parameters.

    They are tensors (or None), one for each parameter of the run's models that is trained, in the model's order, or
    by the parameters' names. Raises ConfigError where they are no such thing, their number or a name is wrong, or one
    is no tensor of its parameter's shape.
    """
    if isinstance(grads, Mapping):
        given = _by_name(run, grads)
    elif isinstance(grads, (list, tuple)):
        given = _in_order(run, grads)
    else:
        raise ConfigError(f"grads: expected a list, tuple or dict of tensors, got {type(grads).__name__}")
    found = {index: gradient for index, gradient in given.items() if gradient is not None}
    for index, gradient in found.items():
        _check(run, index, gradient)
    return found


def _by_name(run: Run, grads: Mapping[Any, Any]) -> dict[int, Any]:
    index_of = {name: index for index, info in enumerate(run.parameters) for name in info.names}
    unknown = [name for name in grads if name not in index_of]
    if unknown:
        raise ConfigError(f"grads: no parameter is named {unknown[0]!r}; expected names such as {_names(run)}")
    return {index_of[name]: gradient for name, gradient in grads.items()}


def _in_order(run: Run, grads: list[Any] | tuple[Any, ...]) -> dict[int, Any]:
    trained = _trained(run)
    if len(grads) != len(trained):
        raise ConfigError(
            f"grads: {len(grads)} gradients for {len(trained)} parameters that are trained ({_names(run)}); "
            "give one for each, in the model's order, or a dict by their names"
        )
    return dict(zip(trained, grads, strict=True))


def _check(run: Run, index: int, gradient: Any) -> None:
    info = run.parameters[index]
    name = info.names[0]
    if not run.adapter.is_tensor(gradient):
        what = run.adapter.unreadable(gradient) or f"a {type(gradient).__name__}"
        raise ConfigError(f"grads: for {name} got {what}; expected a tensor of {run.adapter.framework}, or None")
    shape = tuple(run.adapter.facts(gradient).shape)
    if shape != tuple(info.shape):
        raise ConfigError(f"grads: the gradient of {name} has shape {shape}; the parameter has {tuple(info.shape)}")


def _trained(run: Run) -> list[int]:
    return [
        index
        for index, named in enumerate(run.tensors)
        if not named.is_buffer and run.adapter.requires_grad(named.tensor)
    ]


def _names(run: Run) -> str:
    names = [run.parameters[index].names[0] for index in _trained(run)]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
