"""A decoder of which the keys and values of all layers are computed up front in one hand, and inside each layer in the other."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import probe
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison

torch = pytest.importorskip("torch")

import next_words  # noqa: E402
from facts import one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402

WORDS, HIDDEN, HEADS, LENGTH, LAYERS, DEPTH = 40, 32, 4, 12, 3, 12
BATCH = HEADS
"""as many as heads: a mask of [batch, 1, …] is as large as a bias of [1, heads, …]"""
HIDING = torch.finfo(torch.float32).min


def linear() -> nn.Linear:
    return nn.Linear(HIDDEN, HIDDEN, bias=False)


def in_heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None = None) -> Tensor:
    scores = in_heads(q) @ k.transpose(-1, -2)
    return ((scores if added is None else scores + added).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Norm(nn.Module):
    """RMSNorm, rounded otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt())


class Encoder(nn.Module):
    """Rounding grows from layer to layer, so that what it returns is further off than what the decoder is given."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        norms = [nn.RMSNorm(HIDDEN) if norm is nn.RMSNorm else norm() for _ in range(DEPTH)]
        self.layers = nn.ModuleList(nn.Sequential(each, linear(), nn.Tanh()) for each in norms)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


# One hand


class Attention(nn.Module):
    """Computes keys and values of what it is given; adds the mask and then the bias."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear() for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None, bias: Tensor | None, memory: Tensor | None = None) -> Tensor:
        source = x if memory is None else memory
        added = None if mask is None else mask + bias
        return self.o(attend(self.q(x), in_heads(self.k(source)), in_heads(self.v(source)), added))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.own, self.between, self.cross = nn.RMSNorm(HIDDEN), Attention(), nn.RMSNorm(HIDDEN), Attention()

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor, memory: Tensor) -> Tensor:
        x = x + self.own(self.norm(x), mask, bias)
        return x + self.cross(self.between(x), None, None, memory)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH * LENGTH, HEADS)
        self.encoder, self.norm = Encoder(nn.RMSNorm), nn.RMSNorm(HIDDEN)
        self.decoder, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        memory = self.norm(self.encoder(x))
        mask = torch.full((BATCH, 1, LENGTH, LENGTH), HIDING).triu(1)
        bias = self.bias(torch.arange(LENGTH * LENGTH)).T.unflatten(1, (LENGTH, LENGTH))[None]
        for block in self.decoder:
            x = block(x, mask, bias, memory)
        return self.head(x)


# The other


class Mixer(nn.Module):
    """Is handed mask and bias in one."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear() for _ in range(4))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.o(attend(self.q(x), in_heads(self.k(x)), in_heads(self.v(x)), table))


class Reader(nn.Module):
    """Is handed keys and values, as a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = linear(), linear()

    def forward(self, x: Tensor, made: tuple[Tensor, Tensor]) -> Tensor:
        return self.o(attend(self.q(x), *made))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.own, self.between, self.read = Norm(), Mixer(), Norm(), Reader()

    def forward(self, x: Tensor, table: Tensor, made: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.own(self.norm(x), table)
        return x + self.read(self.between(x), made)


class UpFront(nn.Module):
    """Keys and values of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = (nn.ModuleList(linear() for _ in range(LAYERS)) for _ in range(2))

    def forward(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(in_heads(k(memory)), in_heads(v(memory))) for k, v in zip(self.k, self.v, strict=True)]


class Port(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.words, self.bias = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH * LENGTH, HEADS)
        self.encoder, self.norm, self.up_front = Encoder(Norm), Norm(), UpFront()
        self.stack, self.head = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        encoded = self.encoder(x)
        memory = encoded if self.fault == "unnormed" else self.norm(encoded)
        memory = memory + memory.roll(1, 1) if self.fault == "added" else memory
        made = self.up_front(memory.detach() if self.fault == "cut" else memory)
        if self.fault == "order":
            made = [made[0], *made[:0:-1]]
        bias = self.bias(torch.arange(LENGTH * LENGTH)).T.unflatten(1, (LENGTH, LENGTH))[None]
        table = bias + torch.full((LENGTH, LENGTH), HIDING).triu(1)
        for layer, each in zip(self.stack, made, strict=True):
            x = layer(x, table, each)
        return self.head(x)


UP_FRONT = {"up_front.k.{i}": "decoder.{i}.cross.k", "up_front.v.{i}": "decoder.{i}.cross.v"}
MAP = {"Port": {**UP_FRONT, "stack": "decoder"}, "Layer": {"read": "cross"}}
LAYERS_APART = {"Port": {**UP_FRONT, **{f"stack.{{i}}.read.{each}": f"decoder.{{i}}.cross.{each}" for each in "qo"}}}
"""what layers call has partners, they have none"""


record = functools.partial(next_words.record, batch=BATCH, length=LENGTH, words=WORDS)


def _named_as_in_the_model(name: str) -> str:
    first, *rest = name.split(".")
    if first == "up_front":
        return f"decoder.{rest[1]}.cross.{rest[0]}.weight"
    return name.replace("stack.", "decoder.").replace(".read.", ".cross.")


def compared(folder: Path, task: str = "statistics", fault: str = "", mapping: dict | None = None) -> Comparison:
    torch.manual_seed(0)
    model, port = Model(), Port(fault)
    for name, parameter in model.named_parameters():
        is_norm = parameter.ndim == 1
        nn.init.normal_(parameter, float(is_norm), 0.6 if name.startswith("encoder") and not is_norm else 0.15)
    state = model.state_dict()
    for name, parameter in port.state_dict().items():
        parameter.copy_(state[_named_as_in_the_model(name)])
    return probe.compare(record(model, folder / "a.h5", task), record(port, folder / "b.h5", task), mapping or MAP)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_right_pair_is_aligned(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, task)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("unnormed", Kind.MISSING, "the model does not call its child norm on B: A calls it between encoder and bias"),
        ("added", Kind.INTRODUCED, "the input 0 of decoder.0.cross.k differs, what was there before it agrees"),
        ("cut", Kind.MISSING, "the input 0 of decoder.0.cross.k needs a gradient on A only"),
    ],
)
def test_what_is_made_before_a_call_is_charged_to_the_caller_of_both_hands(
    tmp_path: Path, fault: str, kind: Kind, said: str
) -> None:
    first = compared(tmp_path, fault=fault).first_divergence
    assert first is not None and (first.step, first.kind, first.path) == (0, kind, "")
    assert first.evidence[0] == said


def test_a_bias_that_learns_shows_no_cut_where_a_mask_fills_it(tmp_path: Path) -> None:
    """A is handed a mask of [batch, 1, …] where B is handed mask and bias, of [1, heads, …] and as many elements."""
    found = compared(tmp_path)
    assert found.first_divergence is None
    assert "recorded, and not compared for want of a counterpart: input 2 of decoder.0 in A" in found.warnings


def test_layers_that_ran_before_what_agrees_are_not_missing(tmp_path: Path) -> None:
    """Keys of the second layer agree: they were computed before the first layer ran, in B alone."""
    first = compared(tmp_path, fault="order", mapping=LAYERS_APART).first_divergence
    assert first is not None and (first.kind, first.path, first.b[0].path) == (Kind.INTRODUCED, "", "")
    assert first.evidence == ("the input 0 of decoder.1.cross.o differs, what was there before it agrees",)
