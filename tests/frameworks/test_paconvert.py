"""What PaConvert 3.3.1 writes for a model of PyTorch: ``paddle.compat.nn`` has torch's names and layouts, the rest PaddlePaddle's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.result import Verdict
from probe.errors import ConversionError, ProbeWarning

torch = pytest.importorskip("torch")
paddle = pytest.importorskip("paddle")


class Source(torch.nn.Module):
    """A model before it is converted."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.attn = torch.nn.MultiheadAttention(16, 4, batch_first=True)
        self.fc = torch.nn.Linear(16, 16)
        self.conv = torch.nn.Conv1d(16, 16, 3, padding=1)
        self.bn = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 7, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.norm(self.embed(x))
        h = h + self.attn(h, h, h, need_weights=False)[0]
        h = h + self.bn(self.conv(h.transpose(1, 2))).transpose(1, 2)
        return self.head(torch.nn.functional.gelu(self.fc(h)))


class Converted(paddle.nn.Module):
    """The same as ``paconvert`` writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(40, 16)
        self.norm = paddle.nn.LayerNorm(16)
        self.attn = paddle.compat.nn.MultiheadAttention(16, 4, batch_first=True)
        self.fc = paddle.compat.nn.Linear(16, 16)
        self.conv = paddle.nn.Conv1d(16, 16, 3, padding=1)
        self.bn = paddle.nn.BatchNorm1D(num_features=16)
        self.head = paddle.compat.nn.Linear(16, 7, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.norm(self.embed(x))
        h = h + self.attn(h, h, h, need_weights=False)[0]
        h = h + self.bn(self.conv(h.transpose(1, 2))).transpose(1, 2)
        return self.head(paddle.nn.functional.gelu(self.fc(h)))


BATCH = np.random.default_rng(0).integers(0, 40, (3, 9))


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """A model of PyTorch, of which ``a.h5`` has recorded two steps, and its weights before them."""
    torch.manual_seed(0)
    model = Source()
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    trained(model, torch.from_numpy(BATCH), optimizer, tmp_path / "a.h5")
    return state


def trained(model: Any, batch: Any, optimizer: Any, path: Path) -> None:
    probe.start(model, path, task="tensor", quiet=True)
    for _ in range(2):
        loss = (model(batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad() if hasattr(optimizer, "clear_grad") else optimizer.zero_grad()
        probe.step(loss=loss)
    probe.stop()


@pytest.mark.parametrize("how", ["convert", "load_matching"])
def test_a_converted_model_is_loaded_trained_and_compared(source: Any, how: str, tmp_path: Path) -> None:
    model = Converted()
    if how == "convert":
        weights = probe.convert_weights(source, to="paddle", source=tmp_path / "a.h5", like=model)
        assert model.set_state_dict(weights) == ([], [])
    else:
        probe.load_matching(model, tmp_path / "a.h5")
    assert np.array_equal(model.fc.weight.numpy(), source["fc.weight"].numpy())
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), weight_decay=0.01)
    trained(model, paddle.to_tensor(BATCH), optimizer, tmp_path / "b.h5")
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.verdict is Verdict.ALIGNED
    assert not any("weights that were not compared" in text for text in found.warnings)
    back = probe.convert_weights(model.state_dict(), to="torch", source=tmp_path / "b.h5")
    assert np.array_equal(back["attn.in_proj_weight"], model.attn.in_proj_weight.numpy())


def test_auto_diff_gives_a_converted_model_the_weights() -> None:
    found = probe.auto_diff(Source(), Converted(), {"x": BATCH}, loss_fns=(torch.mean, paddle.mean))
    assert found.verdict is Verdict.ALIGNED


def test_a_state_that_fits_no_class_of_paddles_own_is_tried_as_paconverts(source: Any, tmp_path: Path) -> None:
    there = probe.convert_weights(source, to="paddle", source=tmp_path / "a.h5", like=Converted())
    options = {"to": "torch", "source": "paddle", "like": tmp_path / "a.h5"}
    back = probe.convert_weights(there, **options)
    assert all(np.array_equal(back[name], source[name]) for name in back)
    with pytest.raises(ConversionError, match=r"head\.weight is to be \[7, 16\]"):
        probe.convert_weights({**there, "head.weight": np.zeros((8, 16), np.float32)}, **options)


class OwnLinear(paddle.nn.Layer):
    """A layer that somebody wrote, and that no table has."""

    def __init__(self, size: int, width: int, is_turned: bool = True) -> None:
        super().__init__()
        self.weight = self.create_parameter([size, width] if is_turned else [width, size])


class Own(paddle.nn.Layer):
    """Layers of two sizes, the square one second."""

    def __init__(self, *is_turned: bool) -> None:
        super().__init__()
        for number, ((size, width), turned) in enumerate(zip(((4, 8), (8, 8), (8, 2)), is_turned, strict=True)):
            self.add_sublayer(str(number), OwnLinear(size, width, turned))


def test_the_sizes_tell_how_the_weights_of_an_unknown_class_lie(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(*sizes, bias=False) for sizes in ((4, 8), (8, 8), (8, 2))))
    state = model.state_dict()
    found = probe.convert_weights(state, to="paddle", source=model, like=Own(True, True, True))
    assert all(np.array_equal(found[name], state[name].numpy().T) for name in state)
    found = probe.convert_weights(state, to="paddle", source=model, like=Own(False, False, False))
    assert all(np.array_equal(found[name], state[name].numpy()) for name in state)
    with pytest.raises(ConversionError, match="transpose: true"):  # how the square one lies, nothing tells
        probe.convert_weights(state, to="paddle", source=model, like=Own(True, True, False))
    probe.start(model, tmp_path / "a.h5", task="tensor", quiet=True)
    model(torch.ones(1, 4)).sum().backward()
    probe.step()
    probe.stop()
    with pytest.warns(ProbeWarning, match="lies the other way round"):
        probe.load_matching(Own(True, True, True), tmp_path / "a.h5")


def test_a_known_class_of_another_size_is_an_error_and_not_turned() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False))
    with pytest.raises(ConversionError, match=r"0\.weight is to be \[8, 4\], the source has 0\.weight \[8, 4\]"):
        probe.convert_weights(
            model.state_dict(), to="paddle", source=model, like=paddle.nn.Sequential(paddle.nn.Linear(8, 4))
        )
