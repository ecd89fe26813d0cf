"""One to many with real PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.comparison.result import Verdict
from probe.records import Phase, Role

WIDTH, HEADS = 16, 4


class Apart(nn.Module):
    """What nn.MultiheadAttention computes, with a module for each projection."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = (q @ k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Packed(nn.MultiheadAttention):
    """nn.MultiheadAttention of one argument."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


Packed.__name__ = "MultiheadAttention"


class Net(nn.Module):
    """An attention between two layers."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.first, self.attn, self.last = nn.Linear(8, WIDTH), attn, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attn(self.first(x)))


def nets() -> tuple[Net, Net]:
    """Return both models with the same numbers."""
    torch.manual_seed(0)
    packed, apart = Net(Packed(WIDTH, HEADS, batch_first=True)), Net(Apart())
    nn.init.normal_(packed.attn.in_proj_bias)
    for name in ("first", "last"):
        getattr(apart, name).load_state_dict(getattr(packed, name).state_dict())
    attn = packed.attn
    apart.attn.out_proj.load_state_dict(attn.out_proj.state_dict())
    for part, weight, bias in zip("qkv", attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True):
        layer = getattr(apart.attn, f"{part}_proj")
        layer.weight.data, layer.bias.data = weight.detach().clone(), bias.detach().clone()
    return packed, apart


def record(path: Path, model: nn.Module, task: str, steps: int = 2) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with probe.capture(model, path, task=task):
        for step in range(steps):
            torch.manual_seed(100 + step)
            loss = model(torch.randn(2, 5, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_packed_attention_needs_no_mapping(tmp_path: Path, task: str, turned: bool) -> None:
    models = nets()
    files = [record(tmp_path / f"{n}.h5", model, task) for n, model in enumerate(models)]
    found = probe.compare(*(files[::-1] if turned else files))
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert not any("weights that were not compared" in text for text in found.warnings)
    compared = {(s.phase, s.role, s.slot_a) for s in found["attn.k_proj"] if s.metrics.is_known}
    for slot in ("in_proj_weight", "in_proj_bias"):
        assert compared >= {
            (Phase.INIT, Role.PARAM, slot), (Phase.GRADIENT, Role.PARAM_GRAD, slot), (Phase.UPDATE, Role.DELTA, slot),
            (Phase.UPDATE, Role.STATE, f"{slot}.exp_avg"),
        }  # fmt: skip


def _weight(net: Net) -> None:
    net.attn.k_proj.weight.data *= 1.5


def _freeze(net: Net) -> None:
    net.attn.v_proj.bias.requires_grad_(False)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("fault", "phase", "slot", "says"), [
    (_weight, "init", "weight", "k_proj (rel 3.3e-01) differs; q_proj and v_proj agree"),
    (_freeze, "gradient", "bias", "v_proj has no param_grad in"),
])  # fmt: skip
def test_a_fault_in_packed_attention(
    tmp_path: Path, fault: Callable[[Any], None], phase: str, slot: str, says: str, turned: bool
) -> None:
    models = nets()
    fault(models[1])
    files = [record(tmp_path / f"{n}.h5", model, "tensor", 1) for n, model in enumerate(models)]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None and first.phase.label == phase
    packed, apart = (first.b, first.a) if turned else (first.a, first.b)
    assert [(ref.path, ref.slot) for ref in packed] == [("attn", f"in_proj_{slot}")]
    assert [(ref.path, ref.slot) for ref in apart] == [(f"attn.{part}_proj", slot) for part in "qkv"]
    assert any(says in text for text in first.evidence), first.evidence
