"""A convolution over patches against a Linear whose columns lie otherwise, which only values tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

SIDE, CHANNELS, WIDTH = 4, 3, 8
MAPPING = {
    "Patches": {"params": {"proj.weight": {"to": "projection.weight", "permute": [0, 2, 3, 1], "reshape": True}}, "proj": "projection"},
}  # fmt: skip


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Conv2d(CHANNELS, WIDTH, SIDE, stride=SIDE)

    def forward(self, x: Any) -> Any:
        return self.projection(x).flatten(2).transpose(1, 2)


class Patches(torch.nn.Module):
    def __init__(self, other: Images, columns: list[int]) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(SIDE * SIDE * CHANNELS, WIDTH)
        kernel = other.projection.weight.detach().permute(columns)
        self.proj.weight.data = kernel.reshape(WIDTH, -1).clone()
        self.proj.bias.data = other.projection.bias.detach().clone()

    def forward(self, x: Any) -> Any:
        rows = x.unflatten(3, (-1, SIDE)).unflatten(2, (-1, SIDE)).permute(0, 2, 4, 3, 5, 1)
        return self.proj(rows.reshape(len(x), -1, SIDE * SIDE * CHANNELS))


class Net(torch.nn.Module):
    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.embeddings, self.head = embeddings, torch.nn.Linear(WIDTH, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.embeddings(x))


def compared(folder: Path, task: str, columns: list[int]) -> Any:
    torch.manual_seed(0)
    plain = Net(Images())
    other = Net(Patches(plain.embeddings, columns))
    other.head.load_state_dict(plain.head.state_dict())
    x = torch.randn(2, CHANNELS, 12, 12)
    for name, model in (("a", plain), ("b", other)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.capture(model, folder / f"{task}-{name}.h5", task=task):
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss.item())
    return probe.compare(folder / f"{task}-a.h5", folder / f"{task}-b.h5", MAPPING)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_columns_as_the_mapping_says_are_aligned(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, task, [0, 2, 3, 1])
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_columns_in_another_order_are_not_told_equal_where_nothing_tells(tmp_path: Path) -> None:
    first = compared(tmp_path, "statistics", [0, 1, 2, 3]).first_divergence
    assert (first.phase, first.path) == (Phase.FORWARD, "embeddings.projection")
    assert first.evidence[:2] == (
        "inputs agree (rel 0.0e+00), parameters agree in their statistics, output differs",
        "whether the elements of its weight are where they belong was not compared ((8, 3, 4, 4) in A, (8, 4, 4, 3) in B): "
        "record with task='tensor'",
    )
    first = compared(tmp_path, "tensor", [0, 1, 2, 3]).first_divergence
    assert (first.phase, first.path) == (Phase.INIT, "embeddings.projection")
