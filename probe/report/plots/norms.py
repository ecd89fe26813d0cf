"""Norms of weights, gradients and updates, and logged numbers, over the steps of a recording."""

from __future__ import annotations

import fnmatch
import math
from typing import Any

import numpy as np

from probe.curve_comparison.reading.recorded import total
from probe.errors import ConfigError, NotRecordedError
from probe.records import Phase, Role
from probe.report.plots.axes import A, label, legend, one, title
from probe.store.reading.reader import Reader

_MOST_NAMED = 6
_ROLES = {"gradients": Role.PARAM_GRAD, "weights": Role.PARAM, "updates": Role.DELTA}
_ALL = "all together"

Curve = tuple[np.ndarray, np.ndarray]
"""steps, numbers"""


def draw(reader: Reader, what: str, only: str = "*", ax: Any = None) -> Any:
    """Draw one number per step, or the norm of each parameter's; return the axes.

    Raises
    ------
    ImportError
        matplotlib is not installed
    NotRecordedError
        nothing of that kind was recorded
    ConfigError
        neither a kind of norm nor a logged number has that name
    """
    if what not in _ROLES:
        return _draw_scalar(reader, what, ax)
    found = {name: curve for name, curve in norms(reader, _ROLES[what]).items() if fnmatch.fnmatchcase(name, only)}
    if not found:
        which = f" of parameters that match {only!r}" if only != "*" else ""
        raise NotRecordedError(f"no {what}{which} were recorded in {reader.path.name}")
    axes = one(ax, (8, 3.8))
    named = sorted(found, key=lambda name: -_range(found[name][1]))[:_MOST_NAMED]
    for name in set(found) - set(named):
        axes.plot(*found[name], color="gray", alpha=0.35, lw=0.8)
    handles = [_line(axes, found[name], lw=1.3) for name in named]
    if len(found) > 1:
        named = [_ALL, *named]
        handles.insert(0, _line(axes, total(found.values()), color=axes.xaxis.label.get_color(), lw=2.0))
    values = np.concatenate([curve[1] for curve in found.values()])
    if (values > 0).any():
        axes.set_yscale("log")
    several = len(found) > 1
    _label(axes, f"norm of {what}" if several else f"norm of {what}: {label(named[0])}", what == "weights")
    if several:
        rest = f" ({len(found) - _MOST_NAMED:,} more in grey)" if len(found) > _MOST_NAMED else ""
        legend(axes, handles, [named[0] + rest, *named[1:]], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return axes


def norms(reader: Reader, role: Role) -> dict[str, Curve]:
    """Return the norm of every parameter's weight, gradient or update by step; NaN where it is not finite.

    Gradients are the last ones of a step: as the optimizer used them, or as backward left them where nothing used them; weights are as
    the step began, which is also how the one before left them.
    """
    columns = ("step", "phase", "module", "role", "slot", "norm", "nan", "posinf", "neginf")
    rows = reader.chosen_records(columns, lambda rows: rows["role"] == role)
    if role is Role.PARAM:
        rows["step"] += rows["phase"] == Phase.UPDATE
    found: dict[tuple[int, int], dict[int, float]] = {}
    is_bad = (rows["nan"] + rows["posinf"] + rows["neginf"]) > 0
    values = np.where(is_bad, np.nan, rows["norm"]).tolist()
    places = zip(rows["module"].tolist(), rows["slot"].tolist(), rows["step"].tolist(), values, strict=True)
    for module, slot, step, value in places:
        found.setdefault((module, slot), {})[step] = value
    names = {key: (reader.modules[key[0]].path, reader.slots[key[1]]) for key in found}
    return {".".join(filter(None, names[key])): _curve(by_step) for key, by_step in found.items()}


def _curve(by_step: dict[int, float]) -> Curve:
    steps = sorted(by_step)
    return np.array(steps), np.array([by_step[step] for step in steps])


def _range(values: np.ndarray) -> float:
    """Return by how much, as a factor, a norm changes; those that are not always finite first."""
    if not np.isfinite(values).all():
        return math.inf
    known = values[values > 0]
    return float(known.max() / known.min()) if known.size else 0.0


def _draw_scalar(reader: Reader, name: str, ax: Any) -> Any:
    by_step = {step: value for step, known, value in reader.scalars if known == name}
    if not by_step:
        logged = sorted({known for _, known, _ in reader.scalars})
        kinds = ", ".join([*map(repr, _ROLES), *(repr(label(each)) for each in logged[:_MOST_NAMED])])
        raise ConfigError(f"nothing called {label(str(name))!r} was logged in {reader.path.name}; there are {kinds}")
    axes = one(ax, (8, 3))
    _line(axes, _curve(by_step), color=A, lw=1.5)
    _label(axes, label(name))
    return axes


def _line(axes: Any, curve: Curve, **style: Any) -> Any:
    dots = {"marker": "o", "ms": 3} if len(curve[0]) <= 40 else {}
    return axes.plot(*curve, **dots, **style)[0]


def _label(axes: Any, text: str, as_it_began: bool = False) -> None:
    title(axes, text)
    axes.set_xlabel("step, as it began" if as_it_began else "step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
