"""What the PaddlePaddle adapter relies on, a test for each sentence (docs/reference/recording.md).

No test here touches probe's adapter but for the tables in it: where one fails, PaddlePaddle has changed.
"""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from paddle import Tensor, nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

engine = paddle.base.core.eager
both_modes = pytest.mark.parametrize("reentrant", [True, False])


@pytest.fixture(autouse=True)
def one_seed() -> None:
    paddle.seed(0)


def leaf(*shape: int) -> Tensor:
    tensor = paddle.randn(shape)
    tensor.stop_gradient = False
    return tensor


def inner(*shape: int) -> Tensor:
    """A tensor with a producer, so not a leaf."""
    return leaf(*shape) * 2


class Fails(nn.Layer):
    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError


# ---- hooks on layers -----------------------------------------------------------------------------------


def test_hooks_see_keyword_arguments() -> None:
    class Keyword(nn.Layer):
        def forward(self, *, x: Tensor) -> Tensor:
            return x

    seen: list[tuple] = []
    layer, x = Keyword(), paddle.ones([1])
    layer.register_forward_pre_hook(lambda m, args, kw: seen.append((args, kw)), with_kwargs=True)
    layer.register_forward_post_hook(lambda m, args, kw, out: seen.append((args, kw, out)), with_kwargs=True)
    layer(x=x)
    assert seen[0][0] == () and seen[0][1]["x"] is x and seen[1][2] is x


def test_hooks_that_are_always_called_run_with_none_when_forward_raises() -> None:
    seen: list[tuple] = []
    net = nn.Sequential(Fails())
    for layer in net.sublayers(include_self=True):
        layer.register_forward_post_hook(
            lambda m, args, out: seen.append((type(m), out, sys.exc_info()[0])), always_call=True
        )
    with pytest.raises(ZeroDivisionError):
        net(paddle.ones([1]))
    assert seen == [(Fails, None, ZeroDivisionError), (nn.Sequential, None, ZeroDivisionError)]


def test_hooks_are_copied_with_their_layer() -> None:
    net = nn.Linear(2, 2)
    net.register_forward_pre_hook(lambda *_: None)
    assert len(copy.deepcopy(net)._forward_pre_hooks) == 1


# ---- tensors -------------------------------------------------------------------------------------------


def test_address_shape_and_strides_give_a_tensors_values_without_a_copy() -> None:
    tensor = paddle.arange(24, dtype="float32").reshape([4, 6])
    view = tensor.transpose([1, 0])[2:, 1]
    assert view.data_ptr() != tensor.data_ptr() and list(view.get_strides()) == [1] and not view.offset < 0
    assert tensor.transpose([1, 0]).data_ptr() == tensor.data_ptr()
    assert list(tensor.transpose([1, 0]).get_strides()) == [1, 6] and not tensor.transpose([1, 0]).is_contiguous()


def test_empty_tensors_are_not_initialised_and_lie_nowhere() -> None:
    empty = paddle.zeros([0, 3])
    assert not empty._is_initialized() and empty.data_ptr() == 0


def test_writes_by_set_value_and_copy_do_not_count() -> None:
    tensor = paddle.ones([2])
    before = tensor.inplace_version
    tensor.set_value(paddle.zeros([2]))
    tensor.copy_(paddle.ones([2]), False)
    assert tensor.inplace_version == before
    tensor.scale_(2.0)
    assert tensor.inplace_version == before + 1


