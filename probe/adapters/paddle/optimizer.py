"""What PaddlePaddle's optimizers use and do.

There are no hooks on optimizers, so three methods are wrapped, for all classes, as long as a recording runs: ``step``,
``_apply_optimize``, which also ``minimize`` calls, and ``append_regularization_ops``, which ``_apply_optimize`` calls with
the gradients when they have been clipped and weight decay has not been added.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle
from paddle.optimizer import Optimizer

from probe.adapters.base import AfterUpdate, BeforeUpdate, Group, plain_option

_METHODS = ("step", "_apply_optimize", "append_regularization_ops")
_HYPER = {"momentum": "_momentum", "nesterov": "_use_nesterov", "eps": "_epsilon", "rho": "_rho", "centered": "_centered",
          "amsgrad": "_amsgrad", "initial_accumulator_value": "_initial_accumulator_value",
          "multi_precision": "_multi_precision", "rescale_grad": "_rescale_grad"}  # fmt: skip
"""attributes of optimizers, by what torch calls such a thing"""
_CLOSURE = "the optimizer computes its gradients in a closure"


def inner(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of distributed training."""
    while not isinstance(optimizer, Optimizer) and hasattr(optimizer, "_inner_opt"):
        optimizer = optimizer._inner_opt
    return optimizer


