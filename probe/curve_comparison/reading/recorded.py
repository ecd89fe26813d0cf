"""Curves of a recording: its scalars, the learning rate of its optimizers, and the norms of its gradients as used."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from probe.contents.experts import load_curves
from probe.curve_comparison.reading.names import LR
from probe.curve_comparison.reading.series import Collector, Given, RecordedModel, RunCurves, Series
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

KIND = "probe recording"
_NARROW = (b"bfloat16", b"float16", b"float8")
TOTAL = "grad_norm of the recorded gradients"
"""name of the norm of all recorded gradients together, as the optimizer used them (after clipping)"""
BEFORE_CLIPPING = f"{TOTAL}, before clipping"
"""name of the same as backward left them, where clipping changed it: clipped norms are one number, whatever the gradients are"""
_CLIPPED = 1e-3
"""change of the factor between both norms, over the steps, from which on it is clipping and no constant factor"""


def read_recording(path: Path) -> RunCurves:
    """Return the curves of a recording.

    Raises
    ------
    StoreError, FormatError
        the file cannot be read
    """
    with open_reader(path) as reader:
        reader.require_steps()
        found = Collector()
        for step, name, value in reader.scalars:
            found.add(step, name, value)
        for step, name, value in load_curves(reader):
            found.add(step, name, value)
        series = found.series()
        model = _model(reader)
        if LR not in series:
            series.update(_rates(model))
        norms = _norms(reader)
        if norms:
            series[TOTAL] = _total(norms, TOTAL)
            before = _before_clipping(reader, series[TOTAL])
            series |= {} if before is None else {BEFORE_CLIPPING: before}
        return RunCurves(str(path), KIND, series, norms, found.notes, model, _batches(reader))


def _model(reader: Reader) -> RecordedModel:
    groups = {int(step): reader.groups_of(int(step)) for step in reader.steps["step"]}
    records = reader.records
    is_rich = (records["hash_kind"] != 0) & (records["role"] != Role.INPUT)  # hashes of a batch are there in any case
    rich = np.unique(records["step"][is_rich])
    return RecordedModel(
        reader.info.run_id, reader.modules, reader.parameters, {step: found for step, found in groups.items() if found},
        frozenset(map(int, rich)), any(dtype.startswith(_NARROW) for dtype in np.unique(records["dtype"]).tolist()),
    )  # fmt: skip


def _batches(reader: Reader) -> dict[int, tuple[Given, ...]]:
    """Return what the models were given in every step, in the order of their calls; forwards without gradients are left out."""
    roots = [index for index, module in enumerate(reader.modules) if module.parent < 0]
    columns = ["step", "micro", "slot", "dtype", "shape", "hash_hi", "hash_lo", "hash_kind", "tensor"]
    records = reader.records
    of_models = (records["role"] == Role.INPUT) & np.isin(records["module"], roots)
    rows = records[of_models & (records["micro"] >= 0) & (records["hash_kind"] != 0)][columns]
    found: dict[int, list[Given]] = {}
    for step, micro, slot, dtype, shape, high, low, kind, tensor in rows.tolist():
        given = Given(micro, reader.slots[slot], dtype.decode(), reader.shapes[shape], (kind, high, low), tensor)
        found.setdefault(step, []).append(given)
    return {step: tuple(given) for step, given in found.items()}


def _rates(model: RecordedModel) -> dict[str, Series]:
    """Return the learning rate that every group used; one curve where all groups have the same."""
    rates = Collector()
    for step, groups in model.groups.items():
        values = {(g.optimizer, g.group): g.hyper["lr"] for g in groups if isinstance(g.hyper.get("lr"), (int, float))}
        if len(set(values.values())) == 1:
            rates.add(step, LR, float(next(iter(values.values()))))
        else:
            for (optimizer, group), value in values.items():
                rates.add(step, f"{LR} of optimizer {optimizer}, group {group}", float(value))
    return rates.series()


def _before_clipping(reader: Reader, used: Series) -> Series | None:
    """Return the norm of all gradients as backward left them, None where it was not recorded or nothing was clipped.

    Nor is it known under float16, where they have a loss scale, which may be another one on the other side.
    """
    norms = _norms(reader, Phase.GRADIENT)
    if not norms or np.any(reader.records["dtype"] == b"float16"):
        return None
    found = _total(norms, BEFORE_CLIPPING)
    _, mine, theirs = np.intersect1d(used.steps, found.steps, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = used.values[mine] / found.values[theirs]
    factors = factors[np.isfinite(factors)]
    is_clipped = (
        len(mine) == len(used.steps)
        and len(factors) > 0
        and np.ptp(factors) > _CLIPPED
        and factors.max() < 1 + _CLIPPED
    )
    return found if is_clipped else None


def _norms(reader: Reader, phase: Phase = Phase.UPDATE) -> dict[str, Series]:
    """Return the norm of every gradient in a phase, by the parameter's name: as the optimizer used it, or as backward left it."""
    records = reader.records
    used = records[(records["phase"] == phase) & (records["role"] == Role.PARAM_GRAD)]
    if not len(used):
        return {}
    keys = used["module"].astype(np.int64) << 32 | used["slot"].astype(np.int64)
    order = np.lexsort((used["step"], keys))
    used, keys = used[order], keys[order]
    found: dict[str, Series] = {}
    for rows, key in zip(
        np.split(used, np.flatnonzero(np.diff(keys)) + 1), np.unique(keys).tolist(), strict=len(used) > 0
    ):
        rows = rows[np.append(rows["step"][1:] != rows["step"][:-1], True)]
        path, slot = reader.modules[key >> 32].path, reader.slots[key & 0xFFFFFFFF]
        name = f"{path}.{slot}" if path else slot
        bad = (rows["nan"] + rows["posinf"] + rows["neginf"]) > 0
        found[name] = Series(name, rows["step"].astype(np.int64), np.where(bad, np.nan, rows["norm"]), name)
    return found


def total(norms: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the norm of all of several together, as steps and numbers: of those that a step has."""
    sums: dict[int, float] = {}
    for steps, values in norms:
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            sums[step] = sums.get(step, 0.0) + value**2
    return np.array(sorted(sums), np.int64), np.sqrt([sums[step] for step in sorted(sums)])


def _total(norms: dict[str, Series], name: str) -> Series:
    return Series(name, *total((series.steps, series.values) for series in norms.values()), name)
