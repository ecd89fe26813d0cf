"""The verbs that a replay needs of a framework, beside those of `probe.adapters.base.Adapter`.

A recording only watches; a replay runs modules by itself, with inputs of its own, and differentiates what they return. So these
verbs are an interface of their own: a training that is recorded comes across them only where its routing is replayed.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from probe.adapters.base import Adapter, Module, Parameter, Tensor, adapter_for
from probe.adapters.frameworks import FRAMEWORKS

Run = Callable[..., Any]
"""runs the call of a module as the framework would have, hooks included; takes its arguments"""
Called = Callable[[Module, Run, tuple[Any, ...], dict[str, Any]], Any]
"""is handed the call of a module in its place, and returns what the caller gets"""
Again = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""computes what is differentiated once more, from other sources"""
Place = Any
"""where a tensor stands in the framework's graph"""


class Replaying(abc.ABC):
    """What a replay asks of one framework."""

    runs_again = False
    """modules run once more to be differentiated"""
    forward = "forward"
    """what the framework calls a module's own function"""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    @contextlib.contextmanager
    def intercepted(self, called: Called) -> Iterator[None]:
        """Hand every call of a module inside the block to ``called``, in this thread and whatever the module is."""
        kind, _ = self.adapter.classes()
        plain = kind.__call__

        def call(module: Module, *args: Any, **kwargs: Any) -> Any:
            return called(module, functools.partial(plain, module), args, kwargs)

        kind.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            kind.__call__ = plain  # type: ignore[method-assign]

    @abc.abstractmethod
    def tensor(self, values: np.ndarray, like: Tensor | None, model: Module) -> Tensor:
        """Return a tensor of some values, with the dtype and on the device of another one, or on that of a model."""

    def learns(self, tensor: Tensor) -> bool:
        """Return True if a tensor that code has made may have a gradient."""
        return self.adapter.requires_grad(tensor)

    @abc.abstractmethod
    def source(self, tensor: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
        """Return a leaf with a tensor's values, and what code is given for it: the code may write to that in place."""

    @abc.abstractmethod
    def place(self, tensor: Tensor) -> Place | None:
        """Return where a tensor stands in the graph now, whatever is written to it later; None where it needs no gradient."""

    @abc.abstractmethod
    def pulled_back(
        self, again: Again, sources: Sequence[Tensor], wanted: Sequence[Place], parameters: Sequence[Parameter],
        targets: Sequence[Place], gradients: Sequence[Tensor]
    ) -> tuple[list[Tensor | None], list[Tensor | None], list[Tensor | None]]:  # fmt: skip
        """Return the gradients of sources, of further places and of parameters, given those of what was computed.

        It may be called again for the same targets.

        Parameters
        ----------
        again
            computes the targets from sources, for frameworks that differentiate functions
        sources
            leaves, see `source`
        wanted
            places in between, of which the whole gradient is wanted; None for each where the framework cannot tell
        parameters
            of the model
        targets
            what was computed, see `place`
        gradients
            one for each target
        """

    @abc.abstractmethod
    def under(self, grad: bool, autocast: str) -> AbstractContextManager[object]:
        """Return a context in which a graph is built or not, and operations are cast to a dtype, or not (``""``)."""

    def set_training(self, module: Module, training: bool) -> None:
        """Put a module, and not those inside of it, into training or evaluation mode."""
        module.training = training

    def added(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the sum of two gradients, as a new tensor."""
        return a + b

    def write(self, tensor: Tensor, values: Tensor) -> None:
        """Write to a tensor in place, as a module did to what it was given, its place in the graph included.

        Raises NotImplementedError where the framework cannot keep its place in the graph.
        """
        raise NotImplementedError("its place in the graph cannot be kept")

    @abc.abstractmethod
    def without_graph(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the same values that no graph leads to."""

    def around_forward(self, module: Module, called: Callable[[Run], Any]) -> Callable[[], None]:
        """Let ``called(run)`` take the place of a module's own function, inside of all hooks; return what undoes it."""
        own, name = vars(module), self.forward
        plain, had = getattr(module, name), own.get(name)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return called(lambda: plain(*args, **kwargs))

        object.__setattr__(module, name, replacement)

        def undo() -> None:
            if had is None:
                own.pop(name, None)
            else:
                own[name] = had

        return undo

    @abc.abstractmethod
    def through(self, tensor: Tensor, values: Tensor | None, gradient: Tensor | None) -> Tensor:
        """Return a tensor with other values that passes its gradient, or another one, on to the first; None: unchanged."""

    def become(self, tensor: Tensor, leaf: Tensor) -> bool:
        """Let a tensor that a module returned become what code is given for a leaf: whoever has got hold of it goes on with that.

        Tell whether that was done.
        """
        return False

    def set_gradient(  # noqa: B027  frameworks that hand gradients to optimizers do nothing
        self, parameter: Parameter, gradient: Tensor | None
    ) -> None:
        """Let a parameter have a gradient; a framework that hands gradients to optimizers does nothing."""

    def stepped(self, optimizer: Any, gradients: Sequence[tuple[Parameter, Tensor]]) -> None:
        """Let an optimizer make one step with these gradients."""
        for parameter, gradient in gradients:
            self.set_gradient(parameter, gradient)
        optimizer.step()

    def trained(
        self, model: Module, losses: Sequence[Callable[[], Tensor]], update: Any, backward: bool
    ) -> list[float]:
        """Make a training step: every loss is computed and pulled back, and the gradients add up; return the losses.

        Parameters
        ----------
        model
            whose parameters are trained
        losses
            functions, one for each micro-batch, each run once
        update
            an optimizer, or a function that takes its place and clears the gradients; None for no update
        backward
            whether there are gradients at all
        """
        values = []
        for function in losses:
            loss = function()
            if backward:
                loss.backward()
            with self.adapter.quiet():
                values.append(float(self.adapter.values(loss)))
        if update is None:
            return values
        if self.adapter.is_optimizer(update):
            update.step()
            self.clear(update)
        else:
            update()
        return values

    def clear(self, optimizer: Any) -> None:
        """Throw away the gradients of an optimizer's parameters."""
        optimizer.zero_grad()

    def wide(self, model: Module) -> Module:
        """Return a copy of a model in float64; raises NotImplementedError where the framework cannot make one."""
        raise NotImplementedError


def replaying_for(model: object) -> Replaying:
    """Return the verbs for a model's framework.

    Raises RecordingError where the model is of no framework that probe knows.
    """
    adapter = adapter_for(model)
    found: Replaying = FRAMEWORKS[adapter.framework].part_class("replaying")(adapter)
    return found
