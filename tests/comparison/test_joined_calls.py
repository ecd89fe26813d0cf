"""Calls of several micro-batches against one call of the other side: joined along the batch, in forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.fusion.joined_axes import batch_axis
from probe.comparison.result import Kind, Verdict
from probe.records import Phase, Role
from tests.comparison.planted import Model, Recorder, in_micro_batches
from tests.toys import batch, loss_of, module

Step = Callable[[Model, nn.Optimizer, int], float]


def with_fault(plant: Callable[[Model], None], count: int) -> Step:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        plant(model)
        return in_micro_batches(count)(model, optimizer, number)

    return step


def eps_of(path: str) -> Callable[[Model], None]:
    def plant(model: Model) -> None:
        module(model, path).eps = 10.0

    return plant


@pytest.mark.parametrize(("a", "b"), [(1, 2), (1, 4), (4, 2), (2, 1)])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_every_call_is_compared_where_one_split_divides_the_other(run: Recorder, a: int, b: int, task: str) -> None:
    answer = probe.compare(run(step=in_micro_batches(a), task=task), run(step=in_micro_batches(b), task=task))
    assert answer.verdict is Verdict.ALIGNED
    assert "micro-batches-joined" in {each.code for each in answer.notes}
    assert {slot.role for slot in answer.slots if slot.verdict in ("equal", "noise")} >= {
        Role.INPUT, Role.OUTPUT, Role.GRAD_INPUT, Role.GRAD_OUTPUT, Role.PARAM_GRAD,
    }  # fmt: skip
    assert answer.coverage.share == 1


@pytest.mark.parametrize("path", ["layers.0.norm1", "layers.1.norm2"])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_fault_is_named_in_the_forward_pass(run: Recorder, path: str, task: str) -> None:
    faulty = run(step=with_fault(eps_of(path), 4), task=task)
    first = probe.compare(run(step=in_micro_batches(2), task=task), faulty).first_divergence
    assert first is not None
    assert (first.path, first.phase, first.kind) == (path, Phase.FORWARD, Kind.INTRODUCED)


def test_a_loss_that_is_not_divided_is_told_as_before(run: Recorder) -> None:
    first = probe.compare(run(step=in_micro_batches(4)), run(step=in_micro_batches(2, scale=2.0))).first_divergence
    assert first is not None and first.path == ""
    assert first.hint == "accumulation is divided on A only: B does not divide the loss by its 2 micro-batches"


def test_samples_in_another_order_are_no_fault_and_other_samples_are_one(run: Recorder) -> None:
    def of(order: list[int]) -> Step:
        def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
            ids = np.concatenate([batch(number).data, batch(number + 50).data])[order]
            for part in np.split(ids, 2):
                (loss_of(model(Tensor(part)), Tensor(part)) * 0.5).backward()
            optimizer.step()
            optimizer.zero_grad()
            return 1.0

        return step

    one = run(step=in_micro_batches(1), task="tensor")
    strided = probe.compare(one, run(step=of([0, 2, 1, 3]), task="tensor"))
    assert strided.verdict is Verdict.ALIGNED and strided.coverage.share == 1
    other = probe.compare(one, run(step=of([0, 1, 2, 2]), task="tensor")).first_divergence
    assert other is not None and other.kind is Kind.INPUTS


@pytest.mark.parametrize(
    ("parts", "whole", "sizes", "axis"),
    [
        ([(2, 5), (2, 5)], (4, 5), (), 0),
        ([(5, 2, 3), (5, 1, 3)], (5, 3, 3), (2, 1), 1),
        ([(2, 2), (2, 2)], (2, 2), (2, 2), None),  # not joined: the whole is no larger
        ([(2, 5), (2, 5)], (4, 6), (), None),
        ([(), ()], (), (), None),  # losses of micro-batches are no parts of one
    ],
)
def test_the_axis_of_the_batch_is_the_one_whose_sizes_add_up(
    parts: list[tuple[int, ...]], whole: tuple[int, ...], sizes: tuple[int, ...], axis: int | None
) -> None:
    assert batch_axis(parts, whole, sizes) == axis
