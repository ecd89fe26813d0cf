"""Calls that one side alone makes, between what is right and what is wrong: blamed only where they may have a part in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, softmax
from probe.comparison.result import Kind, Verdict
from probe.records import Phase
from probe.report.text import render
from tests.comparison.planted import Model, Recorder, changed
from tests.toys import GPT, HEADS, WIDTH, replaced


class Angles(nn.Module):
    """Makes what every layer is handed beside its input."""

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(np.linspace(0.9, 1.1, x.shape[1] * WIDTH).reshape(x.shape[1], WIDTH).astype(np.float32))


class Core(nn.Module):
    """What comes of queries, keys and values."""

    times = 1.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        scores = q @ k.swapaxes(-1, -2) * (WIDTH / HEADS) ** -0.5 * self.times
        return softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ v


def _attention(self: Any, x: Tensor, angles: Any = None) -> Tensor:
    batch, length, width = x.shape
    q, k, v = (layer(x).reshape(batch, length, HEADS, -1).swapaxes(1, 2) for layer in (self.q, self.k, self.v))
    mixed = self.core(q * self.before, k, v)
    return self.o(mixed.swapaxes(1, 2).reshape(batch, length, width))


def _block(self: Any, x: Tensor, angles: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x * angles))
    return x + self.mlp(self.norm2(x))


def _model(times: float) -> type[GPT]:
    def forward(self: Any, ids: Tensor) -> Tensor:
        y = self.embed(ids)
        angles = self.angles(y) if hasattr(self, "angles") else Angles.forward(self, y)
        y = y * times
        for layer in self.layers:
            y = layer(y, angles)
        return self.head(self.norm(y))

    return type("GPT", (GPT,), {"forward": forward})


def _handed(model: Model, *, has_module: bool, times: float = 1.0) -> None:
    model.__class__ = _model(times)
    if has_module:
        model.angles = Angles()
    for number in "012":
        replaced(model, f"layers.{number}", forward=_block)


def _with_cores(model: Model, before: float = 1.0) -> None:
    for number in "012":
        attn = getattr(model.layers, number).attn
        attn.core, attn.before = Core(), before if number == "1" else 1.0
        replaced(model, f"layers.{number}.attn", forward=_attention)


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_handed_on_by_another_argument_has_no_part_in_a_wrong_input(run: Recorder, turned: bool) -> None:
    sides = [changed(lambda m: _handed(m, has_module=turned)), changed(lambda m: _handed(m, has_module=not turned))]
    a, b = map(run, sides)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
    wrong = changed(lambda m: _handed(m, has_module=not turned, times=1 / 12))
    found = probe.compare(a, run(wrong))
    first = found.first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.FORWARD, Kind.INTRODUCED, "")
    assert first.evidence[1] == "it is 0.0833333 (1/12) times A's, in one direction: a factor behind embed"
    assert "factor" in render(found).plain and not any("angles" in text for text in first.evidence)


def test_code_around_a_call_that_one_side_alone_makes(run: Recorder) -> None:
    """Whether the call was given the right thing was never compared."""
    a = run()
    assert probe.compare(a, run(changed(_with_cores))).verdict is Verdict.ALIGNED
    first = probe.compare(a, run(changed(lambda m: _with_cores(m, before=1.5)))).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.attn")
    assert first.evidence[1] == "it is made between v and o; not compared there: layers.1.attn.core (in B only)"
    assert first.confidence < 0.9
    assert first.hint.startswith("look at what both sides compute between v and o, Core and what it is given")


def test_a_call_of_one_side_that_is_known_to_have_begun_right(run: Recorder) -> None:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.SiLU.forward(self, x) * self.times  # type: ignore[arg-type, attr-defined]

    def change(model: Model) -> None:
        for number in "012":
            mlp = getattr(model.layers, number).mlp
            mlp.own = Doubling()
            mlp.own.times = 1.3 if number == "1" else 1.0
            replaced(model, f"layers.{number}.mlp", forward=lambda s, x: s.down(s.own(s.gate(x))))

    def plain(model: Model) -> None:
        for number in "012":
            replaced(model, f"layers.{number}.mlp", forward=lambda s, x: s.down(nn.SiLU.forward(s, s.gate(x))))

    first = probe.compare(run(changed(plain)), run(changed(change))).first_divergence
    assert first is not None and first.b[0].path == "layers.1.mlp.own"


def test_a_layer_less_inside_a_container_without_a_partner(run: Recorder) -> None:
    """The container runs still when the layer ends, so that it is no call between."""

    class Trunk(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class Whole(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.norm(self.trunk(self.embed(ids))))

    def held(model: Model) -> None:
        trunk = Trunk()
        trunk.layers = model.layers
        vars(model).pop("layers", None)
        model.trunk, model.__class__ = trunk, Whole

    def shorter(model: Model) -> None:
        members = vars(model.layers)
        del members["1"]
        members["1"] = members.pop("2")

    first = probe.compare(run(changed(held)), run(changed(shorter))).first_divergence
    assert first is not None and first.kind is Kind.MISSING
    assert first.evidence[0].startswith("B has one layer less")


class Tail(nn.Module):
    """Embeds the words once more, by a module of its own, and holds the layers behind that."""

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        x = x + self.again(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Nested(GPT):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.embed(ids))
        return self.head(self.norm(self.tail(Tensor(ids.data[:, ::-1].copy()), x)))


class Flat(GPT):
    """Uses one embedding twice."""

    times = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.embed(ids))
        x = (x + self.embed(Tensor(ids.data[:, ::-1].copy()))) * self.times
        for layer in self.behind:
            x = layer(x)
        return self.head(self.norm(x))


def _flat(model: Model, times: float = 1.0) -> None:
    first, *behind = (getattr(model.layers, number) for number in "012")
    del model.layers
    model.__class__ = Flat
    model.first, model.behind = first, nn.ModuleList(*behind)
    vars(model)["times"] = times


def _nested(model: Model) -> None:
    _flat(model)
    layers, again = model.behind, nn.Embedding(*model.embed.weight.shape)
    del model.behind
    again.weight = model.embed.weight
    model.__class__ = Nested
    model.tail = Tail(again=again, layers=layers)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_call_that_another_module_makes_on_the_other_side_is_not_blamed(run: Recorder, swapped: bool) -> None:
    files = run(changed(_nested)), run(changed(lambda m: _flat(m, 1.01)))
    first = probe.compare(*files[:: -1 if swapped else 1]).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INTRODUCED, "")
    assert first.evidence[0].endswith("differs, what was there before it agrees")
