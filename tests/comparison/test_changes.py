"""What one side does otherwise: what is said where it makes no difference, and where nothing shows whether it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Kind, Verdict
from probe.report.text import render
from tests.comparison.planted import Clean, Model, Recorder, changed
from tests.toys import GPT, gpt


def swapped(model: Model) -> None:
    members = vars(model.layers)
    members["0"], members["1"] = members["1"], members["0"]


def in_the_old_order(model: Model) -> None:
    """Swap two layers, and run them where they ran before: only their names are others."""

    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for number in "102":
            x = getattr(self.layers, number)(x)
        return self.head(self.norm(x))

    swapped(model)
    model.__class__ = type("GPT", (GPT,), {"forward": forward})


SWAPPED = "layers.0 and layers.1 (Block) are swapped: what A has at the one, B has at the other"


def test_layers_that_only_have_other_names_are_a_note(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean(), run(changed(in_the_old_order), steps=2))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert SWAPPED in found.warnings


def test_layers_of_which_it_was_not_recorded_where_they_run_are_a_doubt(run: Recorder) -> None:
    phases = ["init", "gradient", "update"]
    found = probe.compare(run(gpt(), phases=phases), run(changed(swapped), phases=phases))
    assert found.verdict is not Verdict.ALIGNED
    assert any(text.startswith(f"{SWAPPED}; whether they run there too was not recorded") for text in found.doubts)


class Functional(nn.Module):
    """silu(up x), as a function or as a module; what is asked for stands around it."""

    def __init__(self, *, act: bool, **others: nn.Module) -> None:
        nn.manual_seed(3)
        super().__init__(up=nn.Linear(4, 4), down=nn.Linear(4, 4), **({"act": nn.SiLU()} if act else {}), **others)
        self.function = None if act else nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = self.act(x) if self.function is None else nn.SiLU.forward(self.function, x)
        if hasattr(self, "same"):
            x = self.same(x)
        return self.down(x)


class Identity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def step(model: Any, optimizer: Any, number: int) -> Tensor:
    loss = model(Tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))).sum()
    loss.backward()
    return loss


class Hidden:
    """Holds a module that the model's list of modules does not have."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module


@pytest.fixture
def pair(run: Recorder) -> tuple[Any, Any]:
    class AsFunction(Functional):
        def __init__(self) -> None:
            super().__init__(act=True)
            vars(self)["hidden"] = Hidden(vars(self).pop("act"))

        def forward(self, x: Tensor) -> Tensor:
            return self.down(type(self.hidden.module).forward(self.hidden.module, self.up(x)))

    first = Functional(act=True, same=Identity())
    return run(first, step=step), run(AsFunction(), step=step)


def test_what_needs_no_partner_is_listed_apart(pair: tuple[Any, Any]) -> None:
    found = probe.compare(*pair, min_coverage=1.0)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.doubts)
    assert (found.unneeded_a, found.unneeded_b) == (("act", "same"), ())
    assert (found.only_a, found.only_b, found.coverage.only_a) == ((), (), 0)
    assert "Need no partner: act, same in A\n" in f"{render(found).plain}\n"
    assert found.as_json()["unneeded_a"] == ["act", "same"]


def test_what_is_to_blame_needs_a_partner(run: Recorder) -> None:
    class Squeezed(Functional):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.extra(self.act(self.up(x))))

    a, b = Functional(act=True), Squeezed(act=True, extra=nn.SiLU())
    found = probe.compare(run(a, step=step), run(b, step=step))
    first = found.first_divergence
    assert first is not None and (first.kind, first.b[0].path) == (Kind.MISSING, "extra")
    assert (found.only_b, found.unneeded_b) == (("extra",), ())
