"""Gradients: whose code passes back a wrong one, cut graphs, several passes, clipped norms, what vanishes and what 16 bits hide, steps that overflowed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional

import probe
from probe.adapters.base import Adapter
from probe.adapters.torch.adapter import TorchAdapter
from probe.answer.comparison import Comparison
from probe.answer.result import Divergence, Kind, Verdict
from probe.commands.cli import compare_command
from probe.records import Phase, Role
from probe.report.html.document import document
from probe.report.text import render
from tests.torch.training import ScaledGradient, train_scaled

# ---- Which module's code passes back a wrong gradient, where no call's own part shows it.

WIDTH = 8
Change = Callable[[Any], None]


class Attention(nn.Module):
    """Returns its weights too; what it is given is split by its own code."""

    entry = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * WIDTH)
        self.q, self.k, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x if self.entry == 1.0 else ScaledGradient.apply(x, self.entry)
        mine, value = self.both(x).chunk(2, -1)
        weights = (self.q(mine * 0.5) @ self.k(x).transpose(-1, -2)).softmax(-1)
        return self.o(weights @ value), weights


class Layer(nn.Module):
    """The norm behind the sum, as in the first transformers."""

    kept = staticmethod(lambda x: x)

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.kept(x) + self.attention(x)[0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.layers, self.head = nn.ModuleList([Layer(), Layer()]), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.embed(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def first_of(folder: Path, change: Change, make: Callable[[], Any] = Encoder) -> Divergence:
    """Compare one step of the model with one that has been changed."""
    files = []
    for name in "ab":
        torch.manual_seed(0)
        model = make().eval()
        if name == "b":
            change(model)
        with probe.capture(model, folder / f"{name}.h5", task="statistics") as run:
            assert run is not None
            loss = model(torch.linspace(-1, 1, 6 * WIDTH).reshape(2, 3, WIDTH).sin()).pow(2).mean()
            loss.backward()
            probe.step(loss=loss)
        files.append(folder / f"{name}.h5")
    first = probe.compare(*files).first_divergence
    assert first is not None and first.phase is Phase.BACKWARD
    return first


def _residual_detached(model: Any) -> None:
    model.layers[0].kept = Tensor.detach


def _residual_scaled(model: Any) -> None:
    model.layers[0].kept = lambda x: ScaledGradient.apply(x, 0.5)


@pytest.mark.xfail(
    strict=True, reason="of what a layer's own code and a module without a recorded gradient use, the module is named"
)
@pytest.mark.parametrize("change", [_residual_detached, _residual_scaled])
def test_a_wrong_residual_is_that_of_the_layer_that_adds(tmp_path: Path, change: Change) -> None:
    """Not of the dropout in front of it, which does nothing, nor of attention, in which the other calls are."""
    assert first_of(tmp_path, change).path == "layers.0"


def test_a_wrong_entry_is_that_of_the_module_in_which_all_others_are(tmp_path: Path) -> None:
    assert first_of(tmp_path, lambda m: setattr(m.layers[0].attention, "entry", 1.5)).path == "layers.0.attention"


def test_weights_that_are_returned_come_behind_what_they_were_used_for(tmp_path: Path) -> None:
    """They are seen when attention returns, and were made and used long before that."""
    forward = nn.Linear.forward

    def change(model: Any) -> None:
        module = model.layers[1].attention.o
        module.forward = lambda x: forward(module, ScaledGradient.apply(x, 1.01))

    first = first_of(tmp_path, change)
    assert (first.path, first.a[0].slot) == ("layers.1.attention.o", "0")


def test_wrong_weights_that_are_returned_are_charged_to_the_code_that_uses_them(tmp_path: Path) -> None:
    class Wrong(Attention):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mine, value = self.both(x).chunk(2, -1)
            weights = (self.q(mine * 0.5) @ self.k(x).transpose(-1, -2)).softmax(-1)
            return self.o(ScaledGradient.apply(weights, 1.01) @ value), weights

    Wrong.__name__ = "Attention"
    assert first_of(tmp_path, lambda m: setattr(m.layers[1].attention, "__class__", Wrong)).path == "layers.1.attention"


class Dropping(Attention):
    """Its weights go through a dropout, which returns them as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mine, value = self.both(x).chunk(2, -1)
        weights = self.dropout((self.q(mine * 0.5) @ self.k(x).transpose(-1, -2)).softmax(-1))
        return self.o(weights @ value), weights


