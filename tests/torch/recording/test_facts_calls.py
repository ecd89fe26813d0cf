"""What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): forward hooks, torch.compile, recomputation, the end of a backward pass."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.torch.facts import inner, leaf, queue_callback, watch

# ---- What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): forward hooks, torch.compile.
#
# No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.


class Raises(nn.Module):
    def forward(self, x: Tensor, *, extra: int = 0) -> Tensor:
        raise ValueError("planted")


# ---- forward hooks -------------------------------------------------------------------------------------


def test_pre_and_post_hooks_see_kwargs() -> None:
    class Keyword(nn.Module):
        def forward(self, *, x: Tensor) -> Tensor:
            return x

    seen: list[tuple] = []
    module, x = Keyword(), torch.ones(1)
    module.register_forward_pre_hook(lambda m, args, kw: seen.append((args, kw)), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kw, out: seen.append((args, kw, out)), with_kwargs=True)
    module(x=x)
    assert seen[0] == ((), {"x": x}) and seen[1][1]["x"] is x and seen[1][2] is x


def test_pre_hooks_run_parent_first_and_post_hooks_child_first() -> None:
    order: list[str] = []
    net = nn.Sequential(nn.Sequential(nn.Identity()))
    for name, module in net.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: order.append(f"pre {name}"))
        module.register_forward_hook(lambda *_, name=name: order.append(f"post {name}"))
    net(torch.ones(1))
    assert order == ["pre ", "pre 0", "pre 0.0", "post 0.0", "post 0", "post "]


def test_always_call_hooks_run_with_none_when_forward_raises() -> None:
    seen: list[tuple] = []
    net = nn.Sequential(Raises())
    for module in net.modules():
        module.register_forward_hook(
            lambda m, args, kw, out: seen.append((type(m), out, sys.exc_info()[0])),
            with_kwargs=True,
            always_call=True,
        )
    with pytest.raises(ValueError, match="planted"):
        net(torch.ones(1))
    assert seen == [(Raises, None, ValueError), (nn.Sequential, None, ValueError)]


def test_always_call_hooks_do_not_run_for_keyboard_interrupt() -> None:
    class Stopped(nn.Module):
        def forward(self) -> None:
            raise KeyboardInterrupt

    seen: list[int] = []
    module = Stopped()
    module.register_forward_hook(lambda *_: seen.append(1), always_call=True)
    with pytest.raises(KeyboardInterrupt):
        module()
    assert not seen  # so a stack of open calls is not always unwound by hooks


def test_always_call_hooks_run_once_when_a_later_hook_raises() -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    seen: list[int] = []
    module = nn.Identity()
    module.register_forward_hook(lambda *_: seen.append(1), always_call=True)
    module.register_forward_hook(fails)
    with pytest.raises(ValueError):
        module(torch.ones(1))
    assert seen == [1]


def test_always_call_hooks_run_when_a_pre_hook_raises() -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    seen: list[int] = []
    module = nn.Identity()
    module.register_forward_pre_hook(fails)
    module.register_forward_pre_hook(lambda *_: seen.append(0))
    module.register_forward_hook(lambda *_: seen.append(1), always_call=True)
    with pytest.raises(ValueError):
        module(torch.ones(1))
    assert seen == [1]  # a post-hook without its pre-hook


@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
def test_an_exception_in_a_hook_reaches_the_caller(register: str) -> None:
    module = nn.Identity()
    getattr(module, register)(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module(torch.ones(1))


def test_an_exception_in_a_gradient_hook_reaches_the_caller() -> None:
    x = inner(2)
    x.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.sum().backward()


def test_out_proj_of_multihead_attention_never_fires() -> None:
    fired: list[str] = []
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    for name, module in attention.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.append(name))
    x = torch.randn(1, 3, 4)
    attention(x, x, x)
    assert fired == [""] and "out_proj" in dict(attention.named_modules())


def test_per_module_hooks_disable_the_fused_path_of_transformer_encoder_and_global_hooks_do_not() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x, fired = torch.randn(1, 3, 4), []
    with torch.no_grad():
        plain = encoder(x)
        handle = nn.modules.module.register_module_forward_hook(lambda m, *_: fired.append(type(m)))
        try:
            encoder(x)
        finally:
            handle.remove()
        assert fired == [nn.TransformerEncoderLayer, nn.TransformerEncoder]
        encoder.layers[0].linear1.register_forward_hook(lambda m, *_: fired.append(type(m)))
        hooked = encoder(x)
    assert fired[2:] == [nn.Linear] and torch.equal(plain, hooked)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_refuse_hooks_and_traced_ones_take_but_ignore_them_inside() -> None:
    net, x, fired = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), []
    scripted, traced = torch.jit.script(net), torch.jit.trace(net, x)
    for module in scripted.modules():
        with pytest.raises(RuntimeError, match="not supported on ScriptModules"):
            module.register_forward_hook(lambda *_: None)
        with pytest.raises(RuntimeError, match="not supported on ScriptModules"):
            module.register_forward_pre_hook(lambda *_: None)
    for name, module in traced.named_modules():
        assert isinstance(module, torch.jit.ScriptModule)
        module.register_forward_hook(lambda *_, name=name: fired.append(name))
    traced(x)
    assert fired == [""]


def test_hooks_run_under_vmap_and_see_batched_tensors() -> None:
    batched: list[bool] = []
    net = nn.Linear(2, 2)
    net.register_forward_hook(lambda m, args, out: batched.append(torch._C._functorch.is_batchedtensor(out)))
    torch.vmap(net)(torch.ones(3, 1, 2))
    net(torch.ones(1, 2))
    assert batched == [True, False]


def test_hooks_are_copied_and_pickled_with_their_module() -> None:
    net = nn.Linear(2, 2)
    handle = net.register_forward_hook(lambda *_: None)
    assert len(copy.deepcopy(net)._forward_hooks) == 1  # a bound method's object would be copied as well
    with pytest.raises((pickle.PicklingError, AttributeError), match="pickle"):
        pickle.dumps(net)
    handle.remove()
    net.weight.register_hook(lambda gradient: None)
    net.weight.register_post_accumulate_grad_hook(lambda p: None)
    assert copy.deepcopy(net).weight._backward_hooks is None and pickle.dumps(net)


def test_lazy_modules_have_no_parameters_until_a_pre_hook_of_theirs_ran() -> None:
    net, seen = nn.LazyLinear(2), []
    with pytest.raises(ValueError, match="uninitialized parameter"):
        net.weight.numel()
    assert isinstance(net.weight, nn.parameter.UninitializedParameter)
    net.register_forward_pre_hook(lambda m, args: seen.append(m.weight.shape))
    net(torch.ones(1, 3))
    assert seen == [(2, 3)] and type(net) is nn.Linear


# ---- torch.compile -------------------------------------------------------------------------------------


@pytest.fixture
def dynamo() -> Iterator[Any]:
    """Dynamo with empty caches; its "eager" backend needs no compiler."""
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    yield dynamo
    dynamo.reset()


def mlp(fired: list) -> tuple[nn.Module, Callable[[], None]]:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def hook_all() -> None:
        for name, module in net.named_modules():
            module.register_forward_hook(lambda *_, name=name: fired.append(name))

    return net, hook_all


def test_hooks_set_after_the_first_call_of_a_compiled_module_are_ignored(dynamo: Any) -> None:
    fired: list[str] = []
    net, hook_all = mlp(fired)
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(1, 2))
    hook_all()
    compiled(torch.ones(1, 2))
    assert not fired
    compiled.register_forward_hook(lambda *_: fired.append("wrapper"))
    compiled(torch.ones(1, 2))
    assert fired == ["wrapper"] and compiled._orig_mod is net


def test_hooks_set_before_the_first_call_of_a_compiled_module_run(dynamo: Any) -> None:
    fired: list[str] = []
    net, hook_all = mlp(fired)
    hook_all()
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(1, 2))
    compiled(torch.ones(1, 2))
    assert fired == ["0", "1", ""] * 2


def test_item_in_a_hook_breaks_the_graph(dynamo: Any) -> None:
    net, _ = mlp([])
    assert dynamo.explain(net)(torch.ones(1, 2)).graph_break_count == 0
    net[0].register_forward_hook(lambda m, args, out: float(out.sum().item()) and None)
    dynamo.reset()
    assert dynamo.explain(net)(torch.ones(1, 2)).graph_break_count > 0


# ---- What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): recomputation, the end of a backward pass.
#
# No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.

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
