"""What a comparison of curves answers: frozen, typed, printable."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from probe.answer.result import Divergence, Judged, Verdict
from probe.curve_comparison.band import Band
from probe.curve_comparison.norms import LocalNorms
from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.parameters import SettingDifference
from probe.curve_comparison.signs import Sign, SignJudgement
from probe.curve_comparison.standard import StandardVerdict
from probe.curve_comparison.tolerance import MetricLimit
from probe.notes import Note, named, plain

SCHEMA = 1
QUARTERS = 4
_SHORTEST_DRIFT = 16


class FindingKind(enum.StrEnum):
    """In what way two runs were found apart."""

    SETTING = "setting"
    """the learning rate, which nobody trains"""
    NONFINITE = "nonfinite"
    BAND = "band"
    """a curve leaves the noise band"""
    NORM = "norm"
    """parameters' gradient norms leave it"""
    METRIC = "metric"
    """a metric's last value is not within the limit that the user gave"""
    BIASED = "biased"
    """a steady offset"""
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which the runs are apart."""

    kind: FindingKind
    step: int
    """number in A"""
    series: str
    """name of the curve, or of the parameter"""
    said: Note
    look_at: tuple[Note, ...] = ()
    """what may be the cause"""
    is_sudden: bool = True
    """it began in this step, and did not grow there"""

    @property
    def text(self) -> str:
        """The finding in words."""
        return str(self.said)

    @property
    def hint(self) -> str:
        """What to look at, in words."""
        return "; ".join(map(str, self.look_at))

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return named(self, "kind", "step", "series", "text", "hint")


@dataclass(frozen=True)
class SeriesResult:
    """One curve of both runs."""

    name: str
    pair: PairedSeries = field(repr=False)
    band: Band = field(repr=False)
    sign: SignJudgement
    decides: bool
    """it counts for the verdict"""
    metric: MetricLimit | None = None
    """what the user accepts of its last value; then nothing else of it is judged"""

    @property
    def first_out(self) -> int | None:
        """Number, in A, of the first step out of the noise band."""
        return None if self.band.first is None else int(self.pair.steps[self.band.first])

    @property
    def is_biased(self) -> bool:
        """Whether there is a steady offset."""
        return self.metric is None and self.sign.sign is Sign.BIASED

    @property
    def worst(self) -> int:
        """Index of the step with the largest difference."""
        return int(np.nan_to_num(np.abs(self.pair.difference), nan=math.inf).argmax()) if len(self.pair) else 0

    @property
    def mean_absolute(self) -> float:
        """Mean of \\|B − A\\|."""
        return float(np.abs(self.pair.difference[self.pair.finite]).mean()) if self.pair.finite.any() else math.nan

    @property
    def mean_relative(self) -> float:
        """Mean of \\|B − A\\| / \\|A\\|."""
        rows = self.pair.finite & (self.pair.a != 0)
        return (
            float((np.abs(self.pair.difference[rows]) / np.abs(self.pair.a[rows])).mean()) if rows.any() else math.nan
        )

    @property
    def quarters(self) -> tuple[float, ...]:
        """Mean of B − A in each quarter of the run."""
        known = self.pair.difference[self.pair.finite]
        return tuple(float(part.mean()) for part in np.array_split(known, QUARTERS)) if len(known) >= QUARTERS else ()

    @property
    def drifts_late(self) -> bool:
        """Whether the difference of the last quarter is several times that of the first."""
        parts = self.quarters
        return len(self.pair) >= _SHORTEST_DRIFT and abs(parts[-1]) > 4 * abs(parts[0]) and self.is_biased

    @property
    def steps_out(self) -> int:
        """How many steps lie out of the noise band; a few that do not follow one another are no finding."""
        return int(self.band.out.sum())

    @property
    def judgement(self) -> str:
        """How it stands in a word or two."""
        if not len(self.pair):
            return "no step in common"
        if self.metric is not None:
            return "accepted" if self.first_out is None else "not accepted"
        if self.first_out is not None:
            return "out of the band"
        if bool(((self.pair.difference == 0) | ~self.pair.finite).all()):
            return "equal"
        if self.is_biased:
            return "biased"
        band = f"in the band but for {self.steps_out}" if self.steps_out else "in the band"
        return band + {Sign.WANDERS: ", wanders", Sign.SHORT: ", too short", Sign.FLUCTUATES: ", fluctuates"}.get(
            self.sign.sign, ""
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        pair = self.pair
        worst = (int(pair.steps[self.worst]), float(pair.difference[self.worst])) if len(pair) else (None, None)
        return {
            **named(self, "name", "decides"), "steps": len(pair), **named(pair, "only_a", "only_b"),
            **named(self, "judgement", "first_out", "steps_out"), "metric": None if self.metric is None else str(self.metric),
            "worst_at": worst[0], "worst": plain(worst[1]), **named(self, "mean_absolute", "mean_relative", "quarters"),
            "sign": {"judgement": self.sign.sign.value, **named(self.sign, "offset", "share", "p_value", "runs_z", "steps")},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a batch: ids, or whatever integers the model was given."""

    side: str
    name: str
    shape: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    """of the first samples, the first numbers"""


