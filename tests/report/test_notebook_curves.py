"""A comparison of curves in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.curve_comparison.result import CurveComparison
from probe.errors import ConfigError
from tests.report.test_notebook_html import TAGS, Seen, shown

STEPS, FAULT = 300, 200
NAMES = {"loss": 3.0, "<b>$x^2$ $\\frac{$</b>": 1.0}


def log(path: Path, jump: float = 0.0) -> Path:
    """Write a log of curves that fall, one of which jumps at a step."""
    rng = np.random.default_rng(0)
    rows = [",".join(["step", *NAMES])]
    for step in range(STEPS):
        values = [value * np.exp(-step / 100) + 1 + 1e-3 * rng.standard_normal() for value in NAMES.values()]
        values[0] += jump * (step >= FAULT)
        rows.append(",".join(map(str, [step, *values])))
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> CurveComparison:
    folder = tmp_path_factory.mktemp("curves")
    return probe.curves(log(folder / "a.csv"), log(folder / "b.csv", 0.3))


def test_the_answer(answer: CurveComparison) -> None:
    text = shown(answer)
    assert text.startswith("DIVERGED A a.csv · B b.csv¦loss leaves the noise band: ")
    assert f"¦loss¦out of the band¦{STEPS}¦{FAULT}¦" in text and f"→ {answer.findings[0].hint}" in text
    assert "noise¦built-in limits, and what the steps before show" in text


def test_names_are_text(answer: CurveComparison) -> None:
    seen = Seen(answer._repr_html_())
    assert seen.tags <= TAGS and "¦<b>$x^2$ $\\frac{$</b>¦" in seen.text


def test_undecided_says_why_once(tmp_path: Path) -> None:
    path = log(tmp_path / "a.csv")
    found = probe.curves(path, path)
    text = shown(found)
    assert text.startswith("UNDECIDED A a.csv · B a.csv¦")
    assert found.doubts and all(text.count(doubt) == 1 for doubt in found.doubts)


class TestPicture:
    """Drawn without a file."""

    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        pytest.importorskip("matplotlib").use("agg")
        yield
        from matplotlib import pyplot as plt

        plt.close("all")

    def test_axes_are_returned(self, answer: CurveComparison) -> None:
        axes = answer.plot()
        assert axes.shape == (1, 2)
        a, b = axes[0, 0].lines[:2]
        assert a.get_ydata().tolist() == answer["loss"].pair.a.tolist()
        assert b.get_ydata().tolist() == answer["loss"].pair.b.tolist()
        assert axes[0, 1].get_title("left") == "B − A, out of the band"

    def test_into_a_file_nothing_is_left_open(self, answer: CurveComparison, tmp_path: Path) -> None:
        from matplotlib import pyplot as plt

        axes = answer.plot(tmp_path / "c.png")
        assert axes.shape == (1, 2) and (tmp_path / "c.png").stat().st_size > 10_000 and not plt.get_fignums()

    def test_names_are_no_formulas(self, tmp_path: Path) -> None:
        name = next(name for name in NAMES if name != "loss")
        found = probe.curves(log(tmp_path / "a.csv"), log(tmp_path / "b.csv", 0.3), only=[name.replace("[", "?")])
        axes = found.plot()
        axes[0, 0].figure.canvas.draw()
        assert axes[0, 0].get_title("left") == name

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("step,loss\n1,2.0\n2,2.0\n", encoding="utf-8")
        (tmp_path / "b.csv").write_text("step,loss\n8,2.0\n9,2.0\n", encoding="utf-8")
        found = probe.curves(tmp_path / "a.csv", tmp_path / "b.csv")
        for path, where in ((None, ""), (tmp_path / "x.png", f" into {tmp_path / 'x.png'}")):
            with pytest.raises(ConfigError, match=f"nothing to draw{where}: the two runs have no curve with a step in"):
                found.plot(path)
