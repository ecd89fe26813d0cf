"""What 16 bits hide from the built-in model is said where nothing was found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import probe
from probe.commands.cli import compare_command
from probe.comparison.result import Verdict
from probe.report.html.document import document
from probe.report.text import render

SAID = (
    "16-bit values, judged by the built-in model: errors below about 3 % of what a module returns are not told from noise; "
    "--noise a2.h5 or --reference fp32.h5 sees smaller ones"
)


class Halves(torch.nn.Linear):
    """A product whose sum is rounded in two parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.in_features // 2
        return x[..., :half] @ self.weight[:, :half].T + x[..., half:] @ self.weight[:, half:].T


class Model(torch.nn.Module):
    def __init__(self, linear: type[torch.nn.Linear]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(64)
        self.up, self.down = linear(64, 64, bias=False), linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return y


def recorded(path: Path, linear: type[torch.nn.Linear], dtype: torch.dtype) -> Path:
    model = Model(linear).to(dtype)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    with probe.capture(model, path, task="tensor"):
        model(x).float().square().mean().backward()
        probe.step()
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return recorded(tmp_path / "a.h5", torch.nn.Linear, torch.bfloat16), recorded(
        tmp_path / "b.h5", Halves, torch.bfloat16
    )


def test_an_aligned_answer_says_what_16_bits_hide(pair: tuple[Path, Path]) -> None:
    found = probe.compare(*pair)
    assert found.verdict is Verdict.ALIGNED and found.unseen is not None
    assert found.unseen.error == 8 * 2.0**-8 and found.unseen.text == SAID
    first, *rest = render(found).plain.split("\n\n")[1].splitlines()
    assert first.startswith("No divergence in ") and " ".join(" ".join(rest).split()).startswith(f"{SAID}.")
    assert SAID in found._repr_html_()
    assert document(found)["answer"]["unseen"] == {"error": 8 * 2.0**-8, "text": SAID}  # type: ignore[index]
    printed = CliRunner().invoke(compare_command, [*map(str, pair), "--format", "json"])
    assert json.loads(printed.stdout)["unseen"]["text"] == SAID


class Half(torch.nn.Module):
    """A model in float32, of which modules compute in bfloat16 under autocast."""

    def __init__(self, linear: type[torch.nn.Linear]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Model(linear) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def cast(path: Path, linear: type[torch.nn.Linear], **moved: str) -> Path:
    model = Half(linear)
    around = probe.noise_run if moved else probe.capture
    with (
        around(model, path, task="tensor", **{k: v for k, v in moved.items() if v}),
        torch.autocast("cpu", torch.bfloat16),
    ):
        model(torch.randn(8, 64, generator=torch.Generator().manual_seed(1))).float().square().mean().backward()
        probe.step()
    return path


def test_a_further_run_that_makes_no_limit_smaller_is_told(tmp_path: Path) -> None:
    """Weights in float32 that are moved by one unit of float32 are the same in bfloat16, but for a few."""
    a, b = cast(tmp_path / "a.h5", torch.nn.Linear), cast(tmp_path / "b.h5", Halves)
    few = probe.compare(a, b, noise=cast(tmp_path / "few.h5", torch.nn.Linear, dtype=""))
    (note,) = [text for text in few.warnings if "limits of what modules return" in text]
    assert re.fullmatch(
        r"noise: few\.h5 made \d of \d+ limits of what modules return in 16 bits smaller: errors below about \d % are still not "
        r"told from noise; a run whose modules all round otherwise sees more \(another attention kernel or device; of "
        r"probe\.noise_run under autocast, dtype='bfloat16'\)",
        note,
    )
    enough = probe.compare(a, b, noise=cast(tmp_path / "enough.h5", torch.nn.Linear, dtype="bfloat16"))
    assert enough.verdict is Verdict.ALIGNED
    assert not [text for text in enough.warnings if "limits of what modules return" in text]


def test_sums_of_gradients_alone_say_what_they_hide(tmp_path: Path) -> None:
    def run(name: str, micros: int) -> Path:
        model = Half(torch.nn.Linear)
        x = torch.randn(12, 64, generator=torch.Generator().manual_seed(1))
        with probe.capture(model, tmp_path / f"{name}.h5"):
            for part in x.chunk(micros):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(part).float().square().mean() / micros
                loss.backward()
            probe.step()
        return tmp_path / f"{name}.h5"

    found = probe.compare(run("a", 2), run("b", 3))
    assert found.verdict is Verdict.ALIGNED and found.unseen is not None
    said = (
        "judged by gradients alone, with the built-in model: errors below about 20 % of a weight's gradient are not told from "
        "noise; recordings of forward and backward with the same split of the batch show smaller ones"
    )
    assert found.unseen.text == said
    assert f"{said}." in " ".join(render(found).plain.split())


def test_nothing_is_said_where_nothing_is_hidden(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Not of 32 bits, of equal bits, or of another rung."""
    single = [
        recorded(tmp_path / f"{linear.__name__}.h5", linear, torch.float32) for linear in (torch.nn.Linear, Halves)
    ]
    again = recorded(tmp_path / "again.h5", torch.nn.Linear, torch.bfloat16)
    further = recorded(tmp_path / "further.h5", Halves, torch.bfloat16)
    for found in (
        probe.compare(*single),
        probe.compare(pair[0], again),
        probe.compare(*pair, noise=further),
        probe.compare(*pair, rtol=0.5, metric="rel_l2"),
    ):
        assert found.verdict is Verdict.ALIGNED and found.unseen is None and found.as_json()["unseen"] is None
        assert "not told from noise" not in render(found).plain
