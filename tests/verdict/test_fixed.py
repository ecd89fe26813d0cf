"""Fixed tolerances, and rules for single modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.result import Verdict
from probe.errors import ConfigError, MappingError
from probe.records import Phase, Role
from probe.report.text import render, stands
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, module, rounding_otherwise
from tests.verdict.planted import Clean, Faulty, Model, Recorder, changed

WHERE = "layers.1.norm2"
"""where the fault called eps is"""


def test_a_tolerance_between_noise_and_fault_names_the_fault(clean: Clean, faulty: Faulty) -> None:
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"), rtol=1e-6, metric="rel_l2")
    first = found.first_divergence
    assert first is not None and first.path == WHERE
    assert found.noise == "fixed rel_l2 rtol 1e-06"
    assert "the tolerance is rel_l2 rtol 1e-06 (for all tensors)" in first.evidence
    assert "(limit 1.0e-06)" in render(found).plain and "is noise" not in render(found).plain
    assert first.limit == 1e-6 and found.flip is not None
    assert found.flip.first == pytest.approx(first.metrics.rel_l2 / 1e-6)


def test_a_tolerance_beyond_the_fault_aligns_and_says_how_near_it_was(clean: Clean, faulty: Faulty) -> None:
    pair = clean("tensor"), faulty("eps", "tensor")
    found = probe.compare(*pair, rtol=0.2, metric="rel_l2")
    assert found.verdict is Verdict.ALIGNED and found.flip is not None and found.flip.closest is not None
    assert ", limit 2.0e-01; if all limits" in render(found).plain and "is noise" not in render(found).plain
    tighter = 0.2 * found.flip.factor
    assert probe.compare(*pair, rtol=tighter * 1.001, metric="rel_l2").verdict is Verdict.ALIGNED
    assert probe.compare(*pair, rtol=tighter * 0.999, metric="rel_l2").verdict is Verdict.DIVERGED


def test_the_factor_that_is_named_is_where_a_finding_ends(clean: Clean, faulty: Faulty) -> None:
    pair = clean("tensor"), faulty("eps", "tensor")
    options: dict[str, Any] = {"atol": 1e-8, "rtol": 1e-7}
    flip = probe.compare(*pair, **options).flip
    assert flip is not None and flip.factor >= flip.first > 1
    wider = {name: value * flip.factor * 1.001 for name, value in options.items()}
    assert probe.compare(*pair, **wider).verdict is Verdict.ALIGNED
    almost = {name: value * flip.factor * 0.999 for name, value in options.items()}
    assert probe.compare(*pair, **almost).verdict is Verdict.DIVERGED


class Masked(nn.Module):
    """Takes every second element away, and adds a constant to all."""

    def __init__(self, constant: float) -> None:
        super().__init__(weight=nn.Parameter(np.ones(4, np.float32)))
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * np.array([1, 0, 1, 0], np.float32) + self.constant


def test_what_no_relative_tolerance_excuses_holds_with_any(tmp_path: Path) -> None:
    files = []
    for constant in (0.0, 1e-3):
        files.append(tmp_path / f"{constant}.h5")
        with probe.capture(model := Masked(constant), files[-1], task="tensor"):
            model(Tensor(np.ones((2, 4), np.float32)))
            probe.step()
    found = probe.compare(*files, rtol=0.1)
    assert found.flip is not None and math.isinf(found.flip.factor)
    assert stands(found) == "above any limit"
    assert "inf times the tolerance (limit 1.0e+00)" in render(found).plain


def test_a_rule_s_limits_are_not_called_noise_either(clean: Clean, faulty: Faulty) -> None:
    pair = clean("tensor"), faulty("eps", "tensor")
    rule = {"path": WHERE, "phase": "forward", "metric": "max_abs", "atol": 1e-6}
    text = render(probe.compare(*pair, rules=[rule])).plain
    assert "noise: 1 rule; else built-in model" in text and "max |Δ| (limit 1.0e-06)" in text
    assert "(up to " in render(probe.compare(*pair)).plain, "the built-in model's are"


@pytest.mark.parametrize(("atol", "rtol"), [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3)])
def test_allclose_is_numpys(clean: Clean, faulty: Faulty, atol: float, rtol: float) -> None:
    a, b = clean("tensor"), faulty("eps", "tensor")
    found = probe.compare(a, b, atol=atol, rtol=rtol)
    first, second = probe.open(a), probe.open(b)
    for slot in found.slots:
        if (slot.phase, slot.role, slot.step) == (Phase.FORWARD, Role.OUTPUT, 0) and slot.dtype_a == "float32":
            x, y = (run[slot.path_a].output[0].values() for run in (first, second))
            assert np.allclose(y, x, rtol=rtol, atol=atol) == (slot.error <= slot.limit), slot.path_a


def test_a_tolerance_that_passes_random_networks_is_never_aligned(run: Recorder) -> None:
    other = gpt(seed=0)
    head = other.head
    head.weight.data[...] = np.random.default_rng(5).standard_normal(head.weight.shape).astype(np.float32)
    options: dict[str, Any] = {"task": "tensor", "phases": ["forward"]}
    found = probe.compare(run(**options), run(other, **options), atol=1e-4, rtol=1e3)
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.startswith("the tolerance is so wide that everything passes: with ") for text in found.doubts)


@pytest.mark.parametrize(
    "options", [{"atol": 1e3}, {"rtol": 1.0, "metric": "rel_l2"}, {"atol": 1e4, "metric": "mean_abs"}]
)
def test_other_tolerances_of_which_zeros_would_pass(clean: Clean, options: dict[str, Any], run: Recorder) -> None:
    found = probe.compare(clean("tensor"), run(rounding_otherwise(gpt()), steps=2, task="tensor"), **options)
    assert found.verdict is Verdict.UNDECIDED
    assert any("zeros in the place of B would pass too" in text for text in found.doubts)


def test_what_an_absolute_tolerance_hides_is_said(run: Recorder) -> None:
    model = gpt()
    a = run(model, task="tensor", optimizer=nn.AdamW(model.parameters(), lr=3e-5))
    other = rounding_otherwise(gpt())
    b = run(other, task="tensor", optimizer=nn.AdamW(other.parameters(), lr=3e-5))
    found = probe.compare(a, b, atol=1e-6)
    assert "3.3% of the learning rate 3e-05" in "\n".join(found.warnings)
    assert any("the absolute tolerance is more than 1 % of the size of" in text for text in found.warnings)


def test_statistics_cannot_tell_the_largest_error(clean: Clean, run: Recorder) -> None:
    other = run(rounding_otherwise(gpt()), steps=2)
    found = probe.compare(clean(), other, atol=1e-6, rtol=1e-3)
    assert found.verdict is Verdict.UNDECIDED
    assert any('record with task="tensor", or use --metric rel_l2' in text for text in found.doubts)
    assert probe.compare(clean(), other, rtol=1e-3, metric="rel_l2").verdict is Verdict.ALIGNED


def test_statistics_can_tell_that_all_errors_together_are_small_enough(clean: Clean, run: Recorder) -> None:
    assert probe.compare(clean(), run(rounding_otherwise(gpt()), steps=2), atol=1e-3).verdict is Verdict.ALIGNED


TOLERANCES: list[dict[str, Any]] = [
    {"atol": 1e-3}, {"atol": 1e-4}, {"atol": 1e-5}, {"rtol": 1e-3}, {"rtol": 1e-2, "atol": 1e-6}, {"rtol": 1e-3, "atol": 1e-5},
    {"atol": 1e-4, "metric": "max_abs"}, {"rtol": 1e-2, "metric": "max_rel"}, {"atol": 1e-5, "metric": "mean_abs"},
    {"rtol": 1e-4, "metric": "rel_l2"},
    {"rules": [{"path": "layers.*", "rtol": 1e-3}]},
]  # fmt: skip


def louder(factor: float) -> Callable[[Model], object]:
    def change(model: Model) -> None:
        module(model, "layers.1.mlp.down").weight.data *= factor

    return change


def eps(value: float) -> Callable[[Model], object]:
    return lambda model: setattr(module(model, WHERE), "eps", value)


PLANTED: dict[str, tuple[Callable[[Model], object], str]] = {
    **{f"eps {value:g}": (eps(value), WHERE) for value in (3e-5, 1e-3)},
    **{f"weight × {1 + by:g}": (louder(1 + by), "layers.1.mlp.down") for by in (1e-5, 1e-3)},
}


@pytest.mark.parametrize("fault", PLANTED)
def test_from_statistics_a_tolerance_never_names_another_place(clean: Clean, run: Recorder, fault: str) -> None:
    """What it cannot judge may be the fault: what is beyond it behind that is no finding, unless the values name it too."""
    change, where = PLANTED[fault]
    other, values = run(changed(change), steps=2), run(changed(change), steps=2, task="tensor")
    for options in TOLERANCES:
        found = probe.compare(clean(), other, **options)
        first = found.first_divergence
        if first is not None and first.path != where:
            named = probe.compare(clean("tensor"), values, **options).first_divergence
            assert named is not None and (named.phase, named.path) == (first.phase, first.path), f"{options}: {found}"
        if options.get("metric") == "max_rel":
            assert first is not None or found.verdict is Verdict.UNDECIDED, options


def test_statistics_can_tell_that_it_is_too_large(clean: Clean, faulty: Faulty) -> None:
    first = probe.compare(clean(), faulty("eps"), atol=1e-9).first_divergence
    assert first is not None and first.path == WHERE


# Rules


def test_a_rule_for_some_modules_and_the_built_in_model_for_the_others(clean: Clean, faulty: Faulty) -> None:
    pair = clean("tensor"), faulty("eps", "tensor")
    wide = [{"path": "*norm2", "rtol": 0.5, "metric": "rel_l2"}]
    found = probe.compare(*pair, rules=wide)
    assert found.noise == "1 rule; else built-in model"
    slots = [slot for slot in found[WHERE] if slot.phase is Phase.FORWARD and slot.role is Role.OUTPUT]
    assert [(slot.limit, slot.verdict) for slot in slots] == [(0.5, "noise")]
    by_class = probe.compare(*pair, rules=[{"path": "RMSNorm", "phase": "forward", "rtol": 0.5, "metric": "rel_l2"}])
    assert [s.limit for s in by_class[WHERE] if s.phase is Phase.FORWARD and s.role is Role.OUTPUT] == [0.5]
    assert not any(s.limit == 0.5 for s in by_class.slots if s.phase is Phase.BACKWARD)


def test_what_is_not_to_be_judged_is_counted(clean: Clean, faulty: Faulty, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n  - {path: '*', ignore: true}\n")
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"), rules=rules)
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("pairs of tensors are not judged, as rules say") for text in found.warnings)


def test_rules_stand_in_the_layer_mapping_too(clean: Clean, faulty: Faulty) -> None:
    mapping = {"TopLayer": {"layers": "layers"}, "rules": [{"path": "*norm2", "rtol": 0.5, "metric": "rel_l2"}]}
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"), mapping)
    assert found.noise == "1 rule; else built-in model"


def test_a_rule_that_fits_nothing_is_said(clean: Clean, run: Recorder) -> None:
    other = run(rounding_otherwise(gpt()), steps=2, task="tensor")
    found = probe.compare(clean("tensor"), other, rules=[{"path": "no.such", "rtol": 1e-3}])
    assert "rule on line 1 of the rules: nothing that was compared fits no.such" in found.warnings
    rules = [{"path": "*", "rtol": 1e-3}, {"path": "", "rtol": 1e-3}]
    said = "rule on line 2 of the rules: nothing that was compared fits the root, or a rule before it took it"
    assert said in probe.compare(clean("tensor"), other, rules=rules).warnings


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rtol": 1}, "a rule without a path; expected a glob of paths, or a class"),
        ({"path": "x"}, "x: metric allclose has nothing to be held against; expected atol or rtol"),
        ({"path": "x", "ignore": True, "atol": 1}, "ignore and atol: expected one of them"),
        ({"path": "x", "atol": 1, "fase": "forward"}, "fase is not known; expected path, phase, role"),
        ({"path": "x", "atol": 1, "phase": "fourward"}, "phase fourward is not known; expected init, forward"),
        ({"path": "x", "atol": "much"}, "could not convert string to float: 'much'"),
    ],
)
def test_rules_that_make_no_sense(clean: Clean, rule: dict[str, object], message: str) -> None:
    with pytest.raises(MappingError, match="the rules, line ") as raised:
        probe.compare(clean(), clean("tensor"), rules=[rule])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atol": -1.0}, "atol -1.0 is no tolerance; expected a number that is not negative"),
        ({"rtol": math.nan}, "rtol nan is no tolerance"),
        ({"metric": "rel_l2"}, "metric rel_l2 has nothing to be held against; expected rtol"),
        ({"metric": "max_abs", "rtol": 1.0}, "metric max_abs is not held against rtol; expected atol"),
        ({"metric": "rel_l1", "rtol": 1.0}, "metric 'rel_l1' is not known; expected allclose, max_abs"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(clean: Clean, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        probe.compare(clean(), clean("tensor"), **options)
    assert message in str(raised.value)
