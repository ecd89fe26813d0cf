"""What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): optimizers, versions, weak references, modes, distributed training.

No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.
"""

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from facts import inner, leaf, one_thread_one_seed, queue_callback  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402
from torch.optim.optimizer import (  # noqa: E402
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

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
