"""What makes a comparison of curves worthless, or less than it seems: none of it may end as aligned unsaid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from probe.comparison.coverage.guards import grouped
from probe.comparison.steps.common_steps import Shift
from probe.curve_comparison.norms import LocalNorms
from probe.curve_comparison.pairing import pair
from probe.curve_comparison.parameters import SettingDifference
from probe.curve_comparison.reading.names import LOSS
from probe.curve_comparison.reading.series import RunCurves, Series
from probe.curve_comparison.result import Finding, SeriesResult
from probe.curve_comparison.signs import FEWEST, Sign
from probe.curve_comparison.tolerance import decides

_ASK = "give further runs of A (--noise), or compare more steps"
_MOST_NAMED = 6
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
        self.warnings: list[str] = [f"{side}: {text}" for side, run in (("A", a), ("B", b)) for text in run.notes]
        self.doubts: list[str] = []
        self.is_worthless = False
        """nothing that was found says anything"""
        self.blocks_standard = False
        if _are_the_same(a, b):
            self.is_worthless = True
            self._doubt("A and B are the same run: it was compared with itself")

    def _doubt(self, text: str) -> None:
        self.warnings.append(text)
        self.doubts.append(text)

    def usable(self, further: list[RunCurves]) -> list[RunCurves]:
        """Return the further runs of A that say something about its noise."""
        found = []
        for run in further:
            if _are_the_same(run, self.b):
                self._doubt(f"{_file(run)}, given as a further run of A, is B itself: it is not used")
            elif _are_the_same(run, self.a) or _is_bit_equal(run, self.a):
                self.warnings.append(
                    f"{_file(run)} is bit-equal to A and says nothing about its noise: repeat the baseline with determinism "
                    "off, or with other kernels"
                )
            elif not any(decides(name) and len(np.intersect1d(run.series[name].steps, self.a.series[name].steps))
                         for name in run.series.keys() & self.a.series.keys()):  # fmt: skip
                self.warnings.append(f"{_file(run)} has no curve with steps of A: it is not used")
            else:
                found.append(run)
                self.warnings += [f"{_file(run)}: {text}" for text in run.notes]
        return found

    def only_on_one_side(self, a: Mapping[str, Series], b: Mapping[str, Series]) -> None:
        """Say which curves have no counterpart."""
        for side, mine, theirs in (("A", a, b), ("B", b, a)):
            alone = [name for name in mine if name not in theirs]
            if alone:
                self.warnings.append(f"curves only in {side}: {grouped(alone, _MOST_NAMED)}")

    def judge(
        self, series: list[SeriesResult], norms: LocalNorms, settings: Iterable[SettingDifference], found: list[Finding],
        is_mapped: bool = True,
    ) -> None:  # fmt: skip
        """Look at what was compared."""
        deciding = [each for each in series if each.decides]
        if not deciding:
            self._doubt(
                "no loss, gradient norm or learning rate on both sides: nothing decides (--only NAME chooses others)"
            )
        elif not any(len(each.pair) for each in deciding):
            self._doubt(f"no step in common: A has {_range(self.a)}, B has {_range(self.b)}; --steps A:B pairs others")
        elif not self.is_chosen and not any(each.name == LOSS for each in deciding):
            self._doubt("no loss on both sides: give it to probe.step(loss=...), or log it")
        self.blocks_standard = bool(self.doubts)
        for each in deciding:
            self._look_at(each)
        if unsure := [each for each in norms.results if each.is_unsure]:
            worst = max(unsure, key=lambda each: each.worst)
            self._doubt(
                f"gradient norms of {len(unsure)} of {len(norms.results)} parameters fluctuate about A's from the first steps on "
                f"(up to {worst.worst:.0%}, {worst.name_a}): {_ASK}"
            )
        self._shifted()
        if not found:
            for setting in settings:
                self._doubt(f"set differently, which does not show yet: {setting}")
        elif not any(str(setting) in finding.hint for setting in settings for finding in found):
            self.warnings += [f"set differently: {setting}" for setting in settings]
        for side, names in (("A", norms.only_a), ("B", norms.only_b)):
            if names:
                self.warnings.append(f"gradient norms only in {side}: {grouped(names, _MOST_NAMED)}")
        if norms.only_a and norms.only_b and not is_mapped:
            self.warnings.append(
                "gradient norms are paired by the names of parameters; where these are others on the two sides, give a layer mapping "
                "with -lm (probe map suggest drafts one)"
            )

    def _look_at(self, each: SeriesResult) -> None:
        pair = each.pair
        if each.name == LOSS and (pair.only_a or pair.only_b):
            parts = [f"{count} only in {side}" for side, count in (("A", pair.only_a), ("B", pair.only_b)) if count]
            self.warnings.append(f"steps not compared: {', '.join(parts)}")
        both = ~np.isfinite(pair.a) & ~np.isfinite(pair.b)
        if both.any():
            self._doubt(f"{each.name} is not finite on both sides at step {int(pair.steps[both.argmax()])}")
        if each.metric is not None:
            return
        if each.sign.sign is Sign.SHORT and len(pair):
            self._doubt(
                f"{each.name}: {each.sign.steps} {'step is' if each.sign.steps == 1 else 'steps are'} too few to tell an offset of {each.sign.offset:+.2g} from noise"
            )

        if each.band.unsure is not None and each.sign.sign not in (Sign.SHORT, Sign.UNCLEAR):
            at = int(each.band.unsure)
            where = f"at step {int(pair.steps[at])} by {pair.difference[at]:+.2g}"
            self._doubt(
                f"{each.name}: {len(pair)} steps are too few to tell a difference ({where}) from noise: {_ASK}"
                if each.sign.steps < FEWEST
                else f"{each.name}: differences fluctuate about 0 ({where}), without trend or offset; only runs of A tell "
                f"whether that is its noise: {_ASK}"
            )
        elif each.sign.sign is Sign.UNCLEAR:
            self._doubt(
                f"{each.name}: B − A is {each.sign.offset:+.2g} on average from step {int(pair.steps[each.sign.first])} on, which may be "
                f"noise that changes slowly: {_ASK}"
            )

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
        self._doubt(
            f"the losses fit far better when step {int(a.steps[0])} of A is step {int(b.steps[0])} of B: "
            f"--steps {int(a.steps[0])}:{int(b.steps[0])} pairs them so"
        )


def _are_the_same(x: RunCurves, y: RunCurves) -> bool:
    """Tell whether two files are one run: by the id of a recording, else byte by byte."""
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
    """Tell whether all curves that decide are the same numbers in both, at the steps that both have."""
    names = [name for name in x.series.keys() & y.series.keys() if decides(name)]
    pairs = [pair(x.series[name], y.series[name], [], Shift()) for name in names]
    return any(map(len, pairs)) and all(np.array_equal(each.a, each.b, equal_nan=True) for each in pairs)


def _range(run: RunCurves) -> str:
    steps = [step for name, each in run.series.items() if decides(name) for step in (each.steps[0], each.steps[-1])]
    return f"{min(steps)} to {max(steps)}" if steps else "none"


def _file(run: RunCurves) -> str:
    return Path(run.path).name