@dataclass(frozen=True, slots=True)
class Batches:
    """Whether the models of both runs were given the same, step by step."""

    steps: int
    """steps of which that is known"""
    first: int | None
    """number, in A, of the first step in which they were not"""
    names: tuple[str, ...]
    """what differs there, as A calls it"""
    moved: int | None
    """how many steps later than A the model of B was given what A's was in that step; None where it never was"""
    samples: tuple[Sample, ...]
    """of the step in which the runs part, where ids were recorded"""


@dataclass(frozen=True)
class CurveComparison(Judged):
    """The answer of `probe.curves`, and what it rests on."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    """in the order of cause"""
    series: tuple[SeriesResult, ...]
    norms: LocalNorms
    standard: StandardVerdict
    settings: tuple[SettingDifference, ...]
    noise: str
    """how it was told what is noise"""
    notes: tuple[Note, ...]
    """what is to be known of the comparison"""
    doubtful: tuple[Note, ...]
    """those of the notes for which the verdict cannot be aligned"""
    by_standard: bool = False
    """the migration standard decided"""
    path_a: str = ""
    path_b: str = ""
    kind_a: str = ""
    kind_b: str = ""
    further: tuple[str, ...] = ()
    """further runs of A"""
    divergence: Divergence | None = None
    """the first place that is wrong in the first step out, where both sides recorded that in full"""
    advice: str = ""
    """what to record, or to run, to find that place"""
    batches: Batches | None = None
    """None where no step of both sides has its batch"""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes in words."""
        return tuple(map(str, self.notes))

    @property
    def doubts(self) -> tuple[str, ...]:
        """In words, for what the verdict cannot be aligned."""
        return tuple(map(str, self.doubtful))

    @property
    def first_step(self) -> int | None:
        """Number, in A, of the step in which the runs part."""
        return self.findings[0].step if self.findings else None

    def __str__(self) -> str:
        """Return the report as plain text."""
        from probe.report.curves.text import render

        return render(self).plain

    def __repr__(self) -> str:
        first = self.findings[0] if self.findings else None
        where = "" if first is None else f", first: {first.text}"
        return f"<CurveComparison: {self.verdict.value}{where}>"

    def __getitem__(self, name: str) -> SeriesResult:
        """Return a curve by its name.

        Raises
        ------
        KeyError
            there is none of that name on both sides
        """
        for each in self.series:
            if each.name == name:
                return each
        raise KeyError(f"no curve {name!r} on both sides; there are {', '.join(each.name for each in self.series)}")

    def plot(self, path: str | Path | None = None) -> np.ndarray:
        """Draw the curves, in a notebook or into a PNG or SVG file (needs matplotlib); return the matplotlib Axes."""
        from probe.report.curves.plot import draw

        return draw(self, path)

    def _repr_html_(self) -> str:
        from probe.report.curves.notebook import of_curves

        return of_curves(self)

    def as_json(self) -> dict[str, object]:
        """Return the answer by the names that ``--format json`` uses."""
        return {
            "schema": SCHEMA, **named(self, "verdict", "by_standard", "first_step", "findings", "series"),
            "norms": _norms_json(self.norms), "standard": _standard_json(self.standard), **named(self, "settings", "noise"),
            "first_divergence": plain(self.divergence), **named(self, "advice", "batches", "warnings", "doubts"),
            "a": {"path": self.path_a, "kind": self.kind_a}, "b": {"path": self.path_b, "kind": self.kind_b},
            **named(self, "further"),
        }  # fmt: skip


_NORM_JSON = {"a": "name_a", "b": "name_b", "steps": "steps", "first_out": "first_out", "worst_relative": "worst",
              "worst_at": "worst_at", "mean_relative": "mean", "norm_a": "a", "norm_b": "b", "limit": "limit"}  # fmt: skip
"""by the names of JSON: those of `NormResult`"""


def _norms_json(norms: LocalNorms) -> dict[str, object]:
    rows = [{name: plain(getattr(each, own)) for name, own in _NORM_JSON.items()} for each in norms.results]
    return {"first": [each.name_a for each in norms.first], **named(norms, "only_a", "only_b"), "parameters": rows}


def _standard_json(standard: StandardVerdict) -> dict[str, object]:
    words = {name: [str(each) for each in getattr(standard, name)] for name in ("failed", "missing", "rests_on")}
    criteria = [
        {**named(each, "name", "value", "limit", "baseline"), "passes": each.passes if each.is_known else None}
        for each in standard.criteria
    ]
    return {**named(standard, "verdict", "steps", "repeats", "convergence"), **words, "criteria": criteria}
