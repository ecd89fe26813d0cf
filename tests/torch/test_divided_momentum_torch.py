"""States that sum up gradients divided by their own size, as RMSprop's momentum: vanishing gradients have all of their rounding there."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from facts import one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTH = 32


class Other(nn.Linear):
    """Adds up in two parts."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x[..., half:] @ self.weight[:, half:].T + (x[..., :half] @ self.weight[:, :half].T + self.bias)


def train(path: Path, kind: type[nn.Linear], task: str, *, times: float = 1.0, centered: bool = False) -> Path:
    """Record two steps; ``times`` multiplies the momentum behind the first update."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(kind(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(3)])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9, centered=centered)
    optimizer.register_step_post_hook(lambda *_: optimizer.state[model[1][0].weight]["momentum_buffer"].mul_(times))
    with probe.capture(model, path, task=task):
        for step in range(2):
            given = probe.make_inputs({"x": f"float32[16,{WIDTH}]", "y": f"float32[16,{WIDTH}]"}, seed=step, to="torch")
            given["x"][:, :2] = (
                1.0  # what is added to all rows, BatchNorm takes away: the gradients of these weights are rounding
            )
            loss = (model(given["x"]) - given["y"]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("centered", [False, True])
def test_rounding_of_vanishing_gradients_is_no_fault_of_such_a_state(tmp_path: Path, task: str, centered: bool) -> None:
    a = train(tmp_path / "a.h5", nn.Linear, task, centered=centered)
    found = probe.compare(a, train(tmp_path / "b.h5", Other, task, centered=centered))
    assert found.verdict is Verdict.ALIGNED, found


def classify(path: Path, kind: type[nn.Linear], seed: int, momentum: float) -> Path:
    """Record three steps under autocast."""
    torch.manual_seed(seed)
    layers = kind(16, 8), nn.Tanh(), kind(8, 8), nn.LayerNorm(8), kind(8, 2)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, momentum=momentum)
    with probe.capture(model, path):
        for step in range(3):
            given = torch.Generator().manual_seed(step)
            x, y = torch.randn(8, 16, generator=given), torch.randint(0, 2, (8,), generator=given)
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("seed", [0, 3, 9])
def test_a_state_is_as_long_as_the_update_that_is_made_of_it(tmp_path: Path, seed: int) -> None:
    """Of few elements and 16-bit gradients both are off by much: what is noise of the one is noise of the other."""
    a, b = (classify(tmp_path / f"{kind.__name__}.h5", kind, seed, 0.5) for kind in (nn.Linear, Other))
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found


def test_another_momentum_under_autocast(tmp_path: Path) -> None:
    found = probe.compare(classify(tmp_path / "a.h5", nn.Linear, 0, 0.5), classify(tmp_path / "b.h5", Other, 0, 0.9))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase) == (1, Phase.UPDATE), found


def test_another_state_is_found(tmp_path: Path) -> None:
    found = probe.compare(
        train(tmp_path / "a.h5", nn.Linear, "tensor"), train(tmp_path / "b.h5", Other, "tensor", times=1.2)
    )
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "1.0")
    assert first.evidence[0] == "the optimizer's momentum_buffer differs (B is 1.2 times A), gradient and update agree"
