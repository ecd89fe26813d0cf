"""`curves`: two runs over all of their steps, and the verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer.result import Divergence, Verdict
from probe.answer.shift import Shift
from probe.curve_comparison import findings
from probe.curve_comparison.band import Band, band_of, band_of_metric
from probe.curve_comparison.guards import Guards
from probe.curve_comparison.jump import batches_of, jump
from probe.curve_comparison.norms import LocalNorms, combined, judge_norms
from probe.curve_comparison.pairing import pair
from probe.curve_comparison.parameters import Counterpart, counterparts, direction_named, setting_differences
from probe.curve_comparison.reading.files import read_curves
from probe.curve_comparison.reading.names import LOSS, is_of_the_machine
from probe.curve_comparison.reading.series import RunCurves
from probe.curve_comparison.result import CurveComparison, Finding, FindingKind, SeriesResult
from probe.curve_comparison.signs import judge_offset
from probe.curve_comparison.standard import StandardVerdict, judge_standard
from probe.curve_comparison.tolerance import LEAST_16_BIT, LOCAL_NORM, MetricLimit, decides, metric_limits, tolerance_of
from probe.errors import ConfigError
from probe.mapping import LayerMapping, load_mapping
from probe.matching import Direction
from probe.notes import note
from probe.records import DirectionName

BUILT_IN = "built-in limits, and what the steps before show"

Source = str | os.PathLike[str]
Place = tuple[Divergence | None, str]


def curves(
    a: Source,
    b: Source,
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    noise: Source | Sequence[Source] = (),
    steps: str | tuple[int, int] | None = None,
    only: str | Iterable[str] | None = None,
    metrics: str | Iterable[str] | Mapping[str, str | float] = (),
    standard: bool = False,
    direction: DirectionName | None = None,
) -> CurveComparison:
    """Compare two runs step by step: loss, gradient norm, learning rate, any logged number, norms of single gradients.

    Parameters
    ----------
    a, b
        recordings, or logs: Megatron's, MindFormers', PaddleNLP's, a Trainer's output or ``trainer_state.json``, LossMonitor's, JSON
        lines, TensorBoard, CSV; A is the baseline
    mapping
        a layer mapping, by which the parameters of two recordings are paired
    noise
        further legitimate runs of A, which show how noisy it is
    steps
        ``"0:1"``: step 0 of A is step 1 of B; by default steps pair by their numbers
    only
        globs of names: only these curves, and all of them decide; by default losses, gradient norms and learning
        rates decide
    metrics
        ``"accuracy:0.15%"`` (of A's value) or ``"accuracy:0.002"`` (absolute): the last values of these curves must be as close, and
        decide; nothing else of them is judged
    standard
        judge by the migration standard instead of step by step
    direction
        ``"a-to-b"`` or ``"b-to-a"``: which side the mapping is written from

    Raises
    ------
    StoreError, FormatError
        a file cannot be read, or is none of these
    MappingError, ConfigError
        the mapping or an option cannot be used
    """
    shift = Shift.of(steps)
    further = [noise] if isinstance(noise, (str, os.PathLike)) or not isinstance(noise, Iterable) else list(noise)
    patterns = [only] if isinstance(only, str) else None if only is None else list(only)
    way = direction_named(direction)
    limits = metric_limits([metrics] if isinstance(metrics, str) else metrics)
    runs = [read_curves(path) for path in (a, b, *further)]
    judge = _Judge(runs[0], runs[1], runs[2:], shift, patterns, limits)
    names = judge.parameters(load_mapping(mapping), way)
    return judge.judged(names, standard, lambda found: jump(runs[0], runs[1], found, shift, mapping, direction))


class _Judge:
    """The comparison under way."""

    def __init__(
        self, a: RunCurves, b: RunCurves, further: list[RunCurves], shift: Shift, only: list[str] | None,
        metrics: Mapping[str, MetricLimit],
    ) -> None:  # fmt: skip
        self.a, self.b, self.shift, self.only, self.metrics = a, b, shift, only, metrics
        self.guards = Guards(a, b, shift, only is not None or bool(metrics))
        self.further = self.guards.usable(further)
        self.is_mapped = False

    def judged(
        self, names: list[Counterpart], by_standard: bool, place: Callable[[list[Finding]], Place]
    ) -> CurveComparison:
        series = [self._judge(name) for name in self._names()]
        norms = self._norms(names)
        settings = ()
        single = {each.a[0]: each.b[0] for each in names if len(each.a) == len(each.b) == 1}
        if self.a.model is not None and self.b.model is not None:
            settings = setting_differences(self.a.model, self.b.model, single, self.shift.to_b)
        found = findings.find(series, norms, settings)
        verdict_by_standard = self._standard(series)
        if by_standard:
            first = int(series[0].pair.steps[0]) if series and len(series[0].pair) else 0
            found = findings.of_standard(verdict_by_standard, first) + found
        self.guards.judge(series, norms, settings, found, self.is_mapped)
        verdict = self._verdict(found, verdict_by_standard, by_standard)
        divergence, advice = place(found) if verdict is Verdict.DIVERGED else (None, "")
        return CurveComparison(
            verdict, tuple(found), tuple(series), norms, verdict_by_standard, settings, self._noise(),
            tuple(dict.fromkeys(self.guards.notes)), tuple(dict.fromkeys(self.guards.doubts)), by_standard, self.a.path,
            self.b.path, self.a.kind, self.b.kind, tuple(run.path for run in self.further), divergence, advice,
            batches_of(self.a, self.b, found, self.shift),
        )  # fmt: skip

    def _names(self) -> list[str]:
        """Return the curves to compare, those that decide first; say which stand on one side only, or are left out."""
        both = [name for name in self.a.series if name in self.b.series]
        self.guards.only_on_one_side(self.a.series, self.b.series)
        wanted = [("only", pattern) for pattern in self.only or ()] + [("metric", name) for name in self.metrics]
        for option, pattern in wanted:
            if not any(fnmatchcase(name, pattern) if option == "only" else name == pattern for name in both):
                raise ConfigError(
                    f"--{option} {pattern}: no curve of that name on both sides; there are {', '.join(sorted(both)) or 'none'}"
                )
        if self.only is not None:
            patterns = [*self.only, *self.metrics]
            return [name for name in both if any(name == each or fnmatchcase(name, each) for each in patterns)]
        left = sorted(name for name in both if is_of_the_machine(name) and name not in self.metrics)
        if left:
            self.guards.note("curves-of-the-machine", names=left)
        kept = [name for name in both if name not in left]
        return sorted(kept, key=lambda name: (not decides(name) and name not in self.metrics, name != LOSS, name))

    def _judge(self, name: str) -> SeriesResult:
        others = [run.series[name] for run in self.further if name in run.series]
        paired = pair(self.a.series[name], self.b.series[name], others, self.shift)
        tolerance = tolerance_of(name)
        metric = self.metrics.get(name)
        counts = decides(name) if self.only is None and metric is None else True
        offset = judge_offset(paired, tolerance)
        if metric is not None:
            return SeriesResult(name, paired, band_of_metric(paired, metric), offset, counts, metric)
        band = band_of(paired, tolerance, offset) if len(paired) else _no_band()
        return SeriesResult(name, paired, band, offset, counts)

    def parameters(self, mapping: LayerMapping, direction: Direction | None) -> list[Counterpart]:
        """Return which parameters of B those of A are."""
        if self.a.model is None or self.b.model is None:
            return [Counterpart((name,), (name,)) for name in self.a.norms if name in self.b.norms]
        self.is_mapped = bool(mapping.sections)
        names, said = counterparts(self.a.model, self.b.model, mapping, direction)
        self.guards.notes += said
        return names

    def _norms(self, names: list[Counterpart]) -> LocalNorms:
        if not self.a.norms or not self.b.norms or self.only is not None:
            return LocalNorms((), (), ())
        pairs, known_a, known_b = [], set(), set()
        for each in names:
            if any(name not in self.a.norms for name in each.a) or any(name not in self.b.norms for name in each.b):
                continue
            others = [combined(run.norms, each.a) for run in self.further if all(name in run.norms for name in each.a)]
            paired = pair(combined(self.a.norms, each.a), combined(self.b.norms, each.b), others, self.shift)
            if len(paired):
                pairs.append((" + ".join(each.a), " + ".join(each.b), paired))
                known_a.update(each.a)
                known_b.update(each.b)
        only_a = tuple(name for name in self.a.norms if name not in known_a)
        only_b = tuple(name for name in self.b.norms if name not in known_b)
        models = (self.a.model, self.b.model)
        is_narrow = any(model is not None and model.has_16_bits for model in models)
        return judge_norms(pairs, only_a, only_b, LEAST_16_BIT if is_narrow else LOCAL_NORM.least)

    def _standard(self, series: list[SeriesResult]) -> StandardVerdict:
        by_name = {each.name: each for each in series}
        loss = by_name.get(LOSS)
        norm = next((by_name[name] for name in findings.TOTALS if name in by_name and len(by_name[name].pair)), None)
        found = []
        if loss is not None and loss.is_biased:
            found.append(note("standard-loss-biased", offset=loss.sign.offset))
        if loss is not None and (np.isfinite(loss.pair.a) & ~np.isfinite(loss.pair.b)).any():
            found.append(note("standard-loss-not-finite"))
        return judge_standard(loss and loss.pair, norm and norm.pair, found)

    def _verdict(self, found: list[Finding], standard: StandardVerdict, by_standard: bool) -> Verdict:
        if self.guards.is_worthless:
            return Verdict.UNDECIDED
        if by_standard and not any(each.kind is FindingKind.METRIC for each in found):
            return Verdict.UNDECIDED if self.guards.blocks_standard else standard.verdict
        return Verdict.DIVERGED if found else Verdict.UNDECIDED if self.guards.doubts else Verdict.ALIGNED

    def _noise(self) -> str:
        if not self.further:
            return BUILT_IN
        return f"{len(self.further)} further run{'s' if len(self.further) > 1 else ''} of A"


def _no_band() -> Band:
    none = np.zeros(0)
    return Band(none, none, None, none.astype(bool))
