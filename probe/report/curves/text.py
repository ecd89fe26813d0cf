"""The comparison of two runs in words for the terminal: the answer first, then the curves, then what it rests on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from probe.answer.result import Verdict
from probe.curve_comparison.findings import metric_values
from probe.curve_comparison.norms import NormResult
from probe.curve_comparison.result import Batches, CurveComparison, Finding, SeriesResult
from probe.curve_comparison.standard import ACCEPTABLE, Criterion, StandardVerdict
from probe.report.curves.terminal import drawn
from probe.report.layout import LONGEST_LIST, PLAIN_WIDTH, file_names, padded, plain, shortened, wrapped
from probe.report.measured import headline
from probe.report.words.curves import criterion_shown, criterion_wanted, percent
from probe.report.words.forms import counted

_STYLE = {Verdict.ALIGNED: "bold green", Verdict.DIVERGED: "bold red", Verdict.UNDECIDED: "bold yellow"}
_NUMBERS = 50
"""columns of the table's numbers"""
_JUDGEMENT = 15
"""columns that the table leaves for the judgement; a longer one has a line of its own"""
_NAME = 36
_MOST_CURVES = 12
_MOST_NORMS = 5
_OF_CRITERIA = ("standard-criterion", "standard-criteria")
"""failures of what stands in the list of criteria anyway"""


def render(answer: CurveComparison, *, norms: bool = False, plot: bool = True) -> Text:
    """Return the report, with the styles that a terminal shows.

    Parameters
    ----------
    answer
        what to report
    norms
        list every parameter's gradient norm, not only those that stand out
    plot
        draw the loss (or the first curve) in characters
    """
    out = Text.assemble((answer.verdict.value.upper(), _STYLE[answer.verdict]))
    name_a, name_b = map(plain, file_names(answer.path_a, answer.path_b))
    out.append(f"  A {name_a} ({answer.kind_a})  B {name_b} ({answer.kind_b})\n\n")
    if answer.verdict is Verdict.UNDECIDED:
        _undecided(out, answer)
    elif answer.findings:
        _findings(out, answer)
    else:
        single = [f"{each.steps_out} of {_shown(each.name)}" for each in _by_the_band(answer) if each.steps_out]
        but = f" but single ones ({', '.join(single)})" if single else ""
        if _by_the_band(answer) or answer.norms.results:
            _say(out, f"No step leaves the noise band{but}, and no offset is steady, in {_compared(answer)}.")
            _say(out, _how_wide(answer))
        _metrics(out, answer)
        out.append("\n")
    _table(out, answer)
    _norms(out, answer, norms)
    _standard(out, answer.standard)
    if plot and answer.series and len(answer.series[0].pair) > 1:
        out.append(f"{drawn(answer.series[0])}\n\n")
    runs = "".join(f", {_file(path)}" for path in answer.further)
    out.append(f"noise: {answer.noise}{runs}\n")
    if answer.batches is not None and not (answer.findings and answer.verdict is not Verdict.UNDECIDED):
        is_equal = answer.batches.first is None
        text = f"the models are given the same in {counted(answer.batches.steps, 'step')}"
        _say(
            out,
            text if is_equal else _other_batches(answer.batches),
            "" if is_equal else "note: ",
            "" if is_equal else "yellow",
        )
    for said in answer.notes:
        if answer.verdict is not Verdict.UNDECIDED or said not in answer.doubtful:
            _say(out, str(said), "note: ", "yellow")
    out.rstrip()
    return out


def _by_the_band(answer: CurveComparison) -> list[SeriesResult]:
    """Return the curves that decide by what is known of noise."""
    return [each for each in answer.series if each.decides and each.metric is None]


def _metrics(out: Text, answer: CurveComparison) -> None:
    """Say of each metric that is accepted what it is; the others are findings."""
    for each in answer.series:
        if each.metric is not None and len(each.pair) and each.first_out is None:
            _say(out, f"{_shown(each.name)} is accepted: {metric_values(each, each.metric)}", f"{_mark(True)} ")


def _undecided(out: Text, answer: CurveComparison) -> None:
    first, *others = dict.fromkeys([*answer.doubtful, *(answer.standard.missing if answer.by_standard else ())])
    _say(out, str(first), style="bold")
    for doubt in others:
        _say(out, str(doubt), "  also: ", "yellow")
    out.append("\n")


