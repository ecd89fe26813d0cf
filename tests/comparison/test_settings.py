"""Optimizers that are set differently."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import probe
from probe.adapters import numpy_nn as nn
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.comparison.planted import Clean, Model, Recorder, said
from tests.toys import gpt


class Adam(nn.AdamW):
    """The same under another name: what it does differs only with weight decay."""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda m: nn.AdamW(m.parameters(), lr=1e-3, eps=1e-10), "eps 1e-08 against 1e-10 (group 0)"),
        (lambda m: Adam(m.parameters(), lr=1e-3), "AdamW against Adam (group 0)"),
        (lambda m: nn.AdamW([{"params": m.parameters()[:9]}, {"params": m.parameters()[9:], "eps": 1e-10}], lr=1e-3),
         "eps 1e-08 against 1e-10 (group 0)"),
    ],
)  # fmt: skip
def test_settings_that_differ_and_do_not_show_are_not_aligned(
    clean: Clean, run: Recorder, make: Callable[[Model], nn.Optimizer], text: str
) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, steps=2, optimizer=make(model)))
    assert (found.verdict, found.divergences) == (Verdict.UNDECIDED, ())
    (warning,) = found.warnings
    assert warning.startswith("the optimizers are set differently for ")
    assert warning.endswith(f" parameters: {text}; that does not show in the numbers yet")


def test_settings_that_are_blamed_are_not_said_to_leave_no_trace(clean: Clean, run: Recorder) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, optimizer=nn.AdamW(model.parameters(), lr=1.1e-3)))
    assert found.verdict is Verdict.DIVERGED
    assert not said(found, "set differently")


def test_another_class_of_optimizer_is_named_where_the_updates_differ(clean: Clean, run: Recorder) -> None:
    model = gpt()
    first = probe.compare(clean(), run(model, optimizer=nn.SGD(model.parameters(), lr=1e-3))).first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert first.hint == "the settings differ: AdamW against SGD, weight_decay 0.01 against 0.0 (group 0)"
