"""What axes are called, where shapes tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probe.records import Role
from probe.report.axes import Axes

CONFIG = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 97,
}


def slot(shape: tuple[int, ...], role: Role = Role.OUTPUT, **more: Any) -> Any:
    return SimpleNamespace(
        **{"shape_a": shape, "role": role, "dtype_a": "float32", "slot_a": "0", "class_a": "Linear", **more}
    )


IDS = slot((2, 7), Role.INPUT, dtype_a="int64")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 7, 32), ["batch", "token", "channel"]), ((7, 2, 32), ["token", "batch", "channel"]), ((14, 32), ["token", "channel"]),
        ((2, 7, 97), ["batch", "token", "word"]), ((2, 7, 5), ["batch", "token", "channel"]), ((2, 7), ["batch", "token"]),
        ((2, 4, 7, 7), ["batch", "head", "token", "token"]), ((2, 4, 7, 8), ["batch", "head", "token", "channel"]),
        ((5, 3), ["", ""]), ((4,), [""]), ((), []), ((2, 5), ["", ""]), ((1, 7), ["", "token"]),
    ],
)  # fmt: skip
def test_what_modules_are_given_and_return(shape: tuple[int, ...], expected: list[str]) -> None:
    assert Axes.of([IDS], CONFIG).names(slot(shape)) == expected


def test_without_token_ids_only_the_configuration_tells() -> None:
    axes = Axes.of([slot((2, 3, 8, 8), Role.INPUT)], {})
    assert axes.names(slot((2, 3, 8, 8))) == ["", "", "", ""]
    assert Axes.of([], CONFIG).names(slot((2, 7, 32))) == ["", "", "channel"]


def test_a_size_that_may_be_two_things_has_no_name() -> None:
    config = {"num_attention_heads": 32, "hidden_size": 32}
    assert Axes.of([], config).names(slot((5, 32))) == ["", ""]


@pytest.mark.parametrize(
    ("given", "order", "expected"),
    [
        (slot((8, 4), Role.PARAM, slot_a="weight"), (0, 1), ["out", "in"]),
        (slot((4, 8), Role.PARAM_GRAD, slot_a="weight"), (1, 0), ["in", "out"]),
        (slot((8, 4, 3, 3), Role.DELTA, slot_a="weight"), (), ["out", "in", "kernel row", "kernel column"]),
        (slot((97, 32), Role.STATE, slot_a="weight.exp_avg", class_a="VocabParallelEmbedding"), (), ["word", "channel"]),
        (slot((32,), Role.PARAM, slot_a="bias"), (), [""]), (slot((8, 4), Role.PARAM, slot_a="scales"), (), ["", ""]),
    ],
)  # fmt: skip
def test_weights(given: Any, order: tuple[int, ...], expected: list[str]) -> None:
    assert Axes.of([IDS], CONFIG).names(given, order) == expected
