"""What a pass through B is to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.adapters.replaying import Replaying
from probe.replaying.partners import Partner
from probe.replaying.recorded import Recorded

Changed = Callable[[np.ndarray, str], np.ndarray]
"""what becomes of A's values, given the dtype that operations are cast to, before B is handed them"""


@dataclass(frozen=True)
class Plan:
    """What a pass through B is to do."""

    replaying: Replaying
    model: Any
    recorded: Recorded
    partners: Mapping[int, Partner]
    """by module of B"""
    inputs: Mapping[str, Any]
    """what the model is called with beside A's tensors"""
    casts: bool
    """operations run under autocast where A's did"""
    changed: Changed | None = None
    substitutes: bool = True
    """A's tensors take the place of B's; else B runs by itself, given what A's model was"""
