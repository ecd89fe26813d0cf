"""Names that no one expects, of modules, classes, tensors and logged numbers."""

from __future__ import annotations

from pathlib import Path

import probe
from probe.testing import sample
from tests.toy import nn
from tests.toy.tensor import Tensor

NAMES = {
    "markup": "<img src=x onerror=alert(1)>", "end of style": "</style><script>alert(1)</script>", "quotes": "'\"`\\",
    "newline": "a\nb", "long": "x" * 10_000, "right to left": "\u202eabc", "emoji": "🔥", "surrogate": "a\ud800b",
    "formula": "$x^2$ $\\frac{$", "entity": "&lt;b&gt;", "underscore": "_hidden", "percent": "%s{0}",
}  # fmt: skip


def recorded(path: Path, name: str, factor: float) -> Path:
    """Record a model that has a name everywhere, and that multiplies by a factor."""

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            probe.log(name, x)
            return x * self.weight * factor + self.bias

    Inner.__name__ = Inner.__qualname__ = stored(name)

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, name)(x)

    model = Outer(**{name: Inner(weight=nn.Parameter(sample((4,), 1)), bias=nn.Parameter(sample((4,), 2)))})
    optimizer = nn.SGD(model.parameters(), 0.1)
    with probe.capture(model, path, task="tensor"):
        for _ in range(2):
            model(Tensor(sample((5, 4), 0))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=1.0, **{name: factor})
    return path


def stored(name: str) -> str:
    """Return a name as the file has it."""
    return name.encode("utf-8", "backslashreplace").decode()


def visible(name: str) -> str:
    """Return a name as it is shown, its first characters if it is long."""
    return stored(name).replace("\n", "\\x0a").replace("\u202e", "\\u202e")[:15]
