"""A comparison of curves as rows: CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.result import CurveComparison
from probe.report.table import safe_text

COLUMNS = ["kind", "name", "name_b", "step", "a", "b", "difference", "relative", "low", "high", "out"]


def as_csv(answer: CurveComparison, norms: bool = False) -> str:
    """Return a row per curve and step as CSV.

    Parameters
    ----------
    answer
        the comparison
    norms
        with the gradient norms of all parameters
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in answer.series:
        bounds = zip(each.band.low.tolist(), each.band.high.tolist(), each.band.out.tolist(), strict=True)
        for row, (low, high, is_out) in zip(_rows(each.pair), bounds, strict=True):
            writer.writerow(
                ["curve", safe_text(each.name), safe_text(each.name), *row, _cell(low), _cell(high), int(is_out)]
            )
    for each in answer.norms.results if norms else ():
        for row in _rows(each.pair):
            is_out = each.first_out is not None and row[0] >= each.first_out
            writer.writerow(["norm", safe_text(each.name_a), safe_text(each.name_b), *row, "", "", int(is_out)])
    return out.getvalue()


def _rows(pair: PairedSeries) -> Iterator[list[object]]:
    for step, a, b in zip(pair.steps.tolist(), pair.a.tolist(), pair.b.tolist(), strict=True):
        apart = b - a
        relative = apart / abs(a) if a else (0.0 if apart == 0 else math.inf)
        yield [step, repr(a), repr(b), _cell(apart), _cell(relative)]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
