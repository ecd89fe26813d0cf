"""Blocks that two code bases nest and write otherwise: what stands inside is paired, and what is wrong in it named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.answer.comparison import Comparison

SIZE = 6


class Turn(nn.Module):
    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class Nested(nn.Module):
    """A block with a parameter of its own around a list of layers, the layout turned inside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(SIZE, SIZE, 3, padding=1, groups=SIZE), Turn(0, 2, 3, 1), nn.LayerNorm(SIZE),
            nn.Linear(SIZE, 4 * SIZE), nn.GELU(), nn.Linear(4 * SIZE, SIZE), Turn(0, 3, 1, 2),
        )  # fmt: skip
        self.layer_scale = nn.Parameter(torch.full((SIZE, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scale * self.block(x)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(SIZE, 4 * SIZE), nn.GELU(), nn.Dropout(0.0)
        self.fc2, self.drop2 = nn.Linear(4 * SIZE, SIZE), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))


class Flat(nn.Module):
    """The same, its layers under names of their own, those of the MLP in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_dw, self.norm, self.mlp = nn.Conv2d(SIZE, SIZE, 3, padding=1, groups=SIZE), nn.LayerNorm(SIZE), Mlp()
        self.gamma = nn.Parameter(torch.full((SIZE,), 0.5))
        self.cut = False

    def forward(self, x: Tensor) -> Tensor:
        made = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1)))
        made = (made.detach() if self.cut else made) * self.gamma
        return x + made.permute(0, 3, 1, 2)


def train(model: nn.Module, path: str, classes: int = 3) -> None:
    model = nn.Sequential(nn.Conv2d(2, SIZE, 2, 2), model, nn.Flatten(), nn.Linear(SIZE * 16, classes))
    optimizer, generator = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(0)
    for each in model.parameters():
        each.data.copy_(torch.randn(each.shape, generator=generator) * 0.3)
    with probe.capture(model, path, task="tensor", quiet=True):
        loss = nn.functional.cross_entropy(
            model(torch.randn(4, 2, 8, 8, generator=generator)), torch.tensor([0, 1, 2, 1])
        )
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)


def blocks(fault: Callable[[nn.Module], object] = lambda _: None) -> Comparison:
    train(nn.Sequential(*(Nested() for _ in range(3))), "a.h5")
    own = nn.Sequential(*(Flat() for _ in range(3)))
    names = dict(zip(dict(own[0].named_parameters()), dict(Nested().named_parameters()), strict=True))
    assert names["gamma"] == "layer_scale"
    fault(own)
    train(own, "b.h5")
    return probe.compare("a.h5", "b.h5")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_stands_inside_of_a_block_with_a_parameter_of_its_own_is_paired() -> None:
    found = blocks()
    found.assert_aligned()
    pairs = {pair.a: pair.b for pair in found.pairs}
    assert pairs["1.1.block.4",] == ("1.1.mlp.act",) and pairs["1.1",] == ("1.1",)


def _tanh(model: nn.Module) -> None:
    model[1].mlp.act = nn.GELU("tanh")


def _cut(model: nn.Module) -> None:
    model[1].cut = True


@pytest.mark.parametrize(("fault", "path"), [(_tanh, "1.1.block.4"), (_cut, "1.1")])
def test_a_fault_in_it_is_named(fault: Callable[[nn.Module], object], path: str) -> None:
    first = blocks(fault).first_divergence
    assert first is not None and first.path == path


class Activated(nn.Module):
    """A norm takes back a factor of what it is given, and keeps it in its running mean."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.relu, self.conv, self.norm = nn.ReLU(), nn.Conv2d(SIZE, SIZE, 1, bias=False), nn.BatchNorm2d(SIZE)
        self.relu.register_forward_hook(lambda _, __, made: made * factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.relu(x)))


class Other(Activated):
    """Of another class, so that it may be written otherwise."""


def test_what_a_norm_takes_back_and_keeps_in_its_running_mean_is_no_other_way_to_write_it() -> None:
    train(Activated(), "a.h5")
    train(Other(0.98), "b.h5")
    first = probe.compare("a.h5", "b.h5").first_divergence
    assert first is not None and first.path == "1.relu"


class Routed(nn.Module):
    """Works on rows in an order that depends on all of them, as experts are given tokens, and puts them back."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.expert, self.shift = nn.Linear(SIZE, SIZE), shift

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        made = self.expert(x[order])
        return torch.empty_like(made).index_copy(0, order.roll(self.shift), made)


def of_ranks(world: int, path: str, shift: int = 0) -> None:
    whole = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(1))
    for rank in range(world):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(SIZE, SIZE), Routed(shift), nn.Linear(SIZE, 1))
        known = {"RANK": str(rank), "WORLD_SIZE": str(world)} if world > 1 else {}
        with mock.patch.dict(os.environ, known), probe.capture(
            model, path, task="tensor", quiet=True, parallel={"dp": world} if world > 1 else None
        ):  # fmt: skip
            model(whole.chunk(world)[rank])
            probe.step()


@pytest.mark.parametrize("shift", [0, 1])
def test_rows_that_ranks_work_on_in_another_order_are_put_back_or_named(shift: int) -> None:
    of_ranks(1, "one.h5")
    of_ranks(2, "two.h5", shift)
    found = probe.compare("one.h5", "two.h5")
    if shift:
        assert found.first_divergence is not None and found.first_divergence.path == "1"
    else:
        found.assert_aligned()
