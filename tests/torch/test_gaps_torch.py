"""Where a module's own code is at fault: the calls around the gap are named, a cut graph is found by the gradient that is missing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.adapters.base import Adapter  # noqa: E402
from probe.adapters.torch.adapter import TorchAdapter  # noqa: E402
from probe.comparison.result import Kind  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402

WIDTH, HEADS = 16, 4


class Scaled(torch.autograd.Function):
    """Returns what it is given; its gradient is 1.5 times too large."""

    @staticmethod
    def forward(_, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(_, gradient):  # type: ignore[no-untyped-def]
        return gradient * 1.5


class Attention(nn.Module):
    """With values in one layer, or in two that have no counterpart."""

    def __init__(self, fault: str, split: bool) -> None:
        super().__init__()
        self.fault, self.split = fault, split
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        value = nn.Linear(WIDTH, WIDTH)
        if split:
            with torch.random.fork_rng():
                self.v1, self.v2 = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)
            for part, weight, bias in zip(
                (self.v1, self.v2), value.weight.data.chunk(2), value.bias.data.chunk(2), strict=True
            ):
                part.weight.data, part.bias.data = weight.clone(), bias.clone()
        else:
            self.value = value
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = torch.cat([self.v1(x), self.v2(x)], -1) if self.split else self.value(x)
        q, k = self.query(x), self.key(x)
        v = v.detach() if self.fault == "detach" else Scaled.apply(v) if self.fault == "scale" else v
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        return self.dense((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Norm, attention, norm, gated layer."""

    def __init__(self, fault: str, split: bool) -> None:
        super().__init__()
        self.fault = fault
        self.norm, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(fault, split), nn.LayerNorm(WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        y = self.norm2(x)
        gate, up = self.gate(y), self.up(y)
        if self.fault == "exchanged":
            gate, up = up, gate
        return x + self.down(self.act_fn(gate) * up)


class Net(nn.Module):
    """Three layers, the second of which is faulty."""

    def __init__(self, fault: str = "", split: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.embed = nn.Embedding(31, WIDTH)
        self.layers = nn.ModuleList(Layer(fault if i == 1 else "", split) for i in range(3))
        self.head = nn.Linear(WIDTH, 31)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 0 and self.fault == "between layers":
                x = Scaled.apply(x)
        return self.head(x)


def record(path: Path, model: nn.Module, task: str = "tensor") -> Path:
    torch.manual_seed(1)
    x, y = torch.randint(0, 31, (2, 7)), torch.randint(0, 31, (2, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.capture(model, path, task=task, steps=[0]):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        probe.step(loss=loss.item())
    return path


def compared(folder: Path, b: nn.Module, task: str = "tensor") -> Comparison:
    a = record(folder / "a.h5", Net(), task)
    return probe.compare(a, record(folder / "b.h5", b, task))


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(("split", "last"), [(False, "value"), (True, "v2")])
def test_a_cut_graph_is_found_by_the_gradient_that_is_missing(
    tmp_path: Path, task: str, split: bool, last: str
) -> None:
    """Also where the weights of the call before it have no counterpart."""
    found = compared(tmp_path, Net("detach", split), task).first_divergence
    assert (found.path, found.kind) == ("layers.1.attention", Kind.MISSING)
    assert f"layers.1.attention.{last} gets no gradient in B, though what it returned needs one" in found.evidence
    assert found.hint == f"B cuts the graph after `{last}`, before `dense`: look for detach(), no_grad() or .data"


@pytest.mark.parametrize("split", [False, True])
def test_right_pairs_are_aligned(tmp_path: Path, split: bool) -> None:
    assert compared(tmp_path, Net("", split)).verdict == "aligned"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_the_gap_in_a_parents_code_is_named(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, Net("scale"), task).first_divergence
    assert found.path == "layers.1.attention" and found.kind is Kind.INTRODUCED
    assert "it lies after `value`, before `dense`" in found.evidence


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_gate_and_up_exchanged_are_told_by_their_hashes(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, Net("exchanged"), task).first_divergence
    assert found.path == "layers.1"
    assert "A gives `act_fn` what `gate` returned, B what `up` did (equal hashes)" in found.hint


@pytest.mark.parametrize(("fault", "place"), [("scale", "layers.1.attention"), ("between layers", "")])
@pytest.mark.parametrize("unseen", ["", "A", "B", "AB"])
def test_what_a_side_cannot_see_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, place: str, unseen: str
) -> None:
    """PaddlePaddle records totals, not what a call contributes to a gradient: nothing that it lacks is cut off."""
    files = []
    for side, model in (("A", Net()), ("B", Net(fault))):
        with monkeypatch.context() as patch:
            if side in unseen:
                patch.setattr(TorchAdapter, "on_call_gradient", Adapter.on_call_gradient)
            files.append(record(tmp_path / f"{side}.h5", model))
    found = probe.compare(*files).first_divergence
    assert (found.path, found.kind) == (place, Kind.INTRODUCED)
    assert "cuts" not in found.hint and "detach" not in found.hint
    assert not any("passes nothing back" in fact for fact in found.evidence)
