"""Recordings of a transformer on many ranks, made by one process: modules return what they would, cut as the layout says.

No rank runs beside another one, so no module can add up what others computed. Linear layers, norms and activations therefore return
values drawn by their paths, and give gradients drawn likewise; residuals are added up as they are in a model. What is recorded are the parts of
the same whole, whatever the layout is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import probe

BATCH, LENGTH, HIDDEN, FFN = 4, 2, 16, 32
NODES_OF_A_LAYER = 11
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Layout:
    """How a training is divided: ranks of one tp group lie closest, then those of dp, then those of pp."""

    tp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.dp * self.pp

    def places(self, rank: int) -> dict[str, int]:
        """Return the place of a rank in each of its groups."""
        return {"tp": rank % self.tp, "dp": rank // self.tp % self.dp, "pp": rank // (self.tp * self.dp)}

    def __str__(self) -> str:
        return f"tp{self.tp} dp{self.dp} pp{self.pp}"


@dataclass(frozen=True)
class Side:
    """One run: its layout, how many layers it has in all, and by how much its numbers are off."""

    layout: Layout
    layers: int
    noise: float = 0.0
    """relative, of every value"""
    steps: int = 1
    task: str = "statistics"
    momentum: float = 0.0
    length: int = LENGTH
    fault: str = ""
    """path of the module that returns something else, as it is in the whole"""
    other_rate: int = -1
    """the rank that has another learning rate"""
    level: str = "module"

    def rate_of(self, rank: int) -> float:
        """Return the learning rate of a rank."""
        return LEARNING_RATE * (2 if rank == self.other_rate else 1)


@dataclass(frozen=True)
class Place:
    """A rank of a run."""

    side: Side
    rank: int

    @property
    def at(self) -> dict[str, int]:
        """Its place in each group."""
        return self.side.layout.places(self.rank)

    def cut(self, whole: np.ndarray, axis: int | None, *, has_batch: bool) -> torch.Tensor:
        """Return what the rank holds of a tensor: its share of the batch, and its part along an axis that tp divides."""
        if has_batch:
            whole = np.split(whole, self.side.layout.dp, axis=0)[self.at["dp"]]
        if axis is not None:
            whole = np.split(whole, self.side.layout.tp, axis=axis)[self.at["tp"]]
        return torch.from_numpy(np.array(whole, np.float32))

    def drawn(self, path: str, what: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
        """Return the values of a whole tensor: the same for the same path in every layout."""
        seed = int.from_bytes(hashlib.blake2b(f"{path}:{what}".encode(), digest_size=8).digest(), "big")
        values = np.random.default_rng(seed).standard_normal(shape) * scale
        if self.side.noise:
            values *= 1 + self.side.noise * np.random.default_rng(seed + 1).standard_normal(shape)
        if what == "output" and path == self.side.fault:
            values *= 1.01
        return values


class _Returned(torch.autograd.Function):
    """Returns what is given; so are the gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *gradients: torch.Tensor
    ) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(*gradients)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        of_input, of_weight = ctx.saved_tensors
        return of_input.clone(), of_weight.clone(), None, None, None


