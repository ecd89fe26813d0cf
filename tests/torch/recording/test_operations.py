"""Operations of PyTorch inside modules: what is recorded of them, and that the training does not notice."""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import probe
from probe.checks.overflow import check_overflow
from probe.errors import ProbeWarning
from probe.testing import Recording


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


class Block(nn.Module):
    """Code of all sorts: functions, methods, operators, in place, views, no gradients, a loop, an exception."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        h = F.softmax(self.inner(x) * 0.5, dim=-1)
        h = h.view(-1, 2, 4).transpose(1, 2).reshape(x.shape)
        h = h.clone().add_(x).relu_()
        with torch.no_grad():
            scale = h.abs().max()
        for _ in range(2):
            h = h / (scale + 1e-6)
        h[..., 0] = 1.0
        if not torch.compiler.is_compiling():  # which takes no operations that fail
            with pytest.raises(RuntimeError):
                torch.cat([h, torch.zeros(1)], dim=0)
        return self.norm(h), F.dropout(h, 0.1, training=self.training)


class Net(nn.Module):
    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.how = Block(), Block(), how

    def forward(self, x):
        if self.how.startswith("checkpoint"):
            h, other = checkpoint(self.first, x, use_reentrant=self.how == "checkpoint reentrant")
        elif self.how == "mode":
            with Doubling():
                h, other = self.first(x)
        elif self.how == "vmap":
            h = torch.func.vmap(lambda row: row.sin() * 2)(x)
            h, other = self.first(h)
        else:
            h, other = self.first(x)
        return self.second(h + other)[0]


class Doubling(TorchFunctionMode):
    """A mode of the program's own."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is F.softmax else found


def train(how: str = "plain", path=None, steps: int = 2, **options):
    """Train, recorded or not; return the losses and the weights."""
    net = Net(how)
    model = torch.compile(net, backend="eager") if how == "compiled" else net
    optimizer, losses = torch.optim.AdamW(net.parameters(), 1e-2), []
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    if path is not None:
        probe.start(model, path, quiet=True, **options)
    for _ in range(steps):
        x = torch.randn(3, 8, generator=generator, requires_grad=how == "checkpoint reentrant")
        loss = model(x).square().mean() + (how == "twice" and model(x).mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if path is not None:
            probe.step(loss=loss)
    if path is not None:
        probe.stop()
    return losses, [each.detach().clone() for each in net.parameters()]


WAYS = ["plain", "checkpoint", "checkpoint reentrant", "compiled", "mode", "vmap", "twice"]


@pytest.mark.parametrize("level", ["mix", "op"])
@pytest.mark.parametrize("how", WAYS)
def test_a_training_is_bitwise_the_same(how, level) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)
        plain, recorded = train(how), train(how, "a.h5", level=level, task="tensor")
    assert plain[0] == recorded[0]
    assert all(map(torch.equal, plain[1], recorded[1]))
    assert _get_current_function_mode_stack() == []


def test_code_that_asks_whether_functions_are_looked_at_takes_the_kernel_that_it_takes_anyway() -> None:
    torch.manual_seed(0)
    inner = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    net, x = nn.Sequential(Block(), Last(inner)).eval(), torch.randn(3, 5, 8)
    with torch.no_grad():
        plain = net(x)
        with probe.capture(net, "a.h5", task="tensor", level="mix", quiet=True):
            recorded = net(x)
    assert torch.equal(plain, recorded)
    found = operations().keys()
    assert {"0/softmax.0", "1/add.0", "1/softmax.0"} <= found  # before and behind that code too
    assert not any(path.startswith(("1.inner/", "1.inner.layers.0.self_attn/")) for path in found)


def test_modes_of_the_program_around_such_code_end_where_it_ends_them() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            with Doubling():
                return self.inner(x, x, x)[0]

    net, seen = Around(), []
    probe.start(net, "a.h5", level="mix", quiet=True)
    for _ in range(2):
        net(torch.randn(2, 3, 8))
        probe.step()
        seen.append(_get_current_function_mode_stack())
    probe.stop()
    assert seen == [[], []] and _get_current_function_mode_stack() == []


