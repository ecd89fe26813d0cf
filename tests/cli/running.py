"""Models whose numbers are the same on every machine (products and sums of a few bits), and running the commands on them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

import probe
from probe.commands.cli import main
from tests.toy import nn
from tests.toy.tensor import Tensor

WIDTHS = [80, 100, 120, 200]


class Scale(nn.Module):
    def __init__(self, *weight: float) -> None:
        super().__init__(weight=nn.Parameter(np.array(weight, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Half(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * 0.5


class Layer(nn.Module):
    def __init__(self, up: nn.Module, down: nn.Module) -> None:
        super().__init__(up=up, down=down)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


class Net(nn.Module):
    """Layers, whatever their names are, one after the other."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__(layers=nn.ModuleList(), head=Scale(0.5, 1.0, 2.0))
        vars(self.layers).update(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def layer(number: int, *, up: type[Scale] = Scale) -> Layer:
    return Layer(up(1.0 + number, 0.5, 2.0), Scale(0.25, 1.0 + number, 1.5))


def net(count: int = 3, *, wrong: Sequence[int] = (), without: int | None = None) -> Net:
    kept = [number for number in range(count) if number != without]
    return Net(**{str(i): layer(n, up=Half if n in wrong else Scale) for i, n in enumerate(kept)})


def record(path: Path, model: nn.Module | None = None, *, steps: int = 1, **options: Any) -> Path:
    model = net() if model is None else model
    optimizer = nn.SGD(model.parameters(), lr=2.0**-14)
    x = Tensor(np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.5]], np.float32))
    with probe.capture(model, path, **options):
        for _ in range(steps):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def runner_with(environment: dict[str, str] | None = None) -> CliRunner:
    """Return a runner that keeps stdout and stderr apart; click before 8.2 has to be told."""
    if "mix_stderr" in inspect.signature(CliRunner).parameters:
        return CliRunner(mix_stderr=False, env=environment)  # type: ignore[call-arg]
    return CliRunner(env=environment)


def run(*arguments: str | Path, width: int | None = 80, **environment: str) -> Result:
    """Run a command in a terminal of so many columns; None: its output goes to no terminal."""
    columns = {} if width is None else {"COLUMNS": str(width)}
    runner = runner_with({**columns, **environment})
    result = runner.invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


TO_OTHER = "Net:\n  layers.0: first\n  layers.1: second\n  head: out\nLayer:\n  down: lower\n"


def pair(a: nn.Module, b: nn.Module, **options: Any) -> None:
    record(Path("a.h5"), a, **options)
    record(Path("b.h5"), b, **options)
    Path("map.yaml").write_text(TO_OTHER, encoding="utf-8")
