"""Clipping: what both sides divide their gradients by is a norm, and that is rounded; and which gradients are clipped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import probe
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from probe.records import Phase

torch = pytest.importorskip("torch")

from facts import one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402

Clip = Callable[[nn.Module], None]
NORM = 1e-3


class Net(nn.Module):
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


def record(path: Path, clip: Clip, task: str = "statistics") -> Path:
    torch.manual_seed(0)
    net = Net()
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


def compared(
    folder: Path, clip: Clip, task: str = "statistics", a: Clip = lambda net: scale(net.parameters())
) -> Comparison:
    return probe.compare(record(folder / "a.h5", a, task), record(folder / "b.h5", clip, task))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("apart", [1.5e-5, -3e-4])
def test_a_norm_that_one_side_sums_one_after_another_is_rounding(tmp_path: Path, apart: float, task: str) -> None:
    result = compared(tmp_path, lambda net: scale(net.parameters(), 1 + apart), task)
    assert result.verdict is Verdict.ALIGNED, result.divergences
    said = f"all gradients that the optimizer used are longer or shorter in B by {abs(apart):.1e}: the norm that both are clipped by is a sum"
    assert any(text.startswith(said) for text in result.warnings), result.warnings


def test_more_than_so_many_squares_round_to_is_wrong(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda net: scale(net.parameters(), 1.005))
    assert result.verdict is Verdict.DIVERGED
    assert "all by the same factor: B is 1.005 times A" in result.divergences[0].evidence


def test_a_factor_of_gradients_that_are_not_clipped_is_no_norm(tmp_path: Path) -> None:
    def left(net: nn.Module) -> None:
        pass

    def times(net: nn.Module) -> None:
        for parameter in net.parameters():
            parameter.grad.mul_(1 + 3e-5)

    result = compared(tmp_path, times, a=left)
    assert result.verdict is Verdict.DIVERGED
    assert result.divergences[0].phase is Phase.UPDATE


def test_one_gradient_that_is_off_by_itself_is_no_norm(tmp_path: Path) -> None:
    def clip(net: Net) -> None:
        scale(net.parameters())
        net.inner.weight.grad.mul_(1 + 3e-4)

    result = compared(tmp_path, clip)
    assert result.divergences[0].a[0].path == "inner"


def test_groups_that_are_clipped_by_themselves_are_said(tmp_path: Path) -> None:
    """So PaddlePaddle's optimizers clip where they are given several groups."""

    def each_group(net: Net) -> None:
        scale(p for p in net.parameters() if p.ndim > 1)
        scale(p for p in net.parameters() if p.ndim == 1)

    hint = str(compared(tmp_path, each_group).divergences[0].hint)
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
    assert "to a norm of 0.001 (before" in hints[0]
    assert "to a norm of 0.001006 (before" in hints[0]