class Around(nn.Module):
    """Hands the weights on, to a layer that does not use them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Dropping()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x)


class Routed(nn.Module):
    """Returns what it chooses by, behind a dropout, for a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.dropout, self.out = nn.Linear(WIDTH, 2), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.dropout(self.router(x))
        return self.out(x) * logits.softmax(-1)[..., :1], logits


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.routed = Routed()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.routed(x)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_what_the_model_returns_behind_a_dropout_that_drops_nothing_is_up_to_the_loss(
    tmp_path: Path, factor: float
) -> None:
    """An auxiliary loss, not the block that made its logits."""
    files = []
    for name, scale in (("a", 1.0), ("b", factor)):
        torch.manual_seed(0)
        model = Choosing().eval()
        with probe.capture(model, tmp_path / f"{name}.h5"):
            y, logits = model(torch.linspace(-1, 1, 6 * WIDTH).reshape(2, 3, WIDTH).sin())
            loss = y.pow(2).mean() + ScaledGradient.apply(logits.pow(3).mean(), scale)
            loss.backward()
            probe.step(loss=loss)
        files.append(tmp_path / f"{name}.h5")
    first = probe.compare(*files).first_divergence
    assert first is None if factor == 1 else first is not None and (first.phase, first.path) == (Phase.LOSS, "")


def _with_dropping() -> Encoder:
    model = Encoder()
    for layer in model.layers:
        layer.attention = Around()
    return model


@pytest.mark.xfail(strict=True, reason="a dropout that drops nothing hands on a tensor with the same hash")
def test_weights_behind_a_dropout_that_drops_nothing_are_used_by_the_code_that_called_it(tmp_path: Path) -> None:
    class Wrong(Dropping):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mine, value = self.both(x).chunk(2, -1)
            weights = self.dropout((self.q(mine * 0.5) @ self.k(x).transpose(-1, -2)).softmax(-1))
            return self.o(ScaledGradient.apply(weights @ value, 2.0)), weights

    Wrong.__name__ = "Dropping"
    first = first_of(tmp_path, lambda m: setattr(m.layers[1].attention.inner, "__class__", Wrong), _with_dropping)
    assert first.path == "layers.1.attention.inner"


def test_what_is_split_is_followed_to_the_only_call_behind_it_that_passes_nothing_back(tmp_path: Path) -> None:
    forward = nn.Linear.forward

    def change(model: Any) -> None:
        module = model.layers[1].attention.q
        module.forward = lambda x: forward(module, x.detach())

    first = first_of(tmp_path, change)
    assert first.path == "layers.1.attention.q"
    assert "layers.1.attention.q gets a gradient on both sides and passes nothing back in B" in first.evidence


