"""What both models are given."""

from __future__ import annotations

VOCABULARY, CLASSES, POSITIONS, STEPS = 120, 3, 32, 2
BATCH = {
    "input_ids": f"int64[4,16] < {VOCABULARY}",
    "attention_mask": "int64[4,16] mask",
    "token_type_ids": "int64[4,16] < 2",
    "labels": f"int64[4] labels < {CLASSES}",
}
"""for `probe.make_inputs`, which gives the same numbers in every framework"""
