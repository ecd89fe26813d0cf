"""What has no counterpart and needs none, and what does need one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from probe.mapping import load_mapping
from probe.matching import Known, match
from probe.matching.automatic.likeness import kind_of
from probe.matching.automatic.outline import Numbers, Outline, Seen, outline
from probe.matching.changes import changes_of
from probe.matching.checks.coverage import coverage
from probe.matching.unneeded import listed, needing_no_partner
from probe.records import ParameterInfo
from tests.trees import tree

Classes = Mapping[str, str]


def side(classes: Classes, weights: tuple[str, ...] = ()) -> tuple[Known, Outline]:
    found = tree({"": "Net", **classes})
    parameters = [
        ParameterInfo(
            (f"{path}.weight",), found.by_path[path], "weight", (4 if path == "fc" else 2, 4), "float32", True
        )
        for path in weights
    ]
    return Known(found, parameters), outline(found.modules, parameters)


def unneeded(a: tuple[Known, Outline], b: tuple[Known, Outline], sections: object = None) -> tuple[set[str], set[str]]:
    found = match(a[0], b[0], load_mapping(sections), lambda _: frozenset(), lambda _: frozenset())
    both = needing_no_partner(found, a[1], b[1], changes_of(found, a[0].tree, b[0].tree))
    return {a[0].tree.path(i) for i in both[0]}, {b[0].tree.path(i) for i in both[1]}


CASES: dict[str, tuple[Classes, tuple[str, ...], Classes, tuple[str, ...], set[str]]] = {
    "a function there": ({"act": "GELU"}, (), {}, (), {"act"}),
    "one of the kind is left there": ({"act": "GELU"}, (), {"nonlinearity": "GELUActivation"}, (), set()),
    "rotary embeddings are never alike": ({"rope": "RotaryEmbedding"}, (), {"rotary": "RotaryEmbedding"}, (), {"rope"}),
    "a model's name that holds the word of a kind": (
        {"model": "Gemma2Model", "model.rope": "Gemma2RotaryEmbedding"}, (), {"rotary": "Rotary"}, (), {"model", "model.rope"},
    ),
    "identity": ({"same": "IdentityOp"}, (), {"other": "Identity"}, (), {"same"}),
    "an empty list": ({"more": "ModuleList"}, (), {}, (), {"more"}),
    "holds what has a partner": ({"in": "Part"}, (), {}, (), {"in"}),
    "has weights": ({"proj": "Linear"}, ("proj",), {}, (), set()),
    "weights of a kind that must have some are not known": ({"proj": "Linear"}, (), {}, (), set()),
    "holds what is left": ({"part": "Part", "part.proj": "Linear"}, ("part.proj",), {}, (), set()),
    "inserted, with all in it": (
        {"l": "ModuleList", "l.0": "Act", "l.1": "Act", "l.2": "Act"}, (), {"l": "ModuleList", "l.0": "Act", "l.1": "Act"},
        (), set(),
    ),
}  # fmt: skip
"""A and its weights, B and its weights, what of A needs no partner"""


@pytest.mark.parametrize("case", CASES)
def test_what_needs_no_partner(case: str) -> None:
    mine, weights, theirs, other_weights, wanted = CASES[case]
    assert unneeded(side(mine, weights), side(theirs, other_weights))[0] == wanted


def test_weights_that_are_compared_with_those_of_others() -> None:
    a = side({"fc": "Linear"}, ("fc",))
    b = side({"w": "Part", "w.up": "Linear", "w.gate": "Linear"}, ("w.up", "w.gate"))
    lines = {"Net": {"params": {"fc.weight": {"to": ["w.up.weight", "w.gate.weight"]}}}}
    assert unneeded(a, b, lines) == ({"fc"}, {"w", "w.up", "w.gate"})


@pytest.mark.parametrize(("dropped", "wanted"), [(False, {"drop"}), (True, set())])
def test_a_dropout_that_drops_something_is_missed(dropped: bool, wanted: set[str]) -> None:
    a, b = side({"drop": "Dropout"}), side({})
    given = Numbers(-1.0, 1.0, 0.1, 2.0)
    made = Numbers(-2.0, 2.0, 0.1, 3.0) if dropped else given
    a[1].inputs[1], a[1].outputs[1] = (Seen((4,), given),), (Seen((4,), made),)
    assert unneeded(a, b)[0] == wanted


def test_how_it_is_listed_and_counted() -> None:
    a = side({"x": "Identity", "y": "GELU", "z": "Identity", "proj": "Linear"}, ("proj",))
    b = side({})
    found = match(a[0], b[0], load_mapping(None), lambda _: frozenset(), lambda _: frozenset())
    none = needing_no_partner(found, a[1], b[1])
    assert listed(a[0].tree, none[0]) == "2 Identity, 1 GELU"
    covered = coverage(found, a[0], b[0], none)
    assert [len(each) for each in covered.unneeded] == [3, 0]
    assert [each.path for each in covered.only_a] == ["proj"]


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("Gemma2RMSNorm", "norm"), ("Gemma2MLP", ""), ("Gemma3TextScaledWordEmbedding", "embedding"), ("GroupedGemm", "linear"),
        ("ConvNextLayerNorm", "norm"), ("ConvNextLayer", ""), ("ConvBertSelfAttention", ""), ("SolarOpenMLP", ""),
        ("SolarOpenRotaryEmbedding", "rotary"), ("PoolFormerPooling", "pool"), ("KimiLinearMLP", ""), ("Conv2d", "conv"),
        ("HunYuanDenseV1MLP", ""), ("BertPooler", "pool"),
    ],
)  # fmt: skip
def test_the_name_of_a_model_tells_no_kind(class_name: str, kind: str) -> None:
    assert kind_of(class_name) == kind