class _Leaf(nn.Module):
    """A layer with a weight; each class says which of its axes tp divides."""

    AXES: tuple[int | None, int | None, int | None] = (None, None, None)
    """of its input, its output and its weight"""

    def __init__(self, place: Place, path: str, given: int, returned: int) -> None:
        super().__init__()
        self._place, self._path = place, path
        length = place.side.length
        self._shapes = (BATCH, length, given), (BATCH, length, returned), self._of_weight(given, returned)
        self.weight = nn.Parameter(self._cut("weight", 2, scale=0.1))
        self.step = 0

    @staticmethod
    def _of_weight(given: int, returned: int) -> tuple[int, ...]:
        return returned, given

    def _cut(self, what: str, which: int, scale: float = 1.0) -> torch.Tensor:
        whole = self._place.drawn(self._path, what, self._shapes[which], scale)
        return self._place.cut(whole, self.AXES[which], has_batch=which < 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        shares = self._place.side.layout.dp  # each works on a loss of its own samples, whose mean is that of the whole
        given = (
            self._cut(f"gradient {self.step}", 0, 0.01 * shares),
            self._cut(f"gradient of weight {self.step}", 2, 0.1),
        )
        return _Returned.apply(x, self.weight, self._cut("output", 1), *given)


class ColumnParallelLinear(_Leaf):
    AXES = (None, -1, 0)


class RowParallelLinear(_Leaf):
    AXES = (-1, None, 1)


class LayerNorm(_Leaf):
    @staticmethod
    def _of_weight(given: int, returned: int) -> tuple[int, ...]:
        return (returned,)


class Core(nn.Module):
    """What works on the part of each rank alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


class Attention(nn.Module):
    def __init__(self, place: Place, path: str) -> None:
        super().__init__()
        self.linear_qkv = ColumnParallelLinear(place, f"{path}.linear_qkv", HIDDEN, FFN)
        self.core = Core()
        self.linear_proj = RowParallelLinear(place, f"{path}.linear_proj", FFN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_proj(self.core(self.linear_qkv(x)))


class MLP(nn.Module):
    def __init__(self, place: Place, path: str) -> None:
        super().__init__()
        self.linear_fc1 = ColumnParallelLinear(place, f"{path}.linear_fc1", HIDDEN, FFN)
        self.activation = Core()
        self.linear_fc2 = RowParallelLinear(place, f"{path}.linear_fc2", FFN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(self.activation(self.linear_fc1(x)))


class Layer(nn.Module):
    def __init__(self, place: Place, path: str) -> None:
        super().__init__()
        self.input_layernorm = LayerNorm(place, f"{path}.input_layernorm", HIDDEN, HIDDEN)
        self.self_attention = Attention(place, f"{path}.self_attention")
        self.pre_mlp_layernorm = LayerNorm(place, f"{path}.pre_mlp_layernorm", HIDDEN, HIDDEN)
        self.mlp = MLP(place, f"{path}.mlp")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Stage(nn.Module):
    """The layers of one pipeline stage; they count from 0."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        count = place.side.layers // place.side.layout.pp
        first = place.at["pp"] * count
        self.layers = nn.ModuleList([Layer(place, f"layers.{first + k}") for k in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _flows(place: Place, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a stage is given, and the gradient of what it returns: sums over the layers before it and behind it."""
    side, shape = place.side, (BATCH, place.side.length, HIDDEN)
    count = side.layers // side.layout.pp
    first, last = place.at["pp"] * count, (place.at["pp"] + 1) * count
    given = place.drawn("", "input", shape).astype(np.float32)
    for k in range(first):
        for leaf in ("self_attention.linear_proj", "mlp.linear_fc2"):
            given = given + place.drawn(f"layers.{k}.{leaf}", "output", shape).astype(np.float32)
    gradient = place.drawn("", f"gradient {step}", shape, 0.01 * side.layout.dp)
    for k in reversed(range(last, side.layers)):
        for leaf in ("pre_mlp_layernorm", "input_layernorm"):
            gradient = gradient + place.drawn(f"layers.{k}.{leaf}", f"gradient {step}", shape, 0.01 * side.layout.dp)
    return (place.cut(each, None, has_batch=True) for each in (given, gradient))  # type: ignore[return-value]


@contextmanager
def _rank(rank: int, world: int) -> Iterator[None]:
    """Let probe take this process for a rank of several."""
    before = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def make(side: Side, path: Path, ranks: range | None = None) -> None:
    """Record a run, one rank after the other."""
    layout = side.layout
    parallel = {"tp": layout.tp, "dp": layout.dp, "pp": layout.pp} if layout.world > 1 else None
    for rank in ranks or range(layout.world):
        place = Place(side, rank)
        model = Stage(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=side.rate_of(rank), momentum=side.momentum)
        with _rank(rank, layout.world):
            probe.start(model, path, task=side.task, level=side.level, parallel=parallel, overwrite=True)
            try:
                for step in range(1, side.steps + 1):
                    given, gradient = _flows(place, step)
                    model(given.requires_grad_()).backward(gradient)
                    optimizer.step()
                    probe.step()
                    optimizer.zero_grad()
            finally:
                probe.stop()