def test_asking_a_tensor_for_its_node_leaks_the_graph() -> None:
    class Token:
        pass

    class Keeps(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.token = Token()
            tokens.append(weakref.ref(ctx.token))
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    tokens: list[weakref.ref] = []
    for ask in (False, True):
        output = Keeps.apply(inner(2)) * 1
        if ask:
            output.grad_fn  # noqa: B018
        del output
    gc.collect()
    assert [token() is None for token in tokens] == [True, False]  # so what one call contributes cannot be had


def test_a_tensor_that_is_a_leaf_can_be_told_without_its_node() -> None:
    assert leaf(2).is_leaf and paddle.ones([2]).is_leaf and not inner(2).is_leaf


def test_tensor_attributes_become_buffers_that_are_not_saved() -> None:
    layer = nn.Linear(2, 2)
    layer.kept = paddle.ones([2])
    layer.register_buffer("scale", paddle.ones([2]))
    assert set(layer._buffers) == {"kept", "scale"} and layer._non_persistable_buffer_names_set == {"kept"}


def test_running_statistics_are_parameters_that_are_not_trained() -> None:
    for layer in (nn.BatchNorm2D(3), nn.BatchNorm(3), nn.SyncBatchNorm(3)):
        named = dict(layer.named_parameters())
        assert set(named) == {"weight", "bias", "_mean", "_variance"} and not layer._buffers
        assert [name for name, parameter in named.items() if parameter.stop_gradient] == ["_mean", "_variance"]


def test_weights_of_linear_layers_are_stored_in_out() -> None:
    assert nn.Linear(2, 3).weight.shape == [2, 3]


def test_automatic_casts_do_nothing_on_the_cpu() -> None:
    with pytest.warns(UserWarning, match="it makes no effect"), paddle.amp.auto_cast(dtype="bfloat16"):
        assert nn.Linear(2, 2)(paddle.ones([1, 2])).dtype == paddle.float32


# ---- gradient hooks ------------------------------------------------------------------------------------


def test_a_hook_gets_the_total_once_however_many_use_the_tensor() -> None:
    x, seen = inner(2), []
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    (x * 2 + x * 5).sum().backward()
    assert seen == [[7, 7]]


def test_a_hook_set_before_a_write_in_place_sees_the_value_before() -> None:
    x, seen = inner(2), []
    x.register_hook(lambda gradient: seen.append(("before", gradient.tolist())))
    x.scale_(3.0)
    x.register_hook(lambda gradient: seen.append(("after", gradient.tolist())))
    x.sum().backward()
    assert seen == [("after", [1, 1]), ("before", [3, 3])]


@pytest.mark.parametrize("change", ["view", "base"])
def test_a_hook_on_a_view_survives_writes_in_place(change: str) -> None:
    base, seen = inner(4), []
    view = base.reshape([2, 2])
    view.register_hook(lambda gradient: seen.append(gradient.shape))
    (view if change == "view" else base).scale_(3.0)
    view.sum().backward()
    assert seen == [[2, 2]]


def test_a_hook_on_a_tensor_without_gradient_raises() -> None:
    with pytest.raises(RuntimeError, match="stop gradient"):
        paddle.ones([1]).register_hook(lambda gradient: None)


def test_a_hook_that_returns_something_else_ends_the_process() -> None:
    code = "import paddle; x = paddle.ones([2]); x.stop_gradient = False; y = x * 1; y.register_hook(lambda g: 1)"
    done = subprocess.run([sys.executable, "-c", f"{code}; y.sum().backward(); print('alive')"], capture_output=True)
    assert done.returncode != 0 and b"alive" not in done.stdout


def test_an_exception_in_a_hook_reaches_the_caller_as_another_one() -> None:
    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError("planted")

    x = inner(2)
    x.register_hook(fail)
    with pytest.raises(OSError, match="planted"):
        x.sum().backward()


def test_hooks_of_a_leaf_run_once_a_backward_with_what_it_brought() -> None:
    x, seen = leaf(2), []
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    (x * 2 + x * 3).sum().backward()
    (x * 4).sum().backward()
    paddle.grad((x * 7).sum(), x)
    assert seen == [[5, 5], [4, 4]] and x.grad.tolist() == [9, 9]


def test_hooks_of_a_leaf_can_be_taken_off_by_number() -> None:
    x, seen = leaf(2), []
    number = x._register_grad_hook(lambda gradient: seen.append(1))
    assert x._remove_grad_hook(number) and not x._remove_grad_hook(number)
    x.sum().backward()
    assert not seen


def test_gradients_that_are_cleared_are_zeros_or_gone() -> None:
    x = leaf(2)
    x.sum().backward()
    x.clear_gradient(True)
    assert x._grad_ivar().tolist() == [0, 0]
    x.clear_gradient(False)
    assert x._grad_ivar() is None


def test_operations_in_a_gradient_hook_would_have_a_graph() -> None:
    x, seen = inner(2), []
    x.register_hook(lambda gradient: seen.append((paddle.is_grad_enabled(), (gradient * 2).stop_gradient)))
    x.sum().backward()
    assert seen == [(True, False)]


def test_hooks_and_their_tensors_are_freed_without_a_backward() -> None:
    class Hook:
        def __call__(self, gradient: Tensor) -> None:
            return None

    x, hook = inner(2), Hook()
    references = [weakref.ref(x), weakref.ref(hook)]
    x._register_grad_hook(hook)
    del x, hook
    assert [reference() for reference in references] == [None, None]


# ---- backward passes -----------------------------------------------------------------------------------


def test_a_final_hook_runs_once_at_the_end_and_after_paddle_grad_too() -> None:
    seen: list[str] = []
    x = leaf(2)
    x.register_hook(lambda gradient: seen.append("leaf"))
    engine._add_backward_final_hook(lambda: seen.append("final"))
    x.sum().backward()
    x.sum().backward()
    engine._add_backward_final_hook(lambda: seen.append("final"))
    paddle.grad(x.sum(), x)
    assert seen == ["leaf", "final", "leaf", "final"]


def test_a_final_hook_that_was_set_in_a_final_hook_is_lost() -> None:
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        engine._add_backward_final_hook(lambda: seen.append("second"))

    engine._add_backward_final_hook(first)
    leaf(2).sum().backward()
    leaf(2).sum().backward()
    assert seen == ["first"]


def test_a_final_hook_of_a_pass_that_fails_runs_at_the_end_of_the_next() -> None:
    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    seen: list[str] = []
    x = inner(2)
    x.register_hook(fail)
    engine._add_backward_final_hook(lambda: seen.append("final"))
    with pytest.raises(OSError):
        x.sum().backward()
    assert not seen
    leaf(2).sum().backward()
    assert seen == ["final"]


def test_that_a_pass_runs_is_forgotten_when_one_inside_it_has_ended() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    seen: list[Any] = []
    hidden = inner(2, 3)
    hidden.register_hook(lambda gradient: seen.append(("outer", engine._is_run_in_backward())))
    second.weight.register_hook(lambda gradient: engine._add_backward_final_hook(lambda: seen.append("final")))
    output = first(recompute(second, hidden, use_reentrant=True))
    output.sum().backward()
    assert seen == ["final", ("outer", False)]
    assert not engine._is_run_in_backward()


@both_modes
def test_recomputation_runs_the_hooks_of_layers_again_during_backward(reentrant: bool) -> None:
    layer, seen = nn.Linear(3, 3), []
    layer.register_forward_post_hook(
        lambda *_: seen.append((paddle.is_grad_enabled(), engine._is_run_in_backward())) and None
    )
    recompute(layer, inner(2, 3), use_reentrant=reentrant).sum().backward()
    assert seen == [(not reentrant, False), (True, True)]


# ---- optimizers ----------------------------------------------------------------------------------------


def test_every_optimizer_clips_before_it_adds_decay_in_methods_that_can_be_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = paddle.optimizer
    for kind in (kinds.SGD, kinds.Momentum, kinds.Adam, kinds.AdamW, kinds.Adagrad, kinds.RMSProp, kinds.Lamb):
        order: list[str] = []
        for name in ("_apply_optimize", "append_regularization_ops", "_create_optimization_pass"):
            monkeypatch.setattr(kind, name, noting(order, name, getattr(kind, name)))
        clip = nn.ClipGradByNorm(0.1)
        monkeypatch.setattr(clip, "_dygraph_clip", noting(order, "clip", clip._dygraph_clip))
        layer = nn.Linear(2, 2)
        optimizer = kind(learning_rate=0.1, parameters=layer.parameters(), grad_clip=clip)
        layer(paddle.ones([1, 2])).sum().backward()
        optimizer.step()
        assert order == ["_apply_optimize", "clip", "append_regularization_ops", "_create_optimization_pass"], kind


def noting(order: list[str], name: str, original: Any) -> Any:
    def method(*args: Any, **kwargs: Any) -> Any:
        order.append(name)
        return original(*args, **kwargs)

    return method


def test_states_are_kept_by_the_names_of_parameters() -> None:
    layer = nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(parameters=layer.parameters(), name="mine")
    layer(paddle.ones([1, 2])).sum().backward()
    optimizer.step()
    assert set(optimizer._accumulators) == {
        "mine_moment1", "mine_moment2", "mine_beta1_pow_acc", "mine_beta2_pow_acc"
    }  # fmt: skip
    assert set(optimizer._accumulators["mine_moment1"]) == {layer.weight.name, layer.bias.name}


def test_rate_and_decay_of_a_group_become_attributes_of_its_parameters() -> None:
    layer = nn.Linear(2, 2)
    groups = [{"params": [layer.weight], "learning_rate": 0.5, "weight_decay": 0.1}, {"params": [layer.bias]}]
    optimizer = paddle.optimizer.SGD(0.1, parameters=groups)
    assert layer.weight.optimize_attr["learning_rate"] == 0.5 and layer.weight.regularizer._coeff == 0.1
    before = layer.weight.numpy()
    layer(paddle.zeros([1, 2])).sum().backward()
    optimizer.step()
    assert np.allclose(layer.weight.numpy(), before * (1 - 0.1 * 0.5 * 0.1), rtol=1e-6)


# ---- what the adapter finds by name in PaddlePaddle's sources ------------------------------------------


def test_functions_that_run_a_backward_pass_have_the_names_that_are_looked_for() -> None:
    from probe.adapters.paddle.backward import _ENTRIES

    found: set[tuple[str, str]] = set()

    def look(gradient: Tensor) -> None:
        frame = sys._getframe(1)
        while frame is not None:
            names = _ENTRIES.get(frame.f_code.co_name, ())
            found.update((frame.f_code.co_name, end) for end in names if frame.f_code.co_filename.endswith(end))
            frame = frame.f_back

    for run in (
        lambda x, y: y.sum().backward(),
        lambda x, y: paddle.autograd.backward([y.sum()]),
        lambda x, y: paddle.grad(y.sum(), x),
    ):
        x = leaf(2)
        y = x * 2
        y.register_hook(look)
        run(x, y)
    assert found == {(name, end) for name, ends in _ENTRIES.items() for end in ends}
