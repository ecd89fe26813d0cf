"""Passes of models that nobody calls, but only the modules in them: a LightningModule, a namespace of networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, no_grad
from probe.testing import Recording, sample
from tests.long_runs import Net, alone  # noqa: F401


class Holder(nn.Module):
    """Is never called, or only to evaluate."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Squares(nn.Module):
    """A loss function."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean()


def x(index: int) -> Tensor:
    return Tensor(sample((5, 4), index))


def calls(path: str) -> list[tuple[int, int, int]]:
    """Return (step, micro, number) of every call of a module."""
    run = Recording(Path("a.h5"))
    return sorted({(s.step, s.micro, s.call) for s in run.find(phase="forward", role="input", path=path)})


@pytest.mark.parametrize("evaluates", ["", "net", "holder"])
def test_micro_batches_and_evaluations_are_told_apart(evaluates: str) -> None:
    holder = Holder(net=Net(), loss=Squares())
    optimizer = nn.SGD(holder.parameters(), 0.1)
    probe.start(holder, "a.h5")
    for step in range(2):
        for micro in range(2):
            holder.loss(holder.net(x(2 * step + micro))).backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step()
        with no_grad():
            for index in range(2):
                if evaluates:
                    {"net": holder.net, "holder": holder}[evaluates](x(7 + index))
    probe.stop()
    trained = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    evaluated = {"": [], "net": [(1, -1, 0), (1, -1, 1), (2, -1, 0), (2, -1, 1)],
                 "holder": [(1, -1, 0), (1, -2, 0), (2, -1, 0), (2, -2, 0)]}[evaluates]  # fmt: skip
    assert calls("net") == sorted(trained + evaluated)
    assert calls("loss") == trained  # in the pass that it ends


def test_a_module_that_is_called_again_before_backward_is_in_the_same_pass() -> None:
    """As the cell of a recurrent network is, when the program has the loop over time."""
    holder = Holder(net=nn.Linear(4, 4))
    probe.start(holder, "a.h5")
    for _ in range(2):
        state: Any = x(0)
        for _ in range(3):
            state = holder.net(state)
        state.sum().backward()
    probe.stop()
    assert calls("net") == [(0, micro, number) for micro in range(2) for number in range(3)]


def test_a_model_that_is_trained_by_calling_it_tells_passes_itself() -> None:
    holder = Holder(net=Net())
    probe.start(holder, "a.h5")
    holder(x(0)).sum().backward()
    for index in (1, 2):
        holder.net(x(index)).sum().backward()  # beside it
    holder(x(3)).sum().backward()
    probe.step()
    probe.stop()
    assert calls("net") == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)]
