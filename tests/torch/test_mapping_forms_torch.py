"""What a mapping says of weights in another form, in a comparison: one convolution of size 1 for three Linears, exchanged halves, weight_norm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probe
from probe.comparison.result import Verdict

SIZE = 16
MAPPING: dict[str, Any] = {
    "TopLayer": {
        "qkv": ["q", "k", "v"],
        "ada": {"to": "mod", "split": {"order": [1, 0]}},
        "params": {
            "normed.weight_g": "normed.parametrizations.weight.original0",
            "normed.weight_v": "normed.parametrizations.weight.original1",
        },
    }
}


class Fused(nn.Module):
    """q, k and v in a convolution; shift before scale."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv1d(SIZE, 3 * SIZE, 1), nn.Conv1d(SIZE, SIZE, 1)
        self.ada = nn.Linear(SIZE, 2 * SIZE)
        self.normed = nn.utils.weight_norm(nn.Linear(SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x.transpose(1, 2)).transpose(1, 2).chunk(3, 2)
        x = x + self.out((torch.softmax(q @ k.transpose(1, 2), 2) @ v).transpose(1, 2)).transpose(1, 2)
        shift, scale = self.ada(x.mean(1, keepdim=True)).chunk(2, 2)
        return self.normed(x * (1 + scale) + shift)


class Apart(nn.Module):
    """q, k and v in Linears; scale before shift."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.mod = nn.Linear(SIZE, 2 * SIZE)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), 2) @ self.v(x))
        scale, shift = self.mod(x.mean(1, keepdim=True)).chunk(2, 2)
        return self.normed(x * (1 + scale) + shift)


def recorded(model: nn.Module, path: Path, task: Any) -> Path:
    probe.start(model, path, task=task, quiet=True)
    model(torch.linspace(-1, 1, 2 * 5 * SIZE).sin().view(2, 5, SIZE)).square().mean().backward()
    probe.step()
    probe.stop()
    return path


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("fault", [None, "k", "mod"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_weights_in_another_form_are_compared(fault: str | None, task: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    a, b = Fused(), Apart()
    made = probe.convert_weights(a.state_dict(), MAPPING, to="torch", source=a, like=b)
    b.load_state_dict({name: torch.from_numpy(x) for name, x in made.items()})
    if fault is not None:
        with torch.no_grad():
            b.get_submodule(fault).weight[:4] *= 1.5
    found = probe.compare(recorded(a, tmp_path / "a.h5", task), recorded(b, tmp_path / "b.h5", task), MAPPING)
    assert found.verdict is (Verdict.ALIGNED if fault is None else Verdict.DIVERGED)
    if fault is not None:
        assert found.first_divergence.path == {"k": "qkv", "mod": "ada"}[fault]
