"""What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): gradient hooks, autograd edges, optimizers, versions, weak references, modes."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.torch.facts import inner, leaf, queue_callback, watch

# ---- What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): gradient hooks on tensors, autograd edges.
#
# No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.


class Twice(nn.Module):
    """Uses its input along two edges."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + x * 3


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


# ---- What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): optimizers, versions, weak references, modes, distributed training.
#
# No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.

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


@pytest.mark.thorough
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
