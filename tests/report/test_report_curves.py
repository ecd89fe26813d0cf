"""Curves of both runs beside each other, in a bounded number of points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.records import Role
from probe.report.html import curves as curves_module
from probe.report.html.curves import curves
from probe.report.html.document import document
from probe.testing import sample
from tests.report.reading import MAPPING, Port, compared
from tests.toys import gpt, record

STEPS = 40


def logged(path: Path, spike: int = -1) -> Path:
    """Record a model that learns nothing, with a loss of its own."""
    nn.manual_seed(0)
    model = nn.Linear(3, 3)
    with probe.capture(model, path):
        for step in range(STEPS):
            model(Tensor(sample((2, 3), step))).sum().backward()
            probe.step(loss=1 / (step + 1) + (step == spike), lr=0.1)
    return path


def named(found: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    return {str(each["name"]): each for each in found}


def test_loss_rates_and_norms_of_both(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", steps=3), record(tmp_path / "b.h5", Port(), steps=3)
    compared = probe.compare(a, b, mapping=MAPPING)
    found = curves(str(a), str(b), compared.slots, 0)
    scalars, norms = named(found["scalars"]), named(found["norms"])
    assert list(scalars)[:3] == ["loss", "grad_norm of the recorded gradients", "lr"]
    assert scalars["loss"]["steps"] == [0, 1, 2] and len(scalars["loss"]["a"]) == len(scalars["loss"]["b"]) == 3
    one = norms["embed.weight ⟷ words.weight"]
    with probe.open(a) as run:
        known = [each.norm for each in run["embed"] if each.role.label == "param_grad" and each.phase.label == "update"]
    assert one["a"] == pytest.approx(known, rel=1e-5) and len(known) == 3


def test_what_only_one_has_is_no_curve(tmp_path: Path) -> None:
    a = logged(tmp_path / "a.h5")
    b = record(tmp_path / "b.h5", steps=2)
    assert [each["name"] for each in curves(str(a), str(b), (), 0)["scalars"]] == ["loss", "lr"]


def test_steps_of_b_are_counted_as_those_of_a(tmp_path: Path) -> None:
    a, b = logged(tmp_path / "a.h5"), logged(tmp_path / "b.h5")
    loss = named(curves(str(a), str(b), (), -10)["scalars"])["loss"]
    assert loss["steps"] == list(range(STEPS + 10)) and loss["a"][STEPS] is None and loss["b"][:10] == [None] * 10
    assert loss["b"][10] == loss["a"][0]


def test_a_long_curve_keeps_what_stands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves_module, "MOST_POINTS", 16)
    a, b = logged(tmp_path / "a.h5"), logged(tmp_path / "b.h5", spike=17)
    loss = named(curves(str(a), str(b), (), 0)["scalars"])["loss"]
    assert len(loss["steps"]) <= 16 and loss["total"] == STEPS
    assert {0, 17, STEPS - 1} <= set(loss["steps"])
    at = loss["steps"].index(17)
    assert loss["b"][at] - loss["a"][at] == pytest.approx(1, rel=1e-4)


def test_gradients_that_are_one_on_the_other_side_have_one_norm() -> None:
    from probe.curve_comparison.reading.series import Series
    from probe.report.html.curves import _together

    steps = np.arange(3)
    norms = {name: Series(name, steps, np.full(3, value)) for name, value in (("q", 3.0), ("k", 4.0))}
    assert _together(norms, "q + k").values.tolist() == [5, 5, 5]
    assert _together(norms, "q + v") is None


def test_gradients_that_differ_by_more_than_rounding_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is far off by rounding alone does not stand before one that is wrong by itself."""
    paths = [str(record(tmp_path / f"{seed}.h5", gpt(seed), steps=2)) for seed in (0, 1)]
    names = [name for name, module in gpt().modules() if hasattr(module, "weight")]
    verdicts = {(f"{name}.weight", f"{name}.weight"): "noise" for name in names}
    monkeypatch.setattr(curves_module, "_gradients", lambda slots: verdicts)
    by_difference = [each["name"] for each in curves(*paths, (), 0)["norms"]]
    verdicts[by_difference[-1], by_difference[-1]] = "introduced"
    found = curves(*paths, (), 0)["norms"]
    assert [each["name"] for each in found] == [by_difference[-1], *by_difference[:-1]]
    assert [each["verdict"] for each in found[:2]] == ["introduced", "noise"]


def test_the_worst_verdict_of_a_gradient_counts(tmp_path: Path) -> None:
    answer = compared(tmp_path, steps=2)
    wanted = {each.verdict for each in answer.slots if each.role is Role.PARAM_GRAD and each.path_a == "layers.1.norm2"}
    found = {each["name"]: each["verdict"] for each in document(answer)["curves"]["norms"]}
    assert found["layers.1.norm2.weight ⟷ decoder.1.ln2.weight"] in wanted - {"noise", "equal"}
