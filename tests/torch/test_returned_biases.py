"""Layers that return their bias for the caller to add, as Megatron's do with ``skip_bias_add``, against ``nn.Linear``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.numbers.sketch import along, axes_of, outer, sketch  # noqa: E402

WIDTH, TOKENS = 12, 10
TASKS = ["tensor", "statistics"]


class RowParallelLinear(nn.Linear):
    adds_bias = False

    def forward(self, x: Tensor) -> Any:
        return functional.linear(x, self.weight, self.bias if self.adds_bias else None), self.bias


class MLP(nn.Module):
    """Both ways: what its second layer returns, it returns."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), layer(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(functional.gelu(self.fc1(x)))


class Block(nn.Module):
    times = 1

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.proj, self.mlp = nn.LayerNorm(WIDTH), layer(WIDTH, WIDTH), MLP(layer)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.added(self.proj(x))
        return x + self.added(self.mlp(self.norm(x)))

    def added(self, found: Any) -> Tensor:
        return found[0] + self.times * found[1] if isinstance(found, tuple) else found


class Model(nn.Module):
    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(layer) for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _models() -> tuple[Any, Any]:
    torch.manual_seed(3)
    a = Model(nn.Linear)
    for name, parameter in a.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    b = Model(RowParallelLinear)
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    return a, b


def _record(model: Any, path: Path, task: str, tokens: int = TOKENS, **how: Any) -> Path:
    torch.manual_seed(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, optimizer=optimizer, task=task, **how):
        for _ in range(2):
            loss = model(torch.randn(2, tokens, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.log("loss", loss.item())
            probe.step()
    return path


def _compared(folder: Path, task: str, plant: Callable[[Any], None] = lambda model: None, **how: Any) -> Comparison:
    a, b = _models()
    plant(b)
    return probe.compare(_record(a, folder / "a.h5", task, **how), _record(b, folder / "b.h5", task, **how))


@pytest.mark.parametrize("phases", [None, ["forward"]])
@pytest.mark.parametrize("task", TASKS)
def test_who_adds_a_bias_is_no_difference(tmp_path: Path, task: str, phases: list[str] | None) -> None:
    found = _compared(tmp_path, task, **({} if phases is None else {"phases": phases}))
    assert not found.divergences and found.verdict is Verdict.ALIGNED, found.first_divergence
    turned = probe.compare(tmp_path / "b.h5", tmp_path / "a.h5")
    assert turned.verdict is Verdict.ALIGNED, turned.first_divergence
    for path in ("blocks.1.proj", "blocks.1.mlp.fc2", "blocks.1.mlp"):
        errors = [each.metrics.rel_l2 for each in found[path] if each.role.label == "output"]
        assert len(errors) == 2 and max(errors) < 1e-6, (path, errors)


def test_values_are_those_with_the_bias(tmp_path: Path) -> None:
    found = _compared(tmp_path, "tensor")
    (slot,) = (each for each in found["blocks.0.proj"] if (each.step, each.role.label) == (0, "output"))
    a, b = slot.values()
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_bias_whose_sketch_has_other_keys_than_along_the_output(tmp_path: Path) -> None:
    """As many tokens as channels: the elements are known in the first step alone, and what cannot be judged is no difference."""
    found = _compared(tmp_path, "statistics", tokens=WIDTH)
    assert not found.divergences, found.first_divergence
    first, second = (each.metrics for each in found["blocks.1.proj"] if each.role.label == "output")
    assert first.rel_l2 < 1e-6 and not second.is_known


def _no_bias(model: Any) -> None:
    model.blocks[1].times = 0


def _twice(model: Any) -> None:
    model.blocks[1].times = 2


def _in_the_layer_too(model: Any) -> None:
    model.blocks[1].proj.adds_bias = True


def _another(model: Any) -> None:
    model.blocks[1].mlp.fc2.bias.data[3] += 0.2


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("plant", "phase", "path"),
    [
        (_no_bias, "forward", "blocks.1"), (_twice, "forward", "blocks.1"), (_in_the_layer_too, "forward", "blocks.1.proj"),
        (_another, "init", "blocks.1.mlp.fc2"),
    ],
)  # fmt: skip
def test_a_bias_that_is_wrong_or_wrongly_added_is_named(
    tmp_path: Path, plant: Callable[[Any], None], phase: str, path: str, task: str
) -> None:
    first = _compared(tmp_path, task, plant).first_divergence
    assert first is not None and (first.phase.label, first.path) == (phase, path)


def test_biases_that_both_sides_return_are_compared_as_they_are(tmp_path: Path) -> None:
    _, b = _models()
    files = [_record(copy.deepcopy(b), tmp_path / f"{name}.h5", "tensor") for name in "ab"]
    found = probe.compare(*files)
    slots = [each.slot_a for each in found["blocks.0.proj"] if (each.step, each.role.label) == (0, "output")]
    assert found.verdict is Verdict.ALIGNED and slots == ["0", "1"]


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 1, 70), (5, 4, 1), (6, 6)])
def test_the_sketch_of_a_vector_along_the_last_axis(shape: tuple[int, ...]) -> None:
    vector = np.random.default_rng(0).normal(size=shape[-1])
    axes = axes_of(shape)
    own = sketch(vector) if shape[-1] == 1 else along(axes[-1], vector)
    others = axes if shape[-1] == 1 else axes[:-1]
    found = outer([own, *(along(axis, np.ones(axis.size)) for axis in others)])
    np.testing.assert_allclose(found, sketch(np.broadcast_to(vector, shape)), atol=1e-9)
