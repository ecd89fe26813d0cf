"""The float8 tensors of a recording: how much of them saturates and underflows, and the scales beside them."""

from __future__ import annotations

from collections import defaultdict

import ml_dtypes
import numpy as np

from probe.numbers.statistics import dtype_of
from probe.store.reading.reader import Reader


def float8_row(reader: Reader) -> dict[str, str]:
    """Return what is said of float8 tensors, by dtype, under one name; nothing where there are none."""
    rows, said = reader.records, []
    for name in sorted({each.decode() for each in np.unique(rows["dtype"]) if each.startswith(b"float8")}):
        found, info = rows[rows["dtype"] == name.encode()], ml_dtypes.finfo(dtype_of(name))
        largest, counts = float(info.max), defaultdict[str, float](float)
        for row in found[found["tensor"] >= 0]:
            values = np.abs(reader.values(int(row["tensor"])).astype(np.float32))
            is_small = (values > 0) & (values < float(info.smallest_normal))
            for what, many in (
                ("elements", values.size),
                ("end", (values >= largest).sum()),
                ("small", is_small.sum()),
            ):
                counts[what] += int(many)
        ended = int((np.maximum(found["max"], -found["min"]) >= largest).sum())
        share = {what: f"{counts[what] / counts['elements']:.2%}" for what in ("end", "small")} if counts else {}
        more = f": {share['end']} of their elements, {share['small']} are subnormal" if share else ""
        sizes = [int(np.prod(reader.shapes[each])) for each in found["shape"]]
        zeros = f"{found['zeros'].sum() / max(sum(sizes), 1):.2%} are 0"
        said.append(f"{len(found)} tensors of {name}, {ended} reach ±{largest:g}{more}, {zeros}")
    beside = np.isin(rows["module"], rows["module"][np.char.startswith(rows["dtype"], b"float8")])
    scales = [
        row for row in rows[beside] if "scale" in reader.slots[row["slot"]] and not row["dtype"].startswith(b"float8")
    ]
    if said and scales:
        said.append(f"scales {min(row['min'] for row in scales):.3g} to {max(row['max'] for row in scales):.3g}")
    return {"float8": "; ".join(said)} if said else {}
