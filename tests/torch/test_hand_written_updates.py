"""Loops as teams write them: masters copied back by hand, hand-written optimizers over one flat buffer, fused weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.records import Phase  # noqa: E402

BITS = torch.bfloat16


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.up = (nn.Linear(32, n, bias=False) for n in (32, 48, 48))
        self.down = nn.Linear(48, 32, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.down(self.gate(x).sigmoid() * self.up(x))


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate_up = nn.Linear(32, 32, bias=False), nn.Linear(32, 96, bias=False)
        self.down = nn.Linear(48, 32, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_up(self.first(x)).chunk(2, -1)
        return self.down(gate.sigmoid() * up)


def weights() -> dict[str, Any]:
    torch.manual_seed(0)
    return {name: tensor.to(BITS).float() for name, tensor in Apart().state_dict().items()}


def model_of(kind: Any, dtype: Any) -> Any:
    model, state = kind(), weights()
    if kind is Fused:
        state["gate_up.weight"] = torch.cat([state.pop("gate.weight"), state.pop("up.weight")])
    model.load_state_dict(state)
    return model.to(dtype)


def plain(path: Path, dtype: Any = torch.float32, lr: float = 1e-3, steps: int = 2) -> Path:
    model = model_of(Apart, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    with probe.capture(model, path, task="tensor"):
        for step in range(steps):
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def loss_of(model: Any, step: int) -> Any:
    torch.manual_seed(10 + step)
    x = torch.randn(16, 32).to(BITS)
    return model(x.to(next(model.parameters()).dtype)).float().pow(2).mean()


def flat(path: Path, kind: Any = Apart, dtype: Any = BITS, lr: float = 1e-3, fault: str = "", steps: int = 2) -> Path:
    """Let Adam, written by hand, train one flat float32 buffer that all weights are copied from."""
    model = model_of(kind, dtype)
    parameters = list(model.parameters())
    buffer = torch.cat([p.detach().float().reshape(-1) for p in parameters])
    first, second = torch.zeros_like(buffer), torch.zeros_like(buffer)
    with probe.capture(model, path, task="tensor"):
        for step in range(steps):
            loss = loss_of(model, step)
            loss.backward()
            gradient = torch.cat([p.grad.float().reshape(-1) for p in parameters])
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = (second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            buffer.sub_(lr * first / (1 - 0.9 ** (step + 1)) / scale)
            start = 0
            for index, parameter in enumerate(parameters):
                begin = start + (5 if fault == "offset" and index == 1 else 0)
                if not (fault == "kept" and index == 1):
                    parameter.data.copy_(buffer[begin : begin + parameter.numel()].view(parameter.shape))
                parameter.grad = None
                start += parameter.numel()
            probe.step(loss=loss)
    return path


def masters(path: Path, fault: str = "") -> Path:
    model = model_of(Apart, BITS)
    copies = [p.detach().float().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=1e-3, weight_decay=0.0)
    with probe.capture(model, path, task="statistics"):
        for step in range(2):
            loss = loss_of(model, step)
            loss.backward()
            for parameter, copy in zip(model.parameters(), copies, strict=True):
                copy.grad, parameter.grad = parameter.grad.float(), None
                if fault == "before":
                    parameter.data.copy_(copy)
            optimizer.step()
            for index, (parameter, copy) in enumerate(zip(model.parameters(), copies, strict=True)):
                if fault != "before" and not (fault == "one" and index == 2):
                    parameter.data.copy_(copy)
            probe.step(loss=loss)
    return path


def compared(a: Path, b: Path) -> Comparison:
    return probe.compare(a, b, mapping={"Fused": {"gate_up": ["gate", "up"]}} if "fused" in b.name else None)


@pytest.mark.parametrize("lr", [1e-3, 2e-5], ids=["large", "small"])
def test_a_port_that_is_right_is_aligned(tmp_path: Path, lr: float) -> None:
    """Also where 16-bit weights round small updates away."""
    a = plain(tmp_path / "a.h5", lr=lr)
    for b in (flat(tmp_path / "b.h5", lr=lr), plain(tmp_path / "c.h5", BITS, lr=lr)):
        found = compared(a, b)
        assert found.verdict is Verdict.ALIGNED, found


def test_rounding_weights_or_their_copies_is_no_other_rate(tmp_path: Path) -> None:
    a, b = plain(tmp_path / "a.h5", BITS, lr=1e-3), masters(tmp_path / "b.h5")
    assert compared(a, b).verdict is Verdict.ALIGNED


@pytest.mark.parametrize(("fault", "path", "count"), [("one", "up", "1 of 4"), ("before", "", "4 of 4")])
def test_copies_that_are_not_copied_back(tmp_path: Path, fault: str, path: str, count: str) -> None:
    first = compared(plain(tmp_path / "a.h5"), masters(tmp_path / "b.h5", fault)).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, path)
    assert first.evidence[0].startswith(
        f"B's weights stay as they were in step 0, whatever the optimizer does: {count}, by up to "
    )
    assert "how copies (masters) are copied into them" in first.hint


def test_a_weight_that_is_not_copied_back_from_a_flat_buffer(tmp_path: Path) -> None:
    first = compared(plain(tmp_path / "a.h5"), flat(tmp_path / "b.h5", fault="kept")).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.UPDATE, "gate")
    assert first.evidence == ("only A updates this parameter",) and "copied back from what is" in first.hint


@pytest.mark.parametrize("options", [{"fault": "offset"}, {"lr": 1e-2}], ids=str)
def test_a_fused_weight_of_a_flat_buffer(tmp_path: Path, options: dict[str, Any]) -> None:
    a = plain(tmp_path / "a.h5")
    clean = compared(a, flat(tmp_path / "fused.h5", Fused, torch.float32))
    assert clean.verdict is Verdict.ALIGNED, clean
    first = compared(a, flat(tmp_path / "fused2.h5", Fused, torch.float32, **options)).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)
    assert any("times as long as A's" in text for text in first.evidence)


@pytest.mark.parametrize("elements", [1, 64])
def test_a_weight_may_stay_while_its_copy_moves_by_less_than_a_unit(tmp_path: Path, elements: int) -> None:
    """A scale of ones grows by 0.9 units, up to which all of it is rounded to one."""

    def run(path: Path, by: float, dtype: Any) -> Path:
        model = Scaled(elements).to(dtype)
        copy = model.scale.detach().float().clone()
        optimizer = torch.optim.SGD([copy], lr=1.0)
        with probe.capture(model, path):
            loss = model(torch.ones(4, elements, dtype=dtype)).float().sum()
            loss.backward()
            copy.grad, model.scale.grad = torch.full_like(copy, -by), None
            optimizer.step()
            model.scale.data.copy_(copy)
            probe.step(loss=loss)
        return path

    a, b = run(tmp_path / "a.h5", 0.0035, torch.float32), run(tmp_path / "b.h5", 0.0035, BITS)
    found = compared(a, b)
    assert not any("stay as they were" in text for each in found.divergences for text in each.evidence), found


class Scaled(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(elements))

    def forward(self, x: Any) -> Any:
        return x * self.scale


def test_a_small_update_that_the_optimizer_was_not_given_is_missing(tmp_path: Path) -> None:
    """Of 16-bit weights, too: what is rounded away is no excuse where it is known what the optimizer has."""

    def run(path: Path, left_out: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)).to(BITS)
        kept = [p for name, p in model.named_parameters() if not (left_out and name == "1.weight")]
        optimizer = torch.optim.AdamW(kept, lr=4e-3, weight_decay=0.0)
        with probe.capture(model, path):
            loss = model(torch.randn(16, 32).to(BITS)).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
        return path

    first = compared(run(tmp_path / "a.h5", False), run(tmp_path / "b.h5", True)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.UPDATE, "1")
    assert first.hint == "B's optimizer was not given this parameter"
