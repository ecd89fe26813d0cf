"""`probe curves`: trainings of toy models with faults at known steps, and what the command prints, writes and returns.

``OVERWRITE_GOLDEN=1 pytest tests/curves/test_curves.py`` writes the golden files anew.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import probe
from probe.commands.cli import main
from probe.curve_comparison import CurveComparison
from probe.curve_comparison.reading.recorded import BEFORE_CLIPPING, TOTAL
from probe.report.curves.table import COLUMNS
from tests.curves import curve_runs
from tests.curves.curve_runs import Model, losses, megatron, mindformers, train, wave, write_csv
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import scaled_gradient

FAULT = 417
"""of a curve of 1,000 steps"""
STEPS, SWITCHED_ON = 400, 167
"""of the trainings"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trainings with norms at every step: A, one that sums in another order, and a faulty one."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "a.h5", STEPS)
    train(folder / "clean.h5", STEPS, parts=2)
    train(folder / "faulty.h5", STEPS, parts=2, change=weaken)
    return folder


def weaken(step: int, model: Model, optimizer: Any) -> None:
    """From `SWITCHED_ON` on six symbols are no longer trained in the head."""
    if step >= SWITCHED_ON:
        model.head.weight.grad.data[:6] = 0


# Trainings


@pytest.mark.thorough
def test_a_fault_that_is_switched_on_at_a_step_is_found_there(runs: Path) -> None:
    found = probe.curves(runs / "a.h5", runs / "faulty.h5")
    assert (found.verdict, found.first_step) == ("diverged", SWITCHED_ON)
    assert found["loss"].first_out == SWITCHED_ON + 1, "the update of step 167 is what the loss of 168 shows"
    assert [each.name_a for each in found.norms.first] == ["head.weight"]
    assert found.norms.first[0].first_out == SWITCHED_ON
    assert found.advice == "record steps 166, 167 in full on both sides: probe.start(model, path, steps=[166, 167])"


@pytest.mark.thorough
def test_another_order_of_summation_is_clean(runs: Path) -> None:
    found = probe.curves(runs / "a.h5", runs / "clean.h5")
    assert (found.verdict, found.findings) == ("aligned", ())
    assert all(each.passes for each in found.standard.criteria), "though it asks for more steps"
    assert len(found.norms.results) == 10 and found.standard.steps == STEPS
    assert {each.name for each in found.series} == {"loss", "grad_norm", TOTAL}
    np.testing.assert_allclose(found[TOTAL].pair.a, found["grad_norm"].pair.a, rtol=1e-6)


def clip(step: int, model: Model, optimizer: Any) -> None:
    """Clip the gradients to a norm that all of them have more of, but for the first."""
    grads = [p.grad.data for group in optimizer.param_groups for p in group["params"]]
    norm = np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in grads))
    for grad in grads:
        grad *= np.float32(min(1.0, 0.01 / norm))


@pytest.mark.thorough
def test_twice_the_gradients_are_seen_though_both_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = train(tmp_path / "a.h5", 60, change=clip, task="statistics")
    right = curve_runs.cross_entropy
    monkeypatch.setattr(curve_runs, "cross_entropy", lambda z, y: right(scaled_gradient(z, 2.0), y))
    found = probe.curves(a, train(tmp_path / "b.h5", 60, change=clip, task="statistics"))
    assert found["grad_norm"].pair.a == pytest.approx(0.01) and found[TOTAL].pair.b == pytest.approx(0.01)
    norm = found.standard.criteria[4]
    assert norm.value == pytest.approx(1.0, rel=0.01) and not norm.passes
    assert [each.series for each in found.findings if each.step == 0] == [BEFORE_CLIPPING]


def test_norms_of_clipped_gradients_are_said_to_be_that(tmp_path: Path) -> None:
    norms, said = np.full(20, 1.0), "the global norm was taken after clipping (1 on both sides)"
    for count, is_said in ((12, True), (9, False)):
        norms[count:] = np.linspace(0.2, 0.9, 20 - count)
        paths = [write_csv(tmp_path / f"{side}{count}.csv", loss=losses(20), grad_norm=norms) for side in "ab"]
        found = probe.curves(*paths)
        assert any(str(each).startswith(said) for each in found.standard.rests_on) is is_said


