"""Whole answers on the toy framework: what is planted is named, what is right is aligned."""

from __future__ import annotations

import numpy as np
import pytest

from probe.adapters.numpy import nn
from probe.verdict.run import compare
from tests.toys import gpt, module, plain_step, record

TASKS = ["tensor", "statistics"]


def scaled(path: str, factor: float):
    """Return a model of which one weight is a multiple of what it was."""
    model = gpt()
    module(model, path).weight.data *= np.float32(factor)
    return model


def eps(path: str, value: float):
    """Return a model of which one norm has another eps."""
    model = gpt()
    module(model, path).eps = value
    return model


def activation(path: str):
    """Return a model of which one layer has another activation."""
    model = gpt()
    parent, _, name = path.rpartition(".")
    setattr(module(model, parent), name, nn.GELU())
    return model


PLANTED = {
    "eps": (lambda: eps("layers.1.norm2", 1e-3), "layers.1.norm2", "forward"),
    "weight": (lambda: scaled("layers.2.mlp.up", 1.01), "layers.2.mlp.up", "init"),
}


@pytest.mark.parametrize("task", TASKS)
def test_two_runs_of_one_program_are_aligned(tmp_path, task):
    a, b = (record(tmp_path / name, steps=2, task=task) for name in ("a.h5", "b.h5"))
    answer = compare(a, b)
    assert (answer.verdict, answer.divergences, answer.doubts) == ("aligned", (), ())
    assert all(slot.verdict == "equal" for slot in answer.slots)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("fault", PLANTED)
def test_what_is_planted_is_named_first(tmp_path, fault, task):
    make, path, phase = PLANTED[fault]
    answer = compare(record(tmp_path / "a.h5", task=task), record(tmp_path / "b.h5", make(), task=task))
    first = answer.first_divergence
    assert (answer.verdict, first.path, first.phase.label, first.step) == ("diverged", path, phase, 0)


def test_an_update_that_differs_is_one_of_the_optimizer(tmp_path):
    model = gpt()
    a = record(tmp_path / "a.h5", steps=2)
    b = record(tmp_path / "b.h5", model, steps=2, optimizer=nn.AdamW(model.parameters(), lr=2e-3))
    first = compare(a, b).first_divergence
    assert (first.phase.label, first.path, first.step) == ("update", "", 0)


@pytest.mark.parametrize("task", TASKS)
def test_weights_that_change_between_steps_are_named_before_what_shows_them(tmp_path, task):
    def averaged_step(model, optimizer, number):
        module(model, "layers.2.mlp.up").weight.data *= np.float32(0.99 if number else 1)
        return plain_step(model, optimizer, number)

    a = record(tmp_path / "a.h5", steps=2, task=task)
    first = compare(a, record(tmp_path / "b.h5", steps=2, step=averaged_step, task=task)).first_divergence
    assert (first.path, first.phase.label, first.step) == ("layers.2.mlp.up", "update", 1)


def test_what_was_not_recorded_stands_beside_the_verdict(tmp_path):
    a, b = (record(tmp_path / name, task="statistics", phases=["forward"]) for name in ("a.h5", "b.h5"))
    answer = compare(a, b)
    assert answer.verdict == "aligned"
    assert {left.what for left in answer.left_out} >= {"phases"}
    assert {"backward", "gradient", "update"} <= set(answer.left_out[0].names)


def test_a_weight_without_a_partner_stands_beside_the_verdict(tmp_path):
    a, b = (record(tmp_path / name, task="statistics") for name in ("a.h5", "b.h5"))
    answer = compare(a, b, {"ignore": ["layers.1.mlp"]})
    assert any(left.what == "weights" for left in answer.left_out), answer.left_out


def test_one_run_compared_with_itself_shows_nothing(tmp_path):
    a = record(tmp_path / "a.h5")
    assert compare(a, a).verdict == "undecided"
