"""What printing an answer shows, and its short form."""

from __future__ import annotations

from pathlib import Path

import probe
from probe.adapters.numpy import nn
from probe.report.text import render
from tests.curve_runs import losses, write_csv
from tests.toys import gpt, module, record


def test_an_answer_prints_as_its_report(tmp_path: Path) -> None:
    def faulty() -> nn.Module:
        model = gpt()
        module(model, "layers.1.norm2").eps = 1e-3
        return model

    found = probe.compare(record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", faulty()))
    assert str(found) == render(found, width=80).plain
    assert str(found).startswith(
        "DIVERGED  A a.h5  B b.h5\n  A and B  GPT  44 modules  8.64 K parameters  1 step  numpy "
    )
    assert "\n\nFirst divergence  step 0 · forward · introduced\n" in str(found)
    assert repr(found) == "<Comparison: diverged, first at layers.1.norm2: step 0, forward>"
    assert repr(found.first_divergence).startswith(
        "<Divergence: layers.1.norm2: step 0, forward output, introduced, confidence 0."
    )
    output = found["layers.1.norm2"].output[0]
    assert repr(output).startswith("<layers.1.norm2 output 0, step 0: ") and repr(output).endswith(", introduced>")
    assert " relative error, norm B/A 0." in str(output)
    assert repr(output) in str(found["layers.1.norm2"])
    again = probe.compare(tmp_path / "a.h5", record(tmp_path / "c.h5", gpt()))
    assert repr(again) == "<Comparison: aligned>"


def test_files_of_one_name_have_their_folders(tmp_path: Path) -> None:
    files = []
    for folder in ("torch", "paddle"):
        (tmp_path / folder).mkdir()
        files.append(record(tmp_path / folder / "run.h5", gpt()))
    found = probe.compare(*files)
    assert str(found).startswith("ALIGNED  A torch/run.h5  B paddle/run.h5\n")
    assert "A torch/run.h5 · B paddle/run.h5" in found._repr_html_()
    assert repr(probe.open(files[0])) == "<probe recording run.h5: numpy, 1 step>"


def test_a_comparison_of_curves_prints_as_its_report(tmp_path: Path) -> None:
    values = losses(200)
    a = write_csv(tmp_path / "a.csv", loss=values)
    found = probe.curves(a, write_csv(tmp_path / "b.csv", loss=values + 0.5 * (values < values[100])))
    assert str(found).startswith("DIVERGED  A a.csv (")
    assert repr(found).startswith("<CurveComparison: diverged, first: ") and "\n" not in repr(found)
    assert repr(probe.curves(a, write_csv(tmp_path / "c.csv", loss=values))).startswith("<CurveComparison: ")
