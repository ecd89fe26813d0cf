"""The module calls of a step: which runs inside which, in which pass, for which time, and which is run again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.adapters.base import CallContext
from probe.recorder.run import Run

_NO_ROOT = -1
CALLS = 500_000
"""of modules in one step that are recorded; they wait in memory for its end, some 400 bytes each"""


@dataclass(slots=True)
class Input:
    """An input of a call whose gradient is awaited."""

    slot: str
    seq: int
    call: Call
    arrived: Callable[[Input, Any], None]
    """is told of the total gradient"""
    remove: Callable[[], None] | None = None
    """takes the hook for the total gradient off"""
    report: Callable[[], None] | None = None
    """reports the call's own contribution when the total is complete; then the total is not recorded"""

    def __call__(self, gradient: Any) -> None:
        """Pass a total gradient on: this is the hook for it."""
        self.arrived(self, gradient)


@dataclass(slots=True)
class Call:
    """A module call under way or done: a row of ``/calls``."""

    step: int
    micro: int
    seq: int
    module: int
    number: int
    caller: int = -1
    training: bool = False
    grad_enabled: bool = False
    recomputed: bool = False
    autocast: str = ""
    row: int = -1
    end: int = -1
    raised: bool = False
    edges: Sequence[object] = ()
    inputs: Sequence[Input] = ()
    is_in_graph: bool = False
    """backward will run through its graph"""
    operations: Counter[str] = field(default_factory=Counter)
    """how many it has made so far, by name"""

    def as_row(self) -> tuple[Any, ...]:
        """Return its row."""
        return (self.step, self.micro, self.seq, self.end, self.module, self.number, self.caller, self.training,
                self.grad_enabled, self.recomputed, self.raised, self.autocast.encode())  # fmt: skip


