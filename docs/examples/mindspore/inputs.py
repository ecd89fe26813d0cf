"""What both models are given."""

from __future__ import annotations

CLASSES, STEPS = 5, 2
BATCH = {"x": "float32[8,3,16,16]", "labels": f"int64[8] labels < {CLASSES}"}
"""for `probe.make_inputs`, which gives the same numbers in every framework"""
