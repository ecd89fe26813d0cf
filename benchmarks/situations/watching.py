"""What a PyTorch program can see of its training, with probe or without."""

from __future__ import annotations

import io
import pickle
import pickletools
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import probe

Seen = dict[str, Any]


class Watch:
    """Goes along with a training, and takes down what can be seen of it; with a path it is recorded too.

    Parameters
    ----------
    path
        of the recording; None: without probe
    task
        of the recording
    """

    def __init__(self, path: Path | None = None, task: str = "statistics") -> None:
        self._path, self._task = path, task
        self._models: list[nn.Module] = []
        self._optimizer: Any = None
        self._count = 0
        self.seen: Seen = {}

    def start(self, model: nn.Module | list[nn.Module], optimizer: Any = None) -> None:
        """Begin; before the first forward."""
        self._models = model if isinstance(model, list) else [model]
        self._optimizer = optimizer
        if self._path is not None:
            probe.start(model, self._path, task=self._task, quiet=True)

    def step(self, loss: Any = None) -> None:
        """End a step."""
        self.keep("loss", loss)
        for number, model in enumerate(self._models):
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            self.keep(f"gradients of {number}", gradients)
        if self._path is not None:
            probe.step(loss=loss)
        self._take_down("while it is recorded")
        self._count += 1

    def keep(self, name: str, value: Any) -> None:
        """Compare a value of any kind as well."""
        self.seen[f"{self._count} {name}"] = plain(value)

    def stop(self) -> None:
        """End; does nothing a second time."""
        if self._models:
            if self._path is not None:
                probe.stop()
            self._take_down("afterwards")
            for name, value in _process().items():
                self.keep(name, value)
        self._models = []

    def _take_down(self, when: str) -> None:
        for number, model in enumerate(self._models):
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            self.keep(f"weights of {number} {when}", tensors)
            self.keep(f"storages of {number} {when}", {name: _memory(tensor) for name, tensor in tensors.items()})
            self.keep(f"modes of {number} {when}", [module.training for module in model.modules()])
            self.keep(f"pickle of {number} {when}", pickled(model))
        if self._optimizer is not None:
            state = self._optimizer.state_dict()
            self.keep(f"optimizer {when}", state)
            held = [value for each in self._optimizer.state.values() for value in _tensors(each)]
            self.keep(f"storages of the optimizer {when}", [_memory(tensor) for tensor in held])


def plain(value: Any) -> Any:
    """Return a value so that ``==`` compares every bit, strides and whether gradients are required."""
    if isinstance(value, Tensor):
        return _bits(value)
    if isinstance(value, dict):
        return [(str(key), plain(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return repr(value)


def _bits(tensor: Tensor) -> Any:
    facts = (str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, str(tensor.layout), type(tensor).__name__)
    if tensor.is_meta or torch.nn.parameter.is_lazy(tensor):
        return facts[:1]
    if tensor.is_nested:
        return [*facts[:1], *[_bits(each) for each in tensor.unbind()]]
    strides = tensor.stride() if tensor.layout is torch.strided else tensor.is_coalesced()
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    whole = dense.resolve_conj().resolve_neg().contiguous().clone().reshape(-1)
    return (*facts, strides, whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b"")


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Return what can be seen of a tensor beside its values."""
    try:
        resizable: object = tensor.untyped_storage().resizable()
    except NotImplementedError:
        resizable = None
    hooks = len(tensor._backward_hooks or ()) if tensor.is_leaf else None
    return resizable, weakref.getweakrefcount(tensor), tensor._use_count() if not tensor.is_leaf else None, hooks


def _tensors(state: Any) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)] if isinstance(state, dict) else []


class _Pickler(pickle.Pickler):
    """Tensors stand for their facts: their own pickles hold addresses."""

    def persistent_id(self, value: object) -> object:
        return (str(value.dtype), tuple(value.shape)) if isinstance(value, Tensor) else None


def pickled(model: nn.Module) -> object:
    """Return what a model's pickle is made of, or the error that it ends with.

    Which equal strings are one object, and so are written once, is up to caches of Python's: an RNN has another pickle each time.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, 4).dump(model)
    except Exception as error:  # noqa: BLE001  of models that have no pickle the error must be the same
        return type(error).__name__
    return list(_operations(buffer.getvalue()))


def _operations(data: bytes) -> Iterator[object]:
    """Yield the operations of a pickle, a string in full wherever it occurs."""
    memo: list[object] = []
    last: object = None
    n_objects = 0
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "FRAME":
            continue
        if operation.name == "MEMOIZE":
            n_objects += not isinstance(last, str)
            memo.append(last if isinstance(last, str) else n_objects)
            continue
        is_again = operation.name in ("BINGET", "LONG_BINGET")
        last = memo[argument] if is_again else argument if "UNICODE" in operation.name else None
        yield last if isinstance(last, str) else (operation.name, last if is_again else argument)


def _process() -> dict[str, object]:
    """Return what of the process a training can see: random states and modes."""
    return {
        "random states": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "modes": (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(),
            torch.get_num_threads(), torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
        ),
        "number of the next hook": RemovableHandle.next_id,
    }  # fmt: skip


def seed() -> None:
    """Begin a situation as every other pass does."""
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    RemovableHandle.next_id = 0
