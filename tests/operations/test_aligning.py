"""Operations: one name for many, arguments that differ, and two sequences laid side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe.operations.aligning import Item, aligned
from probe.operations.names import canonical, differing, given_alone
from probe.records import ModuleInfo, Role
from probe.verdict.side import Call
from tests.verdict.tensors import tensor_of


@pytest.mark.parametrize("names", [
    ("torch.nn.functional.softmax", "torch.Tensor.softmax", "torch.softmax", "paddle.nn.functional.softmax", "mindspore.mint.softmax"),
    ("torch.Tensor.mul", "torch.Tensor.mul_", "paddle.multiply", "mindspore.ops.mul"),
    ("torch.Tensor.view", "torch.reshape", "torch.Tensor.unsqueeze"),
    ("torch.bmm", "torch.matmul", "torch.einsum"),
])  # fmt: skip
def test_one_operation_has_one_name(names) -> None:
    assert len(set(map(canonical, names))) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("torch.rsqrt", "torch.sqrt"), ("torch.sin", "torch.cos"), ("torch.add", "torch.sub")]
)
def test_other_operations_have_other_names(one, other) -> None:
    assert canonical(one) != canonical(other)


def info(arguments: str) -> ModuleInfo:
    return ModuleInfo("norm/add.0", "torch.Tensor.add", 1, arguments=arguments)


def test_arguments_that_differ_are_told_and_those_of_one_side_are_not() -> None:
    a, b = info('{"1": 1e-06, "alpha": 1}'), info('{"1": 1e-05, "out": 2, "alpha": 1}')
    assert differing(a, b) == {"1": (1e-06, 1e-05)}
    assert a.is_operation and not ModuleInfo("norm", "Norm", 0).is_operation


_RANDOM = np.random.default_rng(0)
X, Y, Z, W = (_RANDOM.normal(size=(6, 8)) * size for size in (1.0, 2.0, 3.0, 5.0))


def item(name: str, given=(), made=(), partner: int = -1, module: int = 0) -> Item:
    """Return an operation, or a module with a partner, that is given and returns arrays."""
    call = Call(module, name, name, 0, 0, 0, 1, None, "", True, True, partner < 0)
    for role, arrays in ((Role.INPUT, given), (Role.OUTPUT, made)):
        call.seen[role] = {str(at): tensor_of(array) for at, array in enumerate(arrays)}
    return Item(call, name if partner < 0 else "", partner)


def pairs(mine, theirs) -> list[tuple[str, str]]:
    return [(a.path, b.path) for a, b in aligned(mine, theirs)]


def test_operations_of_one_name_are_told_apart_by_what_they_are_given() -> None:
    mine = [item("mul", [X, Y], [Z])]
    theirs = [item("mul", [W, W], [W]), item("mul", [X, Y], [Z])]
    assert [b for _, b in aligned(mine, theirs)] == [theirs[1].call]


def test_another_function_of_the_same_is_its_partner() -> None:
    assert pairs([item("silu", [X], [Y])], [item("gelu", [X], [W])]) == [("silu", "gelu")]


def test_what_moves_numbers_alone_is_not_told_by_their_statistics() -> None:
    moved, flat = X.T.copy(), X.T.reshape(-1)
    mine = [item("transpose", [X], [moved]), item("view", [moved], [flat])]
    assert pairs(mine, [item("view", [X], [X.reshape(-1)])]) == [("view", "view")]


@pytest.mark.parametrize(("a", "b", "given"), [
    ("{}", '{"1": 1}', ("B", {"1": 1})), ('{"dim": -1, "dtype": "x"}', '{"dim": 2}', ("A", {"dtype": "x"})),
    ('{"1": -1}', '{"dim": -1}', ("", {})), ("{}", "{}", ("", {})),
])  # fmt: skip
def test_an_argument_that_one_side_alone_gives_is_told(a, b, given) -> None:
    one, other = (ModuleInfo("norm/tril.0", "torch.Tensor.tril", 1, arguments=text) for text in (a, b))
    assert given_alone(one, other) == given
    assert given_alone(one, replace(other, class_name="paddle.tril")) == ("", {}), "its signature is another"


def test_another_function_of_something_else_is_none() -> None:
    assert pairs([item("silu", [X], [Y])], [item("gelu", [W], [Z])]) == []


def test_fused_operations_meet_where_they_end() -> None:
    fused = [item("attention", [X, Y, Z], [W])]
    unfused = [item("matmul", [X, Y], [Z]), item("softmax", [Z], [Y]), item("matmul", [Y, Z], [W])]
    assert [b for _, b in aligned(fused, unfused)] == [unfused[-1].call]


def test_shapes_tell_apart_what_nothing_else_does() -> None:
    turned, other = item("transpose", [X], [X.T]), item("transpose", [Y.T * 3 + 1], [Y * 3 + 1])
    assert [b for _, b in aligned([item("transpose", [W], [W.T])], [other, turned])] == [turned.call]


def test_modules_with_partners_keep_operations_on_their_side() -> None:
    mine = [item("add", [X], [Y]), item("linear", partner=7), item("add", [X], [Y])]
    theirs = [item("linear", partner=0, module=7), item("add", [X], [Y])]
    mine[1].call.module = 0
    assert [(mine.index(next(i for i in mine if i.call is a)), b.path) for a, b in aligned(mine, theirs)] == [
        (2, "add")
    ]


def test_nothing_is_aligned_with_nothing() -> None:
    assert aligned([], [item("add", [X], [Y])]) == [] == aligned([], [])
