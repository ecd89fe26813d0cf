"""``--metric``: a curve whose last values must be as close as the user says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ConfigError
from tests.curves.curve_runs import losses, write_csv
from tests.curves.test_curves import command
from tests.golden_files import golden

LAST = 0.9
"""accuracy of A at the end"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def write(off_at_the_end: float, off_before: float = 0.05, **more: Any) -> None:
    accuracy = LAST - 0.4 * np.exp(-np.arange(20.0))
    accuracy[-1] = LAST
    off = np.full(20, off_before)
    off[10:] = off_at_the_end
    for name, values in (("a.csv", accuracy), ("b.csv", accuracy + off)):
        write_csv(Path(name), every=50, loss=losses()[::50], accuracy=values, **more)


@pytest.mark.parametrize(
    "limit, off, verdict",
    [
        ("0.15%", 0.0013, "aligned"), ("0.15%", -0.0013, "aligned"), ("0.15%", 0.0014, "diverged"), ("0.15%", -0.0014, "diverged"),
        ("0.002", 0.0019, "aligned"), ("0.002", 0.0021, "diverged"), ("0", 0.0, "aligned"), ("0", 1e-9, "diverged"),
        ("0.15%", np.nan, "diverged"), ("0.15%", np.inf, "diverged"),
    ],
)  # fmt: skip
def test_the_last_value_decides(limit: str, off: float, verdict: str) -> None:
    write(off)
    for metrics in (f"accuracy:{limit}", [f"accuracy:{limit}"], {"accuracy": limit}):
        found = probe.curves("a.csv", "b.csv", metrics=metrics)
        assert (found.verdict, found["accuracy"].judgement) == (
            verdict,
            "accepted" if verdict == "aligned" else "not accepted",
        )
        assert [each.kind for each in found.findings] == (["metric"] if verdict == "diverged" else [])
    assert probe.curves("a.csv", "b.csv").verdict == "aligned"  # without it, nothing decides but the loss


def test_it_decides_alone_and_with_the_standard() -> None:
    write(0.01)
    for name in ("a.csv", "b.csv"):
        lines = Path(name).read_text().splitlines()
        Path(f"only_{name}").write_text("\n".join(f"{row[0]},{row[2]}" for row in (line.split(",") for line in lines)))
    assert probe.curves("only_a.csv", "only_b.csv", metrics="accuracy:2%").verdict == "aligned"
    assert probe.curves("only_a.csv", "only_b.csv").verdict == "undecided"
    assert probe.curves("a.csv", "b.csv", metrics="accuracy:1%", standard=True).verdict == "diverged"
    assert probe.curves("a.csv", "b.csv", metrics="accuracy:2%", standard=True).verdict == "undecided"  # too few steps


def test_a_steady_offset_within_the_limit_is_accepted() -> None:
    write(0.02, off_before=0.02)
    assert probe.curves("a.csv", "b.csv", only="accuracy").verdict == "diverged"
    assert probe.curves("a.csv", "b.csv", only="accuracy", metrics="accuracy:3%").verdict == "aligned"


def test_a_loss_may_have_a_limit_too() -> None:
    for name, off in (("a.csv", 0.0), ("b.csv", 0.1)):
        write_csv(Path(name), loss=losses() + off)
    assert probe.curves("a.csv", "b.csv").verdict == "diverged"
    assert probe.curves("a.csv", "b.csv", metrics="loss:10%").verdict == "aligned"


@pytest.mark.parametrize(
    "text", ["accuracy", "accuracy:", "accuracy:x", "accuracy:-1%", "accuracy:nan", ":1%", "accuracy:inf"]
)
def test_what_is_no_limit_is_an_error(text: str) -> None:
    write(0.0)
    with pytest.raises(ConfigError, match="expected a name and a limit, such as accuracy:0.15% or accuracy:0.002"):
        probe.curves("a.csv", "b.csv", metrics=text)


def test_what_is_not_there_is_an_error() -> None:
    write(0.0)
    with pytest.raises(ConfigError, match="--metric f1: no curve of that name on both sides; there are accuracy, loss"):
        probe.curves("a.csv", "b.csv", metrics="f1:1%")


@pytest.mark.parametrize("limit, status", [("0.15%", 0), ("0.0005", 1)])
def test_the_report(limit: str, status: int) -> None:
    write(0.001)
    result = command("curves", "a.csv", "b.csv", "--no-plot", "--metric", f"accuracy:{limit}")
    assert result.exit_code == status
    assert max(map(len, result.stdout.splitlines())) <= 80
    golden(f"curves-metric-{'accepted' if status == 0 else 'not-accepted'}", result.stdout)
