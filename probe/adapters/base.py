"""The verbs that probe needs of a framework. Whatever numpy can express lives above them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from probe.adapters.frameworks import FRAMEWORKS
from probe.adapters.shared.model_configs import config_of
from probe.adapters.shared.user_objects import Identity, WeakIdentity
from probe.errors import RecordingError
from probe.numbers.axis_sums import axis_sums
from probe.numbers.packed import pack, unpack
from probe.records import HashKind

Tensor = Any
Module = Any
Parameter = Any
Removal = Callable[[], None]
"""takes hooks off again"""
Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
"""is told of a call that begins: ``before(args, kwargs)``"""
After = Callable[[object, bool], None]
"""is told of a call that ended: ``after(output, raised)``"""
Returned = Callable[[object, bool], Any]
"""is told of an operation that ended, as `After`; what it returns, if not None, the operation's caller gets"""
Found = Callable[[Tensor], None]
"""is told of a gradient"""


@dataclass(frozen=True, slots=True)
class NamedModule:
    """A module of a model, as `Adapter.modules` yields it."""

    path: str
    module: Module
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A parameter or buffer with all of its names."""

    names: tuple[str, ...]
    tensor: Tensor
    is_buffer: bool
    axes: tuple[int, ...] = ()
    """order of the axes in the canonical layout, see `probe.numbers.sketch.axes_of`; empty when it is the stored one"""
    canonical: str = ""
    """last part of the first name in the canonical layout (`probe.numbers.layouts`); empty when it is the same"""
    is_persistent: bool = True
    """it stands in a state_dict: some buffers do not"""


class Operation(Protocol):
    """A function of the framework that is called."""

    name: str
    """as it stands in paths: ``softmax``"""
    qualified_name: str
    """``torch.nn.functional.softmax``"""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return what is no tensor of the arguments, by name, as JSON."""

    def called_from(self) -> tuple[str, int]:
        """Return file and line of the program that calls it right now; ``("", 0)`` if that is not known."""


class OperationWatch(Protocol):
    """Looks at the operations of the threads that entered it."""

    def enter(self, module: Module | None) -> bool:
        """Look at those of this thread, which calls a module; False if that module would compute otherwise then."""

    def leave(self) -> None:
        """Do so no longer."""


class TensorFacts(NamedTuple):
    """What a tensor is, without its values."""

    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool


class CallContext(NamedTuple):
    """Under which circumstances a module runs."""

    grad_enabled: bool
    recomputing: bool
    """activation checkpointing runs it again, in the middle of backward"""
    autocast: str
    """dtype that the framework casts to by itself, ``""`` when it does not"""
    aside: str = ""
    """where the call is only looked at (traced, exported) or part of a function transform: its tensors have no plain values"""


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter group of an optimizer."""

    optimizer: object
    class_name: str
    index: int
    hyper: dict[str, object]
    parameters: list[Parameter]


def plain_option(value: object) -> object:
    """Return an option of a parameter group as the file can hold it: what is not plain by its text."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  a user's object; this runs inside the optimizer's step
        return f"a {type(value).__name__}"


BeforeUpdate = Callable[[list[Group], str], None]
AfterUpdate = Callable[[list[Group]], None]


