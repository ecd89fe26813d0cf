"""The float8 tensors of a recording: how much of them saturates and underflows, and the scales beside them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from probe.numbers.statistics import dtype_of
from probe.store.reading.reader import Reader

_MOST = 256
"""tensors whose values are read"""


def float8_row(reader: Reader) -> dict[str, str]:
    """Return what is said of float8 tensors, by dtype, under one name; nothing where there are none."""
    rows, said = reader.records, []
    is_float8 = np.char.startswith(rows["dtype"], b"float8")
    for name in np.unique(rows["dtype"][is_float8]):
        found, info = rows[rows["dtype"] == name], ml_dtypes.finfo(dtype_of(name.decode()))
        stored = found["tensor"][found["tensor"] >= 0][:_MOST].tolist()
        values = np.abs(np.concatenate([np.zeros(0), *(reader.values(at).reshape(-1).astype(float) for at in stored)]))
        top, small = float(info.max), (values > 0) & (values < float(info.smallest_normal))
        told = [f"{np.maximum(found['max'], -found['min']).max() / top:.3g} of ±{top:g} reached"]
        if values.size:
            told += [f"{(values >= top).mean():.2%} at the end, {small.mean():.2%} subnormal"]
        size = sum(int(np.prod(reader.shapes[each])) for each in found["shape"])
        said.append(
            f"{name.decode()} ×{len(found)}: {', '.join(told)}, {found['zeros'].sum() / max(size, 1):.2%} zeros"
        )
    beside = rows[np.isin(rows["module"], rows["module"][is_float8]) & ~is_float8]
    scales = [row for row in beside if "scale" in reader.slots[row["slot"]]]
    if scales:
        said.append(f"scales {min(row['min'] for row in scales):.3g} to {max(row['max'] for row in scales):.3g}")
    return {"float8": "; ".join(said)} if said else {}
