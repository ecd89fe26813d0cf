"""Weights that are in a module of their own on one side, and in the module around it on the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.commands.cli import main
from probe.comparison.result import Verdict
from probe.matching import Direction, Matching, Pair, Reason, WeightBundle
from probe.matching.apart import with_places
from probe.records import Phase, Role
from tests.comparison.planted import Recorder, said
from tests.toys import LENGTH, MLP, VOCABULARY, WIDTH, gpt, module
from tests.trees import tree


class Table(nn.Embedding):
    """Rows for all places."""


class Front(nn.Module):
    """Words and places, these in a module of their own."""

    def __init__(self, learns: bool) -> None:
        super().__init__(words=nn.Embedding(VOCABULARY, WIDTH), places=Table(LENGTH, WIDTH))
        self.places.weight.requires_grad = learns

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places(slice(None))


class Entry(nn.Module):
    """The same, with the places as a parameter or a buffer of its own."""

    def __init__(self, front: Front, learns: bool, factor: float) -> None:
        table = front.places.weight.data * factor
        super().__init__(words=front.words, table=nn.Parameter(table) if learns else nn.Buffer(table))

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.table


def models(learns: bool, factor: float = 1.0) -> tuple[Any, Any]:
    mine, theirs = gpt(), gpt()
    nn.manual_seed(3)
    mine.embed = Front(learns)
    nn.manual_seed(3)
    theirs.entry = Entry(Front(learns), learns, factor)
    del theirs.embed
    theirs.__class__ = type("GPT", (type(theirs),), {"forward": _forward})
    return mine, theirs


def _forward(self: Any, ids: Tensor) -> Tensor:
    x = self.entry(ids)
    for layer in self.layers:
        x = layer(x)
    return self.head(self.norm(x))


TOP = {"TopLayer": {"embed": "entry", "params": {"embed.places.weight": "entry.table"}}}
SECTIONS = {"TopLayer": {"embed": "entry"}, "Front": {"params": {"places.weight": "table"}}}
BACK = {"TopLayer": {"entry": "embed", "params": {"entry.table": "embed.places.weight"}}}


@pytest.mark.parametrize("rules", [TOP, SECTIONS, BACK])
@pytest.mark.parametrize("learns", [True, False])
def test_a_table_of_the_module_around_it(run: Recorder, tmp_path: Path, rules: Mapping[str, Any], learns: bool) -> None:
    mine, theirs = models(learns)
    files = run(mine, steps=2), run(theirs, steps=2)
    for a, b in (files, files[::-1]):
        found = probe.compare(a, b, mapping=rules)
        assert found.verdict is Verdict.ALIGNED and not found.left_out, (found.first_divergence, found.warnings)
        assert not said(found, "not compared")
        seen = {(s.phase, s.role) for s in found.slots if ("embed.places", "weight") in (*s.places_a, *s.places_b)}
        assert seen >= {(Phase.INIT, Role.PARAM), *([(Phase.UPDATE, Role.DELTA)] if learns else [])}
    file = tmp_path / "map.yaml"
    file.write_text(yaml.safe_dump(rules), encoding="utf-8")
    done = CliRunner().invoke(main, ["map", "check", str(file), *map(str, files)])
    assert done.exit_code == 0 and "embed.places (Table)" in done.output, done.output


@pytest.mark.parametrize("learns", [True, False])
def test_the_table_is_wrong(run: Recorder, learns: bool) -> None:
    mine, theirs = models(learns, 1.5)
    first = probe.compare(run(mine), run(theirs), mapping=TOP).first_divergence
    assert first is not None and first.phase is Phase.INIT
    assert [(each.path, each.slot) for each in (*first.a, *first.b)] == [("embed.places", "weight"), ("entry", "table")]


class Joint(nn.Module):
    """An MLP with gate and up in one."""

    def __init__(self, mlp: MLP) -> None:
        both = nn.Linear(WIDTH, 4 * WIDTH)
        both.weight = nn.Parameter(np.concatenate([mlp.gate.weight.data, mlp.up.weight.data]))
        both.bias = nn.Parameter(np.concatenate([mlp.gate.bias.data, mlp.up.bias.data]))
        super().__init__(both=both, down=mlp.down, act=mlp.act)

    def forward(self, x: Tensor) -> Tensor:
        y = self.both(x)
        return self.down(self.act(y[..., : 2 * WIDTH]) * y[..., 2 * WIDTH :])


PARTS = {"Joint": {"params": {f"both.{slot}": [f"gate.{slot}", f"up.{slot}"] for slot in ("weight", "bias")}}}


def test_parts_beside_modules_that_are_a_pair(run: Recorder) -> None:
    model = gpt()
    module(model, "layers.1").mlp = Joint(module(model, "layers.1.mlp"))
    file, same, wrong = run(model, steps=2), run(gpt(), steps=2), gpt()
    module(wrong, "layers.1.mlp").up.weight.data *= 1.5
    for a, b in ((file, same), (same, file)):
        found = probe.compare(a, b, mapping=PARTS)
        assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
        assert not said(found, "not compared")
    first = probe.compare(file, run(wrong), mapping=PARTS).first_divergence
    assert first is not None and first.phase is Phase.INIT
    assert [ref.path for ref in (*first.a, *first.b)] == ["layers.1.mlp.both", "layers.1.mlp.gate", "layers.1.mlp.up"]


def test_what_has_no_pair_of_modules_is_said() -> None:
    net = tree({"": "Net", "one": "Linear", "attn": "Attention"})
    bundle = WeightBundle("B", (1, "weight"), (((2, "q"), (2, "k")),))
    pairs = tuple(Pair(i, i, Reason.SAME_PATH) for i in (0, 2))
    found = with_places(Matching(pairs, (1,), (1,), Direction.A_TO_B, weight_bundles=(bundle,)), net, net)
    assert found.weight_bundles == () and found.pairs == pairs
    assert found.warnings == (
        "one.weight of A is not compared with attn.q, attn.k of B: its module has no counterpart",
    )  # fmt: skip
