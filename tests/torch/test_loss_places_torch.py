"""Where a wrong loss is placed if the model itself was not called, or not recorded; outputs in other containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402


@dataclass
class Output:
    """Two of three have one shape."""

    logits: Tensor
    last: Tensor
    first: Tensor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.fc(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.blocks, self.head = nn.Linear(8, 16), nn.ModuleList(Block() for _ in range(3)), nn.Linear(16, 5)
        self.returned: Callable[[Tensor, Tensor, Tensor], Any] = lambda logits, last, first: logits

    def forward(self, x: Tensor) -> Any:
        hidden, seen = self.inp(x), []
        for block in self.blocks:
            seen.append(hidden := block(hidden))
        return self.returned(self.head(hidden), seen[-1], seen[0])


def whole(model: Net, x: Tensor) -> Tensor:
    made = model(x)
    return made.logits if isinstance(made, Output) else made[0] if isinstance(made, tuple) else made


def parts(model: Net, x: Tensor) -> Tensor:
    """The program calls the modules itself."""
    hidden = model.inp(x)
    for block in model.blocks:
        hidden = block(hidden)
    return model.head(hidden)


def by_hand(model: Net, x: Tensor) -> Tensor:
    """The head is code of the program's own."""
    hidden = model.inp(x)
    for block in model.blocks:
        hidden = block(hidden)
    return hidden @ model.head.weight.T + model.head.bias


def record(
    path: Path, call: Callable[[Net, Tensor], Tensor], change: Callable[[Net], object] | None = None, times: float = 1.0,
    returned: Callable[..., Any] | None = None, gives_loss: bool = True, **options: Any,
) -> Path:  # fmt: skip
    torch.manual_seed(0)
    model = Net()
    model.returned = returned or model.returned
    if change is not None:
        change(model)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe.start(model, path, **options)
    loss = nn.functional.cross_entropy(call(model, x), torch.arange(4)) * times
    loss.backward()
    optimizer.step()
    probe.step(loss=loss) if gives_loss else probe.step()
    probe.stop()
    return path


def eps(model: Net) -> None:
    model.blocks[0].norm.eps = 1e-2


@pytest.mark.parametrize("gives_loss", [True, False])
@pytest.mark.parametrize(("a", "b"), [(parts, parts), (whole, parts), (by_hand, by_hand), (whole, by_hand)])
def test_a_loss_of_a_model_that_was_not_called_is_no_fault_of_its_first_module(
    a: Callable[..., Tensor], b: Callable[..., Tensor], gives_loss: bool, tmp_path: Path
) -> None:
    one = record(tmp_path / "a.h5", a, gives_loss=gives_loss)
    assert probe.compare(one, record(tmp_path / "b.h5", b, gives_loss=gives_loss)).verdict is Verdict.ALIGNED
    found = probe.compare(one, record(tmp_path / "c.h5", b, times=1.5, gives_loss=gives_loss)).first_divergence
    assert found is not None and found.path == "" and found.phase in (Phase.LOSS, Phase.GRADIENT)
    assert not any("what it is computed from" in text or "the model's outputs" in text for text in found.evidence)
    place = probe.compare(one, record(tmp_path / "d.h5", b, eps, gives_loss=gives_loss)).first_divergence
    assert place is not None and place.path == "blocks.0.norm"


@pytest.mark.parametrize("modules", [["inp"], ["blocks.0*"]])
def test_what_the_loss_is_made_of_was_not_recorded(modules: list[str], tmp_path: Path) -> None:
    def late(model: Net) -> None:
        model.blocks[1].norm.eps = 1e-2

    one = record(tmp_path / "a.h5", whole, modules=modules)
    assert probe.compare(one, record(tmp_path / "b.h5", whole, modules=modules)).verdict is Verdict.ALIGNED
    for number, (change, times) in enumerate([(None, 1.5), (late, 1.0)]):
        other = record(tmp_path / f"{number}.h5", whole, change, times, modules=modules)
        found = probe.compare(one, other)
        assert found.verdict is Verdict.UNDECIDED and found.first_divergence is None
        assert any("were not compared" in text for text in found.doubts)


@pytest.mark.parametrize("change", [None, eps])
def test_a_dataclass_and_a_tuple_of_outputs_are_compared(
    change: Callable[[Net], object] | None, tmp_path: Path
) -> None:
    a = record(tmp_path / "a.h5", whole, returned=Output)
    b = record(tmp_path / "b.h5", whole, change, returned=lambda *made: made)
    found = probe.compare(a, b)
    first = found.first_divergence
    assert (first.path if first is not None else None) == (None if change is None else "blocks.0.norm")
    pairs = [(slot.slot_a, slot.slot_b) for slot in found.slots if not slot.path_a and slot.role is Role.OUTPUT]
    assert pairs == [("logits", "0"), ("last", "1"), ("first", "2")]