@pytest.mark.thorough
def test_a_fault_found_with_a_further_run_of_a(runs: Path) -> None:
    found = probe.curves(runs / "a.h5", runs / "faulty.h5", noise=runs / "clean.h5")
    assert (found.verdict, found.noise) == ("diverged", "1 further run of A")
    assert found.first_step == SWITCHED_ON and found.norms.first[0].name_a == "head.weight"


@pytest.mark.thorough
def test_an_update_fault_shows_one_step_later(tmp_path: Path) -> None:
    def faster(step: int, model: Model, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 if step < 30 else 2.06e-3  # by 3 %

    train(tmp_path / "a.h5", 60)
    train(tmp_path / "b.h5", 60, parts=2, change=faster)
    found = probe.curves(tmp_path / "a.h5", tmp_path / "b.h5")
    assert (found.verdict, found.first_step) == ("diverged", 31)
    assert "the update of the step before (learning rate" in found.findings[0].hint
    options = {"task": "statistics", "phases": ["update"]}
    train(tmp_path / "c.h5", 60, **options)
    train(tmp_path / "d.h5", 60, parts=2, change=faster, **options)
    found = probe.curves(tmp_path / "c.h5", tmp_path / "d.h5")
    assert (found.findings[0].kind, found.first_step) == ("setting", 30), "the recorded groups say which rate was used"
    assert found.findings[0].text == "lr is 0.002 in A and 0.00206 in B"


@pytest.mark.thorough
def test_weight_decay_on_biases_and_one_dimensional_weights_drifts_late_and_is_named(tmp_path: Path) -> None:
    options = {"lr": 3e-3, "decay": 0.5, "task": "statistics", "phases": ["update"]}
    train(tmp_path / "a.h5", 500, **options)
    train(tmp_path / "b.h5", 500, parts=2, decay_all=True, **options)
    found = probe.curves(tmp_path / "a.h5", tmp_path / "b.h5")
    named = (
        "weight_decay of 6 of 10 parameters (biases and one-dimensional weights) is 0 in A and 0.5 in B from step 0 on"
    )
    assert found.verdict == "diverged"
    loss = found["loss"]
    assert 0.05 < loss.quarters[-1] < 0.15 and loss.quarters[0] < 0.5 * loss.quarters[-1]
    assert {named} == {each.hint for each in found.findings if each.series == "loss"}
    assert "drifted there, no step did it alone" in found.findings[0].text
    assert found.settings[0].parameters == (
        "layers.0.0.weight", "layers.0.1.bias", "layers.1.0.weight", "layers.1.1.bias", "norm.weight", "head.bias",
    )  # fmt: skip


def test_settings_that_do_not_show_yet_are_undecided(tmp_path: Path) -> None:
    options = {"lr": 1e-6, "task": "statistics", "phases": ["update"]}
    train(tmp_path / "a.h5", 4, decay=0.1, **options)
    train(tmp_path / "b.h5", 4, decay=0.2, parts=2, **options)
    found = probe.curves(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.verdict == "undecided"
    assert found.doubts == (
        "set differently, which does not show yet: weight_decay of 4 of 10 parameters (weights of two and more dimensions) is "
        "0.1 in A and 0.2 in B from step 0 on",
    )  # fmt: skip


@pytest.mark.thorough
def test_recordings_of_full_steps_lead_to_the_place(tmp_path: Path) -> None:
    def wrong(step: int, model: Model, optimizer: Any) -> None:
        if step >= 15:
            getattr(getattr(model.layers, "1"), "0").eps = 1e-1

    train(tmp_path / "a.h5", 30, task="statistics")
    train(tmp_path / "b.h5", 30, task="statistics", change=wrong)
    found = probe.curves(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.verdict == "diverged" and found.first_step == 16, "the eps of the forward of step 16"
    assert found.divergence is not None
    place = found.divergence.a[0]
    assert (place.step, place.path, found.divergence.phase.label) == (16, "layers.1.0", "forward")
    text = command("curves", tmp_path / "a.h5", tmp_path / "b.h5").stdout
    assert "first wrong place  step 16 · forward · introduced\n    layers.1.0  RMSNorm" in text


@pytest.mark.thorough
def test_parameters_are_paired_by_a_mapping(runs: Path, tmp_path: Path) -> None:
    class Renamed(Model):
        def __init__(self) -> None:
            super().__init__()
            vars(self)["out"] = vars(self).pop("head")

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            for layer in self.layers:
                x = x + layer(x)
            return self.out(self.norm(x))

    nn.manual_seed(0)
    for name, model in (("a.h5", Model()), ("b.h5", Renamed())):
        with probe.capture(model, tmp_path / name, task="norms"):
            for _ in range(3):
                loss = model(Tensor(np.arange(4))).sum()
                loss.backward()
                optimizer = nn.SGD(model.parameters(), 0.0)
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=loss)
    found = probe.curves(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.norms.only_a == ("head.weight", "head.bias") and set(found.norms.only_b) == {"out.bias", "out.weight"}
    assert "gradient norms only in A: head.weight, head.bias" in found.warnings
    found = probe.curves(tmp_path / "a.h5", tmp_path / "b.h5", mapping={"TopLayer": {"head": "out"}})
    assert not found.norms.only_a and ("head.weight", "out.weight") in {
        (n.name_a, n.name_b) for n in found.norms.results
    }


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__(q=nn.Linear(4, 6), k=nn.Linear(4, 2), v=nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) * self.q(x)).sum() + (self.k(x) * self.v(x)).sum()


class Fused(nn.Module):
    """The same in one Linear."""

    def __init__(self, split: Split) -> None:
        super().__init__(qkv=nn.Linear(4, 10))
        parts = (split.q, split.k, split.v)
        self.qkv.weight.data[...] = np.concatenate([part.weight.data for part in parts])
        self.qkv.bias.data[...] = np.concatenate([part.bias.data for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(x)
        q, k, v = y[:, :6], y[:, 6:8], y[:, 8:]
        return (q * q).sum() + (k * v).sum()


def test_norms_of_weights_that_lie_in_one_on_the_other_side(tmp_path: Path) -> None:
    split = Split()
    for name, model in (("a.h5", split), ("b.h5", Fused(split))):
        optimizer = nn.SGD(model.parameters(), 0.0)
        with probe.capture(model, tmp_path / name, task="norms"):
            for step in range(4):
                loss = model(Tensor(np.float32(np.arange(8).reshape(2, 4) + step) / 8))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=loss)
    for first, second in ("ab", "ba"):
        found = probe.curves(tmp_path / f"{first}.h5", tmp_path / f"{second}.h5", {"Fused": {"qkv": ["q", "k", "v"]}})
        names = [sorted((each.name_a, each.name_b), key=len)[::-1] for each in found.norms.results]
        assert sorted(map(tuple, names)) == [
            ("q.bias + k.bias + v.bias", "qkv.bias"), ("q.weight + k.weight + v.weight", "qkv.weight"),
        ]  # fmt: skip
        assert (found.verdict, found.norms.only_a, found.norms.only_b) == ("aligned", (), ())


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of logs the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    a = losses()
    norm = 1 + 0.1 * wave(1000, 13.1)
    rate = np.full(1000, 1e-5)
    write_csv(Path("a.csv"), loss=a, grad_norm=norm, lr=rate)
    fault = np.where(np.arange(1000) >= FAULT, 0.02, 0.0) * wave(1000, 5.1, 1.0)
    noise = 1e-4 * wave(1000)
    write_csv(Path("clean.csv"), loss=a + noise, grad_norm=norm * (1 + 1e-3 * wave(1000, 3.1)), lr=rate)
    write_csv(Path("faulty.csv"), loss=a + noise + fault, grad_norm=norm * (1 + 10 * noise), lr=rate)
    rows = {s + 1: {"loss": a[s] + 0.1, "grad_norm": norm[s], "lr": 1e-5} for s in range(1000)}
    Path("megatron.log").write_text(megatron({s: rows[s] for s in rows if s % 10 == 0}), encoding="utf-8")
    moved = {s: {**row, "loss": row["loss"] + 0.02} for s, row in rows.items()}
    Path("mindformers.log").write_text(mindformers(moved, 400), encoding="utf-8")
    write_csv(Path("short.csv"), loss=a[:6] + 0.01)
    return tmp_path


def command(*arguments: str | Path, **environment: str) -> Result:
    result = CliRunner(env={"COLUMNS": "80", **environment}).invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


SCENES: dict[str, tuple[int, list[str]]] = {
    "aligned": (0, ["a.csv", "clean.csv"]),
    "diverged": (1, ["a.csv", "faulty.csv"]),
    "biased-logs": (1, ["megatron.log", "mindformers.log"]),
    "standard": (0, ["a.csv", "faulty.csv", "--standard", "--no-plot"]),
    "undecided": (2, ["a.csv", "short.csv"]),
}


@pytest.mark.parametrize("scene", SCENES)
def test_the_report(folder: Path, scene: str) -> None:
    status, arguments = SCENES[scene]
    result = command("curves", *arguments)
    assert (result.exit_code, command("curves", *arguments, COLUMNS="200").stdout) == (status, result.stdout)
    golden(f"curves-{scene}", result.stdout)


@pytest.mark.thorough
def test_norms_are_listed_on_request(runs: Path) -> None:
    short, long = (command("curves", runs / "a.h5", runs / "clean.h5", *more).stdout for more in ([], ["--norms"]))
    assert "Gradient norms of 10 parameters: 0 leave the band" in short
    assert [shown.count(" there; ") for shown in (short, long)] == [1, 10]


def test_files_are_written(folder: Path) -> None:
    result = command("curves", "a.csv", "faulty.csv", "-o", "r.json", "-o", "r.csv", "-o", "r.txt")
    assert result.exit_code == 1 and "diverged; written: r.json, r.csv, r.txt" in result.stderr
    document = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert (document["verdict"], document["first_step"], document["a"]["kind"]) == ("diverged", FAULT, "CSV")
    rows = list(csv.DictReader(io.StringIO(Path("r.csv").read_text(encoding="utf-8"))))
    assert list(rows[0]) == COLUMNS and len(rows) == 3 * 1000
    row = next(row for row in rows if row["name"] == "loss" and row["step"] == str(FAULT))
    assert row["out"] == "1" and float(row["difference"]) == float(row["b"]) - float(row["a"])
    assert float(row["high"]) < float(row["b"]) or float(row["low"]) > float(row["b"])
    assert Path("r.txt").read_text(encoding="utf-8").startswith("DIVERGED  A a.csv")


@pytest.mark.thorough
def test_norms_stand_in_the_csv_on_request(runs: Path) -> None:
    result = command("curves", runs / "a.h5", runs / "clean.h5", "--norms", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert sum(row["kind"] == "norm" for row in rows) == 10 * STEPS


def test_a_further_run_and_steps_by_the_command(folder: Path) -> None:
    result = command("curves", "a.csv", "faulty.csv", "--noise", "clean.csv", "--steps", "0:0", "--format", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["noise"], document["further"]) == (1, "1 further run of A", ["clean.csv"])


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["a.csv", "missing.csv"], "there is no file missing.csv"),
        (["a.csv", "clean.csv", "-o", "r.pdf"], "cannot tell the format of r.pdf: expected .png, .svg, .json, .csv, .txt, or --format"),
        (["a.csv", "clean.csv", "-o", "none/r.json"], "cannot write none/r.json: No such file or directory"),
        (["a.csv", "clean.csv", "--only", "x"], "--only x: no curve of that name on both sides; there are grad_norm, loss, lr"),
        (["a.csv", "clean.csv", "-lm", "none"], "there is no layer mapping none"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said(folder: Path, arguments: list[str], said: str) -> None:
    result = command("curves", *arguments)
    assert (result.exit_code, result.stdout) == (3, "") and result.stderr.startswith(f"Error: {said}")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(folder: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    result = command("curves", "a.csv", "faulty.csv", "--noise", "clean.csv", "-o", f"c.{suffix}")
    assert result.exit_code == 1 and result.stdout.startswith("DIVERGED"), "the report is shown all the same"
    content = Path(f"c.{suffix}").read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml") and len(content) > 10_000


def test_a_picture_without_matplotlib(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = command("curves", "a.csv", "clean.csv", "-o", "c.png")
    assert (result.exit_code, result.stderr) == (3, "Error: a plot needs matplotlib: pip install 'probe-align[plot]'\n")


def test_help_has_an_example() -> None:
    assert "Example:     probe curves a.h5 b.h5 --noise a2.h5 -o curves.png" in command("curves", "--help").stdout


def test_what_is_public() -> None:
    assert probe.curves.__doc__ and isinstance(CurveComparison.first_step, property)
