"""What the PyTorch adapter relies on, a test for each sentence (docs/reference/recording.md): forward hooks, torch.compile.

No test here touches probe: where one fails, PyTorch has changed, and the adapter has to be looked at.
"""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from facts import inner, one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402


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
