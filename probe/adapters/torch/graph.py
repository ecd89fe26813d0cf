"""PyTorch's graph of gradients: what one call contributes to the gradient of its input, and where a pass ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from probe.adapters.base import Removal
from probe.adapters.shared.contributions import NODES_LIMIT, Edge, Graph, Place
from probe.adapters.shared.hooking import all_or_none, nothing
from probe.adapters.torch.hooks import numbered_apart
from probe.adapters.torch.identity import TensorIdentity
from probe.adapters.torch.modes import Quiet, unseen


def edge_of(tensor: torch.Tensor) -> Edge:
    """Return (node, output number) that a tensor stands for in the graph; for a leaf, its accumulator."""
    node = tensor.grad_fn
    if node is not None:
        return node, tensor.output_nr
    with Quiet(grad=True):
        return tensor.view_as(tensor).grad_fn.next_functions[0]


class _Graph(Graph):
    def crossings(self, roots: list[Any], wanted: Collection[Edge], start: int) -> dict[Edge, list[Place]]:
        found: dict[Edge, list[Place]] = {}
        met: set[Any] = set()
        wanted_nodes = {node for node, _ in wanted}
        stack = [root for root in roots if root not in wanted_nodes and root._sequence_nr() >= start]
        while stack:
            node = stack.pop()
            if node in met:
                continue
            met.add(node)
            if len(met) > NODES_LIMIT:
                return {}
            for place, edge in enumerate(node.next_functions):
                if edge in wanted:
                    found.setdefault(edge, []).append((node, place))
                elif edge[0] is not None and edge[0] not in wanted_nodes and edge[0]._sequence_nr() >= start:
                    stack.append(edge[0])
        return found

    def runs(self) -> bool:
        return not torch.compiler.is_dynamo_compiling()

    def kept(self, gradient: torch.Tensor) -> torch.Tensor:
        with Quiet(), unseen():
            return gradient.detach()

    def added(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        with Quiet():
            total = parts[0].to(torch.promote_types(parts[0].dtype, torch.float32))
            for part in parts[1:]:
                total = total + part
            return total.to(parts[0].dtype)


GRAPH = _Graph()


class ArrivalHook:
    """A hook that is called when a parameter has its gradient.

    PyTorch keeps the table of these hooks at the object, and that it is to be called at what ``swap_tensors`` exchanges:
    swapped, a parameter has a table that nobody reads, to which hooks of the user's would be added in vain.
    """

    def __init__(self, parameter: torch.Tensor, arrived: Callable[[torch.Tensor], None]) -> None:
        self._parameter, self._arrived = parameter, arrived
        register = parameter.register_post_accumulate_grad_hook
        self._take_off = all_or_none(numbered_apart, lambda: register(arrived).remove, self._note)

    def look(self) -> None:
        """Have the table read again where the parameter was swapped and nobody else had a hook in it before."""
        parameter = self._parameter
        is_same = parameter._cdata == self._content and self._identity.is_of(parameter)
        if self._is_alone and not is_same:
            parameter._post_accumulate_grad_hooks = parameter._post_accumulate_grad_hooks
        if is_same:
            self._note_hooks()
        else:
            self._note()

    def remove(self) -> None:
        """Take it off; a table that is empty then goes too."""
        self._take_off()
        if not self._parameter._post_accumulate_grad_hooks:
            self._parameter._post_accumulate_grad_hooks = None

    def _note(self) -> Removal:
        self._content, self._identity = self._parameter._cdata, TensorIdentity(self._parameter)
        self._note_hooks()
        return nothing  # to undo

    def _note_hooks(self) -> None:
        hooks = self._parameter._post_accumulate_grad_hooks or {}
        self._is_alone = len(hooks) == 1 and self._arrived in hooks.values()


class Backwards:
    """The backward passes under way, and the parameters that each has given a gradient to.

    Reentrant checkpointing runs backward passes inside one; only when the outermost has ended are gradients whole.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], ended: Callable[[list[int]], None]) -> None:
        self._ended = ended
        self._open: dict[int, set[int]] = {}
        self._parameters = list(parameters)
        self._hooked: dict[int, ArrivalHook] = {}
        self._stale = True
        """a parameter may have been unfrozen or swapped since the hooks were set"""
        try:
            self._hook()
            self.look_again()
        except BaseException:
            self.remove()
            raise

    @property
    def unsettled(self) -> bool:
        """Return True if there is something to do when a module runs outside of any pass."""
        return self._stale or bool(self._open)

    def look_again(self) -> None:
        """Have the hooks looked at before the next forward."""
        self._stale = True

    def remove(self) -> None:
        """Take all hooks off."""
        for hooked in self._hooked.values():
            hooked.remove()
        self._hooked, self._parameters = {}, []

    def seen(self, task: int) -> None:
        """Take note of the pass in which a module runs: −1 outside of any, when what is still open has failed."""
        if task < 0:
            self._open.clear()
            if self._stale:
                self._hook()
        else:
            self._of(task)

    def _hook(self) -> None:
        self._stale = False
        for index, parameter in enumerate(self._parameters):
            if index in self._hooked:
                self._hooked[index].look()
            elif parameter.is_leaf and parameter.requires_grad:
                self._hooked[index] = ArrivalHook(parameter, functools.partial(self._arrived, index))

    def _of(self, task: int) -> set[int]:
        touched = self._open.get(task)
        if touched is None:
            touched = self._open[task] = set()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._at_end(task))
        return touched

    def _arrived(self, index: int, parameter: torch.Tensor) -> None:
        if torch.compiler.is_dynamo_compiling():  # compiled autograd traces this: no part of the backward is ours
            return
        self._of(torch._C._current_graph_task_id()).add(index)

    def _at_end(self, task: int) -> None:
        # queued once more from inside the queue: so it runs behind what DDP put there
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish(task))

    def _finish(self, task: int) -> None:
        touched = self._open.pop(task, set())
        self._stale = True
        if self._open:
            next(iter(self._open.values())).update(touched)
        elif touched:
            self._ended(sorted(touched))
