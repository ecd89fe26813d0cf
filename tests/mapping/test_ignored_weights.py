"""Lines of parameters that are for modules which the mapping leaves out, or of which nothing says where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.matching import Direction, WeightBundle
from tests.mapped import matched, names, with_parameters
from tests.mapping.test_map_commands import run, written
from tests.trees import tree

OWN = tree({"": "Own", "decoder": "Dec", "decoder.ln": "Norm"})
NET = tree({"": "Net", "model": "M", "model.decoder": "D", "model.decoder.embed": "E", "model.decoder.norm": "N"})
SIDES = (
    with_parameters(OWN, {"decoder.table": (8, 3), "decoder.ln.weight": (3,)}),
    with_parameters(NET, {"model.decoder.embed.weight": (8, 3), "model.decoder.norm.weight": (3,)}),
)
PLACED = "Own: {decoder: model.decoder}\n"
TABLE = "Dec:\n  params:\n    table: embed.weight\n"


def test_the_parameters_of_what_is_ignored_are_compared_alone_where_a_line_names_them() -> None:
    for ignored in ("/decoder", "/model.decoder", "**.decoder"):
        text = f"{PLACED}{TABLE}ignore: ['{ignored}']\n"
        found, other = matched(*SIDES, text), matched(*SIDES[::-1], text)
        assert found.weight_bundles == (WeightBundle("B", (1, "table"), (((3, "weight"),),)),)
        assert other.weight_bundles == (WeightBundle("A", (1, "table"), (((3, "weight"),),)),)
        assert names(found, OWN, NET) == {"": ""} and found.warnings == other.warnings == ()


def test_a_parameter_of_what_is_ignored_under_another_name_and_turned() -> None:
    b = with_parameters(NET, {"model.decoder.positions": (3, 8)})
    line = "Dec: {params: {table: {to: positions, transpose: true}}}"
    found = matched(SIDES[0], b, f"{PLACED}{line}\nignore: [/decoder]")
    assert found.weight_bundles == (WeightBundle("B", (1, "table"), (((2, "positions"),),)),)
    assert found.views_a[1, "table"].axes == (1, 0)


def test_the_long_form_of_a_line_for_what_is_ignored() -> None:
    text = "Own: {decoder: {to: model.decoder, params: {table: embed.weight}}}\nignore: [/decoder]"
    assert matched(*SIDES, text).weight_bundles == (WeightBundle("B", (1, "table"), (((3, "weight"),),)),)


def test_a_mapping_that_says_the_same_from_both_sides_needs_no_direction() -> None:
    known = with_parameters(OWN, {"decoder.table": (8, 3), "decoder.other": (8, 3)})
    assert matched(known, known, "Dec: {params: {table: table}}\nignore: [/decoder]").warnings == ()
    (warning,) = matched(known, known, "Dec: {params: {table: other}}\nignore: [/decoder]").warnings
    assert warning.startswith("the mapping fits both sides equally well; it is read as written from A")


def test_what_is_said_of_other_modules_too_is_not_said_of_those_that_are_ignored() -> None:
    a = tree({"": "Own", "x": "Dec", "y": "Dec"})
    known = with_parameters(a, {"x.table": (8, 3), "y.table": (8, 3)})
    other = with_parameters(a, {"x.weight": (8, 3), "y.weight": (8, 3)})
    found = matched(known, other, "Dec: {params: {table: weight}}\nignore: [/y]")
    assert found.weight_bundles == () and list(found.views_a) == [(1, "table")] and found.warnings == ()


def test_of_a_module_without_a_counterpart_the_warning_says_what_is_to_be_written() -> None:
    text = f"Own: {{ln: x}}\nTopLayer: {{'none?': y}}\n{TABLE}ignore: [/decoder]"
    why = (
        "the mapping's line 5: Dec: params: table: embed.weight is not used: decoder (Dec) has no counterpart; a line "
        "decoder: … in section TopLayer would say where it is; decoder.table: …, below params in TopLayer, would compare the "
        "weight alone"
    )
    assert matched(*SIDES, text, Direction.A_TO_B).warnings[-1] == why
    both = "TopLayer:\n  params:\n    decoder.table: model.decoder.embed.weight\nignore: [/decoder]"
    assert matched(*SIDES, both).weight_bundles == (WeightBundle("B", (1, "table"), (((3, "weight"),),)),)


def test_several_of_this_side_in_a_module_without_a_counterpart() -> None:
    text = (
        "TopLayer: {'none?': y}\nDec:\n  params:\n    w: {from: [table, ln.weight]}\nignore: ['**.none?', /decoder.ln]"
    )
    assert matched(*SIDES, text, Direction.A_TO_B).warnings == (
        "the mapping's line 4: Dec: params: w: {from: [table, ln.weight]} is not used: decoder (Dec) has no counterpart; a line "
        "decoder: … in section TopLayer would say where it is",
    )


@pytest.mark.parametrize("wrote", ["tabel", "tables"])
def test_what_is_not_there_has_the_nearest_name_of_the_module_that_the_line_is_for(wrote: str) -> None:
    found = matched(*SIDES, f"Own: {{decoder: {{to: model.decoder, params: {{{wrote}: embed.weight}}}}}}")
    assert found.warnings == (
        f"the mapping's line 1: Own: decoder: params: {wrote}: embed.weight names no parameter that is there; did you mean table?",
    )


class Named(nn.Module):
    """Multiplies by a weight under a name of its own."""

    def __init__(self, name: str, value: float, adds: float) -> None:
        super().__init__(**{name: nn.Parameter(np.full(3, value, np.float32) + np.arange(3, dtype=np.float32))})
        self.name, self.adds = name, adds

    def forward(self, x: Tensor) -> Tensor:
        return x * getattr(self, self.name) + self.adds


class Own(nn.Module):
    def __init__(self, part: Named) -> None:
        super().__init__(part=part)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) - self.part.adds


@pytest.mark.parametrize("value", [1.0, 2.0])
def test_a_wrong_weight_of_what_is_ignored_is_found(tmp_path: Path, value: float) -> None:
    files = tmp_path / "a.h5", tmp_path / "b.h5"
    for file, part in zip(files, (Named("gamma", 1.0, 0.0), Named("weight", value, 4.0)), strict=True):
        model = Own(part)
        with probe.capture(model, file, task="tensor"):
            probe.step(loss=model(Tensor(np.array([[1.0, -2.0, 0.5]], np.float32))).sum())
    mapping = written(tmp_path, "Named: {params: {gamma: weight}}\nignore: ['**/Named']\n")
    assert run("map", "check", mapping, *files).exit_code == 0
    done = run("compare", *files, "-lm", mapping)
    assert done.exit_code == (value != 1.0)
    assert ("init" in done.stdout) is (value != 1.0), done.stdout
