"""Many ranks, made by one process: put together by this process or by others, once a step, fault and all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.answer.result import Verdict
from probe.ranks import reader
from probe.report.inspect import summary
from tests.torch import many_ranks as making
from tests.torch.many_ranks import Layout, Side, make

LAYERS = 4
NOISE = 3e-8
FAULT = "layers.2.mlp.linear_fc2"
EIGHT = Layout(2, 2, 2)


@pytest.fixture(scope="module", params=["statistics", "tensor"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One process, eight ranks that are off by rounding, four ranks, and eight with a fault in the second stage."""
    folder = tmp_path_factory.mktemp(request.param)
    whole = Side(Layout(), LAYERS, task=request.param)
    sides = {
        "one": whole,
        "eight": replace(whole, layout=EIGHT, noise=NOISE),
        "four": replace(whole, layout=Layout(4, 1, 1)),
        "faulty": replace(whole, layout=EIGHT, fault=FAULT),
    }
    for name, side in sides.items():
        make(side, folder / f"{name}.h5")
    return {name: folder / f"{name}.h5" for name in sides}


def told(answer: Any) -> str:
    return json.dumps(answer.as_json(), sort_keys=True, default=str)


@pytest.mark.parametrize("pair", [("one", "eight"), ("eight", "one"), ("four", "eight"), ("one", "four")])
def test_clean_layouts(runs: dict[str, Path], pair: tuple[str, str]) -> None:
    found = probe.compare(*(runs[name] for name in pair))
    assert found.verdict is Verdict.ALIGNED, found
    assert found.coverage.share == 1


def test_a_fault_in_one_stage(runs: dict[str, Path]) -> None:
    first = probe.compare(runs["one"], runs["faulty"]).first_divergence
    assert first is not None and first.path == FAULT
    assert first.b[0].path == FAULT


def test_stages_that_other_processes_put_together(runs: dict[str, Path]) -> None:
    here = probe.compare(runs["four"], runs["faulty"])
    assert told(probe.compare(runs["four"], runs["faulty"], scheduler="processes:2")) == told(here)


