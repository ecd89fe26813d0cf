"""What `probe curves` says, word by word: numbers of things, names of files, columns, and what to do."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from probe.answer.result import Verdict
from probe.curve_comparison import curves
from probe.errors import StoreError
from probe.report.curves import text
from tests.curves import curve_runs
from tests.curves.curve_runs import Model, losses, train, wave, write_csv
from tests.toy import nn

BY_NAME = (
    "gradient norms are paired by the names of parameters; where these are others on the two sides, give a layer mapping "
    "with -lm (probe map suggest drafts one)"
)


class Renamed(Model):
    """Calls its layers by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = vars(self).pop("layers")

    @property
    def layers(self) -> nn.ModuleList:
        return self.blocks


def said(a: Path, b: Path) -> str:
    return text.render(curves(a, b)).plain


def test_one_step_is_no_steps(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=[2.0], grad_norm=[1.0])
    shown = said(a, write_csv(tmp_path / "b.csv", loss=[2.001], grad_norm=[1.001]))
    assert "in 1 step of loss" in shown
    assert "? 1 step was observed, expected 5000" in shown
    assert "rests on: 1 step (by default 5000, or 12 hours)" in shown
    assert "1 steps" not in shown
    assert "grad_norm: 1 step is too few to tell an offset" in said(
        a, write_csv(tmp_path / "c.csv", loss=[2.0], grad_norm=[3.0])
    )


def test_two_steps_stand_apart_on_the_axis(tmp_path: Path) -> None:
    shown = said(write_csv(tmp_path / "a.csv", loss=[2.0, 1.9]), write_csv(tmp_path / "b.csv", loss=[2.001, 1.901]))
    assert "step 0 1" in shown and "step 01" not in shown


def test_a_jump_that_may_be_noise_is_not_said_to_have_no_offset(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    a, b = (losses(200) + noise.normal(0, 0.05, 200) for _ in "ab")
    b[120:] += 0.35
    shown = said(write_csv(tmp_path / "a.csv", loss=a), write_csv(tmp_path / "b.csv", loss=b))
    assert shown.startswith("UNDECIDED") and "without trend" not in shown
    assert "loss: B − A is +0." in shown


def test_what_runs_of_a_show_fits_into_the_lines(tmp_path: Path) -> None:
    a, b, c = (
        write_csv(tmp_path / f"{name}.csv", loss=losses(40) + 0.01 * wave(40, phase=at))
        for at, name in enumerate("abc")
    )
    lines = text.render(curves(a, b, noise=[c])).plain.splitlines()
    assert any("as between runs of A" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("hf", "megatron"):
        (tmp_path / folder).mkdir()
        write_csv(tmp_path / folder / "log.csv", loss=losses(20) + 1e-6 * len(folder))
    shown = said(tmp_path / "hf/log.csv", tmp_path / "megatron/log.csv")
    assert "A hf/log.csv (CSV)  B megatron/log.csv (CSV)" in shown


def test_columns_stand_below_their_heads(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(40), grad_norm=np.ones(40))
    b = write_csv(tmp_path / "b.csv", loss=losses(40) + 1e-9 * wave(40), grad_norm=1 + 1e-3 * wave(40))
    lines = said(a, b).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("curve "))
    head, loss, norm = lines[start : start + 3]
    assert "<0.0001 %" in loss
    assert loss.index("%") == norm.index("%") == head.index("mean rel") + len("mean rel") - 1
    assert all(len(line) <= 80 for line in lines)


def test_a_curve_that_begins_at_zero_warns_of_nothing(tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", loss=losses(20), epoch=np.arange(20.0))
    b = write_csv(tmp_path / "b.csv", loss=losses(20) + 1e-6, epoch=np.arange(20.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert curves(a, b)["epoch"].mean_relative == 0.0


def test_no_difference_has_no_sign(tmp_path: Path) -> None:
    lr = np.full(20, 1e-3)
    shown = said(
        write_csv(tmp_path / "a.csv", loss=losses(20), lr=lr), write_csv(tmp_path / "b.csv", loss=losses(20), lr=2 * lr)
    )
    assert "loss   B − A" in shown and "-0" not in shown.split()


def test_norms_of_other_names_ask_for_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = train(tmp_path / "a.h5", 3)
    assert BY_NAME not in curves(a, train(tmp_path / "b.h5", 3)).warnings
    monkeypatch.setattr(curve_runs, "Model", Renamed)
    other = train(tmp_path / "c.h5", 3)
    assert curves(a, other).warnings[-1] == BY_NAME
    assert BY_NAME not in curves(a, other, {"TopLayer": {"layers": "blocks"}}).warnings


@pytest.mark.parametrize(("squared", "root"), ["AB", "BA"])
def test_a_norm_of_which_one_side_takes_no_root_is_named(tmp_path: Path, squared: str, root: str) -> None:
    norm = 3 + wave(30)
    for side in (squared, root):
        values = [float(f"{value:.3f}") for value in (norm**2 if side == squared else norm)]
        write_csv(tmp_path / f"{side}.csv", loss=losses(30), grad_norm=values)
    found = curves(tmp_path / "A.csv", tmp_path / "B.csv").findings
    assert [each.series for each in found] == ["grad_norm"]
    assert found[0].hint == (
        f"what is logged: {squared}'s numbers are the square of {root}'s in every step, a norm of which the root was not taken"
    )


@pytest.mark.parametrize("factor", [1.8, 3.0])
def test_another_multiple_is_no_square(tmp_path: Path, factor: float) -> None:
    norm = 3 + wave(30)
    a = write_csv(tmp_path / "a.csv", loss=losses(30), grad_norm=norm)
    b = write_csv(tmp_path / "b.csv", loss=losses(30), grad_norm=factor * norm)
    assert "square" not in curves(a, b).findings[0].hint


def test_files_of_ranks_of_two_runs_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        train(tmp_path / f"tp.rank{rank:05d}.h5", 1)
    with pytest.raises(
        StoreError, match=r"tp.rank00001.h5 and tp.rank00000.h5 are both of rank 0: they are of two runs"
    ):
        curves(tmp_path / "tp.h5", tmp_path / "tp.rank00000.h5")


def test_single_steps_out_of_the_band_are_counted(tmp_path: Path) -> None:
    norm = np.ones(60)
    apart = norm.copy()
    apart[[30, 40, 50]] = 1.5
    a = write_csv(tmp_path / "a.csv", loss=losses(60), grad_norm=norm)
    found = curves(a, write_csv(tmp_path / "b.csv", loss=losses(60), grad_norm=apart))
    assert found.verdict is Verdict.ALIGNED and found["grad_norm"].judgement == "in the band but for 3"
    shown = " ".join(text.render(found).plain.split())
    assert (
        "No step leaves the noise band but single ones (3 of grad_norm), and no offset is steady, in 60 steps of"
        in shown
    )


def test_titles_of_the_picture_leave_room_for_the_legend(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    name = "loss/" + "a" * 60
    files = [write_csv(tmp_path / f"{each}.csv", **{name: losses(20) + each}) for each in (0, 1e-6)]
    left, right = curves(*files, only="loss*").plot()[0]
    assert right.get_title(loc="left").startswith("B − A, in the band")
    assert name[:20] in left.get_title(loc="left")
