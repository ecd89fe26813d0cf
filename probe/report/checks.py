"""The answers of checks in words: the reason first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from probe.checks.outcome import CheckResult, Line, State, Status
from probe.notes import Note
from probe.records import Role
from probe.report.layout import LONGEST_LIST, PLAIN_WIDTH, padded, plain, shortened, wrapped

if TYPE_CHECKING:
    from probe.checks.initial.checking import Parameter
    from probe.checks.overflow.birth import Birth
    from probe.checks.overflow.ranges import Underflow
    from probe.checks.seen import Seen
    from probe.checks.weights.measuring import WeightRow

_STYLES = {Status.FOUND: "bold red", Status.CLEAN: "bold green", Status.UNCHECKED: "bold yellow"}
_SIGNS = {State.FOUND: ("✗", "red"), State.UNKNOWN: ("?", "yellow"), State.OK: ("✓", "green")}
_NARROWEST = 40
"""columns; what is narrower wraps by itself"""
_MOST, _MOST_MODULES = 10, 5
"""rows of a table of parameters, of modules"""
_MOST_MADE = 8
"""tensors that the first NaN or Inf was made from"""
_NEGLIGIBLE = 1e-3
"""share of the largest number below which the modules are not listed: float32 and bfloat16 end at 3e38"""


def render(result: CheckResult, width: int | None = None, *, verbose: bool = False) -> Text:
    """Return the answer of a check, what was found first, with the numbers that it rests on.

    Parameters
    ----------
    result
        what to show
    width
        columns of the terminal; None for what goes to none
    verbose
        show all there is, not only the first rows of each table, nor the first 2,000 characters of a sample
    """
    page = _Page(result, width, verbose)
    page.head()
    _BODIES[result.check](page)
    page.out.rstrip()
    return page.out


class _Page:
    """The answer under way."""

    def __init__(self, result: Any, width: int | None, verbose: bool) -> None:
        self.result, self.verbose, self.out, self.whole = result, verbose, Text(), width is None
        self.room = PLAIN_WIDTH if width is None else max(width, _NARROWEST)
        """columns of a sentence"""

    def head(self) -> None:
        """Add the answer, what was found, what could not be looked at, what is right."""
        status = self.result.status
        names = "  ".join(plain(file) for file in self.result.files)
        self.out.append(wrapped(f"{status.value.upper()}  {names}", self.room, "", "  ", whole=self.whole))
        self.out.stylize(_STYLES[status], 0, len(status.value))
        self.out.append("\n")
        lines = _together(self.result.lines)
        for line in (line for state in State for line in lines if line.state is state):
            sign, style = _SIGNS[line.state]
            said = f"{line.topic}: {f'{line.side}: ' if line.side else ''}{plain(str(line.said), LONGEST_LIST)}"
            text = Text(f"{wrapped(said, self.room, f'  {sign} ', '    ', whole=self.whole)}\n")
            text.stylize(style, 2, 3)
            self.out.append_text(text)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]], total: int = 0) -> None:
        """Add a table of which the first column is a name, shortened in the middle where there is no room for it.

        Numbers stand to the right, texts to the left. Nothing is added where there is no row; what of the ``total`` is not
        among the rows is counted below them.
        """
        kept = [tuple(row) for row in rows]
        if not kept:
            return
        self.out.append(f"\n{title}\n")
        sizes = [max(map(cell_len, column)) for column in zip(head, *kept, strict=True)]
        sizes[0] = min(sizes[0], max(self.room - sum(sizes[1:]) - 2 * len(sizes), 12))
        texts = [any(cell[:1].isalpha() for cell in column) for column in zip(*(row[1:] for row in kept), strict=True)]
        for number, row in enumerate([tuple(head), *kept]):
            first = padded(shortened(row[0], sizes[0]), sizes[0])
            cells = [padded(cell, size) if is_text else " " * (size - cell_len(cell)) + cell
                     for cell, size, is_text in zip(row[1:], sizes[1:], texts, strict=True)]  # fmt: skip
            self.out.append(f"  {'  '.join([first, *cells])}".rstrip() + "\n", style="" if number else "dim")
        if total > len(kept) and not self.verbose:
            self.out.append(f"  {total - len(kept)} more: -v shows all\n", style="dim")


def _together(lines: Iterable[Line]) -> list[Line]:
    """Return lines of which what is the same of A and B is said once."""
    found: dict[tuple[str, State, Note], list[str]] = {}
    for line in lines:
        found.setdefault((line.topic, line.state, line.said), []).append(line.side)
    return [Line(*what, " and ".join(filter(None, sides))) for what, sides in found.items()]


def _number(value: float) -> str:
    """Return a number in nine characters at most."""
    return "0" if not value else f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def _percent(share: float) -> str:
    """Return a share with two digits that count."""
    return "0 %" if not share else f"{float(f'{100 * share:.2g}'):g} %" if share >= 1e-4 else "< 0.01 %"


def _path(tensor: Seen | Underflow) -> str:
    return plain(tensor.path) or "(root)"


def _tables(page: _Page) -> None:
    """Add the tables that a result gives itself, and what to do next."""
    for title, head, rows in page.result.tables:
        page.table(title, head, rows)
    for each in page.result.next:
        page.out.append(f"{wrapped(each, page.room, '  → ', '    ')}\n", style="bold")


def _data(page: _Page) -> None:
    """Add the samples as text where a tokenizer was given."""
    samples = page.result.samples
    if samples:
        page.out.append(f"\nSample {samples[0].sample} of step {samples[0].step} as text\n")
    for sample in samples:
        text = plain(sample.text, len(sample.text) if page.verbose else LONGEST_LIST)
        lead = f"  {sample.side} " if sample.side else "  "
        page.out.append(f"{wrapped(text, page.room, lead, ' ' * len(lead))}\n")


def _weights(page: _Page) -> None:
    """Add mean, variance and norm of the weights that differ most; all of them, in the order of B, with ``verbose``."""
    every = page.result.weights
    rows = every if page.verbose else sorted((row for row in every if not row.is_equal), key=_apart)[:_MOST]
    head = ("weight of B", "mean A", "mean B", "var A", "var B", "norm B/A")
    title = "Every weight" if page.verbose else "Furthest apart in norm or variance"
    page.table(title, head, map(_of_weight, rows), len(every))


def _apart(row: WeightRow) -> float:
    ratios = [ratio for ratio in (row.norm_ratio, row.std_ratio) if math.isfinite(ratio) and ratio > 0]
    is_constant_once = row.a.drawn.is_constant is not row.b.drawn.is_constant
    return -math.inf if is_constant_once else -max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def _of_weight(row: WeightRow) -> tuple[str, ...]:
    ratio = "equal" if row.is_equal else "–" if math.isnan(row.norm_ratio) else f"{row.norm_ratio:.4f}"
    return plain(row.name_b), *map(_number, (row.a.mean, row.b.mean, row.a.variance, row.b.variance)), ratio


def _initial(page: _Page) -> None:
    """Add the parameters with the smallest p; all of them with ``verbose``."""
    every = page.result.parameters
    tested = [each for each in every if each.p]
    rows = every if page.verbose else sorted(tested, key=lambda each: min(each.p.values()))[:_MOST]
    head = ("parameter", "mean A", "mean B", "std A", "std B", "KS", "p")
    page.table("Every parameter" if page.verbose else "Least alike", head, map(_of_parameter, rows), len(tested))


def _of_parameter(each: Parameter) -> tuple[str, ...]:
    p = "equal" if each.kind == "equal" else "few" if not each.p else f"{min(each.p.values()):.0e}"
    statistic = "–" if math.isnan(each.statistic) else f"{each.statistic:.3f}"
    return plain(each.name_a), *map(_number, (each.a.mean, each.b.mean, each.a.std, each.b.std)), statistic, p


# Overflow


def _overflow(page: _Page) -> None:
    """Add the birth of the first NaN or Inf, and the modules nearest to the ends of their dtypes."""
    result = page.result
    if result.birth is not None:
        _birth(page, result.birth)
        if result.advice is not None:
            advice = wrapped(plain(str(result.advice), LONGEST_LIST), page.room, "  → ", "    ")
            page.out.append(f"{advice}\n", style="bold")
    most = None if page.verbose else _MOST_MODULES
    near = [each for each in result.headroom if each.share >= _NEGLIGIBLE][:most]
    page.table("Nearest to the largest number of their dtype", ("module", "tensor", "dtype", "largest", "of its end"), (
        (_path(each.tensor), f"{each.tensor.role.label} {shortened(plain(each.tensor.slot), 16)}", each.tensor.dtype,
         _number(each.tensor.largest), _percent(each.share)) for each in near
    ))  # fmt: skip
    small = [each for each in result.underflow if page.verbose or max(each.share, each.subnormal_share) >= 1e-4][:most]
    page.table("Too small for their dtype, as a share of the elements", ("module", "phase", "dtype", "zeros", "subnormal"), (
        (_path(each), each.phase.label, each.dtype, f"≤ {_percent(each.share)}" if each.share else "0 %",
         ("" if each.is_exact else "≥ ") + _percent(each.subnormal_share)) for each in small
    ))  # fmt: skip


def _birth(page: _Page, birth: Birth) -> None:
    """Add where it was born, and a line for each tensor that tells: what it is, whose, and how large."""
    where = f"step {birth.step} · {birth.phase.label} · {plain(birth.path) or '(the whole model)'}  {plain(birth.class_name)}"
    page.out.append("\nBorn  ", style="bold")
    page.out.append(f"{wrapped(where, page.room - 6, '', '    ', whole=page.whole)}\n", style="not bold")
    rows = list(_telling(birth))
    ends = [f"  {_role(tensor)}  {_size(tensor)}" for _, tensor in rows]
    room = max(page.room - 15 - max(map(len, ends), default=0), 12)
    longest = min(max((len(_path(tensor)) for _, tensor in rows), default=0), room)
    for (what, tensor), end in zip(rows, ends, strict=True):
        page.out.append(f"  {what:<11}  ", style="dim")
        page.out.append(shortened(_path(tensor), longest).ljust(longest), style="cyan")
        page.out.append(f"{end}\n".replace("  \n", "\n"))
    if birth.is_skipped:
        page.out.append("  the optimizer left every weight as it was in that step, as a loss scaler does\n")


def _telling(birth: Birth) -> Iterator[tuple[str, Seen]]:
    """Yield the tensors that tell, each with what it is."""
    if birth.first is not None:
        yield "first", birth.first
    kept = birth.made_from[-_MOST_MADE:]
    for at, each in enumerate(kept):
        yield "" if at else "made from", each
    if birth.last_finite is not None and birth.last_finite not in kept:
        yield "last finite", birth.last_finite


def _role(tensor: Seen) -> str:
    name = "weight" if tensor.role is Role.PARAM else tensor.role.label
    return f"{name if tensor.slot == name else f'{name} {shortened(plain(tensor.slot), 13)}'}".ljust(20)


def _size(tensor: Seen) -> str:
    """Return the range of a tensor, or how much of it is not finite."""
    counts = ((tensor.nan, "NaN"), (tensor.posinf, "+Inf"), (tensor.neginf, "−Inf"))
    parts = [f"{count} {name}" for count, name in counts if count]
    if parts:
        return f"{', '.join(parts)} of {tensor.size}"
    return "nothing" if math.isnan(tensor.low) else f"{_number(tensor.low)} to {_number(tensor.high)}"


_BODIES: Mapping[str, Callable[[_Page], None]] = {
    "data": _data, "weights": _weights, "initial": _initial, "overflow": _overflow, "logprobs": _tables,
}  # fmt: skip
"""what a check shows behind its lines, by its name"""