class Selfless(nn.Module):
    """Gives one tensor to an attention three times."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


def test_a_call_that_is_given_one_tensor_by_several_arguments_alone_used_it(tmp_path: Path) -> None:
    def record(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Selfless(), nn.Linear(WIDTH, 1))
        attention = model[1].attention
        forward = attention.forward
        attention.forward = lambda *args, **named: (ScaledGradient.apply(forward(*args, **named)[0], factor), None)
        with probe.capture(model, tmp_path / name):
            loss = model(torch.randn(4, 6, WIDTH)).square().mean()
            loss.backward()
            probe.step(loss=loss)
        return tmp_path / name

    first = probe.compare(record("a.h5", 1.0), record("b.h5", 2.0)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, "1.attention")
    assert first.evidence[0] == "the gradient of 1.norm's output 0 differs"


# ---- Where a module's own code is at fault: the calls around the gap are named, a cut graph is found by the gradient that is missing.

WIDTH_GAPS, HEADS = 16, 4
BETWEEN = pytest.mark.xfail(
    strict=True, reason="code that hands on equal values between two modules is that of the second"
)
UNPAIRED = pytest.mark.xfail(
    strict=True, reason="of calls without a counterpart, what no gradient reaches is not asked"
)


class Scaled(torch.autograd.Function):
    """Returns what it is given; its gradient is 1.5 times too large."""

    @staticmethod
    def forward(_, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(_, gradient):  # type: ignore[no-untyped-def]
        return gradient * 1.5


class GapsAttention(nn.Module):
    """With values in one layer, or in two that have no counterpart."""

    def __init__(self, fault: str, split: bool) -> None:
        super().__init__()
        self.fault, self.split = fault, split
        self.query, self.key = nn.Linear(WIDTH_GAPS, WIDTH_GAPS), nn.Linear(WIDTH_GAPS, WIDTH_GAPS)
        value = nn.Linear(WIDTH_GAPS, WIDTH_GAPS)
        if split:
            with torch.random.fork_rng():
                self.v1, self.v2 = nn.Linear(WIDTH_GAPS, WIDTH_GAPS // 2), nn.Linear(WIDTH_GAPS, WIDTH_GAPS // 2)
            for part, weight, bias in zip(
                (self.v1, self.v2), value.weight.data.chunk(2), value.bias.data.chunk(2), strict=True
            ):
                part.weight.data, part.bias.data = weight.clone(), bias.clone()
        else:
            self.value = value
        self.dense = nn.Linear(WIDTH_GAPS, WIDTH_GAPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = torch.cat([self.v1(x), self.v2(x)], -1) if self.split else self.value(x)
        q, k = self.query(x), self.key(x)
        v = v.detach() if self.fault == "detach" else Scaled.apply(v) if self.fault == "scale" else v
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH_GAPS // HEADS)
        return self.dense((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class GapsLayer(nn.Module):
    """Norm, attention, norm, gated layer."""

    def __init__(self, fault: str, split: bool) -> None:
        super().__init__()
        self.fault = fault
        self.norm, self.attention, self.norm2 = (
            nn.LayerNorm(WIDTH_GAPS),
            GapsAttention(fault, split),
            nn.LayerNorm(WIDTH_GAPS),
        )
        self.gate, self.up, self.down = nn.Linear(WIDTH_GAPS, 32), nn.Linear(WIDTH_GAPS, 32), nn.Linear(32, WIDTH_GAPS)
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
        self.embed = nn.Embedding(31, WIDTH_GAPS)
        self.layers = nn.ModuleList(GapsLayer(fault if i == 1 else "", split) for i in range(3))
        self.head = nn.Linear(WIDTH_GAPS, 31)

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
@pytest.mark.parametrize("split", [False, pytest.param(True, marks=UNPAIRED)])
def test_a_cut_graph_is_found_by_the_gradient_that_is_missing(tmp_path: Path, task: str, split: bool) -> None:
    """Also where the weights of the call before it have no counterpart."""
    found = compared(tmp_path, Net("detach", split), task).first_divergence
    assert (found.path, found.kind) == ("layers.1.attention", Kind.MISSING)
    assert found.hint.startswith("B cuts the graph")


@pytest.mark.parametrize("split", [False, True])
def test_right_pairs_are_aligned(tmp_path: Path, split: bool) -> None:
    assert compared(tmp_path, Net("", split)).verdict == "aligned"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_the_gap_in_a_parents_code_is_named(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, Net("scale"), task).first_divergence
    assert found.path == "layers.1.attention" and found.kind is Kind.INTRODUCED


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_gate_and_up_exchanged_are_told_by_their_hashes(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, Net("exchanged"), task).first_divergence
    assert found.path == "layers.1"


@pytest.mark.parametrize(
    ("fault", "place"), [("scale", "layers.1.attention"), pytest.param("between layers", "", marks=BETWEEN)]
)
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


# ---- A layer that passes nothing back.


class Cut(torch.nn.Linear):
    """A linear layer that passes nothing back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_layer_behind_which_nothing_learns_is_named_and_not_what_does_not_learn(tmp_path: Path, task: str) -> None:
    paths = []
    for name, second in (("a", torch.nn.Linear), ("b", Cut)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.GELU(), second(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        paths.append(tmp_path / f"{name}.h5")
        with probe.capture(model, paths[-1], task=task):
            loss = model(torch.ones(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
    for a, b, side in ((*paths, "B"), (*paths[::-1], "A")):
        (first,) = probe.compare(a, b).divergences
        assert (first.phase, first.kind, first.path) == (Phase.BACKWARD, Kind.MISSING, "2")
        assert first.evidence == (f"2 gets a gradient on both sides and passes nothing back in {side}",)
        assert first.hint == f"{side} cuts the graph here: look for detach(), no_grad() or .data in this module"


# ---- Two losses with a backward pass each against one pass of their sum; gradients of gradients.

TASKS = ("statistics", "tensor")
_LAYER_NORM = functional.layer_norm
Backward = Callable[[Tensor, Tensor], None]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32))
        self.first, self.second = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.first(x), self.second(x)


def apart(first: Tensor, second: Tensor) -> None:
    first.backward(retain_graph=True)
    second.backward()


def the_other_way_round(first: Tensor, second: Tensor) -> None:
    apart(second, first)


def one_scaled(first: Tensor, second: Tensor) -> None:
    second.backward(retain_graph=True)
    (1.1 * first).backward()


def at_once(first: Tensor, second: Tensor) -> None:
    (first + second).backward()


def one_twice(first: Tensor, second: Tensor) -> None:
    second.backward(retain_graph=True)
    apart(first, second)


def train(path: Path, backward: Backward, task: str) -> Path:
    torch.manual_seed(0)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.capture(model, path, task=task):
        for _ in range(2):
            first, second = model(torch.randn(8, 16))
            losses = first.square().mean(), (second - 1).square().mean()
            backward(*losses)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=sum(losses))
    return path


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("a", "b"), [(apart, at_once), (at_once, apart)])
def test_passes_are_added_up(tmp_path: Path, task: str, a: Backward, b: Backward) -> None:
    found = probe.compare(train(tmp_path / "a.h5", a, task), train(tmp_path / "b.h5", b, task))
    assert found.verdict is Verdict.ALIGNED, found


