"""Names of the tensors in arguments and outputs."""

from __future__ import annotations

import time
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from probe.numbers.slots import flatten

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    loss: object = None
    hidden: object = ()
    note: str = "text"


@dataclass
class Node:
    value: object = None
    parent: object = None
    children: list[object] = field(default_factory=list)


class T:
    """Stands for a tensor; what else it may be does not matter."""


class TensorDict(T, UserDict):
    """A tensor that looks like a container."""


a, b, c = T(), T(), T()


def slots(value: object, slot: str = "") -> list[tuple[str, object]]:
    return list(flatten(value, lambda item: isinstance(item, T), slot))


@pytest.mark.parametrize(
    "value, expected",
    [
        (a, [("0", a)]),
        ((a, b), [("0", a), ("1", b)]),
        ([a, None, 3, "x", b], [("0", a), ("4", b)]),
        ({"x": a, "y": [b, {"z": c}]}, [("x", a), ("y.0", b), ("y.1.z", c)]),
        ({1: a, (2, 3): b}, [("1", a), ("(2, 3)", b)]),
        (OrderedDict(z=a, y=b), [("z", a), ("y", b)]),
        (MappingProxyType({"m": a}), [("m", a)]),
        (UserDict(u=a), [("u", a)]),
        (Pair(a, (b,)), [("left", a), ("right.0", b)]),
        (Output(loss=a, hidden=(b, None, c)), [("loss", a), ("hidden.0", b), ("hidden.2", c)]),
        ([TensorDict(x=a)], None),
        ((a, a), [("0", a), ("1", a)]),
        ([[[]], {}, (), None, 5, "abc", b"abc", {a, b}, Output, object()], []),
        (None, []),
        ("text", []),
    ],
)
def test_names(value: object, expected: list[tuple[str, object]] | None) -> None:
    assert slots(value) == ([("0", value[0])] if expected is None else expected)  # type: ignore[index]


def test_a_name_for_the_whole() -> None:
    assert slots(a, "x") == [("x", a)]
    assert slots([a, {"k": b}], "x") == [("x.0", a), ("x.1.k", b)]


def test_containers_that_hold_themselves() -> None:
    """A tree whose nodes know their parents would take 5 to the 16 steps."""
    root = Node(a)
    root.children = [Node(b, root) for _ in range(5)]
    for child in root.children:
        child.children = [Node(c, child) for _ in range(5)]  # type: ignore[attr-defined]
    began = time.process_time()
    assert len(slots(root)) == 31
    assert slots(root)[:2] == [("value", a), ("children.0.value", b)]
    assert time.process_time() - began < 3
    holds_itself: list[object] = [a]
    holds_itself.append(holds_itself)
    assert slots(holds_itself) == [("0", a)]


def test_the_same_container_twice_is_not_a_circle() -> None:
    shared = [a]
    assert slots([shared, shared]) == [("0.0", a), ("1.0", a)]


def test_depth_is_bounded() -> None:
    deep: object = a
    for _ in range(12):
        deep = [deep]
    assert slots(deep) == [(".".join("0" * 12), a)]
    for _ in range(50):
        deep = [deep]
    assert slots(deep) == []


def test_many_items() -> None:
    began = time.process_time()
    assert len(slots([a, *range(300_000), b])) == 2
    assert time.process_time() - began < 3
