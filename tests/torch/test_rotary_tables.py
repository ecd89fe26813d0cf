"""Rotary modules that return cosines and sines as a tuple, in one tensor, or the angles: which of them are a pair without a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402

WIDTH, HEADS, TOKENS = 32, 2, 9
SIZE = WIDTH // HEADS


class RotaryEmbedding(nn.Module):
    def __init__(self, form: str, theta: float = 1e4) -> None:
        super().__init__()
        self.form, self.theta = form, theta

    def forward(self, positions: Tensor) -> Any:
        angles = positions[:, None].float() * self.theta ** -(torch.arange(0, SIZE, 2) / SIZE)
        if self.form == "angles":
            return angles
        angles = torch.cat([angles, angles], -1)
        if self.form == "angles, twice":
            return angles
        return (angles.cos(), angles.sin()) if self.form == "tuple" else torch.stack([angles.cos(), angles.sin()])


def _tables(turns: Any, form: str) -> Any:
    if form.startswith("angles"):
        angles = turns if form == "angles, twice" else torch.cat([turns, turns], -1)
        return angles.cos(), angles.sin()
    return turns


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        return self.o(((q @ k.transpose(2, 3) / SIZE**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, name: str, form: str, theta: float = 1e4) -> None:
        super().__init__()
        self.embed, self.name, self.form = nn.Embedding(20, WIDTH), name, form
        self.add_module(name, RotaryEmbedding(form, theta))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        cos, sin = _tables(self.get_submodule(self.name)(torch.arange(TOKENS)), self.form)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), cos, sin)
        return self.head(x)


def _compared(folder: Path, task: str, form: str, theta: float = 1e4) -> Any:
    torch.manual_seed(0)
    a, b = Model("rotary_emb", "tuple"), Model("rope", form, theta)
    b.load_state_dict(a.state_dict())
    for model, path in ((a, folder / "a.h5"), (b, folder / "b.h5")):
        torch.manual_seed(1)
        with probe.capture(model, path, task=task):
            model(torch.randint(0, 20, (2, TOKENS))).square().mean().backward()
            probe.step()
    return probe.compare(folder / "a.h5", folder / "b.h5")


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(("form", "is_paired"), [("stacked", True), ("angles", False), ("angles, twice", False)])
def test_tables_in_another_form_are_no_difference(tmp_path: Path, form: str, is_paired: bool, task: str) -> None:
    found = _compared(tmp_path, task, form)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert any(slot.path_a == "rotary_emb" and slot.role.label == "output" for slot in found.slots) is is_paired


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_another_theta_is_named_at_the_rotary_module(tmp_path: Path, task: str) -> None:
    first = _compared(tmp_path, task, "stacked", 1e3).first_divergence
    assert first is not None and (first.phase.label, first.path) == ("forward", "rotary_emb")
