"""Convolutions that hold their kernels as [h, w, in, out], found without a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTHS = (3, 8, 12)


class Channels(torch.nn.Module):
    """A convolution as other frameworks have it: channels last, and so its kernel."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(other.weight.detach().permute(2, 3, 1, 0).contiguous())

    def forward(self, x: Any) -> Any:
        turned = self.kernel.permute(3, 2, 0, 1)
        return torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), turned, padding=1).permute(0, 2, 3, 1)


class Net(torch.nn.Module):
    def __init__(self, convolutions: list[Any], *, is_last: bool) -> None:
        super().__init__()
        self.convolutions, self.is_last = torch.nn.ModuleList(convolutions), is_last
        self.head = torch.nn.Linear(WIDTHS[-1], 5)

    def forward(self, x: Any) -> Any:
        for each in self.convolutions:
            x = each(x).relu()
        return self.head(x.mean((1, 2) if self.is_last else (2, 3)))


def record(folder: Path, task: str, *, is_turned: bool = False) -> tuple[Path, Path]:
    torch.manual_seed(0)
    plain = Net([torch.nn.Conv2d(*two, 3, padding=1, bias=False) for two in zip(WIDTHS, WIDTHS[1:], strict=False)], is_last=False)  # fmt: skip
    other = Net([Channels(each) for each in plain.convolutions], is_last=True)
    other.head.load_state_dict(plain.head.state_dict())
    if is_turned:
        other.convolutions[1].kernel.data = other.convolutions[1].kernel.data.transpose(0, 1).contiguous()
    paths = folder / "a.h5", folder / "b.h5"
    x = torch.randn(4, 3, 6, 6)
    for path, model, given in zip(paths, (plain, other), (x, x.permute(0, 2, 3, 1).contiguous()), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.capture(model, path, task=task):
            loss = model(given).pow(2).mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss.item())
    return paths


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_square_kernel_lies_as_its_values_say(tmp_path: Path, task: str) -> None:
    found = probe.compare(*record(tmp_path, task))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    slots = {(s.slot_a, s.slot_b) for s in found["convolutions.1"] if s.phase is Phase.INIT}
    assert slots == {("weight", "kernel")}


def test_the_odd_kernel_is_the_fault_and_no_other_layout(tmp_path: Path) -> None:
    first = probe.compare(*record(tmp_path, "tensor", is_turned=True)).first_divergence
    assert first is not None
    assert (first.phase, first.path) == (Phase.INIT, "convolutions.1")
