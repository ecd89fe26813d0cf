"""What the PyTorch adapter relies on, a test for each sentence (docs/architecture.md, "Recording").

No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.
"""

import copy
import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.autograd.graph import Node, get_gradient_edge  # noqa: E402
from torch.optim.optimizer import (  # noqa: E402
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import checkpoint  # noqa: E402

graph_task = torch._C._current_graph_task_id
queue_callback = torch.autograd.Variable._execution_engine.queue_callback
both_modes = pytest.mark.parametrize("reentrant", [True, False])


@pytest.fixture(autouse=True)
def one_thread_one_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def inner(*shape: int) -> Tensor:
    """A tensor with a producer, so not a leaf."""
    return leaf(*shape) * 2


def watch(tensor: Tensor, log: list, name: Any = None) -> None:
    """Append the gradient of ``tensor`` (or only ``name``) to ``log``, by a hook that returns None."""

    def hook(gradient: Tensor) -> None:
        log.append(gradient.clone() if name is None else name)

    tensor.register_hook(hook)


class Twice(nn.Module):
    """Uses its input along two edges."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + x * 3


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


# ---- gradient hooks on tensors -------------------------------------------------------------------------


def test_tensor_hooks_see_the_gradient_before_a_later_in_place_op() -> None:
    x, seen = inner(2), []
    watch(x, seen)
    x.mul_(3)
    watch(x, seen)
    x.sum().backward()
    assert [g.tolist() for g in seen] == [[1, 1], [3, 3]]  # the later hook first


@pytest.mark.parametrize("change", ["view", "base"])
def test_a_hook_on_a_view_is_lost_when_view_or_base_is_changed_in_place(change: str) -> None:
    base, seen = inner(4), []
    view = base.view(2, 2)
    node = view.grad_fn
    watch(view, seen)
    node.register_hook(lambda grad_inputs, grad_outputs: seen.append(grad_inputs))
    (view if change == "view" else base).mul_(3)
    view.sum().backward()
    assert not seen  # neither the tensor's nor its node's: nn.Flatten before ReLU(inplace=True)


def test_a_hook_on_a_base_survives_an_in_place_change_of_its_view() -> None:
    base, seen = inner(4), []
    watch(base, seen)
    base[:2].mul_(3)
    base.sum().backward()
    assert seen[0].tolist() == [3, 3, 1, 1]


def test_a_hook_on_a_tensor_without_gradient_raises() -> None:
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        torch.ones(1).register_hook(lambda gradient: None)


@pytest.mark.parametrize("in_place", [False, True])
def test_tensor_hooks_in_pre_and_post_hook_are_bitwise_neutral(in_place: bool) -> None:
    def gradients(hooked: bool) -> list[Tensor]:
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(in_place),
            nn.Flatten(),
            nn.Linear(16, 3),
            nn.ReLU(in_place),
        )
        seen: list[Tensor] = []
        for module in net.modules() if hooked else ():
            module.register_forward_pre_hook(lambda m, args: watch(args[0], seen))
            module.register_forward_hook(lambda m, args, out: watch(out, seen))
        x = leaf(3, 2, 4, 4)
        net(x * 1).square().sum().backward()
        assert bool(seen) is hooked
        return [x.grad, *(p.grad for p in net.parameters())]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


def test_a_hook_on_a_tensor_that_feeds_two_modules_gets_the_total_once() -> None:
    x, seen = inner(2), []
    watch(x, seen)
    (nn.Identity()(x) * 2 + nn.Identity()(x) * 5).sum().backward()
    assert [g.tolist() for g in seen] == [[7, 7]]


def test_hooks_on_one_tensor_fire_in_the_order_of_their_registration() -> None:
    order: list[str] = []
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Tanh())
    for name, module in net.named_modules():
        module.register_forward_pre_hook(lambda m, args, name=name: watch(args[0], order, f"in {name}"))
        module.register_forward_hook(lambda m, args, y, name=name: watch(y, order, f"out {name}"))
    net(inner(1, 2)).sum().backward()
    # of one tensor: the producer's output before its consumer's input, the inner module before the outer one
    assert order == ["out 1", "out ", "out 0.0", "out 0", "in 1", "in ", "in 0", "in 0.0"]


def test_two_hooks_on_one_tensor_get_the_same_object() -> None:
    x, seen = inner(2), []
    x.register_hook(lambda gradient: seen.append(gradient))
    x.register_hook(lambda gradient: seen.append(gradient))
    x.sum().backward()
    assert seen[0] is seen[1]


def test_hooks_on_two_tensors_get_the_same_object_where_the_gradient_passes_through() -> None:
    x, bias, seen = inner(2), leaf(2), []
    y = x + bias
    for tensor in (x, y):
        tensor.register_hook(lambda gradient: seen.append(gradient))
    y.sum().backward()
    assert seen[0] is seen[1]


def test_a_later_hook_gets_what_an_earlier_user_hook_returned() -> None:
    x, seen = inner(2), []
    watch(x, seen)
    x.register_hook(lambda gradient: gradient * 2)
    watch(x, seen)
    x.sum().backward()
    assert [g.tolist() for g in seen] == [[1, 1], [2, 2]]


def test_gradient_hooks_fire_again_with_retain_graph_and_carry_a_graph_with_create_graph() -> None:
    x, seen = leaf(2), []
    y = x * x
    y.register_hook(lambda gradient: seen.append((gradient.requires_grad, torch.is_grad_enabled())))
    total = (y * y).sum()
    total.backward(retain_graph=True)
    torch.autograd.grad(total, x, create_graph=True)
    assert seen == [(False, False), (True, True)]  # the hook itself has to switch gradients off


def test_a_second_order_backward_passes_the_hooks_of_the_first_forward_again() -> None:
    x, seen = inner(2), []
    y = x**3
    watch(x, seen, "tensor")
    y.grad_fn.register_hook(lambda grad_inputs, grad_outputs: seen.append("node"))
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (y.sum() + first.square().sum()).backward()
    assert seen == ["node", "tensor"] * 2


def test_post_accumulate_hooks_fire_for_backward_and_not_for_autograd_grad() -> None:
    x, seen = leaf(2), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    torch.autograd.grad(x.sum(), x)
    x.sum().backward()
    x.sum().backward()
    assert seen == [[1, 1], [2, 2]]


@pytest.mark.parametrize("closes_over_it", [False, True])
def test_a_hook_that_closes_over_its_tensor_leaks_it(closes_over_it: bool) -> None:
    def hook_on(tensor: Tensor, kept: Tensor | None) -> None:
        tensor.register_hook(lambda gradient: None if kept is None else None)

    x = inner(2)
    reference = weakref.ref(x)
    hook_on(x, x if closes_over_it else None)
    del x
    alive = reference() is not None
    gc.collect()
    assert (alive, reference() is not None) == (closes_over_it, closes_over_it)


def test_full_backward_hooks_raise_with_in_place_ops_and_break_identity() -> None:
    class Same(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> bool:
            return a is b

    net, x, same = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), leaf(1, 2), Same()
    assert same(x, x)
    for module in (*net.modules(), same):
        module.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        net(x)
    with pytest.warns(UserWarning, match="backward hooks"):
        assert not same(x, x)


# ---- autograd edges ------------------------------------------------------------------------------------


def edges(output: Tensor, to: Node, number: int) -> list[tuple[Node, int]]:
    """(node, index of its input) for every edge from the graph of ``output`` to (``to``, ``number``)."""
    found, seen, todo = [], {output.grad_fn}, [output.grad_fn]
    while todo:
        node = todo.pop()
        for index, (source, nr) in enumerate(node.next_functions):
            if source is to and nr == number:
                found.append((node, index))
            elif source is not None and source not in seen and source._sequence_nr() > to._sequence_nr():
                seen.add(source)
                todo.append(source)
    return found


def contribution(output: Tensor, to: Node, number: int) -> list[Tensor]:
    """A list into which backward puts the gradient along each edge."""
    got: list[Tensor] = []

    def hook_for(index: int) -> Callable:
        def hook(grad_inputs: tuple, grad_outputs: tuple) -> None:
            got.append(grad_inputs[index].clone())

        return hook

    for node, index in edges(output, to, number):
        node.register_hook(hook_for(index))
    return got


@pytest.mark.parametrize(
    "module", [nn.Linear(3, 3), nn.LayerNorm(3), nn.Tanh(), Twice()], ids=lambda m: type(m).__name__
)
def test_node_hooks_on_edges_give_the_calls_own_contribution(module: nn.Module) -> None:
    x, seen = inner(2, 3), []
    output, other = module(x), nn.Linear(3, 3)(x)
    got = contribution(output, x.grad_fn, x.output_nr)
    watch(x, seen)
    own = torch.autograd.grad(output.sum(), x, retain_graph=True)[0]
    got.clear(), seen.clear()
    (output + other).sum().backward()
    assert len(got) == (2 if isinstance(module, Twice) else 1)
    assert torch.equal(sum(got), own) and not torch.equal(seen[0], own)


def test_edges_to_one_of_several_outputs_are_told_by_output_nr() -> None:
    first, second = inner(2, 3).unbind(0)
    assert first.grad_fn is second.grad_fn and (first.output_nr, second.output_nr) == (0, 1)
    output = first * 2 + second * 5
    got = contribution(output, second.grad_fn, second.output_nr)
    output.sum().backward()
    assert [g.tolist() for g in got] == [[5, 5, 5]]


def test_edges_of_an_input_changed_in_place_are_found_by_what_it_was_before() -> None:
    x = inner(2)
    node, number = x.grad_fn, x.output_nr
    x.mul_(3)
    got = contribution(x, node, number)
    assert x.grad_fn is not node
    x.sum().backward()
    assert [g.tolist() for g in got] == [[3, 3]]


def test_the_node_of_a_leaf_is_its_accumulate_grad() -> None:
    x, other = leaf(2, 3), None
    output, other = Twice()(x), x * 7
    node = get_gradient_edge(x).node
    assert x.grad_fn is None and node.name().endswith("AccumulateGrad") and node.variable is x
    found = [(n, i) for n in (output.grad_fn.next_functions[0][0], output.grad_fn.next_functions[1][0]) for i in (0,)]
    assert all(n.next_functions[i][0] is node for n, i in found)
    got: list[Tensor] = []
    for n, index in found:
        n.register_hook(lambda gi, go, index=index: got.append(gi[index].clone()))
    (output + other).sum().backward()
    assert sum(got).tolist() == [[5] * 3] * 2 and x.grad.tolist() == [[12] * 3] * 2


def test_an_output_that_is_its_input_has_no_edge() -> None:
    x = inner(2)
    assert nn.Identity()(x) is x and not edges(x, x.grad_fn, x.output_nr)


def test_nodes_made_later_have_larger_sequence_numbers_and_accumulate_grad_the_largest() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    x = inner(3)
    for module in (nn.Linear(3, 3), Double.apply, Twice()):
        assert module(x).grad_fn._sequence_nr() > x.grad_fn._sequence_nr()
    assert get_gradient_edge(leaf(1)).node._sequence_nr() == 2**64 - 1


def test_the_next_sequence_number_can_be_read_and_bounds_what_a_module_makes() -> None:
    x = inner(3)
    side = x * 2  # made before the module is called, though later than x
    first = torch.autograd._get_sequence_nr()
    output = x * side
    assert side.grad_fn._sequence_nr() < first <= output.grad_fn._sequence_nr()
    # an edge search down to the number of x itself would take the edge of ``side`` for one of the module's
    assert {n.name() for n, _ in edges(output, x.grad_fn, x.output_nr)} == {"MulBackward0"}
    assert len(edges(output, x.grad_fn, x.output_nr)) == 2


def test_sequence_numbers_are_counted_per_thread() -> None:
    x, numbers = inner(3), []
    thread = threading.Thread(target=lambda: numbers.append((x * 2).grad_fn._sequence_nr()))
    thread.start()
    thread.join()
    # so they do not bound a search where forward ran in two threads (DataParallel, recompute on a device)
    assert numbers == [0] and x.grad_fn._sequence_nr() > 0


def test_nodes_are_one_python_object_while_held_and_take_no_weak_reference() -> None:
    x = inner(3)
    y = x * 2
    node = x.grad_fn
    assert y.grad_fn.next_functions[0][0] is node and x.grad_fn is node
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(node)


def test_node_hooks_leave_the_bits_unchanged() -> None:
    def gradients(hooked: bool) -> list[Tensor]:
        torch.manual_seed(1)
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        x = leaf(5, 8)
        h = torch.tanh(x)
        a, b = first(h), second(h)
        got = [contribution(out, h.grad_fn, h.output_nr) for out in (a, b)] if hooked else []
        (a * b).sum().backward()
        assert all(len(g) == 1 for g in got)
        return [x.grad, *(p.grad for m in (first, second) for p in m.parameters())]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


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


# ---- optimizers, parameters ----------------------------------------------------------------------------


@pytest.fixture
def optimizer_log() -> Iterator[list]:
    """What the global optimizer hooks saw: (when, class, positional arguments, keyword arguments)."""
    log: list[tuple] = []
    handles = [
        register_optimizer_step_pre_hook(lambda o, a, k: log.append(("pre", type(o), len(a), list(k)))),
        register_optimizer_step_post_hook(lambda o, a, k: log.append(("post", type(o), len(a), list(k)))),
    ]
    yield log
    for handle in handles:
        handle.remove()


def test_global_optimizer_hooks_fire_for_any_optimizer(optimizer_log: list) -> None:
    class Mine(torch.optim.Optimizer):
        def __init__(self, parameters: list) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:
            pass

    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    for cls in (torch.optim.SGD, torch.optim.AdamW, Mine):
        cls([p]).step()
        assert optimizer_log[-2:] == [("pre", cls, 1, []), ("post", cls, 1, [])]


@pytest.mark.parametrize("keyword", [False, True])
def test_the_pre_hook_of_a_step_with_a_closure_runs_before_the_closure(optimizer_log: list, keyword: bool) -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([p], max_iter=1)

    def closure() -> Tensor:
        loss = p.square().sum()
        loss.backward()
        optimizer_log.append("closure")
        return loss

    optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    seen = (torch.optim.LBFGS, 1, ["closure"]) if keyword else (torch.optim.LBFGS, 2, [])
    assert optimizer_log[0] == ("pre", *seen) and optimizer_log[1] == "closure"
    assert optimizer_log[-1] == ("post", *seen)


OPTIMIZERS: dict[str, tuple[type, dict, bool]] = {
    "fused AdamW": (torch.optim.AdamW, {"fused": True}, False),
    "fused SGD": (torch.optim.SGD, {"fused": True}, False),
    "foreach AdamW": (torch.optim.AdamW, {"foreach": True}, True),
    "single AdamW": (torch.optim.AdamW, {"foreach": False}, True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimizers_do_not_move_the_version(name: str) -> None:
    cls, options, moves = OPTIMIZERS[name]
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    version, before = p._version, p.detach().clone()
    cls([p], lr=0.1, **options).step()
    assert not torch.equal(p, before) and (p._version != version) is moves


def test_data_and_batch_norm_do_not_move_the_version() -> None:
    p, norm = nn.Parameter(torch.ones(2)), nn.BatchNorm1d(2)
    p.data.add_(1)
    assert p.tolist() == [2, 2] and p._version == 0
    versions = {name: b._version for name, b in norm.named_buffers()}
    norm(torch.randn(4, 2))
    moved = {name for name, b in norm.named_buffers() if b._version != versions[name]}
    assert norm.running_mean.any() and moved == {"num_batches_tracked"}


def test_accumulating_a_gradient_keeps_the_object_and_moves_its_version() -> None:
    p = leaf(2)
    p.sum().backward()
    gradient, version = p.grad, p.grad._version
    p.sum().backward()
    assert p.grad is gradient and gradient._version > version


def test_named_parameters_and_named_modules_drop_a_second_name() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    net["b"].weight = net["a"].weight
    net["c"] = net["a"]
    names = ["a.weight", "b.weight", "c.weight"]
    assert [n for n, _ in net.named_parameters()] == names[:1]
    assert [n for n, _ in net.named_parameters(remove_duplicate=False)] == names
    assert [n for n, _ in net.named_modules()] == ["", "a", "b"]
    assert [n for n, _ in net.named_modules(remove_duplicate=False)] == ["", "a", "b", "c"]


# ---- weak references, modes ----------------------------------------------------------------------------


def test_tensors_take_weak_references_which_live_as_long_as_the_tensor_does() -> None:
    x = inner(2)
    y = x * 2
    saved, dropped, gradient = y.exp() * y, weakref.ref(torch.ones(1)), leaf(2)
    gradient.sum().backward()
    in_graph, of_gradient = weakref.ref(y), weakref.ref(gradient.grad)
    del y
    gc.collect()
    assert dropped() is None
    assert in_graph() is not None and of_gradient() is gradient.grad  # kept by C++ alone: still the same object
    del saved
    assert in_graph() is None


def test_inference_tensors_have_no_version_but_take_weak_references() -> None:
    with torch.inference_mode():
        x = torch.ones(1)
    assert weakref.ref(x)() is x and x.is_inference()
    with pytest.raises(RuntimeError, match="do not track version counter"):
        _ = x._version


def test_function_modes_see_no_backward_ops_and_dispatch_modes_do() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    log: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            log.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            log.append(str(func))
            return func(*args, **(kwargs or {}))

    with Functions():
        leaf(2).tanh().sum().backward()
    assert "tanh" in log and not any("tanh_backward" in name for name in log)
    with Dispatches():
        leaf(2).tanh().sum().backward()
    assert any("tanh_backward" in name for name in log)


# ---- distributed ---------------------------------------------------------------------------------------


def ddp_worker(rank: int, store: str, static_graph: bool) -> None:
    """Rank 0's input gives a gradient of 1, rank 1's of 3: reduced it is 2 on both."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(1, 1, bias=False)
    model, log = DistributedDataParallel(net, static_graph=static_graph), {}

    def at_end(when: str) -> None:
        log[when] = net.weight.grad.item()

    def hook(gradient: Tensor) -> None:
        queue_callback(lambda: queue_callback(lambda: at_end("queued twice")))

    net.weight.register_post_accumulate_grad_hook(lambda p: at_end("accumulated"))
    for _ in range(2):  # the reducer is rebuilt after the first
        net.zero_grad()
        out = model(torch.tensor([[1.0 + 2 * rank]]))
        out.register_hook(hook)
        out.sum().backward()
        log["backward"] = net.weight.grad.item()
        assert log == {"accumulated": 1.0 + 2 * rank, "queued twice": 2.0, "backward": 2.0}, log
    dist.destroy_process_group()
    os._exit(0)  # torch 2.13 with gloo aborts in one of ten plain interpreter exits


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
@pytest.mark.parametrize("static_graph", [False, True])
def test_under_ddp_accumulate_hooks_see_the_local_gradient_and_a_callback_queued_twice_the_reduced_one(
    tmp_path: Path, static_graph: bool
) -> None:
    arguments = (str(tmp_path / "store"), static_graph)
    torch.multiprocessing.spawn(ddp_worker, arguments, nprocs=2)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
def test_fsdp2_parameters_and_gradients_are_dtensors_with_placements_and_a_local_shard() -> None:
    import torch.distributed as dist

    fsdp = pytest.importorskip("torch.distributed.fsdp")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        net, inside = nn.Sequential(nn.Linear(2, 2)), []
        fsdp.fully_shard(net, mesh=mesh)
        net[0].register_forward_pre_hook(lambda m, args: inside.append(type(m.weight)))
        out = net(torch.ones(1, 2))
        out.sum().backward()
        weight = net[0].weight
        assert type(out) is Tensor and isinstance(net, fsdp.FSDPModule) and type(net).__name__ == "FSDPSequential"
        assert type(weight.grad).__name__ == "DTensor" and weight.placements[0].is_shard(0)
        assert weight.to_local().shape == (2, 2) and inside == [nn.Parameter]
    finally:
        dist.destroy_process_group()
