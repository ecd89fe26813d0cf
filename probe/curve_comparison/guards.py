"""What makes a comparison of curves worthless, or less than it seems: none of it may end as aligned unsaid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer.shift import Shift
from probe.curve_comparison.norms import LocalNorms
from probe.curve_comparison.pairing import pair
from probe.curve_comparison.parameters import SettingDifference
from probe.curve_comparison.reading.names import LOSS
from probe.curve_comparison.reading.series import RunCurves, Series
from probe.curve_comparison.result import Finding, SeriesResult
from probe.curve_comparison.signs import FEWEST, Sign
from probe.curve_comparison.tolerance import decides
from probe.notes import Note, note

_BETTER = 4
"""a shift of the steps is asked about when the mean difference is this many times smaller with it"""
_FEWEST_TO_SHIFT = 4
_CHUNK = 1 << 20


class Guards:
    """What was found about the two runs as such.

    Parameters
    ----------
    a, b
        the runs
    shift
        how their steps are paired
    is_chosen
        the user said which curves decide
    """

    def __init__(self, a: RunCurves, b: RunCurves, shift: Shift, is_chosen: bool) -> None:
        self.a, self.b, self.shift, self.is_chosen = a, b, shift, is_chosen
        self.notes: list[Note] = []
        self.doubts: list[Note] = []
        self.is_worthless = False
        """nothing that was found says anything"""
        self.blocks_standard = False
        self._pass_on("A", a)
        self._pass_on("B", b)
        if _are_the_same(a, b):
            self.is_worthless = True
            self._doubt("curves-of-one-run")

    def note(self, code: str, **facts: Any) -> None:
        """Note what is to be known of the comparison."""
        self.notes.append(note(code, **facts))

    def _doubt(self, code: str, **facts: Any) -> None:
        self.note(code, **facts)
        self.doubts.append(self.notes[-1])

    def _pass_on(self, whose: str, run: RunCurves) -> None:
        """Note what reading a run gave cause to say."""
        for said in run.notes:
            self.note("curves-of-one-side", whose=whose, said=said)

    def usable(self, further: list[RunCurves]) -> list[RunCurves]:
        """Return the further runs of A that say something about its noise."""
        found = []
        for run in further:
            steps_of_a = (
                decides(name) and len(np.intersect1d(run.series[name].steps, self.a.series[name].steps))
                for name in run.series.keys() & self.a.series.keys()
            )
            if _are_the_same(run, self.b):
                self._doubt("further-run-is-b", file=_file(run))
            elif _are_the_same(run, self.a) or _is_bit_equal(run, self.a):
                self.note("further-run-is-a", file=_file(run))
            elif not any(steps_of_a):
                self.note("further-run-of-other-steps", file=_file(run))
            else:
                found.append(run)
                self._pass_on(_file(run), run)
        return found

    def only_on_one_side(self, a: Mapping[str, Series], b: Mapping[str, Series]) -> None:
        """Say which curves have no counterpart."""
        for side, mine, theirs in (("A", a, b), ("B", b, a)):
            alone = [name for name in mine if name not in theirs]
            if alone:
                self.note("curves-alone", side=side, names=tuple(alone))

    def judge(
        self, series: list[SeriesResult], norms: LocalNorms, settings: Iterable[SettingDifference], found: list[Finding],
        is_mapped: bool = True,
    ) -> None:  # fmt: skip
        """Look at what was compared."""
        deciding = [each for each in series if each.decides]
        if not deciding:
            self._doubt("nothing-decides")
        elif not any(len(each.pair) for each in deciding):
            self._doubt("no-common-steps", a=_range(self.a), b=_range(self.b))
        elif not self.is_chosen and not any(each.name == LOSS for each in deciding):
            self._doubt("no-loss")
        self.blocks_standard = bool(self.doubts)
        for each in deciding:
            self._look_at(each)
        if unsure := [each for each in norms.results if each.is_unsure]:
            worst = max(unsure, key=lambda each: each.worst)
            facts = {"count": len(unsure), "total": len(norms.results), "worst": worst.worst, "name": worst.name_a}
            self._doubt("norms-fluctuate", **facts)
        self._shifted()
        if not found:
            for setting in settings:
                self._doubt("set-differently-unseen", setting=setting.note)
        elif not any(setting.note in finding.look_at for setting in settings for finding in found):
            for setting in settings:
                self.note("set-differently", setting=setting.note)
        for side, names in (("A", norms.only_a), ("B", norms.only_b)):
            if names:
                self.note("norms-alone", side=side, names=names)
        if norms.only_a and norms.only_b and not is_mapped:
            self.note("norms-by-names")

    def _look_at(self, each: SeriesResult) -> None:
        pair = each.pair
        if each.name == LOSS and (pair.only_a or pair.only_b):
            self.note("curve-steps-not-compared", a=pair.only_a, b=pair.only_b)
        both = ~np.isfinite(pair.a) & ~np.isfinite(pair.b)
        if both.any():
            self._doubt("not-finite-on-both-sides", name=each.name, step=int(pair.steps[both.argmax()]))
        if each.metric is not None:
            return
        sign = each.sign
        if sign.sign is Sign.SHORT and len(pair):
            self._doubt("offset-in-few-steps", name=each.name, steps=sign.steps, offset=sign.offset)
        if each.band.unsure is not None and sign.sign not in (Sign.SHORT, Sign.UNCLEAR):
            at = int(each.band.unsure)
            code = "difference-in-few-steps" if sign.steps < FEWEST else "curve-fluctuates"
            facts = {"step": int(pair.steps[at]), "apart": float(pair.difference[at])}
            self._doubt(code, name=each.name, steps=len(pair), **facts)
        elif sign.sign is Sign.UNCLEAR:
            facts = {"step": int(pair.steps[sign.first]), "offset": sign.offset}
            self._doubt("curve-offset-or-noise", name=each.name, **facts)

    def _shifted(self) -> None:
        """Ask whether one side counts from 1, where the losses then agree far better."""
        if self.shift.to_b or LOSS not in self.a.series or LOSS not in self.b.series:
            return
        a, b = self.a.series[LOSS], self.b.series[LOSS]
        by = int(b.steps[0] - a.steps[0])
        if not by:
            return
        plain, moved = pair(a, b, [], self.shift), pair(a, b, [], Shift(int(a.steps[0]), int(b.steps[0])))
        if len(moved) < _FEWEST_TO_SHIFT:
            return
        with_shift = np.abs(moved.difference[moved.finite])
        without = np.abs(plain.difference[plain.finite])
        if not len(with_shift) or (len(without) and without.mean() <= _BETTER * with_shift.mean()):
            return
        self.is_worthless = True
        self._doubt("steps-shifted", a=int(a.steps[0]), b=int(b.steps[0]))


def _are_the_same(x: RunCurves, y: RunCurves) -> bool:
    """Return True if two files are one run: by the id of a recording, else byte by byte."""
    if x.model is not None and y.model is not None:
        return x.model.run_id == y.model.run_id
    files = Path(x.path), Path(y.path)
    if x.kind != y.kind or not all(file.is_file() for file in files):
        return files[0].resolve() == files[1].resolve()
    if files[0].stat().st_size != files[1].stat().st_size:
        return False
    with files[0].open("rb") as first, files[1].open("rb") as second:
        while chunk := first.read(_CHUNK):
            if chunk != second.read(_CHUNK):
                return False
    return True


def _is_bit_equal(x: RunCurves, y: RunCurves) -> bool:
    """Return True if all curves that decide are the same numbers in both, at the steps that both have."""
    names = [name for name in x.series.keys() & y.series.keys() if decides(name)]
    pairs = [pair(x.series[name], y.series[name], [], Shift()) for name in names]
    return any(map(len, pairs)) and all(np.array_equal(each.a, each.b, equal_nan=True) for each in pairs)


def _range(run: RunCurves) -> str:
    steps = [step for name, each in run.series.items() if decides(name) for step in (each.steps[0], each.steps[-1])]
    return f"{min(steps)} to {max(steps)}" if steps else "none"


def _file(run: RunCurves) -> str:
    return Path(run.path).name
