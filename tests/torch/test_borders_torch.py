"""Code bases draw the border of a module elsewhere: a norm that activates, one weight that holds gate and up in its own order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe
from probe.comparison.result import Kind, Verdict
from probe.records import Phase

TASKS = ("tensor", "statistics")
CHANNELS, CLASSES, WIDTH, INNER = 8, 5, 16, 24
Change = Callable[[nn.Module], object]


class Block(nn.Module):
    """Norm, activation, gate by the mean over the image, projection: what is made of the activation is no module's input as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.squeeze, self.project = nn.Conv2d(CHANNELS, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor, act: nn.Module) -> Tensor:
        y = act(self.norm(self.conv(x)))
        return x + self.project(y * self.squeeze(y.mean((2, 3), keepdim=True)).sigmoid())


class Images(nn.Module):
    """A flat list of blocks; one activation is called everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks, self.act = nn.ModuleList(Block() for _ in range(3)), nn.SiLU()
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, self.act)
        return self.head(x.mean((2, 3)))


class NormAct(nn.BatchNorm2d):
    """A norm that activates what it returns."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class OwnBlock(nn.Module):
    """The same, with the activation inside of the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), NormAct(CHANNELS)
        self.se, self.conv_pw = nn.Conv2d(CHANNELS, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv_dw(x))
        return x + self.conv_pw(y * self.se(y.mean((2, 3), keepdim=True)).sigmoid())


class OwnImages(nn.Module):
    """Stages of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.stages = nn.Sequential(nn.Sequential(OwnBlock()), nn.Sequential(OwnBlock(), OwnBlock()))
        self.classifier = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.stages(self.conv_stem(x)).mean((2, 3)))


class GatedMLP(nn.Module):
    """Gate and up, each a module."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.act_fn, self.down_proj = nn.SiLU(), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class PackedMLP(nn.Module):
    """Up and gate in one weight, up first."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.out, self.is_gate_first = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH), False

    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.proj(x).chunk(2, -1)
        if self.is_gate_first:
            up, gate = gate, up
        return x + self.out(F.silu(gate) * up)


def _stack(block: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(CLASSES, WIDTH), *(block() for _ in range(3)), nn.Linear(WIDTH, CLASSES))


def _images() -> tuple[nn.Module, nn.Module]:
    a, b = Images(), OwnImages()
    b.load_state_dict(dict(zip(b.state_dict(), a.state_dict().values(), strict=True)))
    return a, b


def _gated() -> tuple[nn.Module, nn.Module]:
    a, b = _stack(GatedMLP), _stack(PackedMLP)
    own, given = b.state_dict(), a.state_dict()
    for name in own:
        parts = [name.replace("proj", f"{part}_proj") for part in ("up", "gate")]
        own[name].copy_(
            torch.cat([given[part] for part in parts]) if "proj" in name else given[name.replace("out", "down_proj")]
        )
    return a, b


def _recorded(model: nn.Module, path: Path, task: str, shape: tuple[int, ...]) -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    probe.start(model, path, task=task)
    for number in range(2):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss.detach())
    probe.stop()
    return path


def _compared(
    folder: Path, task: str, which: str, change: Change | None = None, mapping: object = None
) -> probe.Comparison:
    torch.manual_seed(0)
    (a, b), shape = (_images(), (4, 3, 8, 8)) if which == "images" else (_gated(), (6, CLASSES))
    if change is not None:
        change(b)
    return probe.compare(
        _recorded(a, folder / "a.h5", task, shape), _recorded(b, folder / "b.h5", task, shape), mapping
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("which", ["images", "gated"])
def test_a_right_pair_is_aligned_without_a_mapping(tmp_path: Path, task: str, which: str) -> None:
    found = _compared(tmp_path, task, which)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def _eps(model: nn.Module) -> None:
    model.get_submodule("stages.1.0.bn1").eps = 1e-2


def _other_activation(model: nn.Module) -> None:
    model.get_submodule("stages.1.0.bn1").act = nn.GELU()


def _no_gate(model: nn.Module) -> None:
    block = model.get_submodule("stages.1.1")
    block.forward = lambda x: x + block.conv_pw(block.bn1(block.conv_dw(x)))


def _frozen(model: nn.Module) -> None:
    model.get_submodule("conv_stem").requires_grad_(False)


def _read_otherwise(model: nn.Module) -> None:
    model.get_submodule("2").is_gate_first = True


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("change", "phases", "path"),
    [
        (_eps, {Phase.FORWARD}, "blocks.1.norm"),
        (_other_activation, {Phase.FORWARD}, "stages.1.0.bn1.act"),
        (_no_gate, {Phase.FORWARD}, "blocks.2"),
        (_frozen, {Phase.GRADIENT}, "stem"),
    ],
)
def test_a_fault_behind_such_a_border_is_named(
    tmp_path: Path, task: str, change: Change, phases: set[Phase], path: str
) -> None:
    first = _compared(tmp_path, task, "images", change).first_divergence
    assert first is not None and (first.path, first.phase in phases) == (path, True), first


@pytest.mark.parametrize("task", TASKS)
def test_one_layer_that_reads_the_parts_otherwise_is_named(tmp_path: Path, task: str) -> None:
    first = _compared(tmp_path, task, "gated", _read_otherwise).first_divergence
    assert first is not None and (first.path, first.phase) == ("2.act_fn", Phase.FORWARD), first
    assert "gate and up change places (verified" in first.hint or task == "statistics"


@pytest.mark.parametrize("task", TASKS)
def test_parts_that_all_layers_read_otherwise_than_they_lie_are_wrong_weights(tmp_path: Path, task: str) -> None:
    def change(model: nn.Module) -> None:
        for number in (1, 2, 3):
            model.get_submodule(str(number)).is_gate_first = True

    first = _compared(tmp_path, task, "gated", change).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.INIT, Kind.INIT), first
    assert {ref.path for ref in first.a} == {"1.gate_proj", "1.up_proj"}


@pytest.mark.parametrize("task", TASKS)
def test_statistics_of_norms_whose_calls_are_not_compared_are_not_judged(tmp_path: Path, task: str) -> None:
    params = {f"bn1.{name}": f"norm.{name}" for name in ("weight", "bias")}
    mapping = {
        "OwnImages": {
            "conv_stem": "stem", "stages.0.0": "blocks.0", "stages.1.0": "blocks.1", "stages.1.1": "blocks.2", "classifier": "head",
        },
        "OwnBlock": {"conv_dw": "conv", "se": "squeeze", "conv_pw": "project", "params": params},
    }  # fmt: skip
    found = _compared(tmp_path, task, "images", mapping=mapping)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
