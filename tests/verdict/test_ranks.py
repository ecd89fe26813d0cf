"""Ranks of a side: copies of one tensor that differ are a finding, and findings name who holds what differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.answer import Comparison
from probe.comparison.result import Kind
from probe.verdict.run import compare
from tests.toys import batch, gpt, loss_of, module

PLACE = "layers.1.norm2"
WORLD = 3


def trained(folder: Path, name: str, change: str = "", rank: int | None = None) -> Path:
    """Record ranks that hold the same and are given the same, but for what is changed on one of them or on all."""
    for number in range(WORLD):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(number))
            patch.setenv("WORLD_SIZE", str(WORLD))
            model = gpt()
            if change and rank in (number, None):
                CHANGES[change](model)
            _record(model, folder / f"{name}.h5")
    return folder / f"{name}.h5"


def _record(model: nn.Module, path: Path) -> None:
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, task="tensor", parallel={"dp": WORLD}):
        ids: Tensor = batch(0)
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)


def _scale(model: nn.Module) -> None:
    module(model, PLACE).weight.data *= np.float32(1.1)


def _eps(model: nn.Module) -> None:
    module(model, PLACE).eps = 1e-3


CHANGES = {"weight": _scale, "eps": _eps}


def ranks_named(answer: Comparison, code: str) -> dict[str, tuple[int, ...]]:
    """Return the ranks that the first finding names, by side."""
    first = answer.first_divergence
    assert first is not None
    return {fact.facts["side"]: fact.facts["ranks"] for fact in first.facts if fact.code == code}


CASES = [
    ("", None, None, None, {}),
    ("weight", 2, Kind.REPLICAS, "copies-differ", {"B": (2,)}),
    ("weight", 0, Kind.REPLICAS, "copies-differ", {"B": (0,)}),
    ("eps", 1, Kind.REPLICAS, "copies-differ", {"B": (1,)}),
    ("eps", None, Kind.INTRODUCED, "on-ranks", {"A": (0, 1, 2), "B": (0, 1, 2)}),
]
"""what is changed, on which rank (None: all), what is said of it, and of which ranks"""


@pytest.mark.parametrize(("change", "rank", "kind", "code", "named"), CASES)
def test_ranks_that_answer_are_named(
    tmp_path: Path, change: str, rank: int | None, kind: Kind | None, code: str | None, named: dict[str, object]
) -> None:
    answer = compare(trained(tmp_path, "a"), trained(tmp_path, "b", change, rank))
    first = answer.first_divergence
    if kind is None:
        assert first is None and not answer.reasons, answer
        return
    assert first is not None and (first.kind, first.path) == (kind, PLACE), first
    assert ranks_named(answer, str(code)) == named
