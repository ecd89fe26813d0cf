"""What an acceptance table says beside its figures: where it disagrees with the verdict, and what it could not judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from probe.comparison.notes import Note
from probe.report.words.notes import in_model, many

METRICS = {
    "max_abs": "max |Δ|", "mean_abs": "mean |Δ|", "max_rel": "max |Δ|/|a|", "rel_l2": "rel", "cosine": "1 − cos",
    "allclose": "|Δ|",
}  # fmt: skip
"""what an error is measured by, in a few characters"""
_RECORD = {
    "outputs": "call the model while it is recorded",
    "logits": "call the model while it is recorded",
    "loss": "pass it to probe.step(loss=loss) on both sides",
    "forward tensors": "record the phase forward",
    "backward tensors": "record the phases backward and gradient, and a backward pass",
    "weight gradients": "record the phases backward and gradient, and a backward pass",
}
"""by row of a table: what to do for it"""


def _figure(figure: float, metric: str) -> str:
    return f"{figure:.2g} times the tolerance" if metric == "allclose" else f"{figure:.1e}"


def _below(
    path: str, phase: str, kind: str, item: str, metric: str, figure: float, relation: str, bound: float
) -> str:  # fmt: skip
    if math.isnan(figure):
        return (
            f"accepted although DIVERGED: the fault in {in_model(path)} is not known to be beyond the bound of {item}"
        )
    return (
        f"accepted although DIVERGED: the fault in {in_model(path)} is smaller than the bound: {METRICS[metric]} "
        f"{relation}{_figure(figure, metric)}, and {item} may differ by {_figure(bound, metric)}"
    )


def _outside(path: str, phase: str, kind: str) -> str:
    return (
        f"accepted although DIVERGED: the fault is in {in_model(path)}, phase {phase} ({kind}); no row of the table looks "
        "at that tensor"
    )


def _beyond(
    item: str, metric: str, figure: float, bound: float, path: str | None, rel: float, limit: float, largest: float
) -> str:
    where = "" if path is None else f" in {in_model(path)}"
    told = (
        f"not accepted although ALIGNED: {item}: {METRICS[metric]} {_figure(figure, metric)}{where} is beyond the bound of "
        f"{_figure(bound, metric)}"
    )
    if math.isnan(rel):
        return f"{told}, but no more than rounding explains"
    noise = f" (up to {limit:.1e} is noise)" if math.isfinite(limit) else ""
    return f"{told}, but relative to the tensor that is {rel:.1e}{noise}: the bound is absolute, and numbers there go up to {largest:.3g}"


def _needs(items: Sequence[str], count: int) -> str:
    return (
        f"{', '.join(items)}: from statistics it is not known whether {many(count, 'pair')} of tensors "
        f'{"is" if count == 1 else "are"} within the bound: record both runs with task="tensor"'
    )


def _absent(items: Sequence[str]) -> str:
    todo = dict.fromkeys(_RECORD[item] for item in items)
    return f"{', '.join(items)} not recorded on both sides: {'; '.join(todo)}"


def _left_out(excused: int, uncompared: int) -> str:
    parts = (
        [f"{many(excused, 'pair')} of tensors that differ and are right (--why PATH tells which)"] if excused else []
    )
    parts += [f"{many(uncompared, 'pair')} that cannot be compared"] if uncompared else []
    return f"not held against the bounds: {', '.join(parts)}"


def _undecided(why: Note | None) -> str:
    return f"no figure is beyond its bound, but the comparison is undecided{'' if why is None else f': {why}'}"


WORDS: dict[str, str | Callable[..., str]] = {
    "fault-below-bound": _below,
    "fault-outside-of-table": _outside,
    "rounding-beyond-bound": _beyond,
    "accepted-but-undecided": _undecided,
    "acceptance-needs-values": _needs,
    "acceptance-not-recorded": _absent,
    "acceptance-leaves-out": _left_out,
    "zeros-would-be-accepted": (
        "{item}: the bound says little, with {count} of {total} tensors zeros in the place of B would pass too"
    ),
    "preset-made-for-float32": "the bounds are made for float32; {count} of {total} tensors have 16 bits",
}
