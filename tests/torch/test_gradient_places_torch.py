"""Which module's code passes back a wrong gradient, where no call's own part shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from benchmarks.localisation.tools.surgery import ScaledGradient  # noqa: E402
from probe.comparison.result import Divergence  # noqa: E402
from probe.records import Phase  # noqa: E402

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
    assert first.evidence[0] == "the gradient of 1.attention's input 0 differs"