class Calls:
    """The calls of the step under way, and those that have not returned yet, by thread."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.all: list[Call] = []
        self._first: dict[tuple[int, int, int], Call] = {}
        """those that are no second passes, by module, micro and number"""
        self.micro = 0
        """the pass under way: 0, 1 … with gradients, −1, −2 … without"""
        self.forwards: Counter[int] = Counter()
        """of each root in step 0"""
        self._is_inside_pass = False
        """a pass of this step has begun"""
        self._has_trained_root = False
        """a root was called with gradients on: then its calls alone tell passes apart"""
        self._differentiated = False
        """a backward pass has ended since this pass began"""
        self._rows = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._passes: dict[tuple[int, bool], int] = {}
        self._stacks = threading.local()

    def begin_step(self) -> None:
        """Forget the calls of the step before."""
        self._rows += len(self.all)
        self.all, self._first = [], {}
        self.micro = 0
        self._is_inside_pass = self._differentiated = False
        self._numbers, self._passes = {}, {}

    def forget(self) -> None:
        """Hold no call any longer."""
        self.all, self._first = [], {}
        self._stacks = threading.local()

    @property
    def stack(self) -> list[Call]:
        """What runs in this thread, the innermost last."""
        stack = getattr(self._stacks, "calls", None)
        if stack is None:
            stack = self._stacks.calls = []
        return stack

    def begins_pass(self, index: int, grad_enabled: bool, stack: list[Call]) -> bool:
        """Return True if a call is a forward of the model.

        A root inside another one is part of its pass; a root inside itself was left there by an interrupt. Where no root is
        trained by calling it (a LightningModule), a pass ends with the backward pass, or where gradients are switched on or off.
        """
        roots = self.run.roots
        if index in roots:
            return not any(c.module in roots and c.module != index for c in stack)
        if stack or self._has_trained_root:
            return False
        return not self._is_inside_pass or self._differentiated or grad_enabled != (self.micro >= 0)

    def differentiated(self) -> None:
        """Take note of the end of a backward pass."""
        self._differentiated = True

    def begin_pass(self, root: int, grad_enabled: bool, stack: list[Call]) -> None:
        """Count a forward of the root, or of modules that are called without it; what is left on the stack was left by exceptions."""
        self.abandon(stack)
        if root not in self.run.roots:
            root = _NO_ROOT
        self._is_inside_pass, self._differentiated = True, False
        self._has_trained_root |= grad_enabled and root != _NO_ROOT
        number = self._passes.get((root, grad_enabled), 0)
        self._passes[root, grad_enabled] = number + 1
        self.micro = number if grad_enabled else -1 - number
        self.count_forward(root)

    def count_forward(self, index: int) -> None:
        """Count the forwards of the models as long as it is open whether the user tells steps apart."""
        if not self.run.step and index in self.run.roots:
            self.forwards[index] += 1

    def begin(self, index: int, context: CallContext, training: bool, stack: list[Call]) -> Call:
        """Put a call on the stack."""
        original = self._found_again(index, stack) if context.recomputing else None
        micro = original.micro if original else stack[-1].micro if stack else self.micro
        number = original.number if original else self._next_number(index, micro)
        call = Call(
            self.run.step, micro, self.run.next_seq(), index, number, stack[-1].row if stack else -1, training,
            context.grad_enabled, context.recomputing, context.autocast, self._rows + len(self.all),
        )  # fmt: skip
        self._enter(call)
        stack.append(call)
        return call

    def begin_inside(self, around: Call, index: int) -> Call:
        """Begin an operation inside a call; nothing runs inside of it."""
        call = Call(
            self.run.step, around.micro, self.run.next_seq(), index, around.number, around.row, around.training,
            around.grad_enabled, around.recomputed, around.autocast, self._rows + len(self.all),
            is_in_graph=around.is_in_graph,
        )  # fmt: skip
        self._enter(call)
        return call

    def _enter(self, call: Call) -> None:
        self.all.append(call)
        if not call.recomputed:
            self._first[call.module, call.micro, call.number] = call

    def pass_over(self, index: int, stack: list[Call]) -> None:
        """Put a call on the stack that is inside one of an earlier step: another thread called ``probe.step()``."""
        stack.append(Call(stack[-1].step, 0, 0, index, 0))

    def end(self, index: int, stack: list[Call]) -> Call | None:
        """Take a call off the stack with those inside it that were left by exceptions; None when it is not there."""
        if not stack or (stack[-1].module != index and not any(call.module == index for call in stack)):
            return None
        call = stack.pop()
        while call.module != index:
            call.raised, call.end = True, self.run.next_seq()
            call = stack.pop()
        return call

    def abandon(self, stack: list[Call]) -> None:
        """Take note of calls that were left by an interrupt, of which no hook was told."""
        for call in stack:
            if call.end < 0:
                call.raised, call.end = True, self.run.next_seq()
        stack.clear()

    def original_of(self, call: Call) -> Call:
        """Return the call that a recomputed one is the second pass of, any other as it is."""
        if not call.recomputed:
            return call
        return self._first.get((call.module, call.micro, call.number), call)

    def in_graph(self, call: Call) -> bool:
        """Return True if backward will run through the graph of this call.

        Of a checkpointed call the graph is that of its first pass, unless that ran without gradients.
        """
        return call.grad_enabled and not (call.recomputed and self._first_had_gradients(call))

    def _first_had_gradients(self, call: Call) -> bool:
        original = self.original_of(call)
        return original is not call and original.grad_enabled

    def _next_number(self, index: int, micro: int) -> int:
        number = self._numbers.get((index, micro), 0)
        self._numbers[index, micro] = number + 1
        return number

    def _found_again(self, index: int, stack: list[Call]) -> Call | None:
        """Find the call that activation checkpointing is running again.

        Segments are recomputed from the last to the first, the calls inside one in their own order.
        """
        again = {(c.module, c.micro, c.number) for c in self.all if c.recomputed}
        candidates = [
            c for c in self.all
            if c.module == index and not c.recomputed and (c.module, c.micro, c.number) not in again
        ]  # fmt: skip
        if stack and stack[-1].recomputed:
            parent = self.original_of(stack[-1])
            inside = [c for c in candidates if c.caller == parent.row]
            return inside[0] if inside else None
        return candidates[-1] if candidates else None
