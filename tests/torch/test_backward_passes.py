"""Two losses with a backward pass each against one pass of their sum; gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

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
    assert found.warnings == (
        "gradients came in another number of backward passes on each side: their sums are compared",
    )


@pytest.mark.parametrize("task", TASKS)
def test_passes_in_another_order(tmp_path: Path, task: str) -> None:
    a = train(tmp_path / "a.h5", apart, task)
    found = probe.compare(a, train(tmp_path / "b.h5", the_other_way_round, task))
    assert found.verdict is Verdict.ALIGNED, found
    first = probe.compare(a, train(tmp_path / "c.h5", one_scaled, task)).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.LOSS, "")
    assert first.evidence[1] == "the gradient that comes back to them differs"


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


def test_gradients_that_no_hook_sees_are_said_to_be_on_one_side_only(tmp_path: Path) -> None:
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
    assert "parameter gradients are recorded on one side only: they are not compared" in found.warnings
