"""A sample of ``python -m benchmarks.situations``: what a program can see is the same with probe."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.situations.torch_situations import all_of_them  # noqa: E402
from benchmarks.situations.zoos import cases  # noqa: E402

SITUATIONS = all_of_them()
SAMPLE = (
    "hooks of the user's that stand in the pickle of the model",
    "parameters swapped by double() and load_state_dict, while it is recorded and afterwards",
    "storages freed and filled again between steps, as FSDP does",
    "copies and pickles of the model on the way, which then are trained",
    "a GAN: two models, two optimizers",
    "a penalty on gradients: backward through backward",
    "views that are written to in place",
    "an exception in a forward, which the program catches",
    "optimizer: AdamW, fused",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_situation_is_bitwise_the_same(name: str, task: str, tmp_path: Path) -> None:
    assert SITUATIONS[name](tmp_path / "a.h5", task) == []


def test_there_are_many() -> None:
    assert len(SITUATIONS) + len(cases("torch")) >= 150
