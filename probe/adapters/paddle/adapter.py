"""PaddlePaddle: layers, hooks, gradients, optimizers, in dynamic graph mode. Tested against 3.3; facts in ``tests/paddle``."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import paddle
from paddle.base.dygraph.base import in_sot_simulation_mode, in_to_static_mode
from paddle.nn import Layer
from paddle.nn.layer.layers import HookRemoveHelper

from probe.adapters import base
from probe.adapters.base import Adapter, CallContext, NamedModule, NamedTensor, TensorFacts
from probe.adapters.paddle.backward import Backwards, is_running, set_hook
from probe.adapters.paddle.environment import environment
from probe.adapters.paddle.functions import patches
from probe.adapters.paddle.keeping import kept, kept_optimizer
from probe.adapters.paddle.optimizer import Optimizer, Updates, groups_of, inner, state_of
from probe.adapters.paddle.parallel import parallel
from probe.adapters.paddle.statistics import MEASURING, array_of, copy_of, is_on_cpu, name_of
from probe.adapters.shared import memory
from probe.adapters.shared.functions import Patches
from probe.adapters.shared.hooking import CallHook, all_or_none, concealed, nothing, with_own_numbers
from probe.numbers.layouts import class_names, layout_of
from probe.numbers.statistics import dtype_of

_STATISTICS_OF = {"_BatchNormBase": ("_mean", "_variance"), "BatchNorm": ("_mean", "_variance"),
                  "SpectralNorm": ("weight_u", "weight_v")}  # fmt: skip
"""what stands among the parameters of a class and is none: nobody trains it"""


class PaddleAdapter(Adapter):
    """The verbs of `probe.adapters.base.Adapter` for ``paddle.nn.Layer``."""

    framework = "paddle"
    version = str(paddle.__version__)
    limits = (
        "PaddlePaddle does not tell what one call contributes to the gradient of its input: what is recorded is the "
        "total (grad_total), of all that use the tensor",
    )

    def __init__(self) -> None:
        self._backwards: Backwards | None = None
        self._updates: Updates | None = None
        self._patches: Patches | None = None
        self._compiled: weakref.WeakSet[Layer] = weakref.WeakSet()

    # Models

    def classes(self) -> tuple[type, tuple[type, ...]]:
        return Layer, (Optimizer,)

    def inside(self, module: Layer) -> Layer | None:
        return module._layers if isinstance(module, paddle.DataParallel) else None

    def modules(self, model: Layer) -> Iterable[NamedModule]:
        for path, layer in model.named_sublayers(include_self=True):
            if _is_compiled(layer):
                self._compiled.update(layer.sublayers())
            yield NamedModule(path, layer, next(layer.children(), None) is None)

    def parameters(self, model: Layer) -> Iterable[NamedTensor]:
        found: dict[int, tuple[list[str], Any, Layer, bool]] = {}
        for path, layer in model.named_sublayers(include_self=True, remove_duplicate=False):
            for slot, tensor, is_buffer in _own_tensors(layer):
                name = f"{path}.{slot}" if path else slot
                found.setdefault(id(tensor), ([], tensor, layer, is_buffer))[0].append(name)
        for wanted in (False, True):
            for names, tensor, layer, is_buffer in found.values():
                if is_buffer is wanted:
                    layout = layout_of("paddle", class_names(type(layer)), names[0].rpartition(".")[2])
                    yield NamedTensor(tuple(names), tensor, is_buffer, layout.axes, layout.name)

    def members(self, model: Layer) -> tuple[list[Any], list[Any]]:
        layers: list[Any] = []
        tensors: list[Any] = []
        left: list[Any] = [model]
        while left:
            layer = left.pop()
            if layer is not None:
                layers.append(layer)
                tensors += [*layer._parameters.values(), *_buffers(layer).values()]
                left += layer._sub_layers.values()
        return layers, [each for each in tensors if each is not None]

    def cautions(self, model: Layer) -> Iterable[str]:
        for path, layer in model.named_sublayers(include_self=True):
            if _is_compiled(layer):
                yield f"{path or 'the model'} is compiled (to_static): what runs inside it is not recorded"

    environment, parallel = staticmethod(environment), staticmethod(parallel)

    # Tensors

    def is_tensor(self, value: object) -> bool:
        is_dense = isinstance(value, paddle.Tensor) and value.is_dense() and not value.is_dist()
        return is_dense and (value._is_initialized() or 0 in value.shape)

    def unreadable(self, value: object) -> str:
        if not isinstance(value, paddle.Tensor):
            return "symbolic values of a compiled program" if isinstance(value, paddle.pir.Value) else ""
        if value.is_dist():
            return "distributed tensors"
        return "tensors without memory" if value.is_dense() else "sparse tensors"

    def facts(self, tensor: paddle.Tensor) -> TensorFacts:
        return TensorFacts(name_of(tensor.dtype), tuple(tensor.shape), not tensor.stop_gradient)

    def requires_grad(self, tensor: paddle.Tensor) -> bool:
        return not tensor.stop_gradient

    def version_of(self, tensor: paddle.Tensor) -> int | None:
        return None  # set_value, copy_ and what optimizers do count as no writes

    def sample_of(self, tensor: paddle.Tensor) -> bytes | None:
        return memory.sample(array_of(tensor)) if is_on_cpu(tensor) else None

    measure, summarize = staticmethod(MEASURING.measure), staticmethod(MEASURING.summarize)
    measure_update, values = staticmethod(MEASURING.measure_update), staticmethod(copy_of)

    def assign(self, tensor: paddle.Tensor, values: np.ndarray) -> None:
        cast = values.astype(dtype_of(name_of(tensor.dtype)))
        tensor.set_value(cast.view(np.uint16) if cast.dtype.name == "bfloat16" else cast)

    def snapshot(self, tensor: paddle.Tensor, spare: paddle.Tensor | None = None) -> paddle.Tensor:
        return tensor.detach()._copy_to(tensor.place, True)

    keep, keep_optimizer = staticmethod(kept), staticmethod(kept_optimizer)

    # Hooks

    def quiet(self) -> AbstractContextManager[object]:
        return _Quiet()

    def context(self) -> CallContext:
        tracer = paddle.framework._dygraph_tracer()
        if tracer is None or in_to_static_mode() or in_sot_simulation_mode():
            return CallContext(False, False, "", aside="while paddle.jit.to_static compiles")
        backward = is_running()
        if self._backwards is not None:
            self._backwards.passing() if backward else self._backwards.outside()
        autocast = "" if tracer._amp_level == paddle.base.core.AmpLevel.O0 else str(tracer._amp_dtype)
        return CallContext(bool(tracer._has_grad), backward, autocast)

    def on_call(self, module: Layer, before: base.Before, after: base.After) -> base.Removal:
        if module in self._compiled:  # `cautions` has said it
            return nothing
        mine = weakref.ref(module)
        pre, post = _PreHook(mine, before), _PostHook(mine, after)
        tables = [value for name, value in vars(module).items() if name.startswith("_forward_p")]
        set_pre = functools.partial(module.register_forward_pre_hook, pre, with_kwargs=True)
        set_post = functools.partial(module.register_forward_post_hook, post, with_kwargs=True, always_call=True)
        return all_or_none(
            functools.partial(with_own_numbers, HookRemoveHelper, "next_hook_id"),
            lambda: concealed(pre, tables, set_pre),
            lambda: concealed(post, tables, set_post),
        )

    def on_operations(
        self, before: Callable[[base.Operation, tuple[Any, ...], dict[str, Any]], None], after: base.Returned
    ) -> base.OperationWatch:
        self._patches = patches(before, after)
        return self._patches

    def picked(self, scores: paddle.Tensor, indices: paddle.Tensor) -> paddle.Tensor:
        return paddle.take_along_axis(scores, indices, -1)

    def unseen(self) -> AbstractContextManager[object]:
        return self._patches.unseen() if self._patches is not None else contextlib.nullcontext()

    def on_any_call(self, before: Callable[[Layer], None]) -> base.Removal:
        return before_any_call(before)

    def on_gradient(self, tensor: paddle.Tensor, found: base.Found) -> base.Removal | None:
        if tensor.stop_gradient:
            return None
        backwards = self._backwards

        def passing(gradient: paddle.Tensor) -> None:
            found(gradient)
            if backwards is not None:
                backwards.passing()

        return set_hook(tensor, passing)

    def on_parameter_gradients(
        self, parameters: Sequence[paddle.Tensor], ended: Callable[[list[int]], None]
    ) -> base.Removal:
        self._backwards = Backwards(parameters, ended)
        return self._backwards.remove

    def gradient(self, parameter: paddle.Tensor) -> paddle.Tensor | None:
        gradient = self._updates.used(parameter) if self._updates is not None else None
        if gradient is None:
            main = getattr(parameter, "main_grad", None)
            gradient = parameter._grad_ivar() if main is None else main
        if gradient is None or not (gradient._is_initialized() or 0 in gradient.shape):
            return None
        return gradient

    # Optimizers

    def is_optimizer(self, value: object) -> bool:
        return isinstance(inner(value), Optimizer)

    def on_update(self, optimizer: object | None, before: base.BeforeUpdate, after: base.AfterUpdate) -> base.Removal:
        self._updates = Updates(optimizer, before, after)
        return self._updates.remove

    def optimizer_state(self, optimizer: Optimizer, parameter: paddle.Tensor) -> dict[str, paddle.Tensor]:
        return {key: value for key, value in state_of(optimizer, parameter).items() if self.is_tensor(value)}

    groups_of = staticmethod(groups_of)


def _own_tensors(layer: Layer) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, tensor, is a buffer) of what a layer itself has."""
    statistics = [name for kind in type(layer).__mro__ for name in _STATISTICS_OF.get(kind.__name__, ())]
    for slot, tensor in layer._parameters.items():
        if tensor is not None and tensor._is_initialized():
            yield slot, tensor, slot in statistics
    for slot, tensor in _buffers(layer).items():
        if isinstance(tensor, paddle.Tensor) and tensor._is_initialized():
            yield slot, tensor, True


