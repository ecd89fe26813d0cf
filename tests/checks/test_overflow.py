"""Overflow in one recording: where the first NaN or Inf was born, and how near numbers come to the ends of their dtypes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.checks.outcome import State, Status
from probe.checks.overflow import Overflow, check_overflow
from probe.checks.overflow.birth import Origin
from probe.errors import StoreError
from probe.records import Phase, Role
from tests.cli.running import run as run_command
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor, operation
from tests.toys import MLP, Block, batch, gpt, loss_of, module, plain_step, record, replaced

Model = nn.Module


def spoiled(x: Tensor, value: float = math.nan) -> Tensor:
    """Return a tensor of which one element is another one."""
    data = x.data.copy()
    data.reshape(-1)[3] = value
    return operation(data, (x, lambda g: g))


def with_bad_gradient(x: Tensor) -> Tensor:
    return operation(x.data, (x, lambda g: g * np.float32(math.inf)))


def in_norm(model: Model) -> None:
    replaced(model, "layers.1.norm2", forward=lambda self, x: spoiled(nn.RMSNorm.forward(self, x)))


def between_children(model: Model) -> None:
    replaced(model, "layers.1.mlp", forward=lambda s, x: s.down(spoiled(s.act(s.gate(x)) * s.up(x), math.inf)))


def behind_children(model: Model) -> None:
    replaced(model, "layers.1.mlp", forward=lambda s, x: spoiled(MLP.forward(s, x)))


def in_weight(model: Model) -> None:
    module(model, "layers.1.mlp.up").weight.data[0, 0] = math.nan


def in_backward(model: Model) -> None:
    replaced(model, "layers.1.norm2", forward=lambda self, x: with_bad_gradient(nn.RMSNorm.forward(self, x)))


def in_backward_between(model: Model) -> None:
    replaced(model, "layers.1", forward=lambda s, x: with_bad_gradient(Block.forward(s, x)))


FAULTS: dict[str, tuple[Callable[[Model], None], Origin, str, Phase, Role]] = {
    "a module": (in_norm, Origin.MODULE, "layers.1.norm2", Phase.FORWARD, Role.OUTPUT),
    "code between two children": (between_children, Origin.CODE, "layers.1.mlp", Phase.FORWARD, Role.INPUT),
    "code behind all children": (behind_children, Origin.MODULE, "layers.1.mlp", Phase.FORWARD, Role.OUTPUT),
    "a weight": (in_weight, Origin.WEIGHT, "layers.1.mlp.up", Phase.INIT, Role.PARAM),
    "backward of a module": (in_backward, Origin.BACKWARD, "layers.1.norm2", Phase.BACKWARD, Role.GRAD_INPUT),
}  # fmt: skip


def recorded(path: Path, change: Callable[[Model], None] | None = None, **options: Any) -> Path:
    model = gpt()
    if change is not None:
        change(model)
    with np.errstate(all="ignore"):
        return record(path, model, **options)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("fault", FAULTS)
def test_where_it_is_born(tmp_path: Path, fault: str, task: str) -> None:
    change, origin, path, phase, role = FAULTS[fault]
    found = check_overflow(recorded(tmp_path / "a.h5", change, task=task))
    birth = found.birth
    assert found.status is Status.FOUND and birth is not None and birth.first is not None
    assert (birth.origin, birth.path, birth.step, birth.phase, birth.first.role) == (origin, path, 0, phase, role)
    assert birth.first.bad > 0 and all(each.bad == 0 for each in birth.made_from)
    assert birth.last_finite is None or birth.last_finite.bad == 0


def test_what_it_was_made_from(tmp_path: Path) -> None:
    birth = check_overflow(recorded(tmp_path / "a.h5", between_children)).birth
    assert birth is not None and birth.first is not None and birth.last_finite is not None
    made = [(each.path, each.role.label) for each in birth.made_from]
    assert made == [("layers.1.mlp", "input"), ("layers.1.mlp.gate", "output"), ("layers.1.mlp.act", "output"),
                    ("layers.1.mlp.up", "output")]  # fmt: skip
    assert (birth.last_finite.path, birth.last_finite.role) == ("layers.1.mlp.up", Role.OUTPUT)
    assert (birth.first.posinf, birth.first.nan) == (1, 0)


def test_the_gradient_that_arrives_at_a_block_is_the_code_behind_it(tmp_path: Path) -> None:
    birth = check_overflow(recorded(tmp_path / "a.h5", in_backward_between)).birth
    assert birth is not None and birth.phase is Phase.BACKWARD and birth.path == "layers.1"


def with_loss(value: float) -> Callable[[Model, nn.Optimizer, int], Any]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Any:
        loss = spoiled(loss_of(model(batch(number)), batch(number)).reshape(1, 1) + np.zeros((2, 2), np.float32), value)
        return float(loss.data.sum())

    return step


def test_a_loss_that_is_nan_though_the_model_returns_finite_numbers(tmp_path: Path) -> None:
    found = check_overflow(recorded(tmp_path / "a.h5", step=with_loss(math.nan)))
    assert found.birth is not None and (found.birth.origin, found.birth.first) == (Origin.LOSS, None)
    assert found.birth.last_finite is not None and found.birth.last_finite.path == ""


def test_a_state_of_the_optimizer(tmp_path: Path) -> None:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Any:
        loss = plain_step(model, optimizer, number)
        module(model, "layers.1.norm1").weight.data[...] = math.nan if number else 1.0
        return loss

    with np.errstate(all="ignore"):
        found = check_overflow(record(tmp_path / "a.h5", model, steps=2, step=step, optimizer=optimizer))
    assert found.birth is not None and found.birth.origin in (Origin.OPTIMIZER, Origin.WEIGHT)
    assert found.birth.path == "layers.1.norm1" and found.birth.phase is Phase.UPDATE


class Scores(nn.Module):
    """A softmax that is given scores with a mask."""

    def forward(self, scores: Tensor) -> Tensor:
        data = np.exp(scores.data - scores.data.max(-1, keepdims=True))
        return Tensor((data / data.sum(-1, keepdims=True)).astype(np.float32))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__(weight=nn.Parameter(np.ones((4, 4), np.float32)), softmax=Scores())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.softmax(x * self.weight + mask)


def masked(path: Path, mask: np.ndarray) -> Path:
    with np.errstate(all="ignore"), probe.capture(model := Attending(), path):
        model(Tensor(np.arange(16, dtype=np.float32).reshape(4, 4)), mask=Tensor(mask))
        probe.step()
    return path


def test_minus_inf_that_hides_positions_is_no_fault(tmp_path: Path) -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    found = check_overflow(masked(tmp_path / "a.h5", mask))
    assert found.status is Status.CLEAN and found.birth is None
    assert found.lines[0].said.code == "all-finite" and found.lines[0].said.facts["masks"] == 2


def test_a_row_that_is_masked_throughout_is_named_as_the_cause(tmp_path: Path) -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    mask[2] = -np.inf
    found = check_overflow(masked(tmp_path / "a.h5", mask))
    assert found.birth is not None and (found.birth.origin, found.birth.path) == (Origin.MODULE, "softmax")
    assert found.advice is not None and found.advice.code == "masked-throughout"


class Half(nn.Module):
    """A product in float16."""

    def __init__(self, size: float) -> None:
        super().__init__(weight=nn.Parameter(np.full((8,), size, np.float16)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def half(path: Path, size: float, task: str = "statistics") -> Overflow:
    with np.errstate(all="ignore"), probe.capture(model := nn.Sequential(Half(size)), path, task=task):
        model(Tensor(np.linspace(1, 2, 16, dtype=np.float16).reshape(2, 8))).sum().backward()
        probe.step()
    return check_overflow(path)


@pytest.mark.parametrize(("size", "state"), [(16000.0, State.OK), (20000.0, State.FOUND)])
def test_how_near_the_largest_numbers_come_to_the_end(tmp_path: Path, size: float, state: State) -> None:
    found = half(tmp_path / "a.h5", size)
    assert [line.state for line in found.lines if line.topic == "largest numbers"] == [state]
    first = found.headroom[0]
    assert (first.limit, first.tensor.dtype) == (65504.0, "float16")
    assert first.share == pytest.approx(2 * size / 65504, rel=1e-3)


def test_a_product_that_float16_cannot_hold(tmp_path: Path) -> None:
    found = half(tmp_path / "a.h5", 40000.0)
    assert found.birth is not None and (found.birth.origin, found.birth.path) == (Origin.MODULE, "0")
    assert found.advice is not None and found.advice.code == "narrow-dtype-overflows"
    assert found.advice.facts["limit"] == 65504.0 and found.advice.facts["largest"] == 40000.0


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_gradients_that_are_lost_to_underflow(tmp_path: Path, task: str) -> None:
    rng = np.random.default_rng(0)
    scale = np.float16(2.0**-16)

    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noise = (rng.standard_normal(x.shape) * 2.0**-9).astype(np.float16)
            return operation(x.data, (x, lambda g: (g * scale) * noise))

    for name, inner in (("lost", Small()), ("kept", nn.Identity() if hasattr(nn, "Identity") else nn.Sequential())):
        with (
            np.errstate(all="ignore"),
            probe.capture(model := nn.Sequential(Half(1.0), inner), tmp_path / f"{name}.h5", task=task),
        ):
            model(Tensor(np.ones((64, 8), np.float16))).sum().backward()
            probe.step()
    lost, kept = (check_overflow(tmp_path / f"{name}.h5") for name in ("lost", "kept"))
    assert [line.state for line in lost.lines if line.topic == "underflow"] == [State.FOUND]
    assert [line.state for line in kept.lines if line.topic == "underflow"] == [State.OK]
    worst = lost.underflow[0]
    assert worst.phase is not Phase.FORWARD and worst.share > 0.3 and worst.is_exact is (task == "tensor")
    assert worst.subnormals > 0


def test_zeros_that_were_made_by_an_activation_are_no_underflow(tmp_path: Path) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return operation(np.maximum(x.data, 0), (x, lambda g: g * (x.data > 0)))

    with probe.capture(model := nn.Sequential(Half(1.0), Cut()), tmp_path / "a.h5"):
        model(Tensor(np.linspace(-1, 1, 64, dtype=np.float16).reshape(8, 8))).sum().backward()
        probe.step()
    found = check_overflow(tmp_path / "a.h5")
    assert found.status is Status.CLEAN and max((each.share for each in found.underflow), default=0) < 1e-3


def test_a_recording_without_numbers_is_not_checked(tmp_path: Path) -> None:
    found = check_overflow(recorded(tmp_path / "a.h5", task="structure"))
    assert found.status is Status.UNCHECKED
    assert run_command("check", "overflow", tmp_path / "a.h5").exit_code == 2


def test_the_command(tmp_path: Path) -> None:
    clean, wrong = recorded(tmp_path / "clean.h5"), recorded(tmp_path / "wrong.h5", between_children)
    result = run_command("check", "overflow", clean)
    assert (result.exit_code, result.stdout.startswith("NOTHING FOUND")) == (0, True)
    result = run_command("check", "overflow", wrong)
    assert result.exit_code == 1 and all(len(line) <= 80 for line in result.stdout.splitlines())
    golden("check-overflow", result.stdout.replace(str(wrong), "wrong.h5").replace("FOUND\n  ", "FOUND  "),
           (r"-?\d+(\.\d+)?(e[-+]\d+)? to -?\d+(\.\d+)?(e[-+]\d+)?", "<range>"), (r"with \d\.\d+ of", "with <number> of"))  # fmt: skip
    document = json.loads(run_command("check", "overflow", wrong, "--json").stdout)
    assert document["status"] == "found" and document["birth"]["path"] == "layers.1.mlp"
    assert str(check_overflow(wrong)).startswith("FOUND")
    missing = run_command("check", "overflow", tmp_path / "none.h5")
    assert missing.exit_code == 3 and "none.h5" in missing.stderr
    with pytest.raises(StoreError):
        check_overflow(tmp_path / "none.h5")