class Updates:
    """The steps of optimizers that are being made, told to a recorder."""

    def __init__(self, optimizer: Any, before: BeforeUpdate, after: AfterUpdate) -> None:
        self._only = None if optimizer is None else weakref.ref(inner(optimizer))
        self._before, self._after = before, after
        self._used: dict[int, Any] = {}
        self._depth = 0
        self._groups: list[Group] = []
        self._wrapped: list[tuple[type, str, Any]] = []
        try:
            for owner in _classes(Optimizer):
                for name in _METHODS:
                    if name in vars(owner):
                        self._wrap(owner, name)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take the wrappers off."""
        while self._wrapped:
            owner, name, original = self._wrapped.pop()
            if getattr(vars(owner).get(name), "_probe_updates", None) is self:
                setattr(owner, name, original)

    def used(self, parameter: Any) -> Any:
        """Return the gradient that the update under way uses; None where there is none, or no update."""
        return self._used.get(id(parameter))

    def _wrap(self, owner: type, name: str) -> None:
        original = vars(owner)[name]
        around = {"step": self._step, "_apply_optimize": self._part, "append_regularization_ops": self._ready}[name]

        @functools.wraps(original)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._only is not None and self._only() is not optimizer:
                return original(optimizer, *args, **kwargs)
            return around(original, optimizer, args, kwargs)

        wrapper._probe_updates = self  # type: ignore[attr-defined]
        self._wrapped.append((owner, name, original))
        setattr(owner, name, wrapper)

    def _step(self, original: Callable[..., Any], optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = any(callable(value) for value in (*args, *kwargs.values()))
        if closure and not self._depth:
            self._groups = _known_groups(optimizer)
            self._before(self._groups, _CLOSURE)
        return self._whole(original, optimizer, args, kwargs)

    def _part(self, original: Callable[..., Any], optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._whole(original, optimizer, args, kwargs)
        finally:
            self._used = {}

    def _whole(
        self, original: Callable[..., Any], optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what may be inside a step already; when the outermost has ended, tell."""
        self._depth += 1
        try:
            result = original(optimizer, *args, **kwargs)
        except BaseException:
            self._groups = []
            raise
        finally:
            self._depth -= 1
        if not self._depth:
            groups, self._groups = self._groups, []
            if groups:
                self._after(groups)
        return result

    def _ready(
        self, original: Callable[..., Any], optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        pairs = args[0] if args else kwargs.get("parameters_and_grads", ())
        self._tell(optimizer, pairs)
        return original(optimizer, *args, **kwargs)

    def _tell(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._used, why_not = {}, ""
        try:
            if not isinstance(pairs, (list, tuple)):  # it may be possible to go through it but once
                raise TypeError(f"a {type(pairs).__name__}")
            self._used = {id(parameter): gradient for parameter, gradient in pairs}
        except Exception as error:  # noqa: BLE001  an optimizer of the user's; nothing may get out of here
            why_not = f"{type(optimizer).__name__} passes them on in a form of its own ({error!r})"
        groups = [
            group
            for group in _known_groups(optimizer)
            if why_not or any(id(parameter) in self._used for parameter in group.parameters)
        ]
        self._groups += groups
        self._before(groups, why_not)


def _classes(base: type) -> Iterator[type]:
    met = set()
    left = [base]
    while left:
        each = left.pop()
        if each not in met:
            met.add(each)
            yield each
            left += each.__subclasses__()


def _known_groups(optimizer: Any) -> list[Group]:
    """Return an optimizer's groups; where its settings cannot be read, one that says so. It never raises."""
    try:
        return groups_of(optimizer)
    except Exception as error:  # noqa: BLE001  an optimizer or a function of the user's; the training must go on
        entries = getattr(optimizer, "_parameter_list", None) or []
        parameters = [p for each in entries for p in (each["params"] if isinstance(each, dict) else [each])]
        hyper: dict[str, object] = {"not_recorded": f"the settings could not be read: {error!r}"}
        return [Group(optimizer, type(optimizer).__name__, 0, hyper, parameters)]


def groups_of(optimizer: Any) -> list[Group]:
    """Return an optimizer's groups, parted further by what each parameter's learning rate and decay really are."""
    given = (
        optimizer._param_groups if optimizer._param_groups and isinstance(optimizer._param_groups[0], dict) else None
    )
    found: list[Group] = []
    for options in given or [{"params": optimizer._parameter_list or []}]:
        parts: dict[tuple[object, ...], Group] = {}
        for parameter in options["params"]:
            if parameter.stop_gradient:  # the optimizer passes it over; running statistics are among them
                continue
            rate, decay, kind = _rate(optimizer, parameter), *_decay(optimizer, options, parameter)
            group = parts.get((rate, decay, kind))
            if group is None:
                hyper = {"lr": rate, "weight_decay": decay, **({"weight_decay_kind": kind} if kind else {}),
                         **_hyper(optimizer, options)}  # fmt: skip
                group = Group(optimizer, type(optimizer).__name__, len(found) + len(parts), hyper, [])
                parts[rate, decay, kind] = group
            group.parameters.append(parameter)
        found += parts.values()
    return found


def _rate(optimizer: Any, parameter: Any) -> float:
    if isinstance(optimizer, paddle.optimizer.LBFGS):  # it has another one beside that of all optimizers
        return float(optimizer.learning_rate)
    rate = float(optimizer.get_lr())
    multiplier = (getattr(parameter, "optimize_attr", None) or {}).get("learning_rate", 1.0)
    rate *= float(multiplier)
    ratio = getattr(optimizer, "_lr_ratio", None)
    return rate * float(ratio(parameter)) if ratio is not None else rate


def _decay(optimizer: Any, options: dict[str, Any], parameter: Any) -> tuple[float, str]:
    """Return the weight decay of a parameter, and its kind if that is not L2; a parameter's own goes before all others."""
    if isinstance(optimizer, paddle.optimizer.AdamW):
        applies = optimizer._apply_decay_param_fun
        decays = applies is None or applies(parameter.name)
        return (float(_number(options.get("weight_decay", optimizer._weight_decay))) if decays else 0.0), ""
    regularizer = getattr(parameter, "regularizer", None)
    if regularizer is None and getattr(optimizer, "_regularization_method", ""):  # Momentum decays in its kernel
        return float(optimizer._regularization_coeff), ""
    regularizer = regularizer or optimizer.regularization
    if regularizer is None:
        return 0.0, ""
    return float(regularizer._coeff), "" if isinstance(regularizer, paddle.regularizer.L2Decay) else type(
        regularizer
    ).__name__


def _hyper(optimizer: Any, options: dict[str, Any]) -> dict[str, object]:
    values = {
        name: getattr(optimizer, attribute) for name, attribute in _HYPER.items() if hasattr(optimizer, attribute)
    }
    if isinstance(optimizer, paddle.optimizer.RMSProp):
        values["alpha"] = values.pop("rho")
    values |= {name: options[other] for name, other in (("eps", "epsilon"), ("rho", "rho")) if other in options}
    if hasattr(optimizer, "_beta1"):
        betas = [options.get(name, getattr(optimizer, f"_{name}")) for name in ("beta1", "beta2")]
        values["betas"] = [_number(beta) for beta in betas]
    clip = options.get("grad_clip", optimizer._grad_clip)
    if clip is not None:
        values["grad_clip"] = str(clip)
    return {name: _plain(value) for name, value in values.items()}


def _number(value: Any) -> Any:
    return float(value.numpy().reshape(-1)[0]) if isinstance(value, paddle.Tensor) else value


def _plain(value: object) -> object:
    if isinstance(value, paddle.Tensor):
        return _number(value) if value.size == 1 else f"tensor{tuple(value.shape)}"
    return value if isinstance(value, list) else plain_option(value)


def state_of(optimizer: Any, parameter: Any) -> dict[str, Any]:
    """Return the tensors that an optimizer keeps for a parameter, under its own names for them."""
    master = getattr(optimizer, "_master_weights", {}).get(parameter.name)
    owners = [parameter.name] if master is None else [parameter.name, master.name]
    prefix = "" if optimizer._name is None else f"{optimizer._name}_"
    found = {} if master is None else {"master_weight": master}
    for key, tensors in optimizer._accumulators.items():
        for owner in owners:
            if owner in tensors:
                found[key.removeprefix(prefix)] = tensors[owner]
    return found