def _findings(out: Text, answer: CurveComparison) -> None:
    first = answer.findings[0]
    if answer.verdict is Verdict.ALIGNED:
        out.append("The migration standard is met. Step by step the runs part all the same:\n")
    else:
        out.append("The runs part  ", style="bold")
        out.append(f"step {first.step} · {first.kind.value}\n")
    _finding(out, first)
    if answer.divergence is not None:
        place = (answer.divergence.a or answer.divergence.b)[0]
        out.append("  first wrong place  ", style="bold")
        out.append(f"{headline(answer.divergence)}\n")
        out.append(f"    {plain(place.path) or 'the whole model'}  {plain(place.class_name)}\n")
        if answer.divergence.hint:
            _say(out, answer.divergence.hint, "    → ")
    _batches(out, answer, first.step)
    if answer.advice:
        _say(out, answer.advice, "  ")
    out.append("\n")
    if answer.findings[1:]:
        out.append("Also apart\n")
        for finding in answer.findings[1:]:
            _finding(out, finding, f"step {finding.step}: ")
        out.append("\n")


def _batches(out: Text, answer: CurveComparison, step: int) -> None:
    """Say whether the models were given the same in the step of a finding, and what that is."""
    batches = answer.batches
    if batches is None:
        return
    if batches.first is None or batches.first > step:
        _say(out, f"what the models were given is the same on both sides up to step {step}", "  ")
    else:
        _say(out, _other_batches(batches), "  ", "yellow")
    for each in batches.samples:
        shape = ", ".join(map(str, each.shape))
        out.append(f"  {each.side}: {_shown(each.name)} [{shape}]\n")
        for number, row in enumerate(each.rows):
            more = " …" if len(row) * len(each.rows) < math.prod(each.shape) else ""
            _say(out, f"{' '.join(map(str, row))}{more}", f"    {number}: ")


def _other_batches(batches: Batches) -> str:
    names = ", ".join(map(_shown, batches.names))
    moved = ""
    if batches.moved:
        count = abs(batches.moved)
        moved = f"; B has A's {count} step{'s' if count > 1 else ''} {'later' if batches.moved > 0 else 'earlier'}"
    return f"the models are given other data from step {batches.first} on ({names}{moved}): look at the sampler and its seed"


def _say(out: Text, text: str, lead: str = "", style: str = "") -> None:
    """Add a sentence, on lines of its own."""
    out.append(f"{_wrapped(lead, text)}\n", style=style)


def _finding(out: Text, finding: Finding, before: str = "") -> None:
    _say(out, before + finding.text, "  ")
    if finding.hint:
        _say(out, finding.hint, "  → ", "" if before else "bold")


def _wrapped(lead: str, text: str) -> str:
    return wrapped(plain(text, LONGEST_LIST), PLAIN_WIDTH, lead, " " * len(lead), whole=True)


def _compared(answer: CurveComparison) -> str:
    deciding = [each for each in _by_the_band(answer) if len(each.pair)]
    steps = max((len(each.pair) for each in deciding), default=0)
    what = [_shown(each.name) for each in deciding[:_MOST_CURVES]]
    if answer.norms.results:
        what.append(f"the gradient norms of {len(answer.norms.results)} parameters")
    return f"{counted(steps, 'step')} of {', '.join(what)}"


def _how_wide(answer: CurveComparison) -> str:
    """Say how wide the band was that the first curve stayed in, and what that does not judge."""
    rest = "whether single steps and tensors are right is what probe compare judges"
    first = next((each for each in _by_the_band(answer) if len(each.pair)), None)
    half = np.array([]) if first is None else (first.band.high - first.band.low) / 2
    known = half[np.isfinite(half)]
    if first is None or not len(known):
        return f"{rest[0].upper()}{rest[1:]}."
    size = np.abs(first.pair.a[np.isfinite(first.pair.a)]).mean()
    return f"The band of {_shown(first.name)} was ±{known.max():.2g} at its widest, where A is {size:.3g} on average; {rest}."


