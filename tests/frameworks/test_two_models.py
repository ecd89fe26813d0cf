"""`compare` of `probe.compat.reprod_log`, on the same model in PyTorch and PaddlePaddle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from probe.compat.reprod_log.compare import compare_forward, compare_loss_and_backward
from probe.errors import ConfigError

torch = pytest.importorskip("torch")
paddle = pytest.importorskip("paddle")
IDS = np.arange(12).reshape(3, 4) % 7


def pair(shift: float = 0, frozen: bool = False) -> tuple[Any, Any]:
    """Return a model with a square Linear in both frameworks, the last weight of the second larger."""
    torch.manual_seed(0)
    models = []
    for nn in (torch.nn, paddle.nn):
        models.append(nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)))
        models[-1].forward = (lambda forward: lambda ids: {"logits": forward(ids)})(models[-1].forward)
    theirs, ours = models
    for module, layer in zip(theirs, ours, strict=True):
        for name, parameter in module.named_parameters():
            value = parameter.detach().numpy()
            getattr(layer, name).set_value(
                value.T if isinstance(module, torch.nn.Linear) and value.ndim == 2 else value
            )
    ours[3].weight.set_value(ours[3].weight.numpy() * np.float32(1 + shift))
    ours[3].bias.stop_gradient = frozen
    return theirs, ours


def loss(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"loss": (outputs["logits"] ** 2).mean()}


@pytest.mark.parametrize("shift", [0, 0.1])
def test_outputs_loss_and_gradients(shift: float, capsys: pytest.CaptureFixture[str]) -> None:
    models = pair(shift)
    assert compare_forward(*models, {"ids": IDS}, 1e-5) is (not shift)
    assert capsys.readouterr().out.splitlines()[-1] == f"diff check {'failed' if shift else 'passed'}"
    assert compare_loss_and_backward(*models, loss, loss, {"ids": IDS}, 0.1, 3, 1e-5) is (not shift)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("1.weight: ") == lines.count("3.weight: ") == (1 if shift else 3)
    assert lines[-1] == ("diff check failed in iter 0" if shift else "diff check passed")


def test_a_gradient_on_one_side_only() -> None:
    with pytest.raises(ConfigError, match=r"on one side only: 3\.bias"):
        compare_loss_and_backward(*pair(frozen=True), loss, loss, {"ids": IDS}, steps=1)
