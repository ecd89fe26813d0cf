"""Mappings for lists of models, mappings of the library for models that lack what they are for, packed weights in the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.commands.map_commands import map_group  # noqa: E402


def two_layers(first: str, second: str) -> nn.Module:
    model = nn.Sequential()
    model.add_module(first, nn.Linear(4, 8))
    model.add_module(second, nn.Linear(8, 4))
    return model


class Packed(nn.Module):
    """Queries, keys and values of one layer, or of three; in the middle of the model."""

    def __init__(self, packed: bool, faulty: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = [nn.Linear(8, 8, bias=False) for _ in range(3)]
        self.packed, self.out = packed, nn.Linear(8, 8, bias=False)
        if packed:
            weights = [each.weight.data * (1.01 if faulty and n == 1 else 1.0) for n, each in enumerate(parts)]
            self.qkv = nn.Linear(8, 24, bias=False)
            self.qkv.weight.data = torch.cat(weights)
        else:
            self.query, self.key, self.value = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1) if self.packed else (self.query(x), self.key(x), self.value(x))
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


def record(path: Path, model: nn.Module | list[nn.Module], width: int = 4) -> Path:
    torch.manual_seed(1)
    x = torch.randn(2, 3, width)
    with probe.capture(model, path, task="tensor", steps=[0]):
        for each in model if isinstance(model, list) else [model]:
            x = each(x)
        loss = x.square().mean()
        loss.backward()
        probe.step(loss=loss.item())
    return path


def check(*arguments: str | Path) -> str:
    return CliRunner().invoke(map_group, ["check", *map(str, arguments)], catch_exceptions=False).output


def test_models_of_a_list_are_named_by_their_numbers(tmp_path: Path) -> None:
    """A key of a mapping names each of them: {i} is for what is repeated inside."""
    a = record(tmp_path / "a.h5", [two_layers("a", "b"), two_layers("a", "b")])
    b = record(tmp_path / "b.h5", [two_layers("first", "second"), two_layers("first", "second")])
    (tmp_path / "map.yaml").write_text("Sequential:\n  a: first\n", encoding="utf-8")
    said = check(tmp_path / "map.yaml", a, b)
    assert "{i}" not in said and "0.b (Linear)   perhaps 0.second" in said and "1.b (Linear)   perhaps 1.second" in said


def test_sections_of_the_library_may_fit_nothing(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{name}.h5", two_layers("a", "b")) for name in "ab"]
    assert not [text for text in probe.compare(*files, "torch/paddle").warnings if "torch/paddle" in text]
    with pytest.raises(probe.errors.MappingError, match="TransformerDecoderLayer: no module is of this class"):
        probe.compare(*files, {"TransformerDecoderLayer": {"multihead_attn": "cross_attn"}})


def test_the_tree_marks_the_part_of_a_packed_weight_that_is_wrong(tmp_path: Path) -> None:
    root = []
    for name in "ab":
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), Packed(name == "b", faulty=True))
        root.append(record(tmp_path / f"{name}.h5", model, 8))
    found = probe.compare(*root, {"Packed": {"qkv": ["query", "key", "value"]}})
    assert found.first_divergence.agreeing == ("1.query", "1.value")
    drawn = {line.split()[1]: line for line in str(found).split("Where it lies")[1].splitlines() if "Linear" in line}
    assert "✗ wrong, the first" in drawn["key"]
    assert all("✓ agrees" in drawn[name] for name in ("query", "value"))
