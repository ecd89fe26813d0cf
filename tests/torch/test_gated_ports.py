"""A gated layer whose activation is a module on one side, and whose gate and up lie in one on the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import probe

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from facts import one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402

WIDTH, INNER = 24, 40


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            nn.Linear(WIDTH, INNER),
            nn.Linear(WIDTH, INNER),
            nn.Linear(INNER, WIDTH),
        )
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Joined(nn.Module):
    def __init__(self, of: Gated, activation: Callable[[Tensor], Tensor], swapped: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.activation, self.swapped = (
            nn.Linear(WIDTH, 2 * INNER),
            nn.Linear(INNER, WIDTH),
            activation,
            swapped,
        )
        with torch.no_grad():
            self.up.weight.copy_(torch.cat([of.gate_proj.weight, of.up_proj.weight]))
            self.up.bias.copy_(torch.cat([of.gate_proj.bias, of.up_proj.bias]))
        self.down.load_state_dict(of.down_proj.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        gate, up = (up, gate) if self.swapped else (gate, up)
        return self.down(self.activation(gate) * up)


@pytest.mark.parametrize(
    ("activation", "swapped", "said"),
    [
        (F.gelu, False, "A computes silu, B gelu by erf (verified from what was recorded): look at which activation function"),
        (F.silu, True, "A multiplies silu of one tensor by the other, B silu of the other by the first: gate and up change places (verified"),
    ],
)  # fmt: skip
def test_what_another_hand_computes_is_named(
    tmp_path: Path, activation: Callable[[Tensor], Tensor], swapped: bool, said: str
) -> None:
    mine = nn.Sequential(Gated(), Gated(), Gated())
    theirs = nn.Sequential(*(
        Joined(each, *((activation, swapped) if number == 1 else (F.silu, False))) for number, each in enumerate(mine)
    ))  # fmt: skip
    for name, model in (("a.h5", mine), ("b.h5", theirs)):
        with probe.capture(model, tmp_path / name, task="tensor"):
            model(probe.make_inputs({"x": f"float32[8,{WIDTH}]"}, seed=0, to="torch")["x"]).sum().backward()
            probe.step()
    mapping = {"Joined": {"up": ["gate_proj", "up_proj"], "down": "down_proj"}}
    first = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5", mapping).divergences[0]
    assert first.path == "1.act_fn"
    assert str(first.hint).startswith(said)
