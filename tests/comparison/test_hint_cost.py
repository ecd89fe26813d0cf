"""What hints compute of large tensors is a sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from probe.comparison.notes import note
from probe.diagnosis import formulas
from probe.diagnosis.causes import patterns
from probe.records import Role


def test_products_are_computed_of_some_rows_and_columns() -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((6, 50, 40)), rng.standard_normal((700, 40)), rng.standard_normal(700)
    half: Any = SimpleNamespace(
        dtype="float32",
        parameter={"weight": weight, "bias": bias}.get,
        given=lambda: [x],
        values=x @ weight.T + bias,
    )
    found = dict(formulas._linear_formulas(half, SimpleNamespace(role=Role.OUTPUT)))  # type: ignore[arg-type]
    assert len(found) == 6 and all(values.size <= 128 * 256 for values in found.values())
    np.testing.assert_allclose(found[note("product-with-bias")], formulas._sampled_product(half))


def test_the_factor_of_a_finding_is_computed_once() -> None:
    asked: list[object] = []
    evidence: Any = SimpleNamespace(once=lambda compute: asked.append(compute))
    assert patterns.factor_of(evidence) is None and asked == [patterns._factor]
