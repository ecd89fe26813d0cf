"""What was logged otherwise on the two sides, where every tensor agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.coverage.logged import Logged, logged_otherwise
from probe.comparison.result import Verdict
from tests.toys import gpt, module, plain_step

SQUARED = (
    "step 0: grad_norm was logged as 1.5 in A and 2.25 in B (B's is the square of A's: a norm of which the root was not taken); what was "
    "logged is judged by probe curves alone"
)


def test_a_norm_without_its_root_is_told_once(tmp_path: Path) -> None:
    files = []
    for power in (1, 2):
        model = gpt()
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        files.append(tmp_path / f"{power}.h5")
        with probe.capture(model, files[-1]):
            for step in range(2):
                probe.step(loss=plain_step(model, optimizer, step), grad_norm=1.5**power, seconds=power)
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    assert [text for text in found.warnings if "logged" in text] == [SQUARED]


def test_behind_a_finding_nothing_is_said_of_it(tmp_path: Path) -> None:
    files = []
    for value in range(2):
        model = gpt()
        if value:
            module(model, "layers.1.norm2").eps = 1e-2
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        files.append(tmp_path / f"{value}.h5")
        with probe.capture(model, files[-1]):
            probe.step(loss=plain_step(model, optimizer, 0), aux_loss=1.0 + value)
    found = probe.compare(*files)
    assert found.verdict is Verdict.DIVERGED and not any("logged" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("name", "x", "y", "is_said"),
    [
        ("global_norm", 1.0, 1.05, False),
        ("global_norm", 1.0, 1.2, True),
        ("aux_loss", 1.0, 1.005, False),
        ("aux_loss", 1.0, 1.02, True),
        ("train/lr", 3e-5, 3.1e-5, True),
        ("learning_rate", 0.0, 0.0, False),
        ("loss", 1.0, 2.0, False),
        ("tokens per second", 1.0, 2.0, False),
        ("grad_norm", float("nan"), 1.0, True),
        ("grad_norm", float("nan"), float("nan"), False),
        ("accuracy", 0.5, 0.6, True),
        ("tokens", 128.0, 64.0, True),
        ("step_time", 1.0, 2.0, False),
        ("tokens_per_sec", 1.0, 2.0, False),
        ("samples/s", 1.0, 2.0, False),
    ],
)
def test_what_is_said(name: str, x: float, y: float, is_said: bool) -> None:
    assert bool(logged_otherwise(0, {name: x}, {name: y})) is is_said
    assert logged_otherwise(0, {name: x}, {}) == []


def test_either_side_may_lack_the_root() -> None:
    said = logged_otherwise(3, {"grad_norm": 9.0}, {"grad_norm": 3.0})
    assert list(map(str, said)) == [
        "step 3: grad_norm was logged as 9 in A and 3 in B (A's is the square of B's: a norm of which the root was not taken); what was "
        "logged is judged by probe curves alone"
    ]


def test_what_one_side_alone_logged_is_told_once() -> None:
    logged = Logged()
    found = [
        logged.said(step, {"loss": 1.0, "seconds": 2.0}, {"lr": 1.0, "loss": 1.0} if step < 2 else {})
        for step in range(4)
    ]
    assert [list(map(str, each)) for each in found] == [
        ["step 0: logged in B only, and not compared: lr"],
        [],
        ["step 2: logged in A only, and not compared: loss"],
        [],
    ]


def test_a_loss_that_one_side_alone_was_given(tmp_path: Path) -> None:
    files = []
    for name in "ab":
        model = gpt()
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        files.append(tmp_path / f"{name}.h5")
        with probe.capture(model, files[-1]):
            loss = plain_step(model, optimizer, 0)
            probe.step(**({"loss": loss} if name == "a" else {"seconds": 1.0}))
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("step 0: logged in A only, and not compared: loss",)
