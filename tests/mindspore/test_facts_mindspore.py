"""What of MindSpore probe's adapter rests on: one test per fact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore.nn.cell import _pynative_executor as executor  # noqa: E402

from probe.numbers.statistics import dtype_of  # noqa: E402


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def gradients(function: Any, cell: nn.Cell) -> tuple[Any, Any]:
    return mindspore.value_and_grad(function, None, cell.trainable_params())()


# ---- memory and dtypes ---------------------------------------------------------------------------------


def test_asnumpy_copies_nothing_on_the_cpu() -> None:
    tensor = numbers(3, 4)
    one, two = tensor.asnumpy(), tensor.asnumpy()
    assert one.__array_interface__["data"] == two.__array_interface__["data"] and not one.flags.owndata
    tensor[0, 0] = 7.0
    assert one[0, 0] == 7.0


def test_asnumpy_of_a_view_is_in_c_order() -> None:
    tensor = numbers(3, 4)
    for view in (tensor.T, tensor[:, 1:3]):
        assert not view.is_contiguous() and view.asnumpy().flags.c_contiguous
    assert np.array_equal(tensor.T.asnumpy(), tensor.asnumpy().T)


def test_bfloat16_comes_as_a_dtype_of_mindspores_own_and_numpy_knows_the_name_of_what_was_imported_last() -> None:
    array = Tensor(np.ones(2, np.float32)).astype(mindspore.bfloat16).asnumpy()
    assert array.dtype.name == "bfloat16" and array.dtype != np.dtype(ml_dtypes.bfloat16)
    assert np.dtype("bfloat16") in (array.dtype, np.dtype(ml_dtypes.bfloat16))
    assert dtype_of("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert array.view(np.uint16).view(ml_dtypes.bfloat16).astype(float).tolist() == [1.0, 1.0]


def test_float8_has_bytes_but_no_array() -> None:
    raw = bytes(range(6))
    tensor = Tensor(Tensor.convert_bytes_to_tensor(raw, (2, 3), mindspore.float8_e4m3fn))
    assert tensor.get_bytes() == raw and tensor.asnumpy().dtype.itemsize == 1
    assert tensor.asnumpy().dtype != np.dtype(ml_dtypes.float8_e4m3fn)


def test_the_version_does_not_change_with_every_write() -> None:
    tensor = numbers(3)
    before = tensor._version, tensor.asnumpy().copy()
    tensor.assign_value(numbers(3, seed=1))
    assert not np.array_equal(tensor.asnumpy(), before[1]) and tensor._version == before[0]


# ---- the graph -----------------------------------------------------------------------------------------


def test_gradients_are_on_only_inside_of_a_differentiated_function() -> None:
    dense = nn.Dense(4, 3)
    seen = [executor.requires_grad()]
    gradients(lambda: (seen.append(executor.requires_grad()), dense(numbers(5, 4)).sum())[1], dense)
    assert [*seen, executor.requires_grad()] == [False, True, False]
    assert not dense(numbers(5, 4))._requires_grad


def test_an_exception_in_a_differentiated_function_leaves_gradients_on() -> None:
    dense = nn.Dense(4, 3)
    with pytest.raises(ZeroDivisionError):
        gradients(lambda: dense(numbers(5, 4)).sum() / (1 // 0), dense)
    assert executor.requires_grad()
    executor.clear_res()
    assert not executor.requires_grad()


def test_nodes_have_ids_numbers_and_inputs() -> None:
    dense, seen = nn.Dense(4, 3), []

    def loss() -> Tensor:
        hidden = dense(numbers(5, 4))
        out = hidden * 2.0
        node, before = out._grad_node, hidden._grad_node
        source, number = node.next_functions[0]
        assert source is not before and source._unique_id() == before._unique_id() and number == hidden._output_index
        assert node._sequence_nr() > before._sequence_nr()
        weight = dense.weight._grad_node
        assert weight._sequence_nr() >= 1 << 63 and dense.weight._is_leaf and not out._is_leaf
        seen.append(1)
        return out.sum()

    gradients(loss, dense)
    assert seen


def test_a_view_of_a_parameter_of_ones_own_tells_the_number_of_the_next_node() -> None:
    dense, clock, seen = nn.Dense(4, 3), Parameter(Tensor(np.zeros(1, np.float32)), name="clock"), []

    def loss() -> Tensor:
        hidden = dense(numbers(5, 4))
        now = clock.view(1)._grad_node._sequence_nr()
        out = hidden * 2.0
        seen.append(hidden._grad_node._sequence_nr() < now < out._grad_node._sequence_nr())
        return out.sum()

    gradients(loss, dense)
    assert seen == [True] and clock.view(1)._grad_node is None


def test_a_hook_of_a_node_gets_the_gradients_that_cross_it() -> None:
    dense, seen = nn.Dense(4, 3), []

    def loss() -> Tensor:
        hidden = dense(numbers(5, 4))
        out = hidden * 2.0
        out._grad_node.register_hook(lambda given, taken: seen.append((given[0].asnumpy(), taken[0].asnumpy())))
        return (out * 3.0 + hidden * 5.0).sum()

    gradients(loss, dense)
    ((given, taken),) = seen
    assert (given == 6.0).all() and (taken == 3.0).all()


# ---- hooks on tensors ----------------------------------------------------------------------------------


def test_a_hook_that_returns_none_changes_nothing_and_sees_the_total() -> None:
    dense, seen = nn.Dense(4, 4), []

    def loss() -> Tensor:
        hidden = dense(numbers(5, 4))
        if watched:
            hidden.register_hook(lambda gradient: seen.append(gradient.asnumpy().copy()))
        return (hidden * 2.0 + hidden * 3.0).sum()

    watched = False
    plain = gradients(loss, dense)[1]
    watched = True
    for a, b in zip(plain, gradients(loss, dense)[1], strict=True):
        assert np.array_equal(a.asnumpy(), b.asnumpy())
    assert len(seen) == 1 and (seen[0] == 5.0).all()


def test_a_hook_sees_the_gradient_of_the_value_before_a_write_in_place() -> None:
    dense, seen = nn.Dense(4, 4), []

    def loss() -> Tensor:
        hidden = dense(numbers(5, 4))
        hidden.register_hook(lambda gradient: seen.append(float(gradient.asnumpy()[0, 0])))
        hidden.copy_(hidden * 3.0)
        return hidden.sum()

    gradients(loss, dense)
    assert seen == [3.0]


def test_a_parameters_hook_stays_sees_the_sum_over_uses_and_takes_part_in_one_pass() -> None:
    dense, seen, ends = nn.Dense(4, 4), [], []

    def arrived(gradient: Tensor) -> None:
        seen.append((executor.get_current_autodiff_engine_id(), gradient.asnumpy().copy()))
        executor.queue_backward_final_callback(lambda: ends.append((len(seen), len(others))))

    others: list[int] = []
    handle = dense.weight.register_hook(arrived)
    dense.bias.register_hook(lambda gradient: others.append(1))
    results = [gradients(lambda: dense(dense(numbers(5, 4))).sum(), dense)[1] for _ in range(2)]
    handle.remove()
    gradients(lambda: dense(numbers(5, 4)).sum(), dense)
    assert len(seen) == 2 and seen[0][0] != seen[1][0] and min(seen[0][0], seen[1][0]) >= 0
    assert all(np.array_equal(a[1], b[0].asnumpy()) for a, b in zip(seen, results, strict=True))
    assert ends == [(1, 1), (2, 2)]  # the callback runs when all gradients are there
    assert executor.get_current_autodiff_engine_id() == -1


def test_all_backward_passes_go_through_the_executors_grad_inside_which_hooks_can_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, seen = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 3)), []
    net[0].recompute()
    plain = executor.grad

    def grad(*args: Any) -> Any:
        handles = [Tensor.register_hook(p, lambda g, n=p.name: seen.append(n)) for p in weights] if not inside else []
        inside.append(1)
        try:
            return plain(*args)
        finally:
            inside.pop()
            for handle in handles:
                handle.remove()

    inside: list[int] = []
    weights = net.trainable_params()
    optimizer = nn.SGD(weights, 0.1)
    monkeypatch.setattr(executor, "grad", grad)
    x, label = numbers(5, 4), numbers(5, 3)
    for differentiate in (
        lambda: mindspore.value_and_grad(lambda: net(x).sum(), None, weights)(),
        lambda: mindspore.grad(lambda: net(x).sum(), None, weights)(),
        lambda: ops.GradOperation(get_by_list=True)(net, weights)(x),
        lambda: nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)(x, label),
    ):
        seen.clear()
        differentiate()
        assert sorted(seen) == sorted(p.name for p in weights) and not any(p.hooks() for p in weights)


def test_a_parameter_without_gradient_takes_no_hook() -> None:
    parameter = Parameter(Tensor(np.ones(2, np.float32)), requires_grad=False)
    with pytest.raises(RuntimeError, match="requires grad is false"):
        parameter.register_hook(lambda gradient: None)


def test_an_exception_in_a_hook_reaches_the_training() -> None:
    dense = nn.Dense(4, 4)

    def fail(gradient: Tensor) -> None:
        raise KeyError("planted")

    dense.weight.register_hook(fail)
    with pytest.raises(KeyError, match="planted"):
        gradients(lambda: dense(numbers(5, 4)).sum(), dense)


# ---- cells ---------------------------------------------------------------------------------------------


def test_a_cell_with_a_bprop_takes_no_forward_hook_and_does_not_say_so() -> None:
    class Own(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x * 2.0

        def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
            return (dout * 2.0,)

    cell, seen = Own(), []
    cell.register_forward_hook(lambda *_: seen.append(1))
    cell(numbers(2))
    assert not seen and cell.has_bprop


def hook(cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


def calling(dense: nn.Cell) -> Any:
    def forward(x: Tensor) -> Tensor:
        return dense(x)

    return forward


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)

    @mindspore.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.dense(x)


def test_hooks_are_compiled_with_the_code_around_them_which_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes down what it could not compile
    dense = nn.Dense(4, 4)
    dense.register_forward_pre_hook(hook, with_kwargs=True)
    compiled = mindspore.jit(calling(dense))
    with pytest.raises(TypeError, match="parameters number of the function is 3, but .* is 2"):
        compiled(numbers(2, 4))


def test_compiled_code_calls_the_cells_inside_without_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = nn.Cell.__call__

    def call(cell: nn.Cell, *args: Any) -> Any:
        seen.append(type(cell).__name__)
        return plain(cell, *args)

    monkeypatch.setattr(nn.Cell, "__call__", call)
    cell, x = Compiled(), numbers(2, 4)
    expected = x.asnumpy() @ cell.dense.weight.asnumpy().T + cell.dense.bias.asnumpy()
    assert np.allclose(cell(x).asnumpy(), expected, atol=1e-5) and seen == ["Compiled"]


@pytest.mark.parametrize("mode", ["ast", "bytecode", "trace"])
def test_what_jit_puts_in_the_place_of_construct_is_known_by_its_code(mode: str) -> None:
    class Compiled(nn.Cell):
        @mindspore.jit(capture_mode=mode)
        def construct(self, x: Tensor) -> Tensor:
            return x * 2.0

    construct = Compiled().construct
    assert construct.__code__.co_name in ("staging_specialize", "_fn", "jit_trace_wrap") and construct.__wrapped__


def test_recompute_puts_a_cell_inside_and_runs_without_gradients_first() -> None:
    net, seen = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU()), []
    net[0].recompute()
    assert [path for path, _ in net.cells_and_names()] == [
        "",
        "0",
        "0._recompute_cell",
        "0._recompute_cell.wrap_cell",
        "1",
    ]

    def note(cell: nn.Cell, args: tuple[Any, ...], output: Tensor) -> None:
        seen.append((executor.requires_grad(), executor.get_current_autodiff_engine_id() >= 0))

    net[0]._recompute_cell.wrap_cell.register_forward_hook(note)
    gradients(lambda: net(numbers(2, 4)).sum(), net)
    assert seen == [(False, False), (True, True)]


def test_running_statistics_are_parameters_without_gradient() -> None:
    norm = nn.BatchNorm2d(3)
    named = {name: parameter.requires_grad for name, parameter in norm.parameters_and_names()}
    assert named == {"moving_mean": False, "moving_variance": False, "gamma": True, "beta": True}


def test_a_dense_weight_is_out_in() -> None:
    assert nn.Dense(4, 3).weight.shape == (3, 4)


# ---- optimizers ----------------------------------------------------------------------------------------


def test_an_optimizer_is_a_cell_that_is_called_with_the_gradients_in_the_order_of_its_parameters() -> None:
    dense, seen = nn.Dense(4, 4), []
    optimizer = nn.Momentum(dense.trainable_params(), 0.1, 0.9)
    assert isinstance(optimizer, nn.Cell) and [
        p is q for p, q in zip(optimizer.parameters, dense.trainable_params(), strict=True)
    ]
    optimizer.register_forward_pre_hook(lambda cell, args: seen.append(len(args[0])))
    optimizer.register_forward_hook(lambda cell, args, output: seen.append("after"))
    optimizer(gradients(lambda: dense(numbers(5, 4)).sum(), dense)[1])
    assert seen == [2, "after"]


def test_all_optimizers_are_of_two_classes_that_leave_their_call_to_cell() -> None:
    from mindspore.experimental.optim import Optimizer as Grouped

    for module in (nn, mindspore.experimental.optim, mindspore.mint.optim):
        found = [value for value in vars(module).values() if isinstance(value, type) and "optim" in value.__module__]
        kinds = [kind for kind in found if issubclass(kind, nn.Cell) and hasattr(kind, "parameters_and_names")]
        optimizers = [kind for kind in kinds if issubclass(kind, (nn.Optimizer, Grouped))]
        assert optimizers and all(kind.__call__ is nn.Cell.__call__ for kind in optimizers)


def test_gamma_and_beta_do_not_decay_unless_they_are_in_groups() -> None:
    norm = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)))
    weights = norm.trainable_params()
    assert nn.Adam(weights, weight_decay=0.1).decay_flags == (True, True, False, False)
    assert nn.Adam([{"params": weights}], weight_decay=0.1).decay_flags == (True, True, True, True)


def test_a_loss_scale_multiplies_the_weight_decay_and_divides_the_gradients() -> None:
    weights = nn.Dense(4, 4).trainable_params()
    optimizer = nn.Momentum(weights, 0.1, 0.9, weight_decay=0.01, loss_scale=4.0)
    assert float(optimizer.weight_decay.asnumpy()) == pytest.approx(0.04)
    assert float(optimizer.reciprocal_scale.asnumpy()) == 0.25 and optimizer.need_scale


def test_some_writes_in_place_do_nothing_on_the_cpu() -> None:
    """Why the tests write with ``copy_``: these kernels are missing, and nothing is said."""
    tensor = ops.ones((2,), mindspore.float32)
    tensor.mul_(3.0)
    assert tensor.asnumpy().tolist() in ([1.0, 1.0], [3.0, 3.0])
    tensor.copy_(tensor * 0.0 + 5.0)
    assert tensor.asnumpy().tolist() == [5.0, 5.0]