def test_a_step_is_put_together_once(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is known of how tensors are divided is known without the other side."""
    done = []
    original = reader.merged
    monkeypatch.setattr(reader, "merged", lambda *args: done.append(args) or original(*args))
    probe.compare(runs["one"], runs["eight"])
    assert len(done) == 1


def test_operations_of_stages_have_the_numbers_of_the_whole(tmp_path: Path) -> None:
    whole = Side(Layout(), LAYERS, task="tensor", level="mix")
    make(whole, tmp_path / "one.h5")
    make(replace(whole, layout=EIGHT, fault=FAULT), tmp_path / "eight.h5")
    with probe.open(tmp_path / "one.h5") as one, probe.open(tmp_path / "eight.h5") as eight:
        paths = [{each.path for each in run.modules if each.is_operation} for run in (one, eight)]
    assert "layers.2.mlp.activation/mul.0" in paths[0] and paths[0] == paths[1]
    found = probe.compare(tmp_path / "one.h5", tmp_path / "eight.h5")
    assert found.first_divergence is not None and found.first_divergence.path.startswith(FAULT)
    assert found.coverage.share == 1


TWO = Side(Layout(2, 1, 1), 1, task="tensor", momentum=0.9, steps=2)


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of which nothing is known."""
    for kind in (making.ColumnParallelLinear, making.RowParallelLinear):
        monkeypatch.setattr(making, kind.__name__, type(f"Own{kind.__name__[:3]}", (kind,), {}))


@pytest.mark.usefixtures("own_names")
def test_states_of_a_weight_that_only_its_shape_shows_to_be_divided(tmp_path: Path) -> None:
    """They are divided as it is: on every rank others, and no copies that differ."""
    make(replace(TWO, layout=Layout()), tmp_path / "one.h5")
    make(TWO, tmp_path / "two.h5")
    found = probe.compare(tmp_path / "one.h5", tmp_path / "two.h5")
    assert found.verdict is Verdict.ALIGNED, found
    momentum = found["layers.0.mlp.linear_fc1"].state[0]
    assert momentum.verdict in ("equal", "noise") and not momentum.metrics.estimated


def test_a_rank_with_another_learning_rate_is_named(tmp_path: Path) -> None:
    make(replace(TWO, layout=Layout()), tmp_path / "one.h5")
    make(replace(TWO, other_rate=1), tmp_path / "two.h5")
    found = probe.compare(tmp_path / "one.h5", tmp_path / "two.h5")
    assert found.verdict is Verdict.DIVERGED
    assert "B: lr of the optimizer is 0.001 on rank 0, and 0.002 on rank 1" in found.warnings


def test_what_the_mapping_says_of_dims_and_nothing_is(tmp_path: Path) -> None:
    make(replace(TWO, layout=Layout()), tmp_path / "one.h5")
    make(TWO, tmp_path / "two.h5")
    dims = {
        "layers.*.mlp.fc1": "... h[tp]",
        "layers.*.mlp.linear_fc1 param w": "h[tp] f",
        "layers.*.mlp.linear_fc1": "... h[tq]",
        "layers.*.mlp.linear_fc2": "replicated",
    }
    found = probe.compare(tmp_path / "one.h5", tmp_path / "two.h5", {"dims": dims})
    assert [each for each in found.warnings if each.startswith("dims")] == [
        "dims 'layers.*.mlp.fc1' of the mapping say nothing: no module has that path",
        "dims 'layers.*.mlp.linear_fc1 param w' of the mapping say nothing: no such module has a parameter of that name",
        "dims 'layers.*.mlp.linear_fc1' of the mapping say nothing: no run has a group 'tq'",
    ]


def test_ranks_without_a_file_are_named(tmp_path: Path) -> None:
    from rich.console import Console

    make(replace(TWO, layout=Layout(4, 1, 1)), tmp_path / "four.h5")
    (tmp_path / "four.rank00002.h5").unlink()
    console = Console(width=200, record=True)
    console.print(summary(tmp_path / "four.h5"))
    assert "there is no file of rank 2 of 4" in console.export_text()


# ---- classes of which nothing is known, and which hold what they hold in the shape of the whole


class Copied(making.LayerNorm):
    """Returns the same on each rank; nearly, on the second one, where it has another eps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * 1.05 if self._place.rank == 1 and self._path == "layers.0.pre_mlp_layernorm" else y


class Terms(making.RowParallelLinear):
    """Returns a term of a sum on each rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, world = super().forward(x), self._place.side.layout.world
        term = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        return y if world == 1 else y / world + (term if self._place.rank else -term)


class AddingUp(making.MLP):
    """Returns the sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, leaf = super().forward(x), self.linear_fc2
        return y + (leaf._cut("output", 1) - y).detach()


FOUND = {
    "an all-reduce around the module": ({"RowParallelLinear": Terms, "MLP": AddingUp}, ""),
    "no all-reduce": ({"RowParallelLinear": Terms}, "layers.0.mlp.linear_fc2"),
    "another eps on one rank": ({"LayerNorm": Copied}, "layers.0.pre_mlp_layernorm"),
}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("which", FOUND)
def test_what_each_rank_has_another_one_of(
    which: str, task: str, own_names: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sums are compared where a module around adds up, copies elsewhere."""
    classes, path = FOUND[which]
    monkeypatch.setattr(making.Attention, "forward", lambda self, x: x)  # it would return terms of a sum too
    for name, kind in classes.items():
        monkeypatch.setattr(making, name, type(f"Own{name[:3]}", (kind,), {}))
    side = replace(TWO, task=task, layers=2)
    make(replace(side, layout=Layout()), tmp_path / "one.h5")
    make(side, tmp_path / "two.h5")
    found = probe.compare(tmp_path / "one.h5", tmp_path / "two.h5")
    first = found.first_divergence
    assert (first.path if first else "") == path and found.verdict is (Verdict.DIVERGED if path else Verdict.ALIGNED), (
        found
    )
    if which == "an all-reduce around the module":
        assert found["layers.0.mlp.linear_fc2"].output[0].verdict in ("equal", "noise")
