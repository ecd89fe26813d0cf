"""How large a recording will become, against the room that is left on its disk."""

from __future__ import annotations

_THOUSAND = 1000
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def shortage(per_step: float, remaining: int | None, free: int, folder: str, is_compressed: bool = False) -> str:
    """Say that a recording will not fit on its disk, or return an empty text.

    One more recorded step takes ``per_step`` bytes, of which ``free`` are left in the folder; less if it is
    compressed: how much less is not known by then. ``remaining`` are the steps that are still to be recorded; where
    it is None there is no end to them, and 1,000 are asked to fit.
    """
    if per_step * (_THOUSAND if remaining is None else remaining) <= free:
        return ""
    steps = f"{_THOUSAND:,} more" if remaining is None else f"the {remaining:,} that are still to come"
    return (
        f"a recorded step takes about {size(per_step)}{' before it is compressed' if is_compressed else ''}, {steps} would take "
        f"{size(per_step * (_THOUSAND if remaining is None else remaining))}, and {size(free)} are free in {folder}, "
        f"enough for {int(free // per_step):,}: choose fewer by steps=, modules=, phases= or tensors="
    )


def size(count: float) -> str:
    """Return a number of bytes for people: ``733.5 MiB``."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.0f} {_UNITS[unit]}" if unit == 0 else f"{count:,.1f} {_UNITS[unit]}"
