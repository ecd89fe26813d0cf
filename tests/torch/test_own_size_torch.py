"""Optimizers that divide by a gradient's own size make whole updates of rounding, also those that keep one state, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTH, LAYERS = 32, 3
MAPPING = {"Packed": {"qkv": ["q", "k", "v"]}}


class Attention(torch.nn.Module):
    """Of which the softmax does not see the bias of the keys: its gradient is rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in (q, k, v))
        return self.out(self.mixed(q, k, v).transpose(1, 2).flatten(2))

    def mixed(self, q: Any, k: Any, v: Any) -> Any:
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        return (q @ k.mT * (WIDTH // 4) ** -0.5).masked_fill(later, -torch.inf).softmax(-1) @ v


class Apart(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return x + self.attend(self.q(x), self.k(x), self.v(x))


class Packed(Attention):
    def __init__(self, other: Apart) -> None:
        super().__init__()
        self.out = other.out
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        for mine, theirs in zip(self.qkv.parameters(), zip(*(each.parameters() for each in (other.q, other.k, other.v)), strict=True), strict=True):  # fmt: skip
            mine.data = torch.cat([each.data for each in theirs])

    def forward(self, x: Any) -> Any:
        return x + self.attend(*self.qkv(x).chunk(3, -1))

    def mixed(self, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Signs(torch.optim.Optimizer):
    """Lion: every element moves by the learning rate; without momentum it keeps no state at all."""

    def __init__(self, parameters: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                average = parameter.grad
                if group["momentum"]:
                    state = self.state[parameter]
                    average = state.setdefault("exp_avg", torch.zeros_like(parameter))
                    average.lerp_(parameter.grad, 1 - group["momentum"])
                parameter.add_(average.sign(), alpha=-group["lr"])


def record(path: Path, make: Callable[[Any], Any], is_packed: bool = False, seed: int = 1) -> Path:
    torch.manual_seed(seed)
    layers, last = [Apart() for _ in range(LAYERS)], torch.nn.Linear(WIDTH, 8)
    model = torch.nn.Sequential(*(map(Packed, layers) if is_packed else layers), last)
    optimizer = make(model.parameters())
    torch.manual_seed(9)
    with probe.capture(model, path):
        for _ in range(2):
            loss = (model(torch.randn(4, 12, WIDTH)) - torch.randn(4, 12, 8)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss.item())
    return path


KINDS: dict[str, Callable[..., Any]] = {
    "adagrad": lambda parameters, lr=1e-2: torch.optim.Adagrad(parameters, lr=lr),
    "rmsprop": lambda parameters, lr=1e-3: torch.optim.RMSprop(parameters, lr=lr, eps=1e-20),
    "lion": Signs,
    "signs": lambda parameters, lr=1e-3: Signs(parameters, lr, momentum=0),
}


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bias_of_the_keys_is_no_fault_of_the_optimizer(tmp_path: Path, kind: str, seed: int) -> None:
    a, b = (record(tmp_path / f"{is_packed}.h5", KINDS[kind], is_packed, seed) for is_packed in (False, True))
    found = probe.compare(a, b, MAPPING)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


@pytest.mark.parametrize("kind", ["adagrad", "lion"])
def test_another_learning_rate_is(tmp_path: Path, kind: str) -> None:
    a = record(tmp_path / "a.h5", KINDS[kind])
    b = record(tmp_path / "b.h5", lambda parameters: KINDS[kind](parameters, lr=1.5e-2), True)
    first = probe.compare(a, b, MAPPING).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)


def test_gradient_descent_does_not_divide(tmp_path: Path) -> None:
    """One parameter's update that is wrong is evidence there: nothing makes much of a small gradient."""

    def faulty(parameters: Iterable[Any]) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)

        def turn(*_: Any) -> None:
            gradient = optimizer.param_groups[0]["params"][1].grad
            gradient += 0.7 * gradient.norm() * torch.randn(gradient.shape).sign() / gradient.numel() ** 0.5

        optimizer.register_step_pre_hook(turn)
        return optimizer

    a = record(tmp_path / "a.h5", lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    b = record(tmp_path / "b.h5", faulty)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "0.out"), first


class Newton(torch.optim.Optimizer):
    """Muon written by hand: a matrix is divided as a whole, in bfloat16, which rounds otherwise than torch's own does."""

    def __init__(self, parameters: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__([each for each in parameters if each.ndim == 2], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 0.05)
                x = parameter.grad.lerp(average, 0.95).bfloat16()
                x = x.T if x.size(0) > x.size(1) else x
                x = x / x.norm().clamp(min=1e-7)
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
                x = x.T if x.shape != parameter.shape else x
                scale = max(1.0, parameter.size(0) / parameter.size(1)) ** 0.5
                parameter.add_(x.float(), alpha=-group["lr"] * scale)


def muon(parameters: Iterable[Any]) -> Any:
    return torch.optim.Muon([each for each in parameters if each.ndim == 2], lr=1e-2, weight_decay=0.0)


def test_a_matrix_that_is_divided_as_a_whole_is_no_matter_of_single_elements(tmp_path: Path) -> None:
    found = probe.compare(record(tmp_path / "a.h5", muon), record(tmp_path / "b.h5", Newton))
    assert all("as one vector" not in text for each in found.divergences for text in each.evidence), found