@pytest.mark.parametrize("task", TASKS)
def test_passes_in_another_order(tmp_path: Path, task: str) -> None:
    a = train(tmp_path / "a.h5", apart, task)
    found = probe.compare(a, train(tmp_path / "b.h5", the_other_way_round, task))
    assert found.verdict is Verdict.ALIGNED, found
    first = probe.compare(a, train(tmp_path / "c.h5", one_scaled, task)).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.LOSS, "")
    assert first.evidence[0] == "the gradient of the whole model's output 0 differs"


@pytest.mark.parametrize("task", TASKS)
def test_a_pass_too_many(tmp_path: Path, task: str) -> None:
    found = probe.compare(train(tmp_path / "a.h5", at_once, task), train(tmp_path / "b.h5", one_twice, task))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.LOSS, ""), found


def penalised(path: Path, task: str, lr: float = 0.1, penalties: int = 2) -> Path:
    """A penalty on the gradient at the input, by double backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with probe.capture(model, path, task=task):
        for number in range(2):
            x = torch.randn(8, 16, requires_grad=True)
            y = model(x)
            loss = y.square().mean()
            if number < penalties:
                (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
                loss = loss + (gradient.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def in_float64(x: Tensor, *arguments: object) -> Tensor:
    """The same in other nodes: the second derivative's parts go through the cast, not past it."""
    shape, weight, bias, eps = arguments
    return _LAYER_NORM(x.double(), shape, weight.double(), bias.double(), eps).float()


@pytest.mark.parametrize("task", TASKS)
def test_a_penalty_on_gradients(tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = penalised(tmp_path / "a.h5", task)
    monkeypatch.setattr(functional, "layer_norm", in_float64)
    b = penalised(tmp_path / "b.h5", task)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
    first = probe.compare(a, penalised(tmp_path / "c.h5", task, lr=0.11)).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "")


def test_what_a_call_contributes_is_recorded_of_the_first_pass_alone(tmp_path: Path) -> None:
    run = probe.open(penalised(tmp_path / "a.h5", "statistics", penalties=1))
    found = [
        {role: sum(each.step == step for each in run["1"].of(role)) for role in (Role.GRAD_INPUT, Role.GRAD_OUTPUT)}
        for step in (0, 1)
    ]
    assert found == [{Role.GRAD_INPUT: 1, Role.GRAD_OUTPUT: 2}, {Role.GRAD_INPUT: 1, Role.GRAD_OUTPUT: 1}]


