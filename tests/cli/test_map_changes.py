"""``probe map check`` and ``map suggest`` where one model has a layer more, less, elsewhere or in a wrapper: golden files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from tests.cli.running import run
from tests.golden_files import golden
from tests.toy import nn
from tests.toys import GPT, Block, batch, gpt

MAP = "GPT:\n  layers: layers\n"


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner=inner)

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


def members(model: GPT) -> list[nn.Module]:
    return [getattr(model.layers, str(number)) for number in range(4)]


def rebuilt(model: GPT, layers: list[nn.Module]) -> GPT:
    model.layers = nn.ModuleList(*layers)
    return model


def inserted(model: GPT) -> GPT:
    layers = members(model)
    nn.manual_seed(9)
    return rebuilt(model, [*layers[:2], Block(16, 2), *layers[2:]])


def removed(model: GPT) -> GPT:
    return rebuilt(model, [layer for number, layer in enumerate(members(model)) if number != 1])


def swapped(model: GPT) -> GPT:
    first, second, third, fourth = members(model)
    return rebuilt(model, [first, fourth, third, second])


def wrapped(model: GPT) -> GPT:
    layers = members(model)
    return rebuilt(model, [*layers[:2], Wrapper(layers[2]), layers[3]])


CHANGES: dict[str, tuple[Callable[[GPT], GPT], int]] = {
    "inserted": (inserted, 1), "removed": (removed, 1), "swapped": (swapped, 0), "wrapped": (wrapped, 0),
}  # fmt: skip
"""what is done to B, and how map check ends"""


@pytest.fixture
def recordings(folder: Path) -> Callable[..., None]:
    def record(change: Callable[[GPT], GPT], task: str = "statistics") -> None:
        for name, model in (("a.h5", gpt(layers=4)), ("b.h5", change(gpt(layers=4)))):
            with probe.capture(model, folder / name, task=task):
                loss = model(batch()).sum()
                loss.backward()
                probe.step(loss=loss)

    return record


@pytest.mark.parametrize("case", CHANGES)
def test_check_says_what_was_changed(folder: Path, recordings: Callable[..., None], case: str) -> None:
    change, status = CHANGES[case]
    recordings(change)
    (folder / "map.yaml").write_text(MAP)
    done = run("map", "check", "map.yaml", "a.h5", "b.h5")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    golden(f"map-check-{case}", done.stdout)
    assert done.exit_code == status


@pytest.mark.parametrize("case", CHANGES)
def test_a_draft_says_so_and_pairs_the_rest(folder: Path, recordings: Callable[..., None], case: str) -> None:
    change, status = CHANGES[case]
    recordings(change)
    done = run("map", "suggest", "a.h5", "b.h5", "-o", "draft.yaml")
    assert done.exit_code == 0
    golden(f"map-suggest-{case}", (folder / "draft.yaml").read_text())
    done = run("map", "check", "draft.yaml", "a.h5", "b.h5")
    assert done.exit_code == status, done.stdout


def test_from_structure_alone_it_is_said_that_nothing_tells(folder: Path, recordings: Callable[..., None]) -> None:
    recordings(inserted, "structure")
    (folder / "map.yaml").write_text(MAP)
    done = run("map", "check", "map.yaml", "a.h5", "b.h5")
    text = " ".join(done.stdout.split())
    assert (
        "B has one layer more: layers.4 (Block) has no counterpart; which of layers.0–4 it is cannot be told: no initial weights "
        "are known" in text
    )
    assert done.exit_code == 1


@pytest.mark.parametrize("case", CHANGES)
def test_the_comparison_says_it_too(folder: Path, recordings: Callable[..., None], case: str) -> None:
    recordings(CHANGES[case][0])
    (folder / "map.yaml").write_text(MAP)
    plain, mapped = (run("compare", "a.h5", "b.h5", *how) for how in ([], ["-lm", "map.yaml"]))
    assert plain.exit_code == mapped.exit_code == (0 if case == "wrapped" else 1)
    assert plain.stdout == mapped.stdout, "a mapping that says only the names changes nothing"
    numbers = (
        r"≈?-?\d+(\.\d+)?e[+-]\d+|≈?\d+\.\d+",
        "<number>",
    )  # of a model with softmax: not the same on every machine
    golden(
        f"compare-{case}-layer", plain.stdout, numbers, (r"\d+ downstream", "<n> downstream"), (r"[\d,]+×", "<number>×")
    )
