"""The end of backward passes, and which parameters each has given a gradient to."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType

import paddle

_engine = paddle.base.core.eager
_ENTRIES = {
    "backward": ("/dygraph/tensor_patch_methods.py", "/autograd/backward_mode.py"),
    "grad": ("/base/dygraph/base.py",),
}
"""functions of PaddlePaddle that run a backward pass"""


def is_running() -> bool:
    """Return True if a backward pass is running; PaddlePaddle forgets it when one inside it has ended."""
    return _engine._is_run_in_backward() or _depth(sys._getframe()) > 0


def set_hook(tensor: paddle.Tensor, hook: Callable[[paddle.Tensor], None]) -> Callable[[], None]:
    """Set a hook on a tensor's gradient; return what takes it off, which does not hold the tensor.

    A hook that returns anything but None or a tensor ends the process.
    """

    def silent(gradient: paddle.Tensor) -> None:
        hook(gradient)

    number = tensor._register_grad_hook(silent)
    mine = weakref.ref(tensor)

    def remove() -> None:
        live = mine()
        if live is not None:
            live._remove_grad_hook(number)

    return remove


class Backwards:
    """The backward pass under way, and the parameters that it has given a gradient to.

    PaddlePaddle calls back once at the end of a pass; also at the end of one inside another, as recomputation runs them,
    when the gradients of the outer one are not yet whole. Then the next hook asks to be called again.
    """

    def __init__(self, parameters: Sequence[paddle.Tensor], ended: Callable[[list[int]], None]) -> None:
        self._ended = ended
        self._parameters = list(parameters)
        self._hooked: dict[int, Callable[[], None]] = {}
        self._touched: set[int] = set()
        self._awaited = False
        """the end of the pass will be told"""
        try:
            self._hook()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take all hooks off."""
        for removal in self._hooked.values():
            removal()
        self._hooked, self._parameters, self._touched = {}, [], set()

    def outside(self) -> None:
        """Take note that no pass is running: what one has left was whole, or it has failed."""
        self._touched.clear()
        self._hook()

    def passing(self) -> None:
        """Take note that a pass is running: its end is to be told if it has given gradients."""
        if self._touched and not self._awaited:
            self._await()

    def _hook(self) -> None:
        for index, parameter in enumerate(self._parameters):
            if index not in self._hooked and not parameter.stop_gradient and parameter.is_leaf:
                self._hooked[index] = set_hook(parameter, lambda gradient, index=index: self._arrived(index))

    def _arrived(self, index: int) -> None:
        self._touched.add(index)
        self.passing()

    def _await(self) -> None:
        self._awaited = True
        _engine._add_backward_final_hook(self._at_end)

    def _at_end(self) -> None:
        self._awaited = False
        if _depth(sys._getframe()) < 2 and self._touched:
            touched, self._touched = self._touched, set()
            self._ended(sorted(touched))


def _depth(frame: FrameType | None) -> int:
    """Count the backward passes that are running, one inside the other."""
    depth = 0
    while frame is not None:
        code = frame.f_code
        if code.co_name in _ENTRIES and code.co_filename.endswith(_ENTRIES[code.co_name]):
            depth += 1
        frame = frame.f_back
    return depth
