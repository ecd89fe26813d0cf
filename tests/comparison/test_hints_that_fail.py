"""What fails while a cause is looked for costs its own text: the comparison stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.diagnosis import choosing
from tests.comparison.planted import Clean, Faulty


def _named(name: str) -> type[nn.RMSNorm]:
    return type(name, (nn.RMSNorm,), {})


def _record(path: Path, norm: nn.Module, width: int) -> Path:
    rng = np.random.default_rng(0)
    norm.weight.data[:] += 0.1 * rng.standard_normal(width).astype(np.float32)  # type: ignore[attr-defined]
    model = nn.Sequential(norm)
    with probe.capture(model, path, task="tensor"):
        model(Tensor(0.05 * rng.standard_normal((2, 6, width)).astype(np.float32)))
        probe.step()
    return path


@pytest.mark.parametrize(
    "name",
    [
        "GraniteRMSNorm",
        "GridRMSNorm",
        "InternLM2RMSNorm",
        "InstructRMSNorm",
        "BatchNorm",
        "GroupNorm",
        "InstanceNorm1d",
    ],
)
def test_eps_of_a_norm_of_any_name_is_solved(name: str, tmp_path: Path) -> None:
    norms = [_named(name)(8, eps) for eps in (1e-6, 1e-5)]
    found = probe.compare(*(_record(tmp_path / f"{k}.h5", norm, 8) for k, norm in enumerate(norms)))
    assert found.first_divergence is not None and not any("please report" in text for text in found.warnings)
    assert found.first_divergence.hint == (
        "A used eps 1.0e-06, B 1.0e-05 (verified from the recorded input, weight and output): "
        "look at eps in the settings of this module"
    )


def test_a_hint_that_fails_is_left_out_and_named(clean: Clean, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(evidence: object) -> None:
        raise ValueError("operands could not\nbe broadcast")

    hints = [replace(each, test=fails) if each.name == "eps" else each for each in choosing.HINTS]
    monkeypatch.setattr(choosing, "HINTS", hints)
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    assert found.verdict is Verdict.DIVERGED and found.first_divergence is not None
    assert found.first_divergence.path == "layers.1.norm2"
    said = "the hint “eps” failed at layers.1.norm2 and is left out: ValueError: operands could not be broadcast; please report"
    assert found.warnings.count(said) == 1


def test_settings_that_cannot_be_read_off_the_numbers_leave_the_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("planted")

    def record(path: Path, lr: float) -> Path:
        model = nn.Sequential(nn.RMSNorm(8))
        optimizer = nn.SGD(model.parameters(), lr=lr)
        with probe.capture(model, path):
            model(Tensor(np.arange(16, dtype=np.float32).reshape(2, 8))).sum().backward()
            optimizer.step()
            probe.step()
        return path

    monkeypatch.setattr("probe.comparison.optimizer.naming.named_settings", fails)
    found = probe.compare(record(tmp_path / "a.h5", 0.1), record(tmp_path / "b.h5", 0.2))
    assert found.first_divergence is not None
    assert found.first_divergence.hint.startswith("the settings differ: lr 0.1 against 0.2")
    said = "the hint “settings by the numbers” failed at the whole model and is left out: ZeroDivisionError: planted; please report"
    assert said in found.warnings
