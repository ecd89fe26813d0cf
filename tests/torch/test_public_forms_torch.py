"""What public code bases write otherwise: loose parameters, layer scales, and the same steps in another order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import probe
from probe.commands.cli import main
from probe.comparison.result import Kind, Verdict
from probe.records import Phase

WIDTH, TOKENS, VOCABULARY, CLASSES = 16, 6, 32, 5
TASKS = ("tensor", "statistics")


class Block(nn.Module):
    """A perceptron with a residual and a scale of its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.layer_scale = nn.Parameter(torch.ones(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scale * self.down(F.gelu(self.up(self.norm(x))))


class Tables(nn.Module):
    """Positions in an Embedding; the first token is taken, then normed, then projected by a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last_norm, self.projection = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.normalize(self.projection(self.last_norm(x[:, 0])), dim=-1)


class OwnBlock(nn.Module):
    """The same, with a vector of scales."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.fc, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.proj(F.gelu(self.fc(self.ln(x))))


class Own(nn.Module):
    """The same with tables of its own: all tokens are normed, then the first one is taken, and multiplied by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.positional_embedding = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.layers = nn.ModuleList(OwnBlock() for _ in range(2))
        self.ln_post, self.proj = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(WIDTH, CLASSES))
        self.takes = lambda x: x[:, 0]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.positional_embedding
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.takes(self.ln_post(x)) @ self.proj, dim=-1)


@torch.no_grad()
def _models(change: Callable[[Own], object] = lambda own: None) -> tuple[Tables, Own]:
    torch.manual_seed(0)
    a, b = Tables(), Own()
    for parameter in a.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    names = {"tokens": "wte", "blocks": "layers", "norm": "ln", "up": "fc", "down": "proj", "last_norm": "ln_post"}
    own = b.state_dict()
    for name, tensor in a.state_dict().items():
        path = ".".join(names.get(part, part) for part in name.split("."))
        path = {"positions.weight": "positional_embedding", "projection.weight": "proj"}.get(path, path)
        path = path.replace("layer_scale", "gamma")
        own[path].copy_(tensor.t() if path == "proj" else tensor.flatten() if path.endswith("gamma") else tensor)
    change(b)
    return a, b


def _recorded(model: nn.Module, path: Path, task: str) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    probe.start(model, path, task=task, quiet=True)
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(VOCABULARY, (4, TOKENS), generator=generator)
        loss = (model(ids) - F.one_hot(ids[:, 0] % CLASSES, CLASSES)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss.detach())
    probe.stop()
    return path


def _compared(folder: Path, task: str, change: Callable[[Own], object] = lambda own: None) -> probe.Comparison:
    a, b = _models(change)
    return probe.compare(_recorded(a, folder / "a.h5", task), _recorded(b, folder / "b.h5", task))


@pytest.mark.parametrize("task", TASKS)
def test_a_right_pair_is_aligned_without_a_mapping(tmp_path: Path, task: str) -> None:
    found = _compared(tmp_path, task)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert any(text.startswith("at output 0 of last_norm the shapes differ") for text in found.warnings)
    assert not any("weights that were not compared" in text for text in found.warnings)


def _scaled(parameter: str) -> Callable[[Own], object]:
    return lambda own: own.get_parameter(parameter).data.mul_(1.05)


def _rolled(own: Own) -> None:
    own.positional_embedding.data.copy_(own.positional_embedding.data.roll(1, 0))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("change", "path"),
    [(_rolled, "positions"), (_scaled("proj"), "projection"), (_scaled("layers.1.gamma"), "blocks.1")],
    ids=["positions", "projection", "scale"],
)
def test_a_loose_parameter_that_differs_is_named(
    tmp_path: Path, task: str, change: Callable[[Own], object], path: str
) -> None:
    first = _compared(tmp_path, task, change).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, path)


@pytest.mark.parametrize("task", TASKS)
def test_another_pooling_behind_a_tensor_of_another_size_is_named_there(tmp_path: Path, task: str) -> None:
    first = _compared(tmp_path, task, lambda own: setattr(own, "takes", lambda x: x.mean(1))).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.SHAPE, "last_norm")


def test_a_draft_pairs_loose_parameters(tmp_path: Path) -> None:
    a, b = _models()
    files = _recorded(a, tmp_path / "a.h5", "tensor"), _recorded(b, tmp_path / "b.h5", "tensor")
    text = CliRunner().invoke(main, ["map", "suggest", *map(str, files)]).output
    assert "gamma" in text and "positional_embedding" in text
    mapping = tmp_path / "map.yaml"
    mapping.write_text(text)
    found = probe.compare(*files, mapping=mapping, min_confidence=1)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert not any("weights that were not compared" in each for each in found.warnings)


class _Images(nn.Module):
    """A convolution whose class is written as one framework or the other writes it."""

    def __init__(self, convolution: type[nn.Conv2d], padding: int) -> None:
        super().__init__()
        self.conv, self.act = convolution(3, 4, 3, padding=padding), nn.ReLU()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.conv(x)).mean((-2, -1)))


@pytest.mark.parametrize("task", TASKS)
def test_another_padding_is_named_there_however_a_framework_writes_the_class(tmp_path: Path, task: str) -> None:
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    files = tmp_path / "a.h5", tmp_path / "b.h5"
    for file, convolution, padding in zip(files, (nn.Conv2d, type("Conv2D", (nn.Conv2d,), {})), (1, 0), strict=True):
        torch.manual_seed(0)
        model = _Images(convolution, padding)
        probe.start(model, file, task=task)
        loss = model(images).square().mean()
        loss.backward()
        probe.step(loss=loss)
        probe.stop()
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.SHAPE, "conv")
