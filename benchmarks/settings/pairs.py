"""Pairs of configurations that mean the same, and one setting planted into a side at a time.

The files in ``configurations`` were written from the public configurations and scripts of the models (the config.json of
their checkpoints, the examples of Megatron-LM, MindSpeed-LLM and MindFormers, the documentation of vLLM and PaddleNLP),
before there was a table to hold them against. Where the public script of a port differs from the checkpoint (an eps
that is left at its default, an auxiliary loss), the file has the checkpoint's value: such a difference is a planted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent / "configurations"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two configurations that mean the same."""

    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Plant:
    """One difference: a text of one side's file, and what is in its place."""

    a: str
    b: str
    side: str
    """that is changed: a or b"""
    old: str
    new: str
    setting: str
    """what has to be named; several, with + between them, where one option says several things"""


_FOUND = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CLEAN = tuple(Pair(*files) for files in _FOUND["clean"])
PLANTED = tuple(Plant(*each["between"], *plant) for each in _FOUND["planted"] for plant in each["plants"])