def _buffers(layer: Layer) -> dict[str, Any]:
    """Return what a layer keeps in its state; PaddlePaddle calls every tensor that is an attribute a buffer."""
    passing = layer._non_persistable_buffer_names_set
    return {slot: tensor for slot, tensor in layer._buffers.items() if slot not in passing}


def _is_compiled(layer: Layer) -> bool:
    """Return True if a layer's forward was given to ``to_static``, or the layer was loaded as a program."""
    forward = vars(layer).get("forward", None)
    return forward is not None and any(kind.__name__ == "StaticFunction" for kind in type(forward).__mro__)


def before_any_call(before: Callable[[Layer], None]) -> base.Removal:
    """Call back before every call of any layer; return what undoes it. There are no hooks for that: the call of all layers is replaced."""
    plain, live = Layer.__call__, [before]

    @functools.wraps(plain)
    def call(layer: Layer, *inputs: Any, **kwargs: Any) -> Any:
        for each in tuple(live):
            each(layer)
        return plain(layer, *inputs, **kwargs)

    def remove() -> None:
        live.clear()  # somebody may have replaced it once more
        if Layer.__call__ is call:
            Layer.__call__ = plain

    Layer.__call__ = call
    return remove


class _PreHook(CallHook):
    def __call__(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._module() is module:
            self._call(args, kwargs)


class _PostHook(CallHook):
    def __call__(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        if self._module() is module:
            self._call(output, output is None and sys.exc_info()[0] is not None)


class _Quiet:
    """No graph and no automatic casts, for the recorder's own operations."""

    def __enter__(self) -> None:
        self._tracer = paddle.framework._dygraph_tracer()
        if self._tracer is not None:
            self._before = self._tracer._has_grad, self._tracer._amp_level
            self._tracer._has_grad, self._tracer._amp_level = False, paddle.base.core.AmpLevel.O0

    def __exit__(self, *exc: object) -> None:
        if self._tracer is not None:
            self._tracer._has_grad, self._tracer._amp_level = self._before
