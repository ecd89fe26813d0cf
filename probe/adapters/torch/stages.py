"""Pipeline stages, which learn the shapes that they send each other by a forward on memory that nobody has filled."""

from __future__ import annotations

import sys

_STAGE = "torch.distributed.pipelining.stage"
_INFERENCES = {"_forward_metadata_inference", "_shape_inference"}
"""methods of a stage that run it for the shapes alone, in this and in older versions"""


def learning_shapes() -> str:
    """Return in words that what runs in this thread is such a forward, whose numbers are others each time; mostly ``""``."""
    frame = sys._getframe(1) if _STAGE in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name in _INFERENCES and frame.f_globals.get("__name__") == _STAGE:
            return "by which torch.distributed.pipelining runs a stage to learn shapes"
        frame = frame.f_back
    return ""
