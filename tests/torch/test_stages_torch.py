"""A model against its stages, which the program calls in turn: what it hands from one to the next is no batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Kind, Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTH = 32
MAPPING = {"TopLayer": {"a.layers.0": "layers.0", "b.layers.0": "layers.1", "b.norm": "norm", "b.head": "head"}}


class Sine(torch.nn.Module):
    """Makes an error five times as large: after a few of them, that of rounding is beyond what one call could make."""

    def forward(self, x: Any) -> Any:
        return (5 * x).sin()


class Block(torch.nn.Module):
    """Adds up in another order where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.is_split = torch.nn.Linear(WIDTH, WIDTH), False
        self.waves = torch.nn.Sequential(*(Sine() for _ in range(4)))

    def forward(self, x: Any) -> Any:
        if not self.is_split:
            return self.waves(self.up(x))
        parts = [torch.nn.functional.linear(x[..., half], self.up.weight[:, half])
                 for half in (slice(WIDTH // 2), slice(WIDTH // 2, None))]  # fmt: skip
        return self.waves(parts[0] + parts[1] + self.up.bias)


class Stage(torch.nn.Module):
    def __init__(self, layers: list[Any], norm: Any = None, head: Any = None) -> None:
        super().__init__()
        self.layers, self.norm, self.head = torch.nn.ModuleList(layers), norm, head
        self.is_normed, self.factor = True, 1.0

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(self.factor * x)
        if self.head is None:
            return x
        return self.head(self.norm(x) if self.is_normed else x)


def record(
    path: Path, task: str, *, are_stages: bool, fault: str = "", frozen: bool = False, factor: float = 1.0
) -> Path:
    torch.manual_seed(0)
    blocks, norm, head = [Block(), Block()], torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 8)
    whole = Stage(blocks, norm, head)
    stages = torch.nn.ModuleDict({"a": Stage(blocks[:1]), "b": Stage(blocks[1:], norm, head)})
    blocks[0].is_split, stages["b"].is_normed = are_stages, fault != "norm"
    blocks[0].requires_grad_(not frozen)
    for each in (whole, stages["a"], stages["b"]):
        each.factor = factor
    optimizer = torch.optim.SGD([each for each in whole.parameters() if each.requires_grad], lr=1e-3)
    x, y = torch.randn(1, 16, WIDTH), torch.randn(1, 16, 8)
    with probe.capture(stages if are_stages else whole, path, task=task):
        for given, wanted in zip(x, y, strict=True):
            handed = stages["a"](given) if are_stages else given
            handed = handed * 1.01 if fault == "scale" else handed
            loss = ((stages["b"](handed) if are_stages else whole(given)) - wanted).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss.item())
    return path


def compared(folder: Path, task: str, **options: Any) -> Any:
    same = {name: value for name, value in options.items() if name != "fault"}
    a = record(folder / "a.h5", task, are_stages=False, **same)
    return probe.compare(a, record(folder / "b.h5", task, are_stages=True, **options), MAPPING)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("options", [{"frozen": True}, {"factor": 1.1}])
def test_rounding_is_handed_on(tmp_path: Path, task: str, options: dict[str, Any]) -> None:
    """As it is, though it does not learn, or as the program makes something of it, and it learns."""
    found = compared(tmp_path, task, **options)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_done_to_it_on_the_way_is_the_programs_fault(tmp_path: Path, frozen: bool) -> None:
    found = compared(tmp_path, "statistics", fault="scale", frozen=frozen)
    first = found.first_divergence
    assert (first.phase, first.kind, first.path) == (Phase.FORWARD, Kind.INTRODUCED, "layers.1")
    assert first.evidence[:2] == (
        "the input 0 of layers.1 differs, and is no part of the batch",
        "A hands it what layers.0 returned, what B hands it no module returned",
    )
    assert [each.path for each in found.divergences] == ["layers.1"]
    assert found.inputs.different == ()


def test_a_module_that_a_stage_leaves_out_is_named(tmp_path: Path) -> None:
    first = compared(tmp_path, "statistics", fault="norm").first_divergence
    assert (first.kind, first.path) == (Kind.MISSING, "norm")
    assert first.evidence[0] == (
        "norm is called on A only, between layers.1 and head: B has b.norm and does not call it"
    )
