"""Weights that ``weight_norm`` and ``spectral_norm`` keep as parts, of either form in PyTorch and in PaddlePaddle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe

torch = pytest.importorskip("torch")
paddle = pytest.importorskip("paddle")
from torch.nn.utils import parametrizations  # noqa: E402


class Torch(torch.nn.Module):
    """A convolution and two Linears whose weights are made of parts."""

    def __init__(self, made_by: Any) -> None:
        super().__init__()
        self.conv = made_by.weight_norm(torch.nn.Conv1d(4, 6, 3))
        self.fc = made_by.weight_norm(torch.nn.Linear(4, 6))
        self.spectral = made_by.spectral_norm(torch.nn.Linear(6, 4))
        self.plain = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.plain(self.spectral(self.conv(x).mean(2) + self.fc(x[..., 0])))


class Paddle(paddle.nn.Layer):
    """The same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.utils.weight_norm(paddle.nn.Conv1D(4, 6, 3))
        self.fc = paddle.nn.utils.weight_norm(paddle.nn.Linear(4, 6), dim=1)
        self.spectral = paddle.nn.utils.spectral_norm(paddle.nn.Linear(6, 4))
        self.plain = paddle.nn.Linear(4, 2)

    forward = Torch.forward


FORMS = {"hooks": torch.nn.utils, "parametrizations": parametrizations}
X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)


def loaded(model: Any, weights: dict[str, np.ndarray]) -> Any:
    model.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
    return model.eval()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_both_forms_of_pytorch_and_paddlepaddles_hold_the_same(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    a = Torch(FORMS[form]).eval()
    expected = a(torch.from_numpy(X)).detach().numpy()
    for other in FORMS.values():
        b = Torch(other)
        made = probe.convert_weights(a.state_dict(), to="torch", source=a, like=b)
        assert np.array_equal(loaded(b, made)(torch.from_numpy(X)).detach().numpy(), expected)
    b = Paddle()
    there = probe.convert_weights(a.state_dict(), to="paddle", source=a, like=b)
    assert b.set_state_dict(there) == ([], [])
    b.eval()
    assert np.allclose(b(paddle.to_tensor(X)).numpy(), expected, atol=1e-5)
    back = probe.convert_weights(there, to="torch", source=b, like=a)
    assert {name: x.tobytes() for name, x in back.items()} == {
        n: x.numpy().tobytes() for n, x in a.state_dict().items()
    }
    for model, x, file in ((a, torch.from_numpy(X), "a.h5"), (b, paddle.to_tensor(X), "b.h5")):
        probe.start(model, tmp_path / file, task="tensor", quiet=True)
        model(x).sum().backward()
        probe.step()
        probe.stop()
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.verdict == "aligned", found
