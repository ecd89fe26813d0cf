"""What trained models have and fresh ones lack: elements that are most of a tensor, and scores that are large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, no_grad, softmax
from probe.comparison.answer import Comparison
from probe.comparison.noise import conditioning
from probe.comparison.result import Verdict
from tests.toys import MLP, VOCABULARY, WIDTH, module, record, replaced

TASKS = pytest.mark.parametrize("task", ["statistics", "tensor"])
NOISE, GROWN, FAULT = 8e-7, 5e-6, 1e-3
"""relative errors: of rounding, of what has grown out of it, and of a fault"""


class Large(nn.Module):
    """Makes one element so large that all others are nothing beside it, as the first token of trained models has some."""

    def forward(self, x: Tensor) -> Tensor:
        large = np.zeros(x.data.shape, np.float32)
        large[0, 0, 0] = 1e4
        return x + Tensor(large)


class Stream(nn.Module):
    """What a layer adds to a stream, an element that becomes large there, and a norm."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, 2 * WIDTH), mlp=MLP(2 * WIDTH), large=Large(),
                         norm=nn.RMSNorm(2 * WIDTH), head=nn.Linear(2 * WIDTH, VOCABULARY))  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(self.norm(self.large(x + self.mlp(x))))


class Attending(nn.Module):
    """A norm, and attention whose queries and keys are large, and so are its scores."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), norm=nn.RMSNorm(WIDTH), attn=nn.Attention(WIDTH, 2),
                         head=nn.Linear(WIDTH, VOCABULARY))  # fmt: skip
        for name in ("attn.q", "attn.k"):  # as the biases of some have it
            replaced(self, name, forward=lambda layer, x: nn.Linear.forward(layer, x) + Tensor(np.float32(16)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.attn(self.norm(self.embed(ids))))


def _noisy(x: Tensor, error: float) -> Tensor:
    noise = np.random.default_rng(0).normal(size=x.data.shape).astype(np.float32)
    return x * Tensor(1 + np.float32(error) * noise)


def _recorded(
    path: Path, kind: type[nn.Module], task: str, scaled: tuple[str, float] | None = None, **errors: float
) -> Path:
    """Record a model, of which some modules return something with an error, and one a multiple of it."""
    nn.manual_seed(3)
    model = kind()
    if scaled is not None:
        replaced(model, scaled[0], forward=lambda m, x: nn.RMSNorm.forward(m, x) * Tensor(np.float32(scaled[1])))
    for name, error in errors.items():
        found = module(model, name.replace("_", "."))
        forward = type(found).forward
        replaced(model, name.replace("_", "."), forward=lambda m, x, f=forward, e=error: _noisy(f(m, x), e))
    return record(path, model, task=task)


@TASKS
def test_an_error_is_still_there_though_a_large_element_hides_it(tmp_path: Path, task: str) -> None:
    a = _recorded(tmp_path / "a.h5", Stream, task)
    right = probe.compare(a, _recorded(tmp_path / "noisy.h5", Stream, task, mlp_up=NOISE, mlp_down=GROWN))
    assert right.verdict is Verdict.ALIGNED
    assert _error(right, "large") < 1e-7 and _error(right, "norm") > 1e-6  # the norm brings back what was hidden
    b = _recorded(tmp_path / "b.h5", Stream, task, mlp_up=NOISE, mlp_down=GROWN, norm=FAULT)
    wrong = probe.compare(a, b).first_divergence
    assert wrong is not None and wrong.path == "norm"


@TASKS
def test_a_scale_is_nothing_that_a_large_element_has_hidden(tmp_path: Path, task: str) -> None:
    a = _recorded(tmp_path / "a.h5", Stream, task)
    b = _recorded(tmp_path / "b.h5", Stream, task, mlp_up=NOISE, mlp_down=GROWN, scaled=("norm", 1 + 3 * GROWN))
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.path == "norm"


@TASKS
def test_large_scores_make_errors_larger(tmp_path: Path, task: str) -> None:
    a = _recorded(tmp_path / "a.h5", Attending, task)
    right = probe.compare(a, _recorded(tmp_path / "noisy.h5", Attending, task, attn_q=NOISE, attn_k=NOISE))
    assert right.verdict is Verdict.ALIGNED
    assert _error(right, "attn.o") > 8 * max(_error(right, "attn.q"), _error(right, "attn.k"))
    b = _recorded(tmp_path / "b.h5", Attending, task, attn_q=NOISE, attn_k=NOISE, attn_v=NOISE, attn_o=FAULT)
    wrong = probe.compare(a, b).first_divergence
    assert wrong is not None and wrong.path == "attn.o"


def _error(found: Comparison, path: str) -> float:
    """Return the error of what a module returned."""
    return next(slot.error for slot in found[path] if slot.role.label == "output")


class CoreAttention(nn.Module):
    """What is given queries, keys, values and a mask."""

    scale = 1.0

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return softmax(x @ x.swapaxes(-1, -2) * np.float32(self.scale) + mask) @ x


class Masked(nn.Module):
    """Attention whose mask is filled with the smallest number there is."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), attn=CoreAttention(), head=nn.Linear(WIDTH, VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        mask = np.triu(np.full((length, length), np.finfo(np.float32).min, np.float32), 1)
        return self.head(self.attn(self.embed(ids), Tensor(mask)))


