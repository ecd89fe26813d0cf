"""The data flow of a recording: who made what each module was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.steps.side import Side
from probe.report.graph.flow import Flow, Kind, flow_of
from probe.report.graph.sums import as_sum
from probe.report.html.document import document
from probe.store.reading.reader import Reader
from probe.testing import sample
from tests.report.reading import compared
from tests.toys import gpt, record


def flow_in(path: Path, micro: int = 0) -> tuple[Flow, list[str]]:
    """Return the flow of the first step, and what each of its nodes is called."""
    with Reader(path) as reader:
        flow = flow_of(Side(reader, 0), micro)
        paths = [module.path for module in reader.modules]
    names = []
    for node in flow.nodes:
        where = paths[node.module] if node.module >= 0 else ""
        call = f"#{node.call}" if node.call else ""
        names.append(
            {Kind.CALL: where + call, Kind.CODE: f"{where}:{node.text}", Kind.INPUT: f"<{node.text}>"}[node.kind]
        )
    return flow, names


def into(flow: Flow, names: list[str], target: str) -> list[set[str]]:
    """Return what leads to each of the nodes of a name, in their order."""
    return [
        {names[edge.source] for edge in flow.edges if edge.target == at}
        for at, name in enumerate(names)
        if name == target
    ]


def test_residuals_are_sums_and_every_module_has_who_made_its_input(tmp_path: Path) -> None:
    flow, names = flow_in(record(tmp_path / "a.h5", gpt()))
    assert into(flow, names, "embed") == [{"<0>"}]
    assert into(flow, names, "layers.0.norm1") == [{"embed"}]
    assert into(flow, names, "layers.1:+") == [
        {"layers.0:+", "layers.1.attn.o"},
        {"layers.1:+", "layers.1.mlp.down"},
    ]
    assert into(flow, names, "layers.1.norm2") == [{"layers.1:+"}]
    assert into(flow, names, "layers.1.attn.q") == [{"layers.1.norm1"}]
    assert into(flow, names, "layers.1.mlp.act") == [{"layers.1.mlp.gate"}]
    assert into(flow, names, "head") == [{"norm"}]
    known = {(names[edge.source], names[edge.target]): edge.is_known for edge in flow.edges}
    assert known["layers.1.attn.o", "layers.1:+"] and not all(known.values()), "what attention computes is a guess"


def test_what_stands_inside_a_call_comes_behind_it(tmp_path: Path) -> None:
    flow, names = flow_in(record(tmp_path / "a.h5", gpt()))
    assert all(node.parent < at for at, node in enumerate(flow.nodes))
    parents = {names[at]: names[node.parent] if node.parent >= 0 else None for at, node in enumerate(flow.nodes)}
    assert parents["layers.1.mlp.gate"] == "layers.1.mlp" and parents["layers.1.mlp"] == "layers.1"
    assert parents["layers.1"] == "" and parents["<0>"] is None


class Shared(nn.Module):
    """A layer that runs twice, and a difference."""

    def __init__(self) -> None:
        super().__init__(twice=nn.Linear(4, 4), last=nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.twice(x)
        return self.last(self.twice(y) - y * 3.0)


def test_calls_of_a_shared_module_are_told_apart_and_factors_are_found(tmp_path: Path) -> None:
    nn.manual_seed(0)
    model = Shared()
    with probe.capture(model, tmp_path / "a.h5"):
        model(Tensor(sample((5, 4), 0))).sum().backward()
        probe.step(loss=1.0)
    flow, names = flow_in(tmp_path / "a.h5")
    assert into(flow, names, "twice#1") == [{"twice"}]
    (made,) = into(flow, names, "last")
    assert into(flow, names, made.pop()) == [{"twice", "twice#1"}]


@pytest.mark.parametrize(
    ("factors", "label"),
    [
        ((1, 1, 0), "+"),
        ((1, -1, 0), "−"),
        ((0, 0.125, 0), "× 0.125"),
        ((0, 1, 0), ""),
        ((1, 0.5, 0), "+ ×"),
        ((1, 1, 1), "+"),
    ],
)
def test_a_sum_is_told_from_its_sketch(factors: tuple[float, ...], label: str) -> None:
    rng = np.random.default_rng(0)
    tried = [rng.standard_normal(61) for _ in factors]
    target = sum(factor * each for factor, each in zip(factors, tried, strict=True))
    found = as_sum(target, tried, 2.0**-24)
    assert found is not None and found.label == label
    assert found.terms == tuple(at for at, factor in enumerate(factors) if factor)
    assert as_sum(rng.standard_normal(61), tried, 2.0**-24) is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return document(compared(tmp_path_factory.mktemp("graph")))


def test_both_sides_stand_in_the_page_pair_by_pair(made: dict[str, Any]) -> None:
    flow, sides, words = made["flow"], made["sides"], made["words"]
    path = {side: sides[side]["modules"]["path"] for side in "ab"}
    calls = {
        path["b"][flow["b"]["module"][at]]: path["a"][flow["a"]["module"][twin]]
        for at, twin in enumerate(flow["twin"])
        if twin >= 0 and flow["b"]["kind"][at] == 0
    }
    assert calls["decoder.1.ln2"] == "layers.1.norm2" and calls["output"] == "head"
    assert "decoder.1.residual" not in calls, "A has no such module"
    tensors = made["tensors"]
    of = {
        path["a"][flow["a"]["module"][flow["a"]["source"][k]]]: words[tensors["verdict"][i]]
        for k, i in enumerate(flow["a"]["of"])
        if i >= 0 and flow["a"]["kind"][flow["a"]["source"][k]] == 0
    }
    assert of["layers.1.norm2"] == "inherited" and of["layers.0.norm2"] in ("noise", "equal")


def test_the_graph_is_of_the_micro_batch_in_which_it_begins(tmp_path: Path) -> None:
    flow = document(compared(tmp_path, fault=False, steps=2))["flow"]
    assert (flow["step"], flow["micro"]) == (0, 0)
