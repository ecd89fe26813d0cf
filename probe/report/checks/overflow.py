"""`Overflow` in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from probe.checks.overflow import Overflow
from probe.checks.overflow.birth import Birth
from probe.checks.seen import Seen
from probe.records import Role
from probe.report.checks.frame import headed, number, percent, room_of, table
from probe.report.layout import shortened, wrapped
from probe.report.names import LONGEST_LIST, plain

_MOST = 5
"""modules of a table"""
_MOST_MADE = 8
"""tensors that the first NaN or Inf was made from"""
_NEGLIGIBLE = 1e-3
"""share of the largest number below which the modules are not listed: float32 and bfloat16 end at 3e38"""


def render(result: Overflow, width: int | None = None, *, verbose: bool = False) -> Text:
    """Return the answer, the birth of the first NaN or Inf, and the modules nearest to the ends of their dtypes.

    Parameters
    ----------
    result
        what to show
    width
        columns of the terminal; None for what goes to none
    verbose
        show all modules, not only the first five
    """
    out = headed(result, width)
    if result.birth is not None:
        out.append("\n")
        out.append_text(_birth(result.birth, width))
        if result.birth.is_skipped:
            out.append("  the optimizer left every weight as it was in that step, as a loss scaler does\n")
        if result.advice is not None:
            out.append(
                f"{wrapped(plain(str(result.advice), LONGEST_LIST), room_of(width), '  → ', '    ')}\n", style="bold"
            )
    most = None if verbose else _MOST
    near = [each for each in result.headroom if each.share >= _NEGLIGIBLE][:most]
    if near:
        out.append("\nNearest to the largest number of their dtype\n")
        rows = [(plain(each.tensor.path) or "(root)", _what(each.tensor), each.tensor.dtype, number(each.tensor.largest), percent(each.share)) for each in near]  # fmt: skip
        out.append_text(table(("module", "tensor", "dtype", "largest", "of its end"), rows, width))
    small = result.underflow[:most] if verbose else [each for each in result.underflow if max(each.share, each.subnormal_share) >= 1e-4][:most]  # fmt: skip
    if small:
        out.append("\nToo small for their dtype, as a share of the elements\n")
        rows = [(plain(each.path) or "(root)", each.phase.label, each.dtype, f"≤ {percent(each.share)}" if each.share else "0 %",
                 ("" if each.is_exact else "≥ ") + percent(each.subnormal_share)) for each in small]  # fmt: skip
        out.append_text(table(("module", "phase", "dtype", "zeros", "subnormal"), rows, width))
    out.rstrip()
    return out


def _what(tensor: Seen) -> str:
    return f"{tensor.role.label} {shortened(plain(tensor.slot), 16)}"


def _birth(birth: Birth, width: int | None) -> Text:
    """Return where it was born, and what was finite before."""
    out = Text("Born  ", style="bold")
    where = f"step {birth.step} · {birth.phase.label} · {plain(birth.path) or '(the whole model)'}  {plain(birth.class_name)}"
    out.append(f"{wrapped(where, room_of(width) - 6, '', '    ', whole=width is None)}\n", style="not bold")
    out.append_text(_listed(list(_rows(birth)), width))
    return out


def _rows(birth: Birth) -> Iterator[tuple[str, Seen]]:
    """Yield the tensors that tell, each with what it is."""
    if birth.first is not None:
        yield "first", birth.first
    kept = birth.made_from[-_MOST_MADE:]
    for at, each in enumerate(kept):
        yield "" if at else "made from", each
    if birth.last_finite is not None and birth.last_finite not in kept:
        yield "last finite", birth.last_finite


def _listed(rows: list[tuple[str, Seen]], width: int | None) -> Text:
    """Return a line for each tensor: what it is, whose, and how large."""
    out = Text()
    ends = [f"  {_role(tensor)}  {_size(tensor)}" for _, tensor in rows]
    room = max(room_of(width) - 15 - max(map(len, ends), default=0), 12)
    longest = min(max((len(_path(tensor)) for _, tensor in rows), default=0), room)
    for (what, tensor), end in zip(rows, ends, strict=True):
        out.append(f"  {what:<11}  ", style="dim")
        out.append(shortened(_path(tensor), longest).ljust(longest), style="cyan")
        out.append(f"{end}\n".replace("  \n", "\n"))
    return out


def _path(tensor: Seen) -> str:
    return plain(tensor.path) or "(root)"


def _role(tensor: Seen) -> str:
    name = "weight" if tensor.role is Role.PARAM else tensor.role.label
    return f"{name if tensor.slot == name else f'{name} {shortened(plain(tensor.slot), 13)}'}".ljust(20)


def _size(tensor: Seen) -> str:
    """Return the range of a tensor, or how much of it is not finite."""
    parts = [
        f"{count} {name}"
        for count, name in ((tensor.nan, "NaN"), (tensor.posinf, "+Inf"), (tensor.neginf, "−Inf"))
        if count
    ]
    if parts:
        return f"{', '.join(parts)} of {tensor.size}"
    return "nothing" if math.isnan(tensor.low) else f"{number(tensor.low)} to {number(tensor.high)}"
