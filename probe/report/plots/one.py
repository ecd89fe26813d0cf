"""One recorded tensor as a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.numbers.statistics import as_real
from probe.recording import Observed
from probe.report.plots.axes import A, histogram, label, one, title


def draw(observed: Observed, ax: Any = None) -> Any:
    """Draw the histogram of a tensor's values; return the axes.

    Raises
    ------
    ImportError
        matplotlib is not installed
    NotRecordedError
        only statistics were recorded
    """
    values = as_real(observed.values()).astype(np.float64).reshape(-1)
    axes = one(ax, (6, 3))
    histogram(axes, [("values", values, A)])
    title(axes, f"{label(observed.path) or 'the model'}: {observed.role.label} {label(observed.slot, 30)}")
    return axes