class Last(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given):
        return self.inner(given[0] + given[1]).softmax(-1)


def operations(path: str = "a.h5"):
    return {each.path: each for each in probe.open(path).modules if each.is_operation}


def test_operations_have_paths_functions_arguments_and_lines() -> None:
    train(path="a.h5", level="mix")
    found = operations()
    softmax, plus = found["first/softmax.0"], found["first/add.1"]
    assert softmax.class_name == "torch.nn.functional.softmax" and json.loads(softmax.arguments)["dim"] == -1
    assert softmax.file == __file__ and "F.softmax" in open(__file__).read().splitlines()[softmax.line - 1]
    assert json.loads(plus.arguments) == {"1": 1e-06}
    assert found["first/dropout.0"].class_name == "torch.nn.functional.dropout"
    assert {"first/div.0", "first/div.1", "first/setitem.0", "first/add.0", "first.norm/layer_norm.0"} <= found.keys()
    assert not any(name in each for each in found for name in ("/size", "/shape", "/dim"))


class Wrapped(nn.Module):
    """Code of the class in front of PyTorch's ``__call__``, a list, and a module that is called later alone."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.late = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)

    def __call__(self, *args):
        return super().__call__(*args)

    def forward(self, x, is_late=False):
        return self.late(x) if is_late else self.parts(x)  # parts


@pytest.mark.parametrize(("level", "steps"), [("mix", [0, 1]), ("op", [1]), ("module", [0])])
def test_the_line_that_calls_a_module_first_is_recorded(level, steps) -> None:
    net = Wrapped()
    probe.start(net, "a.h5", level=level, steps=steps, quiet=True)
    for _ in range(2):
        net(torch.ones(2, 8))  # root
        probe.step()
    probe.stop()
    lines = open(__file__).read().splitlines()
    called = {each.path: each.called_from for each in probe.open("a.h5").modules if not each.is_operation}
    places = {path: place.rpartition(":") for path, place in called.items() if place}
    assert {path: lines[int(line) - 1].rpartition("# ")[2] for path, (_, _, line) in places.items()} == (
        {} if level == "module" else {"": "root", "parts": "parts", "parts.0": "parts", "parts.1": "parts"}
    )
    assert all(file == __file__ for file, _, _ in places.values())


def test_a_thread_that_calls_a_model_is_no_line_of_the_program() -> None:
    net = Wrapped()
    probe.start(net, "a.h5", level="mix", quiet=True)
    with ThreadPoolExecutor() as pool:
        pool.submit(net, torch.ones(2, 8)).result()
    probe.stop()
    called = {each.path: each.called_from for each in probe.open("a.h5").modules if not each.is_operation}
    assert called[""] == "" and called["parts.0"].startswith(f"{__file__}:")


def test_modules_are_in_the_file_where_no_step_ends() -> None:
    net = Wrapped()
    probe.start(net, "a.h5", level="mix", quiet=True)
    probe.stop()
    assert [each.path for each in probe.open("a.h5").modules] == ["", "parts", "parts.0", "parts.1", "late"]


def test_an_operation_that_raised_is_marked_as_one() -> None:
    train(path="a.h5", level="mix", steps=1)
    run = Recording("a.h5")
    raised = {run.modules[int(call["module"])].path for call in run.calls if call["raised"]}
    assert raised == {"first/cat.0", "second/cat.0"}


def test_what_an_operation_in_place_is_given_is_what_it_was() -> None:
    train(path="a.h5", level="mix", task="tensor", steps=1)
    seen = Recording("a.h5")
    (given,) = [s.values for s in seen.seen if (s.path, s.role, s.slot) == ("first/add.0", "input", "0")]
    (made,) = [s.values for s in seen.seen if (s.path, s.role, s.slot) == ("first/add.0", "output", "0")]
    (added,) = [s.values for s in seen.seen if (s.path, s.role, s.slot) == ("first/add.0", "input", "1")]
    assert (given + added == made).all() and (given != made).any()


def test_gradients_of_what_operations_return_are_recorded() -> None:
    train(path="a.h5", level="mix", steps=1)
    seen = {s.path for s in Recording("a.h5").find(phase="backward", role="grad_output")}
    assert {"first/softmax.0", "second/div.1", "first.inner/linear.0"} <= seen and "first/abs.0" not in seen


def test_only_chosen_modules_have_operations() -> None:
    seen = []
    net = Net()
    net.first.register_forward_hook(lambda *_: seen.append(_get_current_function_mode_stack()))
    with probe.capture(net, "a.h5", level="mix", modules=["second"], quiet=True):
        net(torch.randn(3, 8))
    assert {each.rpartition("/")[0] for each in operations()} == {"second"} and seen == [[]]
    run = Recording("a.h5")  # nor do calls of the others cost anything
    assert {path for _, path, _ in run.called() if "/" not in path} == {"", "second"}


def test_at_level_op_modules_have_no_tensors_but_the_model() -> None:
    train(path="a.h5", level="op", steps=1)
    seen = {s.path for s in Recording("a.h5").find(phase="forward", role="output")}
    assert {"", "first/softmax.0"} <= seen and "first" not in seen and "first.inner" not in seen


def test_a_second_call_of_a_module_has_the_same_operations() -> None:
    train("twice", "a.h5", level="mix", steps=1)
    calls = [s for s in Recording("a.h5").find(phase="forward", role="output") if s.path == "first/softmax.0"]
    assert [s.micro for s in calls] == [0, 1]


def test_a_recording_without_operations_is_as_before() -> None:
    train(path="a.h5")
    assert operations() == {}


def test_an_interrupt_in_a_forward_leaves_no_mode() -> None:
    class Stops(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    net = nn.Sequential(nn.Linear(8, 8), Stops())
    probe.start(net, "a.h5", level="mix", quiet=True)
    with pytest.raises(KeyboardInterrupt):
        net(torch.randn(2, 8))
    probe.stop()
    assert _get_current_function_mode_stack() == []


@pytest.mark.parametrize("modules", [None, ["Pausing"]])
@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_from_another_thread_leaves_no_mode_on_the_one_that_computes(modules, fails) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Pausing(nn.Module):
        def forward(self, x):
            inside.set()
            assert go_on.wait(60)
            return x.relu() if not fails else x @ torch.zeros(99)

    net = nn.Sequential(nn.Linear(8, 8), Pausing(), nn.Linear(8, 8))

    def compute() -> tuple[int, int]:
        with contextlib.suppress(RuntimeError):
            net(torch.randn(2, 8))
        left = len(_get_current_function_mode_stack())
        net[0](torch.randn(2, 8))
        return left, len(_get_current_function_mode_stack())

    probe.start(net, "a.h5", level="mix", modules=modules)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(compute)
        assert inside.wait(60)
        probe.stop()
        go_on.set()
        assert done.result() == (0, 0)
        fails = False
        pool.submit(net, torch.randn(2, 8)).result()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_what_code_makes_finite_again_is_no_overflow() -> None:
    class Chosen(nn.Module):
        def forward(self, x):
            return torch.where(x > 0, torch.log(x.clamp(min=0)), torch.zeros_like(x))

    class Lost(nn.Module):
        def forward(self, x):
            return torch.log(x.clamp(min=0)) * 2

    for name, last in (("chosen", Chosen()), ("lost", Lost())):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), last)
        probe.start(net, f"{name}.h5", level="mix", quiet=True)
        net(torch.randn(4, 8))
        probe.step()
        probe.stop()
    assert check_overflow("chosen.h5").birth is None
    assert check_overflow("lost.h5").birth.path == "1/log.0"
