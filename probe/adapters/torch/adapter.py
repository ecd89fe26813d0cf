"""PyTorch: modules, hooks, gradients, optimizers. Tested against 2.13; facts in ``tests/torch/recording/test_facts_*.py``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from probe.adapters import base
from probe.adapters.base import Adapter, CallContext, Group, NamedModule, NamedTensor, TensorFacts, plain_option
from probe.adapters.shared.hooking import all_or_none
from probe.adapters.shared.losses import losses_behind
from probe.adapters.shared.user_objects import attribute
from probe.adapters.torch import environment as torch_environment
from probe.adapters.torch import operations as torch_operations
from probe.adapters.torch import parallel as torch_parallel
from probe.adapters.torch import statistics as torch_statistics
from probe.adapters.torch.cuda.measuring import CAPTURED, LAUNCHER, UNUSABLE, is_capturing
from probe.adapters.torch.cuda.values import begin_values
from probe.adapters.torch.cuda.values import release as release_values
from probe.adapters.torch.functions import Functions
from probe.adapters.torch.graph import GRAPH, Backwards, edge_of
from probe.adapters.torch.hooks import (
    GradientHook,
    around_call,
    around_compiled,
    before_any_call,
    numbered_apart,
    tracing,
)
from probe.adapters.torch.identity import PassingIdentity, TensorIdentity, writes_to
from probe.adapters.torch.keeping import kept, kept_optimizer
from probe.adapters.torch.modes import Quiet, Restored, unseen
from probe.adapters.torch.parallel import learning_shapes
from probe.adapters.torch.seeding import to_tensor
from probe.adapters.torch.sharded import PLAIN, held, is_like, readable
from probe.numbers import buffers
from probe.numbers.layouts import class_names, layout_of
from probe.records import HashKind

_WITHOUT_VALUES = (FakeTensor, FunctionalTensor)
_RAW = {1: torch.uint8, 2: torch.int16}
_SAMPLED = 64
"""elements by which writes to a tensor are seen"""


class TorchAdapter(Adapter):
    """The verbs of `probe.adapters.base.Adapter` for ``torch.nn.Module``."""

    framework = "torch"
    version = str(torch.__version__)
    counts_writes = True
    is_compiling = staticmethod(torch.compiler.is_compiling)

    def __init__(self) -> None:
        self._backwards: Backwards | None = None

    # Models

    def classes(self) -> tuple[type, tuple[type, ...]]:
        return torch.nn.Module, (Optimizer,)

    def inside(self, module: torch.nn.Module) -> torch.nn.Module | None:
        return module.module if isinstance(module, (DistributedDataParallel, DataParallel)) else None

    def modules(self, model: torch.nn.Module) -> Iterable[NamedModule]:
        for path, module in model.named_modules():
            yield NamedModule(path, module, next(module.children(), None) is None)

    def parameters(self, model: torch.nn.Module) -> Iterable[NamedTensor]:
        owners = dict(model.named_modules(remove_duplicate=False))
        for is_buffer, named in ((False, model.named_parameters), (True, model.named_buffers)):
            names: dict[int, list[str]] = {}
            tensors: dict[int, torch.Tensor] = {}
            for name, tensor in named(remove_duplicate=False):
                if not torch.nn.parameter.is_lazy(tensor):
                    names.setdefault(id(tensor), []).append(name)
                    tensors[id(tensor)] = tensor
            for key, tensor in tensors.items():
                owner, _, slot = names[key][0].rpartition(".")
                layout = layout_of("torch", class_names(type(owners[owner])), slot)
                kept = slot not in owners[owner]._non_persistent_buffers_set
                yield NamedTensor(tuple(names[key]), tensor, is_buffer, layout.axes, layout.name, kept)

    def members(self, model: torch.nn.Module) -> tuple[list[Any], list[Any]]:
        modules: list[Any] = []
        tensors: list[Any] = []
        left: list[Any] = [model]
        while left:
            module = left.pop()
            if module is not None:
                modules.append(module)
                if not isinstance(module, torch.jit.ScriptModule):  # what is inside comes in new objects
                    tensors += [*module._parameters.values(), *module._buffers.values()]
                    left += module._modules.values()
        return modules, [each for each in tensors if each is not None]

    def cautions(self, model: torch.nn.Module) -> Iterable[str]:
        for path, module in model.named_modules():
            name = path or "the model"
            if isinstance(module, torch.jit.ScriptModule):
                yield f"{name} is scripted or traced: the modules inside it are not recorded"
                return
            if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
                yield f"{name} is compiled: modules inside it may run without being recorded; record it without torch.compile"
            if not path and torch_environment.flushes_subnormals():
                yield "subnormal numbers count as zeros in statistics: torch.set_flush_denormal() is on"
            if any(torch.nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
                yield f"{name} is lazy: its parameters are not recorded; run one forward before probe.start()"

    environment, parallel = staticmethod(torch_environment.environment), staticmethod(torch_parallel.parallel)

    def placements(self, tensor: torch.Tensor) -> list[list[str]]:
        return [] if type(tensor) in PLAIN else torch_parallel.placements_of(tensor)

    # Tensors

    def is_tensor(self, value: object) -> bool:
        is_one = type(value) in PLAIN or (isinstance(value, torch.Tensor) and not isinstance(value, _WITHOUT_VALUES))
        return (
            is_one
            and value.layout is torch.strided
            and not value.is_meta
            and not value.is_nested
            and not torch._C._functorch.is_functorch_wrapped_tensor(value)
        )

    def unreadable(self, value: object) -> str:
        if not isinstance(value, torch.Tensor):
            return ""
        if value.is_meta or isinstance(value, _WITHOUT_VALUES):
            return "tensors on the meta device" if value.is_meta else "tensors without values (fake, functional)"
        return "nested tensors" if value.is_nested else f"tensors of {_name_of(value.layout)} layout"

    def losses_behind(self, loss: torch.Tensor) -> list[str]:
        return losses_behind(loss.grad_fn, lambda function: [node for node, _ in function.next_functions])

    def facts(self, tensor: torch.Tensor) -> TensorFacts:
        plain = tensor if type(tensor) in PLAIN else held(tensor)
        return TensorFacts(_name_of(tensor.dtype), plain.shape, tensor.requires_grad)

    def requires_grad(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad

    def is_view(self, tensor: torch.Tensor) -> bool:
        return tensor._is_view()

    def identity(self, tensor: torch.Tensor, lasting: bool = True) -> TensorIdentity | PassingIdentity:
        is_lasting = lasting or (type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter))
        return TensorIdentity(tensor) if is_lasting else PassingIdentity(tensor)

    writes_to = staticmethod(writes_to)

    def writes_are_seen(self) -> bool:
        return not (torch.distributed.is_available() and torch.distributed.is_initialized())

    def version_of(self, tensor: torch.Tensor) -> int | None:
        try:
            return tensor._version if type(tensor) in PLAIN else held(tensor)._version
        except RuntimeError:  # an inference tensor has none
            return None

    def sample_of(self, tensor: torch.Tensor) -> bytes | None:
        plain = held(tensor)
        # the last is freed, as FSDP does
        if not plain.numel() or not plain.is_contiguous() or not plain.untyped_storage().nbytes():
            return None
        with Quiet():  # what is written through .data has a version of its own; a storage that numpy saw keeps its size
            some = plain.detach().view(-1)[:: max(1, plain.numel() // _SAMPLED)].clone()
            return some.view(torch.uint8).cpu().numpy().tobytes()

    def measure(self, tensor: torch.Tensor, axes: Sequence[int], known: bytes | None = None) -> bytes:
        if type(tensor) not in PLAIN:
            tensor = held(tensor)
        stats = torch_statistics.measure_in_place(tensor, axes, known)
        if stats is None:
            with Quiet():
                stats = torch_statistics.measure(readable(tensor), axes, known=known)
        return stats

    def settle(self, pending: Sequence[Any]) -> list[bytes]:
        with Quiet():
            return torch_statistics.settle(pending)

    def remarks(self) -> list[str]:
        return [UNUSABLE.format(LAUNCHER.unusable)] if LAUNCHER.unusable else []

    def release(self) -> None:
        with Quiet():
            LAUNCHER.release()
            release_values()

    def summarize(self, tensor: torch.Tensor) -> bytes:
        tensor = held(tensor)
        stats = torch_statistics.measure_in_place(tensor, (), None, HashKind.NONE)
        if stats is None:
            with Quiet():
                stats = torch_statistics.measure(readable(tensor), (), HashKind.NONE)
        return stats

    def measure_update(
        self, after: torch.Tensor, before: torch.Tensor, axes: Sequence[int]
    ) -> tuple[str, bytes, bytes | None]:
        found = torch_statistics.measure_update_in_place(after, before, axes) if type(after) in PLAIN else None
        if found is not None:
            return "float64", *found
        with Quiet():
            return torch_statistics.measure_update(readable(after), before, axes)

    def axis_sums(self, tensor: torch.Tensor, axes: Sequence[int]) -> tuple[np.ndarray, ...]:
        with Quiet():
            return torch_operations.axis_sums(torch_statistics.measurable(readable(tensor).detach()), axes)

    def values(self, tensor: torch.Tensor) -> np.ndarray:
        plain = readable(tensor).detach().resolve_conj().resolve_neg()
        extra = getattr(ml_dtypes, _name_of(plain.dtype), None)
        if extra is not None:
            plain = plain.view(_RAW[plain.element_size()])
        array = buffers.empty(tuple(plain.shape), np.dtype(_name_of(plain.dtype)))
        torch.from_numpy(array).copy_(plain)
        return array if extra is None else array.view(extra)

    def begin_values(self, tensor: torch.Tensor) -> Callable[[], np.ndarray] | None:
        with Quiet():
            return begin_values(readable(tensor).detach().resolve_conj().resolve_neg())

    def assign(self, tensor: torch.Tensor, values: np.ndarray) -> None:
        with torch.no_grad():
            held(tensor).copy_(to_tensor(values))

    def snapshot(self, tensor: torch.Tensor, spare: torch.Tensor | None = None) -> torch.Tensor:
        plain = readable(tensor).detach()
        if spare is None or type(plain) is not torch.Tensor or not is_like(plain, spare):
            return plain.clone()
        return spare.copy_(plain)

    keep, keep_optimizer = staticmethod(kept), staticmethod(kept_optimizer)

    # Hooks

    quiet, unseen, on_any_call = staticmethod(Quiet), staticmethod(unseen), staticmethod(before_any_call)

    def interrupted(self) -> None:
        Restored.end()

    def context(self) -> CallContext:
        grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        task = torch._C._current_graph_task_id()
        if self._backwards is not None and (task >= 0 or self._backwards.unsettled):
            self._backwards.seen(task)
        autocast = _autocast() if torch._C._is_any_autocast_enabled() else ""
        aside = tracing() or learning_shapes() or (CAPTURED if is_capturing() else "")
        return CallContext(grad, task >= 0, autocast, aside)

    def on_call(self, module: torch.nn.Module, before: base.Before, after: base.After) -> base.Removal:
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError("a ScriptModule takes no hooks with keyword arguments")
        if module._compiled_call_impl is not None:
            return around_compiled(module, before, after)
        return around_call(module, before, after)

    on_operations = staticmethod(Functions)

    def on_gradient(self, tensor: torch.Tensor, found: base.Found) -> base.Removal | None:
        if not tensor.requires_grad:
            return None
        return numbered_apart(lambda: tensor.register_hook(GradientHook(found))).remove

    def graph_edges(self, tensors: Sequence[torch.Tensor]) -> list[object]:
        edges = [edge_of(tensor) if tensor.requires_grad else None for tensor in tensors]
        start = torch._C._autograd._get_sequence_nr()
        return [None if edge is None else (edge, start) for edge in edges]

    def on_call_gradient(
        self, edges: Sequence[object], outputs: Sequence[torch.Tensor], found: Callable[[int, torch.Tensor], None]
    ) -> dict[int, base.Removal | None]:
        return numbered_apart(lambda: GRAPH.watch(edges, (tensor.grad_fn for tensor in outputs), found))

    def on_parameter_gradients(
        self, parameters: Sequence[torch.Tensor], ended: Callable[[list[int]], None]
    ) -> base.Removal:
        self._backwards = Backwards(parameters, ended)
        return self._backwards.remove

    def forget_gradients(self) -> None:
        if self._backwards is not None:
            self._backwards.look_again()

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        main = attribute(parameter, "main_grad")  # where Megatron adds up, in float32, what it takes away from grad
        grad = main if isinstance(main, torch.Tensor) else parameter.grad
        if grad is not None and grad.layout is not torch.strided:
            grad = grad.detach().to_dense()
        return grad

    # Optimizers

    def on_update(
        self, optimizer: Optimizer | None, before: base.BeforeUpdate, after: base.AfterUpdate
    ) -> base.Removal:
        def pre_hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not torch.compiler.is_compiling() and not is_capturing():
                with unseen():
                    groups, why_not = _groups(optimizer), _why_not_used(optimizer, args, kwargs)
                before(groups, why_not)

        def post_hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not torch.compiler.is_compiling() and not is_capturing():
                with unseen():
                    groups = _groups(optimizer)
                after(groups)

        if optimizer is None:
            register_pre, register_post = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
        else:
            register_pre, register_post = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        return all_or_none(
            numbered_apart, lambda: register_pre(pre_hook).remove, lambda: register_post(post_hook).remove
        )

    def optimizer_state(self, optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = optimizer.state.get(parameter, {})
        found = {str(key): _counted(value) for key, value in state.items()}
        return {key: value for key, value in found.items() if self.is_tensor(value)}

    def groups_of(self, optimizer: Any) -> list[Group]:
        return _groups(optimizer)

    def is_gathered(self, tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
        return held(parameter) is not parameter and held(tensor) is tensor

    def is_wider_copy(self, tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
        tensor, parameter = held(tensor), held(parameter)
        is_wider = tensor.shape == parameter.shape and tensor.element_size() > parameter.element_size()
        if not is_wider or tensor.device != parameter.device:
            return False
        with Quiet():
            return torch.equal(tensor.detach().to(parameter.dtype), parameter.detach())


@functools.cache
def _name_of(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")


def _counted(value: object) -> object:
    """Return what an optimizer keeps, a plain count of its steps as a tensor; no default device or mode has a say in that."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return torch.from_numpy(np.array(value, np.int64)) if is_count else value


def _autocast() -> str:
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return _name_of(torch.get_autocast_dtype(device))
    return ""


def _groups(optimizer: Optimizer) -> list[Group]:
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        hyper = {key: _plain(value) for key, value in group.items() if key != "params"}
        groups.append(Group(optimizer, type(optimizer).__name__, index, hyper, list(group["params"])))
    return groups


def _why_not_used(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if any(callable(value) for value in (*args[1:], *kwargs.values())):
        return "the optimizer computes its gradients in a closure"
    if attribute(optimizer, "grad_scale") is not None:
        return "the fused optimizer unscales its gradients inside its kernel"
    return ""


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        is_number = value.numel() == 1 and not value.is_meta and not value.is_complex()
        return float(value) if is_number else f"tensor{tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return plain_option(value)