def test_gradients_that_no_hook_sees_are_said_to_be_those_that_the_optimizer_used(tmp_path: Path) -> None:
    def put(first: Tensor, second: Tensor) -> None:
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(first + second, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    files = []
    for name, backward in (("a", at_once), ("b", put)):
        torch.manual_seed(0)
        model = TwoHeads()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.capture(model, tmp_path / f"{name}.h5"):
            first, second = (head.square().mean() for head in model(torch.ones(4, 16)))
            backward(first, second)
            optimizer.step()
            probe.step()
        files.append(tmp_path / f"{name}.h5")
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED, found
    assert any("gradients are recorded as the optimizer used them" in told for told in found.warnings), found.warnings


# ---- Clipping: what both sides divide their gradients by is a norm, and that is rounded; and which gradients are clipped together.

Clip = Callable[[nn.Module], None]
NORM = 1e-3


class ClippedNet(nn.Module):
    """An embedding of 48,000 elements, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.inner, self.head = (
            nn.Embedding(500, 96),
            nn.LayerNorm(96),
            nn.Linear(96, 96),
            nn.Linear(96, 8),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(ids)) + self.inner(self.embed(ids)))


def scale(parameters: Iterable[nn.Parameter], by: float = 1.0, norm: float = NORM) -> None:
    """Clip gradients together to a norm, times a number."""
    gradients = [p.grad for p in parameters]
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in gradients])).item()
    for gradient in gradients:
        gradient.mul_(norm / total * by)


def record_clipped(path: Path, clip: Clip, task: str = "statistics") -> Path:
    torch.manual_seed(0)
    net = ClippedNet()
    with torch.no_grad():
        net.norm.weight.add_(torch.randn(96) / 10)
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3)
    with probe.capture(net, path, task=task):
        for step in range(2):
            ids = probe.make_inputs({"ids": "int64[4,16] < 500"}, seed=step, to="torch")["ids"]
            loss = net(ids).square().mean()
            loss.backward()
            clip(net)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def compared_clipped(
    folder: Path, clip: Clip, task: str = "statistics", a: Clip = lambda net: scale(net.parameters())
) -> Comparison:
    return probe.compare(record_clipped(folder / "a.h5", a, task), record_clipped(folder / "b.h5", clip, task))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("apart", [1.5e-5, -3e-4])
def test_a_norm_that_one_side_sums_one_after_another_is_rounding(tmp_path: Path, apart: float, task: str) -> None:
    result = compared_clipped(tmp_path, lambda net: scale(net.parameters(), 1 + apart), task)
    assert result.verdict is Verdict.ALIGNED, result.divergences
    said = f"all gradients that the optimizer used are longer or shorter in B by {abs(apart):.1e}: the norm that both are clipped by is a sum"
    assert any(text.startswith(said) for text in result.warnings), result.warnings


def test_more_than_so_many_squares_round_to_is_wrong(tmp_path: Path) -> None:
    result = compared_clipped(tmp_path, lambda net: scale(net.parameters(), 1.005))
    assert result.verdict is Verdict.DIVERGED
    assert "all by the same factor: B is 1.005 times A" in result.divergences[0].evidence


def test_a_factor_of_gradients_that_are_not_clipped_is_no_norm(tmp_path: Path) -> None:
    def left(net: nn.Module) -> None:
        pass

    def times(net: nn.Module) -> None:
        for parameter in net.parameters():
            parameter.grad.mul_(1 + 3e-5)

    result = compared_clipped(tmp_path, times, a=left)
    assert result.verdict is Verdict.DIVERGED
    assert result.divergences[0].phase is Phase.UPDATE


def test_one_gradient_that_is_off_by_itself_is_no_norm(tmp_path: Path) -> None:
    def clip(net: ClippedNet) -> None:
        scale(net.parameters())
        net.inner.weight.grad.mul_(1 + 3e-4)

    result = compared_clipped(tmp_path, clip)
    assert result.divergences[0].a[0].path == "inner"


def test_groups_that_are_clipped_by_themselves_are_said(tmp_path: Path) -> None:
    """So PaddlePaddle's optimizers clip where they are given several groups."""

    def each_group(net: ClippedNet) -> None:
        scale(p for p in net.parameters() if p.ndim > 1)
        scale(p for p in net.parameters() if p.ndim == 1)

    hint = str(compared_clipped(tmp_path, each_group).divergences[0].hint)
    assert hint.startswith("by the numbers: A clips all its gradients together to a norm of 0.001 (from")
    assert hint.endswith("B clips the gradients of each of its 2 groups by itself, to a norm of 0.001")


class Apart(nn.Module):
    """Two layers that `Joined` has in one."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = nn.Linear(96, 96), nn.Linear(96, 96), nn.Linear(192, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.q(x), self.k(x)], -1))


class Joined(nn.Module):
    """The same with one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.out = nn.Linear(96, 192), nn.Linear(192, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.qk(x))


def test_gradients_of_what_lies_in_one_count_once_in_the_norm_of_all(tmp_path: Path) -> None:
    torch.manual_seed(0)
    apart, joined = Apart(), Joined()
    with torch.no_grad():
        joined.qk.weight.copy_(torch.cat([apart.q.weight, apart.k.weight]))
        joined.qk.bias.copy_(torch.cat([apart.q.bias, apart.k.bias]))
        joined.out.load_state_dict(apart.out.state_dict())
    for name, net, by in (("a.h5", apart, 1.0), ("b.h5", joined, 1.006)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with probe.capture(net, tmp_path / name):
            x = probe.make_inputs({"x": "float32[16,96]"}, seed=0, to="torch")["x"]
            loss = net(x).square().mean()
            loss.backward()
            scale(net.parameters(), by)
            optimizer.step()
            probe.step(loss=loss)
    result = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5", {"Joined": {"qk": ["q", "k"]}})
    hints = [str(hint["found"]) for hint in result.divergences[0].hints if hint["name"] == "clipping"]
    assert len(hints) == 1
    assert "to a norm of 0.001 (from" in hints[0]
    assert "to a norm of 0.001006 (from" in hints[0]


# ---- Gradients of which little is left: what cancels out, and what is too small for float16, are no faults.


class VanishingAttention(torch.nn.Module):
    """Of which the softmax may add up in another order; keys have a large common part, which it does not see."""

    def __init__(self, scale: float, offset: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(32, 32) for _ in range(3))
        self.scale, self.offset, self.swapped = scale, offset, False

    def forward(self, x: Any) -> Any:
        x = x + self.offset
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * self.scale
        weights = scores.flip(-1).softmax(-1).flip(-1) if self.swapped else scores.softmax(-1)
        value = self.value(x)
        return weights.flip(-1) @ value.flip(-2) if self.swapped else weights @ value


def record_vanishing(
    path: Path, dtype: Any, swapped: bool, loss_scale: float, offset: float, factor: float = 1.0
) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(VanishingAttention(0.2, offset), torch.nn.Linear(32, 8)).to(dtype)
    model[0].swapped = swapped
    if factor != 1:
        model[0].key.weight.register_hook(lambda gradient: gradient * factor)
    x, target = torch.randn(4, 64, 32).to(dtype), torch.randn(4, 64, 8).to(dtype)
    with probe.capture(model, path):
        loss = ((model(x) - target) ** 2).mean() * loss_scale
        loss.backward()
        probe.step(loss=loss.item())
    return path


def test_what_is_left_is_rounding(tmp_path: Path) -> None:
    a = record_vanishing(tmp_path / "a.h5", torch.float32, False, 1.0, 100.0)
    b = record_vanishing(tmp_path / "b.h5", torch.float32, True, 1.0, 100.0)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def passing_back(module: Any, change: Callable[[Any], Any]) -> None:
    """Let a module pass back to its input what is made of the gradient that it would."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return change(gradient)

    module.register_forward_pre_hook(lambda _, inputs: (Changed.apply(inputs[0]),))


def units_larger(units: float) -> Callable[[Any], Any]:
    """Return what makes every second element larger by units of float16 at 0."""

    def change(gradient: Any) -> Any:
        second = torch.arange(gradient.numel()).reshape(gradient.shape) % 2
        return gradient + (units * 2.0**-24 * second).to(gradient.dtype)

    return change


@pytest.mark.parametrize(("units", "size", "verdict"), [(1, 3e-7, Verdict.ALIGNED), (1000, 3e-4, Verdict.DIVERGED)])
def test_below_float16_s_range_a_unit_is_a_large_part(
    tmp_path: Path, units: float, size: float, verdict: Verdict
) -> None:
    def run(path: Path, units: float) -> Path:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)).half()
        passing_back(model[1], units_larger(units))
        with probe.capture(model, path):
            y = model(torch.randn(64, 16).half())
            y.backward(torch.full_like(y, size))
            probe.step()
        return path

    assert probe.compare(run(tmp_path / "a.h5", 0.0), run(tmp_path / "b.h5", units)).verdict is verdict


def test_a_factor_is_named_all_the_same(tmp_path: Path) -> None:
    a = record_vanishing(tmp_path / "a.h5", torch.float32, False, 1.0, 100.0)
    b = record_vanishing(tmp_path / "b.h5", torch.float32, True, 1.0, 100.0, factor=1.1)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.phase.label, first.path) == ("gradient", "0.key")


def record_bias(path: Path, share: float, offset: float = 0.0) -> Path:
    """A bias before a batch norm: its gradient is a sum over 4096 rows that is 0.

    Every row is off by the same share of the gradient, as where the mean of all rows is taken away.
    """
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
    model = torch.nn.Sequential(linear, norm)
    passing_back(norm, lambda gradient: gradient + share * gradient.square().mean().sqrt())
    linear.bias.register_hook(lambda gradient: gradient + offset)
    x, target = torch.randn(4096, 8), torch.randn(4096, 8)
    with probe.capture(model, path):
        loss = ((model(x) - target) ** 2).mean()
        loss.backward()
        probe.step(loss=loss.item())
    return path


def test_a_sum_of_rows_that_cancels_out_has_the_errors_of_all_rows(tmp_path: Path) -> None:
    a, b = record_bias(tmp_path / "a.h5", 0.0), record_bias(tmp_path / "b.h5", 3e-7)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    first = probe.compare(a, record_bias(tmp_path / "c.h5", 3e-7, 1e-5)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, "0")


# ---- What 16 bits hide from the built-in model is said where nothing was found.

SAID = (
    "16-bit values, judged by the built-in model: errors below about 3 % of what a module returns are not told from noise; "
    "--noise a2.h5 or --reference fp32.h5 sees smaller ones"
)


class Halves(torch.nn.Linear):
    """A product whose sum is rounded in two parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.in_features // 2
        return x[..., :half] @ self.weight[:, :half].T + x[..., half:] @ self.weight[:, half:].T


class Model(torch.nn.Module):
    def __init__(self, linear: type[torch.nn.Linear]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(64)
        self.up, self.down = linear(64, 64, bias=False), linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return y


def recorded(path: Path, linear: type[torch.nn.Linear], dtype: torch.dtype) -> Path:
    model = Model(linear).to(dtype)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    with probe.capture(model, path, task="tensor"):
        model(x).float().square().mean().backward()
        probe.step()
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return recorded(tmp_path / "a.h5", torch.nn.Linear, torch.bfloat16), recorded(
        tmp_path / "b.h5", Halves, torch.bfloat16
    )


def test_an_aligned_answer_says_what_16_bits_hide(pair: tuple[Path, Path]) -> None:
    found = probe.compare(*pair)
    assert found.verdict is Verdict.ALIGNED and found.unseen is not None
    assert found.unseen.error == pytest.approx(8 * 2.0**-8, rel=0.01) and found.unseen.text == SAID
    first, *rest = render(found).plain.split("\n\n")[1].splitlines()
    assert first.startswith("No divergence in ") and " ".join(" ".join(rest).split()).startswith(f"{SAID}.")
    assert SAID in found._repr_html_()
    assert document(found)["answer"]["unseen"] == {"error": pytest.approx(found.unseen.error, rel=1e-5), "text": SAID}  # type: ignore[index]
    printed = CliRunner().invoke(compare_command, [*map(str, pair), "--format", "json"])
    assert json.loads(printed.stdout)["unseen"]["text"] == SAID


class Half(torch.nn.Module):
    """A model in float32, of which modules compute in bfloat16 under autocast."""

    def __init__(self, linear: type[torch.nn.Linear]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Model(linear) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def cast(path: Path, linear: type[torch.nn.Linear], **moved: str) -> Path:
    model = Half(linear)
    around = probe.noise_run if moved else probe.capture
    with (
        around(model, path, task="tensor", **{k: v for k, v in moved.items() if v}),
        torch.autocast("cpu", torch.bfloat16),
    ):
        model(torch.randn(8, 64, generator=torch.Generator().manual_seed(1))).float().square().mean().backward()
        probe.step()
    return path


def test_a_further_run_that_makes_no_limit_smaller_is_told(tmp_path: Path) -> None:
    """Weights in float32 that are moved by one unit of float32 are the same in bfloat16, but for a few."""
    a, b = cast(tmp_path / "a.h5", torch.nn.Linear), cast(tmp_path / "b.h5", Halves)
    few = probe.compare(a, b, noise=cast(tmp_path / "few.h5", torch.nn.Linear, dtype=""))
    (note,) = [text for text in few.warnings if "limits of what modules return" in text]
    assert re.fullmatch(
        r"noise: few\.h5 made \d of \d+ limits of what modules return in 16 bits smaller: errors below about \d % are still not "
        r"told from noise; a run whose modules all round otherwise sees more \(another attention kernel or device; of "
        r"probe\.noise_run under autocast, dtype='bfloat16'\)",
        note,
    )
    enough = probe.compare(a, b, noise=cast(tmp_path / "enough.h5", torch.nn.Linear, dtype="bfloat16"))
    assert enough.verdict is Verdict.ALIGNED
    assert not [text for text in enough.warnings if "limits of what modules return" in text]


def test_sums_of_gradients_alone_say_what_they_hide(tmp_path: Path) -> None:
    def run(name: str, micros: int) -> Path:
        model = Half(torch.nn.Linear)
        x = torch.randn(12, 64, generator=torch.Generator().manual_seed(1))
        with probe.capture(model, tmp_path / f"{name}.h5"):
            for part in x.chunk(micros):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(part).float().square().mean() / micros
                loss.backward()
            probe.step()
        return tmp_path / f"{name}.h5"

    found = probe.compare(run("a", 2), run("b", 3))
    assert found.verdict is Verdict.ALIGNED and found.unseen is not None
    said = (
        "judged by gradients alone, with the built-in model: errors below about 20 % of a weight's gradient are not told from "
        "noise; recordings of forward and backward with the same split of the batch show smaller ones"
    )
    assert found.unseen.text == said
    assert f"{said}." in " ".join(render(found).plain.split())


def test_nothing_is_said_where_nothing_is_hidden(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Not of 32 bits, of equal bits, or of another rung."""
    single = [
        recorded(tmp_path / f"{linear.__name__}.h5", linear, torch.float32) for linear in (torch.nn.Linear, Halves)
    ]
    again = recorded(tmp_path / "again.h5", torch.nn.Linear, torch.bfloat16)
    further = recorded(tmp_path / "further.h5", Halves, torch.bfloat16)
    for found in (
        probe.compare(*single),
        probe.compare(pair[0], again),
        probe.compare(*pair, noise=further),
        probe.compare(*pair, rtol=0.5, metric="rel_l2"),
    ):
        assert found.verdict is Verdict.ALIGNED and found.unseen is None and found.as_json()["unseen"] is None
        assert "not told from noise" not in render(found).plain


# ---- Steps that loss scaling skips: float16's gradients are not finite on either side.


@pytest.mark.parametrize("task", TASKS)
def test_the_other_steps_are_compared(tmp_path: Path, task: str) -> None:
    found = probe.compare(train_scaled(tmp_path / "a.h5", task), train_scaled(tmp_path / "b.h5", task, scale=2.0**41))
    assert found.verdict is Verdict.ALIGNED, found
    assert [(left.what, left.why, left.names) for left in found.left_out] == [("gradients", "not finite", ("0",))]
    assert str(found).startswith("ALIGNED but for gradients of step 0 (not finite)  A ")


@pytest.mark.parametrize("task", TASKS)
def test_a_fault_behind_it(tmp_path: Path, task: str) -> None:
    found = probe.compare(train_scaled(tmp_path / "a.h5", task), train_scaled(tmp_path / "b.h5", task, lr=1.1e-2))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (1, Phase.UPDATE, "")


def test_every_step_is_skipped(tmp_path: Path) -> None:
    files = [train_scaled(tmp_path / name, "statistics", backoff=0.5) for name in ("a.h5", "b.h5")]
    found = probe.compare(*files)
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("NaN on both sides: what is computed from it cannot be judged") for text in found.doubts)


def overflowing(path: Path, *, is_updated: bool = True, loss: float = 1.0, forward: float = 1.0) -> Path:
    """Gradients that are NaN in the first of two steps, which updates nothing; or the loss, or what the model returns, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.capture(model, path):
        for number in range(2):
            model.zero_grad()
            y = model(torch.randn(4, 8) * (1.0 if number else forward))
            y.register_hook(lambda gradient, number=number: gradient * (1.0 if number else float("nan")))
            y.square().mean().backward()
            if number and is_updated:
                optimizer.step()
            probe.step(loss=1.0 if number else loss)
    return path


def test_only_gradients_overflow_by_their_scale(tmp_path: Path) -> None:
    def compared(**options: float) -> Comparison:
        return probe.compare(*(overflowing(tmp_path / f"{name}{options}.h5", **options) for name in "ab"))

    assert compared().verdict is Verdict.ALIGNED
    assert compared(loss=float("nan")).verdict is Verdict.UNDECIDED
    assert compared(forward=float("nan")).verdict is Verdict.UNDECIDED


def test_gradients_that_nothing_was_seen_to_skip(tmp_path: Path) -> None:
    """Without an optimizer no weight is updated in any step: that says nothing of loss scaling."""
    found = probe.compare(*(overflowing(tmp_path / name, is_updated=False) for name in ("a.h5", "b.h5")))
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("NaN on both sides: what is computed from it cannot be judged") for text in found.doubts)


class Looking(torch.optim.SGD):
    """Changes nothing where a gradient is not finite."""

    def step(self, closure: None = None) -> None:
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        if all(parameter.grad.isfinite().all() for parameter in own):
            for parameter in own:
                parameter.data.add_(parameter.grad, alpha=-0.1)


def stepping(path: Path, what: str, *, task: str = "statistics", steps: int = 3, decay: float = 0.0) -> Path:
    """Gradients that are Inf or NaN in the second step: ``skip`` or ``take`` it, let the optimizer ``look``, or give it ``zeros``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    made = Looking if what == "look" else torch.optim.SGD
    optimizer = made(model.parameters(), lr=0.1, weight_decay=decay)
    with probe.capture(model, path, task=task):
        for number in range(steps):
            loss = model(torch.randn(4, 8)).square().mean()
            (loss * (float("inf") if number == 1 else 1.0)).backward()
            if what == "zeros":
                for parameter in model.parameters():
                    parameter.grad.nan_to_num_(0, 0, 0)
            if number != 1 or what != "skip":
                optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.xfail(strict=True, reason="updates behind gradients that are not finite are not told by who skips")
def test_one_side_alone_skips_the_step(tmp_path: Path, task: str, steps: int, turned: bool) -> None:
    files = [stepping(tmp_path / f"{what}.h5", what, task=task, steps=steps) for what in ("skip", "take")]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None
    assert (first.step, first.phase, first.kind, first.path) == (1, Phase.UPDATE, Kind.UPDATE, "")
    skips, takes = "BA" if turned else "AB"
    assert first.evidence == (
        f"the gradients of 4 of 4 weights are not finite on either side: {skips} leaves its weights as they were, {takes} updates "
        "4 of them all the same",
        f"4 weights are not finite in {takes} from here on, first weight of 0",
    )
    hint = f"a loss scaler (GradScaler) does, and in {takes} nothing did"
    assert first.hint == f"look at what skips steps whose gradients are not finite: {hint}"


@pytest.mark.parametrize("steps", [2, 3])
def test_both_sides_take_the_step(tmp_path: Path, steps: int) -> None:
    """Their weights are NaN then, in the last step too: nothing was skipped."""
    found = probe.compare(*(stepping(tmp_path / name, "take", steps=steps) for name in ("a.h5", "b.h5")))
    assert found.verdict is Verdict.UNDECIDED and found.left_out == ()
    assert any(text.startswith("step 1: ") and "NaN on both sides" in text for text in found.doubts)
