"""Steps that were never told apart, and objects that are no optimizer."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import probe
from probe.adapters.numpy.tensor import Tensor, no_grad
from probe.errors import ProbeWarning, RecordingError
from probe.testing import sample
from tests.limits import HANGS
from tests.long_runs import Net, Training, alone  # noqa: F401

# Steps that were never told apart, and objects that are no optimizer


def message(forwards: int) -> str:
    return (
        f"probe: probe.step() was never called: all {forwards} forwards are in step 0; call it at the end of each step"
    )


def test_a_loop_without_step_is_told_at_the_end() -> None:
    training = Training()
    probe.start(training.net, "a.h5")
    for _ in range(3):
        training.net(Tensor(sample((5, 4)))).sum().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    with pytest.warns(ProbeWarning) as caught:
        probe.stop()
    assert [str(one.message) for one in caught] == [message(3)]
    assert caught[0].filename == __file__


def test_so_is_one_without_an_optimizer_and_one_of_norms() -> None:
    net = Net()
    for path, task in (("a.h5", "statistics"), ("b.h5", "norms")):
        probe.start(net, path, task=task)
        with no_grad():
            for _ in range(2):
                net(Tensor(sample((5, 4))))
        with pytest.warns(ProbeWarning) as caught:
            probe.stop()
        assert [str(one.message) for one in caught] == [message(2)]


def test_so_is_one_whose_steps_never_came() -> None:
    net = Net()
    probe.start(net, "a.h5", steps=[5])
    for _ in range(4):
        net(Tensor(sample((5, 4)))).sum().backward()
    with pytest.warns(ProbeWarning) as caught:
        probe.stop()
    assert [str(one.message) for one in caught] == [message(4)]


def test_one_step_needs_no_call() -> None:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with probe.capture(training.net, "a.h5"):
            training.net(Tensor(sample((5, 4)))).sum().backward()
        for path, updates in (("b.h5", 0), ("e.h5", 1)):  # gradient accumulation
            with probe.capture(training.net, path):
                for _ in range(3):
                    training.net(Tensor(sample((5, 4)))).sum().backward()
                for _ in range(updates):
                    training.optimizer.step()
        probe.start(training.net, "f.h5")
        for _ in range(3):
            training.net(Tensor(sample((5, 4)))).sum().backward()
        training.optimizer.step()
        probe.stop()
        with probe.capture(training.net, "c.h5"):
            training.step()
            training.net(Tensor(sample((5, 4))))
            training.net(Tensor(sample((5, 4))))
        with pytest.raises(KeyError), probe.capture(training.net, "d.h5"):
            training.net(Tensor(sample((5, 4))))
            training.net(Tensor(sample((5, 4))))
            raise KeyError


def test_a_block_with_several_updates_is_told_too() -> None:
    training = Training()
    with pytest.warns(ProbeWarning) as caught, probe.capture(training.net, "a.h5"):
        for _ in range(2):
            training.net(Tensor(sample((5, 4)))).sum().backward()
            training.optimizer.step()
    assert [str(one.message) for one in caught] == [message(2)] and caught[0].filename == __file__


def test_a_program_that_ends_without_step_is_told_too() -> None:
    code = (
        "import probe\nfrom probe.adapters.numpy import nn\nfrom probe.adapters.numpy.tensor import Tensor\n"
        "from probe.testing import sample\nnet = nn.Linear(3, 2)\nprobe.start(net, 'a.h5')\n"
        "for _ in range(4): net(Tensor(sample((4, 3))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.returncode == 0 and done.stderr.count(message(4)) == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize("wrong", [Net, object, lambda: SimpleNamespace(step=print)])
def test_what_is_no_optimizer_is_named(wrong: Any) -> None:
    value = wrong()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    with pytest.raises(RecordingError) as caught:
        probe.start(Net(), "a.h5", optimizer=value)
    assert str(caught.value) == (
        f"probe.start() was given optimizer={kind}; expected an optimizer of numpy: leave it out for one of another class, or for updates "
        "by hand; what the weights become is recorded all the same"
    )
    assert not Path("a.h5").exists()
