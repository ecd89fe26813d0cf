"""Frameworks that differentiate by everything that the model is given, integers too, as MindSpore does."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy
from probe.comparison.result import Verdict
from tests.toys import VOCABULARY, WIDTH, batch, record


class Layer(nn.Module):
    """Adds a bias that is made of a mask."""

    def __init__(self) -> None:
        super().__init__(linear=nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x) + mask


class Masked(nn.Module):
    """Makes a mask of the ids; ``cut`` takes the hidden states out of the graph."""

    def __init__(self, cut: bool = False) -> None:
        nn.manual_seed(0)
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), layer=Layer(), head=nn.Linear(WIDTH, VOCABULARY))
        self.cut = cut

    def forward(self, ids: Tensor) -> Tensor:
        mask = Tensor((ids.data[..., None] % 3 - 1).astype("float32"), ids.requires_grad)
        x = self.embed(ids)
        return self.head(self.layer(Tensor(x.data) if self.cut else x, mask))


def files(folder: Path, **options: bool) -> tuple[Path, Path]:
    """Record the model in two frameworks, of which the second differentiates by the ids."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        ids = batch(number)
        loss = cross_entropy(model(Tensor(ids.data, asks[0])), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    asks, paths = [False], []
    for name, model in (("a", Masked(**options)), ("b", Masked())):
        asks[0] = name == "b"
        paths.append(record(folder / f"{name}.h5", model, step=step))
    return paths[0], paths[1]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_mask_that_learns_where_the_batch_does_is_no_cut(tmp_path: Path, swapped: bool) -> None:
    a, b = files(tmp_path)
    found = probe.compare(b, a) if swapped else probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found


def test_hidden_states_that_are_cut_off_are_found_all_the_same(tmp_path: Path) -> None:
    found = probe.compare(*files(tmp_path, cut=True))
    assert found.verdict is Verdict.DIVERGED
    assert found.divergences[0].path in ("", "embed"), found
