"""The mutations: which promise each breaks, by which patch, and the test that must fail then; they are in ``catalogue.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Mutation:
    """One text in one file replaced by another."""

    name: str
    promise: str
    """number and words"""
    path: str
    old: str
    """occurs exactly once in the file"""
    new: str
    test: str
    """node id of the test that must fail"""


def _read() -> tuple[Mutation, ...]:
    found = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    promises = {number: f"{number} {words}" for number, words in found["promises"].items()}
    return tuple(Mutation(**{**row, "promise": promises[row["promise"]]}) for row in found["mutations"])


MUTATIONS = _read()
