"""What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): recomputation, the end of a backward pass.

No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.
"""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from facts import inner, leaf, one_thread_one_seed, queue_callback, watch  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

graph_task = torch._C._current_graph_task_id
both_modes = pytest.mark.parametrize("reentrant", [True, False])


# ---- recompute -----------------------------------------------------------------------------------------


@both_modes
def test_the_graph_task_id_tells_recompute(reentrant: bool) -> None:
    seen: list[tuple[bool, bool]] = []
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    net[0].register_forward_pre_hook(lambda *_: seen.append((graph_task() >= 0, torch.is_grad_enabled())))
    net[0].register_forward_hook(lambda *_: seen.append((graph_task() >= 0, torch.is_grad_enabled())))
    checkpoint(net, leaf(1, 2), use_reentrant=reentrant).sum().backward()
    assert seen == [(False, not reentrant)] * 2 + [(True, True)] * 2  # reentrant: the first pass is no_grad
    with torch.no_grad():
        net(torch.ones(1, 2))
    assert seen[-1] == (False, False) and graph_task() == -1


@both_modes
def test_gradient_hooks_fire_on_the_recomputed_tensors_only_in_reentrant_mode(reentrant: bool) -> None:
    fired: list[tuple[bool, str]] = []
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def post(module: nn.Module, args: tuple, out: Tensor) -> None:
        if out.requires_grad:
            watch(out, fired, (graph_task() >= 0, type(module).__name__))

    for module in net:
        module.register_forward_hook(post)
    checkpoint(net, leaf(1, 2), use_reentrant=reentrant).sum().backward()
    assert fired == [(reentrant, "Tanh"), (reentrant, "Linear")]


@both_modes
def test_recompute_without_reentrance_stops_early_by_an_exception(reentrant: bool) -> None:
    seen: list[tuple] = []
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Identity())

    def post(name: str, out: Tensor | None) -> None:
        if graph_task() >= 0:
            seen.append((name, out is not None))

    for name, module in net.named_modules():
        module.register_forward_hook(lambda m, args, out, name=name: post(name, out), always_call=True)
    checkpoint(net, leaf(1, 2), use_reentrant=reentrant).sum().backward()
    if reentrant:
        assert seen == [("0.0", True), ("0.1", True), ("0", True), ("1", True), ("", True)]
    else:  # Tanh saves the last tensor: its post-hook gets None, module 1 is never reached
        assert seen == [("0.0", True), ("0.1", False), ("0", False), ("", False)]


@pytest.mark.parametrize("no_grad", [True, False])
def test_ops_of_a_hook_that_save_tensors_make_checkpoint_raise_unless_under_no_grad(no_grad: bool) -> None:
    def statistics(module: nn.Module, args: tuple, out: Tensor) -> None:
        if graph_task() < 0:  # the second time it is known already
            with torch.set_grad_enabled(not no_grad):
                out.square().sum()

    net = nn.Linear(2, 2)
    net.register_forward_hook(statistics)
    total = checkpoint(net, leaf(1, 2), use_reentrant=False).sum()
    if no_grad:
        total.backward()
    else:
        with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different number of tensors"):
            total.backward()


# ---- the end of a backward -----------------------------------------------------------------------------


def queue_from_hook(tensor: Tensor, callback: Callable[[], Any]) -> None:
    tensor.register_hook(lambda gradient: queue_callback(callback))


def test_a_queued_callback_runs_at_the_end_of_its_backward() -> None:
    x, y = leaf(2), leaf(2)
    z, log = (x * y).tanh(), []
    queue_from_hook(z, lambda: log.append((x.grad is not None, y.grad is not None, graph_task() >= 0)))
    z.sum().backward()
    assert log == [(True, True, True)]


def test_a_callback_queued_by_a_callback_runs_after_those_already_queued() -> None:
    x, log = inner(2), []
    queue_from_hook(x, lambda: (log.append("ours"), queue_callback(lambda: log.append("ours, again"))))
    queue_from_hook(x, lambda: log.append("theirs"))
    x.sum().backward()
    assert log == ["ours", "theirs", "ours, again"]


def test_callbacks_cannot_be_queued_outside_and_are_dropped_when_backward_raises() -> None:
    with pytest.raises(RuntimeError, match="during backward"):
        queue_callback(lambda: None)
    x, log = inner(2), []
    queue_from_hook(x, lambda: log.append(1))
    x.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.sum().backward()
    inner(2).sum().backward()
    assert not log


def test_an_exception_in_a_callback_reaches_the_caller() -> None:
    x = inner(2)
    queue_from_hook(x, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.sum().backward()


def test_callbacks_run_at_the_end_of_autograd_grad_too() -> None:
    x, log = inner(2), []
    queue_from_hook(x, lambda: log.append(1))
    torch.autograd.grad(x.sum(), x)
    assert log == [1]


@both_modes
def test_a_callback_queued_inside_reentrant_recompute_runs_before_the_outer_backward_ends(
    reentrant: bool,
) -> None:
    first, second, log = nn.Linear(2, 2), nn.Linear(2, 2), []
    h = checkpoint(second, first(leaf(1, 2)), use_reentrant=reentrant)
    tasks = []
    for parameter in (first.weight, second.weight):
        parameter.register_post_accumulate_grad_hook(lambda p: tasks.append(graph_task()))
    second.weight.register_post_accumulate_grad_hook(
        lambda p: queue_callback(lambda: log.append(first.weight.grad is not None))
    )
    h.sum().backward()
    assert (tasks[0] != tasks[1]) is reentrant and log == [not reentrant]