def _table(out: Text, answer: CurveComparison) -> None:
    rows = [each for each in answer.series if len(each.pair)]
    if not rows:
        return
    width = min(
        max(cell_len(_shown(each.name)) for each in rows[:_MOST_CURVES]), PLAIN_WIDTH - _NUMBERS - 2 - _JUDGEMENT
    )
    head = f"{'curve':<{width}}  {'steps':>6}  {'first out':>9}  {'mean |Δ|':>8}  {'mean rel':>9}  {'mean Δ':>8}  judgement"
    out.append(f"{head}\n", style="bold")
    for each in rows[:_MOST_CURVES]:
        out.append(f"{_row(each, width)}\n")
    if len(rows) > _MOST_CURVES:
        out.append(f"and {len(rows) - _MOST_CURVES} more (-o curves.csv has all)\n")
    out.append("\n")


def _row(each: SeriesResult, width: int) -> str:
    first = "–" if each.first_out is None else str(each.first_out)
    known = each.pair.difference[each.pair.finite]
    mean = float(known.mean()) if len(known) else math.nan
    note = each.judgement if each.decides else f"{each.judgement} (does not decide)"
    name = padded(shortened(_shown(each.name), width), width)
    row = (
        f"{name}  {len(each.pair):>6}  {first:>9}  {_number(each.mean_absolute):>8}  "
        f"{percent(each.mean_relative):>9}  {_number(mean, '+'):>8}"
    )
    is_room = cell_len(row) + 2 + len(note) <= PLAIN_WIDTH
    return f"{row}  {note}" if is_room else f"{row}\n{note:>{PLAIN_WIDTH}}"


def _number(value: float, sign: str = "") -> str:
    return "unknown" if math.isnan(value) else f"{value:{sign}.2g}"


def _norms(out: Text, answer: CurveComparison, every: bool) -> None:
    results = answer.norms.results
    if not results:
        return
    order = sorted(results, key=lambda each: (each.first_out is None, each.first_out or 0, -each.worst))
    gone = [each for each in order if each.is_out]
    out.append(f"Gradient norms of {len(results)} parameters: {len(gone)} leave the band\n", style="bold")
    listed = order if every else order[: min(_MOST_NORMS, max(1, len(gone)))]
    for each in listed:
        out.append(f"  {_shown(each.name_a, PLAIN_WIDTH - 2)}\n")
        _say(out, _norm_row(each), "    ")
    if len(gone) > len(listed):
        out.append(f"  and {len(gone) - len(listed)} more (--norms lists all)\n")
    out.append("\n")


def _norm_row(each: NormResult) -> str:
    state = f"from step {each.first_out} on" if each.is_out else f"at most {percent(each.worst)}, in the band"
    return f"{state}: {each.a:.4g} in A, {each.b:.4g} in B there; mean rel {percent(each.mean)}"


def _standard(out: Text, standard: StandardVerdict) -> None:
    if not any(each.is_known for each in standard.criteria[:4]):
        return
    out.append("Migration standard: ")
    out.append(f"{standard.verdict.value}\n", style=_STYLE[standard.verdict])
    loss = standard.criteria
    for absolute, relative in ((loss[0], loss[1]), (loss[2], loss[3])):
        text = f"{absolute.quantity}: {_said(absolute)} or {_said(relative)}"
        _say(out, text, f"  {_mark(absolute.passes or relative.passes)} ")
    norm = loss[4]
    if norm.is_known:
        out.append(f"  {_mark(norm.passes)} mean global norm: {_said(norm)}\n")
    for said in standard.failed:
        if said.code not in _OF_CRITERIA:
            _say(out, str(said), f"  {_mark(False)} ")
    for said in standard.missing:
        _say(out, str(said), "  ? ")
    if standard.verdict is Verdict.DIVERGED and standard.convergence < ACCEPTABLE:
        differ = f"at the end the losses differ by {percent(standard.convergence)}"
        _say(out, f"{differ}: below 1.0 %, evaluating downstream tasks may accept it", "  ")
    _say(out, f"rests on: {'; '.join(map(str, standard.rests_on))}", "  ")
    out.append("\n")


def _mark(passes: bool) -> str:
    return "✓" if passes else "✗"


def _said(each: Criterion) -> str:
    facts = each.failure.facts
    return f"{criterion_shown(**facts)} (expected {criterion_wanted(**facts)})"


def _shown(name: str, longest: int = _NAME) -> str:
    return plain(name, longest)


def _file(path: str) -> str:
    return plain(Path(path).name)