class Adapter(abc.ABC):
    """One framework's tensors, modules and hooks.

    Every callback that is handed in must be called with the framework's own tensors, returns nothing and never
    raises. No verb may change what the user's program computes.
    """

    framework: str
    version: str
    silent: str = ""
    """why modules may run without their hooks, and what to do; ``""`` where `cautions` tells beforehand"""
    limits: tuple[str, ...] = ()
    """what the framework never tells, in words: it stands in the notes of every file, and is not said aloud"""
    counts_writes: bool = False
    """every write to a weight is seen, on every device"""
    forward: str = "forward"
    """the method of modules that computes"""
    is_compiling: Callable[[], bool] = staticmethod(lambda: False)
    """whether a compiler reads the program's code and does not run it; it reads this function too"""

    # Models

    @abc.abstractmethod
    def classes(self) -> tuple[type, tuple[type, ...]]:
        """Return the base class of modules, and the base classes of optimizers."""

    def inside(self, module: Module) -> Module | None:
        """Return the model inside a module that only spreads it over devices or adds a loss or a step to it; None for any other."""
        return None

    @abc.abstractmethod
    def modules(self, model: Module) -> Iterable[NamedModule]:
        """Yield every module of a model once, parents first, the root with path ``""``."""

    @abc.abstractmethod
    def parameters(self, model: Module) -> Iterable[NamedTensor]:
        """Yield every parameter and persistent buffer once."""

    def is_training(self, module: Module) -> bool:
        """Return True if a module is in training mode."""
        return bool(module.training)

    def members(self, model: Module) -> tuple[list[Module], list[Tensor]]:
        """Return every module, and every parameter and buffer, in the same order as long as none is added or replaced.

        It is called at every step.
        """
        return [each.module for each in self.modules(model)], [each.tensor for each in self.parameters(model)]

    def refusal(self, model: Module) -> str:
        """Return in words why nothing of a model can be recorded, and what to do; ``""`` when it can."""
        return ""

    def cautions(self, model: Module) -> Iterable[str]:
        """Yield what of a model cannot be recorded, in words."""
        return ()

    def model_config(self, model: Module) -> dict[str, object]:
        """Return the model's configuration (heads, eps, …), or nothing when it has none."""
        return config_of(each.module for each in self.modules(model))

    def environment(self) -> dict[str, object]:
        """Return what of the environment changes numerics: devices, flags, thread counts."""
        return {}

    def parallel(self, models: Sequence[tuple[str, Module]]) -> dict[str, object]:
        """Return how ranks divide models, by their prefixes: ``groups`` of this rank, and what ``modules`` and ``parameters`` say.

        Nothing is asked of other ranks.
        """
        return {}

    def placements(self, tensor: Tensor) -> list[list[str]]:
        """Return how a tensor that knows it lies over ranks, by the dimensions of its mesh; nothing of other tensors."""
        return []

    # Tensors

    @abc.abstractmethod
    def is_tensor(self, value: object) -> bool:
        """Return True if a value is a tensor that can be recorded."""

    def unreadable(self, value: object) -> str:
        """Return in the plural what kind of tensor a value is that `is_tensor` denies, ``""`` when it is none."""
        return ""

    def losses_behind(self, loss: Tensor) -> list[str]:
        """Return what the framework calls the loss functions that a loss was made by; empty where it does not tell.

        PaddlePaddle would: but reading ``Tensor.grad_fn`` keeps the graph for good.
        """
        return []

    @abc.abstractmethod
    def facts(self, tensor: Tensor) -> TensorFacts:
        """Return dtype, shape and requires_grad."""

    @abc.abstractmethod
    def requires_grad(self, tensor: Tensor) -> bool:
        """Return True if a tensor will have a gradient."""

    def is_leaf(self, tensor: Tensor) -> bool:
        """Return True if no operation made a tensor, so that a hook on its gradient stays until it is taken off."""
        return bool(tensor.is_leaf)

    def is_view(self, tensor: Tensor) -> bool:
        """Return True if a hook on a tensor's gradient is lost when it is written to in place."""
        return False

    def writes_are_seen(self) -> bool:
        """Return True if every in-place write changes a tensor's version; collective operations may not."""
        return True

    def identity(self, tensor: Tensor, lasting: bool = True) -> Identity:
        """Return by what a tensor is known again without being kept alive: one that the program holds on to, or that comes and goes."""
        return WeakIdentity(tensor)

    def writes_to(self, tensor: Tensor) -> Tensor:
        """Return something small with the versions that a tensor will have, which does not keep it alive; only of views."""
        return tensor

    @abc.abstractmethod
    def version_of(self, tensor: Tensor) -> int | None:
        """Return a number that changes with every in-place write, or None where there is none."""

    def sample_of(self, tensor: Tensor) -> bytes | None:
        """Return some elements of a tensor as they are, by which writes that no version counts are seen; None where it has no such."""
        return None

    @abc.abstractmethod
    def measure(self, tensor: Tensor, axes: Sequence[int], known: bytes | None = None) -> bytes:
        """Return the statistics of a tensor, packed; the same numbers as `probe.numbers.statistics.measure`, to 1e-12.

        It is called many times a step, in whatever mode the user's program is, and leaves no trace by itself. A device
        that is still computing gives something else, which `settle` turns into statistics.

        Parameters
        ----------
        tensor, axes
            what is measured, and the canonical order of its axes
        known
            what was returned of a tensor that is likely to be equal: where its bytes are, it may be returned again. It may be that
            of any tensor
        """

    def settle(self, pending: Sequence[Any]) -> list[bytes]:
        """Wait for what `measure`, `summarize` and `measure_update` returned that is not packed yet."""
        return list(pending)

    def remarks(self) -> list[str]:
        """Return in words what went otherwise than it could have with `measure`; asked after `settle`, said once."""
        return []

    def release(self) -> None:
        """Give back what was held to measure tensors: a recording has ended."""
        return None

    def summarize(self, tensor: Tensor) -> bytes:
        """Return the same as `measure`, without a hash, and with or without a sketch."""
        return pack(unpack(self.measure(tensor, ()))._replace(hash_lo=0, hash_hi=0, hash_kind=HashKind.NONE))

    def axis_sums(self, tensor: Tensor, axes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Return `probe.numbers.axis_sums.axis_sums` of a tensor's values, to 1e-7 of its norm."""
        with self.quiet():
            return axis_sums(self.values(tensor), axes)

    @abc.abstractmethod
    def values(self, tensor: Tensor) -> np.ndarray:
        """Return a copy of a tensor's values that nobody else writes to."""

    def begin_values(self, tensor: Tensor) -> Callable[[], np.ndarray] | None:
        """Begin to do what `values` does; return what waits for it, or None where there is nothing to wait for.

        The values are those of now, whatever the program writes meanwhile.
        """
        return None

    @abc.abstractmethod
    def snapshot(self, tensor: Tensor, spare: Tensor | None = None) -> Tensor:
        """Return a copy of a tensor where it lives; ``spare`` is an earlier one that may be overwritten and returned."""

    @abc.abstractmethod
    def measure_update(self, after: Tensor, before: Tensor, axes: Sequence[int]) -> tuple[str, bytes, bytes | None]:
        """Return what `probe.numbers.statistics.measure_update` does, and the dtype in which the difference was taken.

        That is float64 or complex128, or half as wide where the device has no float64. Last come the statistics of ``after``, where
        they were to be had by the way.
        """

    @abc.abstractmethod
    def assign(self, tensor: Tensor, values: np.ndarray) -> None:
        """Put values of its shape into a parameter or buffer, in place, cast to its dtype.

        Only `probe.load_matching`, `probe.noise_run` and `probe.replay` call it.
        """

    def keep(self, parameters: Sequence[Parameter]) -> Removal | None:
        """Return what puts gradients and random numbers back as they are now; None where that is not known.

        Only `probe.noise_run` and `probe.replay` call it.
        """
        return None

    def keep_optimizer(self, optimizer: object) -> Removal | None:
        """Return what puts an optimizer's state and groups back as they are now; None where that is not known.

        Only `probe.noise_run` and `probe.replay` call it.
        """
        return None

    # Hooks

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context in which operations on tensors leave no trace in the user's program."""
        return contextlib.nullcontext()

    def unseen(self) -> AbstractContextManager[object]:
        """Return a context in which what the user set up to watch operations (modes, counters) sees none of them.

        Everything that hooks do runs in it.
        """
        return contextlib.nullcontext()

    def interrupted(self) -> None:  # noqa: B027  few frameworks have modes to set back
        """Set back what a `quiet` or `unseen` of this thread has left: an interrupt (Ctrl-C) may come in the middle of its end."""

    def surface(self) -> None:  # noqa: B027  most frameworks raise at once, or again and again
        """Wait for the program's operations, and raise what one failed with: where the framework raises it once, to whoever reads next."""

    @abc.abstractmethod
    def context(self) -> CallContext:
        """Return under which circumstances the program runs right now."""

    @abc.abstractmethod
    def on_call(self, module: Module, before: Before, after: After) -> Removal:
        """Call ``before(args, kwargs)`` and ``after(output, raised)`` around every call of a module.

        Returns what takes the hooks off again.
        """

    def on_operations(
        self, before: Callable[[Operation, tuple[Any, ...], dict[str, Any]], None], after: Returned
    ) -> OperationWatch | None:
        """Return what calls ``before(operation, args, kwargs)`` and ``after(output, raised)`` around operations.

        None if the framework does not show them.
        """
        return None

    def picked(self, scores: Tensor, indices: Tensor) -> Tensor:
        """Return scores at indices of their last axis, in the graph: what a replayed router returns."""
        return scores.gather(-1, indices)

    @abc.abstractmethod
    def on_any_call(self, before: Callable[[Module], None]) -> Removal:
        """Call ``before(module)`` before every call of any module of the process.

        Hooks that it sets on that module by `on_call` are told of this very call. Returns what takes the hook off again.
        """

    @abc.abstractmethod
    def on_gradient(self, tensor: Tensor, found: Found) -> Removal | None:
        """Call ``found(gradient)`` when the gradient of a tensor is complete; None when it will have none.

        Returns what takes the hook off again.
        """

    def graph_edges(self, tensors: Sequence[Tensor]) -> list[object]:
        """Return for each input tensor of a call where it stands in the graph, to be given to `on_call_gradient`."""
        return [None] * len(tensors)

    def on_call_gradient(
        self, edges: Sequence[object], outputs: Sequence[Tensor], found: Callable[[int, Tensor], None]
    ) -> dict[int, Removal | None]:
        """Call ``found(i, gradient)`` with what one call alone contributes to the gradient of its input i.

        Returns the inputs for which this is possible. Where the contribution comes along several edges, some of
        which backward may never pass, it is gathered, and the function that is returned for the input reports it:
        to be called when the input's gradient is complete.
        """
        return {}

    @abc.abstractmethod
    def on_parameter_gradients(self, parameters: Sequence[Parameter], ended: Callable[[list[int]], None]) -> Removal:
        """Call ``ended(indices)`` at the end of every backward pass with the parameters that it gave gradients to."""

    @abc.abstractmethod
    def gradient(self, parameter: Parameter) -> Tensor | None:
        """Return the gradient as it stands at a parameter now."""

    def forget_gradients(self) -> None:
        """Begin a step: a framework that keeps no gradients at its parameters adds them up from zero again."""
        return None

    # Optimizers

    def is_optimizer(self, value: object) -> bool:
        """Return True if a value is an optimizer that `on_update` can watch."""
        return isinstance(value, self.classes()[1])

    @abc.abstractmethod
    def on_update(self, optimizer: object | None, before: BeforeUpdate, after: AfterUpdate) -> Removal:
        """Call ``before(groups, why_not)`` and ``after(groups)`` around every step of an optimizer.

        ``why_not`` says why the gradients that it finds are not those that it will use, or is empty. Without an
        ``optimizer``, every optimizer of the process is watched.
        """

    @abc.abstractmethod
    def optimizer_state(self, optimizer: object, parameter: Parameter) -> dict[str, Tensor]:
        """Return the tensors of an optimizer's state for a parameter; its count of steps too, as a tensor of one element."""

    def groups_of(self, optimizer: Any) -> list[Group]:
        """Return an optimizer's parameters by what they are trained with, as it is now."""
        return []

    def is_gathered(self, tensor: Tensor, parameter: Tensor) -> bool:
        """Return True if a tensor is the whole of a sharded parameter, which stands in its place while the model runs."""
        return False

    def is_wider_copy(self, tensor: Tensor, parameter: Parameter) -> bool:
        """Return True if a tensor is a copy of a parameter in a wider dtype: cast to the parameter's, every element is equal."""
        return False

    def same(self, a: Parameter, b: Parameter) -> bool:
        """Return True if two parameters are one and the same."""
        return a is b


def adapter_for(model: object) -> Adapter:
    """Return the adapter for a model, found by the frameworks that are already imported.

    Raises RecordingError where the model is of no framework that probe knows.
    """
    for framework in FRAMEWORKS.values():
        if framework.is_of(model):
            return adapter_named(framework.name)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise RecordingError(
        f"probe was given a {kind}; expected a module of {', '.join(sorted(FRAMEWORKS))}, or a list of them"
    )


def adapter_named(framework: str) -> Adapter:
    """Return the adapter of a framework; it is imported."""
    adapter: Adapter = FRAMEWORKS[framework].part_class("adapter")()
    return adapter


def adapters_in_use() -> list[Adapter]:
    """Return the adapters of all frameworks that are imported."""
    return [adapter_named(name) for name, framework in FRAMEWORKS.items() if framework.is_in_use()]
