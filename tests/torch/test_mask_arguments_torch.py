"""Masks under other names and in other notations are a pair, whatever else a side is given beside them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402

LENGTH = 7


class Attention(nn.Module):
    """Takes its mask by any of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, mask=None, keep=None, extra=None):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4
        scores = scores + mask[:, 0] if keep is None else scores.masked_fill(~keep[:, 0], -math.inf)
        return self.out(scores.softmax(-1) @ v)


class Net(nn.Module):
    """Two layers, which are given the same arguments."""

    def __init__(self, **arguments: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.arguments = arguments
        self.embed, self.head = nn.Embedding(31, 16), nn.Linear(16, 31)
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, **self.arguments)
        return self.head(x)


KEEP = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
ADDED = torch.zeros(2, 1, LENGTH, LENGTH).masked_fill(~KEEP, torch.finfo(torch.float32).min)


def compared(folder: Path, a: nn.Module, b: nn.Module) -> Comparison:
    paths = []
    for name, model in (("a", a), ("b", b)):
        torch.manual_seed(1)
        tokens = torch.randint(0, 31, (2, LENGTH))
        with probe.capture(model, folder / f"{name}.h5", task="tensor", steps=[0]):
            loss = model(tokens).logsumexp(-1).mean()
            loss.backward()
            probe.step(loss=loss.item())
        paths.append(folder / f"{name}.h5")
    return probe.compare(*paths)


@pytest.mark.parametrize(
    "extra",
    [
        None, torch.zeros(2, 1, LENGTH, LENGTH), torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool),
        torch.arange(LENGTH).repeat(2, 1),
    ],
)  # fmt: skip
def test_one_more_argument_does_not_undo_the_pair(tmp_path: Path, extra: torch.Tensor | None) -> None:
    more = {} if extra is None else {"extra": extra}
    found = compared(tmp_path, Net(mask=ADDED), Net(keep=KEEP, **more))
    assert found.verdict == "aligned", found.first_divergence
    inputs = [each for each in found.slots if each.path_a == "layers.0" and each.slot_a == "mask"]
    assert [(each.slot_b, each.verdict) for each in inputs] == [("keep", "noise")]


def test_a_mask_that_hides_something_else_is_found(tmp_path: Path) -> None:
    other = KEEP.clone()
    other[:, :, 4, 1] = False
    found = compared(tmp_path, Net(mask=ADDED), Net(keep=other, extra=torch.ones_like(other)))
    assert found.verdict == "diverged"
    assert found.first_divergence.evidence[0].startswith("the input mask of layers.0 differs")
