"""The files and logs of PaddlePaddle's paper reproduction guide, 2.2.3: five acceptance points of two recordings."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from probe.checkpoints.writing import written_whole
from probe.compat.reprod_log import ReprodDiffHelper, ReprodLogger
from probe.compat.reprod_log.compare import Difference
from probe.errors import NotRecordedError
from probe.ranks.opening import open_reader
from probe.records import Role
from probe.store.reading.reader import Reader

_GIVEN = "that probe.step() was given"
POINTS = {
    "forward": ("outputs of the whole model with values", 1), "metric": (f"metric {_GIVEN}", 1),
    "loss": (f"loss {_GIVEN}", 1), "bp_align": (f"losses of two steps or more {_GIVEN}", 2), "train_align": (f"metric {_GIVEN}", 1),
}  # fmt: skip
"""what each needs, and how many of them"""
_NO_METRICS = {"loss", "lr", "learning_rate", "grad_norm", "global_norm"}
"""numbers that programs log beside metrics"""

Named = dict[str, np.ndarray]


def export_reprod(
    a: str | Path, b: str | Path, folder: str | Path, threshold: float = 1e-6, train_threshold: float | None = None
) -> tuple[dict[str, bool | None], list[str]]:
    """Write a new folder as the guide asks; return which points passed, None for one that lacks numbers, and notes.

    Both spellings of the guide are there: ``…_diff.log``, ``…_diff_log.txt``; ``train_align_torch.npy``, ``…_benchmark.npy``.
    Files of A, the reference, end in ``_torch``, those of B in ``_paddle``. The thresholds are those of the mean of
    absolute differences, and of the last metrics, where the guide allows more.
    """
    notes: list[str] = []
    with open_reader(a) as reader_a, open_reader(b) as reader_b:
        sides = [_arrays(reader_a), _arrays(reader_b)]
    sides[0]["forward"], sides[1]["forward"] = _in_order(sides[0]["forward"], sides[1]["forward"], notes)
    passed: dict[str, bool | None] = dict.fromkeys(POINTS)
    with written_whole(Path(folder)) as place:
        place.mkdir()
        for point, (lacking, least) in POINTS.items():
            pair = [side[point] for side in sides]
            if min(map(len, pair)) < least:
                notes.append(f"{point}: not made, the recordings do not both hold {lacking}")
                continue
            is_last = point == "train_align"
            passed[point] = _judged(place / point, pair, train_threshold if is_last and train_threshold else threshold)
            if is_last:
                shutil.copy(place / "train_align_torch.npy", place / "train_align_benchmark.npy")
    return passed, notes


def _arrays(reader: Reader) -> dict[str, Named]:
    """Return the arrays of each point."""
    reader.require_steps()
    if not len(reader.steps):
        raise NotRecordedError(f"{reader.path} has no complete step: record one")
    steps = [reader.scalars_of(step) for step in reader.steps["step"].tolist()]
    losses = [np.array([each["loss"]]) for each in steps if "loss" in each]
    metrics = [{name: np.array([each[name]]) for name in each if name not in _NO_METRICS} for each in steps]
    metrics = [each for each in metrics if each] or [{}]
    return {
        "forward": _forward(reader), "metric": metrics[0], "loss": dict(zip(["loss"], losses, strict=False)),
        "bp_align": {f"loss_{at}": loss for at, loss in enumerate(losses)}, "train_align": metrics[-1],
    }  # fmt: skip


def _forward(reader: Reader) -> Named:
    """Return what the whole model was given and returned first, by role and slot; bfloat16 as float32."""
    found: Named = {}
    roots = [at for at, module in enumerate(reader.modules) if module.parent < 0 and not module.is_operation]
    rows = reader.of_step("records", int(reader.steps["step"][0]))
    rows = rows[np.isin(rows["module"], roots) & np.isin(rows["micro"], (0, -1)) & (rows["call"] == 0)]
    for row in rows[(rows["tensor"] >= 0) & np.isin(rows["role"], (Role.INPUT, Role.OUTPUT))]:
        array = reader.values(int(row["tensor"]))
        name = f"{Role(row['role']).label}.{reader.slots[row['slot']]}"
        found.setdefault(name, array if array.dtype.isbuiltin == 1 else array.astype(np.float32))
    return found


def _in_order(a: Named, b: Named, notes: list[str]) -> tuple[Named, Named]:
    """Return what both models were given and returned under A's names: what they return is paired by its order."""
    outputs = [[name for name in side if name.startswith("output.")] for side in (a, b)]
    names = dict(zip(*outputs, strict=False))
    notes += [f"forward: A's {one} is B's {other}, by their order" for one, other in names.items() if one != other]
    names |= {name: name for name in a if name in b and name.startswith("input.")} if names else {}
    left = [*(f"A's {one}" for one in a if one not in names), *(f"B's {one}" for one in b if one not in names.values())]
    notes += [f"forward: left out, the other side has none with values: {', '.join(left)}"] if left else []
    return {one: a[one] for one in names}, {one: b[other] for one, other in names.items()}


def _judged(path: Path, pair: Sequence[Named], threshold: float) -> bool:
    """Write the files and the log of a point; return whether it passes. A name on one side only fails."""
    for side, named in zip(("torch", "paddle"), pair, strict=True):
        logger = ReprodLogger()
        logger.data.update(named)
        logger.save(f"{path}_{side}.npy")
    (a, b), helper = pair, ReprodDiffHelper()
    helper.compare_info({name: a[name] for name in a if name in b}, {name: b[name] for name in b if name in a})
    for name in sorted({*a} ^ {*b}):
        helper.diff_dict[name] = Difference("on one side only")
    passed = helper.report(diff_threshold=threshold, path=f"{path}_diff.log")
    shutil.copy(f"{path}_diff.log", f"{path}_diff_log.txt")
    return passed