@TASKS
def test_a_mask_is_no_score(tmp_path: Path, task: str) -> None:
    a = _recorded(tmp_path / "a.h5", Masked, task)
    nn.manual_seed(3)
    model = Masked()
    replaced(model, "attn", scale=np.float32(1.5))
    first = probe.compare(a, record(tmp_path / "b.h5", model, task=task)).first_divergence
    assert first is not None and first.path == "attn"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("self_attn", True),
        ("attention", True),
        ("LlamaSdpaAttention", True),
        ("core_attention", True),
        ("post_attention_layernorm", False),
        ("self_attn_layer_norm", False),
        ("attn_dropout", False),
        ("attention_output", False),
        ("LayerNorm", False),
        ("mlp", False),
    ],
)
def test_what_is_called_attention(name: str, is_one: bool) -> None:
    assert bool(conditioning._ATTENTION.search(name)) is is_one


class Stepping(nn.Module):
    """Time steps, made into sines and cosines by the model's own code."""

    largest = 999
    off = 0.0
    """by how much its frequencies are off, relatively"""

    def __init__(self) -> None:
        super().__init__(time=nn.Linear(2 * WIDTH, WIDTH), head=nn.Linear(WIDTH, VOCABULARY))

    def forward(self, steps: Tensor) -> Tensor:
        frequencies = np.exp(-np.log(1e4) * np.arange(WIDTH) / WIDTH) * (1 + self.off * np.cos(np.arange(WIDTH)))
        angles = (steps.data[:, None] * frequencies).astype(np.float64)
        return self.head(self.time(Tensor(np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32))))


@TASKS
@pytest.mark.parametrize(("largest", "off", "verdict"), [
    (999, 2e-7, Verdict.ALIGNED),  # a roundoff or two of a frequency, 500 times as much of the angle
    (9, 2e-5, Verdict.DIVERGED),
    (999, 2e-6, Verdict.DIVERGED),
])  # fmt: skip
def test_large_angles_are_coarse(tmp_path: Path, task: str, largest: int, off: float, verdict: Verdict) -> None:
    files = []
    for name, error in (("a.h5", 0.0), ("b.h5", off)):
        nn.manual_seed(3)
        model = Stepping()
        model.off = error
        with probe.capture(model, tmp_path / name, task=task):
            model(Tensor(np.array([largest, largest // 3])))
        files.append(tmp_path / name)
    found = probe.compare(*files)
    assert found.verdict is verdict
    assert verdict is Verdict.ALIGNED or (found.first_divergence is not None and found.first_divergence.path == "")


class Words(nn.Module):
    """An embedding of many words and small numbers, without gradients, and a layer behind it."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


def test_what_is_looked_up_by_large_integers_is_no_angle(tmp_path: Path) -> None:
    files = []
    for name, factor in (("a", 1.0), ("b", 1.05)):
        nn.manual_seed(0)
        model = Words(table=nn.Embedding(5000, 32), head=nn.Linear(32, 4))
        model.table.weight.data *= np.float32(0.2)
        model.table.weight.data[::2] *= np.float32(factor)
        ids = np.random.default_rng(0).integers(0, 5000, (4, 16))
        with probe.capture(model, tmp_path / f"{name}.h5", phases=["forward"]), no_grad():
            model(Tensor(ids))
        files.append(tmp_path / f"{name}.h5")
    found = probe.compare(*files)
    first = found.first_divergence
    assert first is not None and first.path == "table"
