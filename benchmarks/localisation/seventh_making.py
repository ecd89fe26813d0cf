"""A short way to write a faulty port down: the right module of A is the one that takes the place of B's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.localisation.faults import FAULTS
from benchmarks.localisation.models.ports.counterparts import counterparts
from benchmarks.localisation.models.registry import ARCHITECTURES
from benchmarks.localisation.pairs.making import clean, faulty
from benchmarks.localisation.pairs.pair import Pair

BF, AC, HALF = {"dtype": "bf16"}, {"dtype": "autocast"}, {"dtype": "fp16", "optimizer": "sgd"}


def ported(
    port: str, fault: str, path: str = "", *, answer: str | None = None, also: tuple[str, ...] = (), **more: Any
) -> Pair:
    """Return a pair of a model of transformers and its port with one fault, planted at a path of the port."""
    if answer is None and path and not FAULTS[fault].is_whole:
        answer, *others = counterparts(port, path)
        also = (*others, *also)
    return faulty(ARCHITECTURES[port].baseline, fault, path, port=port, answer=answer, also=also, **more)


def right(port: str, about: str, b: Mapping[str, Any] | None = None, **setup: Any) -> Pair:
    """Return a pair of a model of transformers and its port without a fault."""
    return clean(ARCHITECTURES[port].baseline, about, b or {}, port=port, **setup)
